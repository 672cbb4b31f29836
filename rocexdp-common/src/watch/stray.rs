//! Keeps an observer's PSN trackers on their streams.
//!
//! An endpoint resynchronises its trackers ([`crate::maps::QpConfig::resync`]); for a flow that is not ours nobody does, and
//! nothing there checks the ICRC. One corrupt PSN ahead would make everything behind it a duplicate, for up to 2^23
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

/// What to do with a packet's PSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Count it.
    Normal,
    /// The stream is here now.
    Restart,
    /// Not of this stream, as far as is known.
    Hold,
}

impl Stray {
    /// Judges a packet before it is counted. `free`: a READ response that may stand ahead without a gap.
    #[inline(always)]
    fn judge(&mut self, tracker: &mut Tracker, psn: Psn, free: bool) -> Step {
        let expected = Psn::new(tracker.expected_psn);
        let distance = psn.diff(expected);
        if tracker.valid == 0 || distance == 0 {
            self.run = 0;
            self.jumped = 0;
            return Step::Normal;
        }
        if distance < -FAR || (distance > FAR && !free) {
            let step = psn.diff(Psn::new(self.next_psn));
            let follows = self.run != 0 && step >= 0 && step <= FAR;
            self.run = if follows { self.run + 1 } else { 1 };
            self.next_psn = psn.add(1).get();
            if self.run < RUN {
                return Step::Hold;
            }
            self.run = 0;
            self.jumped = 0;
            return Step::Restart;
        }
        self.run = 0;
        if self.jumped != 0 && distance < -NEAR {
            let before = Psn::new(self.before_psn);
            let step = psn.diff(before);
            if step >= 0 && step <= NEAR {
                self.jumped = 0;
                // The jump stood in the place of one packet: not all that it seemed to skip is missing.
                let skipped = expected.diff(before) as u64;
                if step == 1 && !free && skipped > 2 && tracker.missing >= skipped - 1 {
                    tracker.missing -= skipped - 2;
                }
                return Step::Restart;
            }
        }
        if distance > NEAR {
            self.before_psn = expected.get();
            self.jumped = 1;
        }
        Step::Normal
    }
}

/// Counts a packet in its flow, and says whether it is a request that was sent before.
#[inline(always)]
pub fn count(flow: &mut FlowState, packet: &Packet, now_ns: u64) -> bool {
    let connected = matches!(
        packet.bth.opcode.transport(),
        Transport::Rc | Transport::Uc | Transport::Xrc
    );
    let (sequenced, response, begins) = match packet.operation {
        None | Some((Operation::Acknowledge | Operation::AtomicAcknowledge, _)) => {
            (false, false, false)
        }
        Some((Operation::ReadResponse, position)) => (
            connected,
            true,
            matches!(position, Position::First | Position::Only),
        ),
        Some(_) => (connected, false, false),
    };
    let before = flow.counters.requests.duplicates;
    if !sequenced {
        flow.count(packet, now_ns);
        return false;
    }
    let counters = &mut flow.counters;
    let free = begins && counters.response_open == 0;
    let open = counters.response_open;
    let (tracker, in_gap) = if response {
        (&mut counters.responses, counters.response_in_gap)
    } else {
        (&mut counters.requests, counters.in_gap)
    };
    let [of_requests, of_responses] = &mut flow.stray;
    let stray = if response { of_responses } else { of_requests };
    let step = stray.judge(tracker, packet.bth.psn, free);
    let expected = tracker.expected_psn;
    if step != Step::Normal {
        // The tracker then takes the packet as the first of its stream.
        tracker.valid = 0;
    }
    flow.count(packet, now_ns);
    if step == Step::Hold {
        let counters = &mut flow.counters;
        let tracker = if response {
            counters.response_in_gap = in_gap;
            counters.response_open = open;
            &mut counters.responses
        } else {
            counters.in_gap = in_gap;
            &mut counters.requests
        };
        tracker.expected_psn = expected;
        tracker.valid = 1;
    }
    flow.counters.requests.duplicates != before
}
