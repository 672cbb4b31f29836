//! Traffic classes and PFC at the endpoint: shares are the weights, strict classes go first, answers and CNPs have their own
//! priority, a paused priority sends nothing, and what a pause holds up is no loss.

mod common;

use core::num::NonZeroU16;
use core::time::Duration;
use std::sync::Arc;

use common::{LONG, pattern, send_wr, stats, target, write_op};
use rocexdp_common::headers::Bth;
use rocexdp_common::opcode::{CNP, rc};
use rocexdp_proto::ids::{PathMtu, Qpn, RKey, WrId};
use rocexdp_proto::mem::Segment;
use rocexdp_proto::time::{Rate, Timestamp};
use rocexdp_proto::verbs::{CompletionQueue, SendOp, SendWr};
use rocexdp_proto::wire::{Path, TransmitKind};
use rocexdp_proto::{
    ClassService, CongestionSignal, CreateQp, Endpoint, EndpointConfig, Marking, QpHandle,
    QpTransition, RtrAttr, SelectiveRepeat, TrafficClasses, Trust, pause_time,
};
use rocexdp_sim::memory::NoBytes;
use rocexdp_sim::pair::{Bytes, Pair, PairConfig, QPNS, path, rtr, rts};

/// A connected QP whose data are marked so, with a WRITE that never ends posted.
fn busy(ep: &mut Endpoint, n: u32, dscp: u8, sl: u8, mtu: PathMtu) -> QpHandle {
    let config = PairConfig {
        path_mtu: mtu,
        vlan: Some(7),
        ..PairConfig::default()
    };
    let cq = Arc::new(CompletionQueue::new(8));
    let qpn = Qpn::new(0x90_0000 + n);
    let qp = ep.create_qp(CreateQp::rc(qpn, &cq, &cq)).unwrap();
    let rtr = RtrAttr {
        path: Path {
            dscp: Some(dscp),
            sl,
            ..path(&config, 0)
        },
        ..rtr(&config, 0)
    };
    let access = config.access;
    for to in [
        QpTransition::Init { access },
        QpTransition::Rtr(rtr),
        QpTransition::Rts(rts(&config, 0)),
    ] {
        ep.modify_qp(Timestamp::ZERO, qpn, to).unwrap();
    }
    let op = SendOp::Write {
        va: 0,
        rkey: RKey(1),
    };
    let memory = Arc::new(NoBytes(1 << 31));
    let wr = SendWr::new(WrId(1), op, Segment::new(memory, 0, 1 << 30));
    qp.sq.post(wr).unwrap();
    ep.work_posted(Timestamp::ZERO, qpn);
    qp
}

fn endpoint(classes: TrafficClasses) -> Endpoint {
    let config = EndpointConfig {
        classes,
        max_inflight_packets: 1 << 16,
        ..EndpointConfig::default()
    };
    Endpoint::new(config, 1)
}

const fn weight(w: u16) -> ClassService {
    ClassService::Weighted(NonZeroU16::new(w).unwrap())
}

/// Sends so many frames. Gives the bytes of each priority.
fn send(ep: &mut Endpoint, frames: u32) -> [u64; 8] {
    let mut bytes = [0; 8];
    for _ in 0..frames {
        let packet = ep.poll_transmit(Timestamp::ZERO).unwrap();
        bytes[usize::from(packet.priority())] += packet.len() as u64;
    }
    bytes
}

#[test]
fn classes_share_the_link_by_their_weights_however_many_qps_and_however_long_packets() {
    let mut classes = TrafficClasses::default();
    classes.service[0] = weight(10);
    classes.service[3] = weight(30);
    classes.service[4] = weight(60);
    let mut ep = endpoint(classes);
    // One QP with small packets has the largest share, many with large ones the smallest.
    busy(&mut ep, 0, 32, 0, PathMtu::Mtu1024);
    for n in 1..4 {
        busy(&mut ep, n, 26, 0, PathMtu::Mtu2048);
    }
    for n in 4..12 {
        busy(&mut ep, n, 0, 0, PathMtu::Mtu4096);
    }
    let bytes = send(&mut ep, 40_000);
    let sum: u64 = bytes.iter().sum();
    for (class, weight) in [(0, 0.1), (3, 0.3), (4, 0.6)] {
        let share = bytes[class] as f64 / sum as f64;
        assert!((share / weight - 1.0).abs() < 0.02, "{class}: {share}");
    }
}

#[test]
fn a_strict_class_goes_before_all_others() {
    let mut classes = TrafficClasses::default();
    classes.service[5] = ClassService::Strict;
    let mut ep = endpoint(classes);
    busy(&mut ep, 0, 0, 0, PathMtu::Mtu1024);
    busy(&mut ep, 1, 40, 0, PathMtu::Mtu1024);
    let bytes = send(&mut ep, 1000);
    assert_eq!(bytes[0], 0, "{bytes:?}");
    // Paused, it leaves the link to the others.
    ep.handle_pause(Timestamp::ZERO, 5, Timestamp::from_micros(9));
    assert_eq!(send(&mut ep, 1000)[5], 0);
}

#[test]
fn a_slot_that_is_used_again_waits_in_its_own_class() {
    let mut ep = endpoint(TrafficClasses::default());
    let a = busy(&mut ep, 0, 8, 0, PathMtu::Mtu1024);
    ep.destroy_qp(a.qpn).unwrap();
    busy(&mut ep, 1, 56, 0, PathMtu::Mtu1024);
    ep.handle_pause(Timestamp::ZERO, 1, Timestamp::MAX);
    // It stands in the paused line of the QP that is gone, until that goes on.
    ep.handle_pause(Timestamp::ZERO, 1, Timestamp::ZERO);
    assert!(send(&mut ep, 10)[7] > 0);
}

#[test]
fn qps_tell_their_marking_and_their_priority() {
    let mut classes = TrafficClasses::default();
    classes.priority_of_dscp[26] = 2;
    let mut ep = endpoint(classes.clone());
    let a = busy(&mut ep, 0, 26, 5, PathMtu::Mtu1024);
    let info = ep.qp_info(a.qpn).unwrap();
    assert_eq!(info.marking, Marking { dscp: 26, pcp: 5 });
    assert_eq!(info.priority, 2);
    classes.trust = Trust::Pcp;
    let mut ep = endpoint(classes);
    let a = busy(&mut ep, 0, 26, 5, PathMtu::Mtu1024);
    assert_eq!(ep.qp_info(a.qpn).unwrap().priority, 5);
}

/// Type of service, and tag control information, of a frame with one VLAN tag.
fn marks(frame: &[u8], ipv6: bool) -> (u8, u16) {
    let tos = if ipv6 {
        frame[18] << 4 | frame[19] >> 4
    } else {
        frame[19]
    };
    (tos, u16::from_be_bytes([frame[14], frame[15]]))
}

#[test]
fn answers_and_cnps_have_a_marking_of_their_own_and_a_right_checksum() {
    for ipv6 in [false, true] {
        let mut config = PairConfig {
            vlan: Some(9),
            ipv6,
            ..PairConfig::default()
        };
        for end in &mut config.endpoint {
            end.data_dscp = 26;
            end.classes.answers = Some(Marking { dscp: 46, pcp: 5 });
        }
        let mut pair = Pair::new(&config);
        let (_, region) = target(&mut pair, 4096);
        let wr = send_wr(1, write_op(&region), &Bytes::of(pattern(4096, 1)), 4096);
        pair.post_send(0, wr).unwrap();
        let now = pair.now();
        let signal = CongestionSignal {
            ce_marks: 1,
            cnps: 0,
        };
        pair.ends[1]
            .endpoint
            .handle_congestion(now, QPNS[1], signal);
        pair.capture();
        assert!(pair.run(LONG));
        assert_eq!(
            pair.completions(0).len(),
            1,
            "the other end took the answer"
        );
        let of = |opcode| {
            let sent = pair.sent.iter().find(|s| s.bth.opcode == opcode).unwrap();
            let ip = &sent.frame[18..38];
            let sum: u32 = ip
                .chunks(2)
                .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
                .sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            assert!(ipv6 || folded == 0xffff, "{folded:x}");
            marks(&sent.frame, ipv6)
        };
        assert_eq!(of(rc::WRITE_FIRST), (26 << 2 | 2, 9));
        assert_eq!(of(rc::ACKNOWLEDGE), (46 << 2 | 2, 5 << 13 | 9));
        assert_eq!(of(CNP), (48 << 2 | 2, 6 << 13 | 9));
    }
}

#[test]
fn quanta_are_512_bit_times_each() {
    let time = |quanta, gbps| pause_time(quanta, Rate::from_gbps(gbps)).as_nanos();
    assert_eq!(time(0xffff, 100), 335_539);
    assert_eq!(time(1, 1), 512);
    assert_eq!(time(0, 1), 0);
    assert_eq!(pause_time(5, Rate::ZERO), Duration::ZERO);
}

#[test]
fn a_pause_stops_its_priority_alone_and_ends_by_itself_or_when_told() {
    let us = Timestamp::from_micros;
    let mut ep = endpoint(TrafficClasses::default());
    busy(&mut ep, 0, 24, 0, PathMtu::Mtu1024);
    assert!(ep.poll_transmit(us(0)).is_some());
    // Another one's.
    ep.handle_pause(us(1), 4, us(1000));
    assert!(ep.poll_transmit(us(1)).is_some() && !ep.is_held(us(1)));
    // By itself.
    ep.handle_pause(us(2), 3, us(10));
    assert!(ep.poll_transmit(us(2)).is_none() && ep.is_held(us(2)));
    assert!(ep.poll_timeout() <= Some(us(10)));
    assert!(ep.poll_transmit(us(9)).is_none());
    assert!(ep.poll_transmit(us(10)).is_some() && !ep.is_held(us(10)));
    // Renewed, which replaces what was left, and told to go on.
    ep.handle_pause(us(20), 3, us(100));
    ep.handle_pause(us(30), 3, us(60));
    assert_eq!(ep.pause_state(us(40), 3).until, Some(us(60)));
    ep.handle_pause(us(50), 3, us(50));
    assert!(ep.poll_transmit(us(50)).is_some());
    let state = ep.pause_state(us(2000), 3);
    assert_eq!(
        (state.until, state.pauses, state.resumes, state.paused),
        (None, 3, 1, Duration::from_micros(8 + 30))
    );
    let other = ep.pause_state(us(501), 4);
    assert_eq!(
        (other.until, other.paused),
        (Some(us(1000)), Duration::from_micros(500))
    );
    // Until told otherwise.
    ep.handle_pause(us(3000), 3, Timestamp::MAX);
    ep.handle_timeout(us(9_000_000));
    assert!(ep.poll_transmit(us(9_000_000)).is_none());
}

#[test]
fn answers_and_cnps_of_a_paused_priority_wait_too() {
    for (paused, kinds) in [
        (0, vec![TransmitKind::Cnp]),
        (6, vec![TransmitKind::Acknowledge]),
    ] {
        let config = PairConfig::default();
        let mut pair = Pair::new(&config);
        let (_, region) = target(&mut pair, 64);
        let wr = send_wr(1, write_op(&region), &Bytes::of(pattern(64, 1)), 64);
        let now = pair.now();
        // Both are owed.
        pair.post_send(0, wr).unwrap();
        let mut frame = vec![0; 2048];
        let packet = pair.ends[0].endpoint.poll_transmit(now).unwrap();
        let len = packet.len();
        packet.write(&mut [&mut frame[..len]]).unwrap();
        let ep = &mut pair.ends[1].endpoint;
        ep.handle_frame(now, &Default::default(), &[&frame[..len]])
            .unwrap();
        let signal = CongestionSignal {
            ce_marks: 1,
            cnps: 0,
        };
        ep.handle_congestion(now, QPNS[1], signal);
        ep.handle_pause(now, paused, Timestamp::from_micros(50));
        let mut left = Vec::new();
        while let Some(packet) = ep.poll_transmit(now) {
            left.push(packet.kind());
        }
        assert_eq!(left, kinds, "with priority {paused} paused");
        assert!(ep.is_held(now));
        assert!(ep.poll_transmit(Timestamp::from_micros(50)).is_some());
    }
}

/// A link whose far end pauses the sender all the time but for a moment: frames that were handed over wait at the NIC.
#[test]
fn a_pause_is_no_loss_and_costs_no_retry() {
    for selective in [None, Some(SelectiveRepeat { paths: 1 })] {
        let config = PairConfig {
            selective,
            // 1.05 ms, and one try.
            timeout: 8,
            retry_cnt: 0,
            link_rate: Some(Rate::from_gbps(10)),
            ..PairConfig::default()
        };
        let mut pair = Pair::new(&config);
        let size = 64 << 10;
        let (bytes, region) = target(&mut pair, size);
        let message = Bytes::of(pattern(size, 1));
        // So that round trips are known.
        pair.post_send(0, send_wr(1, write_op(&region), &message, size))
            .unwrap();
        assert!(pair.run(LONG));
        let start = pair.now();
        // What leaves now is held at the NIC for 5 ms, and the priority is paused for as long: told 2 ms at a time.
        let end = start + Duration::from_millis(5);
        pair.script = Some(Box::new(move |from, _, _: &Bth, _| {
            if from == 0 {
                rocexdp_sim::pair::Fate::Late(Duration::from_millis(5))
            } else {
                rocexdp_sim::pair::Fate::Pass
            }
        }));
        pair.post_send(0, send_wr(2, write_op(&region), &message, size))
            .unwrap();
        assert!(!pair.run(Duration::from_micros(20)));
        let mut now = pair.now();
        while now < end {
            pair.ends[0]
                .endpoint
                .handle_pause(now, 0, now + Duration::from_millis(2));
            assert!(!pair.run(Duration::from_millis(1)));
            now = pair.now();
        }
        let ep = &mut pair.ends[0].endpoint;
        ep.handle_pause(now, 0, now);
        pair.script = None;
        assert!(pair.run(LONG));
        assert!(bytes.copy() == pattern(size, 1));
        let s = stats(&pair, 0);
        assert_eq!(
            (
                s.retransmitted_packets,
                s.local_ack_timeout_err,
                s.completions_err
            ),
            (0, 0, 0),
            "{selective:?}"
        );
        assert_eq!(pair.completions(0).len(), 2);
    }
}

#[test]
fn a_loss_during_a_pause_is_repaired_behind_it() {
    let config = PairConfig {
        timeout: 8,
        retry_cnt: 1,
        ..PairConfig::default()
    };
    let mut pair = Pair::new(&config);
    let (bytes, region) = target(&mut pair, 1024);
    let wr = send_wr(1, write_op(&region), &Bytes::of(pattern(1024, 1)), 1024);
    pair.script = Some(Box::new(|end, n, _: &Bth, _| {
        if (end, n) == (0, 0) {
            rocexdp_sim::pair::Fate::Drop
        } else {
            rocexdp_sim::pair::Fate::Pass
        }
    }));
    pair.post_send(0, wr).unwrap();
    assert!(!pair.run(Duration::from_micros(1)));
    let now = pair.now();
    // "Until told otherwise": its timers look again.
    pair.ends[0].endpoint.handle_pause(now, 0, Timestamp::MAX);
    assert!(!pair.run(Duration::from_millis(20)));
    assert_eq!(stats(&pair, 0).local_ack_timeout_err, 0);
    let now = pair.now();
    pair.ends[0].endpoint.handle_pause(now, 0, now);
    assert!(pair.run(LONG));
    assert!(bytes.copy() == pattern(1024, 1));
    assert_eq!(stats(&pair, 0).local_ack_timeout_err, 1);
    let took = pair.now().saturating_since(now);
    assert!(took < Duration::from_millis(3), "{took:?}");
}

#[test]
fn a_timer_that_an_answer_restarts_in_a_pause_is_put_off_by_what_is_left_of_it() {
    let config = PairConfig {
        // 1.05 ms.
        timeout: 8,
        ..PairConfig::default()
    };
    let mut pair = Pair::new(&config);
    let (_, region) = target(&mut pair, 64);
    let ms = Duration::from_millis;
    // The second request is lost; the first one's answer comes in the middle of a pause.
    pair.script = Some(Box::new(move |end, n, _: &Bth, _| match (end, n) {
        (0, 1) => rocexdp_sim::pair::Fate::Drop,
        (1, 0) => rocexdp_sim::pair::Fate::Late(ms(10)),
        _ => rocexdp_sim::pair::Fate::Pass,
    }));
    for id in [1, 2] {
        let wr = send_wr(id, write_op(&region), &Bytes::of(pattern(64, 1)), 64);
        pair.post_send(0, wr).unwrap();
    }
    assert!(!pair.run(Duration::from_micros(20)));
    let begin = pair.now();
    pair.ends[0].endpoint.handle_pause(begin, 0, begin + ms(20));
    assert!(!pair.run(ms(15)));
    assert_eq!(pair.completions(0).len(), 1, "the answer came");
    assert!(pair.run(LONG));
    assert_eq!(stats(&pair, 0).local_ack_timeout_err, 1);
    let took = pair.now().saturating_since(begin);
    // The pause, the timeout, and what is left of the last timer.
    assert!(took > ms(20) && took < ms(24), "{took:?}");
}
