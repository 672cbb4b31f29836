//! Two captures of the same kind of work compared: what got worse, in words, most serious first.
//!
//! QP numbers differ from run to run, so that whole captures and pairs of hosts are compared, as rates: per packet, per
//! second. A difference counts if it is large and not chance: of shares one that three standard deviations don't explain,
//! of delays a quarter more. What only one capture can tell is said.

mod text;

use std::{collections::BTreeMap, net::IpAddr};

use serde::Serialize;
use text::{Bytes, Percent, Times};

use crate::{
    findings::{Severity, words::Span},
    report::{Metrics, Report},
};

/// Version of the JSON.
const VERSION: u32 = 1;
/// Standard deviations that chance is given.
const CHANCE: f64 = 3.0;
/// A delay is longer if it is longer by this factor, and by [`LONGER_NS`].
const LONGER: f64 = 1.25;
const LONGER_NS: f64 = 1_000.0;
/// Delays measured on both sides at least.
const SAMPLES: u64 = 20;
/// A rate is lower if it is lower by this factor.
const SLOWER: f64 = 0.8;
/// Changes of pairs of hosts told at most, of each kind.
const PAIRS_MOST: usize = 5;

/// A change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// How bad.
    pub severity: Severity,
    /// What changed: a field of the report, or a kind of finding.
    pub what: &'static str,
    /// Of which two hosts; `null`: of the whole capture.
    pub hosts: Option<[IpAddr; 2]>,
    /// In the good capture, in the field's unit.
    pub good: f64,
    /// In the other.
    pub now: f64,
    /// In words.
    pub text: String,
}

/// What changed.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// Version of this JSON.
    pub version: u32,
    /// Both captures have packets of QP pairs; otherwise that nothing changed says nothing.
    pub comparable: bool,
    /// What got worse, most serious first.
    pub worse: Vec<Change>,
    /// What got better.
    pub better: Vec<Change>,
    /// What can't be compared, and why.
    pub notes: Vec<String>,
}

/// What is compared of a capture, or of two hosts.
#[derive(Clone, Copy, Default)]
struct Sums {
    packets: f64,
    bytes: f64,
    seconds: f64,
    again: f64,
    naks: f64,
    refused: f64,
    rnrs: f64,
    timeouts: f64,
    ce: f64,
    cnp: f64,
    icrc_errors: f64,
    icrc_checked: f64,
    samples: u64,
    p50: f64,
    p99: f64,
}

impl Sums {
    fn add(&mut self, m: &Metrics) {
        self.packets += m.packets as f64;
        self.bytes += m.message_bytes as f64;
        self.again += m.retransmissions.packets as f64;
        self.naks += m.naks.sequence as f64;
        self.refused += (m.naks.invalid_request
            + m.naks.remote_access
            + m.naks.remote_operational
            + m.naks.other) as f64;
        self.rnrs += m.rnrs as f64;
        self.timeouts += m.timeouts as f64;
        self.ce += m.ce_marked as f64;
        self.cnp += m.cnp as f64;
        self.icrc_errors += m.icrc_errors as f64;
        self.icrc_checked += (m.packets.saturating_sub(m.icrc_unknown) + m.icrc_errors) as f64;
        if let Some(delay) = m.ack_delay {
            // Percentiles of QPs can't be joined: their mean by weight of samples.
            let weight = delay.samples as f64;
            self.p50 += delay.p50_ns as f64 * weight;
            self.p99 += delay.p99_ns as f64 * weight;
            self.samples += delay.samples;
        }
    }

    fn mean(&self, sum: f64) -> f64 {
        sum / (self.samples.max(1) as f64)
    }
}

/// A share that is compared.
struct Share {
    what: &'static str,
    severity: Severity,
    name: &'static str,
    part: fn(&Sums) -> f64,
    of: fn(&Sums) -> f64,
}

/// Most serious first.
const SHARES: &[Share] = &[
    Share {
        what: "naks_refused",
        severity: Severity::Error,
        name: "NAKs that end a connection",
        part: |s| s.refused,
        of: |s| s.packets,
    },
    Share {
        what: "timeouts",
        severity: Severity::Warning,
        name: "retransmission timeouts",
        part: |s| s.timeouts,
        of: |s| s.packets,
    },
    Share {
        what: "naks_sequence",
        severity: Severity::Warning,
        name: "losses told by NAKs",
        part: |s| s.naks,
        of: |s| s.packets,
    },
    Share {
        what: "retransmissions_packets",
        severity: Severity::Warning,
        name: "packets sent again",
        part: |s| s.again,
        of: |s| s.packets,
    },
    Share {
        what: "icrc_errors",
        severity: Severity::Warning,
        name: "packets with a wrong ICRC",
        part: |s| s.icrc_errors,
        of: |s| s.icrc_checked,
    },
    Share {
        what: "rnrs",
        severity: Severity::Warning,
        name: "RNR NAKs",
        part: |s| s.rnrs,
        of: |s| s.packets,
    },
    Share {
        what: "cnp",
        severity: Severity::Warning,
        name: "CNPs",
        part: |s| s.cnp,
        of: |s| s.packets,
    },
    Share {
        what: "ce_marked",
        severity: Severity::Warning,
        name: "packets with a CE mark",
        part: |s| s.ce,
        of: |s| s.packets,
    },
];

/// Changes for the worse and for the better, in order of seriousness.
#[derive(Default)]
struct Changes {
    worse: Vec<(usize, Change)>,
    better: Vec<(usize, Change)>,
}

/// Compares a report with that of a good capture.
#[must_use]
pub fn diff(now: &Report, good: &Report) -> Diff {
    let mut changes = Changes::default();
    let mut notes = Vec::new();
    kinds(now, good, &mut changes);
    let (all_now, all_good) = (whole(now), whole(good));
    for (name, sums) in [("this capture", &all_now), ("the good capture", &all_good)] {
        if sums.packets == 0.0 {
            notes.push(format!(
                "{name} has no packets of QP pairs: nothing to compare"
            ));
        } else if sums.samples < SAMPLES {
            notes.push(format!(
                "{name} has {} acknowledgement delays: too few to compare",
                sums.samples
            ));
        }
    }
    for (name, report) in [("this capture", now), ("the good capture", good)] {
        if !report.complete {
            notes.push(format!("{name} was not read to its end"));
        }
    }
    compare(None, &all_now, &all_good, &mut changes);
    let slower_only = |(_, change): &(usize, Change)| change.severity == Severity::Notice;
    if changes.worse.iter().all(slower_only) {
        rare(now, good, &mut notes);
    }
    let (pairs_now, pairs_good) = (pairs(now), pairs(good));
    let both: Vec<_> = pairs_now
        .iter()
        .filter_map(|(hosts, sums)| Some((*hosts, sums, pairs_good.get(hosts)?)))
        .collect();
    if pairs_now.len() > 1 || pairs_good.len() > 1 {
        let (only_now, only_good) = (pairs_now.len() - both.len(), pairs_good.len() - both.len());
        if only_now + only_good != 0 {
            notes.push(format!(
                "{only_now} pairs of hosts are in this capture alone and {only_good} in the good one: they count for the whole, and are not compared"
            ));
        }
        let mut of_pairs = Changes::default();
        for (hosts, now, good) in both {
            compare(Some(hosts), now, good, &mut of_pairs);
        }
        keep_worst(of_pairs.worse, &mut changes.worse, &mut notes);
        keep_worst(of_pairs.better, &mut changes.better, &mut notes);
    }
    Diff {
        version: VERSION,
        comparable: all_now.packets > 0.0 && all_good.packets > 0.0,
        worse: in_order(changes.worse),
        better: in_order(changes.better),
        notes,
    }
}

fn in_order(mut changes: Vec<(usize, Change)>) -> Vec<Change> {
    changes.sort_by_key(|(rank, change)| (change.severity, *rank, change.hosts));
    changes.into_iter().map(|(_, change)| change).collect()
}

fn keep_worst(
    mut changes: Vec<(usize, Change)>,
    kept: &mut Vec<(usize, Change)>,
    notes: &mut Vec<String>,
) {
    changes.sort_by(|(rank_a, a), (rank_b, b)| {
        let size = |c: &Change| (c.now - c.good).abs();
        rank_a
            .cmp(rank_b)
            .then(size(b).total_cmp(&size(a)))
            .then(a.hosts.cmp(&b.hosts))
    });
    let mut counts = BTreeMap::<&str, usize>::new();
    let before = changes.len();
    changes.retain(|(_, change)| {
        let count = counts.entry(change.what).or_default();
        *count += 1;
        *count <= PAIRS_MOST
    });
    if changes.len() < before {
        notes.push(format!(
            "{} smaller changes of pairs of hosts are left out ({PAIRS_MOST} are told of each kind)",
            before - changes.len()
        ));
    }
    kept.append(&mut changes);
}

fn whole(report: &Report) -> Sums {
    let mut sums = Sums {
        seconds: report.duration_s,
        ..Sums::default()
    };
    for flow in &report.flows {
        sums.add(&flow.metrics);
    }
    sums
}

fn pairs(report: &Report) -> BTreeMap<[IpAddr; 2], Sums> {
    let mut pairs = BTreeMap::<_, Sums>::new();
    for flow in &report.flows {
        let mut hosts = flow.endpoints.map(|end| end.address);
        hosts.sort_unstable();
        let sums = pairs.entry(hosts).or_default();
        sums.seconds = report.duration_s;
        sums.add(&flow.metrics);
    }
    pairs
}

/// Kinds of errors that one capture has and the other has not.
fn kinds(now: &Report, good: &Report, changes: &mut Changes) {
    let count = |report: &Report| {
        let mut counts = BTreeMap::<_, f64>::new();
        for finding in &report.findings {
            if finding.severity == Severity::Error {
                *counts.entry(finding.kind).or_default() += 1.0;
            }
        }
        counts
    };
    let (counts_now, counts_good) = (count(now), count(good));
    let mut all: Vec<_> = counts_now
        .keys()
        .chain(counts_good.keys())
        .copied()
        .collect();
    all.sort_unstable();
    all.dedup();
    for kind in all {
        let n = counts_now.get(&kind).copied().unwrap_or(0.0);
        let g = counts_good.get(&kind).copied().unwrap_or(0.0);
        let first = now
            .findings
            .iter()
            .find(|f| f.kind == kind)
            .map_or_else(String::new, |f| format!(": {}", f.text));
        let change = |text| Change {
            severity: Severity::Error,
            what: kind.name(),
            hosts: None,
            good: g,
            now: n,
            text,
        };
        let name = kind.name().replace('_', " ");
        if n > 0.0 && g == 0.0 {
            let text = format!("{name}: {n} found, none in the good capture{first}");
            changes.worse.push((0, change(text)));
        } else if g > 0.0 && n == 0.0 {
            let text = format!("{name}: none found, {g} in the good capture");
            changes.better.push((0, change(text)));
        }
    }
}

/// What one capture alone has a few of: where no share tells of it, it may be chance, and may not.
fn rare(now: &Report, good: &Report, notes: &mut Vec<String>) {
    let mut told = BTreeMap::<_, (u64, &str)>::new();
    for finding in &now.findings {
        let known = good.findings.iter().any(|f| f.kind == finding.kind);
        if finding.severity == Severity::Warning && !known {
            told.entry(finding.kind).or_insert((0, &finding.text)).0 += 1;
        }
    }
    for (kind, (count, first)) in told {
        notes.push(format!(
            "{}: {count} found, none in the good capture; so few may be chance: {first}",
            kind.name().replace('_', " ")
        ));
    }
}

/// Whether two shares differ by more than chance explains.
fn differs(part: (f64, f64), of: (f64, f64)) -> bool {
    if of.0 <= 0.0 || of.1 <= 0.0 {
        return false;
    }
    let both = ((part.0 + part.1) / (of.0 + of.1)).clamp(0.0, 1.0);
    let deviation = (both * (1.0 - both) * (1.0 / of.0 + 1.0 / of.1)).sqrt();
    (part.0 / of.0 - part.1 / of.1).abs() > CHANCE * deviation
}

fn compare(hosts: Option<[IpAddr; 2]>, now: &Sums, good: &Sums, changes: &mut Changes) {
    let of = hosts.map_or_else(String::new, |[a, b]| format!("{a} and {b}: "));
    for (rank, share) in SHARES.iter().enumerate() {
        let part = ((share.part)(now), (share.part)(good));
        let whole = ((share.of)(now), (share.of)(good));
        if !differs(part, whole) {
            continue;
        }
        let rates = (part.0 / whole.0, part.1 / whole.1);
        let change = Change {
            severity: share.severity,
            what: share.what,
            hosts,
            good: rates.1,
            now: rates.0,
            text: format!(
                "{of}{}: {} of packets ({}), {} in the good capture ({}){}",
                share.name,
                Percent(rates.0),
                part.0,
                Percent(rates.1),
                part.1,
                Times(rates.0, rates.1)
            ),
        };
        let list = if rates.0 > rates.1 {
            &mut changes.worse
        } else {
            &mut changes.better
        };
        list.push((rank + 1, change));
    }
    delays(hosts, &of, now, good, changes);
    speed(hosts, &of, now, good, changes);
}

fn delays(hosts: Option<[IpAddr; 2]>, of: &str, now: &Sums, good: &Sums, changes: &mut Changes) {
    if now.samples < SAMPLES || good.samples < SAMPLES {
        return;
    }
    for (what, name, n, g) in [
        (
            "ack_delay_p99_ns",
            "99 % of acknowledgements come",
            now.mean(now.p99),
            good.mean(good.p99),
        ),
        (
            "ack_delay_p50_ns",
            "half of the acknowledgements come",
            now.mean(now.p50),
            good.mean(good.p50),
        ),
    ] {
        let (longer, shorter) = (n > g * LONGER, g > n * LONGER);
        if (n - g).abs() < LONGER_NS || !(longer || shorter) {
            continue;
        }
        let change = Change {
            severity: Severity::Warning,
            what,
            hosts,
            good: g,
            now: n,
            text: format!(
                "{of}{name} within {}, {} in the good capture{}",
                Span(n as u64),
                Span(g as u64),
                Times(n, g)
            ),
        };
        let list = if longer {
            &mut changes.worse
        } else {
            &mut changes.better
        };
        list.push((SHARES.len() + 1, change));
    }
}

fn speed(hosts: Option<[IpAddr; 2]>, of: &str, now: &Sums, good: &Sums, changes: &mut Changes) {
    if now.seconds <= 0.0 || good.seconds <= 0.0 || good.bytes <= 0.0 || now.bytes <= 0.0 {
        return;
    }
    let (n, g) = (now.bytes / now.seconds, good.bytes / good.seconds);
    let (slower, faster) = (n < g * SLOWER, g < n * SLOWER);
    if !(slower || faster) {
        return;
    }
    let change = Change {
        severity: Severity::Notice,
        what: "message_bytes",
        hosts,
        good: g,
        now: n,
        text: format!(
            "{of}{} of messages per second, {} in the good capture (the work may have been another)",
            Bytes(n),
            Bytes(g)
        ),
    };
    let list = if slower {
        &mut changes.worse
    } else {
        &mut changes.better
    };
    list.push((SHARES.len() + 2, change));
}
