//! What a socket knows about its own traffic: the kernel's counts and ours.
//!
//! netdev statistics do not count AF_XDP traffic on many drivers, so these are the only record. Sources are named per
//! field; nothing here is estimated.

use std::fmt;

/// `struct xdp_statistics` of `linux/if_xdp.h`, as the kernel counts them for one socket since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XskStatistics {
    /// Packets dropped because no chunk was on the fill ring, or the packet was too long or had fragments for a socket
    /// without multi-buffer.
    pub rx_dropped: u64,
    /// Fill ring entries that the kernel refused.
    pub rx_invalid_descs: u64,
    /// TX ring entries that the kernel refused: those packets are lost.
    pub tx_invalid_descs: u64,
    /// Packets dropped because the RX ring was full. `None` before kernel 5.9, which counts them in `rx_dropped`.
    pub rx_ring_full: Option<u64>,
    /// How often the kernel found the fill ring empty. Not packets: see `rx_dropped`.
    pub rx_fill_ring_empty_descs: Option<u64>,
    /// How often the kernel found the TX ring empty: normal at the end of every send call.
    pub tx_ring_empty_descs: Option<u64>,
}

impl XskStatistics {
    /// Packets that XDP redirected to the socket and that never reached its RX ring.
    pub fn rx_lost(&self) -> u64 {
        self.rx_dropped + self.rx_ring_full.unwrap_or(0)
    }
}

/// What the userspace side of one socket has counted since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XskCounters {
    /// Packets handed to the engine.
    pub rx_packets: u64,
    /// Bytes of those.
    pub rx_bytes: u64,
    /// Packets dropped here because one of their descriptors was not believable.
    pub rx_bad_descriptor: u64,
    /// Packets dropped here because they came in more than [`super::MAX_FRAGS`] pieces.
    pub rx_too_many_frags: u64,
    /// Packets put on the TX ring.
    pub tx_packets: u64,
    /// Bytes of those.
    pub tx_bytes: u64,
    /// Descriptors of packets that the kernel is done with. In copy mode that says "left the socket", not "on the wire".
    pub tx_completed_descs: u64,
    /// Completion entries that named no chunk being sent.
    pub tx_bad_completion: u64,
    /// System calls made to have packets sent.
    pub tx_kicks: u64,
    /// Of those, how many left packets on the ring: budget used up, socket buffer or device queue full. They are sent
    /// later.
    pub tx_backpressure: u64,
    /// Packets that the device dropped instead of sending (copy mode: the send call says EBUSY once for each, from
    /// `NET_XMIT_DROP` in `__xsk_generic_xmit`). Those packets are lost. Seen with a veth without a qdisc whose peer
    /// falls behind, a link without carrier, a frame longer than the MTU. Equals the link's `tx dropped` there.
    pub tx_device_drops: u64,
    /// System calls made because the driver asked for a wake-up after a refill.
    pub fill_kicks: u64,
}

impl fmt::Display for XskStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_na = |value: Option<u64>| {
            value.map_or_else(|| "n/a (kernel before 5.9)".to_owned(), |v| v.to_string())
        };
        write!(
            f,
            "rx_dropped {} rx_ring_full {} rx_fill_ring_empty_descs {} rx_invalid_descs {} tx_invalid_descs {} \
             tx_ring_empty_descs {}",
            self.rx_dropped,
            or_na(self.rx_ring_full),
            or_na(self.rx_fill_ring_empty_descs),
            self.rx_invalid_descs,
            self.tx_invalid_descs,
            or_na(self.tx_ring_empty_descs),
        )
    }
}
