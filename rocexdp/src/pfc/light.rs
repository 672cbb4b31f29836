//! What storms are told from, read ten times a second: pause frames that XDP saw, the link, what waits in our engine.
//!
//! Lighter than a whole snapshot: no flow is read.

use std::io;

use rocexdp_common::maps::LinkControl;

use super::storm::Traffic;
use crate::{
    live::Role,
    maps::{FlowReader, MapsView},
    net::Link,
    sys::clock::monotonic_ns,
};

/// What was read at one moment.
#[derive(Clone, Debug)]
pub struct Reading {
    /// When, ns of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Whether the link is up.
    pub link_up: bool,
    /// Pause frames, per receive queue; empty: the program counts none, or there is none.
    pub link_control: Vec<LinkControl>,
    /// What waits in our engine, and what left it. Which priority a NIC sends it with is not known: it is taken for each.
    pub traffic: Traffic,
}

/// The maps of one program.
#[derive(Debug)]
pub struct Reader {
    iface: String,
    program: u32,
    control: FlowReader,
    /// Of an endpoint whose NIC carries no other RDMA: then what waits is what waits in our engine.
    engine: Option<MapsView>,
}

impl Reader {
    /// Of the program `program`, which is attached to `iface` as `role`. `other_rdma`: RDMA hardware sends there too, past us.
    ///
    /// # Errors
    /// The program has gone or is of another version.
    pub fn open(iface: &str, program: u32, role: Role, other_rdma: bool) -> anyhow::Result<Self> {
        let engine = match role {
            Role::Endpoint if !other_rdma => Some(MapsView::of_program(program)?),
            _ => None,
        };
        Ok(Self {
            iface: iface.to_owned(),
            program,
            control: FlowReader::of_program(program)?,
            engine,
        })
    }

    /// The program whose maps these are.
    #[must_use]
    pub fn program(&self) -> u32 {
        self.program
    }

    /// Reads.
    ///
    /// # Errors
    /// The interface has gone.
    pub fn read(&self) -> io::Result<Reading> {
        let link = Link::by_name(&self.iface).map_err(io::Error::other)?;
        let link_control = self.control.link_control();
        Ok(Reading {
            time_ns: monotonic_ns(),
            link_up: link.running,
            link_control,
            traffic: self.engine.as_ref().map_or(Traffic::Unknown, traffic),
        })
    }
}

/// What left is what the device is done with: what is put on the TX ring, retransmissions too, waits there while it is paused.
fn traffic(maps: &MapsView) -> Traffic {
    Traffic::Known {
        waiting: maps.qps().iter().any(|qp| qp.engine.outstanding > 0),
        left: maps
            .queue_counters()
            .iter()
            .map(|(_, engine)| engine.tx_completed)
            .sum(),
    }
}
