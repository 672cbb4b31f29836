//! `rocexdp pcap` of two captures (`--merge`, `--diff`) and as CSV: exit codes, messages, and that what is told is what was
//! found. How it is found is rocexdp-observe's tests' business.

use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Command, Output, Stdio},
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

fn with_stdin(arguments: &[&str], bytes: &[u8]) -> Output {
    let mut child = command()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    child.wait_with_output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The records of a pcap file, head and all.
fn records(capture: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (head, mut rest) = capture.split_at(24);
    let mut records = Vec::new();
    while rest.len() >= 16 {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let (record, behind) = rest.split_at(16 + len);
        records.push(record.to_vec());
        rest = behind;
    }
    (head.to_vec(), records)
}

/// The capture, and what a tap behind the place where frame 3 was lost has of it.
fn two_taps(directory: &std::path::Path) -> (PathBuf, PathBuf) {
    let first = capture("rc-loss-write-middle.pcap");
    let (mut bytes, mut frames) = records(&fs::read(&first).unwrap());
    frames.remove(2);
    bytes.extend(frames.concat());
    let second = directory.join("second.pcap");
    fs::write(&second, bytes).unwrap();
    (first, second)
}

#[test]
fn two_taps_tell_between_which_a_packet_was_lost() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = two_taps(directory.path());
    let text = command()
        .arg("--merge")
        .args([&first, &second])
        .output()
        .unwrap();
    assert!(text.status.success(), "{}", said(&text));
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("1 packet was lost between the taps, on the way from A to B"),
        "{text}"
    );
    let report = json(
        &command()
            .args(["--merge", "--json"])
            .args([&first, &second])
            .output()
            .unwrap(),
    );
    assert_eq!(report["losses"][0]["place"], "between");
    assert_eq!(report["losses"][0]["frame_a"], 3);
    assert_eq!(report["losses"].as_array().unwrap().len(), 1);
    assert_eq!(report["directions"][0]["lost_between"], 1);
    // The other way round it is the same loss.
    let report = json(
        &command()
            .args(["--merge", "--json"])
            .args([&second, &first])
            .output()
            .unwrap(),
    );
    assert_eq!(report["losses"][0]["frame_b"], 3);
    assert_eq!(report["losses"][0]["place"], "between");
}

#[test]
fn taps_that_do_not_fit_are_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = two_taps(directory.path());
    let merge = |files: &[&PathBuf]| command().arg("--merge").args(files).output().unwrap();
    // Another capture: nothing in common.
    let strangers = merge(&[&first, &capture("rc-ipv6.pcap")]);
    assert_eq!(strangers.status.code(), Some(1));
    assert!(said(&strangers).contains("share no packet"));
    // A cut one is compared up to there.
    let bytes = fs::read(&second).unwrap();
    fs::write(&second, &bytes[..bytes.len() - 10]).unwrap();
    let cut = merge(&[&first, &second]);
    assert_eq!(cut.status.code(), Some(3), "{}", said(&cut));
    assert!(said(&cut).contains("second.pcap"), "{}", said(&cut));
    assert!(String::from_utf8_lossy(&cut.stdout).contains("1 packet was lost between"));
    // None at all, one, three, a stream, and what makes no sense with it.
    let none = merge(&[&first, &capture("README.md")]);
    assert_eq!(none.status.code(), Some(4), "{}", said(&none));
    assert!(said(&none).contains("README.md"), "{}", said(&none));
    let missing = merge(&[&first, &directory.path().join("missing.pcap")]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(said(&missing).contains("missing.pcap"));
    for files in [
        &[&first][..],
        &[&first, &first, &first],
        &[&first, &PathBuf::from("-")],
    ] {
        assert_eq!(merge(files).status.code(), Some(2), "{files:?}");
    }
    let both = command()
        .args(["--merge", "--csv"])
        .args([&first, &second])
        .output()
        .unwrap();
    assert_eq!(both.status.code(), Some(2));
}

/// A capture of the same packets `times` over, each time a second and so many PSNs later, without the frames `lost`.
fn repeated(name: &str, times: u32, lost: &[usize]) -> Vec<u8> {
    let (mut bytes, frames) = records(&fs::read(capture(name)).unwrap());
    for n in 0..times {
        for (at, frame) in frames.iter().enumerate() {
            if lost.contains(&(at + 1)) {
                continue;
            }
            let mut frame = frame.clone();
            let seconds = u32::from_le_bytes(frame[..4].try_into().unwrap()) + n;
            frame[..4].copy_from_slice(&seconds.to_le_bytes());
            // Untagged IPv4: PSN and IP identification.
            let packet = &mut frame[16..];
            let psn = u32::from_be_bytes([0, packet[51], packet[52], packet[53]]) + n * 64;
            packet[51..54].copy_from_slice(&psn.to_be_bytes()[1..]);
            let id = u16::from_be_bytes([packet[18], packet[19]]).wrapping_add((n * 64) as u16);
            packet[18..20].copy_from_slice(&id.to_be_bytes());
            bytes.extend(frame);
        }
    }
    bytes
}

#[test]
fn what_got_worse_than_in_a_good_capture_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let [good, bad] = ["good.pcap", "bad.pcap"].map(|name| directory.path().join(name));
    fs::write(&good, repeated("perftest-write-bw.pcap", 20, &[])).unwrap();
    fs::write(&bad, repeated("rc-loss-write-middle.pcap", 20, &[])).unwrap();
    let compare = |arguments: &[&str], good: &PathBuf, now: &PathBuf| {
        // ICRCs do not fit the PSNs that were made up.
        command()
            .args(arguments)
            .arg("--no-icrc")
            .arg("--diff")
            .args([good, now])
            .output()
            .unwrap()
    };
    let text = compare(&[], &good, &bad);
    assert!(text.status.success(), "{}", said(&text));
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with("Worse:\n"), "{text}");
    assert!(
        text.contains("packets sent again: 30 % of packets"),
        "{text}"
    );
    let report = json(&compare(&["--json"], &good, &bad));
    let of = |list: &str| -> Vec<String> {
        report[list]
            .as_array()
            .unwrap()
            .iter()
            .map(|change| change["what"].as_str().unwrap().to_owned())
            .collect()
    };
    assert!(
        of("worse")
            .iter()
            .any(|what| what == "retransmissions_packets"),
        "{report}"
    );
    assert!(
        of("better")
            .iter()
            .all(|what| what != "retransmissions_packets")
    );
    // The other way round it is better; beside itself it is the same.
    let report = json(&compare(&["--json"], &bad, &good));
    let better = report["better"].as_array().unwrap();
    assert!(
        better
            .iter()
            .any(|change| change["what"] == "retransmissions_packets")
    );
    let same = json(&compare(&["--json"], &good, &good));
    assert_eq!(same["worse"].as_array().unwrap().len(), 0);
    assert_eq!(same["better"].as_array().unwrap().len(), 0);

    let bytes = fs::read(&good).unwrap();
    let cut = directory.path().join("cut.pcap");
    fs::write(&cut, &bytes[..bytes.len() - 10]).unwrap();
    assert_eq!(compare(&[], &cut, &bad).status.code(), Some(3));
    assert_eq!(compare(&[], &bad, &cut).status.code(), Some(3));
    let none = compare(&[], &capture("README.md"), &bad);
    assert_eq!(none.status.code(), Some(4), "{}", said(&none));
    let missing = compare(&[], &directory.path().join("missing.pcap"), &bad);
    assert_eq!(missing.status.code(), Some(1));
    assert!(said(&missing).contains("missing.pcap"));
}

#[test]
fn csv_has_a_line_for_each_pair_and_direction_and_says_what_json_says() {
    let file = capture("rc-loss-write-middle.pcap");
    let csv = command().arg("--csv").arg(&file).output().unwrap();
    assert!(csv.status.success(), "{}", said(&csv));
    let csv = String::from_utf8(csv.stdout).unwrap();
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let report = json(&command().arg("--json").arg(&file).output().unwrap());
    let flow = &report["flows"][0];
    let column = |name: &str| lines[0].iter().position(|column| *column == name).unwrap();
    assert_eq!(lines.len(), 4);
    assert!(
        lines.iter().all(|line| line.len() == lines[0].len()),
        "{csv}"
    );
    let rows: Vec<&str> = lines[1..].iter().map(|line| line[column("row")]).collect();
    assert_eq!(rows, ["both", "direction", "direction"]);
    for (row, of) in lines[1..]
        .iter()
        .zip([flow, &flow["directions"][0], &flow["directions"][1]])
    {
        for (name, value) in [
            ("packets", &of["packets"]),
            ("bytes", &of["bytes"]),
            ("timeouts", &of["timeouts"]),
            ("naks_sequence", &of["naks"]["sequence"]),
            ("retransmissions_packets", &of["retransmissions"]["packets"]),
            ("write_bytes", &of["operations"]["write"]["bytes"]),
        ] {
            assert_eq!(row[column(name)], value.to_string(), "{name}");
        }
    }
    // Into a pipe nobody reads, together with JSON, of nothing.
    let both = command().args(["--csv", "--json"]).arg(&file).output();
    assert_eq!(both.unwrap().status.code(), Some(2));
    let bytes = fs::read(&file).unwrap();
    let cut = with_stdin(&["--csv", "-"], &bytes[..bytes.len() - 10]);
    assert_eq!(cut.status.code(), Some(3));
    assert_eq!(String::from_utf8_lossy(&cut.stdout).lines().count(), 4);
    let head = with_stdin(&["--csv", "-"], &bytes[..24]);
    assert_eq!(head.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&head.stdout).lines().count(), 1);
}
