//! Reads the maps of several interfaces. One that can't be read is an error in its own entry; the others go on, and it is
//! tried again with each sample.

use std::{sync::Arc, time::SystemTime};

use anyhow::Context as _;

use super::model::{FlowTable, IfaceSnapshot, NicReadings, Role, Snapshot, Source};
use crate::{
    maps::{AttachedAt, Attachment, FlowReader, MapsView, OwnPrograms, ProgramRole},
    net::rdma::RdmaDevice,
    nic,
    sys::clock::monotonic_ns,
};

/// Reads the maps of interfaces of the calling thread's network namespace.
#[derive(Debug)]
pub struct Sampler {
    ifaces: Vec<Watched>,
    own: OwnPrograms,
    nic: bool,
}

#[derive(Debug)]
struct Watched {
    name: String,
    open: Option<Open>,
    /// What whoever attached the program says that it can't see.
    blind_spots: Option<Vec<String>>,
    /// What the NIC counted when it was asked last.
    nic: Option<NicReadings>,
}

/// Maps that are open.
#[derive(Debug)]
struct Open {
    maps: MapsView,
    more: FlowReader,
    source: Source,
    blind_spots: Vec<String>,
}

impl Sampler {
    /// Will read these interfaces; nothing is opened yet.
    #[must_use]
    pub fn new(ifaces: &[String]) -> Self {
        let watch = |name: &String| Watched {
            name: name.clone(),
            open: None,
            blind_spots: None,
            nic: None,
        };
        Self {
            ifaces: ifaces.iter().map(watch).collect(),
            own: OwnPrograms::default(),
            nic: false,
        }
    }

    /// Reads the NICs' own counters too, once a second at most: some drivers ask their firmware for them.
    #[must_use]
    pub fn with_nic(mut self) -> Self {
        self.nic = true;
        self
    }

    /// Reads these programs, which this process attached, where there are such.
    #[must_use]
    pub fn with_own(mut self, own: OwnPrograms) -> Self {
        self.own = own;
        self
    }

    /// What can't be seen on an interface, told by whoever attached the program there.
    pub fn set_blind_spots(&mut self, iface: &str, blind_spots: Vec<String>) {
        for watched in self.ifaces.iter_mut().filter(|w| w.name == iface) {
            watched.blind_spots = Some(blind_spots.clone());
        }
    }

    /// Reads all of them.
    pub fn sample(&mut self) -> Snapshot {
        let time = SystemTime::now();
        let time_ns = monotonic_ns();
        Snapshot {
            time_ns,
            time,
            ifaces: self
                .ifaces
                .iter_mut()
                .map(|w| w.sample(&self.own, self.nic))
                .collect(),
        }
    }
}

impl Watched {
    fn sample(&mut self, own: &OwnPrograms, nic: bool) -> IfaceSnapshot {
        match self.read(own) {
            Ok(mut snapshot) => {
                if nic {
                    self.look_at_nic();
                    snapshot.nic.clone_from(&self.nic);
                }
                snapshot
            }
            Err(error) => {
                self.open = None;
                let error = crate::out::chain(&error);
                IfaceSnapshot::failed(self.name.clone(), monotonic_ns(), error)
            }
        }
    }

    fn look_at_nic(&mut self) {
        const EVERY_NS: u64 = 990_000_000;
        let now = monotonic_ns();
        let old = self.nic.take();
        let fresh = |old: &NicReadings| now.saturating_sub(old.latest.0) < EVERY_NS;
        self.nic = match old {
            Some(old) if fresh(&old) => Some(old),
            old => Some(NicReadings {
                earlier: old.map(|old| old.latest),
                latest: (now, Arc::new(nic::read(&self.name))),
            }),
        };
    }

    fn read(&mut self, own: &OwnPrograms) -> anyhow::Result<IfaceSnapshot> {
        // The maps outlive the program that filled them as long as they are open here: ask who is attached now.
        let before = self.open.as_ref().map(|open| open.source.program_id);
        let attached = source(&own.attachment(&self.name, before)?);
        let open = match self.open.take() {
            Some(open) if open.source.program_id == attached.program_id => self.open.insert(open),
            _ => self.open.insert(Open::new(&self.name, attached)?),
        };
        open.read(&self.name, self.blind_spots.as_ref())
    }
}

/// The rocexdp program whose maps are read.
fn source(found: &Attachment) -> Source {
    let (hook, mode) = match found.at {
        AttachedAt::Xdp(mode) => ("XDP", mode.to_string()),
        AttachedAt::TcxIngress | AttachedAt::TcxEgress => ("TCX", "n/a".to_owned()),
    };
    Source {
        role: match found.role {
            ProgramRole::Endpoint => Role::Endpoint,
            ProgramRole::Monitor => Role::Monitor,
        },
        hook,
        mode,
        program_id: found.program_id,
    }
}

/// What can't be seen, where nobody who attached the program says so.
fn blind_spots(name: &str, source: &Source) -> Vec<String> {
    let mut spots = Vec::new();
    match source.role {
        Role::Endpoint => spots.push(format!(
            "{name}: XDP sees what comes in: of flows that are not local QPs' one direction, and no CE mark on what is sent"
        )),
        Role::Monitor => spots.push(format!(
            "{name}: this is another process's monitor: what it can't see it said when it was started"
        )),
    }
    match RdmaDevice::on(name) {
        Ok(devices) => {
            let hardware = devices.iter().filter(|device| !device.software);
            spots.extend(hardware.map(|device| format!("{name}: {device}")));
        }
        Err(error) => spots.push(format!(
            "{name}: can't tell whether there is RDMA hardware, whose traffic would not be seen: {error}"
        )),
    }
    spots.push(format!(
        "{name}: most NICs take pause frames out before any program sees them"
    ));
    spots
}

impl Open {
    fn new(name: &str, source: Source) -> anyhow::Result<Self> {
        let maps = MapsView::of_program(source.program_id)
            .with_context(|| format!("reading the maps of the program on {name}"))?;
        let more = FlowReader::of_program(source.program_id)
            .with_context(|| format!("reading the flows of the program on {name}"))?;
        Ok(Self {
            blind_spots: blind_spots(name, &source),
            maps,
            more,
            source,
        })
    }

    fn read(&mut self, name: &str, told: Option<&Vec<String>>) -> anyhow::Result<IfaceSnapshot> {
        let time_ns = monotonic_ns();
        let qps = self.maps.qps();
        // Read before the flows: what is entered meanwhile is then not taken for evicted.
        let endpoint = self.source.role == Role::Endpoint;
        let counters = self.maps.queue_counters().into_iter();
        let mut queues: Vec<_> = counters
            .map(|(xdp, engine)| (xdp, endpoint.then_some(engine)))
            .collect();
        let (tcx_received, tcx_sent) = self.maps.tcx_counters();
        let all = self.maps.all_counters();
        // Of frames on queues that came later.
        if let Some(late) = all.get(queues.len()).filter(|_| all.len() > queues.len()) {
            queues.push((*late, None));
        }
        let inserts = all.iter().map(|xdp| xdp.flow_inserts).sum::<u64>();
        let flows = self.more.flows()?;
        let live = flows.len() as u64;
        Ok(IfaceSnapshot {
            iface: name.to_owned(),
            time_ns,
            source: Some(self.source.clone()),
            error: None,
            qps,
            queues,
            tcx_received,
            tcx_sent,
            link_control: self.more.link_control(),
            flow_table: FlowTable {
                capacity: self.more.capacity(),
                live,
                inserts,
                evicted: inserts.saturating_sub(live),
            },
            flows,
            nic: None,
            blind_spots: told.unwrap_or(&self.blind_spots).clone(),
        })
    }
}
