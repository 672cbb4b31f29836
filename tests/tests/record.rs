//! The flight recorder on real traffic: files around triggers that other tools read.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rocexdp::lab::Host;
use rocexdp_tests::{
    Rig, Running, eventually,
    hop::{FAR, Hop, NEAR},
    rig::{SHORT, text},
};

/// `rocexdp record ARGUMENTS` in the hop's namespace.
fn start(hop: &Hop, binary: &Path, arguments: &[&str]) -> Running {
    let mut command = Command::new(binary);
    command.arg("record").args(arguments);
    hop.ns().confine(&mut command).unwrap();
    let mut running = Running::start(command, format!("rocexdp record {}", arguments.join(" ")));
    running.says(Duration::from_secs(60), &["recording"]);
    assert!(running.runs());
    running
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

/// Fields of the packets that `filter` lets through, a line each.
fn tshark(file: &Path, filter: &str, fields: &[&str]) -> Option<Vec<String>> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-r", text(file), "-Y", filter, "-T", "fields"]);
    for protocol in ["rpcordma", "infiniband.eoib"] {
        command.args(["--disable-protocol", protocol]);
    }
    for field in fields {
        command.args(["-e", field]);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("SKIP: no tshark");
            return None;
        }
        Err(error) => panic!("tshark: {error}"),
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(out.lines().map(str::to_owned).collect())
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_nak_is_in_a_file_with_what_came_before_it() {
    let Some(mut rig) = Rig::up("trn") else {
        return;
    };
    let Some(binary) = rocexdp_tests::rig::product() else {
        return;
    };
    let hop = Hop::insert(rig.lab(), Host::A);
    let out = rig.path("flight");
    let ports = format!("{NEAR},{FAR}");
    let recorder = start(
        &hop,
        &binary,
        &[
            "--iface",
            &ports,
            "--on",
            "nak | rnr",
            "--ring",
            "8MiB",
            "--before",
            "2s",
            "--after",
            "100ms",
            "--out-dir",
            text(&out),
        ],
    );
    rig.start_sender(&[]);
    rig.start_receiver(&[]);
    rig.impair("drop=2%,seed=7");
    let file = rig.file("file", 4 << 20);
    rig.copy_well(&file, "file");
    let naks: u64 = rig.qps(Host::A).iter().map(|qp| qp.counters.naks[0]).sum();
    assert!(naks > 0, "the faults made no NAK");
    eventually("a file is there", SHORT, || {
        files(&out)
            .iter()
            .any(|path| path.extension().is_some_and(|e| e == "pcapng"))
            .then_some(())
    });
    let outcome = recorder.interrupt(SHORT);
    assert_eq!(outcome.code, Some(130), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(" 0 lost"), "{}", outcome.stderr);
    let files = files(&out);
    assert!(!files.is_empty());
    let mut commented = 0;
    for file in &files {
        assert!(file.extension().is_some_and(|e| e == "pcapng"), "{file:?}");
        assert!(outcome.stdout.contains(text(file)), "{}", outcome.stdout);
        let fields = [
            "frame.interface_name",
            "frame.comment",
            "infiniband.aeth.syndrome.opcode",
        ];
        let Some(lines) = tshark(file, "infiniband.aeth.syndrome.opcode == 3", &fields) else {
            return;
        };
        assert!(!lines.is_empty(), "{file:?} has no NAK");
        commented += lines
            .iter()
            .filter(|line| line.contains("trigger: nak | rnr (RC Acknowledge"))
            .count() as u64;
        // Both directions, at both places, and headers only.
        for what in [
            format!("frame.interface_name == \"{NEAR}\" && infiniband.bth.opcode == 17"),
            format!("frame.interface_name == \"{FAR}\" && infiniband.bth.opcode == 17"),
            format!("frame.interface_name == \"{FAR}\" && infiniband.bth.opcode != 17"),
        ] {
            assert!(
                !tshark(file, &what, &["frame.number"]).unwrap().is_empty(),
                "{what}"
            );
        }
        assert!(
            tshark(file, "frame.cap_len > 120", &["frame.number"])
                .unwrap()
                .is_empty()
        );
        let times = tshark(file, "frame", &["frame.time_epoch"]).unwrap();
        let times: Vec<f64> = times.iter().map(|t| t.parse().unwrap()).collect();
        assert!(times.is_sorted());
    }
    // Each NAK passed both ports; the files overlap in what came before, not in comments.
    assert!(
        commented >= 2 * naks.min(1) && commented <= 2 * naks,
        "{commented} of {naks}"
    );
    rig.stop(Host::A);
    rig.stop(Host::B);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn ctrl_c_writes_a_pending_trigger_and_old_files_make_room() {
    let Some(rig) = Rig::up("trc") else {
        return;
    };
    let Some(binary) = rocexdp_tests::rig::product() else {
        return;
    };
    let hop = Hop::insert(rig.lab(), Host::A);
    let out = rig.path("flight");
    let arguments = |after| {
        [
            "--iface",
            NEAR,
            "--on",
            "malformed",
            "--ring",
            "1MiB",
            "--max-files",
            "2",
            "--payload",
            "--after",
            after,
            "--out-dir",
            text(&out),
        ]
        .map(str::to_owned)
    };
    let send = || {
        let to = (Host::B.ipv4(), 4791);
        rig.lab()
            .host(Host::A)
            .run(|| {
                let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
                // Too short for a BTH.
                socket.send_to(&[7; 5], to).unwrap();
            })
            .unwrap();
    };
    let line = arguments("60m");
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let recorder = start(&hop, &binary, &line);
    send();
    recorder.says(SHORT, &["trigger: malformed"]);
    assert!(files(&out).is_empty(), "an hour is not over");
    let outcome = recorder.interrupt(SHORT);
    assert_eq!(files(&out).len(), 1, "{}", outcome.stderr);
    std::fs::remove_dir_all(&out).unwrap();

    let line = arguments("1ms");
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let recorder = start(&hop, &binary, &line);
    for written in 1..=4 {
        send();
        eventually("a file is written", SHORT, || {
            (recorder.stdout().lines().count() >= written).then_some(())
        });
    }
    recorder.interrupt(SHORT);
    assert_eq!(files(&out).len(), 2);
    let lengths = tshark(
        &files(&out)[1],
        "udp.dstport == 4791",
        &["frame.cap_len", "frame.len"],
    );
    assert!(lengths.is_none_or(|l| l.last().is_some_and(|l| l == "47\t47")));
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_wrong_expression_is_pointed_at() {
    let Some(binary) = rocexdp_tests::rig::product() else {
        return;
    };
    let record = |more: &[&str]| {
        let mut command = Command::new(&binary);
        command.args(["record", "--iface", "lo"]).args(more);
        Running::start(command, "rocexdp record".to_owned()).finish(SHORT)
    };
    let outcome = record(&["--on", "nak | cnp_rat>1k"]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("column 7: there is no cnp_rat"),
        "{}",
        outcome.stderr
    );
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn an_endpoints_packets_are_recorded_in_both_directions() {
    let Some(mut rig) = Rig::running("tre") else {
        return;
    };
    let file = rig.file("file", 2 << 20);
    let out = rig.path("flight");
    let mut recorder = rig.spawn(
        Host::A,
        &[
            "record",
            "--iface",
            "eth0",
            "--on",
            "nak",
            "--ring",
            "64MiB",
            "--before",
            "30s",
            "--after",
            "1s",
            "--out-dir",
            text(&out),
        ],
    );
    recorder.says(SHORT, &["recording", "receives and sends"]);
    assert!(recorder.runs());
    rig.impair_each(["drop=2%,seed=9", "clean"]);
    rig.copy_well(&file, "file");
    let qp = rig.qps(Host::A)[0].clone();
    let (sent, again) = (qp.engine.tx_packets, qp.engine.retransmitted_packets);
    assert!(again > 0, "the wire loses packets");
    let name = eventually("a file is written", SHORT, || {
        // Made with the first trigger.
        std::fs::read_dir(&out).ok()?;
        files(&out)
            .into_iter()
            .find(|f| f.extension().is_some_and(|e| e == "pcapng"))
    });
    assert_eq!(recorder.interrupt(SHORT).code, Some(130));
    let report = rig
        .run(Host::A, &["pcap", "--json", text(&name)])
        .ok()
        .json();
    let flows = report["flows"].as_array().unwrap();
    let flow = flows
        .iter()
        .find(|flow| flow["transport"] == "RC")
        .unwrap_or_else(|| panic!("{report:#}"));
    assert_eq!(flow["one_direction"], false, "{flow:#}");
    // The file ends a second after a NAK, and the copy takes less: all of it is there.
    assert_eq!(flow["retransmissions"]["packets"], again, "{flow:#}");
    let toward = |to: u32| -> u64 {
        let all = flow["directions"].as_array().unwrap().iter();
        all.filter(|d| d["to"]["qpn"] == to)
            .map(|d| d["packets"].as_u64().unwrap())
            .sum()
    };
    assert_eq!(toward(qp.config.peer_qpn), sent, "{flow:#}");
    let received: u64 = qp.counters.kinds.iter().map(|kind| kind.packets).sum();
    assert_eq!(toward(qp.config.qpn), received, "{flow:#}");
    // Nothing of the payload is kept: FIRST and MIDDLE packets end with their headers.
    assert!(report["truncated"].as_u64().unwrap() >= sent, "{report:#}");
    assert!(std::fs::metadata(&name).unwrap().len() < 2 << 20);
}
