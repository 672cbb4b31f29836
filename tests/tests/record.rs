//! The flight recorder on real traffic: files around triggers that other tools read.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rocexdp::lab::Host;
use rocexdp_tests::{
    Rig, Running, eventually,
    hop::{FAR, Hop, NEAR, ip},
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

/// Host a sends one to host b.
fn send_malformed(rig: &Rig) {
    let to = (Host::B.ipv4(), 4791);
    let send = || {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        // Too short for a BTH.
        socket.send_to(&[7; 5], to).unwrap();
    };
    rig.lab().host(Host::A).run(send).unwrap();
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

/// Packets are in order of time, whichever CPU or thread recorded them, but for those that the recorder says came too late.
fn assert_in_order(times: &[String], file: &Path, said: &str) {
    // Digits only, for a double has no room for the nanoseconds of an epoch.
    let ns = |time: &String| time.replace('.', "").parse::<u64>().unwrap();
    let times: Vec<u64> = times.iter().map(ns).collect();
    let mut latest = 0;
    let late = times.iter().filter(|time| {
        let late = **time < latest;
        latest = latest.max(**time);
        late
    });
    let late = late.count();
    let line = said.lines().find(|line| line.starts_with(text(file)));
    let told = line.unwrap().split(" packets, ").nth(1).unwrap();
    let told = told.split_once(" of them behind later ones");
    let told: usize = told.map_or(0, |(count, _)| count.parse().unwrap());
    assert_eq!(late, told, "{said}");
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
    let hop = rig.insert_hop(Host::A);
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
        assert_in_order(&times, file, &outcome.stdout);
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
    let Some(mut rig) = Rig::up("trc") else {
        return;
    };
    let Some(binary) = rocexdp_tests::rig::product() else {
        return;
    };
    let hop = rig.insert_hop(Host::A);
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
    let send = || send_malformed(&rig);
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
    for file in files(&out) {
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "others may not read payload");
    }
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
    let long = vec!["nak"; 30_000].join("|");
    record(&["--on", &long]).failed(2, &["at most 256"]);
    record(&["--on", "nak", "--ring", "100T"]).failed(1, &["--ring: ", "are available"]);
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
    let outcome = recorder.interrupt(SHORT);
    assert_eq!(outcome.code, Some(130));
    assert_sent_before_answered(&name, &outcome.stdout);
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

/// What XDP recorded of the answers and what the engine recorded of the requests stand in one file as they happened.
fn assert_sent_before_answered(file: &Path, said: &str) {
    let fields = [
        "frame.time_epoch",
        "frame.comment",
        "infiniband.bth.opcode",
        "infiniband.bth.psn",
    ];
    let Some(lines) = tshark(file, "infiniband", &fields) else {
        return;
    };
    let lines: Vec<Vec<&str>> = lines
        .iter()
        .map(|line| line.split('\t').collect())
        .collect();
    let times: Vec<String> = lines.iter().map(|line| line[0].to_owned()).collect();
    assert_in_order(&times, file, said);
    let late = said.contains("behind later ones");
    let mut requests = std::collections::HashSet::new();
    let mut answers = 0;
    for line in &lines {
        let [_, comment, opcode, psn] = line[..] else {
            panic!("{line:?}");
        };
        if comment.contains("sent") {
            requests.insert(psn);
        } else if opcode == "17" {
            answers += 1;
            assert!(
                late || requests.contains(psn),
                "{psn} was not sent before: {line:?}"
            );
        }
    }
    assert!(
        requests.len() > 100 && answers > 10,
        "{} {answers}",
        requests.len()
    );
}

/// `rocexdp record` on host a's endpoint, of what host b refuses and of all else that is malformed.
fn on_endpoint(rig: &Rig, out: &Path) -> Running {
    let line = ["record", "--iface", "eth0", "--on", "cnp_rate=0"];
    let more = ["--ring", "1MiB", "--after", "10ms", "--out-dir", text(out)];
    rig.spawn(Host::A, &[&line[..], &more[..]].concat())
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn an_endpoint_has_one_recorder_and_a_killed_one_leaves_it_free() {
    let Some(rig) = Rig::running("trk") else {
        return;
    };
    let out = rig.path("flight");
    let mut first = on_endpoint(&rig, &out);
    first.says(SHORT, &["a file on"]);
    let holder = format!("process {} records there already", first.pid());
    on_endpoint(&rig, &out)
        .finish(SHORT)
        .failed(1, &[&holder, "interface eth0"]);
    assert!(first.runs(), "the other one did not disturb it");
    let small = rig.file("small", 1 << 16);
    rig.copy_well(&small, "one");
    first.says(SHORT, &["trigger: cnp_rate=0"]);
    first.kill();

    let next = on_endpoint(&rig, &out);
    next.says(SHORT, &["a file on"]);
    rig.copy_well(&small, "two");
    next.says(SHORT, &["trigger: cnp_rate=0"]);
    let outcome = next.interrupt(SHORT);
    assert_eq!(outcome.code, Some(130), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(" 1 files"), "{}", outcome.stderr);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn an_endpoint_that_ends_is_said_and_the_next_one_is_recorded() {
    let Some(mut rig) = Rig::running("tro") else {
        return;
    };
    let out = rig.path("flight");
    let recorder = on_endpoint(&rig, &out);
    recorder.says(SHORT, &["a file on"]);
    let small = rig.file("small", 1 << 16);
    rig.copy_well(&small, "one");
    recorder.says(SHORT, &["trigger: cnp_rate=0"]);
    // What a's endpoint sent and received.
    let packets = |rig: &Rig| -> u64 {
        let of = |qp: &rocexdp::maps::QpView| {
            let received = qp.counters.kinds.iter().map(|kind| kind.packets);
            qp.engine.tx_packets + received.sum::<u64>()
        };
        rig.qps(Host::A).iter().map(of).sum()
    };
    let first = packets(&rig);
    assert!(first > 0);
    rig.kill(Host::A);
    recorder.says(SHORT, &["eth0: the endpoint there has ended"]);
    // Were a monitor there meanwhile, the endpoint would be refused.
    rig.start_sender(&[]);
    recorder.says(SHORT, &["eth0: recording again"]);
    rig.copy_well(&small, "two");
    let all = first + packets(&rig);
    let outcome = recorder.interrupt(SHORT);
    assert_eq!(outcome.code, Some(130), "{}", outcome.stderr);
    let seen = format!("\n{all} packets seen, 0 lost");
    assert!(outcome.stderr.contains(&seen), "{all}: {}", outcome.stderr);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn two_names_of_a_device_are_recorded_once_and_one_that_is_back_again() {
    let Some(mut rig) = Rig::up("trb") else {
        return;
    };
    let Some(binary) = rocexdp_tests::rig::product() else {
        return;
    };
    let hop = rig.insert_hop(Host::A);
    let on_hop = |line: &str| ip(&format!("-n {} {line}", hop.name()));
    on_hop("link property add dev near altname mirror");
    let out = rig.path("flight");
    let line = ["--iface", "near,mirror", "--on", "malformed"];
    let more = ["--ring", "1MiB", "--after", "1ms", "--out-dir", text(&out)];
    let recorder = start(&hop, &binary, &[&line[..], &more[..]].concat());
    let what = "mirror: its packets are those of near, which is recorded already as near";
    assert!(recorder.stderr().contains(what), "{}", recorder.stderr());
    let send = |written| {
        send_malformed(&rig);
        eventually("a file is written", SHORT, || {
            (recorder.stdout().lines().count() >= written).then_some(())
        });
    };
    send(1);
    on_hop("link set near down");
    on_hop("link set near name away");
    recorder.says(SHORT, &["near: interface near was renamed to away"]);
    on_hop("link set away name near");
    on_hop("link set near up");
    recorder.says(SHORT, &["near: recording again"]);
    send(2);
    let outcome = recorder.interrupt(SHORT);
    assert!(outcome.stderr.contains(" 2 triggers"), "{}", outcome.stderr);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn when_nobody_reads_its_output_what_is_pending_is_written_still() {
    let Some(mut rig) = Rig::up("trh") else {
        return;
    };
    let Some(binary) = rocexdp_tests::rig::product() else {
        return;
    };
    let hop = rig.insert_hop(Host::A);
    let out = rig.path("flight");
    let mut command = Command::new(&binary);
    command.args(["record", "--iface", NEAR, "--on", "malformed"]);
    command.args([
        "--ring",
        "1MiB",
        "--after",
        "100ms",
        "--out-dir",
        text(&out),
    ]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    hop.ns().confine(&mut command).unwrap();
    let mut recorder = command.spawn().unwrap();
    let mut first = BufReader::new(recorder.stdout.take().unwrap());
    let mut said = BufReader::new(recorder.stderr.take().unwrap());
    let mut text = String::new();
    while !text.contains("a file on") {
        assert!(said.read_line(&mut text).unwrap() > 0, "{text}");
    }
    // Without a pause, so that at each file another trigger waits.
    let until = Instant::now() + SHORT;
    let status = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut line = String::new();
            first.read_line(&mut line).unwrap();
            drop(first);
            line
        });
        loop {
            send_malformed(&rig);
            std::thread::sleep(Duration::from_millis(3));
            if let Some(status) = recorder.try_wait().unwrap() {
                assert!(reader.join().unwrap().contains(".pcapng: "));
                break status;
            }
            if Instant::now() >= until {
                recorder.kill().unwrap();
                panic!("it did not end");
            }
        }
    });
    assert_eq!(status.code(), Some(141));
    said.read_to_string(&mut text).unwrap();
    let triggers = text.matches(": trigger: malformed").count();
    assert!(triggers >= 3, "{text}");
    assert_eq!(files(&out).len(), triggers, "{text}");
    assert!(text.contains(&format!(" {triggers} files")), "{text}");
}
