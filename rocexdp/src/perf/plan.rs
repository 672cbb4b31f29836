//! What a test does, from options to numbers that fit together: the same defaults and dependencies as perftest's (`perftest_parameters.c`,
//! `init_perftest_params` and `force_dependecies`), so that both ends post and expect alike.
//!
//! Neither end tells the other its options: sizes, iterations and queue pairs must be the same on both by the user's doing.

use std::time::Duration;

use rocexdp_proto::{MAX_RD_ATOMIC, ids::PathMtu};

use super::handshake::Role;
use crate::{
    control::{config::RunOptions, settings::UsageError},
    oob::{pair::Service, place::Wish},
};

/// A test, by the perftest program that it stands in for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Test {
    /// Bandwidth of SEND, as `ib_send_bw`
    SendBw,
    /// Bandwidth of WRITE, as `ib_write_bw`
    WriteBw,
    /// Bandwidth of READ, as `ib_read_bw`
    ReadBw,
    /// Rate of atomics, as `ib_atomic_bw`
    AtomicBw,
    /// Latency of SEND, as `ib_send_lat`
    SendLat,
    /// Latency of WRITE, as `ib_write_lat`
    WriteLat,
    /// Latency of READ, as `ib_read_lat`
    ReadLat,
    /// Latency of atomics, as `ib_atomic_lat`
    AtomicLat,
}

/// What a test's requests are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// SEND.
    Send,
    /// WRITE.
    Write,
    /// READ.
    Read,
    /// FETCH ADD or COMPARE SWAP.
    Atomic,
}

impl Test {
    /// Its requests.
    #[must_use]
    pub fn verb(self) -> Verb {
        match self {
            Self::SendBw | Self::SendLat => Verb::Send,
            Self::WriteBw | Self::WriteLat => Verb::Write,
            Self::ReadBw | Self::ReadLat => Verb::Read,
            Self::AtomicBw | Self::AtomicLat => Verb::Atomic,
        }
    }

    /// Whether it measures latency, not bandwidth.
    #[must_use]
    pub fn latency(self) -> bool {
        matches!(
            self,
            Self::SendLat | Self::WriteLat | Self::ReadLat | Self::AtomicLat
        )
    }

    /// Its name, as on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SendBw => "send-bw",
            Self::WriteBw => "write-bw",
            Self::ReadBw => "read-bw",
            Self::AtomicBw => "atomic-bw",
            Self::SendLat => "send-lat",
            Self::WriteLat => "write-lat",
            Self::ReadLat => "read-lat",
            Self::AtomicLat => "atomic-lat",
        }
    }
}

/// Which atomic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum AtomicKind {
    /// Add 1
    #[default]
    #[value(name = "FETCH_AND_ADD")]
    FetchAdd,
    /// Compare with 0, swap in 1
    #[value(name = "CMP_AND_SWAP")]
    CompareSwap,
}

/// How long a test runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Length {
    /// So many requests per queue pair.
    Iterations(u64),
    /// So long, with as much of it at either end not counted.
    Time {
        /// All of it.
        total: Duration,
        /// Not counted at the beginning, and at the end.
        margin: Duration,
    },
}

/// Options as given; `None` where the test's default is meant.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// All sizes, 2 B to 8 MiB.
    pub all: bool,
    /// Bytes of a message.
    pub size: Option<u32>,
    /// Requests per queue pair.
    pub iterations: Option<u64>,
    /// Time instead.
    pub duration: Option<Duration>,
    /// See [`Length::Time`].
    pub margin: Option<Duration>,
    /// Queue pairs.
    pub qps: Option<u32>,
    /// Send requests outstanding.
    pub tx_depth: Option<u32>,
    /// Receive requests outstanding.
    pub rx_depth: Option<u32>,
    /// A completion for every so many requests.
    pub cq_mod: Option<u32>,
    /// READs and atomics outstanding.
    pub outstanding: Option<u8>,
    /// Messages up to so many bytes go into the request.
    pub inline: u32,
    /// Both directions at once.
    pub bidirectional: bool,
    /// No peak bandwidth.
    pub no_peak: bool,
}

/// A test to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which.
    pub test: Test,
    /// The server's host; `None`: we are the server.
    pub host: Option<String>,
    /// TCP port of the exchange.
    pub port: u16,
    /// What the node is opened with; without an interface, the one that the connection takes.
    pub options: RunOptions,
    /// Service.
    pub service: Service,
    /// Which address is used.
    pub wish: Wish,
    /// Sizes, one after another, B.
    pub sizes: Vec<u32>,
    /// How long, each.
    pub length: Length,
    /// Queue pairs.
    pub qps: u32,
    /// Send requests outstanding per queue pair.
    pub tx_depth: u32,
    /// Receive requests outstanding per queue pair.
    pub rx_depth: u32,
    /// A completion for every so many requests.
    pub cq_mod: u32,
    /// READs and atomics outstanding, in both directions.
    pub outstanding: u8,
    /// Messages up to so many bytes go into the request.
    pub inline: u32,
    /// Largest path MTU to agree on.
    pub path_mtu: Option<PathMtu>,
    /// Local ACK timeout, the standard's code.
    pub timeout: u8,
    /// Both directions at once.
    pub bidirectional: bool,
    /// Whether to find the peak.
    pub peak: bool,
    /// Which atomic.
    pub atomic: AtomicKind,
    /// Gb/s, not MiB/s, in the table.
    pub gigabits: bool,
    /// Sleep while waiting for completions.
    pub events: bool,
    /// Give up after so long without any news.
    pub patience: Duration,
    /// Print JSON.
    pub json: bool,
}

/// perftest's `DEF_PORT`.
pub const DEFAULT_PORT: u16 = 18515;
/// perftest's `MAX_SIZE`.
pub const MAX_SIZE: u32 = 8 << 20;
/// Deepest queue of a queue pair here.
const MAX_DEPTH: u32 = 65536;
/// Most queue pairs.
const MAX_QPS: u32 = 1024;
/// Most memory, B.
const MAX_MEMORY: u64 = 8 << 30;
/// Most bytes in a request.
const MAX_INLINE: u32 = 256;
/// With more iterations perftest does not look for the peak.
const PEAK_ITERATIONS: u64 = 20_000;

fn usage<T>(text: String) -> Result<T, UsageError> {
    Err(UsageError(text))
}

fn within(name: &str, value: u64, most: u64) -> Result<(), UsageError> {
    if (1..=most).contains(&value) {
        Ok(())
    } else {
        usage(format!("{name} {value}: must be 1 to {most}"))
    }
}

impl Plan {
    /// The role that the options give us.
    #[must_use]
    pub fn role(&self) -> Role {
        match self.host {
            Some(_) => Role::Client,
            None => Role::Server,
        }
    }

    /// Whether the server's program takes no part in the requests, once connected.
    #[must_use]
    pub fn one_sided(&self) -> bool {
        matches!(self.test.verb(), Verb::Read | Verb::Atomic)
    }

    /// Fills in what depends on the test, as perftest does, and checks that all of it goes together. What `wishes` do not say stays.
    ///
    /// # Errors
    /// Names the option.
    pub fn complete(mut self, wishes: &Wishes) -> Result<Self, UsageError> {
        let (verb, latency) = (self.test.verb(), self.test.latency());
        let name = self.test.name();
        let has = match self.service {
            Service::Rc => true,
            Service::Uc => matches!(verb, Verb::Send | Verb::Write),
            Service::Ud => verb == Verb::Send,
        };
        if !has {
            let service = self.service.name();
            return usage(format!(
                "-c {service}: {service} does not have what {name} needs"
            ));
        }
        self.sizes = sizes(self.test, wishes)?;
        self.length = length(self.test, wishes)?;
        self.qps = wishes.qps.unwrap_or(1);
        within("-q", self.qps.into(), MAX_QPS.into())?;
        if latency && (self.qps > 1 || wishes.bidirectional) {
            return usage(format!(
                "{name} has one queue pair and its own order: no -q, no -b"
            ));
        }
        self.bidirectional = wishes.bidirectional;
        let iterations = match self.length {
            Length::Iterations(iterations) => iterations.min(MAX_DEPTH.into()) as u32,
            Length::Time { .. } => MAX_DEPTH,
        };
        let tx_depth = wishes.tx_depth.unwrap_or(if latency { 1 } else { 128 });
        within("-t", tx_depth.into(), MAX_DEPTH.into())?;
        self.tx_depth = tx_depth.min(iterations);
        let most = if self.service.loses() { 16_000 } else { 512 };
        let rx_depth = wishes.rx_depth.unwrap_or(most);
        within("-r", rx_depth.into(), MAX_DEPTH.into())?;
        self.rx_depth = if verb == Verb::Send {
            rx_depth.min(iterations)
        } else {
            1
        };
        // Large messages complete one by one, so that the result is not off by those that had no completion.
        let large = !wishes.all && self.sizes.iter().any(|size| *size > 8192);
        let cq_mod = wishes.cq_mod.unwrap_or(if large { 1 } else { 100 });
        within("-Q", cq_mod.into(), MAX_DEPTH.into())?;
        self.cq_mod = cq_mod.min(self.tx_depth);
        self.outstanding = wishes.outstanding.unwrap_or(MAX_RD_ATOMIC);
        within("-o", self.outstanding.into(), MAX_RD_ATOMIC.into())?;
        if wishes.inline > MAX_INLINE {
            return usage(format!("-I {}: at most {MAX_INLINE} B", wishes.inline));
        }
        self.inline = match verb {
            Verb::Send | Verb::Write => wishes.inline,
            Verb::Read | Verb::Atomic => 0,
        };
        self.peak = !latency
            && !wishes.no_peak
            && matches!(self.length, Length::Iterations(n) if n <= PEAK_ITERATIONS);
        let memory = 2 * u64::from(self.qps) * u64::from(self.largest());
        if memory > MAX_MEMORY {
            return usage(format!(
                "-q {} queue pairs with messages of up to {} B need {} GiB: at most {} GiB",
                self.qps,
                self.largest(),
                memory >> 30,
                MAX_MEMORY >> 30
            ));
        }
        Ok(self)
    }

    /// The largest size, B.
    #[must_use]
    pub fn largest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }
}

fn sizes(test: Test, wishes: &Wishes) -> Result<Vec<u32>, UsageError> {
    let (verb, latency) = (test.verb(), test.latency());
    if verb == Verb::Atomic {
        // `ib_atomic_bw` takes -a, and does the same.
        return match wishes.size {
            None | Some(8) => Ok(vec![8]),
            Some(size) => usage(format!("-s {size}: an atomic has 8 B")),
        };
    }
    if wishes.all {
        if wishes.size.is_some() {
            return usage("-a and -s exclude each other".to_owned());
        }
        return Ok((1..24).map(|power| 1 << power).collect());
    }
    let size = wishes.size.unwrap_or(if latency { 2 } else { 65536 });
    within("-s", size.into(), MAX_SIZE.into())?;
    Ok(vec![size])
}

fn length(test: Test, wishes: &Wishes) -> Result<Length, UsageError> {
    let Some(total) = wishes.duration else {
        if wishes.margin.is_some() {
            return usage("-f is for -D".to_owned());
        }
        let default = match test {
            Test::WriteBw => 5000,
            _ => 1000,
        };
        let iterations = wishes.iterations.unwrap_or(default);
        // One to begin with, and one round trip.
        let fewest = if test.latency() { 3 } else { 1 };
        if !(fewest..=100_000_000).contains(&iterations) {
            return usage(format!("-n {iterations}: must be {fewest} to 100000000"));
        }
        return Ok(Length::Iterations(iterations));
    };
    if wishes.all || wishes.iterations.is_some() {
        return usage("-D excludes -a and -n".to_owned());
    }
    let margin = wishes.margin.unwrap_or(total / 4);
    if total <= 2 * margin {
        return usage(format!(
            "-D {} s: must be longer than both margins, of {} s each (-f)",
            total.as_secs_f64(),
            margin.as_secs_f64()
        ));
    }
    Ok(Length::Time { total, margin })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A server's plan with perftest's defaults.
    pub fn plan(test: Test) -> Plan {
        Plan {
            test,
            host: None,
            port: DEFAULT_PORT,
            options: RunOptions::default(),
            service: Service::Rc,
            wish: Wish::default(),
            sizes: Vec::new(),
            length: Length::Iterations(0),
            qps: 1,
            tx_depth: 1,
            rx_depth: 1,
            cq_mod: 1,
            outstanding: 1,
            inline: 0,
            path_mtu: None,
            timeout: 14,
            bidirectional: false,
            peak: true,
            atomic: AtomicKind::FetchAdd,
            gigabits: false,
            events: false,
            patience: Duration::from_secs(60),
            json: false,
        }
    }

    #[test]
    fn defaults_are_perftests() {
        let none = Wishes::default();
        let bw = plan(Test::WriteBw).complete(&none).unwrap();
        assert_eq!(
            (bw.sizes, bw.length),
            (vec![65536], Length::Iterations(5000))
        );
        assert_eq!((bw.tx_depth, bw.cq_mod, bw.rx_depth), (128, 1, 1));
        let send = plan(Test::SendBw).complete(&none).unwrap();
        assert_eq!(
            (send.rx_depth, send.length),
            (512, Length::Iterations(1000))
        );
        let lat = plan(Test::SendLat).complete(&none).unwrap();
        assert_eq!((lat.sizes, lat.tx_depth, lat.cq_mod), (vec![2], 1, 1));
        let all = Wishes {
            all: true,
            ..Wishes::default()
        };
        let all = plan(Test::WriteBw).complete(&all).unwrap();
        assert_eq!(
            (all.sizes.len(), all.largest(), all.cq_mod),
            (23, MAX_SIZE, 100)
        );
        let few = Wishes {
            iterations: Some(5),
            ..Wishes::default()
        };
        let few = plan(Test::SendBw).complete(&few).unwrap();
        assert_eq!((few.tx_depth, few.rx_depth), (5, 5));
    }

    #[test]
    fn options_that_do_not_go_together_are_named() {
        let some = Wishes::default;
        let second = Some(Duration::from_secs(1));
        let cases: [(Test, Wishes, &str); 9] = [
            (
                Test::AtomicBw,
                Wishes {
                    size: Some(16),
                    ..some()
                },
                "-s 16",
            ),
            (
                Test::WriteBw,
                Wishes {
                    size: Some(0),
                    ..some()
                },
                "-s 0",
            ),
            (
                Test::WriteBw,
                Wishes {
                    all: true,
                    size: Some(2),
                    ..some()
                },
                "-a and -s",
            ),
            (
                Test::SendLat,
                Wishes {
                    qps: Some(2),
                    ..some()
                },
                "no -q",
            ),
            (
                Test::SendLat,
                Wishes {
                    iterations: Some(1),
                    ..some()
                },
                "-n 1",
            ),
            (
                Test::WriteBw,
                Wishes {
                    qps: Some(1024),
                    all: true,
                    ..some()
                },
                "16 GiB",
            ),
            (
                Test::WriteBw,
                Wishes {
                    duration: second,
                    margin: second,
                    ..some()
                },
                "-f",
            ),
            (
                Test::WriteBw,
                Wishes {
                    duration: second,
                    all: true,
                    ..some()
                },
                "-D excludes",
            ),
            (
                Test::WriteBw,
                Wishes {
                    inline: 257,
                    ..some()
                },
                "-I 257",
            ),
        ];
        for (test, wishes, part) in cases {
            let error = plan(test).complete(&wishes).unwrap_err();
            assert!(error.0.contains(part), "{part}: {error}");
        }
        let uc = Plan {
            service: Service::Uc,
            ..plan(Test::ReadBw)
        };
        assert!(uc.complete(&some()).unwrap_err().0.contains("-c UC"));
    }
}
