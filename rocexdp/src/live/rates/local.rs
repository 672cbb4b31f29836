//! Lines of local QPs: what the engine did one way, what XDP saw the other.

use std::sync::Arc;

use rocexdp_common::maps::{QpEngine, Rtt};

use super::{
    flow::{self, Counted},
    row::{Direction, End, Row, RowKey},
    value::{Reason, gained, rtt_gained, summary},
};
use crate::maps::QpView;

const SENT: Reason = "sent from here: XDP sees ingress only";
const PEERS: Reason = "the peer's requests: only the peer can time them";

/// A local QP. `before`: as it was `seconds` ago, `None` if it is new.
pub fn row(iface: &Arc<str>, before: Option<&QpView>, after: &QpView, seconds: f64) -> Row {
    let (config, engine) = (&after.config, &after.engine);
    let old = before.map_or_else(QpEngine::default, |qp| qp.engine);
    let rate =
        |pick: &dyn Fn(&QpEngine) -> u64| Ok(gained(pick(&old), pick(engine)) as f64 / seconds);
    let sent = |e: &QpEngine| e.tx_packets + e.tx_acks + e.tx_naks + e.tx_rnr_naks + e.np_cnp_sent;
    let forth = Direction {
        packets: rate(&sent),
        bits: rate(&|e| e.tx_bytes.saturating_mul(8)),
        ce: Err(SENT),
        ce_share: Err(SENT),
        cnp: rate(&|e| e.np_cnp_sent),
        gaps: Err(SENT),
        missing: Err(SENT),
        resent: rate(&|e| e.retransmitted_packets),
        naks: rate(&|e| e.tx_naks),
        rnr: rate(&|e| e.tx_rnr_naks),
        rtt: summary(&rtt_gained(&old.rtt, &engine.rtt)),
        // The engine sends no others but by name in its own counters.
        nak_codes: [gained(old.tx_naks, engine.tx_naks), 0, 0, 0, 0],
        total_packets: sent(engine),
        total_bytes: engine.tx_bytes,
    };
    let seen = Counted {
        before: before.map(|qp| &qp.counters),
        after: &after.counters,
        seconds,
    };
    let back = Direction {
        rtt: Err(PEERS),
        ..flow::direction(&seen, &Rtt::ZERO, &Rtt::ZERO)
    };
    Row {
        key: RowKey {
            iface: Arc::clone(iface),
            local: true,
            a: End {
                gid: config.local_gid,
                qpn: Some(config.qpn),
            },
            b: End {
                gid: config.peer_gid,
                qpn: after.peer().map(|(_, qpn)| qpn),
            },
        },
        forth,
        back,
        state: Some(engine.state),
        dcqcn: match engine.rate {
            0 => Err("unpaced"),
            rate => Ok(rate as f64),
        },
        outstanding: Some(engine.outstanding),
        path_mtu: 1_u32
            .checked_shl(u32::from(config.path_mtu_log2))
            .unwrap_or(0),
        last_seen_ns: after.counters.last_seen_ns,
    }
}
