//! Keeps an observer's PSN trackers on their streams.
//!
//! An endpoint resynchronises its QPs' trackers ([`crate::maps::QpConfig::resync`]); for a flow that is not ours nobody does, in
//! its own table of such flows ([`crate::verdict`]) as little as in the monitor's ([`crate::watch`]), and nothing there checks
//! the ICRC. One corrupt PSN ahead would make everything behind it a duplicate, for up to 2^23
//! packets, and so would a QP number that is used again with another first PSN. Two rules:
//!
//! 1. A packet farther from the expected PSN than [`FAR`], which no window spans, moves nothing; [`RUN`] of them in order
//!    with one another do: the stream starts there, with no gap.
//! 2. After a jump ahead of more than [`NEAR`] the stream goes back to where it was when its next packets stand there:
//!    the packet that jumped was corrupt, or was the last of what a go-back-N repeats.

use crate::{
    ids::Psn,
    maps::{FlowState, Stray, Tracker},
    opcode::{Operation, Position, Transport},
    parse::Packet,
};

/// Packets that no retransmission window spans.
pub const FAR: i32 = 1 << 16;
/// A jump of so many is over soon even if it was wrong.
pub const NEAR: i32 = 64;
/// Packets in order with one another that make a new stream.
pub const RUN: u32 = 4;

/// Count it as it is.
const NORMAL: u32 = 0;
/// The stream is here now.
const RESTART: u32 = 1;
/// Not of this stream, as far as is known.
const HOLD: u32 = 2;

/// What was decided about a packet's PSN, and what is to be put back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Notes {
    step: u32,
    response: u32,
    expected_psn: u32,
    in_gap: u32,
    response_open: u32,
}

impl Stray {
    /// Judges a packet before it is counted. `free`: a READ response that may stand ahead without a gap.
    #[inline(always)]
    fn step(&mut self, tracker: &mut Tracker, psn: Psn, free: bool) -> u32 {
        let expected = Psn::new(tracker.expected_psn);
        let distance = psn.diff(expected);
        if tracker.valid == 0 || distance == 0 {
            self.run = 0;
            self.jumped = 0;
            return NORMAL;
        }
        if distance < -FAR || (distance > FAR && !free) {
            let step = psn.diff(Psn::new(self.next_psn));
            let follows = self.run != 0 && (0..=FAR).contains(&step);
            self.run = if follows { self.run + 1 } else { 1 };
            self.next_psn = psn.add(1).get();
            if self.run < RUN {
                return HOLD;
            }
            self.run = 0;
            self.jumped = 0;
            return RESTART;
        }
        self.run = 0;
        if self.jumped != 0 && distance < -NEAR {
            let before = Psn::new(self.before_psn);
            let step = psn.diff(before);
            if (0..=NEAR).contains(&step) {
                self.jumped = 0;
                // The jump stood in the place of one packet: not all that it seemed to skip is missing.
                let skipped = expected.diff(before) as u64;
                if step == 1 && !free && skipped > 2 && tracker.missing >= skipped - 1 {
                    tracker.missing -= skipped - 2;
                }
                return RESTART;
            }
        }
        if distance > NEAR {
            self.before_psn = expected.get();
            self.jumped = 1;
        }
        NORMAL
    }
}

/// Decides about a packet before it is counted in its flow.
#[inline(never)]
pub fn judge(flow: &mut FlowState, packet: &Packet, notes: &mut Notes) {
    notes.step = NORMAL;
    if !matches!(
        packet.bth.opcode.service(),
        Transport::Rc | Transport::Uc | Transport::Xrc
    ) {
        return;
    }
    let counters = &mut flow.counters;
    let [requests, responses] = &mut flow.stray;
    match packet.operation {
        None | Some((Operation::Acknowledge | Operation::AtomicAcknowledge, _)) => return,
        Some((Operation::ReadResponse, position)) => {
            let begins = matches!(position, Position::First | Position::Only);
            let free = begins && counters.response_open == 0;
            let tracker = &mut counters.responses;
            notes.step = responses.step(tracker, packet.bth.psn, free);
            notes.response = 1;
            notes.expected_psn = tracker.expected_psn;
            notes.in_gap = counters.response_in_gap;
            notes.response_open = counters.response_open;
        }
        Some(_) => {
            let tracker = &mut counters.requests;
            notes.step = requests.step(tracker, packet.bth.psn, false);
            notes.response = 0;
            notes.expected_psn = tracker.expected_psn;
            notes.in_gap = counters.in_gap;
        }
    }
    // The tracker then takes the packet as the first of its stream.
    if notes.step != NORMAL {
        if notes.response != 0 {
            counters.responses.valid = 0;
        } else {
            counters.requests.valid = 0;
        }
    }
}

/// Puts back what a packet that was not of the stream has moved.
#[inline(always)]
pub fn settle(flow: &mut FlowState, notes: &Notes) {
    if notes.step != HOLD {
        return;
    }
    let counters = &mut flow.counters;
    let tracker = if notes.response != 0 {
        counters.response_in_gap = notes.in_gap;
        counters.response_open = notes.response_open;
        &mut counters.responses
    } else {
        counters.in_gap = notes.in_gap;
        &mut counters.requests
    };
    tracker.expected_psn = notes.expected_psn;
    tracker.valid = 1;
}
