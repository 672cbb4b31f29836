//! What is counted per QP: the table of metrics, and where each value comes from.
//!
//! Of a local QP the engine's numbers, where it has them: they are of packets whose ICRC was right. Of a flow that passes, XDP's or
//! TCX's, which are counted before anyone checks the ICRC. What can't be known of a flow has no series.

use rocexdp_common::{
    ids::Gid,
    maps::{FlowKey, FlowState, KINDS, Kind, QpCounters, QpEngine},
};

use super::books::Values;
use crate::maps::QpView;

/// One metric of a QP.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name without `rocexdp_` or `rocexdp_qp_`, and without `_total`; mlx5's or rdma's where there is one.
    pub name: &'static str,
    /// For people.
    pub help: &'static str,
    /// What XDP counts.
    xdp: Option<fn(&QpCounters) -> u64>,
    /// What the engine counts; goes before.
    engine: Option<fn(&QpEngine) -> u64>,
}

const fn xdp(name: &'static str, help: &'static str, pick: fn(&QpCounters) -> u64) -> Metric {
    Metric {
        name,
        help,
        xdp: Some(pick),
        engine: None,
    }
}

const fn engine(name: &'static str, help: &'static str, pick: fn(&QpEngine) -> u64) -> Metric {
    Metric {
        name,
        help,
        xdp: None,
        engine: Some(pick),
    }
}

const fn both(
    name: &'static str,
    help: &'static str,
    seen: fn(&QpCounters) -> u64,
    done: fn(&QpEngine) -> u64,
) -> Metric {
    Metric {
        name,
        help,
        xdp: Some(seen),
        engine: Some(done),
    }
}

/// All metrics.
pub const METRICS: [Metric; 30] = [
    xdp(
        "rx_packets",
        "RoCEv2 packets to the QP, before the ICRC check",
        |c| c.kinds.iter().map(|k| k.packets).sum(),
    ),
    xdp(
        "rx_bytes",
        "Bytes of these packets, Ethernet header included",
        |c| c.kinds.iter().map(|k| k.bytes).sum(),
    ),
    xdp(
        "rx_ecn_seen_packets",
        "Packets whose ECN field was counted: all but CNPs",
        |c| c.ecn.iter().sum(),
    ),
    xdp(
        "np_ecn_marked_roce_packets",
        "Packets that came marked CE",
        |c| {
            let [.., ce] = c.ecn;
            ce
        },
    ),
    xdp("rx_cnp_packets", "CNPs to the QP with a right ICRC", |c| {
        kind(c, Kind::Cnp)
    }),
    xdp("cnp_bad_icrc_packets", "CNPs with a wrong ICRC", |c| {
        c.cnp_bad_icrc
    }),
    xdp(
        "rx_nak_packets",
        "NAKs to the QP, RNR NAKs not among them",
        |c| kind(c, Kind::Nak),
    ),
    xdp("rx_rnr_nak_packets", "RNR NAKs to the QP", |c| {
        kind(c, Kind::RnrNak)
    }),
    xdp(
        "packet_seq_err",
        "NAKs for a sequence error to the QP",
        |c| {
            let [sequence, ..] = c.naks;
            sequence
        },
    ),
    xdp(
        "psn_gaps",
        "Times that the PSNs of requests or READ responses jumped ahead",
        |c| c.requests.gaps + c.responses.gaps,
    ),
    xdp(
        "psn_missing_packets",
        "PSNs jumped over at these gaps",
        |c| c.requests.missing + c.responses.missing,
    ),
    both(
        "out_of_sequence",
        "Requests ahead of sequence; of local QPs after the ICRC check, of flows also READ responses",
        |c| c.requests.out_of_sequence + c.responses.out_of_sequence,
        |e| e.out_of_sequence,
    ),
    both(
        "duplicate_request",
        "Requests that came again; of local QPs after the ICRC check, of flows also READ responses",
        |c| c.requests.duplicates + c.responses.duplicates,
        |e| e.duplicate_request,
    ),
    engine(
        "rx_icrc_encapsulated",
        "Packets to the QP with a wrong ICRC",
        |e| e.icrc_errors,
    ),
    engine(
        "rx_accepted_packets",
        "Packets that passed all checks of the transport",
        |e| e.rx_accepted,
    ),
    engine(
        "rx_dropped_packets",
        "Packets of the QP that the transport dropped",
        |e| e.rx_dropped,
    ),
    engine(
        "tx_packets",
        "Packets sent, those sent again included, acknowledgements not",
        |e| e.tx_packets,
    ),
    engine("tx_payload_bytes", "Payload bytes of these packets", |e| {
        e.tx_bytes
    }),
    engine("retransmitted_packets", "Packets sent again", |e| {
        e.retransmitted_packets
    }),
    engine(
        "retransmitted_payload_bytes",
        "Payload bytes sent again",
        |e| e.retransmitted_bytes,
    ),
    engine("tx_ack_packets", "ACKs sent", |e| e.tx_acks),
    engine("tx_nak_packets", "NAKs for a sequence error sent", |e| {
        e.tx_naks
    }),
    engine("tx_rnr_nak_packets", "RNR NAKs sent", |e| e.tx_rnr_naks),
    engine(
        "local_ack_timeout_err",
        "Timeouts that made it send again",
        |e| e.local_ack_timeout_err,
    ),
    engine("np_cnp_sent", "CNPs sent", |e| e.np_cnp_sent),
    engine("rp_cnp_handled", "CNPs that DCQCN took", |e| {
        e.rp_cnp_handled
    }),
    engine("dcqcn_rate_cuts", "Times that DCQCN cut the rate", |e| {
        e.rate_cuts
    }),
    engine(
        "dcqcn_rate_increases",
        "Times that DCQCN raised the rate",
        |e| e.rate_increases,
    ),
    engine("completions", "Work requests completed", |e| e.completions),
    engine(
        "completion_errors",
        "Work requests completed with an error",
        |e| e.completions_err,
    ),
];

/// Number of [`NAK_NAMES`].
pub const NAKS: usize = 5;
/// Names of NAK codes, in the order of `QpCounters::naks`.
pub const NAK_NAMES: [&str; NAKS] = [
    "sequence_error",
    "invalid_request",
    "remote_access",
    "remote_operational",
    "other",
];
/// Numbers kept of a QP.
pub const COUNTS: usize = METRICS.len() + KINDS + NAKS;

/// Whether a QP is this host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// A QP of our engine.
    Local,
    /// A flow that passes, towards a QP that is not ours.
    Flow,
}

impl Place {
    /// Its label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Flow => "flow",
        }
    }
}

/// What tells a QP from every other, ever: a slot or a flow used again is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpKey {
    /// Who sends to it.
    pub src: Gid,
    /// Its own address.
    pub dst: Gid,
    /// Its number.
    pub qpn: u32,
    /// Generation of a local QP, time of a flow's first packet.
    pub born: u64,
}

impl QpKey {
    /// Of a local QP.
    #[must_use]
    pub fn local(qp: &QpView) -> Self {
        Self {
            src: qp.config.peer_gid,
            dst: qp.config.local_gid,
            qpn: qp.config.qpn,
            born: u64::from(qp.config.generation),
        }
    }

    /// Of a flow.
    #[must_use]
    pub fn flow(key: &FlowKey, state: &FlowState) -> Self {
        Self {
            src: key.src,
            dst: key.dst,
            qpn: key.dest_qpn,
            born: state.counters.first_seen_ns,
        }
    }

    /// The addresses as text.
    #[must_use]
    pub fn addresses(&self) -> [String; 2] {
        [self.src, self.dst].map(|gid| crate::view::text::address_of(&gid).to_string())
    }
}

/// Whether a metric can be known of QPs of this kind.
#[must_use]
pub const fn known(metric: &Metric, place: Place) -> bool {
    match place {
        Place::Local => true,
        Place::Flow => metric.xdp.is_some(),
    }
}

/// What a local QP has counted.
#[must_use]
pub fn of_local(qp: &QpView) -> Values {
    let mut values = of(&qp.counters, Some(&qp.engine));
    values.rtt = qp.engine.rtt;
    values.traffic += qp.engine.tx_packets;
    values
}

/// What was counted of a flow.
#[must_use]
pub fn of_flow(state: &FlowState) -> Values {
    let mut values = of(&state.counters, None);
    values.rtt = state.rtt;
    values
}

fn of(counters: &QpCounters, engine: Option<&QpEngine>) -> Values {
    let mut values = Values::ZERO;
    let metrics = METRICS.iter().map(|metric| match (engine, metric.engine) {
        (Some(engine), Some(pick)) => pick(engine),
        _ => metric.xdp.map_or(0, |pick| pick(counters)),
    });
    let rest = counters
        .kinds
        .iter()
        .map(|k| k.packets)
        .chain(counters.naks);
    for (place, value) in values.counts.iter_mut().zip(metrics.chain(rest)) {
        *place = value;
    }
    values.traffic = counters.kinds.iter().map(|k| k.packets).sum();
    values
}

fn kind(counters: &QpCounters, kind: Kind) -> u64 {
    counters.kinds.get(kind as usize).map_or(0, |k| k.packets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_qp_has_the_engines_numbers_and_a_flow_those_that_were_seen() {
        let mut counters = QpCounters::default();
        counters.requests.out_of_sequence = 7;
        counters.kinds[Kind::Cnp as usize].packets = 3;
        counters.naks = [1, 2, 3, 4, 5];
        let engine = QpEngine {
            out_of_sequence: 5,
            tx_packets: 9,
            ..QpEngine::default()
        };
        let at = |values: &Values, name: &str| {
            let index = METRICS.iter().position(|m| m.name == name).unwrap();
            values.counts[index]
        };
        let flow = of(&counters, None);
        let local = of(&counters, Some(&engine));
        assert_eq!(
            (at(&flow, "out_of_sequence"), at(&local, "out_of_sequence")),
            (7, 5)
        );
        assert_eq!(
            (at(&flow, "rx_cnp_packets"), at(&flow, "packet_seq_err")),
            (3, 1)
        );
        assert_eq!((at(&flow, "tx_packets"), at(&local, "tx_packets")), (0, 9));
        assert_eq!(flow.counts[METRICS.len() + Kind::Cnp as usize], 3);
        assert_eq!(flow.counts[COUNTS - NAKS..], [1, 2, 3, 4, 5]);
        let unknown: Vec<&str> = METRICS
            .iter()
            .filter(|m| !known(m, Place::Flow))
            .map(|m| m.name)
            .collect();
        assert!(unknown.contains(&"tx_packets") && !unknown.contains(&"out_of_sequence"));
    }

    #[test]
    fn names_differ() {
        for (i, a) in METRICS.iter().enumerate() {
            assert!(
                METRICS.iter().skip(i + 1).all(|b| a.name != b.name),
                "{}",
                a.name
            );
        }
    }
}
