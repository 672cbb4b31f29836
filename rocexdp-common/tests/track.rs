//! PSN tracking: wrap, loss, repetition, READs, and what is no loss.

mod support;

use rocexdp_common::{
    ids::Psn,
    maps::{QpCounters, Tracker},
    opcode::Position,
    track::{AtGap, read_psns},
};

fn requests(psns: &[u32], at_gap: AtGap) -> QpCounters {
    let mut c = QpCounters::ZERO;
    for psn in psns {
        c.take_request(Psn::new(*psn), Some(1), at_gap);
    }
    c
}

fn tracker(
    expected: u32,
    out_of_sequence: u64,
    gaps: u64,
    missing: u64,
    duplicates: u64,
) -> Tracker {
    Tracker {
        expected_psn: expected,
        valid: 1,
        out_of_sequence,
        gaps,
        missing,
        duplicates,
    }
}

#[test]
fn the_wrap_at_24_bits_is_no_gap_and_no_duplicate() {
    for at_gap in [AtGap::Wait, AtGap::Skip] {
        let c = requests(&[0xff_fffe, 0xff_ffff, 0, 1], at_gap);
        assert_eq!(c.requests, tracker(2, 0, 0, 0, 0));
    }
    // Loss and repetition across it.
    assert_eq!(
        requests(&[0xff_fffe, 1], AtGap::Skip).requests,
        tracker(2, 1, 1, 2, 0)
    );
    assert_eq!(
        requests(&[0xff_ffff, 0, 0xff_ffff], AtGap::Skip).requests,
        tracker(1, 0, 0, 0, 1)
    );
}

#[test]
fn the_first_packet_sets_what_is_expected() {
    assert_eq!(
        requests(&[0x12_3456], AtGap::Wait).requests,
        tracker(0x12_3457, 0, 0, 0, 0)
    );
    let c = QpCounters::ZERO;
    assert_eq!(c.requests.valid, 0);
}

#[test]
fn half_the_window_ahead_is_loss_and_half_behind_is_repetition() {
    let last_ahead = 11 + 0x7f_ffff;
    assert_eq!(
        requests(&[10, last_ahead], AtGap::Wait).requests,
        tracker(11, 1, 1, 0x7f_ffff, 0)
    );
    assert_eq!(
        requests(&[10, last_ahead + 1], AtGap::Wait).requests,
        tracker(11, 0, 0, 0, 1)
    );
}

#[test]
fn a_responder_that_waits_counts_all_behind_the_gap_and_one_gap() {
    // 12 and 13 are lost; go-back-N sends them, and what followed, again.
    let c = requests(&[10, 11, 14, 15, 16], AtGap::Wait);
    assert_eq!((c.requests, c.in_gap), (tracker(12, 3, 1, 2, 0), 1));
    let c = requests(
        &[10, 11, 14, 15, 16, 11, 12, 13, 14, 15, 16, 17],
        AtGap::Wait,
    );
    assert_eq!((c.requests, c.in_gap), (tracker(18, 3, 1, 2, 1), 0));
    // The retransmission is lost in part, too: a second gap.
    let c = requests(&[10, 12, 11, 13, 14], AtGap::Wait);
    assert_eq!((c.requests, c.in_gap), (tracker(12, 3, 2, 2, 0), 1));
}

#[test]
fn an_observer_goes_on_behind_the_gap_and_sees_the_retransmission_as_repetition() {
    let c = requests(&[10, 11, 14, 15, 12, 13, 14, 15, 16], AtGap::Skip);
    assert_eq!((c.requests, c.in_gap), (tracker(17, 1, 1, 2, 4), 0));
}

#[test]
fn a_read_takes_as_many_psns_as_its_response_has_packets() {
    for (length, path_mtu, expected) in [
        (0, 1024, Some(1)),
        (1, 1024, Some(1)),
        (1024, 1024, Some(1)),
        (1025, 1024, Some(2)),
        (4096, 256, Some(16)),
        (4097, 256, Some(17)),
        (1 << 31, 256, Some(1 << 23)),
        (u32::MAX, 4096, Some(1 << 20)),
        // Unknown path MTU: certain only while one packet is enough for the smallest.
        (256, 0, Some(1)),
        (257, 0, None),
    ] {
        assert_eq!(
            read_psns(length, path_mtu),
            expected,
            "{length} B at {path_mtu}"
        );
    }
    let mut c = requests(&[0xff_fffd], AtGap::Wait);
    c.take_request(Psn::new(0xff_fffe), read_psns(5000, 1024), AtGap::Wait);
    assert_eq!(c.requests, tracker(3, 0, 0, 0, 0));
    c.take_request(Psn::new(3), Some(1), AtGap::Wait);
    assert_eq!(c.requests, tracker(4, 0, 0, 0, 0));
    // The same READ again repeats, and does not advance.
    c.take_request(Psn::new(0xff_fffe), read_psns(5000, 1024), AtGap::Wait);
    assert_eq!(c.requests, tracker(4, 0, 0, 0, 1));
    // Of a READ of unknown extent the next packet is believed.
    c.take_request(Psn::new(4), None, AtGap::Skip);
    c.take_request(Psn::new(90), Some(1), AtGap::Skip);
    assert_eq!(c.requests, tracker(91, 0, 0, 0, 1));
}

fn responses(packets: &[(u32, Position)], at_gap: AtGap) -> QpCounters {
    let mut c = QpCounters::ZERO;
    for (psn, position) in packets {
        c.take_response(Psn::new(*psn), *position, at_gap);
    }
    c
}

#[test]
fn psns_of_writes_between_two_reads_are_not_missing_responses() {
    use Position::{First, Last, Middle, Only};
    for at_gap in [AtGap::Wait, AtGap::Skip] {
        let c = responses(
            &[
                (10, First),
                (11, Middle),
                (12, Last),
                (20, Only),
                (31, First),
                (32, Last),
            ],
            at_gap,
        );
        assert_eq!((c.responses, c.response_open), (tracker(33, 0, 0, 0, 0), 0));
    }
}

#[test]
fn a_response_missing_within_a_message_is_a_gap() {
    use Position::{First, Last, Middle, Only};
    let lost = [(10, First), (12, Middle), (13, Last), (14, Only)];
    let c = responses(&lost, AtGap::Wait);
    assert_eq!(
        (c.responses, c.response_in_gap),
        (tracker(11, 3, 1, 1, 0), 1)
    );
    // Asked for again from the missing packet on: it may come as FIRST or ONLY.
    let mut c = c;
    for (psn, position) in [(11, First), (12, Middle), (13, Last), (14, Only)] {
        c.take_response(Psn::new(psn), position, AtGap::Wait);
    }
    assert_eq!(
        (c.responses, c.response_in_gap, c.response_open),
        (tracker(15, 3, 1, 1, 0), 0, 0)
    );
    let c = responses(&lost, AtGap::Skip);
    assert_eq!(
        (c.responses, c.response_in_gap),
        (tracker(15, 1, 1, 1, 0), 0)
    );
    // The end of one is lost, and another begins.
    let c = responses(&[(10, First), (12, Only), (13, Only)], AtGap::Skip);
    assert_eq!(c.responses, tracker(14, 1, 1, 1, 0));
    // A repeated packet leaves the message open.
    let c = responses(&[(10, First), (9, Last), (12, Last)], AtGap::Skip);
    assert_eq!(c.responses, tracker(13, 1, 1, 1, 1));
}

#[test]
fn resynchronising_ends_gaps_and_sets_both_streams() {
    let mut c = requests(&[1, 5], AtGap::Wait);
    c.take_response(Psn::new(7), Position::First, AtGap::Wait);
    c.take_response(Psn::new(9), Position::Last, AtGap::Wait);
    assert_eq!((c.in_gap, c.response_in_gap, c.response_open), (1, 1, 1));
    c.resync(3, Psn::new(100), Psn::new(200));
    assert_eq!(
        (c.in_gap, c.response_in_gap, c.response_open, c.resync_seen),
        (0, 0, 0, 3)
    );
    assert_eq!(
        (c.requests.expected_psn, c.responses.expected_psn),
        (100, 200)
    );
    // What was counted stays.
    assert_eq!(
        (c.requests.out_of_sequence, c.responses.out_of_sequence),
        (1, 1)
    );
}
