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

/// WRITEs of 4 B to end 1, by distance from the first PSN; `batch` lets them all arrive before end 1 gets to answer.
fn arrive(distances: &[i32], asking: bool, batch: bool) -> Vec<(i32, Syndrome)> {
    let config = PairConfig {
        path_mtu: PathMtu::Mtu256,
        ..PairConfig::default()
    };
    let mut pair = Pair::new(&config);
    let (_, region) = target(&mut pair, 64);
    pair.capture();
    for d in distances {
        let mut craft =
            Craft::new(0, rc::WRITE_ONLY, FIRST.add(*d as u32)).reth(region.va, region.rkey.0, 4);
        craft.bth.ack_req = asking;
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
fn a_nak_that_has_not_left_when_the_gap_is_filled_never_leaves() {
    assert_eq!(arrive(&[0, 2, 1], false, true), []);
    assert_eq!(arrive(&[0, 2, 1], true, true), [(1, ACK)]);
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
