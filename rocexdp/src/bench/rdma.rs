//! RDMA WRITE between two nodes of this process, one on each host of the lab.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rocexdp_proto::{
    ids::{PathMtu, RKey, WrId},
    mem::{Access, Memory},
    verbs::{Segment, SendOp, SendWr, Status},
};

use crate::{
    lab::{HOST_INTERFACE, Host, Lab},
    mem::Buffer,
    node::{ConnectAttr, Node, NodeConfig, NodeQp},
    process::Cancel,
};

/// Bytes of one WRITE.
const MESSAGE: u64 = 1 << 20;
/// WRITEs under way at once, each from and to its own place.
const DEPTH: u64 = 16;
/// A WRITE that takes longer is a failure.
const PATIENCE: Duration = Duration::from_secs(10);

/// What one measurement gave.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Payload acknowledged, Gb/s.
    pub gigabits_per_second: f64,
    /// Packets sent again.
    pub retransmitted_packets: u64,
}

/// Payload acknowledged per second for each path MTU.
///
/// # Errors
/// A node can't be opened, a WRITE failed, or a signal came.
pub fn measure(
    lab: &Lab,
    path_mtus: &[PathMtu],
    time: Duration,
    cancel: &Cancel,
) -> anyhow::Result<Vec<Measured>> {
    let open = |host| {
        lab.host(host)
            .run(|| Node::open(NodeConfig::new(HOST_INTERFACE)))
    };
    let (a, b) = (open(Host::A)??, open(Host::B)??);
    let memory = || Buffer::new((MESSAGE * DEPTH) as usize).context("memory");
    let (source, target) = (memory()?, memory()?);
    let region = b.register(target, Access::REMOTE_WRITE)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    path_mtus
        .iter()
        .map(|&path_mtu| {
            cancel.check()?;
            let (from, to) = (a.create_qp(DEPTH as u32, 1)?, b.create_qp(1, 1)?);
            let one = Stream {
                qp: &from,
                source: &source,
                rkey: region.rkey,
                va: region.va,
            };
            runtime.block_on(async {
                from.connect(attr(Host::A, &to, path_mtu)).await?;
                to.connect(attr(Host::B, &from, path_mtu)).await?;
                one.run(time, cancel).await
            })
        })
        .collect()
}

fn attr(host: Host, peer: &NodeQp, path_mtu: PathMtu) -> ConnectAttr {
    let (local, other) = (host.ipv4().into(), host.peer().ipv4().into());
    ConnectAttr {
        access: Access::REMOTE_WRITE,
        cnp: true,
        ..ConnectAttr::new(local, other, peer.qpn(), peer.psn(), path_mtu)
    }
}

/// WRITEs one after another over one QP.
struct Stream<'a> {
    qp: &'a NodeQp,
    source: &'a Arc<Buffer>,
    rkey: RKey,
    va: u64,
}

impl Stream<'_> {
    fn post(&self, number: u64) -> anyhow::Result<()> {
        let offset = number % DEPTH * MESSAGE;
        let memory: Arc<dyn Memory> = Arc::<Buffer>::clone(self.source);
        self.qp
            .post_send(SendWr {
                wr_id: WrId(number),
                op: SendOp::Write {
                    va: self.va + offset,
                    rkey: self.rkey,
                },
                local: Segment::new(memory, offset, MESSAGE as u32).into(),
                signaled: true,
                solicited: false,
                fence: false,
                to: None,
            })
            .context("posting a WRITE")
    }

    async fn run(&self, time: Duration, cancel: &Cancel) -> anyhow::Result<Measured> {
        for number in 0..DEPTH {
            self.post(number)?;
        }
        let (mut posted, mut completed) = (DEPTH, 0);
        let begun = Instant::now();
        let mut elapsed = None;
        while completed < posted {
            cancel.check()?;
            let cqe = tokio::time::timeout(PATIENCE, self.qp.completion())
                .await
                .context("a WRITE did not complete in time")??;
            if cqe.status != Status::Success {
                bail!("a WRITE failed: {}", cqe.status);
            }
            completed += 1;
            if begun.elapsed() < time {
                self.post(posted)?;
                posted += 1;
            } else {
                // The rest is only waited for.
                elapsed.get_or_insert((begun.elapsed(), completed));
            }
        }
        let (elapsed, counted) = elapsed.context("no WRITE completed")?;
        let bits = (counted * MESSAGE * 8) as f64;
        Ok(Measured {
            gigabits_per_second: bits / elapsed.as_secs_f64() / 1e9,
            retransmitted_packets: self.qp.info().await?.retransmitted_packets,
        })
    }
}
