//! Notes come out as comments that tshark shows; a stream that is read once can be copied all the same.

mod capture_support;

use std::{fs::File, io::Write, process::Command};

use rocexdp_observe::{
    annotate::{Notes, Spool, copy},
    capture::{CaptureError, Reader},
};

fn notes() -> Notes {
    let mut notes = Notes::new();
    notes.add(&[2, 4], "QP 0x11: 1 packet lost");
    notes.add(&[4], "sent again, \u{b5}s later");
    notes.add(&[900], "beyond the end");
    for _ in 0..40 {
        notes.add(&[5], "x");
    }
    notes
}

#[test]
fn tshark_shows_the_notes() {
    if Command::new("tshark").arg("-v").output().is_err() {
        println!("SKIP: no tshark");
        return;
    }
    let source = capture_support::dir().join("rc-loss-send-last.pcap");
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("noted.pcapng");
    let reader = Reader::open(&source).unwrap();
    let out = File::create(&target).unwrap();
    let (copied, mut out) = copy(reader, &notes(), "of the whole", out).unwrap();
    out.flush().unwrap();
    assert_eq!(copied.with_comments, 3);
    assert!(copied.end.is_none());

    let fields = |path: &std::path::Path, names: &[&str]| {
        let mut command = Command::new("tshark");
        command
            .arg("-r")
            .arg(path)
            .args(["-T", "fields", "-E", "separator=;"]);
        for name in names {
            command.args(["-e", name]);
        }
        let done = command.output().unwrap();
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8(done.stdout).unwrap()
    };
    let comments = fields(&target, &["frame.comment"]);
    let lines: Vec<_> = comments.lines().collect();
    assert_eq!(lines.len() as u64, copied.packets);
    assert_eq!(lines[1], "QP 0x11: 1 packet lost");
    assert_eq!(lines[3], "QP 0x11: 1 packet lost,sent again, \u{b5}s later");
    assert!(lines[4].ends_with(",x,x,and 8 more"), "{}", lines[4]);
    assert!(
        lines
            .iter()
            .enumerate()
            .all(|(i, line)| line.is_empty() != [1, 3, 4].contains(&i))
    );
    // The packets are the same to tshark.
    let same = [
        "frame.time_epoch",
        "frame.len",
        "frame.cap_len",
        "infiniband.bth.psn",
        "infiniband.invariant.crc",
    ];
    assert_eq!(fields(&target, &same), fields(&source, &same));
}

#[test]
fn a_stream_is_spooled_and_a_cut_copied_up_to_the_cut() {
    let source = capture_support::dir().join("rc-loss-send-last.pcap");
    let mut bytes = std::fs::read(source).unwrap();
    bytes.truncate(bytes.len() - 5);
    let (spool, tee) = Spool::of(std::io::Cursor::new(bytes)).unwrap();
    let mut reader = Reader::from_reader(tee).unwrap();
    let mut first = Vec::new();
    let end = loop {
        match reader.next() {
            Ok(Some(p)) => first.push(p.data.to_vec()),
            Ok(None) => panic!("no cut"),
            Err(e) => break e,
        }
    };
    assert!(matches!(end, CaptureError::Cut { .. }));
    let again = Reader::from_reader(spool.again().unwrap()).unwrap();
    let (copied, out) = copy(again, &notes(), "", Vec::new()).unwrap();
    assert!(matches!(copied.end, Some(CaptureError::Cut { .. })));
    assert_eq!(copied.packets, first.len() as u64);
    let mut copy = Reader::from_reader(std::io::Cursor::new(out)).unwrap();
    for data in first {
        assert_eq!(copy.next().unwrap().unwrap().data, data);
    }
    assert!(copy.next().unwrap().is_none());
}
