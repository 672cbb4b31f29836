//! From what was written to a checked [`Study`]: sweeps set, fabric and flow files read, workloads checked for an end.

use std::{ops::Range, sync::Arc};

use rocexdp_sim::picos::Picos;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    Load, Mode, RunPlan, Scenario, Study, VERSION,
    schema::Schema,
    sweep::{self, Point},
    transport,
};
use crate::{
    fabric::Fabric,
    source::{Error, Source},
    workload::Workload,
};

/// Runs of one study at most.
const MOST_RUNS: usize = 100_000;
/// Nodes and links of all combinations together at most: each has a fabric of its own.
const MOST_PARTS: usize = 4_000_000;
/// Steps of recorded series when a run's duration is known.
const STEPS: u64 = 500;
/// The first step when it is not.
const SAMPLE: Picos = Picos::from_micros(1);

pub(super) fn study(source: Source<'_>, load: Load<'_>) -> Result<Study, Error> {
    let mut root = source.tree()?;
    let points = sweep::take(source, root.get_mut())?;
    let name = match root.get_ref().get("name").map(Spanned::get_ref) {
        Some(DeValue::String(name)) => name.to_string(),
        _ => source.name().to_owned(),
    };
    let mut scenarios: Vec<Arc<Scenario>> = Vec::new();
    let mut parts = 0;
    let mut warnings: Vec<Error> = Vec::new();
    for point in &points {
        let scenario = one(source, root.clone(), point, load)?;
        for warning in &scenario.fabric.warnings {
            if !warnings.contains(warning) {
                warnings.push(warning.clone());
            }
        }
        parts += scenario.fabric.parts();
        scenarios.push(Arc::new(scenario));
        if parts > MOST_PARTS {
            return Err(source.error_anywhere(format!(
                "the {} combinations of the sweep have more than {MOST_PARTS} hosts, switches and links together: sweep less, or in several studies",
                points.len()
            )));
        }
    }
    let runs: usize = scenarios.iter().map(|scenario| scenario.seeds.len()).sum();
    if runs > MOST_RUNS {
        return Err(source.error_anywhere(format!(
            "{runs} runs (seeds times combinations) are more than {MOST_RUNS}"
        )));
    }
    let root = root.get_ref();
    let line = |keys: &[&str]| {
        let first = keys.iter().find_map(|key| root.get(*key))?;
        source.error(place(first), "").line
    };
    Ok(Study {
        name,
        scenarios,
        warnings,
        workload_line: line(&["traffic", "pattern", "flow", "flows_file"]),
        fabric_line: line(&["fabric"]),
    })
}

/// Where a value, or the first of a list, is.
fn place(value: &Spanned<DeValue<'_>>) -> Range<usize> {
    match value.get_ref() {
        DeValue::Array(list) => list.iter().next().map_or(value.span(), Spanned::span),
        _ => value.span(),
    }
}

fn one<'a>(
    source: Source<'_>,
    mut root: Spanned<DeTable<'a>>,
    point: &Point<'a>,
    load: Load<'_>,
) -> Result<Scenario, Error> {
    // A swept file name first: what is swept inside of it comes after it was read.
    let (files, keys): (Point<'_>, Point<'_>) = point
        .iter()
        .cloned()
        .partition(|(path, _)| path == "fabric");
    sweep::apply(source, root.get_mut(), &files)?;
    let named = match root
        .get_ref()
        .get("fabric")
        .map(|value| (value.span(), value.get_ref()))
    {
        Some((at, DeValue::String(file))) => Some((at, file.to_string())),
        Some(_) => None,
        None => {
            return Err(
                source.error_anywhere("no fabric: give [fabric], or fabric = \"FILE.toml\"")
            );
        }
    };
    let Some((at, file)) = named else {
        sweep::apply(source, root.get_mut(), &keys)?;
        return build(source, root, point, load);
    };
    let text =
        load(&file).map_err(|why| source.error(at.clone(), format!("the fabric {file}: {why}")))?;
    let both = source.with(&file, &text);
    let fabric = both.second_tree()?;
    // Values of another text: the tree's lifetime shrinks to that of both.
    let mut root: Spanned<DeTable<'_>> = root;
    let place = fabric.span();
    let fabric = Spanned::new(place.clone(), DeValue::Table(fabric.into_inner()));
    root.get_mut()
        .insert(Spanned::new(at, "fabric".into()), fabric);
    sweep::apply(both, root.get_mut(), &keys)?;
    build(both, root, point, load)
}

fn build(
    source: Source<'_>,
    root: Spanned<DeTable<'_>>,
    point: &Point<'_>,
    load: Load<'_>,
) -> Result<Scenario, Error> {
    let schema: Schema = source.read(root)?;
    if let Some(version) = &schema.version
        && *version.get_ref() != VERSION
    {
        let reason = format!(
            "version {}: this program reads {VERSION}",
            version.get_ref()
        );
        return Err(source.error(version.span(), reason));
    }
    let fabric = Fabric::build(&schema.fabric, &schema.set, source)?;
    let transport = transport::build(&schema.transport, &fabric, source)?;
    let classes = transport::classes(&schema.class, &fabric, source)?;
    let run = plan(&schema, source)?;
    let mut endless: Option<(Range<usize>, String)> = None;
    let workload = Workload::build(
        &schema,
        &fabric,
        &classes,
        run.duration,
        source,
        load,
        &mut endless,
    )?;
    if let (None, Some((at, what))) = (run.duration, endless) {
        let reason = format!("{what} never ends: give run.duration, or an end");
        return Err(source.error(at, reason));
    }
    let seeds = schema
        .run
        .seeds
        .map_or_else(|| vec![1], |seeds| seeds.into_inner().0);
    let parameters = point
        .iter()
        .map(|(path, value)| (path.clone(), sweep::shown(value.get_ref())))
        .collect();
    Ok(Scenario {
        parameters,
        fabric,
        transport,
        classes,
        workload,
        run,
        seeds,
    })
}

fn plan(schema: &Schema, source: Source<'_>) -> Result<RunPlan, Error> {
    let run = &schema.run;
    let duration = run.duration.as_ref().map(|time| time.get_ref().0);
    let at = run.duration.as_ref();
    if duration == Some(Picos::ZERO) {
        return Err(source.error_at(at, "a run of no duration shows nothing"));
    }
    if duration.is_some_and(|end| end >= Picos(u64::MAX / 4)) {
        return Err(source.error_at(at, "a run lasts 53 days at most"));
    }
    let whole = run.whole.unwrap_or(false);
    if whole && duration.is_none() {
        return Err(source.error_anywhere("run.whole needs run.duration"));
    }
    let warmup = run
        .warmup
        .as_ref()
        .map_or(Picos::ZERO, |time| time.get_ref().0);
    if duration.is_some_and(|end| warmup >= end) {
        return Err(source.error_at(run.warmup.as_ref(), "warmup is below duration"));
    }
    let sample = match (&run.sample, duration) {
        (Some(given), _) if given.get_ref().0 < Picos::from_nanos(1) => {
            return Err(source.error(given.span(), "sample is 1ns or more"));
        }
        (Some(given), _) => given.get_ref().0,
        (None, Some(end)) => Picos((end.0 / STEPS).max(1000)),
        (None, None) => SAMPLE,
    };
    let mode = match &run.mode {
        None => Mode::Packet,
        Some(word) => Mode::named(word.get_ref()).map_err(|why| source.error(word.span(), why))?,
    };
    Ok(RunPlan {
        duration,
        whole,
        warmup,
        sample,
        mode,
        stop_at_deadlock: run.stop_at_deadlock.unwrap_or(false),
    })
}
