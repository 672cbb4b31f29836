//! Selective repeat of answers: READ responses and atomics that are lost, late or out of order, what may be seen of them when, and
//! RNR NAKs that are lost or late.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use common::{LONG, outcomes, pattern, recv_wr, send_wr, stats, target, write_op};
use rocexdp_common::opcode::{Opcode, Operation};
use rocexdp_proto::SelectiveRepeat;
use rocexdp_proto::ids::{PathMtu, WrId};
use rocexdp_proto::mem::{Access, MemoryRegion, Segment};
use rocexdp_proto::verbs::{CqeOpcode, SendOp, SendWr, Status};
use rocexdp_sim::pair::{Bytes, Fate, Pair, PairConfig};

const MTU: usize = 256;

fn config(paths: u8) -> PairConfig {
    PairConfig {
        path_mtu: PathMtu::Mtu256,
        selective: Some(SelectiveRepeat { paths }),
        // 67 ms: whoever waits for it fails the test by its time.
        timeout: 14,
        ..PairConfig::default()
    }
}

/// A packet that carries data or a result back.
fn is_answer(opcode: Opcode) -> bool {
    matches!(
        opcode.decode(),
        Some((Operation::ReadResponse | Operation::AtomicAcknowledge, _))
    )
}

/// A pair whose way is known already: one WRITE has gone there and back, with the first PSN.
fn pair(config: &PairConfig) -> Pair {
    let mut pair = Pair::new(config);
    let (_, region) = target(&mut pair, 4);
    let four = Bytes::of(pattern(4, 1));
    pair.post_send(0, send_wr(99, write_op(&region), &four, 4))
        .unwrap();
    assert!(pair.run_until_completions(0, 1, LONG));
    pair.completions(0);
    pair.capture();
    pair
}

/// Memory of `len` bytes that end 0 may read and change at end 1.
fn source(pair: &mut Pair, len: usize) -> (Arc<Bytes>, MemoryRegion) {
    let memory = Bytes::of(pattern(len, 3));
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let ep = &mut pair.ends[1].endpoint;
    let region = ep
        .register_memory(memory.clone(), 0x10_0000, access)
        .unwrap();
    (memory, region)
}

/// READs that fetch all of a region in messages of `each` bytes.
fn post_reads(pair: &mut Pair, region: &MemoryRegion, inbox: &Arc<Bytes>, len: usize, each: usize) {
    for n in 0..len / each {
        let at = (n * each) as u64;
        let op = SendOp::Read {
            va: region.va + at,
            rkey: region.rkey,
        };
        let local = Segment::new(inbox.clone(), at, each as u32);
        pair.post_send(0, SendWr::new(WrId(n as u64), op, local))
            .unwrap();
    }
}

/// READs `len` bytes in messages of `each`. What `lost` names is lost: end, packets behind the first one of the READs, whether it
/// is an answer. Gives how often each response was sent, and how long it took.
fn read_with(
    config: &PairConfig,
    len: usize,
    each: usize,
    mut lost: impl FnMut(usize, i32, bool) -> bool + 'static,
) -> (BTreeMap<i32, usize>, Duration) {
    let mut pair = pair(config);
    let (memory, region) = source(&mut pair, len);
    let first = config.psn[0].add(1);
    pair.script = Some(Box::new(move |end, _, bth, _| {
        if lost(end, bth.psn.diff(first), is_answer(bth.opcode)) {
            Fate::Drop
        } else {
            Fate::Pass
        }
    }));
    let inbox = Bytes::filled(len, 0);
    let begun = pair.now();
    post_reads(&mut pair, &region, &inbox, len, each);
    let messages = len / each;
    assert!(pair.run_until_completions(0, messages, LONG));
    let took = pair.now().saturating_since(begun);
    pair.run(Duration::from_millis(10));
    let all = (0..messages as u64).map(|n| (n, CqeOpcode::Read, Status::Success));
    assert_eq!(outcomes(&mut pair, 0), all.collect::<Vec<_>>());
    assert!(inbox.copy() == memory.copy());
    let mut sent = BTreeMap::new();
    for s in pair.sent.iter().filter(|s| is_answer(s.bth.opcode)) {
        *sent.entry(s.bth.psn.diff(first)).or_default() += 1;
    }
    (sent, took)
}

#[test]
fn a_lost_response_is_sent_again_alone_and_without_a_timer() {
    for paths in [1, 4] {
        for lost in [0, 1, 20, 38] {
            let mut left = 1;
            let (sent, took) =
                read_with(&config(paths), 64 * MTU, 16 * MTU, move |end, at, own| {
                    let hit = end == 1 && own && at == lost && left > 0;
                    left -= i32::from(hit);
                    hit
                });
            let twice: Vec<_> = sent.iter().filter(|(_, n)| **n != 1).collect();
            assert_eq!(twice, [(&lost, &2)], "{paths} paths");
            assert_eq!(sent.len(), 64);
            assert!(took < Duration::from_micros(100), "{lost}: {took:?}");
        }
    }
}

#[test]
fn a_response_that_is_lost_again_is_found_by_what_was_sent_after_it() {
    let mut left = 3;
    let (sent, took) = read_with(&config(1), 160 * MTU, 40 * MTU, move |end, at, own| {
        let hit = end == 1 && own && at == 5 && left > 0;
        left -= i32::from(hit);
        hit
    });
    assert_eq!(sent.get(&5), Some(&4));
    assert!(sent.iter().all(|(at, n)| *at == 5 || *n == 1), "{sent:?}");
    assert!(took < Duration::from_micros(200), "{took:?}");
}

#[test]
fn the_lost_end_of_a_read_is_asked_for_again_and_nothing_else_of_it() {
    let mut left = 2;
    let (sent, took) = read_with(&config(1), 16 * MTU, 16 * MTU, move |end, at, own| {
        let hit = end == 1 && own && at == 15 && left > 0;
        left -= i32::from(hit);
        hit
    });
    assert!(
        sent.iter()
            .all(|(at, n)| *n == if *at == 15 { 3 } else { 1 }),
        "{sent:?}"
    );
    assert!(took < Duration::from_millis(1), "{took:?}");
}

#[test]
fn a_lost_read_request_is_found_by_later_ones_and_what_they_brought_is_not_asked_for_again() {
    let mut left = 1;
    let (sent, took) = read_with(&config(1), 64 * MTU, 8 * MTU, move |end, at, own| {
        let hit = end == 0 && !own && at == 16 && left > 0;
        left -= i32::from(hit);
        hit
    });
    assert!(sent.values().all(|n| *n == 1), "{sent:?}");
    assert!(took < Duration::from_micros(100), "{took:?}");
}

#[test]
fn responses_are_spread_over_the_paths_and_their_reordering_is_no_loss() {
    let config = config(4);
    let mut pair = pair(&config);
    let len = 256 * MTU;
    let (memory, region) = source(&mut pair, len);
    let port = |frame: &[u8]| u16::from_be_bytes([frame[34], frame[35]]);
    let mut ports: Vec<u16> = Vec::new();
    // Path n is late by n times 7 us.
    pair.script = Some(Box::new(move |end, _, bth, frame| {
        if end == 0 || !is_answer(bth.opcode) {
            return Fate::Pass;
        }
        let port = port(frame);
        let n = ports.iter().position(|p| *p == port).unwrap_or_else(|| {
            ports.push(port);
            ports.len() - 1
        });
        Fate::Late(Duration::from_micros(7 * n as u64))
    }));
    let inbox = Bytes::filled(len, 0);
    post_reads(&mut pair, &region, &inbox, len, 64 * MTU);
    assert!(pair.run_until_completions(0, 4, LONG));
    assert!(inbox.copy() == memory.copy());
    let answers = || pair.sent.iter().filter(|s| is_answer(s.bth.opcode));
    assert_eq!(answers().count(), 256, "nothing was sent twice");
    assert_eq!(
        answers()
            .map(|s| port(&s.frame))
            .collect::<BTreeSet<_>>()
            .len(),
        4
    );
    assert_eq!(stats(&pair, 0).retransmitted_packets, 0);
}

#[test]
fn nothing_of_a_later_read_is_seen_before_all_of_an_earlier_one() {
    let config = config(1);
    let mut pair = pair(&config);
    let len = 16 * MTU;
    let (memory, region) = source(&mut pair, len);
    let first = config.psn[0].add(1);
    // Response 3 of the first READ never comes.
    pair.script = Some(Box::new(move |end, _, bth, _| {
        let hit = end == 1 && is_answer(bth.opcode) && bth.psn.diff(first) == 3;
        if hit { Fate::Drop } else { Fate::Pass }
    }));
    let inbox = Bytes::filled(len, 0);
    post_reads(&mut pair, &region, &inbox, len, 8 * MTU);
    pair.run(Duration::from_micros(300));
    let (seen, bytes) = (inbox.copy(), memory.copy());
    for packet in 0..16 {
        let part = packet * MTU..(packet + 1) * MTU;
        let placed = packet < 7 && packet != 3;
        assert_eq!(seen[part.clone()] == bytes[part], placed, "packet {packet}");
    }
    assert_eq!(outcomes(&mut pair, 0), []);
    // Given up, nothing is placed any more.
    pair.ends[0]
        .endpoint
        .modify_qp(
            pair.now(),
            rocexdp_sim::pair::QPNS[0],
            rocexdp_proto::QpTransition::Err,
        )
        .unwrap();
    pair.script = None;
    pair.run(Duration::from_millis(10));
    assert_eq!(inbox.copy(), seen);
}

#[test]
fn atomics_whose_answers_are_lost_are_executed_once_and_answered_without_the_timer() {
    for paths in [1, 3] {
        let config = config(paths);
        let mut pair = pair(&config);
        let (memory, region) = source(&mut pair, 8);
        let start = u64::from_ne_bytes(memory.copy().try_into().unwrap());
        let mut n = 0;
        // Every other answer is lost, also of those that come again.
        pair.script = Some(Box::new(move |end, _, bth, _| {
            n += i32::from(end == 1 && is_answer(bth.opcode));
            let hit = end == 1 && is_answer(bth.opcode) && n % 2 == 0;
            if hit { Fate::Drop } else { Fate::Pass }
        }));
        let inbox = Bytes::filled(8 * 40, 0);
        for i in 0..40u64 {
            let op = SendOp::FetchAdd {
                va: region.va,
                rkey: region.rkey,
                add: 1,
            };
            let local = Segment::new(inbox.clone(), 8 * i, 8);
            pair.post_send(0, SendWr::new(WrId(i), op, local)).unwrap();
        }
        assert!(pair.run_until_completions(0, 40, LONG));
        assert!(pair.now().as_nanos() < 5_000_000, "{}", pair.now());
        for (i, word) in inbox.copy().chunks(8).enumerate() {
            let word = u64::from_ne_bytes(word.try_into().unwrap());
            assert_eq!(word, start.wrapping_add(i as u64));
        }
        let end = u64::from_ne_bytes(memory.copy().try_into().unwrap());
        assert_eq!(end, start.wrapping_add(40));
    }
}

#[test]
fn a_rnr_nak_of_a_transmission_that_a_probe_has_followed_uses_up_no_retry() {
    let config = PairConfig {
        rnr_retry: 0,
        ..config(1)
    };
    let mut pair = pair(&config);
    // The NAK is late; meanwhile a probe finds the receiver ready.
    pair.script = Some(Box::new(|end, _, bth, frame| {
        let rnr = end == 1 && bth.opcode.standard() == rocexdp_common::opcode::rc::ACKNOWLEDGE;
        // IPv4, UDP, BTH: then the AETH.
        if rnr && frame[54] >> 5 == 1 {
            return Fate::Late(Duration::from_micros(400));
        }
        Fate::Pass
    }));
    let bytes = Bytes::of(pattern(MTU, 1));
    pair.post_send(0, send_wr(0, SendOp::Send, &bytes, MTU))
        .unwrap();
    pair.run(Duration::from_micros(10));
    let inbox = Bytes::filled(MTU, 0);
    pair.post_recv(1, recv_wr(5, &inbox, MTU)).unwrap();
    assert!(pair.run_until_completions(0, 1, LONG));
    pair.post_send(0, send_wr(1, SendOp::Send, &bytes, MTU))
        .unwrap();
    pair.post_recv(1, recv_wr(6, &inbox, MTU)).unwrap();
    pair.run(Duration::from_millis(5));
    assert_eq!(
        outcomes(&mut pair, 0),
        [0, 1].map(|id| (id, CqeOpcode::Send, Status::Success))
    );
    assert_eq!(stats(&pair, 1).tx_rnr_naks, 1);
}

#[test]
fn a_lost_rnr_nak_is_found_without_the_ack_timer() {
    for held in [false, true] {
        let config = config(1);
        let mut pair = pair(&config);
        let (_, region) = target(&mut pair, 8 * MTU);
        let first = config.psn[0].add(1);
        let (mut writes, mut naks) = (i32::from(held), 1);
        // With `held`, the SEND comes ahead of a lost packet, and is refused in its turn.
        pair.script = Some(Box::new(move |end, _, bth, frame| {
            let psn = bth.psn.diff(first);
            let write = end == 0 && psn == 2 && writes > 0;
            let ack = bth.opcode.standard() == rocexdp_common::opcode::rc::ACKNOWLEDGE;
            let nak = end == 1 && ack && frame[54] >> 5 == 1 && naks > 0;
            writes -= i32::from(write);
            naks -= i32::from(nak);
            if write || nak { Fate::Drop } else { Fate::Pass }
        }));
        let bytes = Bytes::of(pattern(8 * MTU, 1));
        let begun = pair.now();
        pair.post_send(0, send_wr(0, write_op(&region), &bytes, 8 * MTU))
            .unwrap();
        pair.post_send(0, send_wr(1, SendOp::Send, &bytes, MTU))
            .unwrap();
        pair.run(Duration::from_micros(500));
        let inbox = Bytes::filled(MTU, 0);
        pair.post_recv(1, recv_wr(5, &inbox, MTU)).unwrap();
        assert!(pair.run_until_completions(0, 2, LONG));
        let took = pair.now().saturating_since(begun);
        assert!(took < Duration::from_millis(5), "{held}: {took:?}");
        assert!(stats(&pair, 0).rnr_naks_received >= 1);
    }
}
