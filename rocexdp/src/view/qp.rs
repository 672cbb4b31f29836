//! Tables of QPs: the list, one QP in full, and what changed between two looks.

use rocexdp_common::maps::{KIND_NAMES, Kind, QpCounters, QpEngine, Rtt, Tracker, local_addr};

use super::{
    live::nanoseconds,
    model::{Flow, Xdp},
    table::{Column, Table},
    text,
};
use crate::maps::QpView;

fn kind(counters: &QpCounters, kind: Kind) -> u64 {
    counters
        .kinds
        .get(kind as usize)
        .map_or(0, |count| count.packets)
}

fn ce(counters: &QpCounters) -> u64 {
    let [.., ce] = counters.ecn;
    ce
}

/// Packets and bytes of all kinds.
fn received(counters: &QpCounters) -> (u64, u64) {
    let sum = |(p, b): (u64, u64), count: &rocexdp_common::maps::Count| {
        (p + count.packets, b + count.bytes)
    };
    counters.kinds.iter().fold((0, 0), sum)
}

/// One line for each QP.
#[must_use]
pub fn list(qps: &[QpView], now_ns: u64) -> Table {
    let mut table = Table::new(&[
        Column::text("QPN", 0),
        Column::text("SERVICE", 8),
        Column::text("STATE", 0),
        Column::text("PEER", 0),
        Column::text("PEER QPN", 7),
        Column::number("MTU", 9),
        Column::number("TX PKTS", 2),
        Column::number("TX BYTES", 5),
        Column::number("RETRANS", 0),
        Column::number("RX PKTS", 2),
        Column::number("RX BYTES", 6),
        Column::number("OUT OF SEQ", 1),
        Column::number("DUP", 3),
        Column::number("CE", 1),
        Column::number("CNP SENT", 1),
        Column::number("CNP HANDLED", 1),
        Column::number("NAK", 4),
        Column::text("RATE", 1),
        Column::text("LOWEST", 8),
        Column::text("LAST SEEN", 10),
    ]);
    for qp in qps {
        let (engine, seen) = (&qp.engine, &qp.counters);
        let (packets, bytes) = received(seen);
        table.row([
            text::qpn(qp.config.qpn),
            text::transport(qp.config.transport).to_owned(),
            text::state(engine.state).to_owned(),
            peer(qp),
            qp.peer()
                .map_or_else(|| "-".to_owned(), |(_, qpn)| text::qpn(qpn)),
            path_mtu(qp),
            text::count(engine.tx_packets),
            text::bytes(engine.tx_bytes),
            text::count(engine.retransmitted_packets),
            text::count(packets),
            text::bytes(bytes),
            text::count(seen.requests.out_of_sequence),
            text::count(seen.requests.duplicates),
            text::count(ce(seen)),
            text::count(engine.np_cnp_sent),
            text::count(engine.rp_cnp_handled),
            text::count(kind(seen, Kind::Nak) + kind(seen, Kind::RnrNak)),
            text::rate(engine.rate),
            text::rate(engine.min_rate),
            text::ago(seen.last_seen_ns, now_ns),
        ]);
    }
    table
}

/// A peer's address, or who else may send to the QP.
fn peer(qp: &QpView) -> String {
    match qp.peer() {
        Some((gid, _)) => text::address_of(&gid).to_string(),
        None => "any".to_owned(),
    }
}

/// Its address, or which ones it has.
fn local(qp: &QpView) -> String {
    match u32::from(qp.config.address_flags) {
        0 => text::address_of(&qp.config.local_gid).to_string(),
        local_addr::GROUP => "groups joined".to_owned(),
        _ => "all addresses".to_owned(),
    }
}

fn path_mtu(qp: &QpView) -> String {
    1_u32
        .checked_shl(u32::from(qp.config.path_mtu_log2))
        .unwrap_or(0)
        .to_string()
}

/// One line for each RoCEv2 flow that is not a local QP's.
#[must_use]
pub fn flows(flows: &[Flow], now_ns: u64) -> Table {
    let mut table = Table::new(&[
        Column::text("SOURCE", 0),
        Column::text("DESTINATION", 0),
        Column::text("DEST QPN", 0),
        Column::number("MTU", 5),
        Column::number("PACKETS", 0),
        Column::number("BYTES", 3),
        Column::number("OUT OF SEQ", 1),
        Column::number("DUP", 2),
        Column::number("CE", 1),
        Column::number("CNP", 1),
        Column::text("LAST SEEN", 4),
    ]);
    for flow in flows {
        let Xdp {
            kinds,
            requests,
            ecn,
            ..
        } = &flow.xdp;
        table.row([
            flow.source.to_string(),
            flow.destination.to_string(),
            text::qpn(flow.dest_qpn),
            flow.path_mtu
                .map_or_else(|| "n/a".to_owned(), |mtu| mtu.to_string()),
            text::count(kinds.values().map(|a| a.packets).sum()),
            text::bytes(kinds.values().map(|a| a.bytes).sum()),
            text::count(requests.out_of_sequence),
            text::count(requests.duplicates),
            text::count(ecn.ce),
            text::count(kinds.get("cnp").map_or(0, |a| a.packets)),
            text::ago(flow.xdp.last_seen_ns.unwrap_or(0), now_ns),
        ]);
    }
    table
}

/// Everything about one QP.
#[must_use]
pub fn full(qp: &QpView, now_ns: u64) -> String {
    let (config, engine, seen) = (&qp.config, &qp.engine, &qp.counters);
    let peer_qpn = qp
        .peer()
        .map_or_else(String::new, |(_, qpn)| format!(" QP {}", text::qpn(qpn)));
    let mut out = format!(
        "QP {} (slot {}), {}, {}\n  {} -> {}{peer_qpn}, path MTU {}{}\n",
        text::qpn(config.qpn),
        qp.slot,
        text::transport(config.transport),
        text::state(engine.state),
        local(qp),
        peer(qp),
        path_mtu(qp),
        text::repeat(config.transport, config.selective_paths),
    );
    section(&mut out, "engine: requests sent", &requester(engine));
    section(&mut out, "engine: requests received", &responder(engine));
    section(&mut out, "engine: congestion control", &dcqcn(engine));
    section(&mut out, "engine: traffic class", &class(engine));
    let mut lines: Vec<(String, String)> = Vec::new();
    for (name, count) in KIND_NAMES.iter().zip(&seen.kinds) {
        if count.packets > 0 {
            lines.push((
                (*name).to_owned(),
                format!("{} packets, {} B", count.packets, count.bytes),
            ));
        }
    }
    if lines.is_empty() {
        lines.push(("packets".to_owned(), "none".to_owned()));
    }
    lines.extend(tracker("requests", &seen.requests));
    lines.extend(tracker("responses", &seen.responses));
    lines.extend(seen_lines(seen, now_ns));
    let title = format!(
        "XDP, at ingress before the ICRC check, {} queue(s)",
        qp.per_queue.len()
    );
    section(&mut out, &title, &lines);
    out
}

fn section(out: &mut String, title: &str, lines: &[(String, String)]) {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    out.push_str(&format!("{title}\n"));
    for (name, value) in lines {
        out.push_str(&format!("  {name:<width$}  {value}\n"));
    }
}

fn line(name: &str, value: impl ToString) -> (String, String) {
    (name.to_owned(), value.to_string())
}

fn requester(e: &QpEngine) -> Vec<(String, String)> {
    vec![
        line("send_psn", e.send_psn),
        line("unacked_psn", e.unacked_psn),
        line("tx_packets", e.tx_packets),
        line("tx_bytes", e.tx_bytes),
        line("retransmitted_packets", e.retransmitted_packets),
        line("retransmitted_bytes", e.retransmitted_bytes),
        line("local_ack_timeout_err", e.local_ack_timeout_err),
        line("packet_seq_err", e.packet_seq_err),
        line("implied_nak_seq_err", e.implied_nak_seq_err),
        line("rnr_naks_received", e.rnr_naks_received),
        line("outstanding", e.outstanding),
        line("completions", e.completions),
        line("completions_err", e.completions_err),
        line("round trip", round_trip(&e.rtt)),
    ]
}

/// Quantiles are ends of buckets, hence the sign.
fn round_trip(rtt: &Rtt) -> String {
    let (Some(p50), Some(p99)) = (rtt.quantile(0.5), rtt.quantile(0.99)) else {
        return "n/a (no request was acknowledged at its first try)".to_owned();
    };
    let [p50, p99, max] = [p50, p99, rtt.max_ns].map(|ns| nanoseconds(ns as f64));
    format!(
        "p50 <= {p50}, p99 <= {p99}, max {max} of {} timed",
        rtt.count()
    )
}

fn responder(e: &QpEngine) -> Vec<(String, String)> {
    vec![
        line("expected_psn", e.expected_psn),
        line("msn", e.msn),
        line("rx_accepted", e.rx_accepted),
        line("rx_dropped", e.rx_dropped),
        line("rx_looped", e.rx_looped),
        line("rx_mcast", e.rx_mcast),
        line("rx_bytes", e.rx_bytes),
        line("icrc_errors", e.icrc_errors),
        line("out_of_sequence", e.out_of_sequence),
        line("duplicate_request", e.duplicate_request),
        line("tx_acks", e.tx_acks),
        line("tx_naks", e.tx_naks),
        line("tx_rnr_naks", e.tx_rnr_naks),
    ]
}

fn dcqcn(e: &QpEngine) -> Vec<(String, String)> {
    vec![
        line("rate_control", text::rate_control(e.rate_control)),
        line("window", format!("{} packets", e.window)),
        line("rate", text::rate(e.rate)),
        line("target_rate", text::rate(e.target_rate)),
        line(
            "min_rate",
            if e.min_rate == 0 {
                "n/a (never paced)".to_owned()
            } else {
                text::rate(e.min_rate)
            },
        ),
        line("alpha", format!("{:.3}", f64::from(e.alpha) / 1023.0)),
        line("rate_cuts", e.rate_cuts),
        line("rate_increases", e.rate_increases),
        line("rp_cnp_handled", e.rp_cnp_handled),
        line("np_cnp_sent", e.np_cnp_sent),
    ]
}

fn class(e: &QpEngine) -> Vec<(String, String)> {
    vec![
        line("priority", e.priority),
        line("dscp", e.dscp),
        line("pcp", e.pcp),
    ]
}

fn tracker(name: &str, t: &Tracker) -> Vec<(String, String)> {
    let key = |field: &str| format!("{name}.{field}");
    let expected = match t.valid {
        0 => "n/a (no packet yet)".to_owned(),
        _ => t.expected_psn.to_string(),
    };
    vec![
        (key("expected_psn"), expected),
        (key("out_of_sequence"), t.out_of_sequence.to_string()),
        (key("gaps"), t.gaps.to_string()),
        (key("missing"), t.missing.to_string()),
        (key("duplicates"), t.duplicates.to_string()),
    ]
}

fn seen_lines(c: &QpCounters, now_ns: u64) -> Vec<(String, String)> {
    let [not_ect, ect1, ect0, ce] = c.ecn;
    let [sequence, invalid, access, operational, other] = c.naks;
    vec![
        line(
            "ecn",
            format!("not-ECT {not_ect}, ECT(0) {ect0}, ECT(1) {ect1}, CE {ce}"),
        ),
        line("np_ecn_marked_roce_packets", ce),
        line(
            "naks",
            format!(
                "sequence {sequence}, invalid request {invalid}, remote access {access}, remote operational {operational}, other {other}"
            ),
        ),
        line("cnp_bad_icrc", c.cnp_bad_icrc),
        line("redirected", c.redirected),
        line("no_socket", c.no_socket),
        line("last packet", text::ago(c.last_seen_ns, now_ns)),
        line("last CE mark", text::ago(c.last_ce_ns, now_ns)),
        line("last CNP", text::ago(c.last_cnp_ns, now_ns)),
    ]
}

/// What changed per second between two looks, for each QP that was there both times.
#[must_use]
pub fn rates(before: &[QpView], after: &[QpView], seconds: f64) -> Table {
    let mut table = Table::new(&[
        Column::text("QPN", 0),
        Column::text("STATE", 3),
        Column::text("PEER", 0),
        Column::number("TX Gb/s", 0),
        Column::number("RX Gb/s", 0),
        Column::number("TX pkt/s", 4),
        Column::number("RX pkt/s", 4),
        Column::number("RETRANS/s", 1),
        Column::number("OOS/s", 2),
        Column::number("CE/s", 1),
        Column::number("CNP SENT/s", 1),
        Column::number("CNP HANDLED/s", 1),
        Column::text("DCQCN RATE", 0),
    ]);
    for qp in after {
        let same = |old: &&QpView| {
            old.slot == qp.slot
                && old.config.generation == qp.config.generation
                && old.config.qpn == qp.config.qpn
        };
        let old = before.iter().find(same);
        let mut cells = vec![
            text::qpn(qp.config.qpn),
            text::state(qp.engine.state).to_owned(),
            peer(qp),
        ];
        if let Some(old) = old {
            let per_second =
                |pick: &dyn Fn(&QpView) -> u64| pick(qp).saturating_sub(pick(old)) as f64 / seconds;
            let gigabits =
                |pick: &dyn Fn(&QpView) -> u64| format!("{:.2}", per_second(pick) * 8.0 / 1e9);
            let whole =
                |pick: &dyn Fn(&QpView) -> u64| text::count(per_second(pick).round() as u64);
            cells.extend([
                gigabits(&|q| q.engine.tx_bytes),
                gigabits(&|q| received(&q.counters).1),
                whole(&|q| q.engine.tx_packets),
                whole(&|q| received(&q.counters).0),
                whole(&|q| q.engine.retransmitted_packets),
                whole(&|q| q.counters.requests.out_of_sequence),
                whole(&|q| ce(&q.counters)),
                whole(&|q| q.engine.np_cnp_sent),
                whole(&|q| q.engine.rp_cnp_handled),
            ]);
        } else {
            // New since the last look: nothing to compare with.
            cells.extend((0..9).map(|_| "n/a".to_owned()));
        }
        cells.push(text::rate(qp.engine.rate));
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use rocexdp_common::{ids::gid_from_ipv4, maps::QpConfig};

    use super::*;

    fn qp(slot: u32) -> QpView {
        let mut counters = QpCounters::default();
        counters.kinds[Kind::Write as usize].packets = 1000;
        counters.kinds[Kind::Write as usize].bytes = 4_170_000;
        counters.kinds[Kind::Nak as usize].packets = 3;
        counters.ecn[3] = 51;
        counters.requests.out_of_sequence = 17;
        counters.last_seen_ns = 1;
        QpView {
            slot,
            config: QpConfig {
                generation: 1,
                qpn: 0x80_0000 + slot,
                peer_qpn: 0x80_00ff,
                peer_gid: gid_from_ipv4([10, 77, 0, 2]),
                path_mtu_log2: 12,
                ..QpConfig::default()
            },
            engine: QpEngine {
                state: 3,
                retransmitted_packets: 12,
                rate: 2_500_000_000,
                ..QpEngine::default()
            },
            counters,
            per_queue: vec![counters],
        }
    }

    #[test]
    fn the_list_shows_loss_and_congestion_first() {
        let text = list(&[qp(1), qp(2)], 1_000_000_001).render(None);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        for part in [
            "0x800001",
            "RTS",
            "10.77.0.2",
            "4096",
            "1.00k",
            "17",
            "51",
            "12",
            "2.50 Gb/s",
            "1.0 s",
        ] {
            assert!(lines[1].contains(part), "{part} in {text}");
        }
        let narrow = list(&[qp(1)], 1).render(Some(80));
        assert!(
            narrow.lines().take(2).all(|line| line.len() <= 80),
            "{narrow}"
        );
        assert!(
            narrow.contains("RETRANS") && narrow.contains("no room for"),
            "{narrow}"
        );
    }

    #[test]
    fn a_ud_qp_has_no_peer_and_reserved_ones_no_one_address() {
        let mut ud = qp(3);
        ud.config.transport = 3;
        ud.config.local_gid = gid_from_ipv4([10, 77, 0, 9]);
        let text = list(&[ud.clone()], 1).render(None);
        let line = text.lines().nth(1).unwrap();
        assert!(line.contains("UD") && line.contains("any"), "{text}");
        assert!(!line.contains("10.77.0.2"), "{text}");
        assert!(full(&ud, 1).contains("10.77.0.9 -> any, path MTU"));
        ud.config.address_flags = local_addr::EXCLUSIVE as u8;
        assert!(full(&ud, 1).contains("all addresses -> any"));
        ud.config.address_flags = local_addr::GROUP as u8;
        assert!(full(&ud, 1).contains("groups joined -> any"));
    }

    #[test]
    fn one_qp_shows_all_its_counters_by_name() {
        let text = full(&qp(1), 1);
        for name in [
            "retransmitted_packets",
            "packet_seq_err",
            "rp_cnp_handled",
            "requests.out_of_sequence",
            "responses.missing",
            "np_ecn_marked_roce_packets",
        ] {
            assert!(text.contains(name), "{name}");
        }
        assert!(text.contains("n/a (no packet yet)"));
    }

    #[test]
    fn rates_compare_a_qp_with_itself_only() {
        let mut after = qp(1);
        after.engine.tx_bytes = 250_000_000;
        after.counters.ecn[3] += 10;
        let text = rates(&[qp(1)], &[after.clone(), qp(2)], 2.0).render(None);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].contains("1.00"), "{text}");
        assert!(lines[2].contains("n/a"), "{text}");
        // The slot was given to another QP meanwhile.
        after.config.generation = 2;
        let text = rates(&[qp(1)], &[after], 2.0).render(None);
        assert!(text.contains("n/a"), "{text}");
    }
}
