//! Rate controllers: what decides how fast a QP sends. One of them is chosen for all QPs of an endpoint ([`RateControl`]).
//!
//! | name | rate | bytes on the way |
//! |---|---|---|
//! | `fixed` | a given one, or the line rate, whatever the network says | the QP's window of packets |
//! | `dcqcn` (default) | the reaction point's ([`crate::dcqcn`]) | the QP's window of packets |
//! | `dcqcn-window` | the reaction point's | base round trip x line rate, scaled by rate / line rate unless told otherwise |
//!
//! The window is that of the reference simulators (alibaba-edu/High-Precision-Congestion-Control,
//! `rdma-queue-pair.cc` `GetWin`, `IsWinBound`; scaled: their `VAR_WIN`): bytes of payload, and a packet may go while fewer are
//! on the way, so the last one may reach beyond it. There is no window without a line rate.
//!
//! A controller takes the same inputs as a reaction point (CNPs, bytes sent, the time) and gives a rate and a window; the trait
//! is [`RateController`], and [`Controller`] its dispatch by `match`, so that a QP's state has no pointer to follow.
//!
//! Must not: know packets, loss or maps. A gap is nothing that a controller hears of.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use crate::dcqcn::{ReactionPoint, RpCounters, RpParams};
use crate::time::{Rate, Timestamp, nanos};

/// Which controller the QPs of an endpoint have, and what it needs to know. DCQCN's parameters are [`RpParams`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateControl {
    /// Always this rate; `None`: the line rate, or unpaced where none is known. CNPs are counted and change nothing.
    Fixed(Option<Rate>),
    /// DCQCN.
    #[default]
    Dcqcn,
    /// DCQCN with a window of one bandwidth-delay product.
    DcqcnWindow {
        /// Round trip of an empty network.
        base_rtt: Duration,
        /// The window shrinks with the rate.
        scaled: bool,
    },
}

/// How controllers are written.
const FORMS: &str = "fixed, fixed=RATE, dcqcn, dcqcn-window=RTT, dcqcn-window=RTT,constant (as in fixed=10G, dcqcn-window=20us)";

/// Controllers of the reference simulators (`CC_MODE`) that are not to be had here.
const ELSEWHERE: [&str; 4] = ["hpcc", "timely", "dctcp", "hpcc-pint"];

/// Why there is no such rate controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateControlError {
    /// One of the reference's that we do not have.
    #[error(
        "{0} is a controller of the reference simulators that rocexdp does not have: there are {FORMS}"
    )]
    NotHad(String),
    /// The name means nothing.
    #[error("no rate controller is called {0:?}: there are {FORMS}")]
    Unknown(String),
    /// The value behind the name is none.
    #[error("{text:?}: {what}: there are {FORMS}")]
    BadValue {
        /// What was given.
        text: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A window of a link whose rate is not known.
    #[error("dcqcn-window needs the line rate: give it (--line-rate)")]
    LineRateUnknown,
    /// More than the link carries.
    #[error("fixed={rate}: the line rate is {line}")]
    AboveLineRate {
        /// What was asked for.
        rate: Rate,
        /// What there is.
        line: Rate,
    },
}

impl RateControl {
    /// Its number where there is no room for a name: that of [`RateControl::NAMES`].
    #[must_use]
    pub fn code(&self) -> u8 {
        match self {
            Self::Dcqcn => 0,
            Self::Fixed(_) => 1,
            Self::DcqcnWindow { .. } => 2,
        }
    }

    /// Names, by [`RateControl::code`].
    pub const NAMES: [&str; 3] = ["dcqcn", "fixed", "dcqcn-window"];

    /// Checks it against the line rate, if one is known.
    ///
    /// # Errors
    /// [`RateControlError::LineRateUnknown`], [`RateControlError::AboveLineRate`].
    pub fn validate(&self, line_rate: Option<Rate>) -> Result<(), RateControlError> {
        match (*self, line_rate) {
            (Self::DcqcnWindow { .. }, None) => Err(RateControlError::LineRateUnknown),
            (Self::Fixed(Some(rate)), Some(line)) if rate > line => {
                Err(RateControlError::AboveLineRate { rate, line })
            }
            _ => Ok(()),
        }
    }

    /// A controller that has heard of nothing.
    #[must_use]
    pub fn controller(&self, rp: &RpParams, line_rate: Option<Rate>) -> Controller {
        let dcqcn = ReactionPoint::new(rp, line_rate);
        match *self {
            Self::Fixed(rate) => Controller::Fixed(FixedRate {
                rate: rate.or(line_rate),
                counters: RpCounters::default(),
            }),
            Self::Dcqcn => Controller::Dcqcn(dcqcn),
            Self::DcqcnWindow { base_rtt, scaled } => Controller::Windowed(Windowed {
                dcqcn,
                line: line_rate,
                bytes: line_rate.map(|line| bandwidth_delay(line, base_rtt)),
                scaled,
            }),
        }
    }
}

/// As it is written in options.
impl fmt::Display for RateControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(None) => f.write_str("fixed"),
            Self::Fixed(Some(rate)) => write!(f, "fixed={}", rate.as_bps()),
            Self::Dcqcn => f.write_str("dcqcn"),
            Self::DcqcnWindow { base_rtt, scaled } => {
                let constant = if *scaled { "" } else { ",constant" };
                write!(f, "dcqcn-window={}ns{constant}", nanos(*base_rtt))
            }
        }
    }
}

impl FromStr for RateControl {
    type Err = RateControlError;

    fn from_str(text: &str) -> Result<Self, RateControlError> {
        let bad = |what| RateControlError::BadValue {
            text: text.to_owned(),
            what,
        };
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim())),
            None => (text.trim(), None),
        };
        match (name, value) {
            ("fixed", None) => Ok(Self::Fixed(None)),
            ("fixed", Some(rate)) => match rate.parse() {
                Ok(Rate::ZERO) => Err(bad("a rate of 0 sends nothing")),
                Ok(rate) => Ok(Self::Fixed(Some(rate))),
                Err(_) => Err(bad("the value is no rate")),
            },
            ("dcqcn", None) => Ok(Self::Dcqcn),
            ("dcqcn", Some(_)) => Err(bad("dcqcn takes no value, its parameters have names")),
            ("dcqcn-window", None) => Err(bad("the round trip of the empty network is missing")),
            ("dcqcn-window", Some(value)) => {
                let (rtt, scaled) = match value.split_once(',') {
                    None => (value, true),
                    Some((rtt, "constant")) => (rtt, false),
                    Some(_) => return Err(bad("what follows the round trip is unknown")),
                };
                let base_rtt = parse_time(rtt).ok_or_else(|| {
                    bad("the round trip is no time, such as 800ns, 12.5us or 1ms")
                })?;
                Ok(Self::DcqcnWindow { base_rtt, scaled })
            }
            _ if ELSEWHERE.contains(&name) => Err(RateControlError::NotHad(name.to_owned())),
            _ => Err(RateControlError::Unknown(name.to_owned())),
        }
    }
}

/// A time above 0 with its unit.
fn parse_time(text: &str) -> Option<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(end);
    let scale = match unit.trim() {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    let seconds = number.parse::<f64>().ok()? * scale;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|d| !d.is_zero())
}

/// Bytes that a link holds in this time.
fn bandwidth_delay(line: Rate, time: Duration) -> u64 {
    let bits = u128::from(line.as_bps()) * u128::from(nanos(time)) / 1_000_000_000;
    u64::try_from(bits / 8).unwrap_or(u64::MAX).max(1)
}

/// What all controllers do.
pub trait RateController {
    /// CNPs arrived. Where the line rate is not known, the QP was sending at `measured`.
    fn cnps(&mut self, now: Timestamp, cnps: u32, measured: Rate);
    /// Bytes of a frame with data went out.
    fn sent(&mut self, now: Timestamp, bytes: u64);
    /// When [`RateController::handle_timeout`] may change something.
    fn poll_timeout(&self) -> Option<Timestamp>;
    /// That time may have come.
    fn handle_timeout(&mut self, now: Timestamp);
    /// The rate to send at; `None`: unpaced.
    fn rate(&self) -> Option<Rate>;
    /// The rate that it is moving to, where it has one.
    fn target(&self) -> Option<Rate>;
    /// DCQCN's alpha, 0 to 1; 0 where there is none.
    fn alpha(&self) -> f64;
    /// Bytes of payload that may be on the way: no packet goes while there are as many. `None`: the QP's own limit is all.
    fn window(&self) -> Option<u64>;
    /// What happened so far.
    fn counters(&self) -> RpCounters;
}

/// A rate that nothing changes.
#[derive(Clone, Debug)]
pub struct FixedRate {
    rate: Option<Rate>,
    counters: RpCounters,
}

impl RateController for FixedRate {
    fn cnps(&mut self, _now: Timestamp, cnps: u32, _measured: Rate) {
        self.counters.cnps += u64::from(cnps);
    }
    fn sent(&mut self, _now: Timestamp, _bytes: u64) {}
    fn poll_timeout(&self) -> Option<Timestamp> {
        None
    }
    fn handle_timeout(&mut self, _now: Timestamp) {}
    fn rate(&self) -> Option<Rate> {
        self.rate
    }
    fn target(&self) -> Option<Rate> {
        self.rate
    }
    fn alpha(&self) -> f64 {
        0.0
    }
    fn window(&self) -> Option<u64> {
        None
    }
    fn counters(&self) -> RpCounters {
        self.counters
    }
}

impl RateController for ReactionPoint {
    fn cnps(&mut self, now: Timestamp, cnps: u32, measured: Rate) {
        self.on_cnp_with_ceiling(now, cnps, measured);
    }
    fn sent(&mut self, now: Timestamp, bytes: u64) {
        self.on_bytes_sent(now, bytes);
    }
    fn poll_timeout(&self) -> Option<Timestamp> {
        ReactionPoint::poll_timeout(self)
    }
    fn handle_timeout(&mut self, now: Timestamp) {
        ReactionPoint::handle_timeout(self, now);
    }
    fn rate(&self) -> Option<Rate> {
        ReactionPoint::rate(self)
    }
    fn target(&self) -> Option<Rate> {
        ReactionPoint::target(self)
    }
    fn alpha(&self) -> f64 {
        ReactionPoint::alpha(self)
    }
    fn window(&self) -> Option<u64> {
        None
    }
    fn counters(&self) -> RpCounters {
        ReactionPoint::counters(self)
    }
}

/// DCQCN and a window.
#[derive(Clone, Debug)]
pub struct Windowed {
    dcqcn: ReactionPoint,
    line: Option<Rate>,
    /// Of the line rate.
    bytes: Option<u64>,
    scaled: bool,
}

impl RateController for Windowed {
    fn cnps(&mut self, now: Timestamp, cnps: u32, measured: Rate) {
        self.dcqcn.cnps(now, cnps, measured);
    }
    fn sent(&mut self, now: Timestamp, bytes: u64) {
        self.dcqcn.sent(now, bytes);
    }
    fn poll_timeout(&self) -> Option<Timestamp> {
        self.dcqcn.poll_timeout()
    }
    fn handle_timeout(&mut self, now: Timestamp) {
        self.dcqcn.handle_timeout(now);
    }
    fn rate(&self) -> Option<Rate> {
        self.dcqcn.rate()
    }
    fn target(&self) -> Option<Rate> {
        self.dcqcn.target()
    }
    fn alpha(&self) -> f64 {
        self.dcqcn.alpha()
    }
    fn window(&self) -> Option<u64> {
        let (whole, line) = (self.bytes?, self.line?);
        match self.dcqcn.rate().filter(|_| self.scaled) {
            None => Some(whole),
            Some(rate) => {
                let scaled = u128::from(whole) * u128::from(rate.as_bps());
                let scaled = scaled.checked_div(u128::from(line.as_bps()))?;
                Some(u64::try_from(scaled).unwrap_or(u64::MAX).max(1))
            }
        }
    }
    fn counters(&self) -> RpCounters {
        self.dcqcn.counters()
    }
}

/// One QP's controller.
#[derive(Clone, Debug)]
pub enum Controller {
    /// [`RateControl::Fixed`].
    Fixed(FixedRate),
    /// [`RateControl::Dcqcn`].
    Dcqcn(ReactionPoint),
    /// [`RateControl::DcqcnWindow`].
    Windowed(Windowed),
}

/// The same call on whichever it is.
macro_rules! each {
    ($self:expr, $c:ident => $call:expr) => {
        match $self {
            Controller::Fixed($c) => $call,
            Controller::Dcqcn($c) => $call,
            Controller::Windowed($c) => $call,
        }
    };
}

impl RateController for Controller {
    fn cnps(&mut self, now: Timestamp, cnps: u32, measured: Rate) {
        each!(self, c => c.cnps(now, cnps, measured));
    }
    fn sent(&mut self, now: Timestamp, bytes: u64) {
        each!(self, c => c.sent(now, bytes));
    }
    fn poll_timeout(&self) -> Option<Timestamp> {
        each!(self, c => RateController::poll_timeout(c))
    }
    fn handle_timeout(&mut self, now: Timestamp) {
        each!(self, c => RateController::handle_timeout(c, now));
    }
    fn rate(&self) -> Option<Rate> {
        each!(self, c => RateController::rate(c))
    }
    fn target(&self) -> Option<Rate> {
        each!(self, c => RateController::target(c))
    }
    fn alpha(&self) -> f64 {
        each!(self, c => RateController::alpha(c))
    }
    fn window(&self) -> Option<u64> {
        each!(self, c => c.window())
    }
    fn counters(&self) -> RpCounters {
        each!(self, c => RateController::counters(c))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Rate = Rate::from_gbps(100);

    #[test]
    fn controllers_are_chosen_by_name_and_others_refused_by_theirs() {
        let us = Duration::from_micros;
        for (text, control) in [
            ("dcqcn", RateControl::Dcqcn),
            ("fixed", RateControl::Fixed(None)),
            ("fixed=10G", RateControl::Fixed(Some(Rate::from_gbps(10)))),
            (
                "dcqcn-window=12us",
                RateControl::DcqcnWindow {
                    base_rtt: us(12),
                    scaled: true,
                },
            ),
            (
                "dcqcn-window=1.5ms,constant",
                RateControl::DcqcnWindow {
                    base_rtt: us(1500),
                    scaled: false,
                },
            ),
        ] {
            assert_eq!(text.parse(), Ok(control), "{text}");
            assert_eq!(control.to_string().parse(), Ok(control), "{control}");
        }
        for (text, part) in [
            ("hpcc", "hpcc is a controller of the reference"),
            ("timely", "does not have"),
            ("cubic", "\"cubic\": there are fixed"),
            ("fixed=0", "sends nothing"),
            ("fixed=fast", "no rate"),
            ("dcqcn=1", "takes no value"),
            ("dcqcn-window", "missing"),
            ("dcqcn-window=0us", "no time"),
            ("dcqcn-window=20", "no time"),
            ("dcqcn-window=20us,var", "unknown"),
        ] {
            let error = text.parse::<RateControl>().unwrap_err().to_string();
            assert!(
                error.contains(part) && error.contains("dcqcn-window=RTT"),
                "{text}: {error}"
            );
        }
        let windowed: RateControl = "dcqcn-window=12us".parse().unwrap();
        assert!(windowed.validate(Some(LINE)).is_ok());
        let error = windowed.validate(None).unwrap_err().to_string();
        assert!(error.contains("--line-rate"), "{error}");
        let fast = RateControl::Fixed(Some(Rate::from_gbps(200)));
        assert!(fast.validate(Some(LINE)).is_err() && fast.validate(None).is_ok());
    }

    #[test]
    fn the_window_is_the_bandwidth_delay_product_and_follows_the_rate() {
        let rp = RpParams::default();
        let at = Timestamp::from_micros;
        for (text, factor) in [
            ("dcqcn-window=8us", true),
            ("dcqcn-window=8us,constant", false),
        ] {
            let control: RateControl = text.parse().unwrap();
            let mut c = control.controller(&rp, Some(LINE));
            assert_eq!((c.window(), c.rate()), (Some(100_000), None));
            c.cnps(at(10), 1, LINE);
            c.handle_timeout(at(14));
            let rate = c.rate().unwrap();
            assert!(rate < LINE);
            let scaled = 100_000 * u128::from(rate.as_bps()) / 100_000_000_000;
            let expected = if factor { scaled as u64 } else { 100_000 };
            assert_eq!(c.window(), Some(expected));
            assert!(control.controller(&rp, None).window().is_none());
        }
        assert_eq!(
            RateControl::Dcqcn.controller(&rp, Some(LINE)).window(),
            None
        );
    }

    #[test]
    fn a_fixed_rate_counts_cnps_and_stays() {
        let rate = Rate::from_gbps(7);
        let mut c = RateControl::Fixed(Some(rate)).controller(&RpParams::default(), Some(LINE));
        c.cnps(Timestamp::ZERO, 3, LINE);
        c.handle_timeout(Timestamp::from_micros(500));
        assert_eq!((c.rate(), c.poll_timeout()), (Some(rate), None));
        assert_eq!((c.counters().cnps, c.counters().cuts), (3, 0));
        let line = RateControl::Fixed(None).controller(&RpParams::default(), Some(LINE));
        assert_eq!(line.rate(), Some(LINE));
        let free = RateControl::Fixed(None).controller(&RpParams::default(), None);
        assert_eq!(free.rate(), None);
    }
}
