//! The list of findings, capped per kind and flow and per kind, with what the cap left out said.

use std::collections::HashMap;

use super::{Kind, Severity};

/// Findings of one kind kept for one direction of a QP pair.
const MOST_PER_FLOW: u64 = 20;
/// Findings of one kind kept in all.
const MOST_PER_KIND: u64 = 1000;
/// Frame numbers kept of one finding.
pub const MOST_FRAMES: usize = 64;

/// What a finding is about: a direction of a QP pair, by its number in the flow table, or the capture as a whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// A direction.
    Half(u32),
    /// The capture.
    Capture,
}

/// A finding.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// Where.
    pub place: Place,
    /// When it began, in nanoseconds since the epoch.
    pub time: i64,
    /// Frames that show it, at most [`MOST_FRAMES`], in order.
    pub frames: Vec<u64>,
    /// How much it matters beside others of its kind: packets or nanoseconds.
    pub weight: u64,
    /// In words, without the QP's name.
    pub text: String,
}

#[derive(Clone, Copy, Debug)]
struct Surplus {
    kept: u64,
    more: u64,
    first: u64,
    last: u64,
    time: i64,
}

/// The list.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    list: Vec<Finding>,
    kinds: HashMap<Kind, u64>,
    flows: HashMap<(Kind, Place), Surplus>,
    start: Option<i64>,
}

impl Findings {
    /// The capture's first time: findings count from there. Only the first call counts.
    pub fn start_at(&mut self, time: i64) {
        self.start.get_or_insert(time);
    }

    /// Seconds since the capture's first packet, as text.
    #[must_use]
    pub fn at(&self, time: i64) -> String {
        let ns = time.saturating_sub(self.start.unwrap_or(time));
        format!("{:.4} s", ns as f64 / 1e9)
    }

    /// Adds one. Its words are only made if there is room.
    pub fn add(
        &mut self,
        kind: Kind,
        place: Place,
        time: i64,
        weight: u64,
        frames: &[u64],
        text: impl FnOnce(&Self) -> String,
    ) {
        let first = frames.iter().copied().min().unwrap_or(0);
        let last = frames.iter().copied().max().unwrap_or(0);
        let in_all = self.kinds.get(&kind).copied().unwrap_or(0);
        let surplus = self.flows.entry((kind, place)).or_insert(Surplus {
            kept: 0,
            more: 0,
            first,
            last,
            time,
        });
        if surplus.kept >= MOST_PER_FLOW || in_all >= MOST_PER_KIND {
            if surplus.more == 0 {
                (surplus.first, surplus.time) = (first, time);
            }
            surplus.more += 1;
            surplus.last = surplus.last.max(last);
            return;
        }
        surplus.kept += 1;
        *self.kinds.entry(kind).or_default() += 1;
        let text = text(self);
        let mut frames = frames.to_vec();
        frames.sort_unstable();
        frames.dedup();
        frames.truncate(MOST_FRAMES);
        self.list.push(Finding {
            kind,
            place,
            time,
            frames,
            weight,
            text,
        });
    }

    /// All, most serious first: by kind's severity, then kind, then weight, then time; what the caps left out is said.
    #[must_use]
    pub fn sorted(mut self) -> Vec<Finding> {
        let mut more: Vec<_> = self.flows.into_iter().filter(|(_, s)| s.more > 0).collect();
        more.sort_unstable_by_key(|(at, _)| *at);
        for ((kind, place), surplus) in more {
            self.list.push(Finding {
                kind,
                place,
                time: surplus.time,
                frames: vec![surplus.first, surplus.last],
                weight: 0,
                text: format!(
                    "{} more like this, the last in frame {} ({} are listed, {MOST_PER_FLOW} at most per QP and kind)",
                    surplus.more, surplus.last, surplus.kept
                ),
            });
        }
        let key = |f: &Finding| -> (Severity, Kind) { (f.kind.severity(), f.kind) };
        self.list.sort_by(|a, b| {
            key(a)
                .cmp(&key(b))
                .then(b.weight.cmp(&a.weight))
                .then(a.time.cmp(&b.time))
                .then(a.frames.cmp(&b.frames))
        });
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cap_is_said_and_the_worst_comes_first() {
        let mut findings = Findings::default();
        findings.start_at(1_000_000_000);
        for n in 0..25 {
            let time = 1_000_000_000 + n;
            findings.add(
                Kind::PacketLoss,
                Place::Half(1),
                time,
                n as u64,
                &[n as u64],
                |f| format!("lost at {}", f.at(time)),
            );
        }
        findings.add(Kind::CmRejected, Place::Capture, 0, 0, &[9, 3, 3], |_| {
            "refused".into()
        });
        let all = findings.sorted();
        assert_eq!(all.len(), 22);
        assert_eq!(all[0].kind, Kind::CmRejected);
        assert_eq!(all[0].frames, [3, 9]);
        assert_eq!(all[1].weight, 19);
        assert_eq!(all[1].text, "lost at 0.0000 s");
        assert!(
            all[21].text.starts_with("5 more like this"),
            "{}",
            all[21].text
        );
        assert_eq!(all[21].frames, [20, 24]);
    }
}
