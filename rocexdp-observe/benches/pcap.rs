//! `cargo xtask bench pcap`: what `rocexdp pcap` costs beside tshark in the same run, and where the time goes.
//!
//! Captures are generated (the model of `tests/capture_support/traffic.rs`): 8 QP pairs of WRITE, SEND and READ at path MTU 1024
//! and 4096, acknowledgements, one packet in 10 000 lost and recovered by go-back-N, CE marks. tshark reads a smaller one of the
//! same making; rates are per byte. Each program runs once to warm the page cache and its fastest of three runs counts.
//!
//! Memory is that of captures which are made while they are read, through a pipe: by flows, and by packets, with one in 200 lost, so
//! that there is more to tell than a report keeps.

#[path = "../tests/capture_support/traffic.rs"]
mod traffic;

use std::{
    fs::{self, File},
    hint::black_box,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rocexdp_observe::{
    analyse::{Analyser, Options},
    capture::{PacketRef, Reader},
    icrc,
};
use traffic::{Lost, Plan, Qp, Tap, Verb, make};

/// What tshark prints of each packet: what the analysis needs of it.
const FIELDS: [&str; 14] = [
    "frame.number",
    "frame.time_epoch",
    "frame.len",
    "ip.src",
    "ip.dst",
    "ip.dsfield.ecn",
    "infiniband.bth.opcode",
    "infiniband.bth.destqp",
    "infiniband.bth.psn",
    "infiniband.bth.a",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.reth.dmalen",
    "infiniband.invariant.crc",
];
const RUNS: usize = 3;
const MIB: u64 = 1 << 20;

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let (mut binary, mut size, mut slice, mut dir) = (None, 1024 * MIB, 32 * MIB, None);
    while let Some(arg) = args.next() {
        let mut value = || args.next().unwrap_or_else(|| panic!("{arg} needs a value"));
        match arg.as_str() {
            "--rocexdp" => binary = Some(PathBuf::from(value())),
            "--mib" => size = value().parse::<u64>().unwrap() * MIB,
            "--tshark-mib" => slice = value().parse::<u64>().unwrap() * MIB,
            "--dir" => dir = Some(PathBuf::from(value())),
            other => panic!(
                "unknown argument {other}: --rocexdp BIN, --mib N, --tshark-mib N, --dir DIR"
            ),
        }
    }
    let temporary = tempfile::tempdir().unwrap();
    let dir = dir.unwrap_or_else(|| temporary.path().to_owned());
    let large = capture(&dir, "large", size, 8);
    println!("{} MiB in 8 QP pairs, from the page cache:", size / MIB);
    stages(&large);
    let Some(binary) = binary else {
        println!("no --rocexdp: the program is not measured");
        return;
    };
    let mine = |file: &Path| {
        let mut command = Command::new(&binary);
        command.arg("pcap").arg("--json").arg(file);
        command
    };
    let rocexdp = best(|| mine(&large));
    let rate = rocexdp.rate(size);
    println!(
        "rocexdp pcap --json: {:.2} GB/s, {} MiB at most",
        rate,
        rocexdp.peak_kib / 1024
    );
    if Command::new("tshark").arg("-v").output().is_ok() {
        let small = capture(&dir, "small", slice, 8);
        let tshark = best(|| {
            let mut command = Command::new("tshark");
            command.args(["-n", "-T", "fields", "--disable-protocol", "rpcordma"]);
            command.args(["--disable-protocol", "infiniband.eoib"]);
            for field in FIELDS {
                command.args(["-e", field]);
            }
            command.arg("-r").arg(&small);
            command
        });
        let theirs = tshark.rate(slice);
        println!(
            "tshark -T fields, {} MiB: {:.4} GB/s, {} MiB at most",
            slice / MIB,
            theirs,
            tshark.peak_kib / 1024
        );
        println!("rocexdp is {:.0} times as fast", rate / theirs);
    } else {
        println!("no tshark: no ratio");
    }
    println!("memory at most, of captures through a pipe, one packet in 200 lost:");
    for (mib, flows) in [
        (64, 10),
        (64, 1_000),
        (64, 10_000),
        (256, 10_000),
        (1024, 10_000),
        (1024, 10),
    ] {
        let plan = plan(mib * MIB, flows, 200);
        let peak_kib = streamed(mine(Path::new("-")), &plan, mib * MIB);
        println!("  {mib:>4} MiB, {flows:>6} QP pairs: {peak_kib:>7} KiB");
    }
}

/// Makes a capture of about this size.
fn capture(dir: &Path, name: &str, size: u64, pairs: u64) -> PathBuf {
    let path = dir.join(format!("{name}.pcap"));
    let file = File::create(&path).unwrap();
    write(&plan(size, pairs, 10_000), size, file);
    path
}

/// Traffic of about this size.
fn plan(size: u64, pairs: u64, loss_one_in: u64) -> Plan {
    let qp = |index: u64| {
        let (verb, mtu, message) = match index % 4 {
            0 => (Verb::Write, 4096, 65_536),
            1 => (Verb::Send, 1024, 4_096),
            2 => (Verb::Read, 1024, 16_384),
            _ => (Verb::Write, 1024, 65_536),
        };
        Qp {
            verb,
            mtu,
            message,
            messages: (size / pairs / u64::from(message)).max(1) as u32,
            gap_ns: 1_000,
        }
    };
    Plan {
        qps: (0..pairs).map(qp).collect(),
        loss_one_in,
        places: vec![Lost::After],
        ce_one_in: 5_000,
        seed: 42,
        start: 1_700_000_000_000_000_000,
        delay_ns: 5_000,
    }
}

/// What the tap near the requesters sees of it, `size` bytes at most.
fn write(plan: &Plan, size: u64, out: impl Write) {
    let mut tap = Tap::new(BufWriter::with_capacity(1 << 20, out));
    make(plan, |wire| {
        if let Some(time) = wire.near
            && tap.bytes < size
        {
            tap.push(time, wire.settled, wire.frame);
        }
    });
    tap.finish();
}

/// The parts of the analysis, each with those before it.
fn stages(path: &Path) {
    let length = fs::metadata(path).unwrap().len();
    let time = |name: &str, each: &mut dyn FnMut(&PacketRef<'_>)| {
        let mut fastest = Duration::MAX;
        let mut packets = 0_u64;
        for _ in 0..RUNS {
            let start = Instant::now();
            let mut reader = Reader::open(path).unwrap();
            packets = 0;
            while let Some(packet) = reader.next().unwrap() {
                each(&packet);
                packets += 1;
            }
            fastest = fastest.min(start.elapsed());
        }
        println!(
            "  {name:<22} {:6.2} GB/s {:6.0} ns per packet",
            length as f64 / fastest.as_secs_f64() / 1e9,
            fastest.as_secs_f64() * 1e9 / packets as f64
        );
    };
    time("read", &mut |p| {
        black_box(p.data.first());
    });
    time("read, dissect", &mut |p| {
        black_box(p.dissect());
    });
    time("read, dissect, ICRC", &mut |p| {
        if let Some(packet) = p.dissect().kind.packet() {
            black_box(icrc::check(p.data, packet));
        }
    });
    for (name, no_icrc) in [("all but ICRC", true), ("all", false)] {
        let options = Options {
            no_icrc,
            ..Options::default()
        };
        let mut analyser = Analyser::new(options);
        analyser.begin_file("bench");
        time(name, &mut |p| analyser.push(p));
        black_box(analyser.finish().findings.len());
    }
}

struct Run {
    took: Duration,
    peak_kib: u64,
}

impl Run {
    /// In GB/s.
    fn rate(&self, bytes: u64) -> f64 {
        bytes as f64 / self.took.as_secs_f64() / 1e9
    }
}

fn best(command: impl Fn() -> Command) -> Run {
    (0..=RUNS)
        .map(|_| run(command()))
        .skip(1)
        .min_by_key(|run| run.took)
        .unwrap()
}

fn run(command: Command) -> Run {
    run_fed(command, drop)
}

/// KiB of a program that reads a capture while it is made.
fn streamed(command: Command, plan: &Plan, size: u64) -> u64 {
    run_fed(command, |stdin| write(plan, size, stdin)).peak_kib
}

/// Runs a program to its end; its peak of resident memory as the kernel tells it until shortly before.
fn run_fed(mut command: Command, feed: impl FnOnce(ChildStdin) + Send) -> Run {
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let stdin = child.stdin.take().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| feed(stdin));
        watched(&command, child, start)
    })
}

fn watched(command: &Command, mut child: Child, start: Instant) -> Run {
    let status = format!("/proc/{}/status", child.id());
    let mut peak_kib = 0;
    let exit = loop {
        if let Some(exit) = child.try_wait().unwrap() {
            break exit;
        }
        if let Ok(text) = fs::read_to_string(&status)
            && let Some(line) = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))
        {
            let kib = line.trim().trim_end_matches(" kB").parse().unwrap_or(0);
            peak_kib = peak_kib.max(kib);
        }
        thread::sleep(Duration::from_millis(1));
    };
    assert!(exit.success(), "{command:?} failed");
    Run {
        took: start.elapsed(),
        peak_kib,
    }
}
