//! Shares, factors and speeds as words, and the changes as text.

use std::fmt;

use super::Diff;

/// A share with three digits or so.
pub(super) struct Percent(pub f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.0 * 100.0;
        if percent == 0.0 || percent >= 10.0 {
            write!(f, "{percent:.0} %")
        } else if percent >= 0.1 {
            write!(f, "{percent:.2} %")
        } else {
            write!(f, "{percent:.4} %")
        }
    }
}

/// `, 3.1 times as much`, where that says something.
pub(super) struct Times(pub f64, pub f64);

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 > 0.0 && self.1 > 0.0 {
            let times = self.0 / self.1;
            write!(
                f,
                ", {times:.digits$} times as much",
                digits = usize::from(times < 10.0) + usize::from(times < 1.0)
            )
        } else {
            Ok(())
        }
    }
}

/// Bytes with a unit.
pub(super) struct Bytes(pub f64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            n if n >= 1e9 => (1e9, "GB"),
            n if n >= 1e6 => (1e6, "MB"),
            n if n >= 1e3 => (1e3, "kB"),
            _ => (1.0, "B"),
        };
        write!(f, "{:.1} {name}", self.0 / unit)
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [("worse", &self.worse), ("better", &self.better)];
        for (name, list) in lists {
            if list.is_empty() && !self.comparable {
                writeln!(f, "What got {name} can't be told.")?;
                continue;
            }
            if list.is_empty() {
                writeln!(f, "Nothing got {name} beyond chance.")?;
                continue;
            }
            writeln!(f, "{}:", if name == "worse" { "Worse" } else { "Better" })?;
            for change in list {
                writeln!(f, "  {}", change.text)?;
            }
        }
        for note in &self.notes {
            writeln!(f, "Note: {note}")?;
        }
        Ok(())
    }
}
