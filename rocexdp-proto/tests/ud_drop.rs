//! UD: what is dropped and why, what can't be posted, and what fails.

mod common;

use std::sync::Arc;

use common::ud::{QKEY, SEND, config, packet, send};
use common::{Craft, LONG, dropped, outcomes, recv_wr, send_wr, state, stats};
use rocexdp_common::opcode::Opcode;
use rocexdp_proto::ids::{PathMtu, Psn, RKey, gid_from_ipv4};
use rocexdp_proto::verbs::{
    AddressHandle, CqeOpcode, Datagram, MULTICAST_QPN, PostError, SendOp, Status,
};
use rocexdp_proto::wire::GRH_ROOM;
use rocexdp_proto::{DropReason, ErrorCause, Event, QpState, QpTransition};
use rocexdp_sim::pair::{Bytes, Pair, PairConfig, QPNS, datagram, path};

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
fn a_reset_qp_takes_nothing() {
    let config = config();
    let mut pair = Pair::new(&config);
    let now = pair.now();
    let ep = &mut pair.ends[1].endpoint;
    ep.modify_qp(now, QPNS[1], QpTransition::Reset).unwrap();
    send(&mut pair, SendOp::Send, 5, datagram(&config, 0));
    assert_eq!(dropped(&pair, DropReason::QpState), 1);
}
