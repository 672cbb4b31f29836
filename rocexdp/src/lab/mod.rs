//! A lab on this machine: host a - wire - host b, three network namespaces joined by veth.
//!
//! The wire is an XDP program (`wire`), or, where faults need frames held, a userspace AF_XDP loop (`relay`) over the same
//! model of faults. A [`Lab`] is used in-process by tests and the demo and removes everything when dropped; `keeper` is a
//! process of its own that holds one for `rocexdp lab up`. Nothing here knows RDMA. Root is needed.

mod config;
mod counters;
mod error;
mod impair;
pub mod keeper;
mod links;
mod relay;
pub mod switched;
mod topology;
mod wire;

use std::{io, process::Command};

pub use config::{Host, LabConfig};
pub use counters::{LinkDrops, PortCounters};
pub use error::Error;
pub use impair::{BadImpairment, Impairment};
use rocexdp_common::fault::Faults;
pub use switched::{PausedBy, SwitchedConfig, SwitchedLab};
pub use topology::{HOST_INTERFACE, namespaces, remove};
pub use wire::XdpWire;

use self::{counters::drops, relay::Relay, topology::Topology};
use crate::sys::netns::NetNs;

/// A lab that is up. Dropping it removes everything.
#[derive(Debug)]
pub struct Lab {
    config: LabConfig,
    topology: Topology,
    wire: XdpWire,
    relay: Option<Relay>,
    /// What userspace wires that are gone counted.
    relayed: [PortCounters; 2],
    faults: [Faults; 2],
    drops_before: Vec<LinkDrops>,
    down: bool,
}

impl Lab {
    /// Makes the lab.
    ///
    /// # Errors
    /// Says which step failed; then nothing is left behind.
    pub fn up(config: LabConfig) -> Result<Self, Error> {
        config.check()?;
        let topology = Topology::create(&config)?;
        let ports = topology.ports;
        let wire = topology
            .wire
            .run(|| XdpWire::attach(ports))
            .map_err(Error::step("entering the wire's namespace"))
            .and_then(|wire| wire)
            .and_then(|wire| topology.open_ports().map(|()| wire))
            .inspect_err(|_| {
                // The first error is the one to report.
                let _ = remove(&config.name);
            })?;
        let mut lab = Self {
            config,
            topology,
            wire,
            relay: None,
            relayed: Default::default(),
            faults: Default::default(),
            drops_before: Vec::new(),
            down: false,
        };
        // A host may have sent before the other end was up.
        lab.drops_before = lab.read_drops()?;
        Ok(lab)
    }

    /// What the lab looks like.
    pub fn config(&self) -> &LabConfig {
        &self.config
    }

    /// A host's namespace.
    pub fn host(&self, host: Host) -> &NetNs {
        let [a, b] = &self.topology.hosts;
        match host {
            Host::A => a,
            Host::B => b,
        }
    }

    /// The wire's namespace, for captures on its ports (see [`Host::port`]).
    pub fn wire(&self) -> &NetNs {
        &self.topology.wire
    }

    /// Whether the hosts have IPv6 addresses.
    pub fn has_ipv6(&self) -> bool {
        self.topology.ipv6
    }

    /// The interface of a host that has its addresses: `eth0`, or the VLAN device on it where the kernel has those. XDP
    /// attaches to `eth0` either way. See `topology` for what that means for tags.
    pub fn host_interface(&self) -> String {
        self.topology.interface.clone()
    }

    /// Makes `command` run on a host.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn spawn_in(&self, host: Host, command: &mut Command) -> io::Result<()> {
        self.host(host).confine(command)
    }

    /// The same faults in both directions. Their packets are numbered from 0.
    ///
    /// # Errors
    /// The wire could not be reconfigured.
    pub fn impair(&mut self, faults: Faults) -> Result<(), Error> {
        self.impair_each([faults; 2])
    }

    /// Faults for what host a sends, and for what host b sends.
    ///
    /// # Errors
    /// The wire could not be reconfigured.
    pub fn impair_each(&mut self, faults: [Faults; 2]) -> Result<(), Error> {
        if faults.iter().any(Faults::needs_holding) {
            match &self.relay {
                Some(relay) => relay.configure(faults),
                None => {
                    let [a, b] = self.topology.ports;
                    let ports = [(Host::A.port(), a), (Host::B.port(), b)];
                    self.relay = Some(Relay::start(
                        &self.topology.wire,
                        ports,
                        &mut self.wire,
                        faults,
                    )?);
                    self.wire.configure(faults, true)?;
                }
            }
        } else {
            self.wire.configure(faults, false)?;
            if let Some(relay) = self.relay.take() {
                let counted = relay.stop()?;
                for (total, last) in self.relayed.iter_mut().zip(counted) {
                    *total = total.plus(&last);
                }
            }
        }
        self.faults = faults;
        Ok(())
    }

    /// The faults in force, by sending host.
    pub fn faults(&self) -> [Faults; 2] {
        self.faults
    }

    /// Whether frames go through the userspace wire now.
    pub fn is_relayed(&self) -> bool {
        self.relay.is_some()
    }

    /// What happened so far to the frames of each host, whichever wire they took.
    ///
    /// # Errors
    /// The program's counters can't be read.
    pub fn counters(&self) -> Result<[PortCounters; 2], Error> {
        let mut counters = self.relayed;
        let relay = self.relay.as_ref().map(Relay::counters).unwrap_or_default();
        for ((total, now), xdp) in counters.iter_mut().zip(relay).zip(self.wire.counters()?) {
            *total = total.plus(&now).plus(&PortCounters::from(xdp));
        }
        Ok(counters)
    }

    /// What the four ends of the two links lost since the lab is up.
    ///
    /// # Errors
    /// An interface can't be read.
    pub fn link_drops(&self) -> Result<Vec<LinkDrops>, Error> {
        let mut drops = self.read_drops()?;
        for (now, before) in drops.iter_mut().zip(&self.drops_before) {
            now.rx_dropped = now.rx_dropped.saturating_sub(before.rx_dropped);
            now.tx_dropped = now.tx_dropped.saturating_sub(before.tx_dropped);
        }
        Ok(drops)
    }

    fn read_drops(&self) -> Result<Vec<LinkDrops>, Error> {
        let faults = self.wire.counters()?.map(|port| port.dropped);
        let mut all = Vec::new();
        for host in [Host::A, Host::B] {
            all.push(drops(self.host(host), HOST_INTERFACE, None)?);
            all.push(drops(
                &self.topology.wire,
                host.port(),
                Some(faults[host.index()]),
            )?);
        }
        Ok(all)
    }

    /// Removes everything and says whether that worked.
    ///
    /// # Errors
    /// What could not be removed.
    pub fn down(mut self) -> Result<(), Error> {
        self.remove()
    }

    fn remove(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.down, true) {
            return Ok(());
        }
        self.relay = None;
        remove(&self.config.name)
            .map(drop)
            .map_err(Error::step("removing the lab"))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lab_that_makes_no_sense_is_refused_before_anything_is_made() {
        let default = LabConfig::default();
        for (config, part) in [
            (
                LabConfig {
                    name: "../x".into(),
                    ..default.clone()
                },
                "lab name",
            ),
            (
                LabConfig {
                    name: String::new(),
                    ..default.clone()
                },
                "lab name",
            ),
            (
                LabConfig {
                    mtu: 500,
                    ..default.clone()
                },
                "MTU 500",
            ),
            (
                LabConfig {
                    vlan: Some(4095),
                    ..default.clone()
                },
                "VLAN id 4095",
            ),
        ] {
            let error = Lab::up(config).expect_err("refused").to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
