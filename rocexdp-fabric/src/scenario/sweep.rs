//! Sweeps: any key of a scenario, set to each of a list of values, before the scenario is read as one.
//!
//! A key is written as a path: `"transport.congestion.parameters.rpg_ai_rate"`, `"fabric.defaults.switch.ecn.0.kmax"` (the first
//! rule). Several keys make all combinations. What a path sets need not have been there, but what holds it must.

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::source::{Error, Source};

/// Combinations at most.
const MOST: usize = 10_000;

type Value<'a> = Spanned<DeValue<'a>>;
type Table<'a> = DeTable<'a>;

/// One combination: paths, and the values they are set to.
pub(super) type Point<'a> = Vec<(String, Value<'a>)>;

/// Takes `sweep` out of a scenario, as its combinations; the last key varies fastest. Without a sweep, one empty combination.
pub(super) fn take<'a>(source: Source<'_>, root: &mut Table<'a>) -> Result<Vec<Point<'a>>, Error> {
    let mut points = vec![Point::new()];
    let Some(sweep) = root.remove("sweep") else {
        return Ok(points);
    };
    let at = sweep.span();
    let DeValue::Table(table) = sweep.into_inner() else {
        let reason = "sweep is a table of keys and lists, as in \"transport.mtu\" = [1024, 4096]";
        return Err(source.error(at, reason));
    };
    let mut axes: Vec<_> = table.into_iter().collect();
    // In the order of the text, not of the names.
    axes.sort_by_key(|(key, _)| key.span().start);
    for (key, values) in axes {
        let path = key.get_ref().to_string();
        let place = values.span();
        let DeValue::Array(values) = values.into_inner() else {
            let reason = format!(
                "the sweep of {path} is a list of values (a path with dots stands in quotes)"
            );
            return Err(source.error(place, reason));
        };
        if values.is_empty() {
            return Err(source.error(place, format!("the sweep of {path} has no values")));
        }
        if matches!(path.split('.').next(), Some("sweep" | "version")) || path == "run.seeds" {
            return Err(source.error(key.span(), format!("{path} can't be swept")));
        }
        if points.len().saturating_mul(values.len()) > MOST {
            return Err(source.error(place, format!("more than {MOST} combinations")));
        }
        points = points
            .iter()
            .flat_map(|point| {
                values.iter().map(|value| {
                    let mut point = point.clone();
                    point.push((path.clone(), value.clone()));
                    point
                })
            })
            .collect();
    }
    Ok(points)
}

/// Sets what a combination says.
pub(super) fn apply<'a>(
    source: Source<'_>,
    root: &mut Table<'a>,
    point: &Point<'a>,
) -> Result<(), Error> {
    for (path, value) in point {
        let steps: Vec<&str> = path.split('.').collect();
        set_in_table(root, &steps, value).map_err(|reason| {
            source.error(value.span(), format!("the sweep of {path}: {reason}"))
        })?;
    }
    Ok(())
}

fn set_in_table<'a>(
    table: &mut Table<'a>,
    steps: &[&str],
    value: &Value<'a>,
) -> Result<(), String> {
    let [step, rest @ ..] = steps else {
        return Ok(());
    };
    let key = || Spanned::new(value.span(), (*step).to_owned().into());
    if rest.is_empty() {
        table.insert(key(), value.clone());
        return Ok(());
    }
    if !table.contains_key(*step) {
        let empty = DeValue::Table(Table::new());
        table.insert(key(), Spanned::new(value.span(), empty));
    }
    match table.get_mut(*step) {
        Some(next) => set_in_value(next.get_mut(), step, rest, value),
        None => Ok(()),
    }
}

fn set_in_value<'a>(
    place: &mut DeValue<'a>,
    called: &str,
    steps: &[&str],
    value: &Value<'a>,
) -> Result<(), String> {
    match place {
        DeValue::Table(table) => set_in_table(table, steps, value),
        DeValue::Array(array) => {
            let [step, rest @ ..] = steps else {
                return Ok(());
            };
            let n: Option<usize> = step.parse().ok();
            let Some(next) = n.and_then(|n| array.get_mut(n)) else {
                return Err(format!("{called} has no number {step}"));
            };
            if rest.is_empty() {
                *next = value.clone();
                return Ok(());
            }
            set_in_value(next.get_mut(), step, rest, value)
        }
        _ => Err(format!("{called} holds no keys")),
    }
}

/// A value as results show it.
pub(super) fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(list) => {
            let items: Vec<_> = list.iter().map(|item| shown(item.get_ref())).collect();
            format!("[{}]", items.join(", "))
        }
        DeValue::Table(table) => {
            let items: Vec<_> = table
                .iter()
                .map(|(key, value)| format!("{} = {}", key.get_ref(), shown(value.get_ref())))
                .collect();
            format!("{{ {} }}", items.join(", "))
        }
    }
}
