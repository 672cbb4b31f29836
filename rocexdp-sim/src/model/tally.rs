//! What a run of the model has seen, and what it had to see.
//!
//! Must not: judge a seed (the oracle does).

use std::fmt::Write as _;

use rocexdp_common::opcode::{self, Opcode};
use rocexdp_proto::verbs::Status;

use super::program::Fault;

/// Number of faults.
const FAULTS: usize = Fault::ALL.len();

/// Counts, which add up over seeds.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Seeds run.
    pub seeds: u64,
    /// Frames sent, by opcode.
    pub sent: Vec<u64>,
    /// Frames hit, by opcode and fault.
    pub hit: Vec<[u64; FAULTS]>,
    /// Completions, by status code.
    pub statuses: [u64; 16],
    /// Bytes that were compared when they were written.
    pub bytes: u64,
    /// Work requests posted.
    pub posted: u64,
    /// Asynchronous events, of the kinds that the oracle waits for: limits reached, queues overflowed, QPs failed.
    pub events: [u64; 3],
    /// Accesses by window keys that were right, and by those that were not.
    pub windows: [u64; 2],
    /// Virtual nanoseconds.
    pub time: u64,
    /// Of everything that happened, in order; of several seeds, the sum.
    pub hash: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            seeds: 0,
            sent: vec![0; 256],
            hit: vec![[0; FAULTS]; 256],
            statuses: [0; 16],
            bytes: 0,
            posted: 0,
            events: [0; 3],
            windows: [0; 2],
            time: 0,
            hash: 0xcbf2_9ce4_8422_2325,
        }
    }
}

impl Tally {
    /// Of no seed at all, to add to.
    #[must_use]
    pub fn none() -> Self {
        Self {
            hash: 0,
            ..Self::default()
        }
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.bytes += other.bytes;
        self.posted += other.posted;
        for (a, b) in self.events.iter_mut().zip(other.events) {
            *a += b;
        }
        for (a, b) in self.windows.iter_mut().zip(other.windows) {
            *a += b;
        }
        self.time += other.time;
        self.hash = self.hash.wrapping_add(other.hash);
        for (a, b) in self.sent.iter_mut().zip(&other.sent) {
            *a += b;
        }
        for (a, b) in self.hit.iter_mut().zip(&other.hit) {
            for (a, b) in a.iter_mut().zip(b) {
                *a += b;
            }
        }
        for (a, b) in self.statuses.iter_mut().zip(&other.statuses) {
            *a += b;
        }
    }

    /// Faults of all frames.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.hit.iter().flatten().sum()
    }

    /// What occurred less than `least` times of what had to occur: every opcode of `opcodes` with every fault of links,
    /// every status of `statuses`.
    #[must_use]
    pub fn missing(&self, opcodes: &[u8], statuses: &[Status], least: u64) -> Vec<String> {
        let mut missing = Vec::new();
        for &op in opcodes {
            for (fault, word) in Fault::ALL.into_iter().filter(|f| f.0.is_of_links()) {
                let n = self.hit[usize::from(op)][fault as usize];
                if n < least {
                    missing.push(format!("{} with {word}: {n}", opcode::name(Opcode(op))));
                }
            }
        }
        for &status in statuses {
            let n = self.statuses[status as usize];
            if n < least {
                missing.push(format!("status {status}: {n}"));
            }
        }
        missing
    }

    /// The counts as tables.
    #[must_use]
    pub fn report(&self) -> String {
        let mut out = String::new();
        let _ = write!(out, "{:<34}{:>10}", "opcode", "sent");
        for (_, word) in Fault::ALL {
            let _ = write!(out, "{word:>10}");
        }
        out.push('\n');
        for op in 0..=255u8 {
            let i = usize::from(op);
            if self.sent[i] == 0 {
                continue;
            }
            let _ = write!(out, "{:<34}{:>10}", opcode::name(Opcode(op)), self.sent[i]);
            for n in self.hit[i] {
                let _ = write!(out, "{n:>10}");
            }
            out.push('\n');
        }
        out.push('\n');
        for status in Status::ALL {
            let n = self.statuses[status as usize];
            let _ = writeln!(out, "{:<34}{n:>10}", status.to_string());
        }
        let [limits, overflows, failures] = self.events;
        let [right, odd] = self.windows;
        let _ = writeln!(
            out,
            "\nevents: {limits} limits reached, {overflows} completion queues overflowed, {failures} QPs failed; window keys: {right} in force, {odd} as they were"
        );
        let _ = writeln!(
            out,
            "{} seeds: {} requests, {} completions, {} packets, {} faults, {} bytes checked, {:.1} s of virtual time, hash {:016x}",
            self.seeds,
            self.posted,
            self.statuses.iter().sum::<u64>(),
            self.sent.iter().sum::<u64>(),
            self.faults(),
            self.bytes,
            self.time as f64 / 1e9,
            self.hash,
        );
        out
    }
}
