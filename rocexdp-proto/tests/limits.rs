//! The limits of the device are those that it advertises: at each one more is refused, by name, and the last one works.

mod common;

use std::sync::Arc;

use common::{LONG, outcomes, pattern, replace_qp};
use rocexdp_proto::ids::{Pd, Qpn, RKey, WrId};
use rocexdp_proto::mem::{Access, Region, Segment, SgList, Window, WindowKind};
use rocexdp_proto::verbs::{
    CompletionQueue, CqeOpcode, ListError, PostError, RecvWr, SendOp, SendWr, Status,
};
use rocexdp_proto::{CreateQp, DeviceAttr, Endpoint, EndpointConfig, VerbsError};
use rocexdp_sim::memory::NoBytes;
use rocexdp_sim::pair::{Bytes, Pair, PairConfig};

fn device(change: impl FnOnce(&mut DeviceAttr)) -> Endpoint {
    let mut config = EndpointConfig::default();
    change(&mut config.limits);
    let ep = Endpoint::new(config.clone(), 1);
    assert_eq!(*ep.device_attr(), config.limits, "advertised as configured");
    ep
}

fn at_limit<T: core::fmt::Debug>(result: Result<T, VerbsError>, most: u64) {
    match result {
        Err(VerbsError::Limit { limit, .. }) => assert_eq!(limit, most),
        other => panic!("{other:?}"),
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
    at_limit(ep.create_qp(qp(2, &cq)), 2);
    ep.destroy_qp(Qpn::new(0x100)).unwrap();
    ep.create_qp(qp(2, &cq)).unwrap();

    let memory = Bytes::filled(8, 0);
    let register =
        |ep: &mut Endpoint| ep.register_region(Pd::default(), memory.clone(), 0, Access::NONE);
    let first = register(&mut ep).unwrap();
    register(&mut ep).unwrap();
    at_limit(register(&mut ep), 2);
    ep.deregister_region(first.rkey()).unwrap();
    register(&mut ep).unwrap();

    let first = ep.alloc_window(Pd::default(), WindowKind::Type2).unwrap();
    ep.alloc_window(Pd::default(), WindowKind::Type1).unwrap();
    at_limit(ep.alloc_window(Pd::default(), WindowKind::Type1), 2);
    ep.dealloc_window(first.rkey()).unwrap();
    ep.alloc_window(Pd::default(), WindowKind::Type1).unwrap();

    // The default domain counts, since something is in it.
    let pd = ep.alloc_pd().unwrap();
    at_limit(ep.alloc_pd(), 2);
    at_limit(ep.alloc_pd_as(Pd(77)), 2);
    ep.alloc_pd_as(pd).unwrap();
    ep.dealloc_pd(pd).unwrap();
    ep.alloc_pd_as(Pd(77)).unwrap();
}

#[test]
fn a_region_is_at_most_as_long_as_the_device_says() {
    let mut ep = device(|d| d.max_mr_size = 1 << 20);
    let register = |ep: &mut Endpoint, len| {
        ep.register_region(Pd::default(), Arc::new(NoBytes(len)), 0, Access::NONE)
    };
    register(&mut ep, 1 << 20).unwrap();
    at_limit(register(&mut ep, (1 << 20) + 1), 1 << 20);
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
    for bad in [
        CreateQp {
            max_send: 9,
            ..most.clone()
        },
        CreateQp {
            max_recv: 9,
            ..most.clone()
        },
        CreateQp {
            max_send_sge: 4,
            ..most.clone()
        },
        CreateQp {
            max_recv_sge: 4,
            ..most.clone()
        },
        CreateQp {
            max_inline: 65,
            ..most.clone()
        },
    ] {
        let refused = ep.create_qp(bad).unwrap_err();
        assert!(
            matches!(refused, VerbsError::InvalidAttr { .. }),
            "{refused}"
        );
    }
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
