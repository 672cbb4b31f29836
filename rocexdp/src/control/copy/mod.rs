//! A file from one host to another by RDMA WRITE.
//!
//! [`send`] asks (`ask`), reads the file and WRITEs it into the region that [`receive`] offers; `source` and `sink` do the work on the
//! file, on threads of their own, so that reading, hashing and the wire overlap. Which message follows which is in
//! [`super::exchange`].

mod ask;
pub mod receive;
pub mod send;
mod sink;
mod source;

use std::net::IpAddr;

use rocexdp_proto::ids::Qpn;
use serde::{Deserialize, Serialize};

pub use self::ask::Refused;
use super::exchange::{ReceiverCounts, Sha256Digest};
use crate::node::{ConnectAttr, Node};

/// Bytes of one WRITE.
pub const CHUNK: usize = 1 << 20;
/// WRITEs that may be under way at once, and chunks of staging memory.
pub const CHUNKS: usize = 16;

/// Local ACK timeout of copies: 4.096 us x 2^15 = 134 ms. A peer without a processor of its own may not run for tens of
/// milliseconds; shorter, and that looks like loss. Longer, and a retransmission that is lost itself stalls for longer.
const ACK_TIMEOUT: u8 = 15;
/// Retries after a timeout or a sequence NAK: with [`ACK_TIMEOUT`], a peer that has gone is given up after a second.
const RETRY_COUNT: u8 = 7;
/// RNR NAK timer code 12, 0.64 ms; WRITEs never meet it.
const MIN_RNR_TIMER: u8 = 12;

/// How a copy stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyProgress {
    /// Bytes of the file.
    pub total: u64,
    /// Bytes that the peer has acknowledged.
    pub placed: u64,
    /// Packets sent again.
    pub retransmitted_packets: u64,
    /// CNPs handled.
    pub rp_cnp_handled: u64,
    /// DCQCN's present rate, bit/s; 0: unpaced.
    pub rate: u64,
}

/// What a finished copy was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopyReport {
    /// Bytes of the file.
    pub bytes: u64,
    /// From the first WRITE to the last acknowledgement.
    pub transfer_seconds: f64,
    /// From the connection to the file under its name at the peer.
    pub total_seconds: f64,
    /// `bytes` over `transfer_seconds`, 10^9 bit/s; `None` when there was nothing to measure.
    pub gigabits_per_second: Option<f64>,
    /// Digest, computed by both sides.
    pub sha256: Sha256Digest,
    /// The peer's address.
    pub peer: IpAddr,
    /// Our QP number.
    pub qpn: u32,
    /// The peer's QP number.
    pub peer_qpn: u32,
    /// Path MTU in use, bytes.
    pub path_mtu: u32,
    /// Packets sent, retransmissions included.
    pub tx_packets: u64,
    /// Packets sent again.
    pub retransmitted_packets: u64,
    /// Payload bytes of them.
    pub retransmitted_bytes: u64,
    /// ACK timeouts that made us send again.
    pub local_ack_timeout_err: u64,
    /// NAK sequence errors that made us send again.
    pub packet_seq_err: u64,
    /// CNPs handled.
    pub rp_cnp_handled: u64,
    /// Lowest DCQCN rate, bit/s; `None`: never paced.
    pub min_rate: Option<u64>,
    /// What the peer counted.
    pub receiver: ReceiverCounts,
}

/// One QP's two ends, for messages.
#[derive(Clone, Copy, Debug)]
struct Ends {
    qpn: Qpn,
    peer: IpAddr,
    peer_qpn: Qpn,
}

impl std::fmt::Display for Ends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "QP {} to QP {} at {}",
            self.qpn, self.peer_qpn, self.peer
        )
    }
}

/// How copies connect their QPs.
fn connect_attr(
    local: IpAddr,
    peer: super::exchange::CheckedQp,
    path_mtu: rocexdp_proto::ids::PathMtu,
    access: rocexdp_proto::mem::Access,
) -> ConnectAttr {
    ConnectAttr {
        local,
        peer: peer.gid,
        peer_qpn: peer.qpn,
        peer_psn: peer.psn,
        path_mtu,
        timeout: ACK_TIMEOUT,
        retry_cnt: RETRY_COUNT,
        rnr_retry: RETRY_COUNT,
        min_rnr_timer: MIN_RNR_TIMER,
        access,
    }
}

/// Which of our addresses talks to `peer`: the one that the TCP connection uses if it is the node's, else the node's first
/// of the same kind.
fn local_address(node: &Node, connection: IpAddr, peer: IpAddr) -> Option<IpAddr> {
    choose_address(
        node.addresses(),
        super::exchange::unmapped(connection),
        peer,
    )
}

fn choose_address(ours: &[IpAddr], connection: IpAddr, peer: IpAddr) -> Option<IpAddr> {
    let kind = |address: IpAddr| match address {
        IpAddr::V4(_) => 4,
        IpAddr::V6(v6) if super::exchange::is_link_local(v6) => 0,
        IpAddr::V6(_) => 6,
    };
    let fits = |address: &&IpAddr| kind(**address) == kind(peer);
    let same = ours
        .iter()
        .filter(fits)
        .find(|address| **address == connection);
    same.or_else(|| ours.iter().find(fits)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connections_address_is_taken_if_it_is_the_nodes() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let ours = [ip("10.0.0.1"), ip("10.0.0.2"), ip("fe80::1"), ip("fd00::1")];
        let choose = |connection, peer| choose_address(&ours, ip(connection), ip(peer));
        assert_eq!(choose("10.0.0.2", "10.0.0.9"), Some(ip("10.0.0.2")));
        // Over a management network, or of another family.
        assert_eq!(choose("192.168.1.1", "10.0.0.9"), Some(ip("10.0.0.1")));
        assert_eq!(choose("10.0.0.2", "fd00::9"), Some(ip("fd00::1")));
        assert_eq!(choose("10.0.0.2", "fe80::9"), Some(ip("fe80::1")));
        assert_eq!(
            choose_address(&ours[..2], ip("10.0.0.1"), ip("fd00::9")),
            None
        );
    }
}
