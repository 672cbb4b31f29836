//! What is typed behind `/`: words that a line must contain, and comparisons of its numbers.
//!
//! `10.0.0.3 ce>1 !0x11`: all terms must hold. A word is looked for in addresses, QP numbers, the interface and the state, in
//! whatever case; `!` before it turns it round. A comparison is a column's key (see [`Metric::key`]), `>` or `<`, and a number with
//! k, M or G; CE is in percent, round trips in microseconds.

use crate::{
    live::Row,
    view::{
        live::{METRICS, Metric},
        text,
    },
};

/// A filter, parsed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter(Vec<Term>);

#[derive(Clone, Debug, PartialEq)]
enum Term {
    Word {
        word: String,
        wanted: bool,
    },
    Compare {
        metric: Metric,
        above: bool,
        bound: f64,
    },
}

impl Filter {
    /// Any text is a filter: what is no comparison is a word.
    ///
    /// # Errors
    /// A comparison of a column that there is, with something that is no number.
    pub fn parse(text: &str) -> Result<Self, String> {
        text.split_whitespace()
            .map(term)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether everything passes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a line passes.
    #[must_use]
    pub fn passes(&self, row: &Row) -> bool {
        let mut text = None;
        self.0.iter().all(|term| match term {
            Term::Word { word, wanted } => {
                let text: &String = text.get_or_insert_with(|| words(row));
                text.contains(word) == *wanted
            }
            Term::Compare {
                metric,
                above,
                bound,
            } => metric.value(row).is_ok_and(|value| {
                let value = value * unit(*metric);
                if *above {
                    value > *bound
                } else {
                    value < *bound
                }
            }),
        })
    }
}

/// What numbers are multiplied with before they are compared.
fn unit(metric: Metric) -> f64 {
    match metric {
        Metric::Ce => 100.0,
        Metric::RttP50 | Metric::RttP99 | Metric::RttMax => 1e-3,
        _ => 1.0,
    }
}

fn words(row: &Row) -> String {
    let state = row.state.map_or("flow", text::state);
    format!("{} {} {} {state}", row.key.iface, row.key.a, row.key.b).to_lowercase()
}

fn term(word: &str) -> Result<Term, String> {
    if let Some(at) = word.find(['<', '>']) {
        let (key, rest) = word.split_at(at);
        let metric = METRICS.iter().find(|m| m.key() == key.to_lowercase());
        let metric = metric.ok_or_else(|| {
            let keys: Vec<_> = METRICS.iter().map(|m| m.key()).collect();
            format!("{key:?} is no column: {}", keys.join(", "))
        })?;
        let number = rest.get(1..).unwrap_or_default();
        let bound = scaled(number)
            .ok_or_else(|| format!("{number:?} is no number: as in {key}>10, {key}>1.5k"))?;
        return Ok(Term::Compare {
            metric: *metric,
            above: rest.starts_with('>'),
            bound,
        });
    }
    let (word, wanted) = match word.strip_prefix('!') {
        Some(rest) if !rest.is_empty() => (rest, false),
        _ => (word, true),
    };
    Ok(Term::Word {
        word: word.to_lowercase(),
        wanted,
    })
}

fn scaled(text: &str) -> Option<f64> {
    let (number, factor) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (text.get(..at)?, 1e3),
        (at, 'm' | 'M') => (text.get(..at)?, 1e6),
        (at, 'g' | 'G') => (text.get(..at)?, 1e9),
        _ => (text, 1.0),
    };
    let number: f64 = number.parse().ok()?;
    number.is_finite().then_some(number * factor)
}
