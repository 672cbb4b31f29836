//! A sender's queue pair of the reference's host: its rate, its window, and what it shows.
//!
//! Follows `rdma-hw.cc` (`cnp_received_mlx`, the timers' order) and `rdma-queue-pair.cc` (`GetWin`) of the HPCC simulator; the rate is
//! `rocexdp_proto`'s reaction point.
//!
//! Must not: know of other queue pairs.

use std::time::Duration;

use rocexdp_proto::dcqcn::{ReactionPoint, RpParams};
use rocexdp_proto::time::{Rate, Timestamp, nanos};
use rocexdp_sim::picos::Picos;
use rocexdp_sim::topology::HostId;

use super::files::Flow;

/// A flow with its ends in the simulator.
#[derive(Clone, Copy, Debug)]
pub struct Assigned {
    /// Its place in the case's list.
    pub number: u32,
    /// As listed.
    pub flow: Flow,
    /// Its source.
    pub source: HostId,
    /// Its destination.
    pub destination: HostId,
    /// Most bytes in flight; 0: no limit.
    pub window: u64,
}

/// A sender's queue pair.
#[derive(Debug)]
pub struct Qp {
    /// Its flow.
    pub assigned: Assigned,
    /// When the last byte was acknowledged.
    pub finished: Option<Picos>,
    /// Packets handed to the NIC, again sent ones included.
    pub sent: u64,
    /// CNP flags received.
    pub cnps: u64,
    rp: Option<ReactionPoint>,
    alpha_period: Duration,
    cut_period: Duration,
    increase_period: Duration,
    first_cnp: Option<Timestamp>,
    pub(super) next: u64,
    pub(super) acknowledged: u64,
    pub(super) next_send: Picos,
}

impl Qp {
    pub(super) fn new(assigned: Assigned, params: Option<&RpParams>, line: Rate) -> Self {
        let period = |of: fn(&RpParams) -> Duration| params.map_or(Duration::ZERO, of);
        Self {
            assigned,
            finished: None,
            sent: 0,
            cnps: 0,
            rp: params.map(|rp| ReactionPoint::new(rp, Some(line))),
            alpha_period: period(|rp| rp.dce_tcp_rtt),
            cut_period: period(|rp| rp.rate_reduce_monitor_period),
            increase_period: period(|rp| rp.rpg_time_reset),
            first_cnp: None,
            next: 0,
            acknowledged: 0,
            next_send: Picos::ZERO,
        }
    }

    pub(super) fn left(&self) -> u64 {
        self.assigned.flow.size.saturating_sub(self.next)
    }

    pub(super) fn is_finished(&self) -> bool {
        self.acknowledged >= self.assigned.flow.size
    }

    /// Runs the timers that come before an event of `now` that was planned at `planned`: those of earlier times, and those of now
    /// that were planned before it, a period ago.
    pub(super) fn run_timers(&mut self, now: Picos, planned: Picos) {
        let Some(rp) = self.rp.as_mut().filter(|_| self.finished.is_none()) else {
            return;
        };
        let at = now.timestamp();
        rp.handle_timeout(at.saturating_sub(Duration::from_nanos(1)));
        let (cut, increase) = rp.planned();
        let later =
            |timer, period| timer == Some(at) && now - Picos::from_nanos(nanos(period)) >= planned;
        if !later(cut, self.cut_period) && !later(increase, self.increase_period) {
            rp.handle_timeout(at);
        }
    }

    /// The rate as an event of `now` finds it that was planned at `planned`.
    pub(super) fn rate_at(&mut self, now: Picos, planned: Picos, line: Rate) -> Rate {
        self.run_timers(now, planned);
        let rate = self.rp.as_ref().and_then(ReactionPoint::rate);
        rate.unwrap_or(line)
    }

    /// `cnp_received_mlx`. The CNP's acknowledgement was planned when it was sent to this host, `flight` ago, a tick of alpha or of
    /// the cuts one period ago. So with a period below that the CNP still counts for a tick of the same nanosecond. (The reaction
    /// point puts timers first, which holds for the longer ones.) The two never tick together: cuts come 1 ns later
    /// (`ScheduleDecreaseRateMlx`).
    pub(super) fn congested(&mut self, now: Picos, flight: Picos) {
        let Some(rp) = &mut self.rp else { return };
        let now = now.timestamp();
        let first = *self.first_cnp.get_or_insert(now);
        let since = nanos(now.saturating_since(first));
        let ticks =
            |since: u64, period: Duration| since > 0 && since.is_multiple_of(nanos(period).max(1));
        let shorter = |period: Duration| Picos::from_nanos(nanos(period)) < flight;
        let counts_now = ticks(since, self.alpha_period) && shorter(self.alpha_period)
            || ticks(since.saturating_sub(1), self.cut_period) && shorter(self.cut_period);
        let counted = if counts_now {
            now.saturating_sub(Duration::from_nanos(1))
        } else {
            now
        };
        // The line rate is known, so there is always a rate to cut from.
        let _ = rp.on_cnp(counted, 1);
    }

    /// `GetWin`: the window, by the rate where it is variable, at least 1 byte.
    pub(super) fn is_window_bound(
        &mut self,
        (now, planned): (Picos, Picos),
        line: Rate,
        variable: bool,
    ) -> bool {
        let window = self.assigned.window;
        if window == 0 {
            return false;
        }
        let window = if variable {
            let rate = u128::from(self.rate_at(now, planned, line).as_bps());
            let scaled = u128::from(window) * rate / u128::from(line.as_bps().max(1));
            u64::try_from(scaled).unwrap_or(u64::MAX).max(1)
        } else {
            window
        };
        self.next.saturating_sub(self.acknowledged) >= window
    }

    /// Rate cuts as of the latest input.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.rp.as_ref().map_or(0, |rp| rp.counters().cuts)
    }

    /// What it shows at `now`, which must not be before anything that happened to it.
    #[must_use]
    pub fn look(&self, now: Picos, line: Rate) -> Look {
        let mut look = Look {
            rate: line,
            target: line,
            alpha: 1.0,
            cuts: 0,
            increases: 0,
        };
        if let Some(mut rp) = self.rp.clone() {
            // The timers of one that has finished stopped then.
            rp.handle_timeout(self.finished.unwrap_or(now).timestamp());
            look.rate = rp.rate().unwrap_or(line);
            look.target = rp.target().unwrap_or(line);
            look.alpha = rp.alpha();
            look.cuts = rp.counters().cuts;
            look.increases = rp.counters().increases;
        }
        look
    }
}

/// What a sender's queue pair shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    /// Rate.
    pub rate: Rate,
    /// Target rate.
    pub target: Rate,
    /// Alpha; 1 before the first CNP and without rate control.
    pub alpha: f64,
    /// Rate cuts so far.
    pub cuts: u64,
    /// Rate increases so far.
    pub increases: u64,
}
