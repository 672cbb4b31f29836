//! A lab with switches at one moment: what `rocexdp lab status` and `rocexdp top` show. Times are the lab's own.

use std::net::IpAddr;

use rocexdp_sim::{
    net::{LinkCounters, Network},
    picos::Picos,
    switch::{DropReason, PRIORITIES, QueueCounters},
    topology::{HostId, LinkId, Node, PortId, SwitchId},
};
use serde::{Deserialize, Serialize};

use super::{
    super::LinkDrops,
    station::{NicCounters, Station},
};

/// The lab's network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NetworkStatus {
    /// Seconds since it is up, by its clock.
    pub time: f64,
    /// Seconds by which that clock was held back because the machine did not run it: links were slower by as much.
    pub held_back: f64,
    /// Hosts.
    pub hosts: Vec<HostStatus>,
    /// Switches.
    pub switches: Vec<SwitchStatus>,
    /// Frames that captures of links lack, because their reader was too slow.
    #[serde(default)]
    pub capture_lost: u64,
    /// Frames lost on the way between namespaces: none of them by a switch.
    pub drops: Vec<LinkDrops>,
}

/// A host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostStatus {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its NICs.
    pub nics: Vec<NicStatus>,
}

/// A NIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NicStatus {
    /// The interface in the host's namespace.
    pub interface: String,
    /// IPv4 and, unless the kernel has none, IPv6.
    pub addresses: Vec<IpAddr>,
    /// What its link leads to.
    pub to: String,
    /// Of the link, bit/s.
    pub rate: u64,
    /// Of the interface.
    pub mtu: u32,
    /// What it counted.
    pub counters: NicCounters,
    /// Of the link, from the host on.
    pub link: LinkStatus,
}

/// A direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// Frames sent into it.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Seconds spent sending, what Ethernet adds included.
    pub busy: f64,
    /// Pause frames.
    pub pause_frames: u64,
    /// Lost as a fault.
    pub lost_fault: u64,
    /// Lost because it was down.
    pub lost_down: u64,
}

/// A switch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SwitchStatus {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Bytes of its buffer in use, and the most that were.
    pub buffer: [u64; 2],
    /// Of them in the shared part, and how large that is.
    pub shared: [u64; 2],
    /// Frames that it knew no way for.
    pub no_route: u64,
    /// Its ports.
    pub ports: Vec<PortStatus>,
}

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortStatus {
    /// Its interface in the switch's namespace, for captures; `None`: the link to another switch is not a veth.
    pub interface: Option<String>,
    /// What its link leads to.
    pub to: String,
    /// Of the link, bit/s.
    pub rate: u64,
    /// Of the link, from the switch on.
    pub link: LinkStatus,
    /// Priorities that anything was counted of.
    pub priorities: Vec<PriorityStatus>,
}

/// A priority of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PriorityStatus {
    /// Which.
    pub priority: u8,
    /// Frames that came in by this port.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames that left by it.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames that got Congestion Experienced here.
    pub marked: u64,
    /// Frames for this queue that found it full.
    pub dropped_queue_full: u64,
    /// Frames for this queue that found the buffer full.
    pub dropped_buffer_full: u64,
    /// Frames that came in by this port and found its headroom full.
    pub dropped_headroom_full: u64,
    /// Pauses told to the peer.
    pub pauses_sent: u64,
    /// Seconds for which it was told to pause.
    pub pausing: f64,
    /// Pauses heard from the peer.
    pub pauses_received: u64,
    /// Seconds for which this queue was paused.
    pub paused: f64,
    /// Bytes in the egress queue.
    pub queue: u64,
    /// The most that were.
    pub queue_max: u64,
    /// Its bytes over time, byte seconds: the mean between two readings is their difference over the time's.
    pub queue_seconds: f64,
    /// Bytes that the ingress queue holds, headroom included.
    pub ingress: u64,
}

impl PriorityStatus {
    /// Frames dropped here.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped_queue_full + self.dropped_buffer_full + self.dropped_headroom_full
    }

    fn of(priority: u8, c: &QueueCounters) -> Self {
        Self {
            priority,
            rx_frames: c.rx_packets,
            rx_bytes: c.rx_bytes,
            tx_frames: c.tx_packets,
            tx_bytes: c.tx_bytes,
            marked: c.marked,
            dropped_queue_full: c.dropped(DropReason::QueueFull),
            dropped_buffer_full: c.dropped(DropReason::BufferFull),
            dropped_headroom_full: c.dropped(DropReason::HeadroomFull),
            pauses_sent: c.pauses_sent,
            pausing: seconds(c.pausing),
            pauses_received: c.pauses_received,
            paused: seconds(c.paused),
            queue: c.queue,
            queue_max: c.queue_max,
            queue_seconds: c.queue_integral as f64 * 1e-12,
            ingress: c.ingress + c.headroom,
        }
    }
}

/// Names that a status needs beside the network.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// As the status has them, counters zero.
    pub hosts: Vec<HostStatus>,
    /// Namespaces of the switches.
    pub switches: Vec<String>,
}

fn seconds(time: Picos) -> f64 {
    time.0 as f64 * 1e-12
}

fn link_of(network: &Network<Station>, node: Node, port: PortId) -> (LinkId, LinkCounters, String) {
    let Some((link, end)) = network.link_at(node, port) else {
        return (LinkId(u32::MAX), LinkCounters::default(), String::new());
    };
    let [first, second] = network.link(link);
    let counters = if end == 0 { first } else { second };
    let spec = network.topology().links.get(link.0 as usize);
    let peer = spec.and_then(|spec| spec.ends.get(1 - end));
    let name = peer.map(|peer| network.topology().name(*peer).to_owned());
    (link, counters, name.unwrap_or_default())
}

impl From<LinkCounters> for LinkStatus {
    fn from(c: LinkCounters) -> Self {
        Self {
            frames: c.packets,
            bytes: c.bytes,
            busy: seconds(c.busy),
            pause_frames: c.pause_frames,
            lost_fault: c.lost_fault,
            lost_down: c.lost_down,
        }
    }
}

/// What the network counted so far.
pub(super) fn status(network: &Network<Station>, names: &Names, held_back: f64) -> NetworkStatus {
    let now = network.now();
    let mut hosts = names.hosts.clone();
    for (id, host) in (0..).map(HostId).zip(&mut hosts) {
        for ((port, nic), state) in (0..).zip(&mut host.nics).zip(&network.host(id).nics) {
            nic.counters = state.counters;
            nic.link = link_of(network, Node::Host(id), PortId(port)).1.into();
        }
    }
    let topology = network.topology();
    let switches = (0..)
        .map(SwitchId)
        .zip(&topology.switches)
        .zip(&names.switches);
    let switches = switches.map(|((id, spec), namespace)| {
        let switch = network.switch(id);
        let buffer = switch.buffer();
        let ports = (0..switch.ports()).map(|number| {
            let port = PortId(number as u16);
            let (link, counters, to) = link_of(network, Node::Switch(id), port);
            let spec = topology.links.get(link.0 as usize);
            let is_host =
                spec.is_some_and(|spec| spec.ends.iter().any(|end| matches!(end, Node::Host(_))));
            let priorities = (0..PRIORITIES as u8).map(|p| (p, switch.counters(now, port, p)));
            PortStatus {
                interface: is_host.then(|| super::port_name(port)),
                to,
                rate: spec.map_or(0, |spec| spec.rate.as_bps()),
                link: counters.into(),
                priorities: priorities
                    .filter(|(_, c)| *c != QueueCounters::default())
                    .map(|(p, c)| PriorityStatus::of(p, &c))
                    .collect(),
            }
        });
        SwitchStatus {
            name: spec.name.clone(),
            namespace: namespace.clone(),
            buffer: [buffer.used, buffer.max],
            shared: [buffer.shared, buffer.shared_size],
            no_route: network.no_route(id),
            ports: ports.collect(),
        }
    });
    NetworkStatus {
        time: seconds(now),
        held_back,
        switches: switches.collect(),
        hosts,
        capture_lost: 0,
        drops: Vec::new(),
    }
}
