//! Ping-pong: how long a message takes there and back by SEND and receive.
//!
//! `cargo xtask example pingpong` runs both ends in a lab. Between two hosts, as root:
//!
//! ```sh
//! pingpong --iface eth1 serve 192.0.2.2:7100                   # on one
//! pingpong --iface eth1 ping 192.0.2.2:7100 --size 64          # on the other
//! ```

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand};
use rocexdp::{
    engine::PollPolicy,
    mem::Buffer,
    rdma::{
        Access, CompletionQueue, Connect, CqeOpcode, Device, Done, Listener, NodeConfig,
        ProtectionDomain, QueuePair, ReadWrite, Region, Wr,
    },
};

/// Round-trip time of SEND and receive
#[derive(Parser)]
struct Cli {
    /// Interface of the RDMA device
    #[arg(long, default_value = "eth0")]
    iface: String,
    /// When the engine's workers sleep: busy (lowest latency, a core each), adaptive or sleep
    #[arg(long, default_value = "adaptive", value_parser = str::parse::<PollPolicy>)]
    poll: PollPolicy,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Send every message back; until ended
    Serve {
        /// Where to listen: an address of the interface
        address: SocketAddr,
    },
    /// Measure
    Ping {
        /// The serving end
        address: SocketAddr,
        /// Round trips
        #[arg(long, default_value_t = 10_000)]
        count: u32,
        /// Bytes of a message, at most 1 MiB
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=MAX_SIZE))]
        size: u64,
    },
}

const MAX_SIZE: u64 = 1 << 20;
/// Round trips before the measured ones.
const WARM_UP: u32 = 100;
/// A message that takes longer is a failure.
const PATIENCE: Duration = Duration::from_secs(10);
/// Ids of requests.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let device = Device::open_with(NodeConfig {
        poll: cli.poll,
        ..NodeConfig::new(&cli.iface)
    })?;
    let pd = device.protection_domain()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match cli.command {
            Command::Serve { address } => serve(&pd, address).await,
            Command::Ping {
                address,
                count,
                size,
            } => ping(&pd, address, count, size).await,
        }
    })
}

async fn serve(pd: &ProtectionDomain, address: SocketAddr) -> anyhow::Result<()> {
    let mut listener = Listener::bind(address, None).await?;
    println!("ready: listening on {}", listener.address());
    loop {
        let incoming = listener.next().await?;
        let from = incoming.from();
        let cq = CompletionQueue::new(4);
        let memory = pd.register(Buffer::map(2 * MAX_SIZE as usize)?, Access::NONE)?;
        let qp = pd.queue_pair(&cq).depths(2, 2).build()?;
        // Before the peer can send. Two, because its next message may be here before ours back has completed: without a receive
        // request it would be told to wait and send again (RNR).
        for half in 0..2 {
            let start = half * MAX_SIZE;
            qp.post_recv(half, memory.slice(start..start + MAX_SIZE)?)?;
        }
        match incoming.accept(qp, &[]).await {
            Ok(qp) => match echo(&qp, &memory).await {
                Ok(count) => eprintln!("{from}: {count} messages sent back"),
                Err(error) => eprintln!("{from}: {error:#}"),
            },
            Err(error) => eprintln!("{error}"),
        }
    }
}

/// Sends each message back until the peer closes. Requests of each half of the memory have its number as their id.
async fn echo(qp: &QueuePair, memory: &Region<ReadWrite>) -> anyhow::Result<u64> {
    let mut count = 0;
    loop {
        // When the peer closes, the queue pair fails and its receive requests with it.
        let Ok(done) = qp.recv_cq().next().await?.result() else {
            return Ok(count);
        };
        let start = done.id * MAX_SIZE;
        match done.opcode {
            CqeOpcode::Recv => {
                let message = memory.slice(start..start + u64::from(done.byte_len))?;
                qp.post(Wr::send(message).id(done.id))?;
                count += 1;
            }
            // The bytes may be overwritten only now: until it completed, the message may have had to be sent again.
            _ => qp.post_recv(done.id, memory.slice(start..start + MAX_SIZE)?)?,
        }
    }
}

async fn ping(
    pd: &ProtectionDomain,
    address: SocketAddr,
    count: u32,
    size: u64,
) -> anyhow::Result<()> {
    let cq = CompletionQueue::new(4);
    let memory = pd.register(Buffer::map(2 * size as usize)?, Access::NONE)?;
    let qp = pd.queue_pair(&cq).depths(2, 2).build()?;
    let qp = qp.connect(address, &Connect::new()).await?;
    let mut times = Vec::with_capacity(count as usize);
    for round in 0..WARM_UP + count {
        let message = vec![round as u8; size as usize];
        memory.write(0, &message)?;
        qp.post_recv(RECEIVE, memory.slice(size..)?)?;
        let begun = Instant::now();
        qp.post(Wr::send(memory.slice(..size)?).id(SEND))?;
        let mut took = None;
        // Both complete, in either order.
        for _ in 0..2 {
            let done = next(&cq).await?;
            if done.id == RECEIVE {
                took = Some(begun.elapsed());
                if u64::from(done.byte_len) != size {
                    bail!("{} of {size} bytes came back", done.byte_len);
                }
            }
        }
        let mut back = vec![0; size as usize];
        memory.read(size, &mut back)?;
        if back != message {
            bail!("round {round}: other bytes came back");
        }
        if round >= WARM_UP {
            times.push(took.context("the answer did not complete")?);
        }
    }
    times.sort_unstable();
    println!(
        "{count} round trips of {size} B over path MTU {}:",
        qp.agreed().path_mtu
    );
    for (name, part) in [
        ("min", 0.0),
        ("50 %", 0.5),
        ("90 %", 0.9),
        ("99 %", 0.99),
        ("99.9 %", 0.999),
        ("max", 1.0),
    ] {
        let at = ((times.len() - 1) as f64 * part).round() as usize;
        let took = times.get(at).copied().unwrap_or_default();
        println!("{name:>7} {:>10.1} us", took.as_secs_f64() * 1e6);
    }
    let stats = qp.stats().await?;
    println!(
        "{} packets sent, {} of them again",
        stats.tx_packets, stats.retransmitted_packets
    );
    Ok(())
}

async fn next(cq: &CompletionQueue) -> anyhow::Result<Done> {
    let completion = tokio::time::timeout(PATIENCE, cq.next()).await;
    Ok(completion.context("no answer within 10 s")??.result()?)
}
