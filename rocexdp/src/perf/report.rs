//! Results: as perftest's tables (`REPORT_FMT`, `REPORT_FMT_LAT`), whose lines other programs read, and as JSON.
//!
//! perftest drops the two largest latencies (`LAT_MEASURE_TAIL`), whatever they are; here only the first round trip is left out (see
//! `latency`).

use std::time::Duration;

use serde::Serialize;

use super::{
    bandwidth::Sample,
    handshake::{BandwidthReport, Role},
    plan::{Length, Plan, Verb},
    session::{Session, Shown},
};
use crate::oob::pair::Service;

/// Version of the JSON.
const VERSION: u32 = 1;
const LINE: &str =
    "---------------------------------------------------------------------------------------\n";
const MIB: f64 = 1_048_576.0;
/// Bytes per second of 1 Gb/s.
const GBPS: f64 = 125_000_000.0;

/// Whose measurement it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    /// Ours.
    Here,
    /// The peer's, as it told.
    There,
    /// Both directions, each measured by its sender, added.
    Both,
}

/// Bandwidth of one size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Bandwidth {
    /// Bytes of a message.
    pub bytes: u64,
    /// Messages of all queue pairs.
    pub iterations: u64,
    /// Gb/s of payload; none where it was not looked for.
    pub peak_gigabits_per_second: Option<f64>,
    /// Gb/s of payload.
    pub gigabits_per_second: f64,
    /// Messages.
    pub messages_per_second: f64,
    /// By whom.
    pub measured: Measured,
}

impl Bandwidth {
    /// Of our own measurement.
    #[must_use]
    pub fn of(size: u32, sample: Sample) -> Self {
        let bits = f64::from(size) * 8.0 / 1e9;
        let rate = sample.iterations as f64 / sample.seconds;
        Self {
            bytes: size.into(),
            iterations: sample.iterations,
            peak_gigabits_per_second: sample.peak.map(|peak| peak * bits),
            gigabits_per_second: rate * bits,
            messages_per_second: rate,
            measured: Measured::Here,
        }
    }

    /// For the peer.
    #[must_use]
    pub fn report(&self, gigabits: bool) -> BandwidthReport {
        let unit = unit(gigabits);
        BandwidthReport {
            size: self.bytes,
            iterations: self.iterations,
            peak: self.peak_gigabits_per_second.unwrap_or(0.0) * GBPS / unit,
            average: self.gigabits_per_second * GBPS / unit,
            message_rate: self.messages_per_second / 1e6,
        }
    }

    /// The peer's. It does not say its unit; size and message rate tell which it is.
    #[must_use]
    pub fn from_report(report: &BandwidthReport) -> Self {
        let messages_per_second = report.message_rate * 1e6;
        let bytes_per_second = messages_per_second * report.size as f64;
        let off = |unit: f64| (report.average * unit - bytes_per_second).abs();
        let unit = if off(GBPS) < off(MIB) { GBPS } else { MIB };
        Self {
            bytes: report.size,
            iterations: report.iterations,
            peak_gigabits_per_second: (report.peak > 0.0).then_some(report.peak * unit / GBPS),
            gigabits_per_second: report.average * unit / GBPS,
            messages_per_second,
            measured: Measured::There,
        }
    }

    /// Both directions.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        let peaks = self
            .peak_gigabits_per_second
            .zip(other.peak_gigabits_per_second);
        Self {
            peak_gigabits_per_second: peaks.map(|(here, there)| here + there),
            gigabits_per_second: self.gigabits_per_second + other.gigabits_per_second,
            messages_per_second: self.messages_per_second + other.messages_per_second,
            measured: Measured::Both,
            ..self
        }
    }

    fn row(&self, gigabits: bool) -> String {
        let unit = unit(gigabits);
        let shown = |gbps: f64| gbps * GBPS / unit;
        let peak = shown(self.peak_gigabits_per_second.unwrap_or(0.0));
        let average = shown(self.gigabits_per_second);
        let rate = self.messages_per_second / 1e6;
        let (bytes, iterations) = (self.bytes, self.iterations);
        if gigabits && average < 0.1 {
            format!(
                " {bytes:<7}    {iterations}           {peak:<7.6}            {average:<7.6}            {rate:<7.6}\n"
            )
        } else {
            format!(
                " {bytes:<7}    {iterations:<10}       {peak:<7.2}            {average:<7.2}\t\t   {rate:<7.6}\n"
            )
        }
    }
}

fn unit(gigabits: bool) -> f64 {
    if gigabits { GBPS } else { MIB }
}

/// Latency of one size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Latency {
    /// Bytes of a message.
    pub bytes: u64,
    /// Messages each way.
    pub iterations: u64,
    /// Whether the times are half a round trip.
    pub half_round_trip: bool,
    /// us.
    pub min_us: f64,
    /// us.
    pub max_us: f64,
    /// us.
    pub median_us: f64,
    /// us.
    pub mean_us: f64,
    /// us.
    pub stdev_us: f64,
    /// us; by nearest rank.
    pub p99_us: f64,
    /// us; by nearest rank.
    pub p99_9_us: f64,
}

impl Latency {
    /// Of the times between posts; `None` of none.
    #[must_use]
    pub fn of(size: u32, verb: Verb, length: Length, between: &[Duration]) -> Option<Self> {
        let half = matches!(verb, Verb::Send | Verb::Write);
        let part = if half { 2.0 } else { 1.0 };
        let mut times: Vec<f64> = between
            .iter()
            .map(|time| time.as_secs_f64() * 1e6 / part)
            .collect();
        times.sort_by(f64::total_cmp);
        let count = times.len();
        let rank = |share: f64| {
            let rank = (count as f64 * share).ceil() as usize;
            times.get(rank.clamp(1, count.max(1)) - 1).copied()
        };
        let middle = |at: usize| times.get(at).copied();
        let median = if count.is_multiple_of(2) {
            f64::midpoint(middle((count / 2).checked_sub(1)?)?, middle(count / 2)?)
        } else {
            middle(count / 2)?
        };
        let mean = times.iter().sum::<f64>() / count as f64;
        let variance = times.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / count as f64;
        Some(Self {
            bytes: size.into(),
            iterations: match length {
                Length::Iterations(iterations) => iterations,
                Length::Time { .. } => count as u64,
            },
            half_round_trip: half,
            min_us: *times.first()?,
            max_us: *times.last()?,
            median_us: median,
            mean_us: mean,
            stdev_us: variance.sqrt(),
            p99_us: rank(0.99)?,
            p99_9_us: rank(0.999)?,
        })
    }

    fn row(&self) -> String {
        format!(
            " {:<7} {}          {:<7.2}        {:<7.2}      {:<7.2}  \t       {:<7.2}     \t{:<7.2}\t\t{:<7.2} \t\t{:<7.2}\n",
            self.bytes,
            self.iterations,
            self.min_us,
            self.max_us,
            self.median_us,
            self.mean_us,
            self.stdev_us,
            self.p99_us,
            self.p99_9_us,
        )
    }
}

/// One line of the table.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Row {
    /// Of a bandwidth test.
    Bandwidth(Bandwidth),
    /// Of a latency test.
    Latency(Latency),
}

impl Row {
    /// As text.
    #[must_use]
    pub fn text(&self, gigabits: bool) -> String {
        match self {
            Self::Bandwidth(row) => row.row(gigabits),
            Self::Latency(row) => row.row(),
        }
    }
}

/// A finished test.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    version: u32,
    test: &'static str,
    role: Role,
    service: Service,
    interface: String,
    local: Shown,
    remote: Shown,
    /// The peer's perftest.
    peer_version: String,
    path_mtu: u32,
    tx_depth: u32,
    rx_depth: u32,
    bidirectional: bool,
    results: Vec<Row>,
    /// Packets that this end sent again, all sizes.
    retransmitted_packets: u64,
}

impl Outcome {
    /// Of a session.
    #[must_use]
    pub fn new(session: &Session, results: Vec<Row>, retransmitted_packets: u64) -> Self {
        let plan = &session.plan;
        let (local, remote) = session.ends.clone();
        Self {
            version: VERSION,
            test: plan.test.name(),
            role: session.wire.role,
            service: plan.service,
            interface: session.iface().to_owned(),
            local,
            remote,
            peer_version: session.basics.version.clone(),
            path_mtu: session.basics.path_mtu.bytes(),
            tx_depth: plan.tx_depth,
            rx_depth: plan.rx_depth,
            bidirectional: plan.bidirectional,
            results,
            retransmitted_packets,
        }
    }
}

/// What perftest says before the table.
#[must_use]
pub fn heading(session: &Session) -> String {
    let plan = &session.plan;
    let verb = match plan.test.verb() {
        Verb::Send => "Send",
        Verb::Write => "RDMA_Write",
        Verb::Read => "RDMA_Read",
        Verb::Atomic => match plan.atomic {
            super::plan::AtomicKind::FetchAdd => "Atomic FETCH_AND_ADD",
            super::plan::AtomicKind::CompareSwap => "Atomic CMP_AND_SWAP",
        },
    };
    let kind = match (plan.test.latency(), plan.bidirectional) {
        (true, _) => "Latency",
        (false, true) => "Bidirectional BW",
        (false, false) => "BW",
    };
    let mut text = format!("{LINE}                    {verb} {kind} Test\n");
    text.push_str(&format!(
        " Device          : {} (rocexdp)\n Number of qps   : {}\n Connection type : {}\n TX depth        : {}\n",
        session.iface(),
        plan.qps,
        plan.service.name(),
        plan.tx_depth,
    ));
    if plan.test.verb() == Verb::Send {
        text.push_str(&format!(" RX depth        : {}\n", plan.rx_depth));
    }
    if !plan.test.latency() {
        text.push_str(&format!(" CQ Moderation   : {}\n", plan.cq_mod));
    }
    text.push_str(&format!(
        " Mtu             : {}[B]\n Link type       : Ethernet\n",
        session.basics.path_mtu.bytes()
    ));
    text.push_str(&match plan.test.verb() {
        Verb::Send | Verb::Write => format!(" Max inline data : {}[B]\n", plan.inline),
        Verb::Read | Verb::Atomic => format!(" Outstand reads  : {}\n", plan.outstanding),
    });
    text.push_str(&format!(
        " rdma_cm QPs     : OFF\n Data ex. method : Ethernet\n{LINE}"
    ));
    for (side, end) in [("local", &session.ends.0), ("remote", &session.ends.1)] {
        for qpn in &end.qpns {
            text.push_str(&format!(
                " {side} address: {}, QPN {qpn:#08x}\n",
                end.address
            ));
        }
    }
    let unit = if plan.gigabits { "Gb/sec" } else { "MB/sec" };
    text.push_str(LINE);
    text.push_str(&if plan.test.latency() {
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n".to_owned()
    } else {
        format!(
            " #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]\n"
        )
    });
    text
}

/// What stands below the table.
#[must_use]
pub fn ending(plan: &Plan, retransmitted: u64) -> String {
    let mut text = LINE.to_owned();
    if plan.test.latency() && plan.one_sided() && plan.role() == Role::Server {
        text.push_str(" the client has measured: its output has the result\n");
    }
    if !plan.test.latency() && !plan.gigabits {
        text.push_str(" 1 MB is 1048576 B, as in perftest; --report_gbits gives Gb/s\n");
    }
    if retransmitted > 0 {
        text.push_str(&format!(
            " {retransmitted} packets were sent again from here\n"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: Sample = Sample {
        iterations: 5000,
        seconds: 0.5,
        peak: Some(12_000.0),
    };

    #[test]
    fn rows_are_perftests() {
        let row = Bandwidth::of(65536, SAMPLE);
        assert_eq!(
            Row::Bandwidth(row).text(false),
            " 65536      5000             750.00             625.00 \t\t   0.010000\n"
        );
        assert_eq!(
            Row::Bandwidth(row).text(true),
            " 65536      5000             6.29               5.24   \t\t   0.010000\n"
        );
        let slow = Bandwidth::of(2, SAMPLE);
        assert_eq!(
            Row::Bandwidth(slow).text(true),
            " 2          5000           0.000192            0.000160            0.010000\n"
        );
    }

    #[test]
    fn a_report_comes_back_whatever_its_unit() {
        let row = Bandwidth::of(65536, SAMPLE);
        for gigabits in [false, true] {
            let back = Bandwidth::from_report(&row.report(gigabits));
            assert!((back.gigabits_per_second - row.gigabits_per_second).abs() < 1e-9);
            let (a, b) = (back.peak_gigabits_per_second, row.peak_gigabits_per_second);
            assert!((a.unwrap() - b.unwrap()).abs() < 1e-9);
            assert_eq!(back.measured, Measured::There);
        }
        let both = row.with(Bandwidth::from_report(&row.report(false)));
        assert!((both.gigabits_per_second - 2.0 * row.gigabits_per_second).abs() < 1e-9);
        let none = Bandwidth::of(
            8,
            Sample {
                peak: None,
                ..SAMPLE
            },
        );
        assert_eq!(row.with(none).peak_gigabits_per_second, None);
    }

    #[test]
    fn latencies_are_of_all_times() {
        let times: Vec<Duration> = (1..=1000).map(Duration::from_micros).collect();
        let of = |verb| Latency::of(2, verb, Length::Iterations(1001), &times).unwrap();
        let read = of(Verb::Read);
        assert_eq!((read.min_us, read.max_us), (1.0, 1000.0));
        assert_eq!((read.median_us, read.mean_us), (500.5, 500.5));
        assert!((read.p99_us - 990.0).abs() < 1e-9 && (read.p99_9_us - 999.0).abs() < 1e-9);
        assert!((read.stdev_us - 288.675).abs() < 0.001);
        let send = of(Verb::Send);
        assert_eq!((send.max_us, send.half_round_trip), (500.0, true));
        let one = Latency::of(2, Verb::Read, Length::Iterations(2), &times[..1]).unwrap();
        assert_eq!((one.median_us, one.p99_9_us, one.stdev_us), (1.0, 1.0, 0.0));
        assert_eq!(Latency::of(2, Verb::Read, Length::Iterations(2), &[]), None);
    }
}
