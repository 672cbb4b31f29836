//! `rocexdp rping`: what librdmacm's `rping` does, so that either end may be that, unmodified. A tool to see whether RDMA works between
//! two hosts: address, connection management, SEND, READ and WRITE, in both directions.
//!
//! Per ping, as librdmacm/examples/rping.c has it: the client says where its data is; the server READs it and says so; the client says
//! where it wants it; the server WRITEs it there and says so. The client compares.

mod play;

pub use play::Report;

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context as _, bail};

use crate::{
    control::{config::RunOptions, settings},
    oob::place,
    out,
    rdma::{
        Device,
        cm::{Cm, CmOptions},
    },
};

/// Room of `rping`'s text and number, its least size.
pub const LEAST_SIZE: u32 = 26;
/// Its largest.
pub const MOST_SIZE: u32 = 64 * 1024;

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The server's address; `None`: we are the server.
    pub server: Option<IpAddr>,
    /// The port.
    pub port: u16,
    /// What the node is opened with.
    pub options: RunOptions,
    /// Pings; 0: without end. Of a server: those of a connection, after which it ends.
    pub count: u64,
    /// Bytes of a ping.
    pub size: u32,
    /// Show each.
    pub verbose: bool,
    /// Compare what comes back.
    pub validate: bool,
    /// Serve one connection after the other.
    pub persistent: bool,
    /// Give up after so long without any news.
    pub patience: Duration,
    /// How long a packet may be on its way, as code.
    pub packet_life_time: Option<u8>,
}

/// Runs it.
///
/// # Errors
/// No interface, no peer, or a ping that fails.
pub async fn run(plan: Plan) -> anyhow::Result<()> {
    let device = open(&plan)?;
    let cm = Cm::open_with(
        &device,
        CmOptions {
            packet_life_time: plan.packet_life_time,
            ..CmOptions::default()
        },
    )?;
    match plan.server {
        Some(server) => {
            let peer = SocketAddr::new(server, plan.port);
            let done = client(&cm, peer, &plan).await?;
            out::line(format_args!("{done}"))
        }
        None => serve(&cm, &plan).await,
    }
}

fn open(plan: &Plan) -> anyhow::Result<Device> {
    let mut options = plan.options.clone();
    if options.iface.is_none() {
        let server = plan.server.context(
            "rping -s needs the interface to serve on: --iface (or -a with one of its addresses)",
        )?;
        options.iface = Some(place::interface_to(&server.to_string())?);
    }
    Ok(Device::open_with(settings::node_config(&options)?)?)
}

/// The client's end, on a device that is open.
///
/// # Errors
/// The server can't be reached or refuses, or a ping fails.
pub async fn client(cm: &Cm, server: SocketAddr, plan: &Plan) -> anyhow::Result<Report> {
    play::client(cm, server, plan).await
}

/// The server's end, on a device that is open: one client, or, persistent, one after the other.
///
/// # Errors
/// The port is taken, or, unless persistent, the client is gone or a ping fails.
pub async fn serve(cm: &Cm, plan: &Plan) -> anyhow::Result<()> {
    let mut listener = cm.listen(plan.port)?;
    let iface = &cm.device().node().report().iface;
    out::note(format_args!(
        "rocexdp: rping waits for clients on {iface}, port {}",
        plan.port
    ));
    loop {
        let incoming = listener.next().await?;
        let from = incoming.from();
        let served = play::server(cm, incoming, plan).await;
        match served {
            Ok(done) => out::line(format_args!("{from}: {done}"))?,
            Err(error) if plan.persistent => out::note(format_args!("rocexdp: {from}: {error:#}")),
            Err(error) => bail!("{from}: {error:#}"),
        }
        if !plan.persistent {
            return Ok(());
        }
    }
}
