//! The model's link: each direction has its delay, and each frame its faults, by seed and frame number or one by one.
//!
//! Drops, corruption, marks, duplicates and reordering are [`rocexdp_common::fault::decide`]'s choice, as on every wire of
//! this project. Added here are truncation, lateness beyond an ACK timeout, and blackouts; and that each hit is told, so that
//! it can be counted by opcode and left out when a failure is cut down. Must not: know what a frame means.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use rocexdp_common::fault::{self, Faults, Share};
use rocexdp_common::headers::Bth;
use rocexdp_common::opcode::{Opcode, rc};
use rocexdp_proto::rng::Rng;
use rocexdp_proto::wire::Icrc;

use super::program::{Fault, Hit, Program, Setup};

/// How much later a duplicate's second copy comes, at most.
const COPY_NS: u64 = 60_000;
/// How much later a reordered frame comes, at most.
const REORDER_NS: u64 = 20_000;

/// Faults that aim.
const AIMED: [Fault; 6] = [
    Fault::Drop,
    Fault::Corrupt,
    Fault::Duplicate,
    Fault::Reorder,
    Fault::Late,
    Fault::Truncate,
];

/// Bytes of a UDP header.
const UDP_HEADER: usize = 8;

/// A frame on the way: when it arrives, in which order it entered, the end it goes to.
type Flight = Reverse<(u64, u64, u8, Vec<u8>)>;

/// Both directions.
pub struct Link {
    seed: u64,
    shares: [Faults; 2],
    late: [u64; 2],
    truncate: [u64; 2],
    forge: [u64; 2],
    /// Low five bits of the opcode that more faults aim at.
    aim: Option<u8>,
    late_ns: u64,
    delay: [u64; 2],
    single: Option<BTreeMap<(u8, u64), Vec<Fault>>>,
    numbers: [u64; 2],
    dark_until: [u64; 2],
    /// No more faults.
    clean: bool,
    flights: BinaryHeap<Flight>,
    entered: u64,
    /// Every fault so far.
    pub hits: Vec<Hit>,
}

impl Link {
    /// The link of a program.
    #[must_use]
    pub fn new(program: &Program) -> Self {
        let s = &program.setup;
        let share = |n: u64| Share::ratio(n as u32, 65536);
        let faults = |drop, corrupt, duplicate, reorder, mark| Faults {
            seed: s.seed,
            drop: share(drop),
            corrupt: share(corrupt),
            duplicate: share(duplicate),
            reorder: share(reorder),
            ce: share(mark),
            ..Faults::default()
        };
        let single = program.faults.as_ref().map(|hits| {
            let mut by_frame: BTreeMap<(u8, u64), Vec<Fault>> = BTreeMap::new();
            for &(dir, n, fault) in hits {
                by_frame.entry((dir, n)).or_default().push(fault);
            }
            by_frame
        });
        Self {
            seed: s.seed,
            shares: [
                faults(s.drop0, s.corrupt0, s.duplicate0, s.reorder0, s.mark0),
                faults(s.drop1, s.corrupt1, s.duplicate1, s.reorder1, s.mark1),
            ],
            late: [s.late0, s.late1],
            truncate: [s.truncate0, s.truncate1],
            forge: [s.forge0, s.forge1],
            aim: s.aim.checked_sub(1).map(|n| n as u8 & 0x1f),
            late_ns: ack_timeout_ns(s),
            delay: [s.delay0, s.delay1],
            single,
            numbers: [0; 2],
            dark_until: [0; 2],
            clean: false,
            flights: BinaryHeap::new(),
            entered: 0,
            hits: Vec::new(),
        }
    }

    /// From now on nothing happens to a frame but its delay.
    pub fn clean(&mut self) {
        self.clean = true;
        self.dark_until = [0; 2];
    }

    /// Nothing from `dir` gets through until then.
    pub fn black_out(&mut self, dir: u8, until: u64) {
        let dark = &mut self.dark_until[usize::from(dir)];
        *dark = (*dark).max(until);
    }

    /// A frame enters from end `dir`. Gives what happens to it.
    pub fn push(&mut self, now: u64, dir: u8, mut frame: Vec<u8>) -> Vec<Fault> {
        let d = usize::from(dir);
        let n = self.numbers[d];
        self.numbers[d] += 1;
        let mut faults = self.decide(now, dir, n);
        if faults.is_empty() && self.single.is_none() && !self.clean {
            faults.extend(self.aimed(&frame, dir, n));
        }
        faults.retain(|f| *f != Fault::Forge || forge(&mut frame).is_some());
        self.hits.extend(faults.iter().map(|f| (dir, n, *f)));
        let mut rng = Rng::new(self.seed ^ (n << 8) ^ u64::from(dir));
        let mut time = now + self.delay[d];
        let mut copies = 1;
        for fault in &faults {
            match fault {
                Fault::Drop | Fault::Blackout => return faults,
                Fault::Corrupt => {
                    if let Some(covered) = fault::find(frame.as_slice()) {
                        let (at, mask) = covered.corruption(rng.next_u64());
                        frame[at] ^= mask;
                    }
                }
                Fault::Truncate => frame.truncate(rng.below(frame.len() as u64) as usize),
                Fault::Duplicate => copies = 2,
                Fault::Reorder => time += 1 + rng.below(REORDER_NS),
                Fault::Late => time += self.late_ns / 2 + rng.below(4 * self.late_ns),
                Fault::Mark => mark(&mut frame),
                Fault::Forge => {}
            }
        }
        if copies == 2 {
            let later = time + rng.below(COPY_NS);
            self.enter(later, dir, frame.clone());
        }
        self.enter(time, dir, frame);
        faults
    }

    /// The fault of a frame that is aimed at: one in three has one.
    fn aimed(&self, frame: &[u8], dir: u8, n: u64) -> Option<Fault> {
        let aim = self.aim?;
        let opcode = *frame.get(fault::find(frame)?.bth)?;
        let mut rng = Rng::new(self.seed ^ 0xa1 ^ (n << 8) ^ u64::from(dir));
        (opcode & 0x1f == aim && rng.below(3) == 0).then(|| AIMED[rng.below(6) as usize])
    }

    fn enter(&mut self, time: u64, dir: u8, frame: Vec<u8>) {
        self.entered += 1;
        self.flights
            .push(Reverse((time, self.entered, 1 - dir, frame)));
    }

    fn decide(&self, now: u64, dir: u8, n: u64) -> Vec<Fault> {
        let d = usize::from(dir);
        if self.clean {
            return Vec::new();
        }
        if now < self.dark_until[d] {
            return vec![Fault::Blackout];
        }
        if let Some(single) = &self.single {
            return single.get(&(dir, n)).cloned().unwrap_or_default();
        }
        let decision = fault::decide(&self.shares[d], u32::from(dir), n);
        if decision.drop {
            return vec![Fault::Drop];
        }
        let mut rng = Rng::new(!self.seed ^ (n << 8) ^ u64::from(dir));
        let (late, cut, forged) = (rng.below(65536), rng.below(65536), rng.below(65536));
        [
            (decision.mark, Fault::Mark),
            (decision.corrupt, Fault::Corrupt),
            (decision.duplicate, Fault::Duplicate),
            (decision.reorder, Fault::Reorder),
            (late < self.late[d], Fault::Late),
            (cut < self.truncate[d], Fault::Truncate),
            (forged < self.forge[d], Fault::Forge),
        ]
        .into_iter()
        .filter_map(|(hit, fault)| hit.then_some(fault))
        .collect()
    }

    /// When the next frame arrives.
    #[must_use]
    pub fn next_time(&self) -> Option<u64> {
        self.flights.peek().map(|Reverse((time, ..))| *time)
    }

    /// The next frame that has arrived by `now`, and at which end.
    pub fn pop(&mut self, now: u64) -> Option<(u8, Vec<u8>)> {
        if self.next_time()? > now {
            return None;
        }
        let Reverse((_, _, end, frame)) = self.flights.pop()?;
        Some((end, frame))
    }
}

/// The ACK timeout of a program, nanoseconds.
#[must_use]
pub fn ack_timeout_ns(setup: &Setup) -> u64 {
    4096 << setup.timeout.min(20)
}

fn mark(frame: &mut [u8]) {
    let Some(mark) = fault::find(&*frame).and_then(|covered| covered.mark()) else {
        return;
    };
    frame[mark.at] = mark.value;
    if let Some(at) = mark.ipv4_checksum_at {
        let sum = mark.checksum([frame[at], frame[at + 1]]);
        frame[at..at + 2].copy_from_slice(&sum);
    }
}

/// An answer with an AETH becomes one of another place in its message, or of another kind; `None` if the frame is none. Its
/// ICRC is right, so that only the completer can tell.
fn forge(frame: &mut [u8]) -> Option<()> {
    let covered = fault::find(&*frame)?;
    let opcode = Opcode(*frame.get(covered.bth)?);
    let place = |op: Opcode| {
        if opcode.is_selective() {
            op.selective()
        } else {
            op
        }
    };
    let other = match opcode.standard() {
        rc::READ_RESPONSE_FIRST => rc::READ_RESPONSE_LAST,
        rc::READ_RESPONSE_LAST => rc::READ_RESPONSE_FIRST,
        rc::READ_RESPONSE_ONLY => rc::READ_RESPONSE_FIRST,
        rc::ATOMIC_ACKNOWLEDGE => rc::READ_RESPONSE_ONLY,
        _ => return None,
    };
    frame[covered.bth] = place(other).0;
    let (headers, icrc_at) = (covered.bth + Bth::LEN, covered.bth + covered.length);
    let udp = covered.bth - covered.ip - UDP_HEADER;
    let mut icrc = Icrc::over_headers(frame.get(covered.ip..headers)?, udp)?;
    icrc.update(frame.get(headers..icrc_at)?);
    let icrc = icrc.finish();
    frame.get_mut(icrc_at..icrc_at + 4)?.copy_from_slice(&icrc);
    Some(())
}
