//! `rocexdp perf`: RDMA performance tests that speak perftest's protocol, so that either end may be the unmodified `ib_send_bw`,
//! `ib_write_bw`, `ib_read_bw`, `ib_atomic_bw`, `ib_send_lat`, `ib_write_lat`, `ib_read_lat` or `ib_atomic_lat`.
//!
//! `handshake` is what is said over TCP, `plan` the options, `session` the objects, `bandwidth` and `latency` the loops, `report` the
//! results. The order of phases and barriers here is that of perftest's programs' `main`.

mod bandwidth;
mod handshake;
mod latency;
mod memory;
pub mod plan;
mod report;
mod session;

use std::sync::Arc;

use anyhow::{Context, bail};

use self::{
    bandwidth::Part,
    handshake::Role,
    plan::{Length, Plan, Verb},
    report::{Bandwidth, Latency, Outcome, Row},
    session::Session,
};
use crate::{
    out,
    process::{Cancel, on_own_thread},
};

/// Runs a test and prints its result.
///
/// # Errors
/// Whatever was in the way; the text says what to do.
pub fn run(plan: Plan) -> anyhow::Result<()> {
    on_own_thread(move |cancel| test(plan, &cancel))
}

fn test(plan: Plan, cancel: &Arc<Cancel>) -> anyhow::Result<()> {
    let name = plan.test.name();
    let mut session = session::open(plan, cancel).with_context(|| name.to_owned())?;
    let json = session.plan.json;
    if !json {
        out::write(report::heading(&session).as_bytes())?;
    }
    let mut rows = Vec::new();
    let done = if session.plan.test.latency() {
        latency_test(&mut session, &mut rows)
    } else {
        bandwidth_test(&mut session, &mut rows)
    };
    done.with_context(|| name.to_owned())?;
    let retransmitted = session.retransmitted()?;
    if json {
        return out::json(&Outcome::new(&session, rows, retransmitted));
    }
    out::write(report::ending(&session.plan, retransmitted).as_bytes())
}

fn show(session: &Session, rows: &mut Vec<Row>, row: Row) -> anyhow::Result<()> {
    rows.push(row);
    if session.plan.json {
        return Ok(());
    }
    out::write(row.text(session.plan.gigabits).as_bytes())
}

/// The mains of `send_bw.c`, `write_bw.c`, `read_bw.c` and `atomic_bw.c`.
fn bandwidth_test(session: &mut Session, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let role = session.wire.role;
    let both = session.plan.bidirectional;
    let verb = session.plan.test.verb();
    let part = Part::of(role, verb, both);
    if !part.sends && !part.receives {
        // The client measures; its result is that of its last size.
        session.barrier()?;
        let theirs = session.wire.reports(nothing())?.check()?;
        let row = Bandwidth::from_report(&theirs);
        show(session, rows, Row::Bandwidth(row))?;
        return session.close();
    }
    let sizes = session.plan.sizes.clone();
    let all = sizes.len() > 1;
    let timed = matches!(session.plan.length, Length::Time { .. });
    let mut last = None;
    for size in sizes {
        if part.receives {
            bandwidth::prepare(session, size)?;
        }
        if both || verb == Verb::Send {
            session.barrier()?;
        }
        let sample = bandwidth::run(session, size, part)?;
        if both && verb != Verb::Send && all {
            session.barrier()?;
        }
        let ours = Bandwidth::of(size, sample);
        // A timed SEND test counts both directions at each end.
        let row = if both && !(verb == Verb::Send && timed) {
            let report = ours.report(session.plan.gigabits);
            let theirs = session.wire.reports(report)?.check()?;
            ours.with(Bandwidth::from_report(&theirs))
        } else {
            ours
        };
        show(session, rows, Row::Bandwidth(row))?;
        last = Some(ours);
        if verb == Verb::Send && all {
            session.barrier()?;
        }
    }
    if !both && verb != Verb::Send {
        session.barrier()?;
        let ours = last.context("no size")?;
        // The server has measured nothing.
        session.wire.reports(ours.report(session.plan.gigabits))?;
    }
    session.close()
}

/// A report of who has measured nothing.
fn nothing() -> handshake::BandwidthReport {
    handshake::BandwidthReport {
        size: 0,
        iterations: 0,
        peak: 0.0,
        average: 0.0,
        message_rate: 0.0,
    }
}

/// The mains of `send_lat.c`, `write_lat.c`, `read_lat.c` and `atomic_lat.c`.
fn latency_test(session: &mut Session, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let verb = session.plan.test.verb();
    if session.plan.one_sided() && session.wire.role == Role::Server {
        return session.close();
    }
    for size in session.plan.sizes.clone() {
        if verb == Verb::Send {
            latency::prepare(session, size)?;
            session.barrier()?;
        }
        let between = latency::run(session, size)?;
        let Some(row) = Latency::of(size, verb, session.plan.length, &between) else {
            bail!("nothing was measured: a longer -D, or a larger -n");
        };
        show(session, rows, Row::Latency(row))?;
    }
    if verb == Verb::Write {
        // perftest's `write_lat.c` just leaves here. Together, so that no last packet stays without its answer.
        session.wire.part();
        return Ok(());
    }
    session.close()
}
