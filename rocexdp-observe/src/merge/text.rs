//! What two taps say together, as text: where packets were lost first, then the table of directions.

use std::fmt;

use super::{Loss, MergeReport, Place, Which};
use crate::findings::words::{Many, Qp, Span};

/// Losses shown one by one.
const SHOWN: usize = 40;
/// Directions shown.
const DIRECTIONS: usize = 40;

impl MergeReport {
    fn sum(&self, of: impl Fn(&super::Direction) -> u64) -> u64 {
        self.directions.iter().map(of).sum()
    }

    /// The answer in a few sentences, most serious first.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let mut said = Vec::new();
        let seen: Vec<_> = self.directions.iter().filter(|d| d.both != 0).collect();
        for (first, from_to) in [(Which::A, "A to B"), (Which::B, "B to A")] {
            let lost: u64 = seen
                .iter()
                .filter(|d| d.first == Some(first))
                .filter_map(|d| d.lost_between)
                .sum();
            if lost != 0 {
                said.push(format!(
                    "{} lost between the taps, on the way from {from_to}",
                    were(lost)
                ));
            }
        }
        let before = self.sum(|d| d.lost_before);
        if before != 0 {
            said.push(format!("{} lost before the first tap", were(before)));
        }
        let behind = self.sum(|d| d.lost_behind);
        if behind != 0 {
            said.push(format!("{} lost after the second tap", were(behind)));
        }
        let either = self.sum(|d| d.lost_behind_or_answer);
        if either != 0 {
            said.push(format!(
                "{} sent again after a silence though both taps had seen them: they, or their answers, were lost after both taps",
                were(either)
            ));
        }
        let missed: u64 = seen.iter().filter_map(|d| d.missed_by_first).sum();
        if missed != 0 {
            said.push(format!(
                "{} seen by the second tap alone: the first one's capture missed them, or there is another path",
                were(missed)
            ));
        }
        let untold: u64 = seen
            .iter()
            .filter(|d| d.lost_between.is_none())
            .map(|d| d.only_a + d.only_b)
            .sum();
        if untold != 0 {
            said.push(format!(
                "{} seen by one tap alone, in directions of which it is not known which tap comes first",
                were(untold)
            ));
        }
        if said.is_empty() && !seen.is_empty() {
            said.push(
                "no packet was lost between the taps or, as far as they tell, elsewhere".into(),
            );
        }
        let outside: u64 = seen.iter().map(|d| d.outside).sum();
        if outside != 0 {
            said.push(format!(
                "{} seen by one tap alone, before the other's recording began or after it ended as far as can be told: not counted as lost",
                were(outside)
            ));
        }
        said.extend(self.notes.iter().cloned());
        said
    }
}

fn were(n: u64) -> String {
    format!(
        "{} {}",
        Many(n, "packet"),
        if n == 1 { "was" } else { "were" }
    )
}

impl fmt::Display for MergeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for sentence in self.sentences() {
            writeln!(f, "{sentence}")?;
        }
        if let Some(offset) = self.clock.offset_ns {
            let (size, how) = (
                Span(offset.unsigned_abs()),
                if offset < 0 { "behind" } else { "ahead of" },
            );
            write!(f, "B's clock is {size} {how} A's")?;
            if let Some(drift) = self.clock.drift_ns_per_s {
                write!(f, ", drifting by {:.1} us per second", drift / 1000.0)?;
            }
            writeln!(f, " (if the shortest delays of both ways are equal)")?;
        }
        if !self.directions.is_empty() {
            writeln!(f)?;
            self.table(f)?;
        }
        self.list(f)
    }
}

impl MergeReport {
    fn table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |n: Option<u64>| n.map_or_else(|| "n/a".to_owned(), |n| n.to_string());
        let mut rows = vec![
            [
                "from",
                "to",
                "QP",
                "first",
                "both",
                "lost between",
                "missed by first",
                "lost before",
                "lost behind",
                "delay p50",
                "p99",
                "max",
            ]
            .map(str::to_owned),
        ];
        for d in self.directions.iter().take(DIRECTIONS) {
            let span =
                |ns: Option<u64>| ns.map_or_else(|| "n/a".to_owned(), |ns| Span(ns).to_string());
            let delay = d.delay.as_ref();
            rows.push([
                d.src.to_string(),
                d.dst.to_string(),
                format!("{:#x}", d.dest_qpn),
                d.first.map_or("n/a", Which::name).to_owned(),
                d.both.to_string(),
                number(d.lost_between),
                number(d.missed_by_first),
                d.lost_before.to_string(),
                match d.lost_behind_or_answer {
                    0 => d.lost_behind.to_string(),
                    n => format!("{}+{n}?", d.lost_behind),
                },
                span(delay.and_then(|delay| delay.p50_ns)),
                span(delay.and_then(|delay| delay.p99_ns)),
                span(delay.and_then(|delay| delay.max_ns)),
            ]);
        }
        let mut widths = [0; 12];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.len().max(*width);
            }
        }
        for row in &rows {
            let cells: Vec<_> = row
                .iter()
                .zip(widths)
                .enumerate()
                .map(|(column, (cell, width))| match column {
                    0..2 => format!("{cell:<width$}"),
                    _ => format!("{cell:>width$}"),
                })
                .collect();
            writeln!(f, "{}", cells.join("  ").trim_end())?;
        }
        if self.directions.len() > DIRECTIONS {
            writeln!(
                f,
                "and {} more directions",
                self.directions.len() - DIRECTIONS
            )?;
        }
        Ok(())
    }

    fn list(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.losses.is_empty() {
            return Ok(());
        }
        writeln!(f)?;
        for loss in self.losses.iter().take(SHOWN) {
            self.line(f, loss)?;
        }
        let more = self.losses.len().saturating_sub(SHOWN) as u64 + self.losses_not_listed;
        if more != 0 {
            writeln!(f, "and {more} more")?;
        }
        Ok(())
    }

    fn line(&self, f: &mut fmt::Formatter<'_>, loss: &Loss) -> fmt::Result {
        let what = match loss.place {
            Place::Between => "lost between the taps",
            Place::MissedByFirst => "missed by the first tap",
            Place::OnlyA => "seen by A alone",
            Place::OnlyB => "seen by B alone",
            Place::Before => "lost before the first tap",
            Place::Behind => "lost after the second tap",
            Place::BehindOrAnswer => "lost after both taps, or its answer was",
        };
        write!(f, "{:.6} s  ", loss.time_s)?;
        if let Some(d) = self.directions.get(loss.direction) {
            write!(f, "{} > {} {} ", d.src, d.dst, Qp(d.dest_qpn))?;
        }
        write!(f, "PSN {} {what} ({}", loss.psn, loss.opcode)?;
        for (which, frame) in [(Which::A, loss.frame_a), (Which::B, loss.frame_b)] {
            if let Some(frame) = frame {
                write!(f, ", frame {frame} of {}", which.name())?;
            }
        }
        writeln!(f, ")")
    }
}
