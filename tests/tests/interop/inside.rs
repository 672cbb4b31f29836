//! rocexdp inside the guest of the interop tests: on Linux 6.1, the oldest kernel it runs on, and on a processor without carry-less
//! multiply.
//!
//! 6.1 has no frames of several buffers on AF_XDP, so the plain program is chosen and the path MTU is 2048 at most. The ICRC is then
//! computed from tables: an emulated processor raises an exception on an instruction that it says it has not.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rocexdp::lab::Host;
use rocexdp_tests::{
    Running, rig,
    softroce::{
        Inside, Kernel,
        inside::{INTERFACE, SHARED},
    },
};

const LIMIT: Duration = Duration::from_secs(240);
/// What AF_XDP of 6.1 carries in one buffer, and what a veth there may have with a plain program.
const MTU: u32 = 2200;
const PATH_MTU: u32 = 2048;

/// Captures of every service, of both kinds of address, and with an end that is not a multiple of 4.
const CAPTURES: [&str; 6] = [
    "rc-write-multi.pcap",
    "rc-ipv6.pcap",
    "rc-mtu-4096.pcap",
    "uc-send-write.pcap",
    "ud-ipv6.pcap",
    "perftest-read-bw.pcap",
];

fn captures() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures");
    CAPTURES.iter().map(|name| dir.join(name)).collect()
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn runs_on_6_1_and_on_a_processor_without_carry_less_multiply() {
    let Some(rocexdp) = rig::product() else {
        return;
    };
    let Some(inside) = Inside::up("rxo", Kernel::V6_1, MTU, &rocexdp, &captures()) else {
        return;
    };
    let flags = inside.guest().run("grep -m1 ^flags /proc/cpuinfo").ok();
    assert!(!flags.stdout.contains("pclmulqdq"), "{}", flags.stdout);

    // The same program, the same frames, with and without the instruction.
    for file in captures() {
        let name = file.file_name().unwrap().to_str().unwrap();
        let line = format!("cd {SHARED}; rocexdp pcap --json {name}");
        let theirs = inside.guest().start(&line).finish(LIMIT).json();
        let mut command = Command::new(&rocexdp);
        command.current_dir(file.parent().unwrap());
        command.args(["pcap", "--json", name]);
        let ours = Running::start(command, format!("rocexdp pcap {name}"));
        let ours = ours.finish(LIMIT).json();
        assert_eq!(theirs["icrc_errors"], 0, "{name}");
        assert_ne!(theirs["rocev2_packets"], 0, "{name}");
        assert_eq!(theirs, ours, "{name}");
    }

    // The program loads and carries packets of data both ways, with a length that needs pad bytes. Loading it is what takes the time: its
    // verification runs on the emulated processor too.
    let ends = inside.perf("read-bw -b -s 9001 -n 40 -u 20", LIMIT);
    for end in &ends {
        assert_eq!(end["path_mtu"], PATH_MTU, "{end}");
    }
    assert_eq!(ends[0]["results"][0]["iterations"], 40, "{}", ends[0]);
    // Said to who asks for more, before anybody is waited for.
    let line = format!("perf write-bw -m 4096 -d {INTERFACE}");
    let alone = inside.start(Host::B, &line).finish(LIMIT);
    alone.failed(1, &["-m 4096", "2048 B at most"]);
}
