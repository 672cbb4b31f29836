//! The two ends of a ping.
//!
//! Must not: know how the device was chosen.

use std::{fmt, net::SocketAddr, time::Duration};

use anyhow::{Context as _, bail};
use tokio::time::{Instant, timeout};

use super::Plan;
use crate::{
    mem::Buffer,
    out,
    rdma::{
        Access, CompletionQueue, CqeOpcode, Done, ProtectionDomain, QueuePair, ReadWrite, Region,
        RemoteRegion, Source, Wr,
        cm::{Cm, CmIncoming},
    },
};

/// Bytes of a message: address, key, size (`struct rping_rdma_info`).
const INFO: usize = 16;
/// Ids of requests.
const RECV: u64 = 1;
const SEND: u64 = 2;
const RDMA: u64 = 3;

/// What was done.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Pings that came back.
    pub pings: u64,
    /// Bytes of each.
    pub size: u32,
    /// All together.
    pub took: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pings of {} B", self.pings, self.size)?;
        if let Some(each) = self.took.checked_div(self.pings.try_into().unwrap_or(0)) {
            write!(f, ", {:.1} us each", each.as_secs_f64() * 1e6)?;
        }
        Ok(())
    }
}

/// One end of a connection: its queue pair, and its completions by kind.
struct End {
    qp: QueuePair,
    messages: Region<ReadWrite>,
    patience: Duration,
    /// Messages that have come, and requests that have completed, and were not waited for yet.
    heard: u32,
    moved: u32,
}

/// What a queue pair of either end has.
struct Parts {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    messages: Region<ReadWrite>,
}

impl Parts {
    fn new(cm: &Cm) -> anyhow::Result<Self> {
        let pd = cm.device().protection_domain()?;
        let messages = pd.register(Buffer::map(2 * INFO)?, Access::NONE)?;
        let cq = CompletionQueue::new(64);
        Ok(Self { pd, cq, messages })
    }

    /// Memory that the peer may read and write.
    fn memory(&self, size: u32) -> anyhow::Result<Region<ReadWrite>> {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        Ok(self.pd.register(Buffer::map(size as usize)?, access)?)
    }

    fn end(self, qp: QueuePair, patience: Duration) -> End {
        End {
            qp,
            messages: self.messages,
            patience,
            heard: 0,
            moved: 0,
        }
    }
}

impl End {
    /// The next completion. `None`: the peer has ended the connection.
    async fn done(&self) -> anyhow::Result<Option<Done>> {
        let next = timeout(self.patience, self.qp.recv_cq().next()).await;
        let next = next.with_context(|| format!("no news for {} s", self.patience.as_secs()))??;
        match next.result() {
            Ok(done) => Ok(Some(done)),
            Err(_)
                if timeout(Duration::from_secs(1), self.qp.closed())
                    .await
                    .is_ok() =>
            {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Until a message has come (`true`), or a READ or WRITE is done.
    async fn until(&mut self, message: bool) -> anyhow::Result<bool> {
        loop {
            let waiting = if message {
                &mut self.heard
            } else {
                &mut self.moved
            };
            if *waiting > 0 {
                *waiting -= 1;
                return Ok(true);
            }
            let Some(done) = self.done().await? else {
                return Ok(false);
            };
            match done.opcode {
                CqeOpcode::Recv if done.byte_len as usize == INFO => self.heard += 1,
                CqeOpcode::Recv => bail!(
                    "a message of {} B came, not of {INFO} as rping's are",
                    done.byte_len
                ),
                _ if done.id == RDMA => self.moved += 1,
                _ => {}
            }
        }
    }

    fn receive(&self) -> anyhow::Result<()> {
        let room = self.messages.slice(..INFO as u64)?;
        Ok(self.qp.post_recv(RECV, room)?)
    }

    /// The message that has come; room for the next is posted.
    fn message(&self) -> anyhow::Result<RemoteRegion> {
        let mut info = [0; INFO];
        self.messages.read(0, &mut info)?;
        self.receive()?;
        let [
            b0,
            b1,
            b2,
            b3,
            b4,
            b5,
            b6,
            b7,
            k0,
            k1,
            k2,
            k3,
            s0,
            s1,
            s2,
            s3,
        ] = info;
        Ok(RemoteRegion::new(
            u32::from_be_bytes([k0, k1, k2, k3]),
            u64::from_be_bytes([b0, b1, b2, b3, b4, b5, b6, b7]),
            u32::from_be_bytes([s0, s1, s2, s3]).into(),
            Access::REMOTE_READ | Access::REMOTE_WRITE,
        ))
    }

    /// Says where memory is.
    fn say(&self, memory: &Region<ReadWrite>) -> anyhow::Result<()> {
        let remote = memory.remote().context("the region has rights for peers")?;
        let mut info = [0; INFO];
        let parts = [
            &remote.address().to_be_bytes()[..],
            &remote.rkey().to_be_bytes(),
            &(remote.len() as u32).to_be_bytes(),
        ];
        for (to, from) in info.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        Ok(self.qp.post(Wr::send(Source::inline(&info)).id(SEND))?)
    }
}

/// The text of a ping, as rping makes it.
fn text(ping: u64, size: u32) -> Vec<u8> {
    let letters = u64::from(b'z' - b'A' + 1);
    let begin = ping % letters;
    let mut text = format!("rdma-ping-{ping}: ").into_bytes();
    let more = (0..).map(|n| b'A' + ((begin + n) % letters) as u8);
    text.extend(more.take(size as usize));
    text.truncate(size as usize - 1);
    text.push(0);
    text
}

fn shown(bytes: &[u8]) -> String {
    let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

pub(super) async fn client(cm: &Cm, peer: SocketAddr, plan: &Plan) -> anyhow::Result<Report> {
    let parts = Parts::new(cm)?;
    let (there, back) = (parts.memory(plan.size)?, parts.memory(plan.size)?);
    let qp = parts.pd.queue_pair(&parts.cq).depths(16, 16).build()?;
    qp.post_recv(RECV, parts.messages.slice(..INFO as u64)?)?;
    let qp = cm.connect(qp, peer, &[]).await?;
    let mut end = parts.end(qp, plan.patience);
    let begin = Instant::now();
    let mut pings = 0;
    let left = || anyhow::anyhow!("the server has ended the connection");
    while plan.count == 0 || pings < plan.count {
        let sent = text(pings, plan.size);
        there.write(0, &sent)?;
        end.say(&there)?;
        if !end.until(true).await? {
            return Err(left());
        }
        end.receive()?;
        end.say(&back)?;
        if !end.until(true).await? {
            return Err(left());
        }
        end.receive()?;
        let mut came = vec![0; plan.size as usize];
        back.read(0, &mut came)?;
        if plan.validate && came != sent {
            bail!("ping {pings}: what came back is not what was sent");
        }
        if plan.verbose {
            out::line(format_args!("ping data: {}", shown(&came)))?;
        }
        pings += 1;
    }
    let took = begin.elapsed();
    end.qp.disconnect().await;
    Ok(Report {
        pings,
        size: plan.size,
        took,
    })
}

pub(super) async fn server(cm: &Cm, incoming: CmIncoming, plan: &Plan) -> anyhow::Result<Report> {
    let parts = Parts::new(cm)?;
    // As large as any client's: what it has is in its messages.
    let data = parts.memory(super::MOST_SIZE)?;
    let qp = parts.pd.queue_pair(&parts.cq).depths(16, 16).build()?;
    qp.post_recv(RECV, parts.messages.slice(..INFO as u64)?)?;
    let qp = incoming.accept(qp, &[]).await?;
    let mut end = parts.end(qp, plan.patience);
    let begin = Instant::now();
    let (mut pings, mut size) = (0, 0);
    while plan.count == 0 || pings < plan.count {
        if !end.until(true).await? {
            break;
        }
        let from = end.message()?;
        size = u32::try_from(from.len())
            .ok()
            .filter(|size| *size <= super::MOST_SIZE)
            .with_context(|| {
                format!(
                    "the client's data is {} B, more than {}",
                    from.len(),
                    super::MOST_SIZE
                )
            })?;
        let into = data.slice(..u64::from(size))?;
        end.qp
            .post(Wr::read(into, from.slice(0, size.into())?).id(RDMA))?;
        if !end.until(false).await? {
            break;
        }
        let mut came = vec![0; size as usize];
        data.read(0, &mut came)?;
        if plan.verbose {
            out::line(format_args!("server ping data: {}", shown(&came)))?;
        }
        end.say(&data)?;
        if !end.until(true).await? {
            break;
        }
        let to = end.message()?;
        // The text and its end, as rping does.
        let len = came
            .iter()
            .position(|b| *b == 0)
            .map_or(came.len(), |end| end + 1) as u64;
        let echo = data.slice(..len)?;
        end.qp.post(Wr::write(echo, to.slice(0, len)?).id(RDMA))?;
        if !end.until(false).await? {
            break;
        }
        end.say(&data)?;
        pings += 1;
    }
    let took = begin.elapsed();
    // The last word must have arrived before the queue pair fails.
    if plan.count != 0 && pings >= plan.count {
        let _ = timeout(Duration::from_secs(3), end.qp.closed()).await;
    }
    end.qp.disconnect().await;
    Ok(Report { pings, size, took })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_rpings() {
        // Capture cm-rping: the first two READ responses.
        assert_eq!(
            text(0, 64),
            b"rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr\0"
        );
        assert_eq!(
            text(1, 64),
            b"rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrs\0"
        );
        assert_eq!(text(58, 26).len(), 26);
        assert_eq!(shown(&text(3, 26)), "rdma-ping-3: DEFGHIJKLMNO");
    }
}
