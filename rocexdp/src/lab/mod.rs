//! A lab on this machine: host a - wire - host b, three network namespaces joined by veth.
//!
//! The wire is an XDP program (`wire`), or, where faults need frames held, a userspace AF_XDP loop (`relay`) over the same
//! model of faults. A [`Lab`] is used in-process by tests and the demo and removes everything when dropped; `keeper` is a
//! process of its own that holds one for `rocexdp lab up`. Nothing here knows RDMA. Root is needed.

mod impair;
pub mod keeper;
mod relay;
mod topology;
mod wire;

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    process::Command,
};

pub use impair::{BadImpairment, Impairment};
use rocexdp_common::{fault::Faults, wire::WireCounters};
use serde::{Deserialize, Serialize};
pub use topology::{HOST_INTERFACE, namespaces, remove};

use self::{relay::Relay, topology::Topology, wire::XdpWire};
use crate::{
    net::{self, Link, Mac},
    sys::{ethtool, netns::NetNs},
};

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Host {
    /// Host a: 10.77.0.1, fd77::1, the wire's port 0.
    A,
    /// Host b: 10.77.0.2, fd77::2, the wire's port 1.
    B,
}

impl Host {
    /// 0 or 1: also the number of the wire's port.
    pub const fn index(self) -> usize {
        match self {
            Self::A => 0,
            Self::B => 1,
        }
    }

    /// The other host.
    pub const fn peer(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// Its IPv4 address (in a /24).
    pub const fn ipv4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.index() as u8 + 1)
    }

    /// Its IPv6 address (in a /64).
    pub const fn ipv6(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, self.index() as u16 + 1)
    }

    /// Its IPv4 and IPv6 address.
    pub const fn addresses(self) -> [IpAddr; 2] {
        [IpAddr::V4(self.ipv4()), IpAddr::V6(self.ipv6())]
    }

    /// Its Ethernet address: fixed, so that frames are the same in every run.
    pub const fn mac(self) -> Mac {
        Mac([2, 10, 77, 0, 0, self.index() as u8 + 1])
    }

    /// The wire's port towards it, an interface in the wire's namespace.
    pub const fn port(self) -> &'static str {
        match self {
            Self::A => "port-a",
            Self::B => "port-b",
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "a",
            Self::B => "b",
        })
    }
}

impl std::str::FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "a" => Ok(Self::A),
            "b" => Ok(Self::B),
            _ => Err(format!("{text:?} is no host of the lab: there are a and b")),
        }
    }
}

/// What a lab looks like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabConfig {
    /// The namespaces are NAME-a, NAME-b and NAME-wire.
    pub name: String,
    /// MTU of all links, bytes. 4200 carries path MTU 4096.
    pub mtu: u32,
    /// The VLAN id of 802.1Q tags in the frames.
    pub vlan: Option<u16>,
    /// Give the hosts' interfaces a `pfifo` queue.
    pub qdisc: bool,
}

impl Default for LabConfig {
    fn default() -> Self {
        Self {
            name: "rocexdp".to_owned(),
            mtu: 4200,
            vlan: None,
            qdisc: true,
        }
    }
}

impl LabConfig {
    /// The default lab under another name.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    fn check(&self) -> Result<(), Error> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(plain) {
            return Err(Error::Config(format!(
                "lab name {:?}: must be 1 to 64 letters, digits, '-' or '_'",
                self.name
            )));
        }
        if !(1280..=9000).contains(&self.mtu) {
            return Err(Error::Config(format!(
                "MTU {}: must be 1280 to 9000",
                self.mtu
            )));
        }
        if let Some(id) = self.vlan
            && !(1..=4094).contains(&id)
        {
            return Err(Error::Config(format!("VLAN id {id}: must be 1 to 4094")));
        }
        Ok(())
    }
}

/// Why a lab does not do what was asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The configuration makes no sense.
    Config(String),
    /// A lab of that name is there.
    Exists(String),
    /// No lab of that name is there.
    Missing(String),
    /// A step failed.
    Step(&'static str, io::Error),
    /// Something about an interface.
    Net(net::Error),
    /// Something about BPF.
    Bpf(&'static str, Box<dyn std::error::Error + Send + Sync>),
    /// The embedded object lacks a part: a build that does not fit.
    Object(&'static str),
    /// The wire's program was not attached in driver mode to this port.
    NotDriverMode(String),
    /// The kernel can't redirect frames, or not those in fragments, to this port.
    NoRedirect(String),
    /// An AF_XDP socket can't be opened.
    Socket(crate::xsk::XskError),
    /// The keeper process said so.
    Keeper(String),
}

impl Error {
    fn step(doing: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::Step(doing, error)
    }

    fn bpf<E: std::error::Error + Send + Sync + 'static>(
        doing: &'static str,
    ) -> impl Fn(E) -> Self {
        move |error| Self::Bpf(doing, Box::new(error))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(text) | Self::Keeper(text) => f.write_str(text),
            Self::Exists(name) => {
                write!(
                    f,
                    "lab {name} exists already (remove it: rocexdp lab down --name {name})"
                )
            }
            Self::Missing(name) => {
                write!(
                    f,
                    "there is no lab {name} (make it: rocexdp lab up --name {name})"
                )
            }
            Self::Step(doing, error) => {
                write!(f, "lab: {doing}: {error}")?;
                match error.kind() {
                    io::ErrorKind::PermissionDenied => f.write_str(" (a lab needs root)"),
                    _ => Ok(()),
                }
            }
            Self::Net(error) => write!(f, "lab: {error}"),
            Self::Bpf(doing, error) => write!(f, "lab: {doing}: {}", chain(error.as_ref())),
            Self::Object(part) => write!(f, "lab: the wire's object has no {part}: rebuild it"),
            Self::NotDriverMode(port) => {
                write!(
                    f,
                    "lab: the wire's program is not in driver mode on port {port}"
                )
            }
            Self::NoRedirect(port) => write!(
                f,
                "lab: the kernel can't redirect frames in fragments to veth port {port} (Linux 6.6 or newer is needed)"
            ),
            Self::Socket(error) => write!(f, "lab: {error}"),
        }
    }
}

/// An error with its causes: aya's say little without.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

impl std::error::Error for Error {}

impl From<net::Error> for Error {
    fn from(error: net::Error) -> Self {
        Self::Net(error)
    }
}

/// What happened to the frames that entered a port of the wire. A frame can be in several lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounters {
    /// RoCEv2 packets seen.
    pub packets: u64,
    /// Frames that came out, copies included.
    pub forwarded: u64,
    /// RoCEv2 packets dropped as a fault.
    pub dropped: u64,
    /// RoCEv2 packets with a byte changed.
    pub corrupted: u64,
    /// RoCEv2 packets that got Congestion Experienced.
    pub marked: u64,
    /// RoCEv2 packets delivered twice.
    pub duplicated: u64,
    /// RoCEv2 packets held back.
    pub reordered: u64,
    /// Frames that are not RoCEv2.
    pub other: u64,
    /// Frames that the wire lost or could not change: an error, not a fault asked for.
    pub failed: u64,
}

impl PortCounters {
    fn plus(&self, other: &Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            forwarded: self.forwarded + other.forwarded,
            dropped: self.dropped + other.dropped,
            corrupted: self.corrupted + other.corrupted,
            marked: self.marked + other.marked,
            duplicated: self.duplicated + other.duplicated,
            reordered: self.reordered + other.reordered,
            other: self.other + other.other,
            failed: self.failed + other.failed,
        }
    }
}

impl From<WireCounters> for PortCounters {
    fn from(counters: WireCounters) -> Self {
        Self {
            packets: counters.packets,
            forwarded: counters.forwarded,
            dropped: counters.dropped,
            corrupted: counters.corrupted,
            marked: counters.marked,
            other: counters.other,
            failed: counters.failed,
            ..Self::default()
        }
    }
}

impl From<rocexdp_sim::wire::PortCounters> for PortCounters {
    fn from(counters: rocexdp_sim::wire::PortCounters) -> Self {
        Self {
            packets: counters.packets,
            forwarded: counters.forwarded,
            dropped: counters.dropped,
            corrupted: counters.corrupted,
            marked: counters.marked,
            duplicated: counters.duplicated,
            reordered: counters.reordered,
            other: counters.other,
            failed: counters.overflowed,
        }
    }
}

/// Frames that a link lost: none of them a fault asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkDrops {
    /// The namespace.
    pub namespace: String,
    /// The interface in it.
    pub interface: String,
    /// Lost on receive: no memory, or the sender's redirect found the ring full.
    pub rx_dropped: u64,
    /// Lost on transmit: the peer's ring was full, or it is down.
    pub tx_dropped: u64,
    /// Refused by an XDP program that aborted, on the wire's ports only: a host's own program may drop.
    pub xdp_aborted: u64,
}

impl LinkDrops {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.rx_dropped + self.tx_dropped + self.xdp_aborted
    }
}

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

/// `xdp_dropped` is what the wire's program dropped on purpose; `None` on a host, whose program's drops are its own.
fn drops(namespace: &NetNs, interface: &str, xdp_dropped: Option<u64>) -> Result<LinkDrops, Error> {
    let (link, statistics) = namespace
        .run(|| (Link::by_name(interface), ethtool::statistics(interface)))
        .map_err(Error::step("entering a namespace"))?;
    let stats = link?.stats;
    let xdp_drops: u64 = statistics
        .unwrap_or_default()
        .iter()
        .filter(|(name, _)| name.starts_with("rx_queue_") && name.ends_with("_xdp_drops"))
        .map(|(_, count)| count)
        .sum();
    Ok(LinkDrops {
        namespace: namespace.label().to_owned(),
        interface: interface.to_owned(),
        rx_dropped: stats.rx_dropped,
        tx_dropped: stats.tx_dropped,
        xdp_aborted: xdp_dropped.map_or(0, |meant| xdp_drops.saturating_sub(meant)),
    })
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

    #[test]
    fn hosts_have_distinct_addresses() {
        assert_eq!("b".parse(), Ok(Host::B));
        assert!("wire".parse::<Host>().is_err());
        assert_eq!(Host::A.peer().ipv4().to_string(), "10.77.0.2");
        assert_eq!(Host::A.ipv6().to_string(), "fd77::1");
        assert_ne!(Host::A.mac(), Host::B.mac());
    }
}
