//! Lines of flows that are not local QPs': both directions tied together where an answer told which QP it came from.
//!
//! The tie is `FlowState::sender_qpn`, which the program learns by matching answers with requests. What nothing ties is a
//! line of its own, one direction known.

use std::{collections::HashMap, sync::Arc};

use rocexdp_common::{
    ids::Gid,
    maps::{FlowKey, FlowState, Kind, QpCounters, Rtt},
};

use super::{
    row::{Direction, End, Row, RowKey},
    value::{NO_PACKET, Reason, Value, gained, rtt_gained, summary},
};

const ONE_DIRECTION: Reason = "one direction seen";
const NOT_OURS: Reason = "not a QP of this host's engine";

type Key = (Gid, Gid, u32);

fn key(key: &FlowKey) -> Key {
    (key.src, key.dst, key.dest_qpn)
}

/// Counters at two moments.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a> {
    /// The earlier; `None` for what is new since.
    pub before: Option<&'a QpCounters>,
    /// The later.
    pub after: &'a QpCounters,
    /// Between them.
    pub seconds: f64,
}

impl Counted<'_> {
    fn gain(&self, pick: impl Fn(&QpCounters) -> u64) -> u64 {
        gained(self.before.map_or(0, &pick), pick(self.after))
    }

    fn rate(&self, pick: impl Fn(&QpCounters) -> u64) -> Value {
        Ok(self.gain(pick) as f64 / self.seconds)
    }
}

fn packets(c: &QpCounters) -> u64 {
    c.kinds.iter().map(|k| k.packets).sum()
}

fn bytes(c: &QpCounters) -> u64 {
    c.kinds.iter().map(|k| k.bytes).sum()
}

fn kind(c: &QpCounters, kind: Kind) -> u64 {
    c.kinds.get(kind as usize).map_or(0, |k| k.packets)
}

/// What XDP or TCX counted of one direction. `answers_before` and `answers` are of the answers that this direction's requests
/// got.
pub fn direction(seen: &Counted<'_>, answers_before: &Rtt, answers: &Rtt) -> Direction {
    let marked = seen.gain(|c| {
        let [.., ce] = c.ecn;
        ce
    });
    let all = seen.gain(|c| c.ecn.iter().sum());
    let mut nak_codes = [0; 5];
    for (i, code) in nak_codes.iter_mut().enumerate() {
        *code = seen.gain(|c| c.naks.get(i).copied().unwrap_or(0));
    }
    Direction {
        packets: seen.rate(packets),
        bits: seen.rate(|c| bytes(c).saturating_mul(8)),
        ce: Ok(marked as f64 / seen.seconds),
        ce_share: if all == 0 {
            Err(NO_PACKET)
        } else {
            Ok(marked as f64 / all as f64)
        },
        cnp: seen.rate(|c| kind(c, Kind::Cnp)),
        gaps: seen.rate(|c| c.requests.gaps + c.responses.gaps),
        missing: seen.rate(|c| c.requests.missing + c.responses.missing),
        resent: seen.rate(|c| c.requests.duplicates + c.responses.duplicates),
        naks: seen.rate(|c| kind(c, Kind::Nak)),
        rnr: seen.rate(|c| kind(c, Kind::RnrNak)),
        rtt: summary(&rtt_gained(answers_before, answers)),
        nak_codes,
        total_packets: packets(seen.after),
        total_bytes: bytes(seen.after),
    }
}

/// One line for each pair of flows, or flow without a partner.
pub fn rows(
    iface: &Arc<str>,
    before: &[(FlowKey, FlowState)],
    after: &[(FlowKey, FlowState)],
    seconds: f64,
) -> Vec<Row> {
    let old: HashMap<Key, &FlowState> = before.iter().map(|(k, state)| (key(k), state)).collect();
    let now: HashMap<Key, usize> = after
        .iter()
        .enumerate()
        .map(|(i, (k, _))| (key(k), i))
        .collect();
    let partner = partners(after, &now);
    let mut rows = Vec::with_capacity(after.len());
    for (index, (flow, state)) in after.iter().enumerate() {
        let other = partner.get(index).copied().flatten();
        // A pair is one line: its first flow makes it.
        if other.is_some_and(|other| other < index) {
            continue;
        }
        let other = other.and_then(|other| after.get(other));
        let this = Seen::new((flow, state), &old, seconds);
        let that = other.map(|(flow, state)| Seen::new((flow, state), &old, seconds));
        rows.push(row(iface, &this, that.as_ref()));
    }
    rows
}

/// For each flow, the one that goes the other way between the same QPs. Where several claim one, the one heard of last has it:
/// the others are of connections that are gone.
fn partners(flows: &[(FlowKey, FlowState)], now: &HashMap<Key, usize>) -> Vec<Option<usize>> {
    let mut partner = vec![None; flows.len()];
    let mut claims: Vec<(u64, usize, usize)> = flows
        .iter()
        .enumerate()
        .filter(|(_, (_, state))| state.sender_qpn != 0)
        .filter_map(|(index, (flow, state))| {
            let other = *now.get(&(flow.dst, flow.src, state.sender_qpn))?;
            let (_, theirs) = flows.get(other)?;
            // It must not name another.
            let agrees = theirs.sender_qpn == 0 || theirs.sender_qpn == flow.dest_qpn;
            (agrees && other != index).then_some((state.counters.last_seen_ns, index, other))
        })
        .collect();
    claims.sort_unstable_by(|a, b| b.cmp(a));
    for (_, index, other) in claims {
        let free =
            |i: usize, partner: &[Option<usize>]| partner.get(i).is_some_and(Option::is_none);
        if free(index, &partner) && free(other, &partner) {
            for (i, j) in [(index, other), (other, index)] {
                if let Some(place) = partner.get_mut(i) {
                    *place = Some(j);
                }
            }
        }
    }
    partner
}

/// A flow at two moments.
struct Seen<'a> {
    key: &'a FlowKey,
    before: Option<&'a FlowState>,
    after: &'a FlowState,
    seconds: f64,
}

impl<'a> Seen<'a> {
    fn new(
        (flow, after): (&'a FlowKey, &'a FlowState),
        old: &HashMap<Key, &'a FlowState>,
        seconds: f64,
    ) -> Self {
        let same = |b: &&FlowState| b.counters.first_seen_ns == after.counters.first_seen_ns;
        Self {
            key: flow,
            // Evicted and entered again, its counters began anew.
            before: old.get(&key(flow)).copied().filter(same),
            after,
            seconds,
        }
    }

    fn counted(&self) -> Counted<'_> {
        Counted {
            before: self.before.map(|b| &b.counters),
            after: &self.after.counters,
            seconds: self.seconds,
        }
    }
}

fn row(iface: &Arc<str>, this: &Seen<'_>, that: Option<&Seen<'_>>) -> Row {
    let source = End {
        gid: this.key.src,
        qpn: that
            .map(|that| that.key.dest_qpn)
            .or((this.after.sender_qpn != 0).then_some(this.after.sender_qpn)),
    };
    let target = End {
        gid: this.key.dst,
        qpn: Some(this.key.dest_qpn),
    };
    let rtt = |seen: &Seen<'_>| (seen.before.map_or(Rtt::ZERO, |b| b.rtt), seen.after.rtt);
    let (forth, back) = match that {
        Some(that) => {
            let (answers_before, answers) = rtt(that);
            let (own_before, own) = rtt(this);
            (
                direction(&this.counted(), &answers_before, &answers),
                direction(&that.counted(), &own_before, &own),
            )
        }
        None => {
            // What was answered by a flow that is gone, or tied to no other, can still have been timed.
            let (own_before, own) = rtt(this);
            let mut forth = direction(&this.counted(), &Rtt::ZERO, &Rtt::ZERO);
            forth.rtt = Err(ONE_DIRECTION);
            let mut back = Direction::unknown(ONE_DIRECTION);
            if own.count() > 0 {
                back.rtt = summary(&rtt_gained(&own_before, &own));
            }
            (forth, back)
        }
    };
    let path_mtu = this
        .after
        .path_mtu
        .max(that.map_or(0, |that| that.after.path_mtu));
    let last_seen_ns = this
        .after
        .counters
        .last_seen_ns
        .max(that.map_or(0, |that| that.after.counters.last_seen_ns));
    // The lower address first, so that the key does not depend on who is heard of first.
    let (a, b, forth, back) = if source <= target {
        (source, target, forth, back)
    } else {
        (target, source, back, forth)
    };
    Row {
        key: RowKey {
            iface: Arc::clone(iface),
            local: false,
            a,
            b,
        },
        forth,
        back,
        state: None,
        dcqcn: Err(NOT_OURS),
        outstanding: None,
        path_mtu,
        last_seen_ns,
    }
}
