//! `cargo xtask bench xdp`: what the XDP program costs per packet, by `BPF_PROG_TEST_RUN`, beside an empty program and a
//! bare redirect in the same run.
//!
//! A wrapper (`rocexdp-ebpf/src/bench.rs`) writes the next QP and PSN into the frame before each run, so that QPs take
//! turns and no PSN is seen twice; its own cost is in the baseline too. All programs are measured in turn, several rounds,
//! and a cost is the median over the rounds of the difference within one round: the machine may be shared.
//!
//! With an argument, only the packets whose name contains it are measured. The programs run one after another on one packet buffer, so a driver's own work, and the cache misses that a real
//! frame brings, are not in these figures. Instructions are those of the same verdict compiled for the host, counted by
//! callgrind: virtual machines seldom have the counters that would count the BPF program's.

#[path = "../../rocexdp-common/tests/support/mod.rs"]
mod support;

use std::{os::fd::AsFd as _, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap, XskMap},
    programs::{TestRun as _, TestRunOptions, Xdp},
};
use rocexdp::{
    sys::netns::NetNs,
    xsk::{Xsk, XskConfig, ZeroCopy},
};
use rocexdp_common::{
    maps::{self, QpConfig, local_addr},
    opcode::{Opcode, rc},
};
use support::{
    model::Model,
    packet::{A4, A6, B4, B6, C4, Spec},
};

const SLOTS: u32 = 1 << 17;
const BASE: u32 = 0x80_0000;
const REPEAT: u32 = 100_000;
const ROUNDS: usize = 15;

/// Layout of `rocexdp-ebpf/src/bench.rs`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Turn {
    bth_at: u32,
    qps: u32,
    stride: u32,
    base: u32,
    at: u32,
    psn: u32,
    taken: u32,
    psns: u32,
}

/// A row of the table.
struct Case {
    name: String,
    frame: Vec<u8>,
    bth_at: usize,
    /// QPs or flows that take turns; 0: no wrapper, the frame goes in as it is.
    qps: u32,
    /// PSNs that a packet takes.
    psns: u32,
    /// Whether the aim of 60 ns above the bare redirect is for it.
    aim: bool,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, qps] = args.as_slice()
        && mode == "count"
    {
        return count(qps.parse()?);
    }
    // `cargo bench` adds an option of libtest's.
    let wanted = args.into_iter().find(|a| !a.starts_with("--"));
    let filtered = wanted.is_some();
    let name = format!("rocexdp-bench-{}", std::process::id());
    let ns = NetNs::create(&name).context("a namespace for the sockets (needs root)")?;
    let result = ns.run(|| measure(wanted.as_deref()));
    NetNs::delete(&name)?;
    result??;
    if filtered { Ok(()) } else { instructions() }
}

/// Median of some numbers.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn cases() -> Vec<Case> {
    let case = |name: &str, spec: Spec, qps: u32| Case {
        name: name.into(),
        bth_at: spec.udp_at() + 8,
        frame: spec.build(),
        qps,
        psns: 1,
        aim: false,
    };
    let write = |qpn| Spec::new(rc::WRITE_MIDDLE, qpn, 1).payload(1024);
    let only = |qpn| Spec::new(rc::WRITE_ONLY, qpn, 1).reth(1024).payload(1024);
    let mut all = vec![];
    for qps in [1, 1000, 100_000] {
        all.push(Case {
            aim: true,
            ..case(&format!("WRITE MIDDLE, {qps} QPs"), write(BASE), qps)
        });
    }
    for qps in [1, 1000, 100_000] {
        all.push(case(
            &format!("foreign WRITE MIDDLE, {qps} flows"),
            write(BASE).to(C4),
            qps,
        ));
    }
    all.push(Case {
        aim: true,
        ..case("WRITE ONLY", only(BASE), 1)
    });
    all.push(Case {
        aim: true,
        ..case("WRITE MIDDLE, CE", write(BASE).tos(3), 1)
    });
    all.push(Case {
        aim: true,
        ..case(
            "SEND ONLY",
            Spec::new(rc::SEND_ONLY, BASE, 1).payload(64),
            1,
        )
    });
    all.push(Case {
        aim: true,
        ..case(
            "WRITE MIDDLE, IPv6",
            write(BASE | 0x1_0000).from(A6).to(B6),
            1,
        )
    });
    all.push(Case {
        psns: 4,
        ..case(
            "READ request",
            Spec::new(rc::READ_REQUEST, BASE, 1).reth(4096),
            1,
        )
    });
    all.push(Case {
        aim: true,
        ..case(
            "READ response MIDDLE",
            Spec::new(rc::READ_RESPONSE_MIDDLE, BASE, 1).payload(1024),
            1,
        )
    });
    all.push(case("ACK", Spec::ack(BASE, 1, 0x1f, 1), 1));
    all.push(case("NAK", Spec::ack(BASE, 1, 0x60, 1), 1));
    all.push(case("CNP, right ICRC", Spec::cnp(BASE), 0));
    all.push(case("unknown QPN, dropped", write(BASE | 0x2_0000), 1));
    all.push(case(
        "undefined opcode",
        Spec::new(Opcode(0xff), BASE, 1),
        1,
    ));
    let mut tcp = write(BASE).build();
    tcp[23] = 6;
    all.push(Case {
        name: "TCP".into(),
        frame: tcp,
        bth_at: 42,
        qps: 0,
        psns: 1,
        aim: false,
    });
    all
}

fn config(qpn: u32) -> QpConfig {
    let six = qpn & 0x1_0000 != 0 && qpn & 0xffff == 0;
    QpConfig {
        generation: 1,
        qpn,
        peer_qpn: 0x11,
        local_gid: if six { B6.gid() } else { B4.gid() },
        peer_gid: if six { A6.gid() } else { A4.gid() },
        path_mtu_log2: 10,
        ..QpConfig::default()
    }
}

fn addresses() -> [([u8; 16], u32); 2] {
    [B4, B6].map(|a| (a.gid(), local_addr::EXCLUSIVE))
}

/// The object, its sockets, and the maps filled.
struct Bench {
    ebpf: Ebpf,
    ifindex: u32,
    _sockets: Vec<Xsk>,
}

fn load() -> Result<Bench> {
    let ip = Command::new("ip")
        .args([
            "link", "add", "b0", "up", "type", "veth", "peer", "name", "b1",
        ])
        .status()?;
    if !ip.success() {
        bail!("ip link add failed");
    }
    let ifindex: u32 = std::fs::read_to_string("/proc/thread-self/net/dev_snmp6/b0")?
        .lines()
        .find_map(|l| l.strip_prefix("ifIndex")?.trim().parse().ok())
        .context("index of b0")?;
    let dir = std::env::var_os("ROCEXDP_BPF_DIR").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/bpf"),
        PathBuf::from,
    );
    let path = dir.join("bench");
    let object = std::fs::read(&path)
        .with_context(|| format!("{}: run `cargo xtask bench xdp`", path.display()))?;
    let mut ebpf = EbpfLoader::new()
        .override_global(maps::GLOBAL_QUEUES, &1_u32, true)
        .override_global(maps::GLOBAL_SLOT_MASK, &(SLOTS - 1), true)
        .map_max_entries(maps::QP_CONFIG, SLOTS)
        .map_max_entries(maps::QP_COUNTERS, SLOTS)
        .map_max_entries(maps::QUEUE_COUNTERS, 2)
        .map_max_entries(maps::DIRTY, SLOTS.div_ceil(64))
        .map_max_entries(maps::DIRTY_INDEX, SLOTS.div_ceil(4096))
        .map_max_entries(maps::FLOWS, SLOTS * 2)
        .load(&object)?;
    for name in PROGRAMS {
        let xdp: &mut Xdp = ebpf.program_mut(name).context(name)?.try_into()?;
        xdp.load().with_context(|| format!("program {name}"))?;
    }
    let mut configs: Array<_, [u8; size_of::<QpConfig>()]> = ebpf
        .map_mut(maps::QP_CONFIG)
        .context("QP_CONFIG")?
        .try_into()?;
    for slot in 0..SLOTS {
        // Slot 0x20000 and up do not exist: that QPN is the unknown one.
        configs.set(
            slot,
            bytemuck::cast::<_, [u8; size_of::<QpConfig>()]>(config(BASE | slot)),
            0,
        )?;
    }
    let mut local: HashMap<_, [u8; 16], u32> = ebpf
        .map_mut(maps::LOCAL_ADDRS)
        .context("LOCAL_ADDRS")?
        .try_into()?;
    for (gid, flags) in addresses() {
        local.insert(gid, flags, 0)?;
    }
    let socket = Xsk::open(&XskConfig {
        zero_copy: ZeroCopy::Never,
        ..XskConfig::new("b0", ifindex, 0)
    })?;
    for name in [maps::XSKS, "BARE_XSKS"] {
        let mut xsks: XskMap<_> = ebpf.map_mut(name).context(name)?.try_into()?;
        xsks.set(0, socket.as_fd(), 0)?;
    }
    Ok(Bench {
        ebpf,
        ifindex,
        _sockets: vec![socket],
    })
}

const PROGRAMS: [&str; 6] = [
    "empty",
    "redirect",
    "turn_empty",
    "turn_redirect",
    "endpoint_alone",
    "turn_endpoint",
];

impl Bench {
    /// Nanoseconds per run.
    fn run(&self, program: &str, frame: &[u8], repeat: u32) -> Result<(f64, u32)> {
        let xdp: &Xdp = self.ebpf.program(program).context("loaded")?.try_into()?;
        let words = [0, frame.len() as u32, 0, self.ifindex, 0, 0];
        let result = xdp.test_run(TestRunOptions {
            data_in: Some(frame),
            ctx_in: Some(bytemuck::cast_slice(&words)),
            repeat,
            ..Default::default()
        })?;
        Ok((result.duration.as_nanos() as f64, result.return_value))
    }

    fn set_turn(&mut self, case: &Case, psn: u32) -> Result<()> {
        let mut turn: Array<_, [u8; size_of::<Turn>()]> =
            self.ebpf.map_mut("TURN").context("TURN")?.try_into()?;
        let qps = case.qps.max(1);
        let qpn = u32::from_be_bytes([
            0,
            case.frame[case.bth_at + 5],
            case.frame[case.bth_at + 6],
            case.frame[case.bth_at + 7],
        ]);
        let value = Turn {
            bth_at: case.bth_at as u32,
            qps,
            // Far apart, so that neighbours do not share what a prefetcher brings.
            stride: if qps > 2 {
                (qps as f64 * 0.618) as u32 | 1
            } else {
                1
            },
            base: qpn,
            at: 0,
            psn,
            taken: 0,
            psns: case.psns,
        };
        turn.set(0, bytemuck::cast::<_, [u8; size_of::<Turn>()]>(value), 0)?;
        Ok(())
    }
}

fn measure(wanted: Option<&str>) -> Result<()> {
    let mut bench = load()?;
    println!(
        "nanoseconds per packet, medians of {ROUNDS} rounds of {REPEAT} (BPF_PROG_TEST_RUN)\n"
    );
    println!(
        "{:<34} {:>7} {:>7} {:>9} {:>9} {:>9} {:>7}",
        "packet", "empty", "bare", "endpoint", "over bare", "of bare", ""
    );
    let mut missed = 0;
    let mut psn = 0;
    let mut costs = Vec::new();
    for case in cases()
        .into_iter()
        .filter(|c| wanted.is_none_or(|w| c.name.contains(w)))
    {
        let (base, bare, ours) = if case.qps == 0 {
            ("empty", "redirect", "endpoint_alone")
        } else {
            ("turn_empty", "turn_redirect", "turn_endpoint")
        };
        let mut samples: [Vec<f64>; 3] = Default::default();
        let mut action = 0;
        for round in 0..=ROUNDS {
            for (i, program) in [base, bare, ours].into_iter().enumerate() {
                bench.set_turn(&case, psn)?;
                let (ns, did) = bench.run(program, &case.frame, REPEAT)?;
                if i == 2 {
                    // Beyond all that this round has used.
                    psn = (psn + (REPEAT / case.qps.max(1) + 1) * case.psns) & 0xff_ffff;
                    action = did;
                }
                // The first round fills caches and flow table.
                if round > 0 {
                    samples[i].push(ns);
                }
            }
        }
        let over = median(
            samples[2]
                .iter()
                .zip(&samples[1])
                .map(|(a, b)| a - b)
                .collect(),
        );
        costs.push((case.name.clone(), over));
        let [empty, bare, ours] = samples.map(median);
        let verdict = match (case.aim, over <= 60.0) {
            (false, _) => "",
            (true, true) => "<= 60",
            (true, false) => {
                missed += 1;
                "> 60"
            }
        };
        let action = ["aborted", "drop", "pass", "tx", "redirect"]
            .get(action as usize)
            .unwrap_or(&"?");
        println!(
            "{:<34} {empty:>7.0} {bare:>7.0} {ours:>9.0} {over:>9.0} {:>8.2}x {verdict:>7}  {action}",
            case.name,
            ours / bare,
        );
    }
    for kind in ["WRITE MIDDLE", "foreign WRITE MIDDLE"] {
        let of = |number: &str| {
            let name = format!("{kind}, {number}");
            costs
                .iter()
                .find(|(n, _)| n.strip_prefix(&name).is_some_and(|r| r.starts_with(' ')))
        };
        if let (Some((_, warm)), Some((_, cold))) = (of("1"), of("100000")) {
            println!(
                "cold: a {kind} whose entries are in no cache (100 000 in turn) costs {:.0} ns more than one whose are",
                cold - warm
            );
        }
    }
    println!(
        "\n{missed} of the local QPs' data packets are more than 60 ns above the bare redirect"
    );
    Ok(())
}

/// Counts the instructions of the verdict with 1, 1 000 and 100 000 QPs and as many foreign flows.
fn instructions() -> Result<()> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("instructions: n/a (valgrind is not installed)");
        return Ok(());
    }
    let me = std::env::current_exe()?;
    let mut first = None;
    println!("\ninstructions per packet of the verdict, compiled for this machine (callgrind)");
    for qps in [1_u32, 1000, 100_000] {
        let run = Command::new("valgrind")
            .args([
                "--tool=callgrind",
                "--callgrind-out-file=/dev/null",
                "--collect-atstart=no",
                "--toggle-collect=*counted_packet*",
            ])
            .arg(&me)
            .args(["count", &qps.to_string()])
            .output()?;
        let text = String::from_utf8_lossy(&run.stderr);
        let total: f64 = text
            .lines()
            .find_map(|l| l.split("Collected :").nth(1)?.trim().parse().ok())
            .with_context(|| format!("callgrind counted nothing: {text}"))?;
        let each = total / f64::from(COUNTED);
        let first = *first.get_or_insert(each);
        println!(
            "{qps:>8} QPs {each:>8.1}  {:+.2} %",
            (each / first - 1.0) * 100.0
        );
    }
    Ok(())
}

/// Packets counted.
const COUNTED: u32 = 200_000;

/// Runs the verdict over plain memory; `counted_packet` is what callgrind collects.
fn count(qps: u32) -> Result<()> {
    let mut model = Model::new(SLOTS as usize, 1);
    for slot in 0..SLOTS {
        model.add(config(BASE | slot));
    }
    model.addresses = addresses().to_vec();
    model.sockets = vec![0];
    let spec = Spec::new(rc::WRITE_MIDDLE, BASE, 1).payload(1024);
    let at = spec.udp_at() + 8;
    let mut frame = spec.build();
    let (mut qp, stride) = (0, (f64::from(qps) * 0.618) as u32 | 1);
    for i in 0..COUNTED {
        qp = (qp + stride) % qps;
        frame[at + 4..at + 8].copy_from_slice(&(BASE + qp).to_be_bytes());
        frame[at + 8..at + 12].copy_from_slice(&(i / qps).to_be_bytes());
        counted_packet(&mut model, &frame);
    }
    Ok(())
}

#[inline(never)]
fn counted_packet(model: &mut Model, frame: &[u8]) {
    std::hint::black_box(model.run(frame));
}
