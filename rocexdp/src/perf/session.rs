//! A test's objects: device, memory, queue pairs, connected with the peer's by perftest's exchange.
//!
//! Must not: measure.

use std::{net::IpAddr, sync::Arc};

use anyhow::{Context, bail};
use rocexdp_proto::mem::Access;

use super::{
    handshake::{AddressLine, Basics, Role, Wire},
    memory::Layout,
    plan::{Plan, Verb},
};
use crate::{
    control::exchange::CheckedQp,
    mem::Buffer,
    oob::{
        meet::Meeting,
        pair::{Pair, Request, Service, Shape, Unconnected},
        place,
        wait::Waiter,
    },
    process::Cancel,
    rdma::{
        Agreed, Behaviour, CompletionQueue, Device, End, ReadWrite, Region, RemoteRegion, Source,
    },
};

/// A request's id: whether it is a receive request, which queue pair's, and how many of them are done when it completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id {
    /// A receive request.
    pub receive: bool,
    /// Index of the queue pair.
    pub qp: usize,
    /// Requests of the queue pair up to this one.
    pub count: u64,
}

impl Id {
    const RECEIVE: u64 = 1 << 63;
    const COUNT_BITS: u32 = 48;

    /// For a request.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        let receive = if self.receive { Self::RECEIVE } else { 0 };
        receive | (self.qp as u64) << Self::COUNT_BITS | self.count
    }

    /// Of a completion.
    #[must_use]
    pub fn of(id: u64) -> Self {
        Self {
            receive: id & Self::RECEIVE != 0,
            qp: ((id & !Self::RECEIVE) >> Self::COUNT_BITS) as usize,
            count: id & ((1 << Self::COUNT_BITS) - 1),
        }
    }
}

/// One end as it is shown.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Shown {
    /// Address.
    pub address: IpAddr,
    /// Queue pairs' numbers.
    pub qpns: Vec<u32>,
}

/// A connected test.
pub struct Session {
    /// What to do.
    pub plan: Plan,
    /// The way to the peer's program.
    pub wire: Wire,
    /// What both agreed on.
    pub basics: Basics,
    /// Memory.
    pub region: Region<ReadWrite>,
    /// Its division.
    pub layout: Layout,
    /// Queue pairs.
    pub pairs: Vec<Pair>,
    /// The peer's part for each.
    pub remotes: Vec<RemoteRegion>,
    /// Where everything completes.
    pub cq: CompletionQueue,
    /// How to wait for it.
    pub waiter: Waiter,
    /// Both ends.
    pub ends: (Shown, Shown),
    /// Our first queue pair's line, which serves as the barrier's message.
    line: AddressLine,
    runtime: tokio::runtime::Runtime,
    /// Last, after what is made of it.
    device: Device,
}

/// Opens, waits for or connects to the peer, and connects the queue pairs.
///
/// # Errors
/// Anything that is in the way; the text says what to do.
pub fn open(mut plan: Plan, cancel: &Arc<Cancel>) -> anyhow::Result<Session> {
    let meeting = Meeting {
        name: plan.test.name(),
        host: plan.host.as_deref(),
        port: plan.port,
        options: &plan.options,
        wish: plan.wish,
        qps: plan.qps,
        path_mtu: plan.path_mtu,
    };
    let (device, channel) = meeting.meet(cancel)?;
    let role = plan.role();
    let mut wire = Wire { channel, role };
    let wanted = plan.path_mtu.unwrap_or_else(|| device.path_mtu());
    let basics = wire.basics(wanted)?;
    if plan.service == Service::Ud {
        // As perftest does: with -a as many sizes as there are.
        let most = basics.path_mtu.bytes();
        if plan.sizes.len() > 1 {
            plan.sizes.retain(|size| *size <= most);
        } else if plan.largest() > most {
            bail!(
                "-s {}: a UD message fits into one packet, here of {most} B (path MTU)",
                plan.largest()
            );
        }
    }
    let layout = Layout::new(
        plan.qps,
        plan.largest() + plan.service.room(),
        basics.cycle_buffer,
        basics.cache_line,
    );
    let pd = device.protection_domain()?;
    let cq = CompletionQueue::new((plan.tx_depth + plan.rx_depth).saturating_mul(plan.qps));
    let access = match plan.test.verb() {
        Verb::Send => Access::NONE,
        Verb::Write => Access::REMOTE_WRITE,
        Verb::Read => Access::REMOTE_READ,
        Verb::Atomic => Access::REMOTE_ATOMIC,
    };
    let len = layout.len();
    let buffer = Buffer::map(len as usize)
        .with_context(|| format!("getting {len} B of memory for the test"))?;
    let region = pd.register(buffer, access)?;
    let shape = Shape {
        service: plan.service,
        send_depth: plan.tx_depth,
        recv_depth: plan.rx_depth,
        srq: None,
        behaviour: Behaviour {
            timeout: plan.timeout,
            max_rd_atomic: plan.outstanding,
            max_dest_rd_atomic: plan.outstanding,
            access,
            ..Behaviour::default()
        },
    };
    let qps = (0..plan.qps)
        .map(|_| Unconnected::new(&pd, &cq, &shape))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let (rkey, base) = region.remote().map_or((0, 0), |r| (r.rkey(), r.va()));
    let ours = Ours {
        plan: &plan,
        device: &device,
        layout,
        rkey,
        base,
    };
    let (local, lines, peers) = ours.exchange(&mut wire, &qps)?;
    let line = *lines.first().context("no queue pair")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let mut session = Session {
        ends: (
            Shown {
                address: local,
                qpns: lines.iter().map(|line| line.qpn).collect(),
            },
            Shown {
                address: peers.first().map_or(local, |(qp, _)| qp.gid),
                qpns: peers.iter().map(|(qp, _)| qp.qpn.get()).collect(),
            },
        ),
        waiter: Waiter {
            events: plan.events,
            patience: plan.patience,
        },
        pairs: Vec::with_capacity(qps.len()),
        remotes: Vec::with_capacity(qps.len()),
        plan,
        wire,
        basics,
        region,
        layout,
        cq,
        line,
        runtime,
        device,
    };
    for (qp, (peer, line)) in qps.into_iter().zip(peers) {
        session.connect(qp, local, peer, &line)?;
    }
    // Both ends are connected behind this.
    match session.plan.test.verb() {
        Verb::Send => {
            session.barrier()?;
            session.again(&lines)?;
        }
        Verb::Write | Verb::Read | Verb::Atomic => {
            session.again(&lines)?;
            session.barrier()?;
        }
    }
    Ok(session)
}

/// What our address lines are made of.
struct Ours<'a> {
    plan: &'a Plan,
    device: &'a Device,
    layout: Layout,
    rkey: u32,
    base: u64,
}

type Peers = Vec<(CheckedQp, AddressLine)>;

impl Ours<'_> {
    fn lines(&self, qps: &[Unconnected], local: IpAddr) -> Vec<AddressLine> {
        qps.iter()
            .enumerate()
            .map(|(index, qp)| AddressLine {
                out_reads: self.plan.outstanding.into(),
                qpn: qp.qpn().get(),
                psn: qp.psn().get(),
                rkey: self.rkey,
                va: self.base + self.layout.theirs(index),
                gid: place::gid(local),
            })
            .collect()
    }

    /// Our address, our lines, and the peer's queue pairs.
    fn exchange(
        &self,
        wire: &mut Wire,
        qps: &[Unconnected],
    ) -> anyhow::Result<(IpAddr, Vec<AddressLine>, Peers)> {
        let path_mtu = self.device.path_mtu();
        let choose = |wire: &Wire, peer| {
            place::choose(
                self.plan.wish,
                &self.device.node().report().iface,
                self.device.addresses(),
                wire.channel.local(),
                peer,
            )
        };
        // The server's address follows the client's, which comes first.
        let (local, lines, first) = if wire.role == Role::Server {
            let first = wire.first_line()?;
            let peer = first.check(path_mtu)?.gid;
            let local = choose(wire, Some(peer))?;
            let lines = self.lines(qps, local);
            wire.write_line(*lines.first().context("no queue pair")?)?;
            (local, lines, first)
        } else {
            let local = choose(wire, None)?;
            let lines = self.lines(qps, local);
            let first = wire.lines(*lines.first().context("no queue pair")?)?;
            (local, lines, first)
        };
        let mut peers = Vec::with_capacity(lines.len());
        // Latency tests but SEND's exchange the first line twice.
        let twice = self.plan.test.latency() && self.plan.test.verb() != Verb::Send;
        for (index, line) in lines.iter().enumerate() {
            let theirs = if index == 0 && !twice {
                first
            } else {
                wire.lines(*line)?
            };
            let qp = theirs.check(path_mtu)?;
            if qp.gid.is_ipv4() != local.is_ipv4() {
                bail!(
                    "the peer uses {}, and we {local}: choose addresses of one kind (-x there, --ipv6 or --address here)",
                    qp.gid
                );
            }
            peers.push((qp, theirs));
        }
        Ok((local, lines, peers))
    }
}

impl Session {
    fn connect(
        &mut self,
        qp: Unconnected,
        local: IpAddr,
        peer: CheckedQp,
        line: &AddressLine,
    ) -> anyhow::Result<()> {
        let end = End {
            address: peer.gid,
            qpn: peer.qpn,
            psn: peer.psn,
        };
        let theirs = u8::try_from(line.out_reads).unwrap_or(u8::MAX);
        let agreed = Agreed {
            path_mtu: self.basics.path_mtu,
            max_rd_atomic: theirs.min(self.plan.outstanding).max(1),
            selective: None,
        };
        let pair = self
            .runtime
            .block_on(qp.connect(local, end, agreed))
            .with_context(|| format!("connecting QP {} of {}", peer.qpn.get(), peer.gid))?;
        self.pairs.push(pair);
        let rights = match self.plan.test.verb() {
            Verb::Send => Access::NONE,
            Verb::Write => Access::REMOTE_WRITE,
            Verb::Read => Access::REMOTE_READ,
            Verb::Atomic => Access::REMOTE_ATOMIC,
        };
        if line.va.checked_add(self.layout.part()).is_none() {
            bail!(
                "the peer's memory at 0x{:x} goes beyond all addresses",
                line.va
            );
        }
        self.remotes.push(RemoteRegion::new(
            line.rkey,
            line.va,
            self.layout.part(),
            rights,
        ));
        Ok(())
    }

    /// All lines once more, as perftest does for its display.
    fn again(&mut self, lines: &[AddressLine]) -> anyhow::Result<()> {
        for line in lines {
            self.wire.barrier(*line)?;
        }
        Ok(())
    }

    /// Waits until the peer is here too.
    ///
    /// # Errors
    /// The peer leaves.
    pub fn barrier(&mut self) -> anyhow::Result<()> {
        self.wire.barrier(self.line)
    }

    /// The end.
    ///
    /// # Errors
    /// The peer left before.
    pub fn close(&mut self) -> anyhow::Result<()> {
        self.wire.close(self.line)
    }

    /// The interface.
    #[must_use]
    pub fn iface(&self) -> &str {
        &self.device.node().report().iface
    }

    /// Packets sent again, of all queue pairs.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn retransmitted(&self) -> anyhow::Result<u64> {
        self.runtime.block_on(async {
            let mut all = 0;
            for pair in &self.pairs {
                all += pair.retransmitted().await?;
            }
            Ok(all)
        })
    }

    fn pair(&self, qp: usize) -> anyhow::Result<&Pair> {
        self.pairs.get(qp).context("a completion of no queue pair")
    }

    /// Posts request number `n` of a queue pair, from and to its place.
    ///
    /// # Errors
    /// The queue is full.
    pub fn post(&self, qp: usize, n: u64, size: u32, signaled: bool) -> anyhow::Result<()> {
        let pair = self.pair(qp)?;
        let id = Id {
            receive: false,
            qp,
            count: n + 1,
        };
        let request = Request {
            id: id.to_u64(),
            signaled,
        };
        let offset = self.layout.cycle(n, size);
        let local = self.layout.ours(qp) + offset;
        let remote = self.remotes.get(qp).context("no peer")?;
        match self.plan.test.verb() {
            Verb::Send => pair.send(request, self.source(local, size)?),
            Verb::Write => {
                let to = remote.slice(offset, size.into())?;
                pair.write(request, self.source(local, size)?, to)
            }
            Verb::Read => {
                let into = self.region.slice(local..local + u64::from(size))?;
                pair.read(request, into, remote.slice(offset, size.into())?)
            }
            Verb::Atomic => {
                let (answer, at) = (self.region.word(local)?, remote.word(offset)?);
                match self.plan.atomic {
                    super::plan::AtomicKind::FetchAdd => pair.fetch_add(request, &answer, at, 1),
                    super::plan::AtomicKind::CompareSwap => {
                        pair.compare_swap(request, &answer, at, (0, 1))
                    }
                }
            }
        }
    }

    fn source(&self, at: u64, size: u32) -> anyhow::Result<Source> {
        if size > self.plan.inline {
            return Ok(self.region.slice(at..at + u64::from(size))?.into());
        }
        let mut bytes = [0; 256];
        let bytes = bytes
            .get_mut(..size as usize)
            .context("an inline message is longer than 256 B")?;
        self.region.read(at, bytes)?;
        Ok(Source::inline(bytes))
    }

    /// Posts receive request number `n` of a queue pair.
    ///
    /// # Errors
    /// The queue is full.
    pub fn post_recv(&self, qp: usize, n: u64, size: u32) -> anyhow::Result<()> {
        let id = Id {
            receive: true,
            qp,
            count: n + 1,
        };
        let size = size + self.plan.service.room();
        let at = self.layout.theirs(qp) + self.layout.cycle(n, size);
        let into = self.region.slice(at..at + u64::from(size))?;
        self.pair(qp)?.recv(id.to_u64(), into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_the_way() {
        for receive in [false, true] {
            for (qp, count) in [(0, 0), (1023, 1), (7, (1 << 48) - 1)] {
                let id = Id { receive, qp, count };
                assert_eq!(Id::of(id.to_u64()), id);
            }
        }
    }
}
