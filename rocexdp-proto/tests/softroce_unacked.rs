//! UC and UD against the captures of Soft-RoCE: its messages complete here as they did at its own peer, and our frames are its
//! frames but for what may differ.

#[path = "common/softroce.rs"]
mod softroce;

use std::sync::Arc;

use rocexdp_proto::ids::{Gid, Pd, Psn, Qpn, RKey, gid_from_ipv4};
use rocexdp_proto::mem::{Access, Region};
use rocexdp_proto::verbs::{AddressHandle, Datagram, MULTICAST_QPN, SendOp, Status};
use rocexdp_proto::wire::Path;
use rocexdp_proto::{DropReason, Transport};
use rocexdp_sim::pair::Bytes;
use softroce::Host;

const QKEY: u32 = 0x1111_1111;
/// `mckey`'s.
const MCKEY: u32 = 0x0123_4567;

fn group() -> Gid {
    gid_from_ipv4([239, 77, 0, 1])
}

fn to_group() -> Path {
    Path {
        dst: group(),
        ..softroce::path(0, false)
    }
}

#[test]
fn our_uc_frames_are_soft_roces() {
    let theirs = softroce::frames("uc-send-write");
    let mut a = Host::new(0, Transport::Uc, 53, false);
    let (va, rkey) = (0x562a_b8b4_6000, RKey(0x2697));
    let mut ours = Vec::new();
    for (op, len) in [
        (SendOp::Send, 10),
        (SendOp::SendImm(0x55), 10),
        (SendOp::Send, 3000),
        (SendOp::SendImm(0x55), 3000),
        (SendOp::Write { va, rkey }, 10),
        (
            SendOp::WriteImm {
                va,
                rkey,
                imm: 0x66,
            },
            10,
        ),
        (SendOp::Write { va, rkey }, 3000),
        (
            SendOp::WriteImm {
                va,
                rkey,
                imm: 0x66,
            },
            3000,
        ),
    ] {
        ours.append(&mut a.send(op, len, None));
    }
    assert_eq!((ours.len(), theirs.len()), (16, 16));
    for (n, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert!(
            softroce::alike(ours) == softroce::alike(theirs),
            "frame {}: {ours:02x?} {theirs:02x?}",
            n + 1
        );
    }
}

#[test]
fn soft_roces_uc_messages_complete_as_at_its_own_peer() {
    let mut b = Host::new(1, Transport::Uc, 53, false);
    let written = Bytes::filled(8192, 0);
    let (key, va) = (RKey(0x2697), 0x562a_b8b4_6000);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = Region::new(key, Pd::default(), written.clone(), va, access).unwrap();
    b.ep.add_region(&region).unwrap();
    for id in 0..6 {
        b.recv(id, 4096);
    }
    for frame in softroce::frames("uc-send-write") {
        b.give(&frame).unwrap();
    }
    assert_eq!(
        b.log(),
        [
            (0, 10, None),
            (1, 10, Some(0x55)),
            (2, 3000, None),
            (3, 3000, Some(0x55)),
            (4, 10, Some(0x66)),
            (5, 3000, Some(0x66)),
        ]
    );
    let memory = softroce::memory();
    assert!(b.inbox.copy()[..3000] == memory[..3000]);
    assert!(written.copy()[..3000] == memory[..3000] && written.copy()[3000] == 0);
}

/// What B of a capture has received, when the first frame with this opcode is lost.
fn with_loss(name: &str, qpn: u32, opcode: u8) -> Vec<(u64, u32, Option<u32>)> {
    let mut b = Host::new(1, Transport::Uc, qpn, false);
    for id in 0..5 {
        b.recv(id, 4096);
    }
    let mut lost = false;
    for frame in softroce::frames(name) {
        if !lost && frame[42] == opcode {
            lost = true;
            continue;
        }
        let _ = b.give(&frame);
    }
    assert!(lost);
    b.log()
}

#[test]
fn what_soft_roce_loses_with_a_packet_we_lose_less_of() {
    // A lost FIRST: the same as Soft-RoCE.
    assert_eq!(
        with_loss("uc-loss-first", 55, 0x20),
        [(0, 50, None), (1, 2000, None)]
    );
    // A lost MIDDLE of 3000 bytes, then 2000, 50, 2000 and 50: Soft-RoCE received 50, 2000 and 50.
    assert_eq!(
        with_loss("uc-loss", 54, 0x21),
        [
            (0, 2000, None),
            (1, 50, None),
            (2, 2000, None),
            (3, 50, None)
        ]
    );
}

#[test]
fn our_ud_frames_are_soft_roces() {
    for (name, ipv6, qpn) in [("ud-send", false, 52), ("ud-ipv6", true, 57)] {
        let theirs = softroce::frames(name);
        let theirs: Vec<_> = theirs.iter().filter(|f| f[11] == 2).collect();
        let mut a = Host::new(0, Transport::Ud, qpn, ipv6);
        let mut ours = Vec::new();
        let to = a.to_peer(QKEY);
        let sends: &[(SendOp, u32)] = if ipv6 {
            &[(SendOp::Send, 0), (SendOp::Send, 3), (SendOp::Send, 64)]
        } else {
            &[
                (SendOp::Send, 0),
                (SendOp::Send, 3),
                (SendOp::Send, 64),
                (SendOp::Send, 4096),
                (SendOp::SendImm(0xcafe), 16),
            ]
        };
        for (op, len) in sends {
            ours.append(&mut a.send(*op, *len, Some(to.clone())));
        }
        if !ipv6 {
            let wrong = a.to_peer(0x2222_2222);
            ours.append(&mut a.send(SendOp::Send, 16, Some(wrong)));
        }
        assert_eq!(ours.len(), theirs.len(), "{name}");
        for (n, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            assert!(
                softroce::alike(ours) == softroce::alike(theirs),
                "{name}, frame {}: {ours:02x?} {theirs:02x?}",
                n + 1
            );
        }
    }
}

#[test]
fn soft_roces_ud_messages_complete_as_at_its_own_peer() {
    let memory = softroce::memory();
    for (name, ipv6, qpn, log) in [
        (
            "ud-send",
            false,
            52,
            &[
                (0, 40, None),
                (1, 43, None),
                (2, 104, None),
                (3, 4136, None),
                (4, 56, Some(0xcafe)),
            ][..],
        ),
        (
            "ud-ipv6",
            true,
            57,
            &[(0, 40, None), (1, 43, None), (2, 104, None)][..],
        ),
    ] {
        let mut b = Host::new(1, Transport::Ud, qpn, ipv6);
        for id in 0..6 {
            b.recv(id, 8192);
        }
        let mut wrong = 0;
        for frame in softroce::frames(name).iter().filter(|f| f[11] == 2) {
            match b.give(frame) {
                Ok(()) => {}
                Err(reason) => {
                    assert_eq!(reason, DropReason::QKey);
                    wrong += 1;
                }
            }
        }
        assert_eq!(wrong, u64::from(!ipv6), "{name}");
        let completions = b.completions();
        assert!(
            completions
                .iter()
                .all(|c| c.src_qpn == Some(Qpn::new(qpn)) && c.grh && c.status == Status::Success)
        );
        let got: Vec<_> = completions
            .iter()
            .map(|c| (c.wr_id.0, c.byte_len, c.imm))
            .collect();
        assert_eq!(got, log, "{name}");
        let last = b.inbox.copy();
        let longest = if ipv6 { 64 } else { 4096 };
        assert!(last[40..40 + 16] == memory[..16]);
        if !ipv6 {
            // What Soft-RoCE had there, `hex m 0 44` of the log, but for the frame's own length, id and checksum.
            assert!(last[56..40 + longest] == memory[16..longest]);
            assert_eq!(last[..20], [0; 20]);
            assert_eq!(last[32..40], [10, 77, 0, 2, 10, 77, 0, 3]);
        }
    }
}

#[test]
fn the_ipv4_header_stands_where_soft_roce_puts_it() {
    // `hex m 0 44` behind the message of 4096 bytes.
    let theirs =
        "0000000000000000000000000000000000000000450010349b33400040117ae70a4d00020a4d000301020304";
    let mut b = Host::new(1, Transport::Ud, 52, false);
    b.recv(0, 8192);
    let frames = softroce::frames("ud-send");
    b.give(&frames[3]).unwrap();
    let ours: String = b.inbox.copy()[..44]
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    assert_eq!(ours, theirs);
}

#[test]
fn soft_roces_packets_to_a_group_are_taken_and_ours_are_alike() {
    let theirs = softroce::frames("ud-multicast");
    assert_eq!(theirs.len(), 3);
    let mut b = Host::with_qkey(1, Transport::Ud, 0x46, false, MCKEY);
    b.ep.attach_mcast(Qpn::new(0x46), group()).unwrap();
    for n in 0..3 {
        b.recv(n, 200);
    }
    let mut a = Host::with(0, Transport::Ud, 0x46, false, MCKEY, Psn::new(0));
    let to = Datagram {
        ah: Arc::new(AddressHandle::new(to_group()).unwrap()),
        qpn: MULTICAST_QPN,
        qkey: MCKEY,
    };
    for theirs in &theirs {
        b.give(theirs).unwrap();
        // Behind Ethernet, IPv4, UDP, BTH, DETH and immediate.
        let message = &theirs[14 + 20 + 8 + 12 + 8 + 4..theirs.len() - 4];
        let ours = a.send_bytes(SendOp::SendImm(0x46), message, Some(to.clone()));
        assert!(
            softroce::alike(&ours[0]) == softroce::alike(theirs),
            "{ours:02x?} {theirs:02x?}"
        );
    }
    assert_eq!(
        b.log(),
        [
            (0, 140, Some(0x46)),
            (1, 140, Some(0x46)),
            (2, 140, Some(0x46))
        ]
    );
}
