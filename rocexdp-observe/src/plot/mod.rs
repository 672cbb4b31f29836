//! PSN over time of chosen QPs, as an SVG: what was sent, what was sent again, what was answered; CE marks and CNPs below.
//!
//! Looks at packets itself, knows nothing of findings: what is drawn is what was captured. One pass; memory is bounded by
//! the picture: points fall on a grid whose step doubles when it gets too small. "Sent again" is a request whose PSN is not
//! beyond all before it.

mod grid;
mod svg;

use std::collections::{BTreeMap, HashMap};

use rocexdp_common::{
    headers::Syndrome,
    ids::{Gid, Psn},
    opcode::Operation,
    parse::Packet,
};

use crate::capture::PacketRef;
use grid::Grid;

/// Congestion experienced, in the ECN field.
const CE: u8 = 3;
/// Columns of the rates below; between half of them and all are used.
const RATE_COLUMNS: u64 = 256;

/// What is drawn in one panel: the requests of one QP and what came back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Track {
    /// Over the panel.
    pub title: String,
    /// The requester's address.
    pub requester: Gid,
    /// The responder's address.
    pub responder: Gid,
    /// The responder's QPN, to which requests go.
    pub responder_qpn: u32,
    /// The requester's QPN, to which answers go; `None`: not known, so that no answers are drawn.
    pub requester_qpn: Option<u32>,
}

/// Kinds of marks, in the order in which they are drawn over one another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Mark {
    Acknowledged,
    Response,
    Sent,
    ResponseAgain,
    SentAgain,
    Rnr,
    Nak,
}

impl Mark {
    const ALL: [Self; 7] = [
        Self::Acknowledged,
        Self::Response,
        Self::Sent,
        Self::ResponseAgain,
        Self::SentAgain,
        Self::Rnr,
        Self::Nak,
    ];
}

/// PSNs as numbers that don't wrap, relative to the first.
#[derive(Clone, Copy, Default)]
struct Unwrapped {
    last: Option<(Psn, i64)>,
    most: Option<i64>,
}

impl Unwrapped {
    /// The number of a PSN, beside `base` (the number of another stream's PSN) if it is the first.
    fn number(&mut self, psn: Psn, base: Option<(Psn, i64)>) -> i64 {
        let (near, n) = self.last.or(base).unwrap_or((psn, 0));
        let number = n + i64::from(psn.diff(near));
        self.last = Some((psn, number));
        number
    }

    /// Whether all up to `to` is beyond what there was before.
    fn is_new(&mut self, from: i64, to: i64) -> bool {
        let new = self.most.is_none_or(|most| from > most);
        self.most = self.most.max(Some(to));
        new
    }
}

/// What is counted in one column.
#[derive(Clone, Copy, Default)]
struct Rates {
    data: u64,
    ce: u64,
    cnp: u64,
}

struct Panel {
    track: Track,
    grid: Grid,
    first_psn: Option<Psn>,
    sent: Unwrapped,
    responses: Unwrapped,
    /// Largest payload seen: the path MTU, as far as known.
    largest: u32,
    rates: BTreeMap<u64, Rates>,
    /// Nanoseconds of a column of rates, as a power of two.
    rate_shift: u32,
    counts: [u64; Mark::ALL.len()],
}

/// A drawing in progress.
pub struct Plot {
    panels: Vec<Panel>,
    forward: HashMap<(Gid, Gid, u32), usize>,
    back: HashMap<(Gid, Gid, u32), usize>,
    start: Option<i64>,
    end: i64,
}

impl Plot {
    /// Panels for these, from the top.
    #[must_use]
    pub fn new(tracks: Vec<Track>) -> Self {
        let mut plot = Self {
            panels: Vec::new(),
            forward: HashMap::new(),
            back: HashMap::new(),
            start: None,
            end: 0,
        };
        for (index, track) in tracks.into_iter().enumerate() {
            plot.forward.insert(
                (track.requester, track.responder, track.responder_qpn),
                index,
            );
            if let Some(qpn) = track.requester_qpn {
                plot.back
                    .insert((track.responder, track.requester, qpn), index);
            }
            plot.panels.push(Panel {
                track,
                grid: Grid::new(),
                first_psn: None,
                sent: Unwrapped::default(),
                responses: Unwrapped::default(),
                largest: 0,
                rates: BTreeMap::new(),
                rate_shift: 0,
                counts: [0; Mark::ALL.len()],
            });
        }
        plot
    }

    /// Takes a packet: RoCE or not, the first tells when the capture starts.
    pub fn push(&mut self, captured: &PacketRef<'_>) {
        let start = *self.start.get_or_insert(captured.time_ns);
        self.end = self.end.max(captured.time_ns);
        let dissected = captured.dissect();
        let Some(packet) = dissected.kind.packet() else {
            return;
        };
        let Some((operation, _)) = packet.operation else {
            return;
        };
        // Packets out of order of time, before the first: at the start.
        let time = captured.time_ns.saturating_sub(start).max(0).unsigned_abs();
        let key = (packet.flow.src, packet.flow.dst, packet.flow.dest_qpn);
        if let Some(panel) = self.forward.get(&key).and_then(|&i| self.panels.get_mut(i)) {
            panel.forward(time, packet, operation);
        }
        if let Some(panel) = self.back.get(&key).and_then(|&i| self.panels.get_mut(i)) {
            panel.back(time, packet, operation);
        }
    }

    /// The drawing.
    #[must_use]
    pub fn svg(&self, title: &str) -> String {
        svg::draw(self, title)
    }

    fn length_ns(&self) -> u64 {
        let start = self.start.unwrap_or(self.end);
        self.end.saturating_sub(start).max(1).unsigned_abs()
    }
}

impl Panel {
    fn forward(&mut self, time: u64, packet: &Packet, operation: Operation) {
        let more = match operation {
            Operation::Send
            | Operation::Write
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Flush
            | Operation::AtomicWrite => {
                self.largest = self.largest.max(packet.payload);
                0
            }
            // It takes as many PSNs as it has responses. Before any payload was seen, the responses tell.
            Operation::ReadRequest if self.largest != 0 => {
                packet.reth_length.div_ceil(self.largest).max(1) - 1
            }
            Operation::ReadRequest => 0,
            _ => return,
        };
        let psn = packet.bth.psn;
        self.first_psn.get_or_insert(psn);
        let number = self.sent.number(psn, None);
        let mark = if self.sent.is_new(number, number + i64::from(more)) {
            Mark::Sent
        } else {
            Mark::SentAgain
        };
        self.put(time, number, mark);
        self.rate(time, packet);
    }

    fn back(&mut self, time: u64, packet: &Packet, operation: Operation) {
        if operation == Operation::Cnp {
            self.rate_at(time).cnp += 1;
            return;
        }
        let base = self.sent.last;
        let psn = packet.bth.psn;
        match operation {
            Operation::ReadResponse => {
                self.first_psn.get_or_insert(psn);
                self.largest = self.largest.max(packet.payload);
                let number = self.responses.number(psn, base);
                self.sent.most = self.sent.most.max(Some(number));
                let mark = if self.responses.is_new(number, number) {
                    Mark::Response
                } else {
                    Mark::ResponseAgain
                };
                self.put(time, number, mark);
                self.rate(time, packet);
            }
            Operation::Acknowledge | Operation::AtomicAcknowledge => {
                // Next to the requests: an answer alone has no place.
                let Some((near, n)) = base else {
                    return;
                };
                let number = n + i64::from(psn.diff(near));
                let mark = match packet.aeth.map(|aeth| aeth.syndrome) {
                    Some(Syndrome::RnrNak(_)) => Mark::Rnr,
                    Some(Syndrome::Ack(_)) | None => Mark::Acknowledged,
                    Some(_) => Mark::Nak,
                };
                self.put(time, number, mark);
            }
            _ => {}
        }
    }

    fn put(&mut self, time: u64, number: i64, mark: Mark) {
        self.grid.put(time, number, mark);
        if let Some(count) = self.counts.get_mut(mark as usize) {
            *count += 1;
        }
    }

    fn rate(&mut self, time: u64, packet: &Packet) {
        let rates = self.rate_at(time);
        rates.data += 1;
        rates.ce += u64::from(packet.ecn == CE);
    }

    fn rate_at(&mut self, time: u64) -> &mut Rates {
        while time >> self.rate_shift >= RATE_COLUMNS {
            self.rate_shift += 1;
            let halves = std::mem::take(&mut self.rates);
            for (column, half) in halves {
                let both = self.rates.entry(column >> 1).or_default();
                both.data += half.data;
                both.ce += half.ce;
                both.cnp += half.cnp;
            }
        }
        self.rates.entry(time >> self.rate_shift).or_default()
    }

    fn count(&self, mark: Mark) -> u64 {
        self.counts.get(mark as usize).copied().unwrap_or(0)
    }

    fn totals(&self) -> Rates {
        self.rates
            .values()
            .fold(Rates::default(), |sum, column| Rates {
                data: sum.data + column.data,
                ce: sum.ce + column.ce,
                cnp: sum.cnp + column.cnp,
            })
    }
}
