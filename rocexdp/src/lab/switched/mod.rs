//! A lab whose hosts are joined by switches: the simulator's network, driven in real time over AF_XDP ports.
//!
//! Built from the fabric's TOML that the simulator reads too. Each host is a namespace, LAB-HOST, with an interface per NIC
//! (`eth0`, `eth1`, ...); each switch is one, LAB-SWITCH, with the other ends of its hosts' veths (`port0`, ...), where captures show
//! what passes. Everything in between, links between switches included, is `rocexdp_sim::net` in one thread (`run`): rates,
//! delays, queues, marks, pauses, faults, ways. Hosts know one another's Ethernet addresses from the start.
//!
//! Nothing here knows RDMA. Root is needed.

mod capture;
mod frame;
mod run;
mod station;
pub mod status;

use std::{
    net::IpAddr,
    os::fd::{AsFd, AsRawFd},
};

use rocexdp_fabric::{
    Source,
    fabric::{Fabric, Nic},
};
use rocexdp_sim::{
    net::{Network, Options},
    topology::{HostId, Node, PortId, Topology},
};
use serde::{Deserialize, Serialize};

pub use self::capture::Records;
pub use self::station::{NicCounters, PausedBy};
use self::{
    frame::{NicId, Reader},
    run::{Driver, Port},
    station::Station,
    status::{HostStatus, LinkStatus, Names, NetworkStatus, NicStatus},
};
use super::{
    Error, LinkDrops,
    counters::drops,
    links::{
        add_address, add_ipv6_address, add_neighbour, add_pfifo, create_pair, open_host_end,
        remove_namespaces, set_up, silence_ipv6,
    },
    relay::FdNumber,
    wire::XdpWire,
};
use crate::{
    net::{IfIndex, Link, Mac},
    sys::netns::NetNs,
    xsk::{Xsk, XskConfig},
};

/// NICs of a lab at most: each has 24 MiB of packet memory.
const MOST_NICS: usize = 64;
/// Chunks to receive into, for each port: nothing holds hosts back while the thread does not run.
const RECEIVE_CHUNKS: u32 = 4096;
/// Chunks to send from.
const SEND_CHUNKS: u32 = 2048;

/// What a lab with switches looks like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchedConfig {
    /// The namespaces are NAME-NODE.
    pub name: String,
    /// What its fabric's text is called in messages: its file.
    pub file: String,
    /// The fabric, in TOML.
    pub topology: String,
    /// Of marks and faults.
    pub seed: u64,
    /// Who honours pauses.
    #[serde(default)]
    pub paused_by: PausedBy,
}

/// A lab with switches that is up. Dropping it removes everything.
#[derive(Debug)]
pub struct SwitchedLab {
    config: SwitchedConfig,
    namespaces: Vec<NetNs>,
    hosts: Vec<HostStatus>,
    /// Ends of veths, a NIC's and its port's in turn: namespace, interface.
    ends: Vec<(usize, String)>,
    drops_before: Vec<LinkDrops>,
    fabric: Fabric,
    driver: Driver,
    // Detached when this goes.
    _programs: Vec<XdpWire>,
    down: bool,
}

/// The interface of a switch's port in its namespace.
pub(super) fn port_name(port: PortId) -> String {
    format!("port{}", port.0)
}

fn interface_name(nic: PortId) -> String {
    format!("eth{}", nic.0)
}

/// A NIC and the port at the other end of its veth.
struct Cable {
    nic: NicId,
    spec: Nic,
    /// Namespace of the port: a switch's.
    at: usize,
    port: String,
}

/// Who is where: hosts' namespaces first, then switches'.
struct Plan {
    fabric: Fabric,
    names: Vec<String>,
    cables: Vec<Cable>,
}

impl Plan {
    fn new(config: &SwitchedConfig) -> Result<Self, Error> {
        super::config::check_name(&config.name)?;
        let source = Source::new(&config.file, &config.topology);
        let mut fabric = Fabric::read(source).map_err(|error| Error::Config(error.to_string()))?;
        for switch in &mut fabric.topology.switches {
            // A real pause frame always ends by itself.
            if let Some(pfc) = &mut switch.config.pfc {
                pfc.quanta.get_or_insert(u16::MAX);
            }
        }
        let topology = &fabric.topology;
        let nodes = topology
            .hosts
            .iter()
            .map(|h| &h.name)
            .chain(topology.switches.iter().map(|s| &s.name));
        let names: Vec<_> = nodes
            .map(|node| format!("{}-{node}", config.name))
            .collect();
        if let Some(name) = names
            .iter()
            .find(|name| super::config::check_name(name).is_err())
        {
            return Err(Error::Config(format!(
                "{}: a namespace can't be called {name:?}: a lab's nodes have names of letters, digits, '-' and '_', with the lab's at most 64",
                config.file
            )));
        }
        let ports = topology.ports();
        let mut cables = Vec::new();
        for (id, host) in (0..).map(HostId).zip(&fabric.hosts) {
            for (number, nic) in (0..).map(PortId).zip(&host.nics) {
                let (at, port) = far_end(topology, &ports, id, nic).ok_or_else(|| {
                    Error::Config(format!(
                        "{}: {} is joined to another host: in a lab every host is at a switch",
                        config.file, host.name
                    ))
                })?;
                let at = topology.hosts.len() + at as usize;
                cables.push(Cable {
                    nic: (id, number),
                    spec: *nic,
                    at,
                    port: port_name(port),
                });
            }
        }
        if cables.len() > MOST_NICS {
            return Err(Error::Config(format!(
                "{}: {} NICs are more than the {MOST_NICS} of a lab: simulate it (rocexdp sim)",
                config.file,
                cables.len()
            )));
        }
        Ok(Self {
            fabric,
            names,
            cables,
        })
    }
}

/// The switch and port that a host's NIC is joined to; `None`: it is none.
fn far_end(
    topology: &Topology,
    ports: &[[PortId; 2]],
    host: HostId,
    nic: &Nic,
) -> Option<(u32, PortId)> {
    let place = nic.link.0 as usize;
    let (link, ports) = (topology.links.get(place)?, ports.get(place)?);
    let far = link.ends.iter().position(|end| *end != Node::Host(host))?;
    match (link.ends.get(far)?, ports.get(far)?) {
        (Node::Switch(switch), port) => Some((switch.0, *port)),
        (Node::Host(_), _) => None,
    }
}

/// The namespaces that a lab of this configuration has.
///
/// # Errors
/// The configuration makes no sense.
pub(super) fn namespaces(config: &SwitchedConfig) -> Result<Vec<String>, Error> {
    Plan::new(config).map(|plan| plan.names)
}

/// That the configuration makes sense and nothing of it exists.
///
/// # Errors
/// [`Error::Config`] with the line, or [`Error::Exists`].
pub(super) fn check_free(config: &SwitchedConfig) -> Result<(), Error> {
    let names = namespaces(config)?;
    let existing = NetNs::names(&config.name).map_err(Error::step("listing namespaces"))?;
    if names.iter().any(|name| existing.contains(name)) {
        return Err(Error::Exists(config.name.clone()));
    }
    Ok(())
}

impl SwitchedLab {
    /// Makes the lab.
    ///
    /// # Errors
    /// What is wrong with the fabric, with its line, or which step failed; then nothing is left behind.
    pub fn up(config: SwitchedConfig) -> Result<Self, Error> {
        check_free(&config)?;
        let plan = Plan::new(&config)?;
        let names = plan.names.clone();
        Self::build(config, plan).inspect_err(|_| {
            // The first error is the one to report.
            let _ = remove_namespaces(names);
        })
    }

    fn build(config: SwitchedConfig, plan: Plan) -> Result<Self, Error> {
        let Plan {
            fabric,
            names,
            cables,
        } = plan;
        let make = |name: &String| NetNs::create(name).map_err(Error::step("creating a namespace"));
        let namespaces = names.iter().map(make).collect::<Result<Vec<_>, _>>()?;
        for switch in namespaces.iter().skip(fabric.hosts.len()) {
            switch
                .run(silence_ipv6)
                .map_err(Error::step("entering a switch's namespace"))?;
        }
        let mut hosts = Vec::new();
        for (host, namespace) in fabric.hosts.iter().zip(&names) {
            hosts.push(HostStatus {
                name: host.name.clone(),
                namespace: namespace.clone(),
                nics: Vec::new(),
            });
        }
        let space = |place: usize| {
            namespaces
                .get(place)
                .ok_or_else(|| Error::Config("a node without a namespace".to_owned()))
        };
        for cable in &cables {
            let host = space(cable.nic.0.0 as usize)?;
            let near = space(cable.at)?.run(|| lay(cable, host));
            near.map_err(Error::step("entering a switch's namespace"))??;
            let addresses = host
                .run(|| configure(cable, &fabric))
                .map_err(Error::step("entering a host's namespace"))??;
            let nic = NicStatus {
                interface: interface_name(cable.nic.1),
                addresses,
                to: fabric
                    .topology
                    .switches
                    .get(cable.at - fabric.hosts.len())
                    .map(|s| s.name.clone())
                    .unwrap_or_default(),
                rate: cable.spec.rate.as_bps(),
                mtu: cable.spec.mtu,
                counters: NicCounters::default(),
                link: LinkStatus::default(),
            };
            if let Some(host) = hosts.get_mut(cable.nic.0.0 as usize) {
                host.nics.push(nic);
            }
        }
        let (mut ports, mut programs, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for cable in &cables {
            let opened = space(cable.at)?.run(|| open(cable));
            let (port, program) =
                opened.map_err(Error::step("entering a switch's namespace"))??;
            ports.push(port);
            programs.push(program);
            ends.push((cable.nic.0.0 as usize, interface_name(cable.nic.1)));
            ends.push((cable.at, cable.port.clone()));
        }
        let stations = fabric
            .hosts
            .iter()
            .map(|host| Station::new(host.nics.len(), config.paused_by))
            .collect();
        let options = Options {
            seed: config.seed,
            ..Options::default()
        };
        let network = Network::new(fabric.seeded(config.seed), stations, &options)
            .map_err(|error| Error::Config(format!("{}: {error}", config.file)))?;
        let reader = Reader::new(
            cables.iter().map(|c| (c.spec.mac, c.nic)),
            fabric.dscp_to_priority,
        );
        let switches = names.iter().skip(fabric.hosts.len()).cloned().collect();
        let driver = Driver::start(
            network,
            ports,
            reader,
            Names {
                hosts: hosts.clone(),
                switches,
            },
        )?;
        let mut lab = Self {
            config,
            namespaces,
            hosts,
            ends,
            drops_before: Vec::new(),
            fabric,
            driver,
            _programs: programs,
            down: false,
        };
        // A host may have sent before the other end was up.
        lab.drops_before = lab.read_drops()?;
        Ok(lab)
    }

    /// What the lab looks like.
    pub fn config(&self) -> &SwitchedConfig {
        &self.config
    }

    /// Its hosts; their counters are zero here.
    pub fn hosts(&self) -> &[HostStatus] {
        &self.hosts
    }

    /// A host's namespace.
    pub fn host(&self, name: &str) -> Option<&NetNs> {
        let place = self.hosts.iter().position(|host| host.name == name)?;
        self.namespaces.get(place)
    }

    /// What happened so far.
    ///
    /// # Errors
    /// The switches' thread has ended, or an interface can't be read.
    pub fn status(&self) -> Result<NetworkStatus, Error> {
        let mut status = self.driver.status()?;
        status.drops = self.read_drops()?;
        for (now, before) in status.drops.iter_mut().zip(&self.drops_before) {
            now.rx_dropped = now.rx_dropped.saturating_sub(before.rx_dropped);
            now.tx_dropped = now.tx_dropped.saturating_sub(before.tx_dropped);
        }
        // A MAC would have kept the pause frames; a veth hands them on to a stack that has no use for them.
        let nics = status.hosts.iter().flat_map(|host| &host.nics);
        for (end, nic) in status.drops.iter_mut().step_by(2).zip(nics) {
            end.rx_dropped = end
                .rx_dropped
                .saturating_sub(nic.counters.pause_frames_told);
        }
        Ok(status)
    }

    /// What is sent into a link, both ways, from now on: a link that the fabric calls so.
    ///
    /// # Errors
    /// There is no such link, or another one is being captured.
    pub fn capture(&self, link: &str) -> Result<Records, Error> {
        let Some(id) = self.fabric.link(link) else {
            let names: Vec<_> = (self.fabric.links.iter().map(|link| link.name.as_str())).collect();
            return Err(Error::Config(format!(
                "{link:?} is no link of lab {}: there are {}",
                self.config.name,
                names.join(", ")
            )));
        };
        self.driver.capture(id)?.ok_or_else(|| {
            Error::Config(format!(
                "a link of lab {} is being captured already: end that capture first",
                self.config.name
            ))
        })
    }

    fn read_drops(&self) -> Result<Vec<LinkDrops>, Error> {
        let ends = self.ends.iter().filter_map(|(place, interface)| {
            let namespace = self.namespaces.get(*place)?;
            // A port's program gives all frames to a socket: whatever XDP drops there is lost.
            let meant = (*place >= self.hosts.len()).then_some(0);
            Some(drops(namespace, interface, meant))
        });
        ends.collect()
    }

    /// Removes everything and says whether that worked.
    ///
    /// # Errors
    /// What could not be removed, or what ended the switches early.
    pub fn down(mut self) -> Result<(), Error> {
        self.remove()
    }

    fn remove(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.down, true) {
            return Ok(());
        }
        let stopped = self.driver.stop();
        let names = self
            .namespaces
            .iter()
            .map(|namespace| namespace.label().to_owned());
        remove_namespaces(names).map_err(Error::step("removing the lab"))?;
        stopped
    }
}

impl Drop for SwitchedLab {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("{error}");
        }
    }
}

fn port_mac(nic: Mac) -> Mac {
    let [a, b, c, _, e, f] = nic.0;
    Mac([a, b, c, 0xff, e, f])
}

/// The veth of a cable; to be called where its port is.
fn lay(cable: &Cable, host: &NetNs) -> Result<(), Error> {
    let mac = Mac(cable.spec.mac);
    let near = (cable.port.as_str(), port_mac(mac));
    let interface = interface_name(cable.nic.1);
    create_pair(
        near,
        (&interface, mac),
        host.as_fd().as_raw_fd(),
        cable.spec.mtu,
    )
    .map_err(Error::step("creating a veth pair"))?;
    // veth then holds the switch back where the host's ring is full.
    add_pfifo(Link::by_name(&cable.port)?.index).map_err(Error::step("adding a pfifo queue"))
}

/// A host's end; to be called there. Returns its addresses.
fn configure(cable: &Cable, fabric: &Fabric) -> Result<Vec<IpAddr>, Error> {
    let loopback = Link::by_name("lo")?;
    set_up(loopback.index).map_err(Error::step("setting lo up"))?;
    let link = open_host_end(&interface_name(cable.nic.1), true)?;
    let [ipv4, ipv6] = addresses(&cable.spec);
    add_address(link.index, ipv4, 16).map_err(Error::step("adding an IPv4 address"))?;
    let mut all = vec![ipv4];
    if add_ipv6_address(link.index, ipv6, 64)? {
        all.push(ipv6);
    }
    let others = (0..)
        .map(HostId)
        .zip(&fabric.hosts)
        .filter(|(id, _)| *id != cable.nic.0);
    for nic in others.flat_map(|(_, host)| &host.nics) {
        for address in addresses(nic).into_iter().take(all.len()) {
            add_neighbour(link.index, address, Mac(nic.mac))
                .map_err(Error::step("adding a neighbour"))?;
        }
    }
    Ok(all)
}

fn addresses(nic: &Nic) -> [IpAddr; 2] {
    [nic.ipv4.into(), nic.ipv6.into()]
}

/// A port's socket and program; to be called where it is, once the host's end is set up (see `links`).
fn open(cable: &Cable) -> Result<(Port, XdpWire), Error> {
    let index: IfIndex = Link::by_name(&cable.port)?.index;
    let mut program = XdpWire::redirect_all(index)?;
    let mut config = XskConfig::new(&cable.port, index.0, 0);
    (config.rx_size, config.fill_size, config.frames_rx) =
        (RECEIVE_CHUNKS, RECEIVE_CHUNKS, RECEIVE_CHUNKS);
    (config.tx_size, config.comp_size, config.frames_tx) = (SEND_CHUNKS, SEND_CHUNKS, SEND_CHUNKS);
    let socket = Xsk::open(&config).map_err(Error::Socket)?;
    program
        .sockets()?
        .set(0, FdNumber(&socket), 0)
        .map_err(Error::bpf("adding a socket to a port's map"))?;
    set_up(index).map_err(Error::step("setting a port up"))?;
    let (rate, mac) = (cable.spec.rate, port_mac(Mac(cable.spec.mac)));
    Ok((
        Port {
            nic: cable.nic,
            socket,
            rate,
            mac,
        },
        program,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(topology: &str) -> SwitchedConfig {
        SwitchedConfig {
            name: "lab".into(),
            file: "f.toml".into(),
            topology: topology.into(),
            seed: 1,
            paused_by: PausedBy::Mac,
        }
    }

    #[test]
    fn a_fabric_becomes_namespaces_and_ports() {
        let text =
            "[defaults.link]\nrate = \"100Mb/s\"\n[generate]\nkind = \"incast\"\nsenders = 2\n";
        let plan = Plan::new(&config(text)).unwrap();
        assert_eq!(plan.names.len(), 4);
        assert!(plan.names.iter().all(|name| name.starts_with("lab-")));
        let ports: Vec<_> = plan.cables.iter().map(|c| c.port.as_str()).collect();
        assert_eq!(ports, ["port0", "port1", "port2"]);
        assert!(plan.cables.iter().all(|c| c.at == 3));
        let pfc = plan.fabric.topology.switches[0].config.pfc.as_ref();
        assert!(pfc.is_none_or(|pfc| pfc.quanta.is_some()));
    }

    #[test]
    fn what_a_lab_cannot_be_is_refused_with_its_reason() {
        let joined = "[defaults.link]\nrate = \"100Mb/s\"\n[generate]\nkind = \"pair\"\n";
        let big =
            "[defaults.link]\nrate = \"100Mb/s\"\n[generate]\nkind = \"incast\"\nsenders = 64\n";
        for (text, part) in [
            ("colour = 1", "f.toml:1: "),
            (big, "65 NICs are more than the 64 of a lab"),
            (joined, "every host is at a switch"),
        ] {
            let error = Plan::new(&config(text))
                .err()
                .map(|e| e.to_string())
                .unwrap_or_default();
            assert!(error.contains(part), "{error:?} for {text:?}");
        }
        let mut config = config(joined);
        config.name = "../x".into();
        assert!(Plan::new(&config).is_err());
    }
}
