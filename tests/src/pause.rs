//! Two namespaces joined by a veth pair, of which one pauses the other; removed on drop.
//!
//! Must not: judge what the other one makes of it.

use std::{
    net::IpAddr,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rocexdp::{
    mem::Buffer,
    net::Link,
    node::{ConnectAttr, Node, NodeQp},
    sys::netns::NetNs,
    xsk::{Xsk, XskConfig},
};
use rocexdp_proto::{
    ids::{PathMtu, Psn, Qpn, RKey, WrId},
    mem::{Access, Memory},
    verbs::{Segment, SendOp, SendWr},
};

/// The interface at either end.
pub const IFACE: &str = "eth0";
/// Where a MAC sends pause frames.
const ALL: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 1];
/// End a's address.
pub const A: &str = "10.78.0.1";
/// And end b's.
pub const B: &str = "10.78.0.2";

/// Two namespaces joined by a veth pair; removed on drop.
pub struct Pair {
    /// The namespaces.
    pub names: [String; 2],
    /// Where the endpoint, or the monitor, is.
    pub a: NetNs,
    /// Where pause frames come from.
    pub b: NetNs,
}

impl Pair {
    /// `None`, said as `SKIP`, where it can't be.
    #[must_use]
    pub fn up(test: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: not root");
            return None;
        }
        let names = ["a", "b"].map(|end| format!("pfc{test}{}-{end}", std::process::id()));
        let [a, b] = names.each_ref().map(|name| NetNs::create(name).unwrap());
        let pair = Self { names, a, b };
        let [a, b] = &pair.names;
        ip(&format!(
            "-n {a} link add {IFACE} mtu 4200 type veth peer name other mtu 4200"
        ));
        ip(&format!("-n {a} link set other netns {b} name {IFACE}"));
        for (ns, address) in [(a, A), (b, B)] {
            ip(&format!("-n {ns} address add {address}/24 dev {IFACE}"));
            ip(&format!("-n {ns} link set {IFACE} up"));
        }
        Some(pair)
    }

    /// Sends pause frames from b until dropped.
    #[must_use]
    pub fn pause(&self, priorities: u8, share: Share) -> Pauser {
        self.pause_at(ALL, priorities, share)
    }

    /// The same, to this address.
    #[must_use]
    pub fn pause_at(&self, to: [u8; 6], priorities: u8, share: Share) -> Pauser {
        let end = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&end);
        let open = || {
            let link = Link::by_name(IFACE).unwrap();
            Xsk::open(&XskConfig::new(IFACE, link.index.0, 0)).unwrap()
        };
        let mut socket = self.b.run(open).unwrap();
        let thread = std::thread::spawn(move || {
            in_time();
            while !stop.load(Ordering::Relaxed) {
                let begin = Instant::now();
                match share {
                    // 65535 quanta of 51.2 ns at 10 Gb/s: 3.4 ms.
                    Share::All => {
                        send(&mut socket, to, priorities, 0xffff);
                        std::thread::sleep(Duration::from_micros(500));
                    }
                    Share::EightyFive => {
                        while begin.elapsed() < Duration::from_millis(85) {
                            send(&mut socket, to, priorities, 0xffff);
                            std::thread::sleep(Duration::from_micros(500));
                        }
                        send(&mut socket, to, priorities, 0);
                        std::thread::sleep(
                            Duration::from_millis(100).saturating_sub(begin.elapsed()),
                        );
                    }
                }
            }
            send(&mut socket, to, priorities, 0);
        });
        Pauser(end, Some(thread))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = NetNs::delete(name);
        }
    }
}

/// How much of the time is paused.
#[derive(Clone, Copy)]
pub enum Share {
    /// All of it.
    All,
    /// 85 %.
    EightyFive,
}

/// Pauses until dropped; then lets everything go on.
pub struct Pauser(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Drop for Pauser {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

/// Gives the calling thread real-time priority: a pause ends after 3.4 ms, and the next frame must have come by then, whatever
/// else runs. chrt is part of util-linux, which Debian calls essential.
fn in_time() {
    let tid = rustix::thread::gettid().as_raw_nonzero().to_string();
    let done = Command::new("chrt")
        .args(["--fifo", "--pid", "50", &tid])
        .status();
    assert!(done.unwrap().success(), "chrt");
}

/// A PFC frame for these priorities (IEEE 802.1Qbb, as in the kernel's captures: destination 01:80:c2:00:00:01, 0x8808, 0x0101).
fn send(socket: &mut Xsk, to: [u8; 6], priorities: u8, quanta: u16) {
    let mut frame = [0_u8; 60];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    frame[12..18].copy_from_slice(&[0x88, 0x08, 0x01, 0x01, 0, priorities]);
    for priority in 0..8 {
        if priorities >> priority & 1 == 1 {
            frame[18 + 2 * priority..20 + 2 * priority].copy_from_slice(&quanta.to_be_bytes());
        }
    }
    let done = socket.transmit(60, |pieces| {
        if let [piece, ..] = pieces {
            piece.copy_from_slice(&frame);
        }
    });
    done.unwrap();
    socket.flush().unwrap();
}

/// Runs ip(8).
///
/// # Panics
/// If it fails.
pub fn ip(line: &str) {
    let done = Command::new("ip")
        .args(line.split_whitespace())
        .status()
        .unwrap();
    assert!(done.success(), "ip {line}");
}

/// Posts a request that nobody answers, to be sent again after 4.096 us << `timeout`.
///
/// # Panics
/// If the QP can't be made.
#[must_use]
pub fn ask(node: &Node, timeout: u8) -> NodeQp {
    let qp = node.create_qp(4, 1).unwrap();
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let attributes = ConnectAttr {
        timeout,
        access: Access::LOCAL_WRITE,
        ..ConnectAttr::new(
            address(A),
            address(B),
            Qpn::new(0x77),
            Psn::new(1),
            PathMtu::Mtu1024,
        )
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(qp.connect(attributes)).unwrap();
    let memory: Arc<dyn Memory> = Buffer::new(4096).unwrap();
    qp.post_send(SendWr {
        wr_id: WrId(1),
        op: SendOp::Write {
            va: 0,
            rkey: RKey(1),
        },
        local: Segment::new(memory, 0, 64).into(),
        signaled: true,
        solicited: false,
        fence: false,
        to: None,
    })
    .unwrap();
    qp
}
