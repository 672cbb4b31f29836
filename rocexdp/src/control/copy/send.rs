//! The sending side of a copy.
//!
//! Reads the file into staging memory (`source`), WRITEs each chunk into the peer's region with several under way,
//! and tells the peer over TCP how far it has come. Whatever fails, the QP and the connection go, and with them all that
//! the peer holds.

use std::{
    fs::File,
    net::SocketAddr,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rocexdp_proto::{
    SelectiveRepeat,
    ids::WrId,
    mem::Access,
    verbs::{Cqe, Segment, SendOp, SendWr, Status},
};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};

use super::{
    super::{
        exchange::{KEEPALIVE, Region, Report, Sha256Digest},
        frame::FrameError,
        token::Token,
    },
    CHUNK, CHUNKS, CopyProgress, CopyReport, Ends,
    ask::{self, Exchange, Question},
    connect_attr,
    source::{self, Filled},
};
use crate::{
    mem::Buffer,
    node::{Node, NodeQp},
};

/// How often progress is sampled.
const SAMPLE: Duration = Duration::from_millis(50);

/// What to copy where.
#[derive(Debug)]
pub struct CopyJob {
    /// The file, open for reading.
    pub file: File,
    /// The peer's exchange.
    pub to: SocketAddr,
    /// Path below the peer's receive directory.
    pub path: String,
    /// The token shared with the peer, if any.
    pub token: Option<Token>,
    /// Selective repeat, if the peer has it too; `None`: go-back-N.
    pub selective: Option<SelectiveRepeat>,
    /// How long the QP is kept, for its counters to be looked at, after the copy succeeded.
    pub linger: Duration,
}

/// Copies the file. The future may be dropped at any time, which ends the copy on both sides.
///
/// # Errors
/// The file, the connection, the peer's refusal ([`super::Refused`]), or the QP's failure, which names QP and peer.
pub async fn copy(
    node: &Node,
    job: CopyJob,
    progress: &watch::Sender<CopyProgress>,
) -> anyhow::Result<CopyReport> {
    let begun = Instant::now();
    let found = job.file.metadata().context("looking at the file")?;
    if !found.is_file() {
        bail!("it is no regular file");
    }
    let size = found.len();
    progress.send_replace(CopyProgress {
        total: size,
        ..CopyProgress::default()
    });

    let mut exchange = Exchange::connect(job.to).await?;
    let qp = node.create_qp(CHUNKS as u32, 1)?;
    let question = Question {
        path: &job.path,
        size,
        token: job.token.as_ref(),
        selective: job.selective,
    };
    let asked = match exchange.ask(node, &qp, &question).await {
        Err(error) if job.selective.is_some() && ask::is_protocol(&error) => {
            // An older version, perhaps, which refuses a field that it does not know.
            exchange = Exchange::connect(job.to).await?;
            let question = Question {
                selective: None,
                ..question
            };
            exchange.ask(node, &qp, &question).await
        }
        asked => asked,
    };
    let (peer, region, local) = asked?;
    let ends = Ends {
        qpn: qp.qpn(),
        peer: peer.gid,
        peer_qpn: peer.qpn,
    };
    qp.connect(connect_attr(local, peer, peer.path_mtu, Access::NONE))
        .await?;

    let mut transfer = Transfer::new(&qp, ends, region, size, progress)?;
    let started = Instant::now();
    let reader = transfer.start_reading(job.file);
    transfer.run(&mut exchange).await?;
    let transfer_time = started.elapsed();
    let sha256 = reader.await.context("the reading thread died")??;
    let receiver = exchange
        .commit(size, sha256, progress)
        .await
        .with_context(|| ends.to_string())?;

    let info = qp.info().await?;
    if !job.linger.is_zero() {
        let linger = job.linger;
        tokio::spawn(async move {
            tokio::time::sleep(linger).await;
            drop(qp);
        });
    }
    let seconds = transfer_time.as_secs_f64();
    Ok(CopyReport {
        bytes: size,
        transfer_seconds: seconds,
        total_seconds: begun.elapsed().as_secs_f64(),
        gigabits_per_second: (seconds > 0.0 && size > 0).then(|| size as f64 * 8.0 / seconds / 1e9),
        sha256,
        peer: peer.gid,
        qpn: ends.qpn.get(),
        peer_qpn: peer.qpn.get(),
        path_mtu: peer.path_mtu.bytes(),
        selective_paths: peer.selective.map_or(0, |with| with.paths),
        tx_packets: info.tx_packets,
        retransmitted_packets: info.retransmitted_packets,
        retransmitted_bytes: info.retransmitted_bytes,
        local_ack_timeout_err: info.local_ack_timeout_err,
        packet_seq_err: info.packet_seq_err,
        rp_cnp_handled: info.rp_cnp_handled,
        min_rate: (info.min_rate != 0).then_some(info.min_rate),
        receiver,
    })
}

/// The RDMA side.
struct Transfer<'a> {
    qp: &'a NodeQp,
    ends: Ends,
    region: Region,
    size: u64,
    progress: &'a watch::Sender<CopyProgress>,
    staging: Arc<Buffer>,
    free: Option<mpsc::Sender<usize>>,
    filled: Option<tokio::sync::mpsc::Receiver<Filled>>,
    /// What each chunk of staging memory holds while its WRITE is under way.
    under_way: [u32; CHUNKS],
    placed: u64,
}

impl<'a> Transfer<'a> {
    fn new(
        qp: &'a NodeQp,
        ends: Ends,
        region: Region,
        size: u64,
        progress: &'a watch::Sender<CopyProgress>,
    ) -> anyhow::Result<Self> {
        let staging = Buffer::new(CHUNK * CHUNKS).context("staging memory")?;
        Ok(Self {
            qp,
            ends,
            region,
            size,
            progress,
            staging,
            free: None,
            filled: None,
            under_way: [0; CHUNKS],
            placed: 0,
        })
    }

    fn start_reading(&mut self, file: File) -> JoinHandle<anyhow::Result<Sha256Digest>> {
        let (give, free) = mpsc::channel();
        for chunk in 0..CHUNKS {
            // The receiver is in scope: it can't fail.
            let _ = give.send(chunk);
        }
        let (tell, filled) = tokio::sync::mpsc::channel(CHUNKS);
        self.free = Some(give);
        self.filled = Some(filled);
        let (staging, size) = (Arc::clone(&self.staging), self.size);
        tokio::task::spawn_blocking(move || source::read_all(&file, size, &staging, &free, &tell))
    }

    /// Until the peer has acknowledged every byte, or reading has ended early.
    async fn run(&mut self, exchange: &mut Exchange) -> anyhow::Result<()> {
        let mut filled = self.filled.take().context("nothing is being read")?;
        let mut reading = true;
        let mut sample = interval(SAMPLE);
        sample.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut spoke = Instant::now();
        while self.placed < self.size {
            tokio::select! {
                biased;
                answer = exchange.answers.recv() => {
                    let body = answer.unwrap_or(Err(FrameError::Closed)).with_context(|| {
                        format!("{}: the peer is gone after {} of {} bytes", self.ends, self.placed, self.size)
                    })?;
                    exchange.parse(&body).with_context(|| self.ends.to_string())?;
                    bail!("{}: an answer before the copy is complete", self.ends);
                }
                cqe = self.qp.completion() => self.completed(&cqe?)?,
                part = filled.recv(), if reading => match part {
                    Some(part) => self.post(part)?,
                    None => reading = false,
                },
                _ = sample.tick() => self.sample().await?,
            }
            if !reading && self.under_way.iter().all(|&len| len == 0) {
                // Short of the whole file: the reading thread has the reason.
                return Ok(());
            }
            if spoke.elapsed() >= KEEPALIVE {
                exchange
                    .tell(&Report::Placed { bytes: self.placed })
                    .await?;
                spoke = Instant::now();
            }
        }
        self.sample().await
    }

    fn post(&mut self, part: Filled) -> anyhow::Result<()> {
        let slot = self
            .under_way
            .get_mut(part.chunk)
            .context("no such chunk")?;
        *slot = part.len;
        let va = self.region.va.wrapping_add(part.offset);
        let memory: Arc<Buffer> = Arc::clone(&self.staging);
        self.qp
            .post_send(SendWr {
                wr_id: WrId(part.chunk as u64),
                op: SendOp::Write {
                    va,
                    rkey: self.region.rkey,
                },
                local: Segment::new(memory, (part.chunk * CHUNK) as u64, part.len).into(),
                signaled: true,
                solicited: false,
                fence: false,
                to: None,
            })
            .with_context(|| format!("{}: posting a WRITE", self.ends))
    }

    /// WRITEs of one QP complete in order, so what is placed is always the file's beginning.
    fn completed(&mut self, cqe: &Cqe) -> anyhow::Result<()> {
        if cqe.status != Status::Success {
            let advice = match cqe.status {
                Status::RetryExcErr => ": the peer no longer answers",
                Status::RemAccessErr => ": the peer has withdrawn the region",
                _ => "",
            };
            bail!(
                "{}: {}{advice} ({} of {} bytes were acknowledged)",
                self.ends,
                cqe.status,
                self.placed,
                self.size
            );
        }
        let chunk = usize::try_from(cqe.wr_id.0).unwrap_or(usize::MAX);
        let slot = self
            .under_way
            .get_mut(chunk)
            .context("completion of an unknown WRITE")?;
        self.placed += u64::from(std::mem::take(slot));
        if let Some(free) = &self.free {
            // The reading thread is done when it takes no more.
            let _ = free.send(chunk);
        }
        Ok(())
    }

    async fn sample(&self) -> anyhow::Result<()> {
        let info = self.qp.info().await?;
        self.progress.send_replace(CopyProgress {
            total: self.size,
            placed: self.placed,
            retransmitted_packets: info.retransmitted_packets,
            rp_cnp_handled: info.rp_cnp_handled,
            rate: info.rate,
        });
        Ok(())
    }
}
