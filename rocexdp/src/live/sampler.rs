//! Reads the maps of several interfaces. One that can't be read is an error in its own entry; the others go on, and it is
//! tried again with each sample.

use std::time::SystemTime;

use anyhow::{Context as _, bail};

use super::model::{FlowTable, IfaceSnapshot, Role, Snapshot, Source};
use crate::{
    maps::{FlowReader, MapsView},
    net::Link,
};

/// Reads the maps of interfaces of the calling thread's network namespace.
#[derive(Debug)]
pub struct Sampler {
    ifaces: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    name: String,
    open: Option<Open>,
}

/// Maps that are open.
#[derive(Debug)]
struct Open {
    maps: MapsView,
    more: FlowReader,
    source: Source,
}

impl Sampler {
    /// Will read these interfaces; nothing is opened yet.
    #[must_use]
    pub fn new(ifaces: &[String]) -> Self {
        let watch = |name: &String| Watched {
            name: name.clone(),
            open: None,
        };
        Self {
            ifaces: ifaces.iter().map(watch).collect(),
        }
    }

    /// Reads all of them.
    pub fn sample(&mut self) -> Snapshot {
        let time = SystemTime::now();
        let time_ns = monotonic_ns();
        Snapshot {
            time_ns,
            time,
            ifaces: self.ifaces.iter_mut().map(Watched::sample).collect(),
        }
    }
}

impl Watched {
    fn sample(&mut self) -> IfaceSnapshot {
        match self.read() {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.open = None;
                let error = crate::out::chain(&error);
                IfaceSnapshot::failed(self.name.clone(), monotonic_ns(), error)
            }
        }
    }

    fn read(&mut self) -> anyhow::Result<IfaceSnapshot> {
        // The maps outlive the program that filled them as long as they are open here: ask who is attached now.
        let attached = attached(&self.name)?;
        let open = match self.open.take() {
            Some(open) if open.source.program_id == attached.program_id => self.open.insert(open),
            _ => self.open.insert(Open::new(&self.name, attached)?),
        };
        open.read(&self.name)
    }
}

/// The rocexdp program on an interface.
fn attached(name: &str) -> anyhow::Result<Source> {
    let link = Link::by_name(name)?.xdp_device()?;
    let Some(xdp) = link.xdp.first() else {
        bail!("no rocexdp program is attached to {name}");
    };
    Ok(Source {
        role: Role::Endpoint,
        hook: "XDP",
        mode: xdp.mode.to_string(),
        program_id: xdp.id,
    })
}

impl Open {
    fn new(name: &str, source: Source) -> anyhow::Result<Self> {
        let maps = MapsView::of_program(source.program_id)
            .with_context(|| format!("reading the maps of the program on {name}"))?;
        let more = FlowReader::of_program(source.program_id)
            .with_context(|| format!("reading the flows of the program on {name}"))?;
        Ok(Self { maps, more, source })
    }

    fn read(&mut self, name: &str) -> anyhow::Result<IfaceSnapshot> {
        let time_ns = monotonic_ns();
        let qps = self.maps.qps();
        let flows = self.more.flows()?;
        let queues: Vec<_> = self
            .maps
            .queue_counters()
            .into_iter()
            .map(|(xdp, engine)| (xdp, Some(engine)))
            .collect();
        let inserts = queues.iter().map(|(xdp, _)| xdp.flow_inserts).sum::<u64>();
        let live = flows.len() as u64;
        Ok(IfaceSnapshot {
            iface: name.to_owned(),
            time_ns,
            source: Some(self.source.clone()),
            error: None,
            qps,
            queues,
            link_control: self.more.link_control(),
            flow_table: FlowTable {
                capacity: self.more.capacity(),
                live,
                inserts,
                // A flow can come between the two looks.
                evicted: inserts.saturating_sub(live),
            },
            flows,
            blind_spots: Vec::new(),
        })
    }
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub(super) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}
