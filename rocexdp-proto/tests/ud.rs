//! UD: what arrives, what precedes a message in memory, and what is in a frame.

mod common;

use std::sync::Arc;

use common::ud::{QKEY, SEND_IMM, config, packet, send};
use common::{LONG, outcomes, recv_wr, send_wr, state, stats};
use rocexdp_proto::ids::{PathMtu, Psn, Qpn, WrId, gid_from_ipv4};
use rocexdp_proto::verbs::{
    AddressHandle, CqeOpcode, Datagram, RecvWr, Segment, SendOp, SendWr, SgList, Status,
};
use rocexdp_proto::wire::{GRH_ROOM, Grh, Head, Packet, udp_source_port};
use rocexdp_proto::{
    CongestionSignal, CreateQp, Event, QpState, QpTransition, RtrAttr, UdAttr, VerbsError,
};
use rocexdp_sim::pair::{Bytes, Fate, Pair, PairConfig, QPNS, datagram, path};

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
    for (ipv6, dscp, seen) in [
        (false, None, 26),
        (true, None, 26),
        (false, Some(40), 40),
        (true, Some(40), 40),
    ] {
        let mut config = PairConfig { ipv6, ..config() };
        config.endpoint[0].data_dscp = 26;
        let mut pair = Pair::new(&config);
        pair.capture();
        let mut way = path(&config, 0);
        way.hop_limit = 3;
        way.dscp = dscp;
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
            (seen << 2 | 2, 3, label)
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
fn room_for_the_header_and_the_message_may_be_ranges_of_their_own() {
    let config = config();
    let mut pair = Pair::new(&config);
    let (room, first, second) = (
        Bytes::filled(40, 0xee),
        Bytes::filled(10, 0xee),
        Bytes::filled(100, 0xee),
    );
    let list = SgList::of(&[
        Segment::new(room.clone(), 0, 40),
        Segment::new(first.clone(), 0, 10),
        Segment::new(second.clone(), 5, 90),
    ]);
    pair.post_recv(1, RecvWr::new(WrId(1), list)).unwrap();
    let data = send(&mut pair, SendOp::Send, 50, datagram(&config, 0));
    assert_eq!(pair.completions(1)[0].byte_len, 90);
    assert!(first.copy() == data[..10] && second.copy()[5..45] == data[10..]);
    assert_eq!(second.copy()[45], 0xee);
    assert_eq!(
        Grh::new(room.copy().try_into().unwrap()).src(),
        path(&config, 0).src
    );
}

#[test]
fn inline_data_is_sent_as_it_was_when_posted() {
    let config = config();
    let mut pair = Pair::new(&config);
    let inbox = Bytes::filled(100, 0);
    pair.post_recv(1, recv_wr(5, &inbox, 100)).unwrap();
    let wr = SendWr::new(WrId(1), SendOp::Send, SgList::inline(b"hello"));
    pair.post_send(0, wr.to(datagram(&config, 0))).unwrap();
    assert!(pair.run(LONG));
    assert_eq!(inbox.copy()[40..45], *b"hello");
}
