//! Who congests whom: hosts that send against hosts that receive, each cell the worst of the lines between them.

use std::{collections::HashMap, net::IpAddr};

use crate::live::{Row, Value};

/// What a cell tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heat {
    /// Share of CE marks among what the source sends: the worst line's.
    Ce,
    /// CNPs per second that come back to the source: of all lines.
    Cnp,
    /// Packets per second sent again by the source: of all lines.
    Resent,
    /// Bits per second that the source sends: of all lines.
    Rate,
}

/// All of them, in the order that one key goes through.
pub const HEATS: [Heat; 4] = [Heat::Ce, Heat::Cnp, Heat::Resent, Heat::Rate];

impl Heat {
    /// What the map is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ce => "CE % of what the source sends (worst QP)",
            Self::Cnp => "CNP/s that come back to the source",
            Self::Resent => "packets/s that the source sends again",
            Self::Rate => "bit/s that the source sends",
        }
    }

    fn add(self, cell: Option<f64>, value: f64) -> f64 {
        match (cell, self) {
            (None, _) => value,
            (Some(cell), Self::Ce) => cell.max(value),
            (Some(cell), _) => cell + value,
        }
    }
}

/// The matrix, hosts in order of what they are worth.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Hosts that send, the most congested first.
    pub sources: Vec<IpAddr>,
    /// Hosts that receive, the most congested first.
    pub targets: Vec<IpAddr>,
    cells: HashMap<(IpAddr, IpAddr), Option<f64>>,
    /// Largest cell.
    pub most: f64,
}

impl Matrix {
    /// Of these lines. A cell exists where packets were seen or are known to have been sent; its number can be unknown.
    #[must_use]
    pub fn new<'a>(rows: impl Iterator<Item = &'a Row>, heat: Heat) -> Self {
        let mut cells: HashMap<(IpAddr, IpAddr), Option<f64>> = HashMap::new();
        for row in rows {
            let (a, b) = (row.key.a.address(), row.key.b.address());
            let ways = [
                ((a, b), &row.forth, &row.back),
                ((b, a), &row.back, &row.forth),
            ];
            for (ends, way, other) in ways {
                if way.total_packets == 0 {
                    continue;
                }
                let value: Value = match heat {
                    Heat::Ce => way.ce_share,
                    Heat::Cnp => other.cnp,
                    Heat::Resent => way.resent,
                    Heat::Rate => way.bits,
                };
                let cell = cells.entry(ends).or_default();
                if let Ok(value) = value {
                    *cell = Some(heat.add(*cell, value));
                }
            }
        }
        let most = cells.values().flatten().copied().fold(0.0, f64::max);
        let rank = |pick: fn(&(IpAddr, IpAddr)) -> IpAddr| {
            let mut worth: HashMap<IpAddr, f64> = HashMap::new();
            for (ends, value) in &cells {
                let sum = worth.entry(pick(ends)).or_default();
                *sum += value.unwrap_or(0.0);
            }
            let mut hosts: Vec<(IpAddr, f64)> = worth.into_iter().collect();
            hosts.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            hosts.into_iter().map(|(host, _)| host).collect()
        };
        Self {
            sources: rank(|ends| ends.0),
            targets: rank(|ends| ends.1),
            cells,
            most,
        }
    }

    /// A cell: `None` where nothing goes, `Some(None)` where it can't be known.
    #[must_use]
    pub fn cell(&self, source: IpAddr, target: IpAddr) -> Option<Option<f64>> {
        self.cells.get(&(source, target)).copied()
    }
}
