//! Congestion news from the maps to the transport: XDP counts CE marks and CNPs and sets a dirty
//! mark; the engine looks only at QPs with a mark.
//!
//! XDP stores the counters, then the QP's mark, then the mark of its line; the engine clears in the
//! opposite order before it reads, so no news is lost. A mark is a byte (see `rocexdp_common::maps`).

use std::{
    mem::{offset_of, size_of},
    sync::atomic::Ordering,
};

use rocexdp_common::maps::{Count, DirtyLine, Kind, QpCounters};
use rocexdp_proto::{CongestionSignal, ids::Qpn};

use crate::maps::{Maps, SharedArray};

const CE: usize = offset_of!(QpCounters, ecn) + 3 * size_of::<u64>();
const CNP: usize = offset_of!(QpCounters, kinds) + Kind::Cnp as usize * size_of::<Count>();
/// QPs of one line of marks.
pub const LINE: u32 = 64;

/// What was already told to the transport, by slot.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    qpn: Qpn,
    ce: u64,
    cnp: u64,
}

/// The reader of one worker's marks.
#[derive(Debug)]
pub struct Signals {
    worker: u32,
    workers: u32,
    seen: Vec<Seen>,
}

/// Which worker owns a slot: whole lines, so that a line's marks have one reader.
pub fn worker_of(slot: u32, workers: u32) -> u32 {
    (slot / LINE) % workers.max(1)
}

impl Signals {
    /// A reader for `worker` of `workers`.
    pub fn new(worker: u32, workers: u32, slots: u32) -> Self {
        Self {
            worker,
            workers,
            seen: vec![Seen::default(); slots as usize],
        }
    }

    /// A slot was given to a QP, its counters are zero.
    pub fn assign(&mut self, slot: u32, qpn: Qpn) {
        if let Some(seen) = self.seen.get_mut(slot as usize) {
            *seen = Seen { qpn, ce: 0, cnp: 0 };
        }
    }

    /// Calls `tell` for each QP with news since the last call.
    pub fn drain(&mut self, maps: &Maps, mut tell: impl FnMut(Qpn, CongestionSignal)) {
        for index in 0..maps.dirty_index.entries() {
            let first = index * LINE;
            let (worker, workers) = (self.worker, self.workers);
            let ours = |line| worker_of((first + line) * LINE, workers) == worker;
            take_marks(&maps.dirty_index, index, ours, |line| {
                let line = first + line;
                take_marks(
                    &maps.dirty,
                    line,
                    |_| true,
                    |slot| {
                        self.read(maps, line * LINE + slot, &mut tell);
                    },
                );
            });
        }
    }

    fn read(&mut self, maps: &Maps, slot: u32, tell: &mut impl FnMut(Qpn, CongestionSignal)) {
        let Some(seen) = self.seen.get_mut(slot as usize) else {
            return;
        };
        let (mut ce, mut cnp) = (0, 0);
        for queue in 0..maps.queues {
            let entry = slot * maps.queues + queue;
            ce += maps.qp_counters.load_u64(entry, CE).unwrap_or(0);
            cnp += maps.qp_counters.load_u64(entry, CNP).unwrap_or(0);
        }
        let new =
            |now: u64, before: u64| u32::try_from(now.saturating_sub(before)).unwrap_or(u32::MAX);
        let signal = CongestionSignal {
            ce_marks: new(ce, seen.ce),
            cnps: new(cnp, seen.cnp),
        };
        seen.ce = ce;
        seen.cnp = cnp;
        if signal.ce_marks > 0 || signal.cnps > 0 {
            tell(seen.qpn, signal);
        }
    }
}

/// Clears and visits the marks that are set in entry `index` and are `ours`.
fn take_marks(
    marks: &SharedArray<DirtyLine>,
    index: u32,
    ours: impl Fn(u32) -> bool,
    mut visit: impl FnMut(u32),
) {
    for word in 0..LINE / 8 {
        if marks.load_u64(index, word as usize * 8).unwrap_or(0) == 0 {
            continue;
        }
        for byte in word * 8..word * 8 + 8 {
            let Some(mark) = marks.u8_at(index, byte as usize) else {
                continue;
            };
            if mark.load(Ordering::Relaxed) != 0 && ours(byte) {
                mark.store(0, Ordering::SeqCst);
                visit(byte);
            }
        }
    }
}
