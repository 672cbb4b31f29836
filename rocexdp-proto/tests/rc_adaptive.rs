//! The adaptive ACK timeout: follows the round trip, below the connection's own, and gives a peer up no sooner.

mod common;

use std::time::Duration;

use common::lone::{ACK, Lone, READ, WRITE};
use rocexdp_common::opcode::rc;
use rocexdp_proto::verbs::Status;

const FLOOR: Duration = Duration::from_micros(20);
/// ACK timeout of the harness, 4.096 us x 2^8.
const FIXED: Duration = Duration::from_nanos(4096 << 8);

const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// A requester with the adaptive timeout that has measured `n` round trips of 10 us.
fn measured(n: usize) -> Lone {
    let mut l = Lone::with(|c| c.endpoint[0].adaptive_timeout_floor = Some(FLOOR));
    for i in 0..n {
        l.post(i as u64, WRITE, 8);
        l.wait(us(10));
        l.ack(i as i32, ACK);
    }
    assert_eq!(l.outcomes().len(), n);
    l.asked();
    l
}

#[test]
fn before_a_round_trip_is_known_the_connections_timeout_counts() {
    let mut l = measured(0);
    l.post(1, WRITE, 8);
    l.wait(FIXED - us(1));
    assert_eq!(l.left().len(), 1);
    l.wait(us(1));
    assert_eq!(l.left().len(), 1);
}

#[test]
fn a_lost_packet_is_sent_again_after_a_few_round_trips() {
    // After one round trip of R: R + 4 x R/2; after many: the floor.
    for (trips, timeout) in [(1, us(30)), (100, FLOOR)] {
        let mut l = measured(trips);
        l.post(1000, WRITE, 8);
        l.wait(timeout - us(1));
        assert_eq!(l.left().len(), 1, "{trips}");
        l.wait(us(1));
        assert_eq!(l.left(), [(rc::WRITE_ONLY, trips as i32)], "{trips}");
        l.ack(trips as i32, ACK);
        assert_eq!(l.outcomes(), [(1000, Status::Success)]);
    }
}

#[test]
fn each_silence_doubles_it_up_to_the_connections_timeout() {
    let mut l = measured(100);
    l.post(1000, WRITE, 8);
    l.asked();
    for n in 0..6 {
        l.wait(FLOOR * (1 << n) - us(1));
        assert_eq!(l.left(), [], "{n}");
        l.wait(us(1));
        assert_eq!(l.left().len(), 1, "{n}");
    }
    // 20 us x 64 is above it.
    for n in 0..3 {
        l.wait(FIXED - us(1));
        assert_eq!(l.left(), [], "{n}");
        l.wait(us(1));
        assert_eq!(l.left().len(), 1, "{n}");
    }
}

#[test]
fn the_answer_to_what_was_sent_twice_is_no_round_trip() {
    let mut l = measured(100);
    l.post(1000, WRITE, 8);
    l.wait(FLOOR);
    l.wait(us(1));
    l.ack(100, ACK);
    l.asked();
    // Karn: nothing was learned, so the doubled time stays.
    l.post(1001, WRITE, 8);
    l.wait(2 * FLOOR - us(1));
    assert_eq!(l.left().len(), 1);
    // A first answer in time is one, and ends the doubling.
    l.ack(101, ACK);
    l.post(1002, WRITE, 8);
    l.wait(us(10));
    l.ack(102, ACK);
    for i in 0..200 {
        l.post(2000 + i, WRITE, 8);
        l.wait(us(10));
        l.ack(103 + i as i32, ACK);
        l.outcomes();
    }
    l.asked();
    l.post(3000, WRITE, 8);
    l.wait(FLOOR);
    assert_eq!(l.left().len(), 2);
}

#[test]
fn a_silent_peer_is_given_up_no_sooner_than_without_it() {
    for retry_cnt in [0u8, 3] {
        let mut l = Lone::with(|c| {
            c.endpoint[0].adaptive_timeout_floor = Some(FLOOR);
            c.retry_cnt = retry_cnt;
        });
        l.post(0, WRITE, 8);
        l.wait(us(10));
        l.ack(0, ACK);
        l.outcomes();
        let from = l.pair.now();
        l.post(1, WRITE, 8);
        l.pair.run(common::LONG);
        assert_eq!(l.outcomes(), [(1, Status::RetryExcErr)]);
        let took = l.pair.now().saturating_since(from);
        let fixed = FIXED * (u32::from(retry_cnt) + 1);
        assert!(took >= fixed && took < fixed + 2 * FIXED, "{took:?}");
    }
}

#[test]
fn responses_in_progress_restart_it() {
    let mut l = measured(100);
    l.post(1000, READ, 40 * 256);
    for (i, (opcode, part)) in common::lone::message(&[1; 40 * 256])
        .into_iter()
        .enumerate()
    {
        l.wait(us(15));
        l.response(opcode, 100 + i as i32, part);
    }
    assert_eq!(l.outcomes(), [(1000, Status::Success)]);
    assert_eq!(l.left().len(), 1);
    let s = l.stats();
    assert_eq!((s.local_ack_timeout_err, s.retransmitted_packets), (0, 0));
}

#[test]
fn without_the_option_the_round_trip_changes_nothing() {
    let mut l = Lone::new();
    for i in 0..100 {
        l.post(i, WRITE, 8);
        l.wait(us(10));
        l.ack(i as i32, ACK);
    }
    l.asked();
    l.post(1000, WRITE, 8);
    l.wait(FIXED - us(1));
    assert_eq!(l.left().len(), 1);
}
