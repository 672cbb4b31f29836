//! The limits of the device are those that it advertises: at each one more is refused, by name, and the last one works.

mod common;

use std::sync::Arc;

use common::{LONG, outcomes, pattern, replace_qp};
use rocexdp_proto::ids::{Pd, Qpn, RKey, SrqNum, WrId};
use rocexdp_proto::mem::{Access, Region, Segment, SgList, Window, WindowKind};
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{
    CompletionQueue, CqeOpcode, ListError, PostError, RecvWr, ResizeError, SendOp, SendWr, SrqAttr,
    Status,
};
use rocexdp_proto::{
    CreateQp, DeviceAttr, Endpoint, EndpointConfig, QpTransition, RtrAttr, RtsAttr, VerbsError,
};
use rocexdp_sim::memory::NoBytes;
use rocexdp_sim::pair::{Bytes, Pair, PairConfig, rtr, rts};

fn device(change: impl FnOnce(&mut DeviceAttr)) -> Endpoint {
    let mut config = EndpointConfig::default();
    change(&mut config.limits);
    let ep = Endpoint::new(config.clone(), 1);
    assert_eq!(*ep.device_attr(), config.limits, "advertised as configured");
    ep
}

/// All of a kind of object are in use; the error says of which, and how many there are.
fn at_limit<T: core::fmt::Debug>(result: Result<T, VerbsError>, name: &str, most: u32) {
    match result {
        Err(e @ VerbsError::Limit { limit, .. }) => {
            let text = e.to_string();
            assert_eq!(limit, u64::from(most), "{text}");
            assert!(
                text.contains(name) && text.contains(&most.to_string()),
                "{text}"
            );
        }
        other => panic!("{name}: {other:?}"),
    }
}

/// One more than the device allows was asked for; the error says of what, and how much there may be.
fn beyond<T: core::fmt::Debug>(result: Result<T, VerbsError>, name: &str, most: impl Into<u64>) {
    let most = most.into();
    match result {
        Err(e @ VerbsError::Exceeds { asked, limit, .. }) => {
            let text = e.to_string();
            assert_eq!((asked, limit), (most + 1, most), "{text}");
            assert!(
                text.contains(name) && text.contains(&most.to_string()),
                "{text}"
            );
        }
        other => panic!("{name}: {other:?}"),
    }
}

fn qp(n: u32, cq: &Arc<CompletionQueue>) -> CreateQp {
    CreateQp::rc(Qpn::new(0x100 + n), cq, cq)
}

#[test]
fn objects_are_counted_and_a_place_that_is_given_back_is_free() {
    let mut ep = device(|d| {
        (d.max_qp, d.max_mr, d.max_mw, d.max_pd) = (2, 2, 2, 2);
    });
    let cq = Arc::new(CompletionQueue::new(8));
    for n in 0..2 {
        ep.create_qp(qp(n, &cq)).unwrap();
    }
    at_limit(ep.create_qp(qp(2, &cq)), "max_qp", 2);
    ep.destroy_qp(Qpn::new(0x100)).unwrap();
    ep.create_qp(qp(2, &cq)).unwrap();

    let memory = Bytes::filled(8, 0);
    let register =
        |ep: &mut Endpoint| ep.register_region(Pd::default(), memory.clone(), 0, Access::NONE);
    let first = register(&mut ep).unwrap();
    register(&mut ep).unwrap();
    at_limit(register(&mut ep), "max_mr", 2);
    let more = ep.register_memory(memory.clone(), 0, Access::NONE);
    at_limit(more, "max_mr", 2);
    ep.deregister_region(first.rkey()).unwrap();
    register(&mut ep).unwrap();

    let first = ep.alloc_window(Pd::default(), WindowKind::Type2).unwrap();
    ep.alloc_window(Pd::default(), WindowKind::Type1).unwrap();
    let third = ep.alloc_window(Pd::default(), WindowKind::Type1);
    at_limit(third, "max_mw", 2);
    ep.dealloc_window(first.rkey()).unwrap();
    ep.alloc_window(Pd::default(), WindowKind::Type1).unwrap();

    // The default domain counts, since something is in it.
    let pd = ep.alloc_pd().unwrap();
    at_limit(ep.alloc_pd(), "max_pd", 2);
    at_limit(ep.alloc_pd_as(Pd(77)), "max_pd", 2);
    ep.alloc_pd_as(pd).unwrap();
    ep.dealloc_pd(pd).unwrap();
    ep.alloc_pd_as(Pd(77)).unwrap();
}

#[test]
fn completion_queues_are_counted_by_who_uses_them() {
    let mut ep = device(|d| d.max_cq = 2);
    let cqs = [(); 3].map(|()| Arc::new(CompletionQueue::new(8)));
    let on = |n: u32, a: usize, b: usize| CreateQp::rc(Qpn::new(0x100 + n), &cqs[a], &cqs[b]);
    ep.create_qp(on(0, 0, 1)).unwrap();
    ep.create_qp(on(1, 1, 0)).unwrap();
    at_limit(ep.create_qp(on(2, 0, 2)), "max_cq", 2);
    at_limit(ep.create_qp(on(2, 2, 2)), "max_cq", 2);
    ep.destroy_qp(Qpn::new(0x100)).unwrap();
    at_limit(ep.create_qp(on(2, 2, 2)), "max_cq", 2);
    ep.destroy_qp(Qpn::new(0x101)).unwrap();
    ep.create_qp(on(2, 2, 2)).unwrap();
    // A QP that was refused uses none.
    at_limit(ep.create_qp(on(3, 0, 1)), "max_cq", 2);
    ep.create_qp(on(3, 0, 2)).unwrap();
}

#[test]
fn a_completion_queue_is_at_most_as_deep_as_the_device_says() {
    let mut ep = device(|d| d.max_cqe = 16);
    let create = |n, depth| {
        let cq = Arc::new(CompletionQueue::new(depth));
        (qp(n, &cq), cq)
    };
    for depth in [17, u32::MAX] {
        let (bad, _) = create(0, depth);
        let Err(VerbsError::Exceeds { what, asked, limit }) = ep.create_qp(bad) else {
            panic!("{depth} places");
        };
        assert!(what.contains("max_cqe"));
        assert_eq!((asked, limit), (depth.into(), 16));
    }
    let (good, cq) = create(0, 16);
    ep.create_qp(good).unwrap();
    assert_eq!(cq.capacity(), 16);
    let too_deep = ResizeError::TooDeep {
        asked: 17,
        most: 16,
    };
    assert_eq!(cq.resize(17), Err(too_deep));
    cq.resize(4).unwrap();
    // What counts is how deep it is by then.
    let (bad, cq) = create(1, 16);
    cq.resize(17).unwrap();
    beyond(ep.create_qp(bad.clone()), "max_cqe", 16u32);
    cq.resize(16).unwrap();
    ep.create_qp(bad).unwrap();
    // As advertised by default.
    let mut ep = device(|_| {});
    let most = ep.device_attr().max_cqe;
    let (bad, _) = create(0, most + 1);
    beyond(ep.create_qp(bad), "max_cqe", most);
    let cq = CompletionQueue::new(1);
    let asked = u32::MAX;
    assert_eq!(cq.resize(asked), Err(ResizeError::TooDeep { asked, most }));
}

#[test]
fn shared_receive_queues_are_as_many_as_deep_and_their_lists_as_long_as_the_device_says() {
    let mut ep = device(|d| (d.max_srq, d.max_srq_wr, d.max_srq_sge) = (1, 8, 2));
    let most = SrqAttr {
        num: SrqNum(1),
        pd: Pd::default(),
        max_wr: 8,
        max_sge: 2,
        limit: 0,
    };
    beyond(
        ep.create_srq(&SrqAttr { max_wr: 9, ..most }),
        "max_srq_wr",
        8u32,
    );
    beyond(
        ep.create_srq(&SrqAttr { max_sge: 3, ..most }),
        "max_srq_sge",
        2u32,
    );
    beyond(ep.create_srq(&SrqAttr { limit: 9, ..most }), "limit", 8u32);
    let srq = ep.create_srq(&most).unwrap();
    let num = SrqNum(2);
    at_limit(ep.create_srq(&SrqAttr { num, ..most }), "max_srq", 1);
    ep.destroy_srq(&srq).unwrap();
    ep.create_srq(&SrqAttr { num, ..most }).unwrap();
}

#[test]
fn the_list_of_a_read_is_at_most_as_long_as_the_device_says() {
    let mut config = PairConfig::default();
    config.endpoint[0].limits.max_sge_rd = 2;
    let mut pair = Pair::new(&config);
    let memory = Bytes::filled(64, 0);
    let source = Bytes::of(pattern(64, 4));
    let region = pair.ends[1]
        .endpoint
        .register_memory(source.clone(), 0, Access::REMOTE_READ);
    let rkey = region.unwrap().rkey;
    let wr = |op, n| SendWr::new(WrId(1), op, ranges(&memory, n));
    let sq = pair.ends[0].qp.sq.clone();
    let read = SendOp::Read { va: 0, rkey };
    assert_eq!(sq.post(wr(read, 3)), Err(PostError::TooManySegments(2)));
    pair.post_send(0, wr(read, 2)).unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Read, Status::Success)]
    );
    assert_eq!(memory.copy()[..16], source.copy()[..16]);
    sq.post(wr(SendOp::Send, 3)).unwrap();
}

#[test]
fn a_path_mtu_and_depths_beyond_the_devices_are_refused_with_it() {
    use rocexdp_proto::ids::PathMtu;
    let config = PairConfig::default();
    let mut ep = device(|d| {
        (d.max_rd_atomic, d.max_dest_rd_atomic, d.max_path_mtu) = (3, 5, PathMtu::Mtu1024);
    });
    let cq = Arc::new(CompletionQueue::new(8));
    let qpn = ep.create_qp(qp(0, &cq)).unwrap().qpn;
    let mut to = |t: QpTransition| ep.modify_qp(Timestamp::ZERO, qpn, t);
    let access = Access::NONE;
    to(QpTransition::Init { access }).unwrap();
    let rtr = RtrAttr {
        max_dest_rd_atomic: 5,
        path_mtu: PathMtu::Mtu1024,
        ..rtr(&config, 0)
    };
    let deep = RtrAttr {
        max_dest_rd_atomic: 6,
        ..rtr
    };
    beyond(to(QpTransition::Rtr(deep)), "max_dest_rd_atomic", 5u32);
    let path_mtu = PathMtu::Mtu2048;
    let refused = to(QpTransition::Rtr(RtrAttr { path_mtu, ..rtr })).unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("max_path_mtu") && text.contains("2048") && text.contains("1024"),
        "{text}"
    );
    to(QpTransition::Rtr(rtr)).unwrap();
    let rts = RtsAttr {
        max_rd_atomic: 3,
        ..rts(&config, 0)
    };
    let deep = RtsAttr {
        max_rd_atomic: 4,
        ..rts
    };
    beyond(to(QpTransition::Rts(deep)), "max_rd_atomic", 3u32);
    to(QpTransition::Rts(rts)).unwrap();
}

#[test]
fn a_region_is_at_most_as_long_as_the_device_says() {
    let mut ep = device(|d| d.max_mr_size = 1 << 20);
    let register = |ep: &mut Endpoint, len| {
        ep.register_region(Pd::default(), Arc::new(NoBytes(len)), 0, Access::NONE)
    };
    register(&mut ep, 1 << 20).unwrap();
    beyond(register(&mut ep, (1 << 20) + 1), "max_mr_size", 1u32 << 20);
}

#[test]
fn queues_are_as_deep_and_lists_as_long_as_asked_for_and_no_more_than_the_device_allows() {
    let mut ep = device(|d| {
        (d.max_qp_wr, d.max_sge, d.max_inline) = (8, 3, 64);
    });
    let cq = Arc::new(CompletionQueue::new(8));
    let most = CreateQp {
        max_send: 8,
        max_recv: 8,
        max_send_sge: 3,
        max_recv_sge: 3,
        max_inline: 64,
        ..qp(0, &cq)
    };
    let mut refused = |name, limit: u32, set: fn(&mut CreateQp) -> &mut u32| {
        let mut bad = most.clone();
        *set(&mut bad) += 1;
        beyond(ep.create_qp(bad), name, limit);
    };
    refused("max_qp_wr", 8, |c| &mut c.max_send);
    refused("max_qp_wr", 8, |c| &mut c.max_recv);
    refused("max_sge", 3, |c| &mut c.max_send_sge);
    refused("max_sge", 3, |c| &mut c.max_recv_sge);
    refused("max_inline", 64, |c| &mut c.max_inline);
    let unknown = CreateQp {
        pd: Pd(9),
        ..most.clone()
    };
    assert_eq!(
        ep.create_qp(unknown).unwrap_err(),
        VerbsError::UnknownPd(Pd(9))
    );
    let made = ep.create_qp(most).unwrap();
    assert_eq!((made.sq.capacity(), made.rq.max_sge()), (8, 3));
}

/// A pair whose end 0 takes lists of 3 ranges and 64 bytes inline.
fn small_caps() -> Pair {
    let config = PairConfig::default();
    let mut pair = Pair::new(&config);
    replace_qp(&mut pair, &config, 0, |qp| CreateQp {
        max_send: 2,
        max_send_sge: 3,
        max_recv_sge: 2,
        max_inline: 64,
        ..qp
    });
    pair
}

fn ranges(memory: &Arc<Bytes>, n: u64) -> SgList {
    let all: Vec<_> = (0..n)
        .map(|i| Segment::new(memory.clone(), 8 * i, 8))
        .collect();
    SgList::of(&all)
}

#[test]
fn longer_lists_and_more_inline_data_than_the_queue_was_made_for_are_refused() {
    let mut pair = small_caps();
    let memory = Bytes::of(pattern(64, 2));
    let send = |local: SgList| SendWr::new(WrId(1), SendOp::Send, local);
    let sq = pair.ends[0].qp.sq.clone();
    assert_eq!(
        sq.post(send(ranges(&memory, 4))),
        Err(PostError::TooManySegments(3))
    );
    assert_eq!(
        sq.post(send(SgList::inline(&[1; 65]))),
        Err(PostError::InlineTooLong(64))
    );
    let recv = RecvWr::new(WrId(1), ranges(&memory, 3));
    assert_eq!(
        pair.ends[0].qp.rq.post(recv),
        Err(PostError::TooManySegments(2))
    );
    let inbox = Bytes::filled(128, 0);
    for n in 0..2 {
        pair.post_recv(
            1,
            RecvWr::new(WrId(n), Segment::new(inbox.clone(), 64 * n, 64)),
        )
        .unwrap();
    }
    pair.post_send(0, send(ranges(&memory, 3))).unwrap();
    pair.post_send(0, send(SgList::inline(&[5; 64]))).unwrap();
    assert!(pair.run(LONG));
    assert!(
        outcomes(&mut pair, 0)
            .iter()
            .all(|o| o.2 == Status::Success)
    );
    assert_eq!(inbox.copy()[..24], memory.copy()[..24]);
    assert_eq!(inbox.copy()[64..], [5; 64]);
}

#[test]
fn a_list_of_requests_is_posted_up_to_the_first_that_is_refused() {
    let pair = small_caps();
    let memory = Bytes::filled(64, 0);
    let wr = |n, local| SendWr::new(WrId(n), SendOp::Send, local);
    let sq = &pair.ends[0].qp.sq;
    let bad = [
        wr(1, ranges(&memory, 1)),
        wr(2, ranges(&memory, 4)),
        wr(3, ranges(&memory, 1)),
    ];
    let why = PostError::TooManySegments(3);
    assert_eq!(sq.post_list(bad), Err(ListError { posted: 1, why }));
    assert_eq!(sq.len(), 1);
    let more = (0..3).map(|n| wr(n, ranges(&memory, 1)));
    let why = PostError::Full;
    assert_eq!(sq.post_list(more), Err(ListError { posted: 1, why }));
    let recvs = (0..5).map(|n| RecvWr::new(WrId(n), ranges(&memory, 2)));
    assert_eq!(pair.ends[0].qp.rq.post_list(recvs), Ok(5));
}

#[test]
fn a_queue_that_signals_all_completes_what_was_not_to_be() {
    for signal_all in [false, true] {
        let config = PairConfig::default();
        let mut pair = Pair::new(&config);
        replace_qp(&mut pair, &config, 0, |qp| CreateQp { signal_all, ..qp });
        let (_, region) = common::target(&mut pair, 64);
        let op = common::write_op(&region);
        let wr = SendWr::new(WrId(1), op, SgList::inline(&[1; 8])).unsignaled();
        pair.post_send(0, wr).unwrap();
        assert!(pair.run(LONG));
        let expected: &[_] = if signal_all {
            &[(1, CqeOpcode::Write, Status::Success)]
        } else {
            &[]
        };
        assert_eq!(outcomes(&mut pair, 0), expected);
    }
}

#[test]
fn messages_are_at_most_as_long_as_the_device_says() {
    let mut config = PairConfig::default();
    config.endpoint[0].limits.max_msg_sz = 4096;
    let pair = Pair::new(&config);
    let memory = Arc::new(NoBytes(1 << 20));
    let wr = |len| SendWr::new(WrId(1), SendOp::Send, Segment::new(memory.clone(), 0, len));
    assert_eq!(pair.ends[0].qp.sq.post(wr(4097)), Err(PostError::TooLong));
    pair.ends[0].qp.sq.post(wr(4096)).unwrap();
}

#[test]
fn a_hundred_thousand_keys_are_drawn_and_found() {
    let mut ep = device(|_| {});
    let memory: Arc<NoBytes> = Arc::new(NoBytes(4096));
    let regions: Vec<Arc<Region>> = (0..100_000)
        .map(|_| {
            ep.register_region(Pd::default(), memory.clone(), 0, Access::NONE)
                .unwrap()
        })
        .collect();
    let windows: Vec<Arc<Window>> = (0..2_000)
        .map(|_| ep.alloc_window(Pd::default(), WindowKind::Type2).unwrap())
        .collect();
    let mut keys: Vec<RKey> = regions.iter().map(|r| r.rkey()).collect();
    keys.extend(windows.iter().map(|w| w.rkey()));
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 102_000, "all different");
    assert_ne!(keys[0], RKey(0));
    for r in &regions {
        assert!(
            ep.region(r.rkey())
                .is_some_and(|found| Arc::ptr_eq(found, r))
        );
    }
    // Spread over all 32 bits: each sixteenth holds about its share.
    let share = keys.iter().filter(|k| k.0 >> 28 == 7).count();
    assert!((6_000..6_750).contains(&share), "{share}");
}
