//! `rocexdp pingpong`: what libibverbs' examples `ibv_rc_pingpong`, `ibv_uc_pingpong`, `ibv_ud_pingpong` and `ibv_srq_pingpong` do,
//! so that either end may be one of them, unmodified.
//!
//! One message at a time goes there and back, per queue pair; all go from and to the same memory, as there.

mod exchange;
mod game;

use std::{net::IpAddr, sync::Arc, thread, time::Duration};

use anyhow::{Context, bail};
use rocexdp_proto::ids::PathMtu;
use serde::Serialize;

use self::{
    exchange::{Line, SRQ_LINES},
    game::{Game, Parts},
};
use crate::{
    control::{config::RunOptions, exchange::CheckedQp, settings::UsageError},
    oob::{
        channel::Channel,
        meet::Meeting,
        pair::{Pair, Service, Unconnected},
        place::{self, Wish},
    },
    out,
    process::{Cancel, on_own_thread},
    rdma::{Agreed, Device, End},
};

/// Version of the JSON.
const VERSION: u32 = 1;
/// How long the device stays after the last message: the peer sends its own again if our acknowledgement of it was lost.
const LINGER: Duration = Duration::from_millis(250);

/// The example that is stood in for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// RC, as `ibv_rc_pingpong`
    Rc,
    /// UC, as `ibv_uc_pingpong`
    Uc,
    /// UD, as `ibv_ud_pingpong`
    Ud,
    /// RC queue pairs with a shared receive queue, as `ibv_srq_pingpong`
    Srq,
}

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which example.
    pub kind: Kind,
    /// The server's host; `None`: we are the server.
    pub host: Option<String>,
    /// TCP port of the exchange.
    pub port: u16,
    /// What the node is opened with.
    pub options: RunOptions,
    /// Which address is used.
    pub wish: Wish,
    /// Bytes of a message.
    pub size: u32,
    /// Path MTU; the same at both ends.
    pub path_mtu: PathMtu,
    /// Receive requests.
    pub rx_depth: u32,
    /// Messages each way, of all queue pairs together.
    pub iterations: u64,
    /// Queue pairs.
    pub qps: u32,
    /// Sleep while waiting for completions.
    pub events: bool,
    /// Look at what has come.
    pub check: bool,
    /// Give up after so long without any news.
    pub patience: Duration,
    /// Print JSON.
    pub json: bool,
}

impl Plan {
    /// Whether it can be.
    ///
    /// # Errors
    /// Names the option.
    pub fn checked(self) -> Result<Self, UsageError> {
        let within = |name: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(UsageError(format!(
                    "{name} {value}: must be {least} to {most}"
                )))
            }
        };
        within("-s", self.size.into(), 1, 1 << 30)?;
        within("-r", self.rx_depth.into(), 1, 65_536)?;
        within("-n", self.iterations, 1, 1 << 40)?;
        // `ibv_srq_pingpong` refuses its own limit too.
        within("-q", self.qps.into(), 1, SRQ_LINES as u64 - 1)?;
        if self.kind != Kind::Srq && self.qps != 1 {
            return Err(UsageError("-q is for --service srq".to_owned()));
        }
        if self.qps > self.rx_depth {
            return Err(UsageError(format!(
                "-r {}: {} queue pairs need one receive request each at least",
                self.rx_depth, self.qps
            )));
        }
        Ok(self)
    }

    /// Bytes that a receive request needs before those of the message.
    fn before(&self) -> u32 {
        match self.kind {
            Kind::Ud => Service::Ud.room(),
            Kind::Rc | Kind::Uc | Kind::Srq => 0,
        }
    }

    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Rc => "rc pingpong",
            Kind::Uc => "uc pingpong",
            Kind::Ud => "ud pingpong",
            Kind::Srq => "srq pingpong",
        }
    }
}

/// Runs it and prints the result.
///
/// # Errors
/// Whatever was in the way; the text says what to do.
pub fn run(plan: Plan) -> anyhow::Result<()> {
    let name = plan.name();
    on_own_thread(move |cancel| pingpong(&plan, &cancel).context(name))
}

/// The result.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    version: u32,
    service: Kind,
    role: &'static str,
    local: IpAddr,
    remote: IpAddr,
    path_mtu: u32,
    queue_pairs: u32,
    /// Bytes of a message.
    bytes: u32,
    iterations: u64,
    seconds: f64,
    /// Payload of both directions.
    megabits_per_second: f64,
    microseconds_per_iteration: f64,
    /// Pages of the last message that came wrong; `None`: not looked at.
    invalid_pages: Option<u64>,
}

fn pingpong(plan: &Plan, cancel: &Arc<Cancel>) -> anyhow::Result<()> {
    let meeting = Meeting {
        name: plan.name(),
        host: plan.host.as_deref(),
        port: plan.port,
        options: &plan.options,
        wish: plan.wish,
        qps: plan.qps,
        path_mtu: (plan.kind != Kind::Ud).then_some(plan.path_mtu),
    };
    let (device, mut channel) = meeting.meet(cancel)?;
    let carries = device.path_mtu();
    if plan.kind == Kind::Ud && plan.size > carries.bytes() {
        bail!(
            "-s {}: a UD message fits into one packet, here of {} B (path MTU)",
            plan.size,
            carries.bytes()
        );
    }
    let (parts, unconnected) = Parts::new(plan, &device)?;
    for _ in 0..plan.rx_depth {
        parts.post_recv(unconnected.first())?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let mut meet = Exchange {
        plan,
        device: &device,
        runtime: &runtime,
        channel: &mut channel,
    };
    let (local, remote, pairs) = if plan.host.is_some() {
        meet.as_client(unconnected)?
    } else {
        meet.as_server(unconnected)?
    };
    let mut game = Game::new(plan, &parts, &pairs, &channel);
    let seconds = game.play()?;
    let invalid_pages = plan.check.then(|| parts.invalid_pages()).transpose()?;
    // Both ends stay until the other has what it needs.
    thread::sleep(LINGER);
    channel.part(Duration::from_secs(1));
    let outcome = Outcome {
        version: VERSION,
        service: plan.kind,
        role: if plan.host.is_some() {
            "client"
        } else {
            "server"
        },
        local,
        remote,
        path_mtu: plan.path_mtu.bytes(),
        queue_pairs: plan.qps,
        bytes: plan.size,
        iterations: plan.iterations,
        seconds,
        megabits_per_second: f64::from(plan.size) * plan.iterations as f64 * 16.0 / seconds / 1e6,
        microseconds_per_iteration: seconds * 1e6 / plan.iterations as f64,
        invalid_pages,
    };
    show(plan, &outcome)
}

fn show(plan: &Plan, outcome: &Outcome) -> anyhow::Result<()> {
    if plan.json {
        out::json(outcome)?;
    } else {
        let bytes = u64::from(plan.size) * plan.iterations * 2;
        out::line(format_args!(
            "{bytes} bytes in {:.2} seconds = {:.2} Mbit/sec\n{} iters in {:.2} seconds = {:.2} usec/iter",
            outcome.seconds,
            outcome.megabits_per_second,
            outcome.iterations,
            outcome.seconds,
            outcome.microseconds_per_iteration
        ))?;
    }
    match outcome.invalid_pages {
        None | Some(0) => Ok(()),
        Some(pages) => bail!(
            "{pages} pages of the last message are not what was sent (does the client have -c too?)"
        ),
    }
}

type Connected = (IpAddr, IpAddr, Vec<Pair>);

/// The exchange under way.
struct Exchange<'a> {
    plan: &'a Plan,
    device: &'a Device,
    runtime: &'a tokio::runtime::Runtime,
    channel: &'a mut Channel,
}

impl Exchange<'_> {
    fn as_client(&mut self, qps: Vec<Unconnected>) -> anyhow::Result<Connected> {
        let local = self.choose(None)?;
        let lines = self.lines(&qps, local);
        exchange::write(self.channel, &lines)?;
        let theirs = exchange::read(self.channel, lines.len())?;
        let peers = self.peers(&theirs)?;
        exchange::write_done(self.channel)?;
        self.connect(qps, local, &peers)
    }

    fn as_server(&mut self, qps: Vec<Unconnected>) -> anyhow::Result<Connected> {
        let count = if self.plan.kind == Kind::Srq {
            SRQ_LINES
        } else {
            1
        };
        let theirs = exchange::read(self.channel, count)?;
        let peers = self.peers(&theirs)?;
        let local = self.choose(peers.first().map(|peer| peer.gid))?;
        let lines = self.lines(&qps, local);
        // Before the client knows of them, so that its first message finds them.
        let connected = self.connect(qps, local, &peers)?;
        exchange::write(self.channel, &lines)?;
        exchange::read_done(self.channel)?;
        Ok(connected)
    }

    fn choose(&self, peer: Option<IpAddr>) -> anyhow::Result<IpAddr> {
        place::choose(
            self.plan.wish,
            &self.device.node().report().iface,
            self.device.addresses(),
            self.channel.local(),
            peer,
        )
    }

    /// Our lines, for as many queue pairs as the example speaks of.
    fn lines(&self, qps: &[Unconnected], local: IpAddr) -> Vec<Line> {
        let mut lines: Vec<Line> = qps
            .iter()
            .map(|qp| Line {
                qpn: qp.qpn().get(),
                psn: qp.psn().get(),
                gid: place::gid(local),
            })
            .collect();
        if self.plan.kind == Kind::Srq {
            lines.resize(SRQ_LINES, Line::default());
        }
        lines
    }

    fn peers(&self, theirs: &[Line]) -> anyhow::Result<Vec<CheckedQp>> {
        let qps = self.plan.qps as usize;
        let there = theirs.iter().filter(|line| line.qpn != 0).count();
        if there != qps {
            bail!("the peer has {there} queue pairs, and we {qps}: give both ends the same -q");
        }
        theirs
            .iter()
            .take(qps)
            .map(|line| line.check(self.plan.path_mtu))
            .collect()
    }

    fn connect(
        &self,
        qps: Vec<Unconnected>,
        local: IpAddr,
        peers: &[CheckedQp],
    ) -> anyhow::Result<Connected> {
        let remote = peers.first().context("no queue pair")?.gid;
        let agreed = Agreed {
            path_mtu: self.plan.path_mtu,
            max_rd_atomic: 1,
            selective: None,
        };
        let mut pairs = Vec::with_capacity(qps.len());
        for (qp, peer) in qps.into_iter().zip(peers) {
            if !self.plan.json {
                let end = |side, qpn, psn, gid| {
                    format!("  {side} address: QPN 0x{qpn:06x}, PSN 0x{psn:06x}, GID {gid}")
                };
                out::line(end("local", qp.qpn().get(), qp.psn().get(), local))?;
                out::line(end("remote", peer.qpn.get(), peer.psn.get(), peer.gid))?;
            }
            let end = End {
                address: peer.gid,
                qpn: peer.qpn,
                psn: peer.psn,
            };
            let connected = self.runtime.block_on(qp.connect(local, end, agreed));
            pairs.push(connected.with_context(|| format!("connecting to {}", peer.gid))?);
        }
        Ok((local, remote, pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(kind: Kind) -> Plan {
        Plan {
            kind,
            host: None,
            port: 18515,
            options: RunOptions::default(),
            wish: Wish::default(),
            size: 4096,
            path_mtu: PathMtu::Mtu1024,
            rx_depth: 500,
            iterations: 1000,
            qps: 1,
            events: false,
            check: false,
            patience: Duration::from_secs(1),
            json: false,
        }
    }

    #[test]
    fn options_that_can_not_be_are_named() {
        assert!(plan(Kind::Rc).checked().is_ok());
        assert!(
            Plan {
                qps: 16,
                ..plan(Kind::Srq)
            }
            .checked()
            .is_ok()
        );
        let cases: [(Plan, &str); 5] = [
            (
                Plan {
                    size: 0,
                    ..plan(Kind::Rc)
                },
                "-s 0",
            ),
            (
                Plan {
                    iterations: 0,
                    ..plan(Kind::Rc)
                },
                "-n 0",
            ),
            (
                Plan {
                    qps: 2,
                    ..plan(Kind::Uc)
                },
                "--service srq",
            ),
            (
                Plan {
                    qps: 256,
                    ..plan(Kind::Srq)
                },
                "-q 256",
            ),
            (
                Plan {
                    qps: 16,
                    rx_depth: 8,
                    ..plan(Kind::Srq)
                },
                "-r 8",
            ),
        ];
        for (plan, part) in cases {
            let error = plan.checked().unwrap_err();
            assert!(error.0.contains(part), "{part}: {error}");
        }
    }
}
