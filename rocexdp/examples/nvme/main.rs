//! NVMe over Fabrics without RDMA hardware: reads and writes the namespaces of any NVMe/RDMA target, such as the kernel's `nvmet-rdma`.
//!
//! ```sh
//! nvme --iface eth1 192.0.2.2:4420 nqn.2026-01.example:disk list
//! nvme --iface eth1 192.0.2.2:4420 nqn.2026-01.example:disk write -n 1 --block 0 image
//! nvme --iface eth1 192.0.2.2:4420 nqn.2026-01.example:disk read -n 1 --block 0 --bytes 1048576 copy
//! ```
//!
//! `host` is the protocol on the public API: connections by `rdma::cm` with NVMe's private data, capsules by SEND, data behind memory
//! windows that the target reaches by READ and WRITE, and gives back by SEND with invalidate.

mod host;

use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::SocketAddr,
    path::PathBuf,
};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};
use rocexdp::rdma::{Device, cm::Cm};

use host::{Controller, Direction, HostId, Namespace};

/// Bytes that are in memory at once.
const PART: u64 = 8 << 20;

/// A host of NVMe over RDMA
#[derive(Parser)]
struct Cli {
    /// Interface of the RDMA device
    #[arg(long, default_value = "eth0")]
    iface: String,
    /// Commands under way at once
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(2..=128))]
    depth: u16,
    /// The target; NVMe's port is 4420
    target: SocketAddr,
    /// The subsystem's qualified name
    nqn: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say what the controller is, and its namespaces
    List,
    /// Read blocks into a file
    Read {
        /// Namespace
        #[arg(short = 'n', long, default_value_t = 1)]
        namespace: u32,
        /// The first block
        #[arg(long, default_value_t = 0)]
        block: u64,
        /// How many bytes: whole blocks
        #[arg(long)]
        bytes: u64,
        /// The file
        file: PathBuf,
    },
    /// Write a file, of whole blocks
    Write {
        /// Namespace
        #[arg(short = 'n', long, default_value_t = 1)]
        namespace: u32,
        /// The first block
        #[arg(long, default_value_t = 0)]
        block: u64,
        /// The file
        file: PathBuf,
    },
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let device = Device::open(&cli.iface)?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let cm = Cm::open(&device)?;
        let host = HostId(rand::random());
        let mut controller =
            Controller::connect(&cm, cli.target, &host, &cli.nqn, cli.depth).await?;
        let namespaces = controller.namespaces().await?;
        let find = |id: u32| -> Result<Namespace> {
            let found = namespaces.iter().copied().find(|one| one.id == id);
            found.with_context(|| format!("{} has no namespace {id}: see list", cli.nqn))
        };
        match cli.command {
            Command::List => list(&controller, &namespaces),
            Command::Read {
                namespace,
                block,
                bytes,
                file,
            } => {
                let on = find(namespace)?;
                read(&mut controller, &on, block, bytes, &file).await?;
            }
            Command::Write {
                namespace,
                block,
                file,
            } => write(&mut controller, &find(namespace)?, block, &file).await?,
        }
        let (given, taken) = controller.keys();
        println!("keys of data: {given} given back by the target, {taken} taken back here");
        controller.disconnect().await
    })
}

fn list(controller: &Controller, namespaces: &[Namespace]) {
    let (info, (major, minor)) = (controller.info(), controller.version());
    println!(
        "{} {}, serial {}, NVMe {major}.{minor}: {} B a command, {} B in its capsule",
        info.model, info.firmware, info.serial, info.max_transfer, info.in_capsule
    );
    for Namespace { id, blocks, block } in namespaces {
        println!("namespace {id}: {blocks} blocks of {block} B");
    }
}

/// Refuses what a namespace can't take or give whole, before any of it is moved.
fn fits(on: &Namespace, block: u64, bytes: u64) -> Result<()> {
    ensure!(
        bytes > 0 && bytes.is_multiple_of(on.block),
        "{bytes} B are not whole blocks of {}",
        on.block
    );
    ensure!(
        block
            .checked_add(bytes / on.block)
            .is_some_and(|end| end <= on.blocks),
        "{bytes} B from block {block} on end behind the last of {} blocks of {}",
        on.blocks,
        on.block
    );
    Ok(())
}

async fn read(
    controller: &mut Controller,
    on: &Namespace,
    block: u64,
    bytes: u64,
    path: &PathBuf,
) -> Result<()> {
    fits(on, block, bytes)?;
    let mut file = File::create(path).with_context(|| path.display().to_string())?;
    let memory = controller.memory(PART.min(bytes))?;
    let mut done = 0;
    while done < bytes {
        let len = PART.min(bytes - done);
        let from = block + done / on.block;
        controller
            .transfer(Direction::Read, on, from, &memory, 0, len)
            .await?;
        let mut part = vec![0; usize::try_from(len)?];
        memory.read(0, &mut part)?;
        file.write_all(&part)?;
        done += len;
    }
    println!("{bytes} B read");
    Ok(())
}

async fn write(
    controller: &mut Controller,
    on: &Namespace,
    block: u64,
    path: &PathBuf,
) -> Result<()> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    fits(on, block, file.metadata()?.len())?;
    let memory = controller.memory(PART)?;
    let mut done = 0;
    loop {
        let mut part = Vec::new();
        (&file).take(PART).read_to_end(&mut part)?;
        if part.is_empty() {
            break;
        }
        memory.write(0, &part)?;
        let (to, len) = (block + done / on.block, part.len() as u64);
        controller
            .transfer(Direction::Write, on, to, &memory, 0, len)
            .await?;
        done += len;
    }
    controller.flush(on).await?;
    println!("{done} B written");
    Ok(())
}
