//! Runs of a study: one per scenario and seed, spread over cores, each by itself and bit for bit the same whoever runs it.
//!
//! Must not: print, or read a clock.

mod capture;
mod drive;
pub mod estimate;
mod path;
mod rc;
mod recorder;
mod reference;
#[cfg(test)]
mod tests;

pub use capture::Captures;
pub(crate) use path::{Packets, Path, Paths};

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rayon::prelude::*;

use crate::{
    flowlevel,
    results::{self, Failure, Report, Run},
    scenario::{HostModel, Mode, Scenario, Study},
};

/// Parts of a run that [`Watch::progress`] counts in.
pub const PARTS: usize = 1000;

/// What an onlooker tells and is told while a study runs.
#[derive(Debug, Default)]
pub struct Watch {
    /// Set: what runs ends soon, with what it has.
    pub stop: AtomicBool,
    /// Parts of runs done, [`PARTS`] per run.
    pub progress: AtomicUsize,
    /// Runs done.
    pub done: AtomicUsize,
}

impl Watch {
    /// Whether all must end.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// How far one run is, told to the watch.
struct Progress<'a> {
    watch: &'a Watch,
    told: usize,
}

impl Progress<'_> {
    /// A share of the run, 0 to 1.
    fn at(&mut self, share: f64) {
        let parts = ((share * PARTS as f64) as usize).min(PARTS);
        if parts > self.told {
            self.watch
                .progress
                .fetch_add(parts - self.told, Ordering::Relaxed);
            self.told = parts;
        }
    }
}

/// Runs everything. Runs that had not begun when the watch was stopped are left out; of one that could not be built, which only its
/// flows show, the reason is kept beside the others' results. `captures` are for a study of one run.
///
/// # Errors
/// Why no run could be built.
pub fn study(
    study: &Study,
    mode: Option<Mode>,
    watch: &Watch,
    captures: Option<&Captures>,
) -> Result<Report, String> {
    let all = study.runs();
    let planned = all.len();
    let all: Vec<Option<Result<Run, Failure>>> = all
        .into_par_iter()
        .map(|(scenario, seed)| {
            if watch.stopped() {
                return None;
            }
            let run = one(&scenario, seed, mode, watch, captures);
            Some(run.map_err(|reason| Failure {
                seed,
                parameters: scenario.parameters.iter().cloned().collect(),
                reason,
            }))
        })
        .collect();
    let (mut runs, mut failures) = (Vec::new(), Vec::new());
    for run in all.into_iter().flatten() {
        match run {
            Ok(run) => runs.push(run),
            Err(failure) => failures.push(failure),
        }
    }
    if let (true, Some(first)) = (failures.len() == planned, failures.first()) {
        return Err(first.reason.clone());
    }
    Ok(Report {
        version: results::VERSION,
        name: study.name.clone(),
        planned,
        partial: runs.len() < planned || runs.iter().any(|run| run.partial),
        failures,
        runs,
    })
}

/// Runs one scenario with one seed, and shows `captures` what goes over their links (packet mode only).
///
/// # Errors
/// As [`study`].
pub fn one(
    scenario: &Scenario,
    seed: u64,
    mode: Option<Mode>,
    watch: &Watch,
    captures: Option<&Captures>,
) -> Result<Run, String> {
    let mut progress = Progress { watch, told: 0 };
    let run = match (mode.unwrap_or(scenario.run.mode), scenario.transport.host) {
        (Mode::Flow, _) => flowlevel::run(scenario, seed, watch)?,
        (Mode::Packet, HostModel::Rc) => drive::run(
            rc::Rc::new(scenario, seed)?,
            scenario,
            seed,
            &mut progress,
            captures,
        ),
        (Mode::Packet, HostModel::Reference) => drive::run(
            reference::Reference::new(scenario, seed)?,
            scenario,
            seed,
            &mut progress,
            captures,
        ),
    };
    progress.at(1.0);
    watch.done.fetch_add(1, Ordering::Relaxed);
    Ok(run)
}
