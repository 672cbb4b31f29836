//! Fences, and requests that never leave the host: when their turn comes, and in which order they complete.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::lone::{ACK, ADD, KEY, Lone, READ, WRITE};
use common::send_wr;
use rocexdp_common::opcode::rc;
use rocexdp_proto::ids::{Pd, RKey};
use rocexdp_proto::mem::{Access, MemoryRegion, Window, WindowKind};
use rocexdp_proto::verbs::{CqeOpcode, SendOp, Status};
use rocexdp_sim::pair::Bytes;

#[test]
fn a_fenced_request_waits_for_the_reads_and_atomics_before_it() {
    let mut l = Lone::new();
    l.post(1, READ, 300);
    l.post(2, ADD, 8);
    l.post_fenced(3, WRITE, 8);
    l.post(4, WRITE, 8);
    assert_eq!(
        l.left(),
        [(rc::READ_REQUEST, 0), (rc::FETCH_ADD, 2)],
        "and nothing overtakes it"
    );
    l.responses(0, &[1; 300]);
    assert_eq!(l.left(), []);
    l.atomic_ack(2, ACK, 0);
    assert_eq!(l.left(), [(rc::WRITE_ONLY, 3), (rc::WRITE_ONLY, 4)]);
    l.ack(4, ACK);
    assert_eq!(l.outcomes(), [1, 2, 3, 4].map(|id| (id, Status::Success)));
}

#[test]
fn a_fenced_request_does_not_wait_for_sends_and_writes() {
    let mut l = Lone::new();
    l.post(1, WRITE, 300);
    l.post(2, SendOp::Send, 8);
    l.post_fenced(3, WRITE, 8);
    l.post_fenced(4, READ, 8);
    assert_eq!(l.left().len(), 5);
}

#[test]
fn a_fence_holds_a_read_and_an_atomic_too() {
    for op in [READ, ADD] {
        let mut l = Lone::new();
        l.post(1, READ, 8);
        l.post_fenced(2, op, 8);
        assert_eq!(l.left().len(), 1);
        l.responses(0, &[1; 8]);
        assert_eq!(l.left().len(), 1);
    }
}

#[test]
fn a_fenced_request_that_is_sent_again_does_not_wait_for_what_comes_behind_it() {
    let mut l = Lone::new();
    l.post(1, READ, 8);
    l.post_fenced(2, WRITE, 600);
    l.post(3, READ, 8);
    l.responses(0, &[1; 8]);
    assert_eq!(l.left().len(), 5);
    l.wait(Duration::from_nanos(4096 << 8));
    let again = [
        (rc::WRITE_FIRST, 1),
        (rc::WRITE_MIDDLE, 2),
        (rc::WRITE_LAST, 3),
        (rc::READ_REQUEST, 4),
    ];
    assert_eq!(l.left(), again);
}

/// A region of end 0 that windows may be bound to, and a window of the kind.
fn windowed(l: &mut Lone, kind: WindowKind) -> (MemoryRegion, Arc<Window>) {
    let endpoint = &mut l.pair.ends[0].endpoint;
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let region = endpoint
        .register_memory(Bytes::filled(4096, 0), 0x1000, access)
        .unwrap();
    let window = endpoint.alloc_window(Pd::default(), kind).unwrap();
    (region, window)
}

fn bind(region: &MemoryRegion, window: RKey, rkey: RKey) -> SendOp {
    SendOp::BindMw {
        window,
        rkey,
        region: region.rkey,
        va: region.va,
        len: 64,
        access: Access::REMOTE_READ,
    }
}

#[test]
fn a_local_operation_takes_no_psn_and_completes_in_order() {
    let mut l = Lone::new();
    let (region, window) = windowed(&mut l, WindowKind::Type2);
    let key = RKey(window.rkey().0 ^ 1);
    l.post(1, WRITE, 8);
    l.post_local(2, bind(&region, window.rkey(), key));
    l.post(3, WRITE, 8);
    assert_eq!(l.left(), [(rc::WRITE_ONLY, 0), (rc::WRITE_ONLY, 1)]);
    assert_eq!(window.rkey(), key, "carried out when its turn came");
    assert_eq!(l.outcomes(), [], "the WRITE before it has not completed");
    l.ack(0, ACK);
    assert_eq!(
        l.completions(),
        [
            (1, CqeOpcode::Write, Status::Success),
            (2, CqeOpcode::BindMw, Status::Success)
        ]
    );
    l.ack(1, ACK);
    assert_eq!(l.outcomes(), [(3, Status::Success)]);
    assert_eq!(l.stats().tx_packets, 2);
}

#[test]
fn a_local_operation_with_nothing_before_it_completes_at_once() {
    let mut l = Lone::new();
    let (region, window) = windowed(&mut l, WindowKind::Type2);
    let (old, new) = (window.rkey(), RKey(window.rkey().0 ^ 1));
    l.post_local(1, bind(&region, old, new));
    assert_eq!(l.completions(), [(1, CqeOpcode::BindMw, Status::Success)]);
    l.post_local(2, SendOp::LocalInvalidate(new));
    assert_eq!(
        l.completions(),
        [(2, CqeOpcode::LocalInvalidate, Status::Success)]
    );
    assert_eq!(l.left(), []);
}

#[test]
fn unsignalled_local_operations_complete_in_silence_and_free_their_places() {
    let mut l = Lone::new();
    let (region, window) = windowed(&mut l, WindowKind::Type2);
    let (mut key, depth) = (window.rkey(), l.config.depth as u64);
    for n in 0..3 * depth {
        let new = RKey(key.0 & !0xff | (key.0 + 1) & 0xff);
        for op in [bind(&region, key, new), SendOp::LocalInvalidate(new)] {
            let wr = send_wr(n, op, &Bytes::filled(0, 0), 0).unsignaled();
            l.post_wr(wr);
        }
        key = new;
    }
    assert_eq!(l.outcomes(), []);
    assert!(l.pair.ends[0].qp.sq.is_empty());
}

#[test]
fn a_local_operation_is_not_done_again_when_packets_are_sent_again() {
    let mut l = Lone::new();
    let (region, window) = windowed(&mut l, WindowKind::Type2);
    l.post(1, WRITE, 8);
    // Done twice, this would fail: the window is bound then.
    l.post_local(2, bind(&region, window.rkey(), RKey(window.rkey().0 ^ 1)));
    l.post(3, WRITE, 8);
    l.wait(Duration::from_nanos(4096 << 8));
    assert_eq!(l.left().len(), 4);
    l.ack(1, ACK);
    assert_eq!(l.outcomes(), [1, 2, 3].map(|id| (id, Status::Success)));
}

#[test]
fn a_fenced_bind_waits_for_the_reads_before_it() {
    let mut l = Lone::new();
    let (region, window) = windowed(&mut l, WindowKind::Type2);
    let (old, new) = (window.rkey(), RKey(window.rkey().0 ^ 1));
    l.post(1, READ, 8);
    l.post_wr(send_wr(2, bind(&region, old, new), &Bytes::filled(0, 0), 0).fenced());
    assert_eq!(window.rkey(), old);
    l.responses(0, &[0; 8]);
    assert_eq!(window.rkey(), new);
    assert_eq!(l.outcomes().len(), 2);
}

#[test]
fn a_local_invalidate_waits_for_all_before_it() {
    let mut l = Lone::new();
    let (region, window) = windowed(&mut l, WindowKind::Type2);
    let (old, new) = (window.rkey(), RKey(window.rkey().0 ^ 1));
    l.post_local(1, bind(&region, old, new));
    l.post(2, WRITE, 8);
    l.post_local(3, SendOp::LocalInvalidate(new));
    l.post(4, WRITE, 8);
    assert_eq!(l.left(), [(rc::WRITE_ONLY, 0)]);
    // Sent again, it still waits; nothing overtakes it.
    l.wait(Duration::from_nanos(4096 << 8));
    assert_eq!(l.left(), [(rc::WRITE_ONLY, 0)]);
    assert_eq!(l.outcomes(), [(1, Status::Success)]);
    l.ack(0, ACK);
    assert_eq!(l.outcomes(), [(2, Status::Success), (3, Status::Success)]);
    assert_eq!(l.left(), [(rc::WRITE_ONLY, 1)]);
}

#[test]
fn a_bind_that_is_refused_fails_after_what_was_posted_before() {
    let mut l = Lone::new();
    let (region, _) = windowed(&mut l, WindowKind::Type2);
    l.post(1, WRITE, 8);
    l.post_local(2, bind(&region, KEY, RKey(KEY.0 ^ 1)));
    l.post(3, WRITE, 8);
    assert_eq!(l.left(), [(rc::WRITE_ONLY, 0)], "nothing goes behind it");
    assert_eq!(l.outcomes(), []);
    // What is before it is still sent again.
    l.wait(Duration::from_nanos(4096 << 8));
    assert_eq!(l.left(), [(rc::WRITE_ONLY, 0)]);
    l.ack(0, ACK);
    assert_eq!(
        l.outcomes(),
        [
            (1, Status::Success),
            (2, Status::MwBindErr),
            (3, Status::WrFlushErr)
        ]
    );
    l.assert_failed(Status::MwBindErr);
}

#[test]
fn a_refused_bind_with_nothing_before_it_fails_at_once() {
    let mut l = Lone::new();
    let (region, _) = windowed(&mut l, WindowKind::Type2);
    l.post_local(1, bind(&region, KEY, RKey(KEY.0 ^ 1)));
    assert_eq!(l.outcomes(), [(1, Status::MwBindErr)]);
    l.assert_failed(Status::MwBindErr);
}

#[test]
fn a_local_invalidate_of_what_is_no_bound_window_fails() {
    for which in 0..4 {
        let mut l = Lone::new();
        let (region, window) = windowed(&mut l, WindowKind::Type2);
        let (_, type1) = windowed(&mut l, WindowKind::Type1);
        let key = [window.rkey(), type1.rkey(), region.rkey, RKey(0)][which];
        l.post_local(1, SendOp::LocalInvalidate(key));
        l.post(2, WRITE, 8);
        assert_eq!(
            l.outcomes(),
            [(1, Status::LocQpOpErr), (2, Status::WrFlushErr)]
        );
        l.assert_failed(Status::LocQpOpErr);
    }
}
