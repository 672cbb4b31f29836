//! Local QPs and passing flows as JSON.

use std::{collections::BTreeMap, net::IpAddr};

use rocexdp_common::maps::{
    Count, FlowKey, FlowState, KIND_NAMES, QpConfig, QpCounters, QpEngine, Tracker,
};
use serde::Serialize;

use super::{super::text, Rtt};
use crate::maps::QpView;

/// `rocexdp qp list --json`.
#[derive(Clone, Debug, Serialize)]
pub struct QpList {
    /// [`super::VERSION`].
    pub version: u32,
    /// The interface asked for.
    pub iface: String,
    /// The kernel's id of the program.
    pub program_id: u32,
    /// When the maps were read.
    pub time_ns: u64,
    /// Receive queues.
    pub queues: u32,
    /// Places for QPs.
    pub slots: u32,
    /// Local QPs, in order of their slots.
    pub qps: Vec<Qp>,
    /// RoCEv2 flows that are not local QPs', if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<Vec<Flow>>,
}

/// A local QP.
#[derive(Clone, Debug, Serialize)]
pub struct Qp {
    /// Place in the maps.
    pub slot: u32,
    /// QP number.
    pub qpn: u32,
    /// The peer's QP number; null for UD, which has no peer.
    pub peer_qpn: Option<u32>,
    /// Our address; null for QP 1 and the multicast QPN, which have all of ours, and all groups joined.
    pub local_gid: Option<IpAddr>,
    /// The peer's address; null for UD.
    pub peer_gid: Option<IpAddr>,
    /// Socket owner.
    pub owner: u32,
    /// `RC`, `UC` or `UD`.
    pub transport: &'static str,
    /// Bytes.
    pub path_mtu: u32,
    /// Paths of selective repeat; 0: go-back-N, or a transport without acknowledgements.
    pub selective_paths: u8,
    /// Changes with each publication.
    pub generation: u32,
    /// What the engine did.
    pub engine: Engine,
    /// What XDP counted, summed over the queues.
    pub xdp: Xdp,
    /// The same by queue.
    pub per_queue: Vec<Xdp>,
}

macro_rules! engine {
    ($($field:ident),* $(,)?) => {
        /// What the engine did for a QP: `rocexdp_common::maps::QpEngine`.
        #[derive(Clone, Debug, Serialize)]
        #[allow(missing_docs)]
        pub struct Engine {
            /// Name of the QP's state.
            pub state: &'static str,
            /// Its rate controller.
            pub rate_control: &'static str,
            /// DCQCN's alpha, 0 to 1.
            pub alpha: f64,
            /// DCQCN's rate, bit/s; null: unpaced.
            pub rate: Option<u64>,
            /// DCQCN's target rate, bit/s; null: unpaced.
            pub target_rate: Option<u64>,
            /// Lowest rate so far, bit/s; null: never paced.
            pub min_rate: Option<u64>,
            $(pub $field: u64,)*
            /// From a request's first transmission to what acknowledged it.
            pub rtt: Rtt,
        }

        impl From<&QpEngine> for Engine {
            fn from(engine: &QpEngine) -> Self {
                Self {
                    state: text::state(engine.state),
                    rate_control: text::rate_control(engine.rate_control),
                    alpha: f64::from(engine.alpha) / 1023.0,
                    rate: some(engine.rate),
                    target_rate: some(engine.target_rate),
                    min_rate: some(engine.min_rate),
                    $($field: u64::from(engine.$field),)*
                    rtt: (&engine.rtt).into(),
                }
            }
        }
    };
}

engine!(
    send_psn,
    unacked_psn,
    expected_psn,
    msn,
    dscp,
    pcp,
    priority,
    window,
    tx_packets,
    tx_bytes,
    retransmitted_packets,
    retransmitted_bytes,
    tx_acks,
    tx_naks,
    tx_rnr_naks,
    local_ack_timeout_err,
    packet_seq_err,
    implied_nak_seq_err,
    rnr_naks_received,
    duplicate_request,
    out_of_sequence,
    icrc_errors,
    np_cnp_sent,
    rp_cnp_handled,
    rate_cuts,
    rate_increases,
    rx_bytes,
    rx_accepted,
    rx_dropped,
    rx_looped,
    rx_mcast,
    completions,
    completions_err,
    outstanding,
);

/// What XDP counted of a QP or a flow: `rocexdp_common::maps::QpCounters`.
#[derive(Clone, Debug, Serialize)]
pub struct Xdp {
    /// Packets and bytes by kind.
    pub kinds: BTreeMap<&'static str, Amount>,
    /// Packets by ECN codepoint.
    pub ecn: Ecn,
    /// The same number as `ecn.ce`, by the name that mlx5 gives it.
    pub np_ecn_marked_roce_packets: u64,
    /// The peer's requests.
    pub requests: Stream,
    /// The READ responses to our requests.
    pub responses: Stream,
    /// NAKs by code.
    pub naks: Naks,
    /// CNPs whose ICRC was wrong.
    pub cnp_bad_icrc: u64,
    /// Packets given to the socket.
    pub redirected: u64,
    /// Packets that found no socket.
    pub no_socket: u64,
    /// First packet.
    pub first_seen_ns: Option<u64>,
    /// Last packet.
    pub last_seen_ns: Option<u64>,
    /// Last CE-marked packet.
    pub last_ce_ns: Option<u64>,
    /// Last CNP.
    pub last_cnp_ns: Option<u64>,
    /// PSN of the last ACK or NAK; null before one came.
    pub last_ack_psn: Option<u32>,
    /// MSN of the last ACK or NAK; null before one came.
    pub last_ack_msn: Option<u32>,
    /// Whether the request stream is within a gap.
    pub in_gap: bool,
    /// Whether the response stream is within a gap.
    pub response_in_gap: bool,
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Amount {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Packets by ECN codepoint.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ecn {
    /// 0: not ECN-capable.
    pub not_ect: u64,
    /// 1.
    pub ect1: u64,
    /// 2: what RoCEv2 data is sent as.
    pub ect0: u64,
    /// 3: Congestion Experienced.
    pub ce: u64,
}

/// NAKs by code.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Naks {
    /// PSN sequence error.
    pub packet_seq_err: u64,
    /// Invalid request.
    pub invalid_request: u64,
    /// Remote access error.
    pub remote_access: u64,
    /// Remote operational error.
    pub remote_operational: u64,
    /// Any other.
    pub other: u64,
}

/// A PSN stream.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Stream {
    /// PSN expected next; null before the first packet.
    pub expected_psn: Option<u32>,
    /// Packets ahead of it.
    pub out_of_sequence: u64,
    /// Gaps.
    pub gaps: u64,
    /// PSNs jumped over at the gaps.
    pub missing: u64,
    /// Packets behind the expected PSN.
    pub duplicates: u64,
}

/// A flow that is not a local QP's.
#[derive(Clone, Debug, Serialize)]
pub struct Flow {
    /// Source.
    pub source: IpAddr,
    /// Destination.
    pub destination: IpAddr,
    /// Destination QP number.
    pub dest_qpn: u32,
    /// QP number of the sender, learned from which answers follow which requests; null: not known.
    pub sender_qpn: Option<u32>,
    /// Inferred path MTU, bytes; null: not known yet.
    pub path_mtu: Option<u32>,
    /// Round trips of the opposite flow's requests, which this flow answers, as they passed here; `samples` is 0 where
    /// one direction only is seen, and on an endpoint, whose program times no flows of others.
    pub rtt: Rtt,
    /// What XDP counted.
    pub xdp: Xdp,
}

fn some(number: u64) -> Option<u64> {
    (number != 0).then_some(number)
}

impl From<&Tracker> for Stream {
    fn from(t: &Tracker) -> Self {
        Self {
            expected_psn: (t.valid != 0).then_some(t.expected_psn),
            out_of_sequence: t.out_of_sequence,
            gaps: t.gaps,
            missing: t.missing,
            duplicates: t.duplicates,
        }
    }
}

impl From<&QpCounters> for Xdp {
    fn from(c: &QpCounters) -> Self {
        let [not_ect, ect1, ect0, ce] = c.ecn;
        let [
            packet_seq_err,
            invalid_request,
            remote_access,
            remote_operational,
            other,
        ] = c.naks;
        let amount = |count: &Count| Amount {
            packets: count.packets,
            bytes: count.bytes,
        };
        let kinds: BTreeMap<_, _> = KIND_NAMES
            .into_iter()
            .zip(c.kinds.iter().map(amount))
            .collect();
        let answered = ["ack", "nak", "rnr_nak"]
            .iter()
            .filter_map(|name| kinds.get(name))
            .any(|a| a.packets > 0);
        Self {
            kinds,
            ecn: Ecn {
                not_ect,
                ect1,
                ect0,
                ce,
            },
            np_ecn_marked_roce_packets: ce,
            requests: (&c.requests).into(),
            responses: (&c.responses).into(),
            naks: Naks {
                packet_seq_err,
                invalid_request,
                remote_access,
                remote_operational,
                other,
            },
            cnp_bad_icrc: c.cnp_bad_icrc,
            redirected: c.redirected,
            no_socket: c.no_socket,
            first_seen_ns: some(c.first_seen_ns),
            last_seen_ns: some(c.last_seen_ns),
            last_ce_ns: some(c.last_ce_ns),
            last_cnp_ns: some(c.last_cnp_ns),
            last_ack_psn: answered.then_some(c.last_ack_psn),
            last_ack_msn: answered.then_some(c.last_ack_msn),
            in_gap: c.in_gap != 0,
            response_in_gap: c.response_in_gap != 0,
        }
    }
}

impl From<&QpView> for Qp {
    fn from(view: &QpView) -> Self {
        let QpConfig {
            generation,
            qpn,
            owner,
            local_gid,
            address_flags,
            transport,
            path_mtu_log2,
            selective_paths,
            ..
        } = view.config;
        Self {
            slot: view.slot,
            qpn,
            peer_qpn: view.peer().map(|(_, qpn)| qpn),
            local_gid: (address_flags == 0).then(|| text::address_of(&local_gid)),
            peer_gid: view.peer().map(|(gid, _)| text::address_of(&gid)),
            owner,
            transport: text::transport(transport),
            path_mtu: 1_u32.checked_shl(u32::from(path_mtu_log2)).unwrap_or(0),
            selective_paths,
            generation,
            engine: (&view.engine).into(),
            xdp: (&view.counters).into(),
            per_queue: view.per_queue.iter().map(Xdp::from).collect(),
        }
    }
}

impl From<&(FlowKey, FlowState)> for Flow {
    fn from((key, state): &(FlowKey, FlowState)) -> Self {
        Self {
            source: text::address_of(&key.src),
            destination: text::address_of(&key.dst),
            dest_qpn: key.dest_qpn,
            sender_qpn: (state.sender_qpn != 0).then_some(state.sender_qpn),
            rtt: (&state.rtt).into(),
            path_mtu: (state.path_mtu != 0).then_some(state.path_mtu),
            xdp: (&state.counters).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(value: &serde_json::Value) -> Vec<&str> {
        value
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect()
    }

    #[test]
    fn every_counter_of_a_qp_is_in_the_json() {
        let mut counters = QpCounters {
            ecn: [1, 2, 3, 4],
            naks: [5, 6, 7, 8, 9],
            ..QpCounters::default()
        };
        for (i, kind) in counters.kinds.iter_mut().enumerate() {
            *kind = Count {
                packets: i as u64 + 10,
                bytes: i as u64 + 100,
            };
        }
        counters.requests = Tracker {
            expected_psn: 42,
            valid: 1,
            out_of_sequence: 1,
            gaps: 2,
            missing: 3,
            duplicates: 4,
        };
        let view = QpView {
            slot: 1,
            config: QpConfig {
                generation: 1,
                qpn: 0x80_0001,
                path_mtu_log2: 12,
                ..QpConfig::default()
            },
            engine: QpEngine {
                state: 3,
                retransmitted_packets: 77,
                alpha: 1023,
                rate: 5,
                ..QpEngine::default()
            },
            counters,
            per_queue: vec![counters],
        };
        let json = serde_json::to_value(Qp::from(&view)).unwrap();
        assert_eq!(json["path_mtu"], 4096);
        assert_eq!(json["transport"], "RC");
        assert_eq!(json["engine"]["state"], "RTS");
        assert_eq!(json["engine"]["retransmitted_packets"], 77);
        assert_eq!(json["engine"]["alpha"], 1.0);
        assert_eq!(json["engine"]["rate"], 5);
        assert!(json["engine"]["min_rate"].is_null());
        assert_eq!(json["xdp"]["np_ecn_marked_roce_packets"], 4);
        assert_eq!(json["xdp"]["ecn"]["ect0"], 3);
        assert_eq!(json["xdp"]["naks"]["remote_operational"], 8);
        assert_eq!(json["xdp"]["requests"]["duplicates"], 4);
        assert!(json["xdp"]["responses"]["expected_psn"].is_null());
        assert_eq!(json["per_queue"][0]["requests"]["expected_psn"], 42);
        assert_eq!(keys(&json["xdp"]["kinds"]).len(), KIND_NAMES.len());
        assert_eq!(json["xdp"]["kinds"]["cnp"]["packets"], 19);
    }
}
