//! Multicast: who receives a group's packets, whose packets those are, and what a packet to a group looks like.

mod common;
#[path = "common/softroce.rs"]
mod softroce;

use std::sync::Arc;

use common::pattern;
use rocexdp_common::headers::{Bth, Deth, ICRC_LEN};
use rocexdp_common::opcode::Opcode;
use rocexdp_proto::ids::{Gid, PathMtu, Psn, Qpn, gid_from_ipv4};
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{
    AddressHandle, CompletionQueue, Datagram, MULTICAST_QPN, RecvWr, Segment, SendOp, Status,
};
use rocexdp_proto::wire::{
    GRH_ROOM, Grh, HeaderBuf, HeaderTemplate, Icrc, Path, RxMeta, multicast_mac,
};
use rocexdp_proto::{
    CreateQp, DropReason, Endpoint, EndpointConfig, QpHandle, QpTransition, Transport, UdAttr,
    VerbsError,
};
use rocexdp_sim::pair::Bytes;
use softroce::Host;

const NOW: Timestamp = Timestamp::ZERO;
const QKEY: u32 = 0x0123_4567;
const SENDER: Qpn = Qpn::new(0x46);

fn group(ipv6: bool) -> Gid {
    if ipv6 {
        let mut g = [0; 16];
        (g[0], g[1], g[15]) = (0xff, 0x0e, 9);
        g
    } else {
        gid_from_ipv4([239, 77, 0, 1])
    }
}

fn qpn(n: u32) -> Qpn {
    Qpn::new(0x80_0000 + n)
}

/// One receiving QP.
struct Member {
    qp: QpHandle,
    cq: Arc<CompletionQueue>,
    inbox: Arc<Bytes>,
}

/// An endpoint with so many UD QPs, each with two receive requests of 200 bytes and this Q_Key.
fn endpoint(qkeys: &[u32], ipv6: bool) -> (Endpoint, Vec<Member>) {
    let mut ep = Endpoint::new(EndpointConfig::default(), 1);
    let members = (0..).zip(qkeys).map(|(n, qkey)| {
        let cq = Arc::new(CompletionQueue::new(8));
        let qp = ep.create_qp(CreateQp::ud(qpn(n), &cq, &cq)).unwrap();
        for to in [
            QpTransition::InitUd(UdAttr {
                address: softroce::path(1, ipv6).src,
                qkey: *qkey,
                path_mtu: PathMtu::Mtu1024,
            }),
            QpTransition::RtrUd,
        ] {
            ep.modify_qp(NOW, qp.qpn, to).unwrap();
        }
        let inbox = Bytes::filled(200, 0xee);
        for _ in 0..2 {
            let local = Segment::new(inbox.clone(), 0, 200);
            qp.rq.post(RecvWr::new(Default::default(), local)).unwrap();
        }
        Member { qp, cq, inbox }
    });
    let members = members.collect();
    (ep, members)
}

/// The way from A to a group.
fn to_group(group: Gid, ipv6: bool) -> Path {
    Path {
        dst: group,
        dst_mac: multicast_mac(&group).unwrap_or_default(),
        ..softroce::path(0, ipv6)
    }
}

/// A packet with these addresses and QPN.
fn frame(path: &Path, dest_qpn: Qpn, opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut headers = HeaderBuf::default();
    let opcode = Opcode(opcode);
    let deth = opcode.0 == 0x64;
    let behind = if deth { Deth::LEN } else { 0 } + payload.len();
    HeaderTemplate::data(path, SENDER, dest_qpn, 0)
        .start(&mut headers, Bth::LEN + behind + ICRC_LEN);
    headers.push_bth(&Bth {
        opcode,
        solicited: false,
        mig_req: true,
        pad: 0,
        version: 0,
        pkey: 0xffff,
        fecn: false,
        becn: false,
        dest_qpn,
        ack_req: false,
        psn: Psn::new(0),
    });
    let bth = headers.bytes().len();
    if deth {
        let mut b = [0; Deth::LEN];
        Deth {
            qkey: QKEY,
            src_qpn: SENDER,
        }
        .emit(&mut b);
        headers.push(&b);
    }
    let mut frame = headers.bytes().to_vec();
    frame.extend_from_slice(payload);
    let mut crc = Icrc::over_headers(&frame[14..bth], bth - 14 - 20).unwrap();
    crc.update(&frame[bth..]);
    frame.extend_from_slice(&crc.finish());
    frame
}

fn give(ep: &mut Endpoint, frame: &[u8]) -> Result<(), DropReason> {
    ep.handle_frame(NOW, &RxMeta::default(), &[frame])
}

fn invalid<T: core::fmt::Debug>(r: Result<T, VerbsError>) {
    assert!(matches!(r, Err(VerbsError::InvalidAttr { .. })), "{r:?}");
}

#[test]
fn one_packet_is_delivered_to_every_attached_qp() {
    for ipv6 in [false, true] {
        let (mut ep, members) = endpoint(&[QKEY; 4], ipv6);
        for m in &members[..3] {
            ep.attach_mcast(m.qp.qpn, group(ipv6)).unwrap();
        }
        let data = pattern(100, 1);
        let frame = frame(&to_group(group(ipv6), ipv6), MULTICAST_QPN, 0x64, &data);
        give(&mut ep, &frame).unwrap();
        for m in &members[..3] {
            let c = m.cq.poll().unwrap();
            assert_eq!(
                (c.qpn, c.status, c.byte_len, c.src_qpn, c.grh),
                (m.qp.qpn, Status::Success, 140, Some(SENDER), true)
            );
            let got = m.inbox.copy();
            assert!(got[GRH_ROOM..140] == data);
            let grh = Grh::new(got[..40].try_into().unwrap());
            assert_eq!(
                (grh.src(), grh.dst()),
                (softroce::path(0, ipv6).src, group(ipv6))
            );
        }
        assert!(members[3].cq.is_empty(), "not attached");
        assert_eq!(ep.counters().accepted, 1, "one frame");
        assert_eq!(ep.groups().collect::<Vec<_>>(), [group(ipv6)]);
    }
}

#[test]
fn a_group_that_nobody_is_attached_to_is_dropped_and_counted() {
    let (mut ep, members) = endpoint(&[QKEY; 2], false);
    let frame = frame(&to_group(group(false), false), MULTICAST_QPN, 0x64, &[]);
    let other = gid_from_ipv4([239, 77, 0, 2]);
    let qpns: Vec<_> = members.iter().map(|m| m.qp.qpn).collect();
    ep.attach_mcast(qpns[0], other).unwrap();
    assert_eq!(give(&mut ep, &frame), Err(DropReason::UnknownGroup));
    for q in &qpns {
        ep.attach_mcast(*q, group(false)).unwrap();
    }
    give(&mut ep, &frame).unwrap();
    ep.detach_mcast(qpns[0], group(false)).unwrap();
    ep.destroy_qp(qpns[1]).unwrap();
    assert_eq!(give(&mut ep, &frame), Err(DropReason::UnknownGroup));
    assert_eq!(ep.counters().drops[DropReason::UnknownGroup.index()], 2);
    assert_eq!(ep.groups().collect::<Vec<_>>(), [other]);
    assert_eq!(members.iter().map(|m| m.cq.len()).sum::<usize>(), 2);
}

#[test]
fn a_qp_that_takes_the_place_of_a_destroyed_one_is_in_none_of_its_groups() {
    let (mut ep, members) = endpoint(&[QKEY], false);
    ep.attach_mcast(qpn(0), group(false)).unwrap();
    ep.destroy_qp(qpn(0)).unwrap();
    let cq = members[0].cq.clone();
    ep.create_qp(CreateQp::ud(qpn(7), &cq, &cq)).unwrap();
    invalid(ep.detach_mcast(qpn(7), group(false)));
}

#[test]
fn each_attached_qp_takes_a_packet_or_not_for_itself() {
    // The first has another Q_Key, the second no receive request left after two packets.
    let (mut ep, members) = endpoint(&[1, QKEY], false);
    for m in &members {
        ep.attach_mcast(m.qp.qpn, group(false)).unwrap();
    }
    let frame = frame(&to_group(group(false), false), MULTICAST_QPN, 0x64, &[]);
    give(&mut ep, &frame).unwrap();
    give(&mut ep, &frame).unwrap();
    // The reason of the first.
    assert_eq!(give(&mut ep, &frame), Err(DropReason::QKey));
    assert_eq!((members[0].cq.len(), members[1].cq.len()), (0, 2));
    let c = *ep.counters();
    assert_eq!((c.accepted, c.drops.iter().sum::<u64>()), (2, 1), "frames");
    assert_eq!(c.group_refusals, 3, "copies, besides the frame dropped");
    assert_eq!(ep.qp_info(qpn(0)).unwrap().stats.rx_dropped, 3);
    assert_eq!(ep.qp_info(qpn(1)).unwrap().stats.rx_dropped, 1);
    assert_eq!(ep.qp_info(qpn(1)).unwrap().stats.rx_accepted, 2);
}

#[test]
fn address_link_address_and_qpn_must_all_be_the_groups() {
    let (mut ep, members) = endpoint(&[QKEY], false);
    let own = members[0].qp.qpn;
    ep.attach_mcast(own, group(false)).unwrap();
    let good = to_group(group(false), false);
    let unicast = softroce::path(0, false);
    let other_mac = Path {
        dst_mac: [1, 0, 0x5e, 0x4d, 0, 2],
        ..good
    };
    let to_us = Path {
        dst_mac: unicast.dst_mac,
        ..good
    };
    for (what, path, to) in [
        ("the QP's own number", good, own),
        ("a number of nobody", good, qpn(99)),
        ("another group's link address", other_mac, MULTICAST_QPN),
        ("our own link address", to_us, MULTICAST_QPN),
        ("our own address", unicast, MULTICAST_QPN),
    ] {
        let got = give(&mut ep, &frame(&path, to, 0x64, &[]));
        assert_eq!(got, Err(DropReason::GroupAddress), "{what}");
    }
    assert!(members[0].cq.is_empty());
    give(&mut ep, &frame(&good, MULTICAST_QPN, 0x64, &[])).unwrap();
}

#[test]
fn only_datagrams_go_to_groups_and_their_icrc_is_checked() {
    let (mut ep, members) = endpoint(&[QKEY], false);
    ep.attach_mcast(members[0].qp.qpn, group(false)).unwrap();
    let path = to_group(group(false), false);
    for opcode in [0x04, 0x24, 0x81] {
        let got = give(&mut ep, &frame(&path, MULTICAST_QPN, opcode, &[0; 16]));
        assert_eq!(got, Err(DropReason::TransportMismatch), "{opcode:x}");
    }
    let mut corrupt = frame(&path, MULTICAST_QPN, 0x64, &[0; 16]);
    *corrupt.last_mut().unwrap() ^= 1;
    assert_eq!(give(&mut ep, &corrupt), Err(DropReason::Icrc));
    assert_eq!(ep.counters().icrc_errors, 1);
    assert!(members[0].cq.is_empty());
}

#[test]
fn attaching_twice_is_attaching_once() {
    let (mut ep, members) = endpoint(&[QKEY], false);
    for _ in 0..2 {
        ep.attach_mcast(qpn(0), group(false)).unwrap();
    }
    let frame = frame(&to_group(group(false), false), MULTICAST_QPN, 0x64, &[]);
    give(&mut ep, &frame).unwrap();
    assert_eq!(members[0].cq.len(), 1);
    ep.detach_mcast(qpn(0), group(false)).unwrap();
    invalid(ep.detach_mcast(qpn(0), group(false)));
}

#[test]
fn only_ud_qps_are_attached_and_only_to_multicast_addresses() {
    let (mut ep, members) = endpoint(&[QKEY], false);
    let cq = &members[0].cq;
    ep.create_qp(CreateQp::rc(qpn(50), cq, cq)).unwrap();
    ep.create_qp(CreateQp::uc(qpn(51), cq, cq)).unwrap();
    invalid(ep.attach_mcast(qpn(50), group(false)));
    invalid(ep.attach_mcast(qpn(51), group(false)));
    invalid(ep.attach_mcast(qpn(0), gid_from_ipv4([10, 0, 0, 1])));
    invalid(ep.attach_mcast(qpn(0), gid_from_ipv4([255, 255, 255, 255])));
    let unknown = VerbsError::UnknownQp(qpn(52));
    assert_eq!(ep.attach_mcast(qpn(52), group(false)), Err(unknown));
    assert_eq!(ep.groups().count(), 0);
}

#[test]
fn groups_and_their_members_are_bounded() {
    let limits = rocexdp_proto::DeviceAttr::default();
    let (members, groups) = (limits.max_mcast_qp_attach, limits.max_mcast_grp);
    let full = |r, most: u32| {
        let most = u64::from(most);
        assert!(
            matches!(r, Err(VerbsError::Limit { limit, .. }) if limit == most),
            "{r:?}"
        );
    };
    let (mut ep, _) = endpoint(&vec![QKEY; members as usize + 1], false);
    for n in 0..members {
        ep.attach_mcast(qpn(n), group(false)).unwrap();
    }
    full(ep.attach_mcast(qpn(members), group(false)), members);
    let nth = |n: u32| gid_from_ipv4([230, 0, (n >> 8) as u8, n as u8]);
    for n in 1..groups {
        ep.attach_mcast(qpn(0), nth(n)).unwrap();
    }
    full(ep.attach_mcast(qpn(0), nth(groups)), groups);
    ep.detach_mcast(qpn(0), nth(1)).unwrap();
    ep.attach_mcast(qpn(0), nth(groups)).unwrap();
}

#[test]
fn a_packet_to_a_group_has_its_addresses_and_number() {
    for ipv6 in [false, true] {
        let mut a = Host::with(0, Transport::Ud, SENDER.get(), ipv6, QKEY, Psn::new(0));
        let way = Path {
            dst_mac: [9; 6],
            ..to_group(group(ipv6), ipv6)
        };
        let to = Datagram {
            ah: Arc::new(AddressHandle::new(way).unwrap()),
            qpn: MULTICAST_QPN,
            qkey: QKEY,
        };
        let sent = a.send(SendOp::Send, 100, Some(to));
        // The link address follows from the group, whatever the path says.
        assert_eq!(sent[0][..6], multicast_mac(&group(ipv6)).unwrap());
        let (mut ep, members) = endpoint(&[QKEY], ipv6);
        ep.attach_mcast(qpn(0), group(ipv6)).unwrap();
        give(&mut ep, &sent[0]).unwrap();
        assert_eq!(members[0].cq.poll().unwrap().byte_len, 140);
    }
}
