//! `rocexdp pcap` as a program: exit codes, messages, streams, signals. What it finds is rocexdp-observe's tests' business.

use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

fn capture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/captures")).join(name)
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rocexdp"));
    command.arg("pcap");
    command
}

fn start_with_stdin(arguments: &[&str], bytes: &[u8]) -> (Child, std::process::ChildStdin) {
    let mut child = command()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(bytes).unwrap();
    (child, stdin)
}

fn with_stdin(arguments: &[&str], bytes: &[u8]) -> Output {
    let (child, stdin) = start_with_stdin(arguments, bytes);
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_capture_is_reported_as_text_and_as_json() {
    let file = capture("rc-loss-write-middle.pcap");
    let text = command().arg(&file).output().unwrap();
    assert!(text.status.success(), "{}", said(&text));
    let text = String::from_utf8(text.stdout).unwrap();
    for part in [
        "10 RoCEv2 packets",
        "10.77.0.2 0x2c",
        "packet_loss: QP 0x2c",
        "[frames 3 6 7 9 10]",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let report = json(&command().arg("--json").arg(&file).output().unwrap());
    assert_eq!(report["findings"][0]["kind"], "packet_loss");
    assert_eq!(report["complete"], true);
}

#[test]
fn a_cut_capture_is_reported_up_to_the_cut() {
    let bytes = fs::read(capture("rc-loss-write-middle.pcap")).unwrap();
    let output = with_stdin(&["--json", "-"], &bytes[..bytes.len() - 10]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        said(&output).contains("cut in frame 10"),
        "{}",
        said(&output)
    );
    let report = json(&output);
    assert_eq!(report["complete"], false);
    assert_eq!(report["packets"], 9);
    assert_eq!(report["files"][0]["name"], "standard input");
}

#[test]
fn what_is_no_capture_is_named() {
    let readme = command().arg(capture("README.md")).output().unwrap();
    assert_eq!(readme.status.code(), Some(4));
    assert!(
        said(&readme).contains("README.md: no capture"),
        "{}",
        said(&readme)
    );
    let missing = command().arg("no-such-file.pcap").output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        said(&missing).contains("no-such-file.pcap"),
        "{}",
        said(&missing)
    );
    let both = command().args(["-", "x.pcap"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2));
    assert!(readme.stdout.is_empty() && missing.stdout.is_empty());
}

#[test]
fn a_filter_that_matches_nothing_says_so() {
    let file = capture("rc-rnr.pcap");
    for filter in [["--qp", "0x99"], ["--address", "192.0.2.1"]] {
        let output = command().args(filter).arg(&file).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        assert!(
            text.contains("Nothing matches --qp or --address: all 8 RoCE packets"),
            "{text}"
        );
        assert!(!text.contains("No findings"), "{text}");
        let report = command().args(filter).arg("--json").arg(&file).output();
        assert_eq!(json(&report.unwrap())["left_out"], 8);
    }
}

#[test]
fn the_capture_itself_is_never_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.pcap");
    fs::copy(capture("rc-rnr.pcap"), &file).unwrap();
    let output = command()
        .arg("--out")
        .arg(&file)
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        fs::read(&file).unwrap(),
        fs::read(capture("rc-rnr.pcap")).unwrap()
    );
}

#[test]
fn findings_go_into_a_copy_from_a_stream_too() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("out.pcapng");
    let bytes = fs::read(capture("rc-rnr.pcap")).unwrap();
    let output = with_stdin(&["--out", target.to_str().unwrap(), "-"], &bytes);
    assert!(output.status.success(), "{}", said(&output));
    let copy = fs::read(&target).unwrap();
    let needle = b"rnr: QP 0x21";
    assert!(copy.windows(needle.len()).any(|window| window == needle));
    // And the copy is a capture that says the same.
    let report = json(&command().arg("--json").arg(&target).output().unwrap());
    assert_eq!(report["findings"][0]["kind"], "rnr");
    assert_eq!(report["packets"], 8);
}

#[test]
fn parts_of_a_capture_are_read_in_order_of_time() {
    let (late, early) = (capture("rc-dscp.pcap"), capture("rc-send-only.pcap"));
    let output = command()
        .arg("--json")
        .args([&late, &early])
        .output()
        .unwrap();
    let report = json(&output);
    assert!(
        report["files"][0]["name"]
            .as_str()
            .unwrap()
            .ends_with("rc-send-only.pcap")
    );
    assert_eq!(report["files"][1]["first_frame"], 17);
    assert_eq!(report["packets"], 18);
}

#[test]
fn a_signal_ends_a_stream_with_the_report_of_what_came() {
    let bytes = fs::read(capture("rc-rnr.pcap")).unwrap();
    // The stream stays open and in the middle of a packet, as tcpdump's does.
    let (mut child, stdin) = start_with_stdin(&["--json", "-"], &bytes[..bytes.len() - 10]);
    thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "it waits for more");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
    }
    if child.try_wait().unwrap().is_none() {
        child.kill().unwrap();
    }
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let report = json(&output);
    assert_eq!(report["packets"], 7);
    assert_eq!(report["complete"], true);
}
