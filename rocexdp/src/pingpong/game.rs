//! Memory and queues of a pingpong, and its loop (`main` of the examples, from the first post on).
//!
//! Must not: know how the peer was found.

use std::{collections::HashMap, time::Instant};

use anyhow::{Context, bail};
use rocexdp_proto::mem::Access;

use super::{Kind, Plan};
use crate::{
    mem::Buffer,
    oob::{
        channel::Channel,
        pair::{Pair, Request, Service, Shape, Unconnected},
        wait::Waiter,
    },
    rdma::{Behaviour, CompletionQueue, CqeOpcode, Device, ReadWrite, Region, SharedReceiveQueue},
};

/// Local ACK timeout, 0.54 s. The examples have 14, 67 ms, which is too short for a peer in software under load.
const TIMEOUT: u8 = 17;
/// `-c` looks at one byte of every so many.
const PAGE: u64 = 4096;
/// What the memory is full of before a message comes.
const FILL: u8 = 0x7b;

/// Memory and queues.
pub struct Parts {
    region: Region<ReadWrite>,
    /// Bytes in it before those of the message.
    before: u64,
    srq: Option<SharedReceiveQueue>,
    cq: CompletionQueue,
}

impl Parts {
    /// Makes them, and the queue pairs.
    ///
    /// # Errors
    /// A limit of the device.
    pub fn new(plan: &Plan, device: &Device) -> anyhow::Result<(Self, Vec<Unconnected>)> {
        let pd = device.protection_domain()?;
        let before = u64::from(plan.before());
        let size = plan.size as usize + before as usize;
        let buffer = Buffer::map(size).with_context(|| format!("getting {size} B of memory"))?;
        let region = pd.register(buffer, Access::NONE)?;
        let page = vec![FILL; PAGE as usize];
        let mut at = 0;
        while at < region.len() {
            let len = PAGE.min(region.len() - at);
            region.write(at, page.get(..len as usize).unwrap_or_default())?;
            at += len;
        }
        let mut at = before;
        while plan.check && plan.host.is_some() && at < region.len() {
            // What the examples put there: `i / page_size % sizeof(char)`, which is 0.
            region.write(at, &[0])?;
            at += PAGE;
        }
        let srq = match plan.kind {
            Kind::Srq => Some(pd.shared_receive_queue(plan.rx_depth)?),
            Kind::Rc | Kind::Uc | Kind::Ud => None,
        };
        let cq = CompletionQueue::new(plan.rx_depth + plan.qps);
        let shape = Shape {
            service: match plan.kind {
                Kind::Uc => Service::Uc,
                Kind::Ud => Service::Ud,
                Kind::Rc | Kind::Srq => Service::Rc,
            },
            send_depth: 1,
            recv_depth: if srq.is_some() { 1 } else { plan.rx_depth },
            srq: srq.clone(),
            behaviour: Behaviour {
                timeout: TIMEOUT,
                max_rd_atomic: 1,
                max_dest_rd_atomic: 1,
                access: Access::NONE,
                ..Behaviour::default()
            },
        };
        let qps = (0..plan.qps)
            .map(|_| Unconnected::new(&pd, &cq, &shape))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let parts = Self {
            region,
            before,
            srq,
            cq,
        };
        Ok((parts, qps))
    }

    /// Posts a receive request before there is a peer, to `own` unless the queue is shared.
    ///
    /// # Errors
    /// The queue is full.
    pub fn post_recv(&self, own: Option<&Unconnected>) -> anyhow::Result<()> {
        let into = self.region.slice(..)?;
        match (&self.srq, own) {
            (Some(srq), _) => Ok(srq.post_recv(0, into)?),
            (None, Some(qp)) => qp.recv(0, into),
            (None, None) => bail!("no queue pair"),
        }
    }

    /// Pages whose first byte is not what the client put there.
    ///
    /// # Errors
    /// The region is smaller than it was.
    pub fn invalid_pages(&self) -> anyhow::Result<u64> {
        let mut invalid = 0;
        let mut at = self.before;
        while at < self.region.len() {
            let mut byte = [FILL];
            self.region.read(at, &mut byte)?;
            invalid += u64::from(byte != [0]);
            at += PAGE;
        }
        Ok(invalid)
    }
}

/// What is still awaited before a queue pair sends again.
#[derive(Clone, Copy)]
struct Pending {
    send: bool,
    receive: bool,
}

/// The loop.
pub struct Game<'a> {
    plan: &'a Plan,
    parts: &'a Parts,
    pairs: &'a [Pair],
    channel: &'a Channel,
    index: HashMap<u32, usize>,
    pending: Vec<Pending>,
    sent: u64,
    received: u64,
    /// Receive requests posted and not completed.
    outstanding: u32,
}

impl<'a> Game<'a> {
    /// Of connected queue pairs, with `rx_depth` receive requests posted.
    pub fn new(plan: &'a Plan, parts: &'a Parts, pairs: &'a [Pair], channel: &'a Channel) -> Self {
        let indices = pairs.iter().enumerate();
        let waiting = Pending {
            send: false,
            receive: true,
        };
        Self {
            plan,
            parts,
            pairs,
            channel,
            index: indices.map(|(at, pair)| (pair.qpn().get(), at)).collect(),
            pending: vec![waiting; pairs.len()],
            sent: 0,
            received: 0,
            outstanding: plan.rx_depth,
        }
    }

    fn post(&mut self, at: usize) -> anyhow::Result<()> {
        let request = Request {
            id: 0,
            signaled: true,
        };
        let pair = self.pairs.get(at).context("no such queue pair")?;
        let message = self.parts.region.slice(self.parts.before..)?;
        pair.send(request, message.into())?;
        if let Some(pending) = self.pending.get_mut(at) {
            *pending = Pending {
                send: true,
                receive: true,
            };
        }
        Ok(())
    }

    /// Plays it; gives the seconds that it took.
    ///
    /// # Errors
    /// A request failed, or nothing happens any more.
    pub fn play(&mut self) -> anyhow::Result<f64> {
        let waiter = Waiter {
            events: self.plan.events,
            patience: self.plan.patience,
        };
        let begun = Instant::now();
        if self.plan.host.is_some() {
            for at in 0..self.pairs.len() {
                self.post(at)?;
            }
        }
        let iterations = self.plan.iterations;
        while self.received < iterations || self.sent < iterations {
            let progress = || {
                format!(
                    "{} of {iterations} messages sent, {} received (both ends need the same -n, -s and -m)",
                    self.sent, self.received
                )
            };
            let done = waiter.next(&self.parts.cq, self.channel, None, progress)?;
            let done = done.context("a wait without end has ended")?;
            let at = *self
                .index
                .get(&done.qpn)
                .context("a completion of no queue pair")?;
            let pending = self.pending.get_mut(at).context("no such queue pair")?;
            if done.opcode == CqeOpcode::Recv {
                pending.receive = false;
                self.received += 1;
                self.refill()?;
            } else {
                pending.send = false;
                self.sent += 1;
            }
            let idle = self
                .pending
                .get(at)
                .is_some_and(|pending| !pending.send && !pending.receive);
            if idle && self.sent < iterations {
                self.post(at)?;
            }
        }
        Ok(begun.elapsed().as_secs_f64())
    }

    /// Posts receive requests when only as many as queue pairs are left, as the examples do.
    fn refill(&mut self) -> anyhow::Result<()> {
        self.outstanding = self.outstanding.saturating_sub(1);
        if self.outstanding > self.plan.qps {
            return Ok(());
        }
        while self.outstanding < self.plan.rx_depth {
            let into = self.parts.region.slice(..)?;
            match &self.parts.srq {
                Some(srq) => srq.post_recv(0, into)?,
                None => self.pairs.first().context("no queue pair")?.recv(0, into)?,
            }
            self.outstanding += 1;
        }
        Ok(())
    }
}
