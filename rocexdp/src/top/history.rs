//! The last minutes of each line, for the detail's curves. Bounded: so many samples of so many lines.

use std::collections::{HashMap, VecDeque};

use crate::live::{Row, RowKey, Value};

/// Samples kept of a line: five minutes at one a second.
pub const SAMPLES: usize = 300;
/// Lines that have a history; those that came later have none until others fall silent.
pub const LINES: usize = 2048;

/// What a curve can show, in the order of [`Sample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// Bits per second to the destination.
    Rate,
    /// Bits per second back.
    Back,
    /// Share of CE marks.
    Ce,
    /// CNPs per second.
    Cnp,
    /// Packets sent again per second.
    Resent,
    /// 99th percentile of the round trips, ns.
    Rtt,
}

/// All curves, in the order they are drawn.
pub const CURVES: [Curve; 6] = [
    Curve::Rate,
    Curve::Back,
    Curve::Ce,
    Curve::Cnp,
    Curve::Rtt,
    Curve::Resent,
];

/// One interval of a line; NaN: not known.
#[derive(Clone, Copy, Debug)]
struct Sample([f32; 6]);

fn known(value: Value) -> f32 {
    value.map_or(f32::NAN, |v| v as f32)
}

impl Sample {
    fn of(row: &Row) -> Self {
        let (_, _, there, back) = row.oriented();
        Self([
            known(there.bits),
            known(back.bits),
            known(row.ce_share()),
            known(row.both(|d| d.cnp)),
            known(row.both(|d| d.resent)),
            known(row.rtt().map(|rtt| rtt.p99_ns as f64)),
        ])
    }

    fn get(self, curve: Curve) -> f32 {
        self.0.get(curve as usize).copied().unwrap_or(f32::NAN)
    }
}

#[derive(Debug, Default)]
struct Line {
    samples: VecDeque<Sample>,
    /// Intervals since the last packet.
    silent: usize,
}

/// The histories of all lines.
#[derive(Debug, Default)]
pub struct Histories {
    lines: HashMap<RowKey, Line>,
}

impl Histories {
    /// Takes one interval's lines.
    pub fn take<'a>(&mut self, rows: impl Iterator<Item = &'a Row>) {
        for line in self.lines.values_mut() {
            line.silent += 1;
        }
        for row in rows {
            let active = row.active();
            let full = self.lines.len() >= LINES;
            let line = match self.lines.get_mut(&row.key) {
                Some(line) => line,
                // Nothing to remember of a line that is silent.
                None if full || !active => continue,
                None => self.lines.entry(row.key.clone()).or_default(),
            };
            if active {
                line.silent = 0;
            }
            if line.samples.len() >= SAMPLES {
                line.samples.pop_front();
            }
            line.samples.push_back(Sample::of(row));
        }
        self.lines.retain(|_, line| line.silent < SAMPLES);
    }

    /// The last `width` values of a curve without the newest `skip`, oldest first; NaN: not known.
    #[must_use]
    pub fn curve(&self, key: &RowKey, curve: Curve, width: usize, skip: usize) -> Vec<f32> {
        let Some(line) = self.lines.get(key) else {
            return Vec::new();
        };
        let end = line.samples.len().saturating_sub(skip);
        let begin = end.saturating_sub(width);
        line.samples
            .range(begin..end)
            .map(|sample| sample.get(curve))
            .collect()
    }
}
