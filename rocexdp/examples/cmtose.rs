//! Connections by the RDMA CM: what librdmacm's `ucmatose` does, so that it can be the other end.
//!
//! ```sh
//! cmtose --iface eth1 listen -c 2                       # on one host; on the other: ucmatose -s ADDRESS -c 2
//! ucmatose -b 192.0.2.2 -c 2                            # or there first, then here:
//! cmtose --iface eth1 connect 192.0.2.2:7471 -c 2
//! ```
//!
//! The listening end sends first on all connections; the connecting end answers once it has heard from all, and waits for their end. With
//! `--reverse` the connecting end begins, as librdmacm's `rdma_client` does: `-c 1 -C 1 -S 16`.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, ensure};
use clap::{Args, Parser, Subcommand};
use rocexdp::{
    mem::Buffer,
    rdma::{
        Access, CompletionQueue, CqeOpcode, Device, Init, QueuePair, Rc, ReadWrite, Region, Wr,
        cm::Cm,
    },
};

/// Connections by the RDMA CM
#[derive(Parser)]
struct Cli {
    /// Interface of the RDMA device
    #[arg(long, default_value = "eth0")]
    iface: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Wait for connections
    Listen {
        /// Port
        #[arg(short, long, default_value_t = 7471)]
        port: u16,
        #[command(flatten)]
        much: Much,
    },
    /// Connect
    Connect {
        /// The listening end
        address: SocketAddr,
        #[command(flatten)]
        much: Much,
    },
}

#[derive(Args, Clone, Copy)]
struct Much {
    /// Connections
    #[arg(short, long, default_value_t = 1)]
    connections: usize,
    /// Messages each way, of each
    #[arg(short = 'C', long, default_value_t = 10)]
    count: u32,
    /// Bytes of each
    #[arg(short = 'S', long, default_value_t = 100)]
    size: u64,
    /// The connecting end sends first
    #[arg(long)]
    reverse: bool,
}

/// What takes longer is a failure.
const PATIENCE: Duration = Duration::from_secs(30);

/// One connection's end.
struct End<S> {
    qp: QueuePair<Rc, S>,
    cq: CompletionQueue,
    memory: Region<ReadWrite>,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let device = Device::open(&cli.iface)?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let cm = Cm::open(&device)?;
        match cli.command {
            Command::Listen { port, much } => listen(&cm, port, much).await,
            Command::Connect { address, much } => connect(&cm, address, much).await,
        }
    })
}

async fn listen(cm: &Cm, port: u16, much: Much) -> anyhow::Result<()> {
    let mut listener = cm.listen(port)?;
    println!("ready: listening on port {port}");
    let mut ends = Vec::new();
    for _ in 0..much.connections {
        let incoming = listener.next().await?;
        println!("{} connects", incoming.from());
        let End { qp, cq, memory } = end(cm, much)?;
        let qp = incoming.accept(qp, &[]).await?;
        ends.push(End { qp, cq, memory });
    }
    talk(&ends, much, !much.reverse).await?;
    for end in ends {
        if much.reverse {
            // Ours may not have arrived.
            end.qp.closed().await;
        }
        end.qp.disconnect().await;
    }
    Ok(())
}

async fn connect(cm: &Cm, address: SocketAddr, much: Much) -> anyhow::Result<()> {
    let mut ends = Vec::new();
    for _ in 0..much.connections {
        let End { qp, cq, memory } = end(cm, much)?;
        let qp = cm.connect(qp, address, &[]).await?;
        ends.push(End { qp, cq, memory });
    }
    talk(&ends, much, much.reverse).await?;
    for end in ends {
        if !much.reverse {
            end.qp.closed().await;
        }
        end.qp.disconnect().await;
    }
    Ok(())
}

/// A queue pair with receive requests posted, before the peer can send.
fn end(cm: &Cm, much: Much) -> anyhow::Result<End<Init>> {
    let pd = cm.device().protection_domain()?;
    let cq = CompletionQueue::new(2 * much.count);
    let memory = pd.register(Buffer::map(2 * much.size as usize)?, Access::NONE)?;
    let qp = pd.queue_pair(&cq).depths(much.count, much.count).build()?;
    for id in 0..much.count {
        qp.post_recv(id.into(), memory.slice(..much.size)?)?;
    }
    Ok(End { qp, cq, memory })
}

/// The messages of all connections.
async fn talk(ends: &[End<rocexdp::rdma::Ready>], much: Much, first: bool) -> anyhow::Result<()> {
    for sends in [first, !first] {
        for end in ends {
            if sends {
                for id in 0..much.count {
                    let data = end.memory.slice(much.size..)?;
                    end.qp.post(Wr::send(data).id(id.into()))?;
                }
                done(&end.cq, CqeOpcode::Send, much).await?;
            } else {
                done(&end.cq, CqeOpcode::Recv, much).await?;
            }
        }
    }
    let (each, all) = (much.count, ends.len());
    println!(
        "{each} messages of {} B each way on {all} connections",
        much.size
    );
    Ok(())
}

async fn done(cq: &CompletionQueue, what: CqeOpcode, much: Much) -> anyhow::Result<()> {
    for _ in 0..much.count {
        let next = tokio::time::timeout(PATIENCE, cq.next()).await;
        let done = next.context("no answer within 30 s")??.result()?;
        ensure!(done.opcode == what, "{:?} out of turn", done.opcode);
        ensure!(
            what != CqeOpcode::Recv || u64::from(done.byte_len) == much.size,
            "a message of {} B came",
            done.byte_len
        );
    }
    Ok(())
}
