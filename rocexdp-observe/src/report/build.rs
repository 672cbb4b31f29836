//! From the table of directions to the report.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
};

use rocexdp_common::{
    ids::Gid,
    opcode::Transport,
    reason::{REASON_ALL, REASON_NAMES},
};

use super::{
    AckDelay, Connection, Direction, Endpoint, File, Finding, Flow, Metrics, Report,
    Retransmissions, VERSION,
};
use crate::{
    analyse::{self, Options, Totals, opcode_name},
    findings::{self, Place, words::Qp},
    flow::{Half, Operations, TiedBy, delays::Delays, half::Naks, requests::Again},
};

impl Report {
    pub(crate) fn build(
        options: &Options,
        halves: &[Half],
        totals: &Totals,
        files: &[analyse::File],
        findings: &[findings::Finding],
    ) -> Self {
        let clock = Clock(totals.times.map_or(0, |(first, _)| first));
        let (flows, of_half) = flows(options, halves, clock);
        let chosen = |id: usize| of_half.get(id).copied().flatten().is_some();
        let mut opcodes = BTreeMap::new();
        let mut sums = Sums::default();
        let mut left_out = totals.filtered;
        for (id, half) in halves.iter().enumerate() {
            if !chosen(id) {
                left_out += half.opcodes.iter().map(|(_, n)| n).sum::<u64>();
                continue;
            }
            for (opcode, n) in &half.opcodes {
                *opcodes.entry(opcode_name(*opcode)).or_default() += n;
                sums.packets += n;
            }
            sums.v1 += half.v1;
            sums.cnp += half.cnp.count;
            sums.ce += half.ce.count;
            sums.wrong += half.icrc_wrong.count;
            sums.unknown += half.icrc_unknown;
        }
        let (mut malformed, mut unfollowed) = (BTreeMap::new(), BTreeMap::new());
        for ((reason, name), events) in REASON_ALL.iter().zip(REASON_NAMES).zip(&totals.reasons) {
            if events.count > 0 {
                let to = if reason.is_unfollowed() {
                    &mut unfollowed
                } else {
                    &mut malformed
                };
                to.insert(*name, events.count);
            }
        }
        let findings = findings
            .iter()
            .filter_map(|found| finding(found, halves, &of_half, clock))
            .collect();
        Self {
            version: VERSION,
            files: files
                .iter()
                .map(|file| File {
                    name: file.name.clone(),
                    first_frame: file.first_frame,
                    frames: file.frames,
                })
                .collect(),
            complete: true,
            warnings: warnings(totals),
            start_ns: totals.times.map(|(first, _)| first),
            duration_s: totals.times.map_or(0.0, |(_, last)| clock.at(last)),
            packets: totals.frames,
            rocev2_packets: sums.packets.saturating_sub(sums.v1),
            rocev1_packets: sums.v1,
            left_out,
            tunnelled: totals.tunnelled,
            malformed: malformed.values().sum(),
            malformed_reasons: malformed,
            unfollowed: unfollowed.values().sum(),
            unfollowed_reasons: unfollowed,
            truncated: totals.truncated.count,
            icrc_errors: sums.wrong,
            icrc_unknown: sums.unknown,
            opcodes,
            cm_messages: totals.cm.clone(),
            cnp: sums.cnp,
            ce_marked: sums.ce,
            pfc_frames: totals.pfc.count,
            pause_frames: totals.pause.count,
            lldp_frames: totals.lldp,
            flows,
            findings,
        }
    }
}

#[derive(Default)]
struct Sums {
    packets: u64,
    v1: u64,
    cnp: u64,
    ce: u64,
    wrong: u64,
    unknown: u64,
}

/// The capture's own time.
#[derive(Clone, Copy)]
struct Clock(i64);

impl Clock {
    fn at(self, time: i64) -> f64 {
        time.saturating_sub(self.0) as f64 / 1e9
    }
}

fn warnings(totals: &Totals) -> Vec<String> {
    let mut warnings = Vec::new();
    if totals.backwards > 0 {
        warnings.push(format!(
            "{} frames are older than the frame before them: times between packets are uncertain (sort with reordercap; for two taps of one path use --merge)",
            totals.backwards
        ));
    }
    warnings
}

fn address(gid: &Gid) -> IpAddr {
    let v6 = Ipv6Addr::from(*gid);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// The flows, and for each direction the flow that it belongs to.
fn flows(options: &Options, halves: &[Half], clock: Clock) -> (Vec<Flow>, Vec<Option<usize>>) {
    let mut list = Vec::new();
    let mut of_half = vec![None; halves.len()];
    for (id, half) in halves.iter().enumerate() {
        if of_half.get(id).copied().flatten().is_some() {
            continue;
        }
        let peer_id = half.peer.map(|peer| peer as usize);
        let peer = peer_id.and_then(|peer| halves.get(peer));
        let seen = |half: &Half| !half.opcodes.is_empty();
        if !seen(half) && !peer.is_some_and(seen) {
            continue;
        }
        let qps = [Some(half.dest_qpn), half.src_qpn];
        let wanted =
            options.qps.is_empty() || options.qps.iter().any(|qpn| qps.contains(&Some(*qpn)));
        if !wanted {
            continue;
        }
        for member in [Some(id), peer_id].into_iter().flatten() {
            if let Some(slot) = of_half.get_mut(member) {
                *slot = Some(list.len());
            }
        }
        list.push(flow(half, peer, clock));
    }
    (list, of_half)
}

fn ends(half: &Half) -> (Endpoint, Endpoint) {
    (
        Endpoint {
            address: address(&half.src),
            qpn: half.src_qpn,
        },
        Endpoint {
            address: address(&half.dst),
            qpn: Some(half.dest_qpn),
        },
    )
}

const fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Rc => "RC",
        Transport::Uc => "UC",
        Transport::Rd => "RD",
        Transport::Ud => "UD",
        Transport::Xrc => "XRC",
        Transport::Cnp => "CNP",
        Transport::Manufacturer => "manufacturer",
    }
}

fn flow(half: &Half, peer: Option<&Half>, clock: Clock) -> Flow {
    // The first packet's direction first: the communication manager makes both at once.
    let begins = |h: &Half| if h.packets > 0 { h.times.0 } else { i64::MAX };
    let (first, second) = match peer {
        Some(peer) if begins(peer) < begins(half) => (peer, Some(half)),
        _ => (half, peer),
    };
    let members: Vec<&Half> = [Some(first), second].into_iter().flatten().collect();
    let with_packets = members.iter().filter(|half| half.packets > 0).count();
    let transport = members
        .iter()
        .map(|half| half.transport)
        .find(|transport| !matches!(transport, Transport::Cnp))
        .unwrap_or(first.transport);
    let path_mtu = members.iter().map(|half| half.requests.path_mtu).max();
    let (from, to) = ends(first);
    Flow {
        transport: transport_name(transport),
        tied_by: first.tied_by,
        endpoints: [from, to],
        one_direction: with_packets < 2,
        path_mtu: path_mtu.filter(|mtu| *mtu > 0),
        connection: first.connection.map(|c| Connection {
            comm_ids: [c.comm_ids.0, c.comm_ids.1],
            service_id: c.service_id,
            port: c.port,
        }),
        restarts: members.iter().map(|half| half.requests.restarts).sum(),
        metrics: metrics(&members, clock),
        directions: members
            .iter()
            .copied()
            .filter(|half| half.packets > 0)
            .map(|half| {
                let (from, to) = ends(half);
                // Responses sent again are counted with the requests that they answer.
                let other = members
                    .iter()
                    .find(|other| !std::ptr::eq::<Half>(**other, half));
                let mut metrics = metrics(&[half], clock);
                metrics.retransmissions = retransmissions(
                    &[
                        Some(half.requests.again),
                        other.map(|other| other.requests.responses_again),
                    ],
                    clock,
                );
                Direction { from, to, metrics }
            })
            .collect(),
        notes: notes(&members, transport, first.tied_by, with_packets),
    }
}

fn notes(
    members: &[&Half],
    transport: Transport,
    tied_by: TiedBy,
    with_packets: usize,
) -> Vec<&'static str> {
    let mut notes = Vec::new();
    match transport {
        Transport::Uc => notes.push(
            "an unreliable connection has no acknowledgements: what is lost behind the capture point can't be seen here",
        ),
        Transport::Ud | Transport::Rd => notes.push(
            "a datagram QP numbers its packets over all destinations: PSNs say nothing of loss",
        ),
        Transport::Rc | Transport::Xrc if with_packets < 2 => notes.push(if tied_by == TiedBy::None {
            "the other direction was not captured, or not told from other QPs': losses behind the capture point and answer times are unknown"
        } else {
            "the other direction has no packets in the capture"
        }),
        _ => {}
    }
    if members.iter().any(|half| half.tied_by == TiedBy::Heuristic) {
        notes.push("the directions were tied by addresses and fitting PSNs (UC: as the only two between them), not by the connection's making");
    }
    if members.iter().any(|half| half.icrc_unknown > 0) {
        notes.push("some ICRCs are unknown: packets captured in part, or not checked");
    }
    notes
}

fn retransmissions(all: &[Option<Again>], clock: Clock) -> Retransmissions {
    let mut sum = Again::default();
    for again in all.iter().flatten() {
        sum.packets += again.packets;
        sum.bytes += again.bytes;
        sum.times = match (sum.times, again.times) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
            (some, None) | (None, some) => some,
        };
    }
    Retransmissions {
        packets: sum.packets,
        bytes: sum.bytes,
        first_s: sum.times.map(|(first, _)| clock.at(first)),
        last_s: sum.times.map(|(_, last)| clock.at(last)),
    }
}

fn metrics(members: &[&Half], clock: Clock) -> Metrics {
    let sum = |of: fn(&Half) -> u64| members.iter().map(|half| of(half)).sum::<u64>();
    let busy = members.iter().filter(|half| half.packets > 0);
    let first = busy
        .clone()
        .map(|half| half.times.0)
        .min()
        .unwrap_or(clock.0);
    let last = busy.map(|half| half.times.1).max().unwrap_or(first);
    let packets = sum(|half| half.packets);
    let ce_marked = sum(|half| half.ce.count);
    let cnp = sum(|half| half.cnp.count);
    let seconds = clock.at(last) - clock.at(first);
    let mut operations = Operations::default();
    let mut naks = Naks::default();
    let mut delays = Delays::default();
    for half in members {
        operations = operations.plus(&half.operations);
        naks = naks.plus(&half.naks);
        delays.merge(&half.requests.delays);
    }
    let sequenced = members.iter().any(|half| {
        matches!(
            half.transport,
            Transport::Rc | Transport::Uc | Transport::Xrc
        )
    });
    let again: Vec<Option<Again>> = members
        .iter()
        .flat_map(|half| {
            [
                Some(half.requests.again),
                Some(half.requests.responses_again),
            ]
        })
        .collect();
    Metrics {
        packets,
        bytes: sum(|half| half.bytes),
        first_s: clock.at(first),
        last_s: clock.at(last),
        messages: operations.all().iter().map(|(_, v)| v.messages).sum(),
        message_bytes: operations.all().iter().map(|(_, v)| v.bytes).sum(),
        operations,
        psn_gaps: sequenced.then(|| sum(|half| half.requests.gaps_seen)),
        psns_missing: sequenced.then(|| sum(|half| half.requests.missing)),
        retransmissions: retransmissions(&again, clock),
        duplicates: sum(|half| half.copies_seen.count),
        reordered: sum(|half| half.requests.reordered),
        naks,
        rnrs: sum(|half| half.rnrs),
        timeouts: sum(|half| half.requests.timeouts),
        ce_marked,
        ce_share: if packets > 0 {
            ce_marked as f64 / packets as f64
        } else {
            0.0
        },
        cnp,
        cnp_rate: (seconds > 0.0).then(|| cnp as f64 / seconds),
        ack_delay: ack_delay(&delays),
        icrc_errors: sum(|half| half.icrc_wrong.count),
        icrc_unknown: sum(|half| half.icrc_unknown),
    }
}

fn ack_delay(delays: &Delays) -> Option<AckDelay> {
    Some(AckDelay {
        samples: delays.count(),
        p50_ns: delays.percentile(50)?,
        p99_ns: delays.percentile(99)?,
        max_ns: delays.max()?,
    })
}

fn finding(
    found: &findings::Finding,
    halves: &[Half],
    of_half: &[Option<usize>],
    clock: Clock,
) -> Option<Finding> {
    let (qpn, flow, text) = match found.place {
        Place::Capture => (None, None, found.text.clone()),
        Place::Half(id) => {
            let half = halves.get(id as usize)?;
            // Left out by the filter.
            let flow = of_half.get(id as usize).copied().flatten()?;
            let text = format!(
                "{} ({} > {}): {}",
                Qp(half.dest_qpn),
                address(&half.src),
                address(&half.dst),
                found.text
            );
            (Some(half.dest_qpn), Some(flow), text)
        }
    };
    Some(Finding {
        kind: found.kind,
        severity: found.kind.severity(),
        qpn,
        flow,
        time_s: clock.at(found.time),
        frames: found.frames.clone(),
        text,
    })
}
