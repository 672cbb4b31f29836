//! A file from one host to another by RDMA WRITE.
//!
//! [`send`] asks (`ask`), reads the file and WRITEs it into the region that [`receive`] offers; `source` reads and hashes on
//! a thread of its own, so that reading and the wire overlap; `sink` hashes what arrived once no peer can change it any
//! more. Which message follows which is in [`super::exchange`].

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
    /// Paths of selective repeat; 0: go-back-N, since the peer knows nothing else or one of the two was told so.
    pub selective_paths: u8,
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

/// How copies connect their QPs: with what the peers agreed on, and else the defaults, of which `rnr_retry` never matters to
/// WRITEs.
fn connect_attr(
    local: IpAddr,
    peer: super::exchange::CheckedQp,
    path_mtu: rocexdp_proto::ids::PathMtu,
    access: rocexdp_proto::mem::Access,
) -> ConnectAttr {
    ConnectAttr {
        access,
        selective: peer.selective,
        // Both ends are rocexdp.
        cnp: true,
        ..ConnectAttr::new(local, peer.gid, peer.qpn, peer.psn, path_mtu)
    }
}

/// The address of the copy's connection, if it is one of the node's: the QPs talk by the addresses that TCP talks by.
fn local_address(node: &Node, connection: IpAddr) -> Result<IpAddr, String> {
    let connection = super::exchange::unmapped(connection);
    if node.addresses().contains(&connection) {
        return Ok(connection);
    }
    Err(format!(
        "the connection's address here, {connection}, is none that {} had when rocexdp started on it: a copy's connection \
         must take the way that its packets take",
        node.report().iface
    ))
}
