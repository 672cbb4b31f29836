//! What the responder owes when packets come early, late and twice, one by one and within one batch.

mod common;

use common::{Craft, LONG, answers, target};
use rocexdp_common::headers::Syndrome;
use rocexdp_common::opcode::rc;
use rocexdp_proto::ids::{PathMtu, Psn};
use rocexdp_sim::pair::{Pair, PairConfig};

const FIRST: Psn = Psn::new(0xff_fff0);
const ACK: Syndrome = Syndrome::Ack(0x1f);
const NAK: Syndrome = Syndrome::NakSequence;

/// As [`arrive_asking`], all asking or none.
fn arrive(distances: &[i32], asking: bool, batch: bool) -> Vec<(i32, Syndrome)> {
    let packets: Vec<_> = distances.iter().map(|d| (*d, asking)).collect();
    arrive_asking(&packets, batch)
}

/// WRITEs of 4 B to end 1, by distance from the first PSN, with or without AckReq; `batch` lets them all arrive before end 1
/// gets to answer.
fn arrive_asking(packets: &[(i32, bool)], batch: bool) -> Vec<(i32, Syndrome)> {
    let config = PairConfig {
        path_mtu: PathMtu::Mtu256,
        ..PairConfig::default()
    };
    let mut pair = Pair::new(&config);
    let (_, region) = target(&mut pair, 64);
    pair.capture();
    for (d, asking) in packets {
        let mut craft =
            Craft::new(0, rc::WRITE_ONLY, FIRST.add(*d as u32)).reth(region.va, region.rkey.0, 4);
        craft.bth.ack_req = *asking;
        pair.inject(1, craft.payload(&[1; 4]).frame(&config, 0));
        if !batch {
            assert!(pair.run(LONG));
        }
    }
    assert!(pair.run(LONG));
    answers(&pair.sent, 1)
        .iter()
        .map(|(psn, s)| (psn.diff(FIRST), *s))
        .collect()
}

#[test]
fn one_nak_for_all_that_comes_behind_a_gap() {
    assert_eq!(arrive(&[0, 2, 3, 4, 9, 2], false, false), [(1, NAK)]);
    assert_eq!(
        arrive(&[0, 2, 3, 4, 9, 2], true, false),
        [(0, ACK), (1, NAK)]
    );
    assert_eq!(
        arrive(&[0, 2, 3, 4, 9, 2], true, true),
        [(1, NAK)],
        "a NAK acknowledges what is before it"
    );
}

#[test]
fn the_next_gap_gets_a_nak_of_its_own() {
    assert_eq!(
        arrive(&[0, 2, 1, 4, 5, 2], false, false),
        [(1, NAK), (2, NAK)]
    );
    assert_eq!(
        arrive(&[0, 2, 1, 2, 4, 3, 4], false, false),
        [(1, NAK), (3, NAK)]
    );
}

#[test]
fn a_duplicate_does_not_hide_a_nak_that_has_not_left() {
    assert_eq!(arrive(&[0, 2, 0], false, true), [(1, NAK)]);
    assert_eq!(arrive(&[0, 2, 0], false, false), [(1, NAK), (0, ACK)]);
}

#[test]
fn a_nak_that_has_not_left_when_the_gap_is_filled_names_the_next_packet_that_was_dropped() {
    for asking in [false, true] {
        assert_eq!(arrive(&[0, 2, 1], asking, true), [(2, NAK)]);
        assert_eq!(arrive(&[0, 4, 1, 2], asking, true), [(3, NAK)]);
        assert_eq!(arrive(&[0, 3, 1, 4, 2], asking, true), [(3, NAK)]);
    }
}

#[test]
fn an_ack_that_was_owed_before_a_gap_is_not_lost_with_the_nak() {
    // Packet 126 does not ask, 128 fills the window and asks, 127 comes late: 128 has to come again.
    assert_eq!(
        arrive_asking(&[(0, false), (2, true), (1, false)], true),
        [(2, NAK)]
    );
    // All of it comes after all, before anything was said: whoever asked, before the gap or behind it, is answered.
    for who in 0..4 {
        let packets = [0, 2, 1, 2].map(|d| (d, false));
        let mut packets = packets.to_vec();
        packets[who].1 = true;
        assert_eq!(arrive_asking(&packets, true), [(2, ACK)], "{who}");
    }
    assert_eq!(arrive(&[0, 2, 1, 2], false, true), [], "nobody asked");
}

#[test]
fn once_the_nak_has_left_the_packets_that_come_again_are_not_reported_again() {
    assert_eq!(
        arrive(&[0, 4, 1, 2, 3, 4], false, false),
        [(1, NAK)],
        "no NAK for each of them"
    );
    assert_eq!(
        arrive(&[0, 4, 1, 3, 4, 3], false, false),
        [(1, NAK), (2, NAK)],
        "but one if one of them is lost"
    );
}

#[test]
fn half_of_all_psns_are_behind_and_half_ahead() {
    assert_eq!(
        arrive(&[0, 1 + 0x7f_ffff], false, false),
        [(1, NAK)],
        "the farthest ahead"
    );
    assert_eq!(
        arrive(&[0, 1 + 0x80_0000], false, false),
        [(0, ACK)],
        "the farthest behind"
    );
}
