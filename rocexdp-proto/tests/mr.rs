//! Memory regions as objects: protection domains, what local and remote requests may do with them, and their withdrawal.

mod common;

use std::sync::Arc;

use common::{LONG, outcomes, pattern, replace_qp};
use rocexdp_proto::ids::{Pd, RKey, WrId};
use rocexdp_proto::mem::{Access, Memory, Region, RegionError};
use rocexdp_proto::verbs::{CqeOpcode, RecvWr, SendOp, SendWr, Status};
use rocexdp_proto::{Endpoint, EndpointConfig, VerbsError};
use rocexdp_sim::pair::{Bytes, Pair, PairConfig};

const VA: u64 = 0x10_0000;
const ALL: Access = Access::from_bits(1 | 2 | 4 | 8).unwrap();

fn region(pair: &mut Pair, end: usize, pd: Pd, bytes: &Arc<Bytes>, access: Access) -> Arc<Region> {
    let endpoint = &mut pair.ends[end].endpoint;
    endpoint
        .register_region(pd, bytes.clone(), VA, access)
        .unwrap()
}

fn write(region: &Region, va: u64) -> SendOp {
    let rkey = region.rkey();
    SendOp::Write { va, rkey }
}

/// A pair whose end has its QP in a domain of its own.
fn in_domain(end: usize) -> (Pair, Pd) {
    let config = PairConfig::default();
    let mut pair = Pair::new(&config);
    let pd = pair.ends[end].endpoint.alloc_pd().unwrap();
    assert_ne!(pd, Pd::default());
    replace_qp(&mut pair, &config, end, |qp| rocexdp_proto::CreateQp {
        pd,
        ..qp
    });
    (pair, pd)
}

#[test]
fn a_region_of_the_qps_domain_is_reached_and_one_of_another_is_not() {
    for same in [true, false] {
        let (mut pair, pd) = in_domain(1);
        let bytes = Bytes::filled(64, 0);
        let pd = if same { pd } else { Pd::default() };
        let mr = region(&mut pair, 1, pd, &bytes, ALL);
        let local = SendWr::new(
            WrId(1),
            write(&mr, VA),
            rocexdp_proto::verbs::SgList::inline(&[7; 8]),
        );
        pair.post_send(0, local).unwrap();
        assert!(pair.run(LONG));
        let status = if same {
            Status::Success
        } else {
            Status::RemAccessErr
        };
        assert_eq!(outcomes(&mut pair, 0), [(1, CqeOpcode::Write, status)]);
        assert_eq!(bytes.copy()[..8] == [7; 8], same);
    }
}

#[test]
fn a_send_from_memory_of_another_domain_is_a_local_protection_error() {
    for same in [true, false] {
        let (mut pair, pd) = in_domain(0);
        let bytes = Bytes::of(pattern(64, 1));
        let pd = if same { pd } else { Pd::default() };
        let mr = region(&mut pair, 0, pd, &bytes, Access::NONE);
        let (inbox, segment) = (Bytes::filled(64, 0), mr.segment(VA + 8, 16).unwrap());
        pair.post_recv(
            1,
            RecvWr::new(
                WrId(5),
                rocexdp_proto::mem::Segment::new(inbox.clone(), 0, 64),
            ),
        )
        .unwrap();
        pair.post_send(0, SendWr::new(WrId(1), SendOp::Send, segment))
            .unwrap();
        assert!(pair.run(LONG));
        let status = if same {
            Status::Success
        } else {
            Status::LocProtErr
        };
        assert_eq!(outcomes(&mut pair, 0), [(1, CqeOpcode::Send, status)]);
        assert_eq!(inbox.copy()[..16] == bytes.copy()[8..24], same);
    }
}

#[test]
fn a_receive_into_memory_that_may_not_be_written_is_a_local_protection_error() {
    let cases = [
        (true, Access::LOCAL_WRITE, Status::Success),
        (true, Access::REMOTE_READ, Status::LocProtErr),
        (false, Access::LOCAL_WRITE, Status::LocProtErr),
    ];
    for (same, access, status) in cases {
        let (mut pair, pd) = in_domain(1);
        let bytes = Bytes::filled(64, 0);
        let pd = if same { pd } else { Pd::default() };
        let mr = region(&mut pair, 1, pd, &bytes, access);
        pair.post_recv(1, RecvWr::new(WrId(5), mr.segment(VA, 64).unwrap()))
            .unwrap();
        let message = rocexdp_proto::verbs::SgList::inline(&[7; 8]);
        pair.post_send(0, SendWr::new(WrId(1), SendOp::Send, message))
            .unwrap();
        assert!(pair.run(LONG));
        assert_eq!(outcomes(&mut pair, 1), [(5, CqeOpcode::Recv, status)]);
        let served = status == Status::Success;
        let sent = if served { status } else { Status::RemOpErr };
        assert_eq!(outcomes(&mut pair, 0), [(1, CqeOpcode::Send, sent)]);
        assert_eq!(bytes.copy().iter().any(|b| *b != 0), served);
    }
}

#[test]
fn a_read_into_memory_without_local_write_is_refused_here_and_asks_for_nothing() {
    let mut pair = Pair::new(&PairConfig::default());
    let there = Bytes::of(pattern(64, 1));
    let remote = region(&mut pair, 1, Pd::default(), &there, Access::REMOTE_READ);
    let mine = Bytes::filled(64, 0);
    let local = region(&mut pair, 0, Pd::default(), &mine, Access::REMOTE_READ);
    let op = SendOp::Read {
        va: VA,
        rkey: remote.rkey(),
    };
    pair.capture();
    pair.post_send(0, SendWr::new(WrId(1), op, local.segment(VA, 64).unwrap()))
        .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Read, Status::LocProtErr)]
    );
    assert!(pair.sent.is_empty() && mine.copy().iter().all(|b| *b == 0));
}

#[test]
fn a_withdrawn_region_is_out_of_reach_for_peers_and_for_posted_requests() {
    let mut pair = Pair::new(&PairConfig::default());
    let bytes = Bytes::filled(64, 0);
    let there = region(&mut pair, 1, Pd::default(), &bytes, ALL);
    let here = region(&mut pair, 0, Pd::default(), &bytes, ALL);
    let segment = here.segment(VA, 8).unwrap();
    assert!(pair.ends[1].endpoint.region(there.rkey()).is_some());
    pair.ends[1]
        .endpoint
        .deregister_region(there.rkey())
        .unwrap();
    assert!(!there.is_live() && pair.ends[1].endpoint.region(there.rkey()).is_none());
    assert_eq!(
        pair.ends[1].endpoint.deregister_region(there.rkey()),
        Err(VerbsError::UnknownKey(there.rkey()))
    );
    pair.post_send(0, SendWr::new(WrId(1), write(&there, VA), segment.clone()))
        .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Write, Status::RemAccessErr)]
    );

    // Posted before it was withdrawn, taken after.
    pair.reconnect(&PairConfig::default());
    pair.ends[0]
        .qp
        .sq
        .post(SendWr::new(WrId(2), SendOp::Send, segment))
        .unwrap();
    pair.ends[0]
        .endpoint
        .deregister_region(here.rkey())
        .unwrap();
    let (now, qpn) = (pair.now(), pair.ends[0].qp.qpn);
    pair.ends[0].endpoint.work_posted(now, qpn);
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(2, CqeOpcode::Send, Status::LocProtErr)]
    );
}

#[test]
fn one_region_is_known_to_several_endpoints_and_withdrawn_at_all() {
    let mut workers = [1, 2].map(|seed| Endpoint::new(EndpointConfig::default(), seed));
    let pd = workers[0].alloc_pd().unwrap();
    let bytes = Bytes::filled(64, 0);
    let region = workers[0]
        .register_region(pd, bytes.clone(), VA, ALL)
        .unwrap();
    assert_eq!(
        workers[1].add_region(&region),
        Err(VerbsError::UnknownPd(pd))
    );
    workers[1].alloc_pd_as(pd).unwrap();
    workers[1].add_region(&region).unwrap();
    assert_eq!(
        workers[1].add_region(&region),
        Err(VerbsError::KeyTaken(region.rkey()))
    );
    workers[0].deregister_region(region.rkey()).unwrap();
    assert!(!region.is_live());
    assert_eq!(
        region.read(0, &mut [0]),
        Err(rocexdp_proto::mem::MemoryFault)
    );
    workers[1].deregister_region(region.rkey()).unwrap();
    let why = RegionError::Withdrawn;
    let key = region.rkey();
    assert_eq!(
        workers[1].add_region(&region),
        Err(VerbsError::Region { key, why })
    );
    for worker in &mut workers {
        worker.dealloc_pd(pd).unwrap();
    }
}

#[test]
fn a_domain_goes_when_nothing_is_in_it() {
    let mut ep = Endpoint::new(EndpointConfig::default(), 1);
    let pd = ep.alloc_pd().unwrap();
    let bytes = Bytes::filled(64, 0);
    let mr = ep.register_region(pd, bytes.clone(), VA, ALL).unwrap();
    let mw = ep
        .alloc_window(pd, rocexdp_proto::mem::WindowKind::Type1)
        .unwrap();
    assert_eq!(ep.dealloc_pd(pd), Err(VerbsError::PdBusy { pd, users: 2 }));
    ep.deregister_region(mr.rkey()).unwrap();
    ep.dealloc_window(mw.rkey()).unwrap();
    ep.dealloc_pd(pd).unwrap();
    assert_eq!(ep.dealloc_pd(pd), Err(VerbsError::UnknownPd(pd)));
    let refused = ep.register_region(pd, bytes, VA, ALL).unwrap_err();
    assert_eq!(refused, VerbsError::UnknownPd(pd));
    ep.dealloc_pd(Pd::default()).unwrap();
    ep.dealloc_pd(Pd::default()).unwrap();
}

#[test]
fn segments_are_cut_by_address_and_only_inside_the_region() {
    let mr = Region::new(RKey(0x1234), Pd(1), Bytes::filled(64, 0), VA, ALL).unwrap();
    assert_eq!((mr.lkey().0, mr.rkey().0), (0x1234, 0x1234));
    assert_eq!(mr.segment(VA, 64).unwrap().len(), 64);
    assert!(mr.segment(VA + 64, 0).is_some());
    for (addr, len) in [(VA - 1, 1), (VA, 65), (VA + 64, 1), (u64::MAX, 2)] {
        assert!(mr.segment(addr, len).is_none(), "{addr:x}+{len}");
    }
    let zero = Region::new(
        RKey(1),
        Pd(1),
        Bytes::filled(64, 0),
        VA,
        ALL | Access::ZERO_BASED,
    );
    assert_eq!(zero.unwrap().va(), 0);
}
