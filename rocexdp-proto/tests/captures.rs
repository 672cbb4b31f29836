//! Frames of the kernel's Soft-RoCE, as captured: each is taken apart, and each ICRC is right; and our responder, fed with
//! the requests of one of its hosts, answers as its other host did.
//!
//! The captures are those of `tests/captures`, whose README tells how each came about.

use std::path::PathBuf;
use std::sync::Arc;

use rocexdp_common::headers::Aeth;
use rocexdp_common::opcode::{Transport, rc};
use rocexdp_proto::ids::{PathMtu, Psn, RKey, WrId};
use rocexdp_proto::mem::Access;
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{CompletionQueue, RecvWr, Segment};
use rocexdp_proto::wire::{Head, Packet, Path, RxMeta};
use rocexdp_proto::{CreateQp, Endpoint, EndpointConfig, QpTransition, RtrAttr};
use rocexdp_sim::memory::NoBytes;

/// Where the captures are.
fn captures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/captures")
}

/// The frames of a pcap file, little-endian, microseconds or nanoseconds.
fn frames(file: &[u8]) -> Vec<&[u8]> {
    let word = |at: usize| Some(u32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?));
    assert!(
        matches!(word(0), Some(0xa1b2_c3d4 | 0xa1b2_3c4d)),
        "a pcap file"
    );
    let (mut at, mut out) = (24, Vec::new());
    while let Some((captured, whole)) = word(at + 8).zip(word(at + 12)) {
        assert_eq!(captured, whole, "frames are captured whole");
        out.push(&file[at + 16..at + 16 + captured as usize]);
        at += 16 + captured as usize;
    }
    out
}

#[test]
#[allow(clippy::disallowed_methods)] // Reads the captures; the core does not.
fn every_soft_roce_frame_is_taken_apart_and_its_icrc_is_right() {
    let entries = std::fs::read_dir(captures()).unwrap();
    let (mut files, mut packets) = (0, 0);
    for path in entries
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "pcap"))
    {
        let file = std::fs::read(&path).unwrap();
        for (n, frame) in frames(&file).into_iter().enumerate() {
            let name = format!("{}, frame {}", path.file_name().unwrap().display(), n + 1);
            let pieces: [&[u8]; 2] = [&frame[..frame.len() / 2], &frame[frame.len() / 2..]];
            let head = Head::of(&pieces);
            // ARP, neighbour discovery and TCP are in some captures.
            let Ok(packet) = Packet::parse(&head, &pieces) else {
                assert!(
                    !frame.windows(2).take(60).any(|w| w == [0x12, 0xb7]),
                    "{name}: a RoCEv2 frame was refused"
                );
                continue;
            };
            assert!(packet.icrc_is_right(&head), "{name}");
            packets += 1;
        }
        files += 1;
    }
    assert!(
        files > 50 && packets > 900,
        "{files} files, {packets} packets"
    );
}

/// Each answer's PSN and AETH.
type Answers = Vec<(Psn, Aeth)>;

/// Feeds the requests of a capture's first sender to a responder of ours, but for the first one with PSN `lost`, which was
/// dropped behind the tap; gives its answers and the captured ones.
fn replay(file: &[u8], lost: Option<Psn>) -> (Answers, Answers) {
    let frames: Vec<[&[u8]; 1]> = frames(file).into_iter().map(|f| [f]).collect();
    let packets: Vec<(&[&[u8]], Packet<'_>)> = frames
        .iter()
        .filter_map(|f| Some((&f[..], Packet::parse(&Head::of(f), f).ok()?)))
        .filter(|(_, p)| p.bth.opcode.transport() == Transport::Rc)
        // READ comes with a later issue.
        .take_while(|(_, p)| p.bth.opcode != rc::READ_REQUEST)
        .collect();
    let (_, first) = packets[0];
    let (_, answer) = packets.iter().find(|(_, p)| p.src != first.src).unwrap();
    let (qpn, peer) = (first.bth.dest_qpn, answer.bth.dest_qpn);
    let payload = packets.iter().map(|(_, p)| p.payload.len()).max().unwrap();
    let several = packets.iter().any(|(_, p)| p.bth.psn != first.bth.psn);
    let path_mtu = PathMtu::from_bytes(payload)
        .filter(|_| several)
        .unwrap_or(PathMtu::Mtu1024);

    let mut ep = Endpoint::new(EndpointConfig::default(), 1);
    let memory = Arc::new(NoBytes(1 << 30));
    for (_, p) in &packets {
        if let Some(reth) = p.reth {
            ep.register_memory_as(
                RKey(reth.rkey),
                memory.clone(),
                reth.va & !0xffff,
                Access::REMOTE_WRITE,
            );
        }
    }
    let cq = Arc::new(CompletionQueue::new(256));
    let create = CreateQp {
        max_send: 1,
        max_recv: 64,
        ..CreateQp::rc(qpn, &cq, &cq)
    };
    let qp = ep.create_qp(create).unwrap();
    let path = Path {
        src_mac: [2; 6],
        dst_mac: [3; 6],
        vlan: None,
        src: first.dst,
        dst: first.src,
        hop_limit: 64,
        flow_label: 0,
    };
    let rtr = RtrAttr {
        dest_qpn: peer,
        path_mtu,
        rq_psn: first.bth.psn,
        min_rnr_timer: 20,
        max_dest_rd_atomic: 16,
        path,
    };
    for to in [
        QpTransition::Init {
            access: Access::REMOTE_WRITE,
        },
        QpTransition::Rtr(rtr),
    ] {
        ep.modify_qp(Timestamp::ZERO, qpn, to).unwrap();
    }
    for n in 0..64 {
        qp.rq
            .post(RecvWr {
                wr_id: WrId(n),
                local: Segment::new(memory.clone(), 0, 1 << 20).into(),
            })
            .unwrap();
    }

    let mut lost = lost;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for (frame, p) in &packets {
        if p.src != first.src {
            theirs.extend(p.aeth.map(|a| (p.bth.psn, a)));
            continue;
        }
        if lost == Some(p.bth.psn) {
            lost = None;
            continue;
        }
        let _ = ep.handle_frame(Timestamp::ZERO, &RxMeta::default(), frame);
        while let Some(t) = ep.poll_transmit(Timestamp::ZERO) {
            let mut bytes = vec![0; t.len()];
            t.write(&mut [&mut bytes]).unwrap();
            let pieces: [&[u8]; 1] = [&bytes];
            let head = Head::of(&pieces);
            let packet = Packet::parse(&head, &pieces).unwrap();
            assert!(packet.icrc_is_right(&head) && packet.bth.dest_qpn == peer);
            ours.extend(packet.aeth.map(|a| (packet.bth.psn, a)));
        }
    }
    (ours, theirs)
}

#[test]
#[allow(clippy::disallowed_methods)] // Reads the captures; the core does not.
fn our_responder_answers_as_soft_roce_did() {
    let lost = Some(Psn::new(0x102));
    for (name, lost) in [
        ("rc-send-only", None),
        ("rc-send-multi", None),
        ("rc-send-imm", None),
        ("rc-write-only", None),
        ("rc-write-multi", None),
        ("rc-write-imm", None),
        ("rc-psn-wrap", None),
        ("rc-mtu-256", None),
        ("rc-mtu-512", None),
        ("rc-mtu-2048", None),
        ("rc-mtu-4096", None),
        ("rc-ipv6", None),
        ("rc-dscp", None),
        ("rc-pipeline", None),
        ("rc-loss-write-middle", lost),
        ("rc-loss-send-last", lost),
        ("rc-loss-ack", None),
    ] {
        let file = std::fs::read(captures().join(format!("{name}.pcap"))).unwrap();
        let (ours, theirs) = replay(&file, lost);
        assert!(!theirs.is_empty(), "{name}");
        assert_eq!(ours, theirs, "{name}");
    }
}
