//! UD: what arrives, what is dropped and why, what precedes a message in memory, and what can't be posted.

mod common;
#[path = "common/softroce.rs"]
mod softroce;

use std::sync::Arc;

use common::{Craft, LONG, outcomes, pattern, recv_wr, send_wr, stats};
use rocexdp_common::headers::Deth;
use rocexdp_common::opcode::Opcode;
use rocexdp_proto::ids::{PathMtu, Psn, Qpn, RKey, gid_from_ipv4};
use rocexdp_proto::verbs::{
    AddressHandle, CqeOpcode, Datagram, MULTICAST_QPN, PostError, SendOp, Status,
};
use rocexdp_proto::wire::{GRH_ROOM, Grh, Head, Packet, udp_source_port};
use rocexdp_proto::{
    CongestionSignal, CreateQp, DropReason, ErrorCause, Event, QpState, QpTransition, RtrAttr,
    Transport, UdAttr, VerbsError,
};
use rocexdp_sim::pair::{Bytes, Fate, Pair, PairConfig, QPNS, datagram, path};
use softroce::Host;

const SEND: Opcode = Opcode(0x64);
const SEND_IMM: Opcode = Opcode(0x65);
const QKEY: u32 = 0x1111_1111;

fn config() -> PairConfig {
    PairConfig {
        transport: Transport::Ud,
        ..PairConfig::default()
    }
}

fn dropped(pair: &Pair, reason: DropReason) -> u64 {
    pair.ends[1].endpoint.counters().drops[reason.index()]
}

fn state(pair: &Pair, end: usize) -> QpState {
    pair.ends[end].endpoint.qp_info(QPNS[end]).unwrap().state
}

/// A packet to end 1 with this Q_Key.
fn packet(opcode: Opcode, qkey: u32) -> Craft {
    let mut craft = Craft::new(0, opcode, Psn::new(0));
    let mut deth = [0; Deth::LEN];
    let src_qpn = QPNS[0];
    Deth { qkey, src_qpn }.emit(&mut deth);
    craft.extensions.extend_from_slice(&deth);
    if opcode == SEND_IMM {
        craft.extensions.extend_from_slice(&[0, 0, 0, 9]);
    }
    craft
}

/// Sends `len` bytes from end 0 to `to`.
fn send(pair: &mut Pair, op: SendOp, len: usize, to: Datagram) -> Vec<u8> {
    let data = pattern(len, len as u64);
    let wr = send_wr(6, op, &Bytes::of(data.clone()), len).to(to);
    pair.post_send(0, wr).unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(pair, 0),
        [(6, CqeOpcode::Send, Status::Success)],
        "whoever takes it"
    );
    data
}

#[test]
fn every_size_arrives_behind_its_ip_header() {
    for (ipv6, vlan) in [
        (false, None),
        (true, None),
        (false, Some(5)),
        (true, Some(5)),
    ] {
        for path_mtu in PathMtu::ALL {
            let config = PairConfig {
                path_mtu,
                ipv6,
                vlan,
                ..config()
            };
            let mut pair = Pair::new(&config);
            pair.capture();
            let mtu = path_mtu.bytes() as usize;
            for (len, imm) in [
                (0, None),
                (1, Some(3)),
                (3, None),
                (mtu - 1, None),
                (mtu, Some(4)),
            ] {
                let inbox = Bytes::filled(GRH_ROOM + len, 0xee);
                pair.post_recv(1, recv_wr(5, &inbox, GRH_ROOM + len))
                    .unwrap();
                let op = imm.map_or(SendOp::Send, SendOp::SendImm);
                let data = send(&mut pair, op, len, datagram(&config, 0));
                let [c] = pair.completions(1)[..] else {
                    panic!("one completion")
                };
                assert_eq!(
                    (
                        c.opcode,
                        c.status,
                        c.byte_len as usize,
                        c.imm,
                        c.src_qpn,
                        c.grh
                    ),
                    (
                        CqeOpcode::Recv,
                        Status::Success,
                        GRH_ROOM + len,
                        imm,
                        Some(QPNS[0]),
                        true
                    )
                );
                let got = inbox.copy();
                assert!(got[GRH_ROOM..] == data);
                let frame = &pair.sent.last().unwrap().frame;
                let ip = 14 + if vlan.is_some() { 4 } else { 0 };
                if ipv6 {
                    assert_eq!(got[..40], frame[ip..ip + 40]);
                } else {
                    assert_eq!(got[..20], [0; 20]);
                    assert_eq!(got[20..40], frame[ip..ip + 20]);
                }
                let grh = Grh::new(got[..40].try_into().unwrap());
                assert_eq!(
                    (grh.src(), grh.dst(), grh.is_ipv4(), grh.hop_limit()),
                    (path(&config, 0).src, path(&config, 0).dst, !ipv6, 64)
                );
                // ECT(0), no DSCP.
                assert_eq!((grh.traffic_class(), grh.flow_label()), (2, 0));
            }
            assert!(pair.sent.iter().all(|s| s.end == 0 && !s.bth.ack_req));
            assert_eq!(
                pair.ends[1].endpoint.counters().drops.iter().sum::<u64>(),
                0
            );
        }
    }
}

#[test]
fn what_a_handles_path_and_the_settings_say_is_in_the_frame() {
    for ipv6 in [false, true] {
        let mut config = PairConfig { ipv6, ..config() };
        config.endpoint[0].data_dscp = 26;
        let mut pair = Pair::new(&config);
        pair.capture();
        let mut way = path(&config, 0);
        way.hop_limit = 3;
        way.flow_label = 0x1_2345;
        let to = Datagram {
            ah: Arc::new(AddressHandle::new(way).unwrap()),
            qpn: QPNS[1],
            qkey: QKEY,
        };
        let inbox = Bytes::filled(100, 0);
        pair.post_recv(1, recv_wr(5, &inbox, 100)).unwrap();
        send(&mut pair, SendOp::Send, 5, to);
        assert_eq!(pair.completions(1).len(), 1, "its checksum is right");
        let grh = Grh::new(inbox.copy()[..40].try_into().unwrap());
        let label = if ipv6 { 0x1_2345 } else { 0 };
        assert_eq!(
            (grh.traffic_class(), grh.hop_limit(), grh.flow_label()),
            (26 << 2 | 2, 3, label)
        );
        let udp = if ipv6 { 54 } else { 34 };
        let port = udp_source_port(0x1_2345, QPNS[0], QPNS[1]);
        assert_eq!(pair.sent[0].frame[udp..udp + 2], port.to_be_bytes());
    }
}

#[test]
fn each_destination_qp_has_its_own_source_port() {
    let config = config();
    let mut pair = Pair::new(&config);
    pair.capture();
    for qpn in [0x80_0022, 0x80_0333] {
        let to = Datagram {
            qpn: Qpn::new(qpn),
            ..datagram(&config, 0)
        };
        send(&mut pair, SendOp::Send, 5, to);
        let sent = pair.sent.last().unwrap();
        assert_eq!(sent.bth.dest_qpn, Qpn::new(qpn));
        let port = udp_source_port(0, QPNS[0], Qpn::new(qpn));
        assert_eq!(sent.frame[34..36], port.to_be_bytes());
    }
}

#[test]
fn a_packet_with_another_q_key_is_dropped() {
    let config = config();
    let mut pair = Pair::new(&config);
    let inbox = Bytes::filled(100, 0xee);
    pair.post_recv(1, recv_wr(5, &inbox, 100)).unwrap();
    let to = Datagram {
        qkey: 0x2222_2222,
        ..datagram(&config, 0)
    };
    send(&mut pair, SendOp::Send, 5, to);
    assert_eq!(dropped(&pair, DropReason::QKey), 1);
    assert!(pair.completions(1).is_empty() && inbox.copy() == [0xee; 100]);
    // The receive request is there yet.
    send(&mut pair, SendOp::Send, 5, datagram(&config, 0));
    assert_eq!(pair.completions(1).len(), 1);
}

#[test]
fn a_q_key_with_the_top_bit_stands_for_the_qps_own() {
    let config = config();
    let mut pair = Pair::new(&config);
    pair.capture();
    pair.post_recv(1, recv_wr(5, &Bytes::filled(100, 0), 100))
        .unwrap();
    let to = Datagram {
        qkey: 0x8000_0000,
        ..datagram(&config, 0)
    };
    send(&mut pair, SendOp::Send, 5, to);
    let pieces: [&[u8]; 1] = [&pair.sent[0].frame];
    let p = Packet::parse(&Head::of(&pieces), &pieces).unwrap();
    assert_eq!(p.deth.unwrap().qkey, QKEY);
    assert_eq!(pair.completions(1).len(), 1);
}

#[test]
fn a_packet_without_receive_request_is_dropped_and_counted() {
    let config = config();
    let mut pair = Pair::new(&config);
    pair.capture();
    send(&mut pair, SendOp::Send, 5, datagram(&config, 0));
    assert_eq!(dropped(&pair, DropReason::NoReceive), 1);
    assert!(pair.sent.iter().all(|s| s.end == 0), "no RNR NAK");
    assert_eq!(stats(&pair, 1).rx_dropped, 1);
}

#[test]
fn a_receive_request_that_is_too_small_completes_with_a_length_error() {
    let config = config();
    for (room, len) in [(GRH_ROOM - 1, 0), (GRH_ROOM, 1), (GRH_ROOM + 99, 100)] {
        let mut pair = Pair::new(&config);
        let inbox = Bytes::filled(room, 0xee);
        pair.post_recv(1, recv_wr(5, &inbox, room)).unwrap();
        pair.post_recv(1, recv_wr(6, &Bytes::filled(200, 0), 200))
            .unwrap();
        for _ in 0..2 {
            send(&mut pair, SendOp::Send, len, datagram(&config, 0));
        }
        assert_eq!(
            outcomes(&mut pair, 1),
            [
                (5, CqeOpcode::Recv, Status::LocLenErr),
                (6, CqeOpcode::Recv, Status::Success)
            ]
        );
        assert!(inbox.copy().iter().all(|b| *b == 0xee), "nothing written");
        assert_eq!(dropped(&pair, DropReason::ReceiveTooSmall), 1);
        assert_eq!(state(&pair, 1), QpState::Rts);
    }
}

#[test]
fn receive_memory_that_fails_ends_the_qp() {
    let config = config();
    let mut pair = Pair::new(&config);
    let inbox = Bytes::filled(100, 0);
    pair.post_recv(1, recv_wr(5, &inbox, 100)).unwrap();
    inbox.take_away();
    send(&mut pair, SendOp::Send, 5, datagram(&config, 0));
    assert_eq!(
        outcomes(&mut pair, 1),
        [(5, CqeOpcode::Recv, Status::LocProtErr)]
    );
    let cause = ErrorCause::Peer(DropReason::RemoteOperational);
    assert!(pair.ends[1].events.contains(&Event::QpError {
        qpn: QPNS[1],
        cause
    }));
    assert_eq!(state(&pair, 1), QpState::Err);
}

#[test]
fn a_packet_of_wrong_form_is_dropped() {
    let config = config();
    let mut pair = Pair::new(&config);
    pair.post_recv(1, recv_wr(5, &Bytes::filled(3000, 0), 3000))
        .unwrap();
    let mut wrong_pad = packet(SEND, QKEY).payload(&[1; 4]);
    wrong_pad.bth.pad = 4 - 1;
    let mut other_partition = packet(SEND, QKEY);
    other_partition.bth.pkey = 0x8001;
    let foreign = |opcode| {
        let mut craft = Craft::new(0, Opcode(opcode), Psn::new(0));
        craft.payload = vec![0; 4];
        craft
    };
    let wrong = [
        (
            DropReason::InvalidRequest,
            packet(SEND, QKEY).payload(&[7; 1025]),
        ),
        (DropReason::InvalidRequest, wrong_pad),
        (DropReason::PKey, other_partition),
        (DropReason::TransportMismatch, foreign(0x04)),
        (DropReason::TransportMismatch, foreign(0x24)),
        (DropReason::UnknownOpcode, foreign(0x60)),
    ];
    for (n, (reason, craft)) in wrong.iter().enumerate() {
        let before = dropped(&pair, *reason);
        pair.inject(1, craft.frame(&config, 0));
        assert!(pair.run(LONG));
        assert_eq!(dropped(&pair, *reason), before + 1, "{n}");
    }
    // To an address that is not the QP's.
    let mut frame = packet(SEND, QKEY).frame(&config, 0);
    frame[30..34].copy_from_slice(&[10, 77, 0, 9]);
    frame[24..26].fill(0);
    let sum = frame[14..34]
        .chunks(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    pair.inject(1, frame);
    assert!(pair.run(LONG));
    assert_eq!(dropped(&pair, DropReason::LocalAddress), 1);
    assert!(pair.completions(1).is_empty());
}

#[test]
fn a_packet_comes_from_anyone_who_knows_the_q_key_and_in_any_order() {
    let config = config();
    let mut pair = Pair::new(&config);
    for n in 0..4 {
        pair.post_recv(1, recv_wr(n, &Bytes::filled(100, 0), 100))
            .unwrap();
    }
    for psn in [7u32, 3, 3, 0xff_ffff] {
        let mut craft = packet(SEND_IMM, QKEY).payload(&[1; 5]);
        craft.bth.psn = Psn::new(psn);
        pair.inject(1, craft.frame(&config, 0));
    }
    assert!(pair.run(LONG));
    let got = pair.completions(1);
    assert_eq!(got.len(), 4);
    assert!(got.iter().all(|c| (c.byte_len, c.imm) == (45, Some(9))));
}

#[test]
fn a_message_is_one_packet_and_a_longer_one_is_refused_when_posted() {
    for path_mtu in PathMtu::ALL {
        let config = PairConfig {
            path_mtu,
            ..config()
        };
        let pair = Pair::new(&config);
        let len = path_mtu.bytes() as usize + 1;
        let wr = send_wr(1, SendOp::Send, &Bytes::filled(len, 0), len).to(datagram(&config, 0));
        assert_eq!(pair.ends[0].qp.sq.post(wr), Err(PostError::LongerThanMtu));
        assert!(pair.ends[0].qp.sq.is_empty());
    }
}

#[test]
fn ud_has_sends_only_and_each_says_to_whom() {
    let config = config();
    let pair = Pair::new(&config);
    let source = Bytes::filled(8, 0);
    let (va, rkey) = (0, RKey(1));
    let post = |op, to: Option<Datagram>| {
        let mut wr = send_wr(1, op, &source, 8);
        wr.to = to;
        pair.ends[0].qp.sq.post(wr)
    };
    for op in [
        SendOp::Write { va, rkey },
        SendOp::WriteImm { va, rkey, imm: 1 },
        SendOp::Read { va, rkey },
        SendOp::FetchAdd { va, rkey, add: 1 },
        SendOp::SendInvalidate(rkey),
        SendOp::LocalInvalidate(rkey),
    ] {
        let refused = post(op, Some(datagram(&config, 0)));
        assert_eq!(refused, Err(PostError::Unsupported), "{op:?}");
    }
    assert_eq!(post(SendOp::Send, None), Err(PostError::Destination));
    // A group has one QPN, and no one else has it.
    let to = Datagram {
        qpn: MULTICAST_QPN,
        ..datagram(&config, 0)
    };
    assert_eq!(post(SendOp::Send, Some(to)), Err(PostError::Destination));
    let mut way = path(&config, 0);
    way.dst = gid_from_ipv4([239, 1, 2, 3]);
    let to = Datagram {
        ah: Arc::new(AddressHandle::new(way).unwrap()),
        ..datagram(&config, 0)
    };
    assert_eq!(post(SendOp::Send, Some(to)), Err(PostError::Destination));
}

#[test]
fn an_address_handle_needs_two_addresses_of_one_family() {
    let good = path(&config(), 0);
    assert!(AddressHandle::new(good).is_some());
    let mut v6 = [0; 16];
    (v6[0], v6[15]) = (0xfd, 1);
    for bad in [
        rocexdp_proto::wire::Path { dst: v6, ..good },
        rocexdp_proto::wire::Path {
            dst: [0; 16],
            ..good
        },
        rocexdp_proto::wire::Path {
            src: gid_from_ipv4([239, 0, 0, 1]),
            ..good
        },
        rocexdp_proto::wire::Path {
            dst: gid_from_ipv4([255, 255, 255, 255]),
            ..good
        },
        rocexdp_proto::wire::Path {
            vlan: Some(4096),
            ..good
        },
        rocexdp_proto::wire::Path {
            flow_label: 1 << 20,
            ..good
        },
    ] {
        assert!(AddressHandle::new(bad).is_none(), "{bad:?}");
    }
}

#[test]
fn a_handle_that_starts_at_another_address_fails_its_request_and_stops_sending() {
    let config = config();
    let mut pair = Pair::new(&config);
    pair.capture();
    let mut way = path(&config, 0);
    way.src = gid_from_ipv4([10, 77, 0, 99]);
    let to = Datagram {
        ah: Arc::new(AddressHandle::new(way).unwrap()),
        ..datagram(&config, 0)
    };
    let source = Bytes::filled(8, 0);
    pair.post_send(0, send_wr(1, SendOp::Send, &source, 8).to(to))
        .unwrap();
    pair.post_send(
        0,
        send_wr(2, SendOp::Send, &source, 8).to(datagram(&config, 0)),
    )
    .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [
            (1, CqeOpcode::Send, Status::LocQpOpErr),
            (2, CqeOpcode::Send, Status::WrFlushErr)
        ]
    );
    assert!(pair.sent.is_empty());
    assert_eq!(state(&pair, 0), QpState::Sqe);
}

#[test]
fn memory_that_fails_stops_sending_until_the_qp_is_made_ready_again() {
    let config = config();
    let mut pair = Pair::new(&config);
    let gone = Bytes::filled(8, 0);
    pair.post_send(
        0,
        send_wr(1, SendOp::Send, &gone, 8).to(datagram(&config, 0)),
    )
    .unwrap();
    gone.take_away();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Send, Status::LocProtErr)]
    );
    assert_eq!(state(&pair, 0), QpState::Sqe);
    let (now, sq_psn) = (pair.now(), Psn::new(0));
    pair.ends[0]
        .endpoint
        .modify_qp(now, QPNS[0], QpTransition::RtsUd { sq_psn })
        .unwrap();
    pair.post_recv(1, recv_wr(5, &Bytes::filled(100, 0), 100))
        .unwrap();
    pair.capture();
    send(&mut pair, SendOp::Send, 5, datagram(&config, 0));
    assert_eq!(pair.sent[0].bth.psn, config.psn[0].add(1), "PSNs go on");
    assert_eq!(pair.completions(1).len(), 1);
}

#[test]
fn lost_packets_are_lost_and_no_timer_runs() {
    let config = config();
    let mut pair = Pair::new(&config);
    pair.script = Some(Box::new(
        |_, n, _, _| {
            if n == 1 { Fate::Drop } else { Fate::Pass }
        },
    ));
    for n in 0..3 {
        pair.post_recv(1, recv_wr(n, &Bytes::filled(100, 0), 100))
            .unwrap();
    }
    for n in 0..3 {
        send(&mut pair, SendOp::SendImm(n), 5, datagram(&config, 0));
    }
    let got: Vec<_> = pair.completions(1).iter().map(|c| c.imm).collect();
    assert_eq!(got, [Some(0), Some(2)]);
    assert_eq!(pair.ends[0].endpoint.poll_timeout(), None);
}

#[test]
fn a_ud_qp_has_transitions_of_its_own() {
    let config = config();
    let mut pair = Pair::new(&config);
    let now = pair.now();
    let ep = &mut pair.ends[0].endpoint;
    let rtr = RtrAttr {
        dest_qpn: QPNS[1],
        path_mtu: PathMtu::Mtu1024,
        rq_psn: Psn::new(0),
        min_rnr_timer: 0,
        max_dest_rd_atomic: 0,
        selective: None,
        path: path(&config, 0),
    };
    ep.modify_qp(now, QPNS[0], QpTransition::Reset).unwrap();
    for address in [[0; 16], gid_from_ipv4([239, 0, 0, 1])] {
        let init = UdAttr {
            address,
            qkey: 0,
            path_mtu: PathMtu::Mtu1024,
        };
        let refused = ep.modify_qp(now, QPNS[0], QpTransition::InitUd(init));
        assert!(matches!(refused, Err(VerbsError::InvalidAttr { .. })));
    }
    assert_eq!(
        ep.modify_qp(now, QPNS[0], QpTransition::RtrUd),
        Err(VerbsError::InvalidTransition {
            qpn: QPNS[0],
            from: QpState::Reset,
            to: QpState::Rtr
        })
    );
    let [init, ..] = rocexdp_sim::pair::transitions(&config, 0);
    ep.modify_qp(now, QPNS[0], init).unwrap();
    let refused = ep.modify_qp(now, QPNS[0], QpTransition::Rtr(rtr));
    assert!(matches!(refused, Err(VerbsError::Attributes { .. })));
    let cq = pair.ends[0].cq.clone();
    let ep = &mut pair.ends[0].endpoint;
    let qpn = Qpn::new(0x80_0077);
    ep.create_qp(CreateQp::rc(qpn, &cq, &cq)).unwrap();
    let access = rocexdp_proto::mem::Access::NONE;
    ep.modify_qp(now, qpn, QpTransition::Init { access })
        .unwrap();
    let refused = ep.modify_qp(now, qpn, QpTransition::RtrUd);
    assert!(matches!(refused, Err(VerbsError::Attributes { .. })));
}

#[test]
fn a_reset_qp_takes_nothing() {
    let config = config();
    let mut pair = Pair::new(&config);
    let now = pair.now();
    let ep = &mut pair.ends[1].endpoint;
    ep.modify_qp(now, QPNS[1], QpTransition::Reset).unwrap();
    send(&mut pair, SendOp::Send, 5, datagram(&config, 0));
    assert_eq!(dropped(&pair, DropReason::QpState), 1);
}

#[test]
fn the_first_packet_in_rtr_is_reported() {
    let config = config();
    let mut pair = Pair::new(&config);
    let now = pair.now();
    let ep = &mut pair.ends[1].endpoint;
    ep.modify_qp(now, QPNS[1], QpTransition::Reset).unwrap();
    for to in rocexdp_sim::pair::transitions(&config, 1)
        .into_iter()
        .take(2)
    {
        ep.modify_qp(now, QPNS[1], to).unwrap();
    }
    pair.post_recv(1, recv_wr(5, &Bytes::filled(100, 0), 100))
        .unwrap();
    send(&mut pair, SendOp::Send, 5, datagram(&config, 0));
    assert!(
        pair.ends[1]
            .events
            .contains(&Event::CommunicationEstablished { qpn: QPNS[1] })
    );
    assert_eq!(pair.completions(1).len(), 1);
}

#[test]
fn without_a_peer_marks_are_answered_by_nobody_and_cnps_slow_the_qp() {
    let config = config();
    let mut pair = Pair::new(&config);
    pair.capture();
    let now = pair.now();
    let (ce_marks, cnps) = (5, 0);
    let ep = &mut pair.ends[1].endpoint;
    ep.handle_congestion(now, QPNS[1], CongestionSignal { ce_marks, cnps });
    pair.run(core::time::Duration::from_micros(100));
    assert!(pair.sent.is_empty());
    for _ in 0..20 {
        send(&mut pair, SendOp::Send, 1000, datagram(&config, 0));
    }
    let now = pair.now();
    let (ce_marks, cnps) = (0, 1);
    let ep = &mut pair.ends[0].endpoint;
    ep.handle_congestion(now, QPNS[0], CongestionSignal { ce_marks, cnps });
    assert_eq!(stats(&pair, 0).rp_cnp_handled, 1);
}

#[test]
fn our_frames_are_soft_roces() {
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
fn soft_roces_messages_complete_as_at_its_own_peer() {
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
