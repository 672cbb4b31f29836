//! The run of all cases: one guest, one device of rocexdp's, a line of progress and a row of the table for each.
//!
//! Must not: know what a case does.

use std::{
    fmt,
    net::IpAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    time::Instant,
};

use rocexdp::{
    lab::Host,
    mem::Buffer,
    rdma::{Access, Device, NodeConfig, ProtectionDomain, ReadWrite, Region},
};
use rocexdp_tests::{
    rig,
    softroce::{Capture, Report, Site, Vsh},
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::table::{Row, Table};

/// Where the bytes to send, or to be read, begin in the memory of both ends.
pub const OUT: u64 = 0;
/// Where bytes come to.
pub const IN: u64 = 2 << 20;
/// The word of atomics, and the one that their answer comes to.
pub const WORD: u64 = 4 << 20;
/// Bytes of the memory.
pub const MEMORY: u64 = WORD + 4096;

/// How often a clean case is run in which rxe's own timer ran out.
const PEER_TIMER_RUNS: u32 = 3;

/// Kinds of findings that a timer causes which runs out though nothing was lost.
pub const OF_TIMER: [&str; 5] = [
    "ack_timeout",
    "packet_loss",
    "lost_ack",
    "read_response_lost",
    "unneeded_retransmission",
];

/// What rocexdp is in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Requester,
    Responder,
    Both,
    /// Of a program: it connects.
    Client,
    /// Of a program: it waits.
    Server,
}

impl Role {
    pub const EACH: [Self; 2] = [Self::Requester, Self::Responder];
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requester => "requester",
            Self::Responder => "responder",
            Self::Both => "both",
            Self::Client => "client",
            Self::Server => "server",
        })
    }
}

/// The version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const EACH: [Self; 2] = [Self::V4, Self::V6];

    /// A host's address.
    pub fn of(self, host: Host) -> IpAddr {
        match self {
            Self::V4 => host.ipv4().into(),
            Self::V6 => host.ipv6().into(),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// What a case is called in the table.
#[derive(Clone, Debug)]
pub struct Name {
    /// What is done.
    pub what: String,
    pub role: Role,
    pub family: Family,
    /// Bytes.
    pub path_mtu: u16,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            role,
            family,
            path_mtu,
        } = self;
        write!(f, "{what}, {role}, {family}, path MTU {path_mtu}")
    }
}

/// Traces of a transport that repairs what the wire did.
pub const REPAIRED: &[&str] = &[
    "packet_loss",
    "read_response_lost",
    "lost_ack",
    "atomic_replayed",
    "ack_timeout",
    "nak_sequence",
    "unneeded_retransmission",
    "reordering",
];

/// What a case's capture must show.
#[derive(Clone, Copy, Debug)]
pub enum Expect {
    /// No finding at all, nothing sent again.
    Clean,
    /// All of these kinds of findings, perhaps those that follow, and no other.
    Findings(&'static [&'static str], &'static [&'static str]),
    /// At least one of these kinds (unless there are none), perhaps those that follow, and no other.
    OneOf(&'static [&'static str], &'static [&'static str]),
    /// Perhaps traces of repair, perhaps these kinds, and no other.
    Repaired(&'static [&'static str]),
}

/// Everything that cases need.
pub struct Run {
    // In the order in which they go.
    pub memory: Region<ReadWrite>,
    pub pd: ProtectionDomain,
    pub device: Device,
    /// The shell in the guest, with its memory `m` and no queue pair.
    pub vsh: Vsh,
    /// `raddr=` of the guest's memory.
    pub guest_va: u64,
    pub guest_rkey: u32,
    pub runtime: Runtime,
    pub site: Site,
    place: TempDir,
    rocexdp: PathBuf,
    table: Table,
    full: bool,
    killed: bool,
}

impl Run {
    /// Moves the calling thread into host a's namespace. `table` has what went before.
    pub fn new(site: Site, table: Table, full: bool) -> Self {
        site.lab().host(Host::A).enter().unwrap();
        // A case's failure is one line; the backtrace would hide the next cases.
        std::panic::set_hook(Box::new(|panic| println!("{panic}")));
        // A thread of its own for what goes on while a case waits for the guest: connection management.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let device = Device::open_with(NodeConfig::new(site.lab().host_interface())).unwrap();
        let pd = device.protection_domain().unwrap();
        let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let buffer = Buffer::map(MEMORY as usize).unwrap();
        let memory = pd.register(buffer, rights).unwrap();
        let (vsh, guest_va, guest_rkey) = shell(&site);
        Self {
            device,
            pd,
            memory,
            vsh,
            guest_va,
            guest_rkey,
            runtime,
            site,
            place: tempfile::tempdir().unwrap(),
            rocexdp: rig::product().expect("the rocexdp binary"),
            table,
            full,
            killed: false,
        }
    }

    /// Whether the whole matrix is asked for, of this kernel.
    pub fn full(&self) -> bool {
        self.full
    }

    /// Runs a case, recorded. A failure is told, and the next case runs.
    ///
    /// A clean case in which rxe stood still until its own timer ran out is run again: nothing was lost, but it can't be told from what
    /// a case is to show. See [`only_peers_timer`].
    pub fn case(&mut self, name: &Name, expect: Expect, body: impl Fn(&mut Self)) {
        let title = name.to_string();
        if let Ok(only) = std::env::var("ROCEXDP_INTEROP_ONLY")
            && !only.split('|').any(|part| title.contains(part))
        {
            return;
        }
        let started = Instant::now();
        let file = self.place.path().join("case.pcap");
        let done = catch_unwind(AssertUnwindSafe(|| {
            for again in (0..PEER_TIMER_RUNS).rev() {
                let capture = Capture::start(&self.site, &file);
                let done = catch_unwind(AssertUnwindSafe(|| body(self)));
                let report = capture.finish(&self.rocexdp);
                if let Err(why) = done {
                    println!("capture: {}", report.findings_text());
                    std::panic::resume_unwind(why);
                }
                if again > 0 && matches!(expect, Expect::Clean) && only_peers_timer(&report) {
                    println!("interop: {name}: rxe's timer ran out: once more");
                    continue;
                }
                self.judge(expect, &report);
                return report;
            }
            unreachable!("the last run is judged")
        }));
        let took = started.elapsed().as_secs_f64();
        let (result, retransmissions) = match &done {
            Ok(report) => ("ok".to_owned(), sent_again(&[Host::A, Host::B], report)),
            Err(why) => (said(why.as_ref()), 0),
        };
        let packets = done.as_ref().map_or(0, Report::packets);
        println!(
            "interop: {name}: {result}: {packets} packets, {retransmissions} again, {took:.2} s"
        );
        if let Some(keep) = std::env::var_os("ROCEXDP_INTEROP_KEEP") {
            let to = PathBuf::from(keep).join(format!("{name}.pcap").replace(['/', ' '], "_"));
            std::fs::copy(&file, to).unwrap();
        }
        if done.is_err() {
            // What the case left behind must not fail the next one.
            self.impair("clean");
            if !self.killed {
                self.site.guest().resume();
                (self.vsh, self.guest_va, self.guest_rkey) = shell(&self.site);
            }
        }
        self.table.add(Row {
            kernel: self.site.guest().kernel(),
            name: name.clone(),
            result,
            sent_again: match expect {
                Expect::OneOf(..) | Expect::Repaired(..) => "varies",
                _ if retransmissions > 0 => "yes",
                _ => "0",
            },
        });
    }

    fn judge(&self, expect: Expect, report: &Report) {
        assert!(report.packets() > 0, "the capture has no packet");
        let found = report.findings();
        let text = report.findings_text();
        let only = |known: &[&[&str]]| {
            for kind in &found {
                let known = known.iter().any(|kinds| kinds.contains(&kind.as_str()));
                assert!(known, "unexpected finding {kind}: {text}");
            }
        };
        match expect {
            Expect::Clean => {
                assert_eq!(report.icrc_errors(), 0, "ICRC errors: {text}");
                assert!(found.is_empty(), "findings on a clean case: {text}");
                assert_eq!(
                    sent_again(&[Host::A, Host::B], report),
                    0,
                    "sent again on a clean wire"
                );
            }
            Expect::Findings(must, may) => {
                for kind in must {
                    assert!(found.iter().any(|f| f == kind), "no finding {kind}: {text}");
                }
                only(&[must, may]);
            }
            Expect::OneOf(any, may) => {
                let one = found.iter().any(|kind| any.contains(&kind.as_str()));
                assert!(any.is_empty() || one, "none of {any:?} was found: {text}");
                only(&[any, may]);
            }
            Expect::Repaired(may) => only(&[REPAIRED, may]),
        }
    }

    /// The same faults in both directions.
    pub fn impair(&mut self, faults: &str) {
        self.site.impair([faults; 2]);
    }

    /// Kills the guest: no case can follow until there is another.
    pub fn kill(&mut self) {
        self.killed = true;
        self.site.guest().kill();
    }

    /// Boots a guest in place of one that was killed.
    pub fn reboot(&mut self) {
        if std::mem::take(&mut self.killed) {
            self.site.reboot();
            (self.vsh, self.guest_va, self.guest_rkey) = shell(&self.site);
        }
    }

    /// The end: its results.
    pub fn finish(self) -> Table {
        self.table
    }
}

/// Packets that these hosts sent again.
pub fn sent_again(hosts: &[Host], report: &Report) -> u64 {
    let addresses = hosts.iter().copied().flat_map(Host::addresses);
    addresses
        .map(|address| report.retransmissions_from(&address.to_string()))
        .sum()
}

/// Whether all that there is to find is that the guest sent again after a silence of its own: rocexdp sent nothing again, and no NAK.
///
/// rxe stops after 64 packets that its interface has not sent yet, and may miss that it has (rxe_req.c, `need_req_skb`; rxe_net.c,
/// `rxe_skb_tx_dtor`); and its timer runs from a QP's first packet on, whatever is acknowledged (rxe_comp.c: "some timeouts are spurious
/// since we do not reset the timer").
pub fn only_peers_timer(report: &Report) -> bool {
    let found = report.findings();
    found.iter().any(|kind| kind == "ack_timeout")
        && found.iter().all(|kind| OF_TIMER.contains(&kind.as_str()))
        && sent_again(&[Host::A], report) == 0
        && report.sequence_naks() == 0
}

/// A shell with memory as large as ours.
fn shell(site: &Site) -> (Vsh, u64, u32) {
    let mut vsh = site.guest().vsh();
    let memory = vsh.ask(&format!("buf m {MEMORY}"));
    let rkey = u32::try_from(memory.number("rkey")).unwrap();
    (vsh, memory.number("addr"), rkey)
}

/// What a panic said, on one line.
pub fn said(why: &(dyn std::any::Any + Send)) -> String {
    let text = why.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| why.downcast_ref::<&str>().copied());
    text.unwrap_or("panic").replace('\n', " ")
}
