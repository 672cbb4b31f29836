//! What an operator wants to be told when it begins and when it ends: congestion, loss, refusals, pauses, evictions, an interface
//! that is gone. One line each, in words; a state that lasts is not told again unless it gets much worse.
//!
//! Taken from differences of counters, so a line says what happened within an interval, not at which packet.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use rocexdp_common::maps::REASON_NAMES;

use super::rates::{Direction, End, IfaceRates, PauseRate, Row, RowKey, Value};

/// Lines of one interval; more are counted in a last one.
const MOST_LINES: usize = 20;
/// States kept: above this none is begun, so that a flood of flows can't take memory.
const MOST_STATES: usize = 16_384;
/// Quiet intervals until a state counts as ended.
const QUIET: u32 = 3;
/// A share of CE marks below this alone is no congestion worth a line.
const CE_SHARE: f64 = 0.001;
/// A share of an interval paused that is worth a line.
const PAUSED_SHARE: f64 = 0.01;
/// `QpEngine::state` of a QP in error.
const QP_ERR: u32 = 6;
/// How many times worse a state must get to be told again.
const WORSE: f64 = 4.0;

/// Kinds of NAKs that go there and back, by code as in `QpCounters::naks`, and in words.
const NAKS: [([&str; 2], &str); 5] = [
    (["nak_sequence", "nak_sequence back"], "PSN sequence error"),
    (
        ["nak_invalid_request", "nak_invalid_request back"],
        "invalid request",
    ),
    (
        ["nak_remote_access", "nak_remote_access back"],
        "remote access error",
    ),
    (
        ["nak_remote_operational", "nak_remote_operational back"],
        "remote operational error",
    ),
    (["nak_other", "nak_other back"], "other code"),
];

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Something is over, or is only worth knowing.
    Info,
    /// Performance suffers.
    Warning,
    /// Work fails, or can't be seen any more.
    Error,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// How much it matters.
    pub level: Level,
    /// What it is about: `congestion`, `gap`, `retransmission`, `nak_*`, `rnr`, `qp_error`, `pause`, `refused`, `evictions`,
    /// `events_lost`, `interface`; as `rocexdp pcap` calls its findings where both can tell the same.
    pub kind: &'static str,
    /// The interface.
    pub iface: String,
    /// In words.
    pub text: String,
    /// Of what a local QP sends: no program saw the packets, so that no event tells of them.
    pub sent: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum About {
    Row(RowKey, &'static str),
    Iface(String, &'static str, u32),
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// The worst that was told.
    told: f64,
    quiet: u32,
}

/// Remembers what was told.
#[derive(Debug, Default)]
pub struct Newsroom {
    states: HashMap<About, State>,
}

/// One observation of an interval.
struct Seen {
    about: About,
    /// 0: nothing.
    size: f64,
    level: Level,
    kind: &'static str,
    sent: bool,
    begun: String,
    ended: String,
}

impl Newsroom {
    /// What is new in an interval. The most serious first.
    pub fn take(&mut self, interval: &[IfaceRates]) -> Vec<News> {
        let mut news = Vec::new();
        for iface in interval {
            let name = iface.iface.to_string();
            self.interface(iface, &name, &mut news);
            // No interval, no news: the counters began anew, or the interface is gone.
            if iface.seconds <= 0.0 {
                continue;
            }
            let mut seen = Vec::new();
            for pause in &iface.pauses {
                seen.push(paused(pause, &name));
            }
            seen.extend(totals(iface, &name));
            let held: HashSet<RowKey> = self.rows_of(iface).cloned().collect();
            for row in &iface.rows {
                if eventful(row) || held.contains(&row.key) {
                    row_news(row, iface.seconds, &mut seen);
                }
            }
            for seen in seen {
                self.judge(seen, &name, &mut news);
            }
            self.forget_gone(iface);
        }
        news.sort_by_key(|n| std::cmp::Reverse(n.level));
        if news.len() > MOST_LINES {
            let more = news.len() - MOST_LINES;
            news.truncate(MOST_LINES);
            news.push(News {
                level: Level::Info,
                kind: "more",
                iface: String::new(),
                text: format!("{more} more changes in this interval are not listed"),
                sent: false,
            });
        }
        news
    }

    fn interface(&mut self, iface: &IfaceRates, name: &str, news: &mut Vec<News>) {
        let about = About::Iface(name.to_owned(), "interface", 0);
        let told = self.states.contains_key(&about);
        let mut say = |level, text| {
            news.push(News {
                level,
                kind: "interface",
                iface: name.to_owned(),
                text,
                sent: false,
            });
        };
        match (&iface.error, told) {
            (Some(error), false) => {
                say(Level::Error, format!("{name}: {error}"));
                self.begin(about, 1.0);
            }
            (None, true) => {
                say(Level::Info, format!("{name}: can be read again"));
                self.states.remove(&about);
            }
            _ => {}
        }
    }

    fn begin(&mut self, about: About, told: f64) {
        self.states.insert(about, State { told, quiet: 0 });
    }

    fn judge(&mut self, seen: Seen, iface: &str, news: &mut Vec<News>) {
        let (level, text) = match self.states.get_mut(&seen.about) {
            None if seen.size <= 0.0 => return,
            None => {
                if self.states.len() >= MOST_STATES {
                    return;
                }
                self.begin(seen.about, seen.size);
                (seen.level, seen.begun)
            }
            Some(state) if seen.size > 0.0 => {
                state.quiet = 0;
                if seen.size < state.told * WORSE {
                    return;
                }
                state.told = seen.size;
                (seen.level, format!("worse: {}", seen.begun))
            }
            Some(state) => {
                state.quiet += 1;
                if state.quiet < QUIET {
                    return;
                }
                self.states.remove(&seen.about);
                if seen.ended.is_empty() {
                    return;
                }
                (Level::Info, seen.ended)
            }
        };
        news.push(News {
            level,
            kind: seen.kind,
            iface: iface.to_owned(),
            text,
            sent: seen.sent,
        });
    }

    /// The lines of an interface that something lasts on.
    fn rows_of<'a>(&'a self, iface: &'a IfaceRates) -> impl Iterator<Item = &'a RowKey> {
        self.states.keys().filter_map(|about| match about {
            About::Row(key, _) if key.iface == iface.iface => Some(key),
            _ => None,
        })
    }

    /// QPs and flows that are no longer there need no end.
    fn forget_gone(&mut self, iface: &IfaceRates) {
        if self.rows_of(iface).next().is_none() {
            return;
        }
        let there: HashSet<&RowKey> = iface.rows.iter().map(|row| &row.key).collect();
        self.states.retain(|about, _| match about {
            About::Row(key, _) => key.iface != iface.iface || there.contains(key),
            About::Iface(..) => true,
        });
    }
}

/// Whether anything but good packets passed: most lines are quiet, and cost no more than this.
fn eventful(row: &Row) -> bool {
    let any = |d: &Direction| {
        [d.ce, d.cnp, d.gaps, d.resent, d.naks, d.rnr]
            .iter()
            .any(|value| value.is_ok_and(|v| v > 0.0))
    };
    any(&row.forth) || any(&row.back) || row.state == Some(QP_ERR)
}

fn known(value: Value) -> f64 {
    value.unwrap_or(0.0)
}

/// A number of an interval from one per second.
fn whole(per_second: Value, seconds: f64) -> u64 {
    (known(per_second) * seconds).round() as u64
}

fn plural(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Percent in two digits or so: `12 %`, `0.4 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent >= 9.95 || percent == 0.0 {
        format!("{percent:.0} %")
    } else {
        format!("{percent:.1} %")
    }
}

/// The line's name in words: `QP 0x000011 10.0.0.2 -> 10.0.0.3`.
#[must_use]
pub fn name(from: &End, to: &End) -> String {
    let qpn = |end: &End| {
        end.qpn
            .map_or_else(|| "?".to_owned(), |q| format!("{q:#x}"))
    };
    format!(
        "QP {} {} -> QP {} {}",
        qpn(from),
        from.address(),
        qpn(to),
        to.address()
    )
}

fn row_news(row: &Row, seconds: f64, out: &mut Vec<Seen>) {
    let (from, to, there, back) = row.oriented();
    for (a, b, way, other) in [(from, to, there, back), (to, from, back, there)] {
        direction_news(&row.key, (a, b), (way, other), seconds, out);
    }
    if row.state.is_some() {
        let about = About::Row(row.key.clone(), "qp_error");
        let what = name(from, to);
        let failed = row.state == Some(QP_ERR);
        out.push(Seen {
            about,
            size: if failed { 1.0 } else { 0.0 },
            level: Level::Error,
            kind: "qp_error",
            sent: false,
            begun: format!("{what}: the QP is in state ERR: its work requests fail"),
            ended: format!("{what}: the QP is out of state ERR"),
        });
    }
}

fn direction_news(
    key: &RowKey,
    (from, to): (&End, &End),
    (way, other): (&Direction, &Direction),
    seconds: f64,
    out: &mut Vec<Seen>,
) {
    let forth = from == &key.a;
    let what = name(from, to);
    let mut add = |kinds: [&'static str; 2], size: f64, level, begun: String, ended: &str| {
        let [first, second] = kinds;
        out.push(Seen {
            about: About::Row(key.clone(), if forth { first } else { second }),
            size,
            level,
            kind: first,
            sent: key.local && forth,
            begun: format!("{what}: {begun}"),
            ended: if ended.is_empty() {
                String::new()
            } else {
                format!("{what}: {ended}")
            },
        });
    };
    // What happens once has no end to be told of: only congestion has one.
    // Marks travel with the data, CNPs come back to its sender.
    let (share, cnp) = (known(way.ce_share), known(other.cnp));
    let marks = match way.ce_share {
        Ok(share) => format!("CE {}, {cnp:.0} CNP/s", percent(share)),
        Err(reason) => format!("{cnp:.0} CNP/s come back; CE n/a: {reason}"),
    };
    add(
        ["congestion", "congestion back"],
        if share >= CE_SHARE || cnp > 0.0 {
            // In marked packets per thousand, or CNPs: either tells how bad it is.
            (share * 1000.0).max(cnp)
        } else {
            0.0
        },
        Level::Warning,
        marks,
        "no more CE marks or CNPs",
    );
    let (gaps, missing) = (whole(way.gaps, seconds), whole(way.missing, seconds));
    add(
        ["gap", "gap back"],
        gaps as f64,
        Level::Warning,
        format!(
            "{} missing in {}: lost before this point, or overtaken",
            plural(missing, "packet", "packets"),
            plural(gaps, "gap", "gaps")
        ),
        "",
    );
    let resent = whole(way.resent, seconds);
    add(
        ["retransmission", "retransmission back"],
        resent as f64,
        Level::Warning,
        format!("{} sent again", plural(resent, "packet", "packets")),
        "",
    );
    for ((kinds, words), count) in NAKS.iter().zip(way.nak_codes) {
        let [sequence, _] = kinds;
        // A sequence error is mended by sending again; of the others the work request dies.
        let level = if *sequence == "nak_sequence" {
            Level::Warning
        } else {
            Level::Error
        };
        let told = format!("{} ({words})", plural(count, "NAK", "NAKs"));
        add(*kinds, count as f64, level, told, "");
    }
    let rnr = whole(way.rnr, seconds);
    add(
        ["rnr", "rnr back"],
        rnr as f64,
        Level::Warning,
        format!(
            "{}: the receiver has no receive posted",
            plural(rnr, "RNR NAK", "RNR NAKs")
        ),
        "",
    );
}

fn paused(pause: &PauseRate, iface: &str) -> Seen {
    let what = match pause.priority {
        Some(priority) => format!("priority {priority}"),
        None => "the whole port".to_owned(),
    };
    let size = match pause.share {
        Ok(share) if share >= PAUSED_SHARE => share * 100.0,
        Ok(_) => 0.0,
        // Only frames are known.
        Err(_) => pause.pauses,
    };
    let share = match pause.share {
        Ok(share) => format!("{} of the time", percent(share)),
        Err(reason) => format!("for a time that is n/a ({reason})"),
    };
    Seen {
        about: About::Iface(
            iface.to_owned(),
            "pause",
            pause.priority.map_or(8, u32::from),
        ),
        size,
        level: Level::Warning,
        kind: "pause",
        sent: false,
        begun: format!(
            "{iface}: the link partner pauses {what} {share}, {:.0} pause frames/s",
            pause.pauses
        ),
        ended: format!("{iface}: {what} is not paused any more"),
    }
}

fn totals(iface: &IfaceRates, name: &str) -> Vec<Seen> {
    let mut seen = Vec::new();
    for reason in REASON_NAMES {
        let found = iface.reasons.iter().find(|(name, _)| name == reason);
        let rate = found.map_or(0.0, |(_, rate)| *rate);
        seen.push(Seen {
            about: About::Iface(name.to_owned(), reason, 1),
            size: rate,
            level: Level::Warning,
            kind: "refused",
            sent: false,
            begun: format!("{name}: {rate:.0} packets/s refused or malformed: {reason}"),
            ended: String::new(),
        });
    }
    seen.push(Seen {
        about: About::Iface(name.to_owned(), "evictions", 0),
        size: iface.evictions,
        level: Level::Warning,
        kind: "evictions",
        sent: false,
        begun: format!(
            "{name}: the table of {} flows is full: {:.0} flows/s evicted, their counters are lost",
            iface.flow_table.capacity, iface.evictions
        ),
        ended: format!("{name}: no more flows are evicted"),
    });
    seen.push(Seen {
        about: About::Iface(name.to_owned(), "events_lost", 0),
        size: iface.events_lost,
        level: Level::Info,
        kind: "events_lost",
        sent: false,
        begun: format!(
            "{name}: {:.0} events/s lost: nobody reads them (see: rocexdp events)",
            iface.events_lost
        ),
        ended: String::new(),
    });
    seen
}
