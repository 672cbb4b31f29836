//! The numbers of `incast_summary.csv`: one bottleneck port and the flows through it, over the last three quarters of a run.
//!
//! As the reference's were worked out: from samples at a fixed period, goodput from bytes that arrived in order, utilisation from
//! bytes that the port sent, percentiles between neighbouring samples (as NumPy's default), alpha over all flows and samples.
//! Checked against `flows.csv` and `queue.csv` of the published runs, which give their rows.
//!
//! Must not: know where samples come from.

use serde::Serialize;

/// The state at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Nanoseconds since the monitor's start.
    pub at: u64,
    /// Bytes in the port's egress queue.
    pub queue: u64,
    /// Packets that the switch marked at this port, since the start.
    pub marked: u64,
    /// Packets that the port sent.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Pauses that hosts and switches have received.
    pub pauses: u64,
    /// Nanoseconds from pauses received to resumes received, over all ports.
    pub pause_time: u64,
    /// Packets dropped by switches.
    pub drops: u64,
    /// The flows, in the order of their list, all of them.
    pub flows: Vec<FlowSample>,
}

/// A flow at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowSample {
    /// It has started and not finished.
    pub active: bool,
    /// Rate, b/s.
    pub rate: u64,
    /// Alpha.
    pub alpha: f64,
    /// Bytes that arrived in order.
    pub received: u64,
    /// CNP flags that reached the sender.
    pub cnps: u64,
    /// Rate cuts.
    pub cuts: u64,
}

/// A row of `incast_summary.csv`. Field names are its columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Name of the experiment.
    pub case: String,
    /// What stands before the first `_` of it.
    pub param_set: String,
    /// Flows through the port.
    #[serde(rename = "N")]
    pub n: usize,
    /// Rate of the port's link.
    pub link_gbps: f64,
    /// First and last sample that count, ms.
    pub window_ms: String,
    /// Sent bits per second over the link's rate.
    pub util: f64,
    /// Jain's index of the flows' goodput over the window.
    pub jain_window: f64,
    /// Mean of it over each millisecond.
    pub jain_1ms_mean: f64,
    /// The least of them.
    pub jain_1ms_min: f64,
    /// Mean queue.
    pub q_mean_bytes: f64,
    /// Median.
    pub q_p50: f64,
    /// 95th percentile.
    pub q_p95: f64,
    /// 99th percentile.
    pub q_p99: f64,
    /// Largest sample in the window.
    pub q_max_window: f64,
    /// Largest sample of all.
    pub q_max_all: f64,
    /// Standard deviation.
    pub q_std: f64,
    /// Packets marked, of those sent.
    pub mark_frac: f64,
    /// Packets marked.
    pub marks_per_s: f64,
    /// CNP flags that reached senders.
    pub cnp_per_s: f64,
    /// Rate cuts.
    pub cuts_per_flow_per_ms: f64,
    /// Mean alpha.
    pub alpha_mean: f64,
    /// Pauses in the whole run.
    pub pfc_pauses: f64,
    /// Packets dropped by switches in the whole run.
    pub drops: f64,
    /// Slowest flow.
    pub goodput_min_gbps: f64,
    /// Fastest flow.
    pub goodput_max_gbps: f64,
    /// All flows.
    pub goodput_sum_gbps: f64,
}

/// A row of `pfc_summary.csv`, without its first columns: before the window and in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Pauses {
    /// Pauses before the window.
    pub first: f64,
    /// Pauses in the window.
    pub after: f64,
    /// Time paused, over all ports, microseconds.
    pub time_sum_us: f64,
}

/// What a run is about.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    /// Name of the experiment.
    pub case: String,
    /// Rate of the port's link, b/s.
    pub link: u64,
    /// Nanoseconds from the monitor's start to its end.
    pub length: u64,
}

impl Subject {
    /// Start of the window: a quarter of the run.
    #[must_use]
    pub const fn window(&self) -> u64 {
        self.length / 4
    }
}

const MILLISECOND: u64 = 1_000_000;

/// Jain's index, 1 for nothing.
#[must_use]
pub fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|v| v * v).sum();
    if squares == 0.0 {
        return 1.0;
    }
    sum * sum / (values.len() as f64 * squares)
}

/// The `percent`th percentile of sorted values, between neighbours; 0 of nothing.
#[must_use]
pub fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let place = last as f64 * percent / 100.0;
    let below = place as usize;
    let at = |i: usize| sorted.get(i.min(last)).copied().unwrap_or(0.0);
    at(below) + (at(below + 1) - at(below)) * (place - below as f64)
}

/// Mean, 0 of nothing.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.iter().sum::<f64>() / values.len() as f64
}

/// Gathers samples, in the order of time.
#[derive(Clone, Debug)]
pub struct Gatherer {
    subject: Subject,
    flows: usize,
    queue: Vec<f64>,
    queue_max: u64,
    first: Option<Sample>,
    last: Sample,
    alpha: (f64, u64),
    /// At each whole millisecond of the window, what each flow had received.
    milliseconds: Vec<Vec<u64>>,
    next_millisecond: u64,
}

impl Gatherer {
    /// For so many flows.
    #[must_use]
    pub fn new(subject: Subject, flows: usize) -> Self {
        let next_millisecond = subject.window();
        Self {
            subject,
            flows,
            queue: Vec::new(),
            queue_max: 0,
            first: None,
            last: Sample::default(),
            alpha: (0.0, 0),
            milliseconds: Vec::new(),
            next_millisecond,
        }
    }

    /// One more.
    pub fn add(&mut self, sample: Sample) {
        self.queue_max = self.queue_max.max(sample.queue);
        if sample.at >= self.subject.window() {
            self.queue.push(sample.queue as f64);
            for flow in sample.flows.iter().filter(|f| f.active) {
                self.alpha.0 += flow.alpha;
                self.alpha.1 += 1;
            }
            if sample.at >= self.next_millisecond {
                self.next_millisecond += MILLISECOND;
                self.milliseconds
                    .push(sample.flows.iter().map(|f| f.received).collect());
            }
            if self.first.is_none() {
                self.first = Some(sample.clone());
            }
        }
        self.last = sample;
    }

    /// The state at the end of the run, after the last sample: what is counted over all of it.
    pub fn end(&mut self, sample: &Sample) {
        self.last.pauses = sample.pauses;
        self.last.pause_time = sample.pause_time;
        self.last.drops = sample.drops;
    }

    /// Pauses before the window and from there to the end.
    #[must_use]
    pub fn pauses(&self) -> Pauses {
        let first = self.first.as_ref().map_or(0, |s| s.pauses);
        Pauses {
            first: first as f64,
            after: (self.last.pauses - first) as f64,
            time_sum_us: self.last.pause_time as f64 / 1e3,
        }
    }

    /// The row.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let first = self.first.clone().unwrap_or_default();
        let last = &self.last;
        let span = last.at.saturating_sub(first.at).max(1) as f64;
        let seconds = span / 1e9;
        let goodput: Vec<f64> = first
            .flows
            .iter()
            .zip(&last.flows)
            .map(|(a, b)| (b.received - a.received) as f64 * 8.0 / span)
            .collect();
        let by_millisecond: Vec<f64> = self
            .milliseconds
            .iter()
            .zip(self.milliseconds.iter().skip(1))
            .map(|(a, b)| {
                let gained = a.iter().zip(b).map(|(a, b)| (b - a) as f64);
                jain(&gained.collect::<Vec<_>>())
            })
            .collect();
        let mut sorted = self.queue.clone();
        sorted.sort_by(f64::total_cmp);
        let q_mean = mean(&self.queue);
        let squares: Vec<f64> = self.queue.iter().map(|q| (q - q_mean).powi(2)).collect();
        let per_second = |of: fn(&FlowSample) -> u64| {
            let gained = first.flows.iter().zip(&last.flows);
            gained.map(|(a, b)| (of(b) - of(a)) as f64).sum::<f64>() / seconds
        };
        let packets = (last.sent_packets - first.sent_packets) as f64;
        let marks = (last.marked - first.marked) as f64;
        let name = &self.subject.case;
        Summary {
            case: name.clone(),
            param_set: name.split('_').next().unwrap_or_default().to_owned(),
            n: self.flows,
            link_gbps: self.subject.link as f64 / 1e9,
            window_ms: format!("{}-{}", first.at as f64 / 1e6, last.at as f64 / 1e6),
            util: (last.sent_bytes - first.sent_bytes) as f64 * 8.0
                / seconds
                / self.subject.link.max(1) as f64,
            jain_window: jain(&goodput),
            jain_1ms_mean: mean(&by_millisecond),
            jain_1ms_min: by_millisecond.iter().copied().fold(1.0, f64::min),
            q_mean_bytes: q_mean,
            q_p50: percentile(&sorted, 50.0),
            q_p95: percentile(&sorted, 95.0),
            q_p99: percentile(&sorted, 99.0),
            q_max_window: percentile(&sorted, 100.0),
            q_max_all: self.queue_max as f64,
            q_std: mean(&squares).sqrt(),
            mark_frac: if packets > 0.0 { marks / packets } else { 0.0 },
            marks_per_s: marks / seconds,
            cnp_per_s: per_second(|f| f.cnps),
            cuts_per_flow_per_ms: per_second(|f| f.cuts) / 1e3 / self.flows.max(1) as f64,
            alpha_mean: self.alpha.0 / self.alpha.1.max(1) as f64,
            pfc_pauses: last.pauses as f64,
            drops: last.drops as f64,
            goodput_min_gbps: goodput.iter().copied().reduce(f64::min).unwrap_or(0.0),
            goodput_max_gbps: goodput.iter().copied().fold(0.0, f64::max),
            goodput_sum_gbps: goodput.iter().sum(),
        }
    }
}

/// Rounds to so many decimals, as the reference's files have them.
pub(super) fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10_f64.powi(decimals);
    (value * scale).round() / scale
}

impl Summary {
    /// Every number with its decimals in the row: what it is for, and how many.
    fn numbers(&mut self) -> [(&mut f64, i32); 20] {
        [
            (&mut self.util, 5),
            (&mut self.jain_window, 5),
            (&mut self.jain_1ms_mean, 5),
            (&mut self.jain_1ms_min, 5),
            (&mut self.q_mean_bytes, 0),
            (&mut self.q_p50, 0),
            (&mut self.q_p95, 0),
            (&mut self.q_p99, 0),
            (&mut self.q_max_window, 0),
            (&mut self.q_max_all, 0),
            (&mut self.q_std, 0),
            (&mut self.mark_frac, 6),
            (&mut self.marks_per_s, 0),
            (&mut self.cnp_per_s, 0),
            (&mut self.cuts_per_flow_per_ms, 3),
            (&mut self.alpha_mean, 5),
            (&mut self.goodput_min_gbps, 3),
            (&mut self.goodput_max_gbps, 3),
            (&mut self.goodput_sum_gbps, 3),
            (&mut self.link_gbps, 3),
        ]
    }

    /// With as many decimals as the reference's file has.
    #[must_use]
    pub fn rounded(mut self) -> Self {
        for (value, decimals) in self.numbers() {
            *value = rounded(*value, decimals);
        }
        self
    }

    /// The mean of runs that differ in their seeds; `None` of no runs.
    #[must_use]
    pub fn mean(runs: &[Self]) -> Option<Self> {
        let mut total = runs.first()?.clone();
        for run in runs.get(1..)? {
            let mut run = run.clone();
            for ((sum, _), (value, _)) in total.numbers().into_iter().zip(run.numbers()) {
                *sum += *value;
            }
            total.pfc_pauses += run.pfc_pauses;
            total.drops += run.drops;
        }
        let count = runs.len() as f64;
        for (value, _) in total.numbers() {
            *value /= count;
        }
        total.pfc_pauses /= count;
        total.drops /= count;
        Some(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_and_percentiles_are_those_of_the_textbooks() {
        assert_eq!(jain(&[1.0, 1.0, 1.0, 1.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0]), 0.5);
        assert_eq!(jain(&[]), 1.0);
        let sorted = [10.0, 20.0, 30.0, 40.0];
        assert_eq!(percentile(&sorted, 50.0), 25.0);
        assert_eq!(percentile(&sorted, 100.0), 40.0);
        assert_eq!(percentile(&[], 50.0), 0.0);
    }

    #[test]
    fn only_the_last_three_quarters_count() {
        let subject = Subject {
            case: "mlx100_2to1".to_owned(),
            link: 100_000_000_000,
            length: 4 * MILLISECOND,
        };
        let mut gatherer = Gatherer::new(subject, 1);
        for at in (10_000..3_990_000).step_by(10_000) {
            // 10 Gb/s, a queue of 1000 B from the window's start on, 9000 B before.
            let flow = FlowSample {
                active: true,
                alpha: 0.5,
                received: at * 10 / 8,
                ..FlowSample::default()
            };
            gatherer.add(Sample {
                at,
                queue: if at < MILLISECOND { 9_000 } else { 1_000 },
                sent_bytes: at * 100 / 8,
                sent_packets: at,
                flows: vec![flow],
                ..Sample::default()
            });
        }
        let row = gatherer.summary().rounded();
        assert_eq!(row.window_ms, "1-3.98");
        assert_eq!(
            (row.q_mean_bytes, row.q_p99, row.q_max_all),
            (1e3, 1e3, 9e3)
        );
        assert_eq!((row.util, row.goodput_sum_gbps), (1.0, 10.0));
        assert_eq!((row.alpha_mean, row.jain_1ms_min), (0.5, 1.0));
        assert_eq!(
            (row.param_set.as_str(), row.n, row.link_gbps),
            ("mlx100", 1, 100.0)
        );
    }
}
