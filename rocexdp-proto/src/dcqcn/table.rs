//! DCQCN's parameters by name, for a command line, a configuration file and listings: one table row per parameter, with its
//! unit, range and meaning.
//!
//! A value is a text: a number in the row's unit (decimals where the unit is finer inside), `0`/`1`/`true`/`false` for a
//! flag, a word for a choice. Whatever [`Params::iter`] prints, [`Params::set`] takes.
//!
//! Must not: know defaults or behaviour.

use core::time::Duration;

use super::params::{AlphaForm, AlphaOn, CutOn, GapMarks, HyperStep, Params, StageCount};
use crate::time::{Rate, nanos};

/// Why a parameter could not be set, or a set of them not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    /// No such parameter.
    #[error("no DCQCN parameter is called {name:?}; there are: {known}")]
    Unknown {
        /// As given.
        name: String,
        /// All names.
        known: String,
    },
    /// The value is no number, no flag or not one of the words, or is out of range.
    #[error("{name} can't be {value:?}: it takes {takes}")]
    BadValue {
        /// The parameter.
        name: &'static str,
        /// As given.
        value: String,
        /// Range and unit, or the words.
        takes: String,
    },
    /// The value is in its range but does not fit the others.
    #[error("{name}: {reason}")]
    Conflict {
        /// The parameter to change.
        name: &'static str,
        /// What it is at odds with.
        reason: String,
    },
}

/// One parameter as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Name, as ConnectX has it where ConnectX has it.
    pub name: &'static str,
    /// Present value, as [`Params::set`] takes it.
    pub value: String,
    /// Unit of the value; empty if it has none.
    pub unit: &'static str,
    /// What values it takes, in words.
    pub takes: String,
    /// Meaning, one line.
    pub doc: &'static str,
}

/// How a parameter is stored, in base units: nanoseconds, bits per second, or the number itself.
enum Kind {
    /// A number: `scale` base units per unit, allowed from `min` to `max` units.
    Number { scale: u64, min: u64, max: u64 },
    /// A word, stored as its place in the list.
    Choice(&'static [&'static str]),
}

struct Row {
    name: &'static str,
    unit: &'static str,
    doc: &'static str,
    kind: Kind,
    get: fn(&Params) -> u64,
    set: fn(&mut Params, u64),
}

/// A number without unit, stored in `$t`.
macro_rules! number {
    ($part:ident . $field:ident : $t:ty, $min:expr, $max:expr, $unit:expr, $doc:expr) => {
        Row {
            name: stringify!($field),
            unit: $unit,
            doc: $doc,
            kind: Kind::Number {
                scale: 1,
                min: $min,
                max: $max,
            },
            get: |p| u64::from(p.$part.$field),
            set: |p, v| p.$part.$field = <$t>::try_from(v).unwrap_or(<$t>::MAX),
        }
    };
}

/// A time in microseconds (`us`) or nanoseconds.
macro_rules! time {
    ($part:ident . $field:ident, $scale:expr, $unit:expr, $min:expr, $max:expr, $doc:expr) => {
        Row {
            name: stringify!($field),
            unit: $unit,
            doc: $doc,
            kind: Kind::Number {
                scale: $scale,
                min: $min,
                max: $max,
            },
            get: |p| nanos(p.$part.$field),
            set: |p, v| p.$part.$field = Duration::from_nanos(v),
        }
    };
}

/// A rate in Mb/s.
macro_rules! rate {
    ($part:ident . $field:ident, $min:expr, $doc:expr) => {
        Row {
            name: stringify!($field),
            unit: "Mb/s",
            doc: $doc,
            kind: Kind::Number {
                scale: 1_000_000,
                min: $min,
                max: 100_000_000,
            },
            get: |p| p.$part.$field.as_bps(),
            set: |p, v| p.$part.$field = Rate::from_bps(v),
        }
    };
}

/// A flag.
macro_rules! flag {
    ($part:ident . $field:ident, $doc:expr) => {
        Row {
            name: stringify!($field),
            unit: "",
            doc: $doc,
            kind: Kind::Number {
                scale: 1,
                min: 0,
                max: 1,
            },
            get: |p| u64::from(p.$part.$field),
            set: |p, v| p.$part.$field = v != 0,
        }
    };
}

/// One of two words; the first stands for `$a`.
macro_rules! choice {
    ($part:ident . $field:ident, $a:path = $wa:literal, $b:path = $wb:literal, $doc:expr) => {
        Row {
            name: stringify!($field),
            unit: "",
            doc: $doc,
            kind: Kind::Choice(&[$wa, $wb]),
            get: |p| u64::from(p.$part.$field != $a),
            set: |p, v| p.$part.$field = if v == 0 { $a } else { $b },
        }
    };
}

/// Longest time a `u32` of microseconds holds, as the hardware's registers do.
const MAX_US: u64 = u32::MAX as u64;

static TABLE: &[Row] = &[
    flag!(
        rp.clamp_tgt_rate,
        "RP: every cut sets the target rate to the rate before it"
    ),
    flag!(
        rp.clamp_tgt_rate_after_time_inc,
        "RP: a cut does so also if only timer increases came before it"
    ),
    time!(
        rp.rpg_time_reset,
        1_000,
        "us",
        1,
        MAX_US,
        "RP: time between increases"
    ),
    number!(rp.rpg_byte_reset: u32, 0, MAX_US, "64 B", "RP: data sent between increases; 0 turns the byte counter off"),
    number!(rp.rpg_threshold: u32, 0, 31, "", "RP: increases of one kind before fast recovery ends (F)"),
    rate!(
        rp.rpg_max_rate,
        0,
        "RP: ceiling of the rate; 0 means the line rate"
    ),
    rate!(
        rp.rpg_ai_rate,
        0,
        "RP: step of the target rate in additive increase"
    ),
    rate!(
        rp.rpg_hai_rate,
        0,
        "RP: step of the target rate in hyper increase"
    ),
    number!(rp.rpg_gd: u8, 10, 11, "log2", "RP: a cut takes alpha / 2^(rpg_gd - 10) of the rate"),
    number!(rp.rpg_min_dec_fac: u8, 0, 100, "%", "RP: what one cut leaves of the rate at least"),
    rate!(rp.rpg_min_rate, 1, "RP: floor of the rate"),
    rate!(
        rp.rate_to_set_on_first_cnp,
        0,
        "RP: rate and target at the first CNP; 0 leaves them"
    ),
    number!(rp.dce_tcp_g: u16, 0, 1_023, "1/1024", "RP: weight of the old alpha in its average"),
    time!(
        rp.dce_tcp_rtt,
        1_000,
        "us",
        1,
        131_071,
        "RP: period of alpha"
    ),
    number!(rp.initial_alpha_value: u16, 1, 1_023, "1/1024", "RP: alpha at the first CNP"),
    time!(
        rp.rate_reduce_monitor_period,
        1_000,
        "us",
        1,
        MAX_US,
        "RP: period of the cut ticks"
    ),
    choice!(
        rp.cut_on,
        CutOn::Event = "event",
        CutOn::Tick = "tick",
        "RP: a CNP cuts at once, or at the next tick"
    ),
    choice!(
        rp.alpha_on,
        AlphaOn::CnpAndTimeout = "cnp",
        AlphaOn::Tick = "tick",
        "RP: alpha rises at each CNP and decays in silence, or moves at each tick"
    ),
    choice!(
        rp.alpha_form,
        AlphaForm::Fixed10 = "fixed10",
        AlphaForm::Real = "real",
        "RP: arithmetic of alpha"
    ),
    choice!(
        rp.stage_count,
        StageCount::Before = "before",
        StageCount::After = "after",
        "RP: an increase is counted before or after its phase is chosen"
    ),
    choice!(
        rp.hyper_step,
        HyperStep::Constant = "constant",
        HyperStep::Multiplied = "multiplied",
        "RP: a hyper increase is rpg_hai_rate, or i times that at the i-th"
    ),
    time!(
        rp.cut_tick_delay,
        1,
        "ns",
        0,
        1_000_000,
        "RP: added once before the first cut tick"
    ),
    time!(
        np.min_time_between_cnps,
        1_000,
        "us",
        0,
        MAX_US,
        "NP: least time between two CNPs of a QP"
    ),
    number!(np.cnp_dscp: u8, 0, 63, "", "NP: DSCP of CNPs"),
    number!(np.cnp_802p_prio: u8, 0, 7, "", "NP: 802.1p priority of CNPs in VLAN-tagged frames"),
    choice!(
        np.gap_marks,
        GapMarks::Deferred = "deferred",
        GapMarks::Dropped = "dropped",
        "NP: marks within the gap make a CNP at its end, or none"
    ),
];

impl Row {
    fn takes(&self) -> String {
        match self.kind {
            Kind::Number { min: 0, max: 1, .. } => "0 or 1".to_owned(),
            Kind::Number { min, max, .. } if self.unit.is_empty() => format!("{min} to {max}"),
            Kind::Number { min, max, .. } => format!("{min} to {max}, in {}", self.unit),
            Kind::Choice(words) => words.join(" or "),
        }
    }

    /// The value in base units, if `text` is one.
    fn parse(&self, text: &str) -> Option<u64> {
        match self.kind {
            Kind::Choice(words) => words
                .iter()
                .position(|w| *w == text)
                .and_then(|i| u64::try_from(i).ok()),
            Kind::Number { scale, min, max } => {
                let base = match text {
                    "true" if max == 1 => 1,
                    "false" if max == 1 => 0,
                    _ => parse_decimal(text, scale)?,
                };
                (min.saturating_mul(scale)..=max.saturating_mul(scale))
                    .contains(&base)
                    .then_some(base)
            }
        }
    }

    fn print(&self, base: u64) -> String {
        match self.kind {
            Kind::Choice(words) => usize::try_from(base)
                .ok()
                .and_then(|i| words.get(i))
                .copied()
                .unwrap_or_default()
                .to_owned(),
            Kind::Number { scale, .. } => print_decimal(base, scale),
        }
    }

    fn bad(&self, value: &str) -> ParamError {
        ParamError::BadValue {
            name: self.name,
            value: value.to_owned(),
            takes: self.takes(),
        }
    }
}

/// `12.5` with scale 1000 is 12500; more decimals than the scale (a power of ten) holds are refused, as is a sign.
fn parse_decimal(text: &str, scale: u64) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty()
        || !whole
            .bytes()
            .chain(decimals.bytes())
            .all(|b| b.is_ascii_digit())
    {
        return None;
    }
    let mut base = whole.parse::<u64>().ok()?.checked_mul(scale)?;
    let mut place = scale;
    for digit in decimals.bytes() {
        if place < 10 {
            return None;
        }
        place /= 10;
        base = base.checked_add(u64::from(digit - b'0').checked_mul(place)?)?;
    }
    Some(base)
}

fn print_decimal(base: u64, scale: u64) -> String {
    let (whole, part) = (base / scale, base % scale);
    if part == 0 {
        return whole.to_string();
    }
    let width = scale.to_string().len() - 1;
    let decimals = format!("{part:0width$}");
    format!("{whole}.{}", decimals.trim_end_matches('0'))
}

impl Params {
    /// Sets one parameter by name. The set as a whole is checked by [`Params::validate`].
    ///
    /// # Errors
    /// Unknown name (the error lists the names), or a value that is none or out of range (the error names range and unit).
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ParamError> {
        let Some(row) = TABLE.iter().find(|r| r.name == name) else {
            let known: Vec<_> = TABLE.iter().map(|r| r.name).collect();
            return Err(ParamError::Unknown {
                name: name.to_owned(),
                known: known.join(", "),
            });
        };
        let base = row.parse(value.trim()).ok_or_else(|| row.bad(value))?;
        (row.set)(self, base);
        Ok(())
    }

    /// Every parameter with its present value, reaction point first.
    pub fn iter(&self) -> impl Iterator<Item = Param> + '_ {
        TABLE.iter().map(|row| Param {
            name: row.name,
            value: row.print((row.get)(self)),
            unit: row.unit,
            takes: row.takes(),
            doc: row.doc,
        })
    }

    /// Every value within its range, whoever wrote the fields.
    pub(super) fn check_ranges(&self) -> Result<(), ParamError> {
        for row in TABLE {
            let text = row.print((row.get)(self));
            if row.parse(&text).is_none() {
                return Err(row.bad(&text));
            }
        }
        Ok(())
    }
}
