//! The report: what `rocexdp pcap --json` prints, versioned; field by field in `docs/pcap-json.md`.
//!
//! Plain data. A value that can't be known is `null`, with the reason in [`Flow::notes`].

mod build;

use std::{collections::BTreeMap, net::IpAddr};

use serde::Serialize;

use crate::findings::{Kind, Severity};
pub use crate::flow::half::{Naks, Operations, TiedBy, Volume};

/// Version of the JSON: raised when a field changes its meaning or goes; new fields don't raise it.
pub const VERSION: u32 = 1;

/// A capture file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct File {
    /// Its name, as given.
    pub name: String,
    /// The number that its frame 1 has in this report.
    pub first_frame: u64,
    /// Frames in it.
    pub frames: u64,
}

/// Packets sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Retransmissions {
    /// Packets.
    pub packets: u64,
    /// Bytes of their payload.
    pub bytes: u64,
    /// Seconds since the capture's first packet, of the first one.
    pub first_s: Option<f64>,
    /// And of the last one.
    pub last_s: Option<f64>,
}

/// Time from a request to the answer that names it, at the capture point; of requests that were sent once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AckDelay {
    /// Requests measured.
    pub samples: u64,
    /// Half of them took no longer, in nanoseconds (at most one eighth too high).
    pub p50_ns: u64,
    /// 99 % took no longer.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// What is counted, of a direction or of both.
#[derive(Clone, Debug, Serialize)]
pub struct Metrics {
    /// Packets; frames captured twice and packets with a wrong ICRC not among them.
    pub packets: u64,
    /// Bytes of their frames on the wire.
    pub bytes: u64,
    /// Seconds since the capture's first packet, of the first one.
    pub first_s: f64,
    /// And of the last one.
    pub last_s: f64,
    /// All messages.
    pub messages: u64,
    /// Payload bytes of all messages.
    pub message_bytes: u64,
    /// Messages and bytes per operation.
    pub operations: Operations,
    /// Times that the PSNs jumped, as captured; `null` where PSNs tell nothing (UD, RD).
    pub psn_gaps: Option<u64>,
    /// PSNs that were jumped over.
    pub psns_missing: Option<u64>,
    /// Packets sent again: requests, and READ responses.
    pub retransmissions: Retransmissions,
    /// Frames captured twice.
    pub duplicates: u64,
    /// Packets that came late, out of order.
    pub reordered: u64,
    /// NAKs, counted where they went.
    pub naks: Naks,
    /// RNR NAKs, counted where they went.
    pub rnrs: u64,
    /// Retransmission timeouts, inferred: sent again, after a silence, with no NAK before.
    pub timeouts: u64,
    /// Packets with a CE mark.
    pub ce_marked: u64,
    /// Their share, 0 to 1.
    pub ce_share: f64,
    /// Congestion notification packets, counted where they went.
    pub cnp: u64,
    /// Of them per second between the first packet and the last; `null` without a duration.
    pub cnp_rate: Option<f64>,
    /// `null`: no request and its answer were captured.
    pub ack_delay: Option<AckDelay>,
    /// Packets with a wrong ICRC.
    pub icrc_errors: u64,
    /// Packets whose ICRC is unknown: captured in part, or not checked.
    pub icrc_unknown: u64,
}

/// An end of a QP pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// Address.
    pub address: IpAddr,
    /// QP number; `null`: no packet to it was captured or tied.
    pub qpn: Option<u32>,
}

/// A direction.
#[derive(Clone, Debug, Serialize)]
pub struct Direction {
    /// Source.
    pub from: Endpoint,
    /// Destination.
    pub to: Endpoint,
    /// Its counts.
    #[serde(flatten)]
    pub metrics: Metrics,
}

/// What the communication manager connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Connection {
    /// Communication IDs of the active and the passive side.
    pub comm_ids: [u32; 2],
    /// Service asked for.
    pub service_id: u64,
    /// Port, of RDMA CM's services.
    pub port: Option<u16>,
}

/// A QP pair.
#[derive(Clone, Debug, Serialize)]
pub struct Flow {
    /// `RC`, `UC`, `UD`, `RD`, `XRC`.
    pub transport: &'static str,
    /// How its directions were tied.
    pub tied_by: TiedBy,
    /// Its ends; the first is the source of its first packet.
    pub endpoints: [Endpoint; 2],
    /// Only one of its directions has packets.
    pub one_direction: bool,
    /// Path MTU in bytes, from the communication manager or the largest packet that others followed.
    pub path_mtu: Option<u32>,
    /// The connection, where its making was captured.
    pub connection: Option<Connection>,
    /// Times its PSNs began anew, at connections that were not captured.
    pub restarts: u64,
    /// Both directions together.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Each.
    pub directions: Vec<Direction>,
    /// Why something is not known.
    pub notes: Vec<&'static str>,
}

/// A finding.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// How bad.
    pub severity: Severity,
    /// Destination QP of the direction that it is about; `null`: the capture.
    pub qpn: Option<u32>,
    /// Index into [`Report::flows`]; `null`: the capture.
    pub flow: Option<usize>,
    /// Seconds since the capture's first packet.
    pub time_s: f64,
    /// Frames that show it, at most 64.
    pub frames: Vec<u64>,
    /// In words.
    pub text: String,
}

/// The report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// What was read, in order.
    pub files: Vec<File>,
    /// All of it was read: none is cut or damaged, and no signal ended it.
    pub complete: bool,
    /// What else there is to say of the reading.
    pub warnings: Vec<String>,
    /// Time of the first frame, in nanoseconds since 1970.
    pub start_ns: Option<i64>,
    /// Seconds from the first frame to the last.
    pub duration_s: f64,
    /// Frames of any kind.
    pub packets: u64,
    /// RoCEv2 packets.
    pub rocev2_packets: u64,
    /// RoCEv1 packets.
    pub rocev1_packets: u64,
    /// RoCE packets that the filters leave out.
    pub left_out: u64,
    /// RoCE packets that came in a tunnel or by a switch's mirror.
    pub tunnelled: u64,
    /// Malformed frames, by reason in `malformed_reasons`.
    pub malformed: u64,
    /// Their reasons.
    pub malformed_reasons: BTreeMap<&'static str, u64>,
    /// Frames that may be RoCE and were not followed.
    pub unfollowed: u64,
    /// Their reasons.
    pub unfollowed_reasons: BTreeMap<&'static str, u64>,
    /// Frames captured in part.
    pub truncated: u64,
    /// Packets with a wrong ICRC.
    pub icrc_errors: u64,
    /// Packets whose ICRC is unknown.
    pub icrc_unknown: u64,
    /// Packets by opcode, named as Wireshark does.
    pub opcodes: BTreeMap<String, u64>,
    /// Messages of the communication manager on QP 1, by name.
    pub cm_messages: BTreeMap<&'static str, u64>,
    /// Congestion notification packets.
    pub cnp: u64,
    /// Packets with a CE mark.
    pub ce_marked: u64,
    /// Priority flow control frames.
    pub pfc_frames: u64,
    /// Pause frames of the whole port.
    pub pause_frames: u64,
    /// LLDP frames.
    pub lldp_frames: u64,
    /// QP pairs, by their first packet.
    pub flows: Vec<Flow>,
    /// Findings, most serious first.
    pub findings: Vec<Finding>,
}
