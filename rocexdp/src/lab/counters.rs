//! What the wire did and what the links lost: the lab's books.

use rocexdp_common::wire::WireCounters;
use serde::{Deserialize, Serialize};

use super::Error;
use crate::{
    net::Link,
    sys::{ethtool, netns::NetNs},
};

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
    pub(super) fn plus(&self, other: &Self) -> Self {
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

/// `xdp_dropped` is what the wire's program dropped on purpose; `None` on a host, whose program's drops are its own.
pub(super) fn drops(
    namespace: &NetNs,
    interface: &str,
    xdp_dropped: Option<u64>,
) -> Result<LinkDrops, Error> {
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
