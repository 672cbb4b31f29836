//! Cuts a failing program down: fewer operations, fewer faults, until nothing more can be left out (delta debugging: Zeller and
//! Hildebrandt, "Simplifying and isolating failure-inducing input", 2002).
//!
//! Must not: change what is left.

use super::program::{Hit, Program};
use super::world;

/// The smallest failing program found with at most `runs` runs, and why it fails.
#[must_use]
pub fn shrink(program: &Program, runs: usize) -> (Program, String) {
    let outcome = world::run(program);
    let mut why = outcome.violation.unwrap_or_default();
    let wanted = class(&why);
    let mut best = program.clone();
    let mut left = runs;
    let mut fails = |candidate: &Program, why: &mut String| {
        if left == 0 {
            return false;
        }
        left -= 1;
        match world::run(candidate).violation {
            Some(text) if class(&text) == wanted => {
                *why = text;
                true
            }
            _ => false,
        }
    };
    if best.faults.is_none() {
        let single = Program {
            faults: Some(outcome.hits),
            ..best.clone()
        };
        if fails(&single, &mut why) {
            best = single;
        }
    }
    loop {
        let before = (best.ops.len(), best.faults.as_ref().map_or(0, Vec::len));
        let ops = cut(&best.ops.clone(), |ops| {
            let candidate = Program {
                ops: ops.to_vec(),
                ..best.clone()
            };
            fails(&candidate, &mut why)
        });
        best.ops = ops;
        if let Some(faults) = best.faults.clone() {
            let faults: Vec<Hit> = cut(&faults, |faults| {
                let candidate = Program {
                    faults: Some(faults.to_vec()),
                    ..best.clone()
                };
                fails(&candidate, &mut why)
            });
            best.faults = Some(faults);
        }
        if (best.ops.len(), best.faults.as_ref().map_or(0, Vec::len)) == before {
            return (best, why);
        }
    }
}

/// What kind of failure it is: its words, as far as they do not tell of single requests.
fn class(why: &str) -> String {
    let words = why.split(|c: char| !c.is_ascii_alphabetic());
    words.filter(|w| w.len() > 2).take(12).collect()
}

/// Leaves out what can be left out, in pieces that get smaller.
fn cut<T: Clone>(all: &[T], mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut best = all.to_vec();
    let mut size = best.len().div_ceil(2);
    while size > 0 {
        let mut from = 0;
        while from < best.len() {
            let mut candidate = best.clone();
            candidate.drain(from..(from + size).min(best.len()));
            if fails(&candidate) {
                best = candidate;
            } else {
                from += size;
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    best
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn what_does_not_matter_is_left_out() {
        let all: Vec<u32> = (0..100).collect();
        assert_eq!(cut(&all, |c| c.contains(&17) && c.contains(&80)), [17, 80]);
        assert_eq!(cut(&all, |_| true), [0u32; 0]);
    }
}
