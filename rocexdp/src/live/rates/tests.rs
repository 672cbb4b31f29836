//! From maps' values to lines: what is tied together, what is unknown and why, what began anew.

use std::{sync::Arc, time::SystemTime};

use rocexdp_common::{
    ids::gid_from_ipv4,
    maps::{FlowKey, FlowState, Kind, LinkControl, QpConfig, QpCounters, QpEngine, QueueCounters},
};

use super::{IfaceRates, NO_ROUND_TRIP, Row, rates};
use crate::{
    live::{FlowTable, IfaceSnapshot, NicReadings, Role, Snapshot, Source},
    maps::QpView,
    nic::{NicCounters, PauseCounts, sysfs::Port},
};

const A: [u8; 4] = [10, 0, 0, 2];
const B: [u8; 4] = [10, 0, 0, 3];
const S: u64 = 1_000_000_000;

fn snapshot(time_ns: u64, change: impl FnOnce(&mut IfaceSnapshot)) -> Snapshot {
    let mut iface = IfaceSnapshot::failed("eth0".to_owned(), time_ns, String::new());
    iface.error = None;
    iface.source = Some(Source {
        role: Role::Monitor,
        hook: "XDP",
        mode: "driver".to_owned(),
        program_id: 7,
    });
    change(&mut iface);
    Snapshot {
        time_ns,
        time: SystemTime::UNIX_EPOCH,
        ifaces: vec![iface],
    }
}

fn between(before: &Snapshot, after: &Snapshot) -> IfaceRates {
    let mut all = rates(before, after);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn flow(from: [u8; 4], to: [u8; 4], qpn: u32, sender: u32) -> (FlowKey, FlowState) {
    let key = FlowKey {
        src: gid_from_ipv4(from),
        dst: gid_from_ipv4(to),
        dest_qpn: qpn,
        reserved: 0,
    };
    let mut state = FlowState::ZERO;
    state.sender_qpn = sender;
    state.counters.first_seen_ns = 1;
    (key, state)
}

fn count(state: &mut FlowState, kind: Kind, packets: u64, bytes: u64, marked: u64) {
    let counters = &mut state.counters;
    counters.kinds[kind as usize].packets += packets;
    counters.kinds[kind as usize].bytes += bytes;
    if kind != Kind::Cnp {
        counters.ecn[2] += packets - marked;
        counters.ecn[3] += marked;
    }
    counters.last_seen_ns += 1;
}

fn one(rates: &IfaceRates) -> &Row {
    let [row] = rates.rows.as_slice() else {
        panic!("one line: {:?}", rates.rows)
    };
    row
}

#[test]
fn both_directions_of_a_connection_are_one_line_with_what_each_says() {
    // B writes to A: its address is the higher one, and it is the source all the same.
    let mut data = flow(B, A, 0x11, 0);
    let mut answers = flow(A, B, 0x22, 0x11);
    count(&mut data.1, Kind::Write, 1000, 1_000_000, 0);
    count(&mut answers.1, Kind::Ack, 500, 35_000, 0);
    answers.1.rtt.take(1_000_000);
    let before = snapshot(S, |i| i.flows = vec![data, answers]);
    count(&mut data.1, Kind::Write, 200, 200_000, 50);
    data.1.counters.requests.gaps += 2;
    data.1.counters.requests.missing += 6;
    data.1.counters.requests.duplicates += 10;
    count(&mut answers.1, Kind::Ack, 100, 7000, 0);
    count(&mut answers.1, Kind::Cnp, 20, 1500, 0);
    count(&mut answers.1, Kind::Nak, 2, 140, 0);
    answers.1.counters.naks[0] += 2;
    for _ in 0..10 {
        answers.1.rtt.take(3000);
    }
    // In whatever order the map gives them.
    for flows in [vec![data, answers], vec![answers, data]] {
        let after = snapshot(3 * S, |i| i.flows = flows);
        let rates = between(&before, &after);
        let row = one(&rates);
        assert_eq!(row.key.a.to_string(), "10.0.0.2/0x000011");
        assert_eq!(row.key.b.to_string(), "10.0.0.3/0x000022");
        let (from, to, there, back) = row.oriented();
        assert_eq!((from, to), (&row.key.b, &row.key.a));
        assert_eq!(there.packets, Ok(100.0));
        assert_eq!(there.bits, Ok(800_000.0));
        assert_eq!(there.ce_share, Ok(0.25));
        assert_eq!(
            (there.gaps, there.missing, there.resent),
            (Ok(1.0), Ok(3.0), Ok(5.0))
        );
        assert_eq!(
            (back.cnp, back.naks, back.nak_codes),
            (Ok(10.0), Ok(1.0), [2, 0, 0, 0, 0])
        );
        let rtt = there.rtt.unwrap();
        assert_eq!((rtt.samples, rtt.mean_ns, rtt.p50_ns), (10, 3000, 4095));
        assert_eq!(back.rtt, Err(NO_ROUND_TRIP));
        assert_eq!(row.rtt().unwrap().samples, 10);
        assert!(row.dcqcn.is_err());
    }
}

#[test]
fn what_nothing_ties_is_one_direction_and_says_so() {
    let mut data = flow(A, B, 0x22, 0);
    let before = snapshot(S, |i| i.flows = vec![data]);
    count(&mut data.1, Kind::Send, 10, 1000, 0);
    let rates = between(&before, &snapshot(2 * S, |i| i.flows = vec![data]));
    let row = one(&rates);
    assert_eq!(row.key.a.qpn, None);
    assert_eq!(row.forth.packets, Ok(10.0));
    assert_eq!(row.rtt(), Err("one direction seen"));
    assert_eq!(row.back.packets, Err("one direction seen"));
    assert_eq!(row.both(|d| d.packets), Ok(10.0));
}

#[test]
fn of_two_flows_that_claim_one_partner_the_later_has_it() {
    let mut data = flow(A, B, 0x22, 0);
    let mut old = flow(B, A, 0x10, 0x22);
    let mut new = flow(B, A, 0x11, 0x22);
    count(&mut data.1, Kind::Write, 1, 1, 0);
    old.1.counters.last_seen_ns = 5;
    new.1.counters.last_seen_ns = 9;
    let before = snapshot(S, |i| i.flows = vec![data, old, new]);
    let rates = between(
        &before,
        &snapshot(2 * S, |i| i.flows = vec![data, old, new]),
    );
    assert_eq!(rates.rows.len(), 2);
    let tied = rates
        .rows
        .iter()
        .find(|r| r.back.packets.is_ok() && r.forth.packets.is_ok());
    assert_eq!(tied.unwrap().key.a.qpn, Some(0x11));
    // A partner that names another QP is none.
    data.1.sender_qpn = 0x10;
    let rates = between(
        &before,
        &snapshot(2 * S, |i| i.flows = vec![data, old, new]),
    );
    let tied = rates
        .rows
        .iter()
        .find(|r| r.back.packets.is_ok() && r.forth.packets.is_ok());
    assert_eq!(tied.unwrap().key.a.qpn, Some(0x10));
}

#[test]
fn a_flow_that_was_evicted_and_came_back_has_counted_from_zero() {
    let mut data = flow(A, B, 0x22, 0);
    count(&mut data.1, Kind::Write, 5, 500, 0);
    let before = snapshot(S, |i| {
        i.flows = vec![data];
        i.flow_table = FlowTable {
            capacity: 8,
            live: 1,
            inserts: 3,
            evicted: 2,
        };
    });
    data.1 = FlowState::ZERO;
    data.1.counters.first_seen_ns = S + 1;
    count(&mut data.1, Kind::Write, 7, 700, 0);
    let after = snapshot(2 * S, |i| {
        i.flows = vec![data];
        i.flow_table = FlowTable {
            capacity: 8,
            live: 1,
            inserts: 8,
            evicted: 7,
        };
    });
    let rates = between(&before, &after);
    assert_eq!(one(&rates).forth.packets, Ok(7.0));
    assert!((rates.evictions - 5.0).abs() < 1e-9);
}

fn qp(change: impl FnOnce(&mut QpEngine, &mut QpCounters)) -> QpView {
    let mut view = QpView {
        slot: 3,
        config: QpConfig {
            generation: 1,
            qpn: 0x80_0003,
            peer_qpn: 0x22,
            local_gid: gid_from_ipv4(B),
            peer_gid: gid_from_ipv4(A),
            path_mtu_log2: 12,
            ..QpConfig::default()
        },
        engine: QpEngine::default(),
        counters: QpCounters::ZERO,
        per_queue: Vec::new(),
    };
    change(&mut view.engine, &mut view.counters);
    view
}

#[test]
fn a_local_qp_has_the_engines_numbers_one_way_and_xdps_the_other() {
    let before = snapshot(S, |i| i.qps = vec![qp(|e, _| e.tx_packets = 100)]);
    let after = snapshot(2 * S, |i| {
        i.qps = vec![qp(|e, c| {
            e.tx_packets = 600;
            e.tx_acks = 50;
            e.tx_bytes = 4096 * 500;
            e.retransmitted_packets = 7;
            e.rate = 5_000_000_000;
            e.state = 3;
            e.rtt.take(20_000);
            c.kinds[Kind::Ack as usize].packets = 40;
            c.kinds[Kind::Cnp as usize].packets = 4;
            c.ecn[2] = 30;
            c.ecn[3] = 10;
        })];
    });
    let rates = between(&before, &after);
    let row = one(&rates);
    assert!(row.key.local && !row.turned());
    assert_eq!((row.forth.packets, row.back.packets), (Ok(550.0), Ok(44.0)));
    assert_eq!(row.forth.bits, Ok(4096.0 * 500.0 * 8.0));
    assert_eq!((row.forth.resent, row.back.cnp), (Ok(7.0), Ok(4.0)));
    assert!(row.forth.ce_share.is_err());
    assert_eq!(row.ce_share(), Ok(0.25));
    assert_eq!(row.dcqcn, Ok(5e9));
    assert_eq!(row.rtt().unwrap().samples, 1);
    assert_eq!((row.state, row.path_mtu), (Some(3), 4096));
    // Another program now: nothing can be compared.
    let mut other = after.clone();
    other.ifaces[0].source.as_mut().unwrap().program_id = 8;
    assert!(between(&after, &other).rows.is_empty());
    assert!(rates.seconds > 0.0);
}

#[test]
fn pauses_of_all_queues_are_taken_together_and_without_a_link_rate_only_frames_are_known() {
    let mut control = [LinkControl::default(); 2];
    let before = snapshot(S, |i| i.link_control = control.to_vec());
    // 10 Gb/s: a quantum is 51.2 ns; 0xffff of them 3.36 ms. Every 2 ms for 100 ms: paused for 101 ms or so.
    for n in 0..50 {
        control[1].pfc[3].take(0xffff, 51_200, S + 2_000_000 * n);
    }
    control[0].pfc[5].take(9, 0, S + 5);
    let after = snapshot(2 * S, |i| {
        i.link_control = control.to_vec();
        i.queues = vec![(QueueCounters::default(), None)];
    });
    let rates = between(&before, &after);
    let [three, five] = rates.pauses.as_slice() else {
        panic!("{:?}", rates.pauses)
    };
    assert_eq!((three.priority, five.priority), (Some(3), Some(5)));
    let share = three.share.unwrap();
    assert!((0.100..0.103).contains(&share), "{share}");
    assert!((three.pauses - 50.0).abs() < 1e-9 && !three.paused);
    assert!(five.share.is_err() && (five.pauses - 1.0).abs() < 1e-9);
}

#[test]
fn the_nics_own_counters_tell_of_hardware_and_of_pauses_that_its_mac_keeps() {
    let nic = |time, frames, duration, received: u64| {
        let mut counters = NicCounters::default();
        counters.pauses.rx[3] = PauseCounts {
            frames: Some(frames),
            duration_us: Some(duration),
            ..PauseCounts::default()
        };
        counters.pauses.rx[4].frames = Some(frames);
        counters.rdma.push(Port {
            device: "mlx5_0".to_owned(),
            port: 1,
            software: false,
            counters: [("port_rcv_packets".to_owned(), received)].into(),
            hw_counters: [("out_of_sequence".to_owned(), 5)].into(),
        });
        (time, Arc::new(counters))
    };
    let reading = |earlier, latest| Some(NicReadings { earlier, latest });
    let (one, two) = (nic(S, 10, 0, 100), nic(3 * S, 50, 1_000_000, 500));
    let before = snapshot(S, |i| i.nic = reading(None, one.clone()));
    let after = snapshot(3 * S, |i| i.nic = reading(Some(one.clone()), two.clone()));
    // A look so soon after that the NIC was not asked again finds the same.
    let soon = snapshot(3 * S + 5, |i| i.nic = reading(Some(one), two));
    for rates in [between(&before, &after), between(&after, &soon)] {
        let [moved] = rates.nic.as_slice() else {
            panic!("one moved: {:?}", rates.nic)
        };
        assert_eq!(
            (moved.name.as_str(), moved.per_second, moved.total),
            ("port_rcv_packets", 200.0, 500)
        );
        let [three, four] = rates.pauses.as_slice() else {
            panic!("{:?}", rates.pauses)
        };
        assert_eq!(
            (three.priority, three.share, three.counted_by),
            (Some(3), Ok(0.5), "nic")
        );
        assert!((three.pauses - 20.0).abs() < 1e-9);
        assert!(four.share.is_err() && four.priority == Some(4));
    }
}
