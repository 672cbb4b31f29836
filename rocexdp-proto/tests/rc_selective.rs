//! Selective repeat and multipath between two ends that agreed on it: what is lost, late or twice, what may be seen when, and
//! that no other peer gets to see any of it.

mod common;

use std::time::Duration;

use common::{Craft, LONG, outcomes, pattern, recv_wr, send_wr, stats, target, write_op};
use rocexdp_common::fault::{Faults, Share};
use rocexdp_common::headers::{Reth, Sreth};
use rocexdp_common::opcode::{Opcode, Operation, Position, rc};
use rocexdp_proto::ids::{PathMtu, Psn};
use rocexdp_proto::verbs::{CqeOpcode, SendOp, Status};
use rocexdp_proto::wire::{Head, Packet};
use rocexdp_proto::{DropReason, EndpointConfig, SelectiveRepeat};
use rocexdp_sim::pair::{Bytes, Fate, Pair, PairConfig, QPNS, Script, Sent};

const MTU: usize = 256;

fn config(paths: u8) -> PairConfig {
    PairConfig {
        path_mtu: PathMtu::Mtu256,
        selective: Some(SelectiveRepeat { paths }),
        // 67 ms: whoever waits for it fails the test by its time.
        timeout: 14,
        ..PairConfig::default()
    }
}

/// Loses the transmissions of end 0 with these PSNs, counted from its first one; so many of each.
fn lose(first: Psn, mut which: Vec<(i32, u32)>) -> Script {
    Box::new(move |end, _, bth, _| {
        let at = bth.psn.diff(first);
        let hit = which
            .iter_mut()
            .find(|(psn, left)| end == 0 && !bth.opcode.is_response() && *psn == at && *left > 0);
        match hit {
            Some((_, left)) => {
                *left -= 1;
                Fate::Drop
            }
            None => Fate::Pass,
        }
    })
}

fn is_request(s: &Sent, end: usize) -> bool {
    s.end == end && !s.bth.opcode.is_response()
}

/// How often each packet was sent, by PSN counted from the first.
fn transmissions(pair: &Pair, config: &PairConfig, packets: i32) -> Vec<usize> {
    let of = |n| {
        let sent = pair.sent.iter();
        sent.filter(|s| is_request(s, 0) && s.bth.psn.diff(config.psn[0]) == n)
            .count()
    };
    (0..packets).map(of).collect()
}

fn drops(pair: &Pair, end: usize, reason: DropReason) -> u64 {
    pair.ends[end].endpoint.counters().drops[reason.index()]
}

/// A WRITE of `len` bytes from end 0 completes, and has arrived.
fn write_arrives(pair: &mut Pair, len: usize) {
    let (memory, region) = target(pair, len);
    let source = Bytes::of(pattern(len, 1));
    pair.post_send(0, send_wr(0, write_op(&region), &source, len))
        .unwrap();
    assert!(pair.run_until_completions(0, 1, LONG));
    assert_eq!(memory.copy(), source.copy());
}

/// One WRITE of 40 packets across the PSN wrap, with losses; gives how often each packet was sent, and the time it took.
fn write_with(losses: Vec<(i32, u32)>, config: &PairConfig) -> (Vec<usize>, Duration) {
    let mut pair = Pair::new(config);
    pair.capture();
    pair.script = Some(lose(config.psn[0], losses));
    let len = 40 * MTU;
    let (memory, region) = target(&mut pair, len);
    let source = Bytes::of(pattern(len, 3));
    pair.post_send(0, send_wr(7, write_op(&region), &source, len))
        .unwrap();
    assert!(pair.run_until_completions(0, 1, LONG));
    let took = pair.now().saturating_since(Default::default());
    pair.run(LONG);
    assert_eq!(
        outcomes(&mut pair, 0),
        [(7, CqeOpcode::Write, Status::Success)]
    );
    assert_eq!(memory.copy(), source.copy());
    (transmissions(&pair, config, 40), took)
}

/// Only the lost packets were sent again.
fn once_but(again: &[(usize, usize)]) -> Vec<usize> {
    let mut all = vec![1; 40];
    for (at, times) in again {
        all[*at] = *times;
    }
    all
}

#[test]
fn a_lost_first_middle_or_last_is_sent_again_alone_and_without_the_timer() {
    for lost in [0, 1, 20, 38, 39] {
        let (sent, took) = write_with(vec![(lost, 1)], &config(1));
        assert_eq!(sent, once_but(&[(lost as usize, 2)]), "{lost}");
        assert!(took < Duration::from_micros(100), "{lost}: {took:?}");
    }
}

#[test]
fn a_lost_retransmission_is_found_by_what_was_sent_after_it() {
    // As many as the tolerance of reordering are sent behind it.
    let losses = vec![(2, 2), (10, 1), (12, 1), (14, 1), (16, 1)];
    let (sent, took) = write_with(losses, &config(1));
    let again = [(2, 3), (10, 2), (12, 2), (14, 2), (16, 2)];
    assert_eq!(sent, once_but(&again));
    assert!(took < Duration::from_micros(100), "{took:?}");
}

#[test]
fn a_lost_tail_is_probed_for_and_needs_no_ack_timer() {
    // All of the end, and the first probes.
    let (sent, took) = write_with(vec![(37, 1), (38, 2), (39, 3)], &config(1));
    assert!(sent[..37].iter().all(|n| *n == 1), "{sent:?}");
    assert!(took < Duration::from_millis(1), "{took:?}");
}

#[test]
fn several_paths_have_a_source_port_each_and_their_reordering_is_no_loss() {
    let config = config(4);
    let mut pair = Pair::new(&config);
    pair.capture();
    // Path n is late by n times 7 us: packets of one come in between, and behind, those of the others.
    let port = |frame: &[u8]| u16::from_be_bytes([frame[34], frame[35]]);
    let mut ports: Vec<u16> = Vec::new();
    pair.script = Some(Box::new(move |end, _, bth, frame| {
        if end == 1 || bth.opcode.is_response() {
            return Fate::Pass;
        }
        let port = port(frame);
        let n = ports.iter().position(|p| *p == port).unwrap_or_else(|| {
            ports.push(port);
            ports.len() - 1
        });
        Fate::Late(Duration::from_micros(7 * n as u64))
    }));
    let len = 64 * MTU;
    let (memory, region) = target(&mut pair, len * 4);
    let source = Bytes::of(pattern(len, 5));
    for n in 0..4 {
        let op = SendOp::Write {
            va: region.va + n * len as u64,
            rkey: region.rkey,
        };
        pair.post_send(0, send_wr(n, op, &source, len)).unwrap();
    }
    assert!(pair.run_until_completions(0, 4, LONG));
    for part in memory.copy().chunks(len) {
        assert_eq!(part, source.copy());
    }
    let mut used: Vec<u16> = pair
        .sent
        .iter()
        .filter(|s| is_request(s, 0))
        .map(|s| port(&s.frame))
        .collect();
    assert_eq!(used.len(), 256, "nothing was sent twice");
    used.sort_unstable();
    let mut counts: Vec<usize> = used.chunk_by(|a, b| a == b).map(<[u16]>::len).collect();
    counts.sort_unstable();
    assert_eq!(counts.len(), 4);
    assert!(counts[0] > 20, "each path is used: {counts:?}");
}

#[test]
fn a_path_that_carries_nothing_is_left_for_the_others() {
    let config = config(4);
    let mut pair = Pair::new(&config);
    pair.capture();
    let mut dead = None;
    pair.script = Some(Box::new(move |end, n, bth, frame| {
        let port = [frame[34], frame[35]];
        if n == 1 && end == 0 {
            dead = Some(port);
        }
        let hit = end == 0 && !bth.opcode.is_response() && dead == Some(port);
        if hit { Fate::Drop } else { Fate::Pass }
    }));
    let len = 400 * MTU;
    let (memory, region) = target(&mut pair, len);
    let source = Bytes::of(pattern(len, 5));
    pair.post_send(0, send_wr(1, write_op(&region), &source, len))
        .unwrap();
    assert!(pair.run_until_completions(0, 1, LONG));
    assert_eq!(memory.copy(), source.copy());
    assert!(pair.now().as_nanos() < 10_000_000, "{}", pair.now());
}

#[test]
fn nothing_of_a_later_message_is_seen_before_all_of_an_earlier_one() {
    let config = config(1);
    let mut pair = Pair::new(&config);
    // Of message 0, packet 3 never comes; messages 1 (WRITE) and 2 (SEND) come whole.
    pair.script = Some(lose(config.psn[0], vec![(3, u32::MAX)]));
    let len = 8 * MTU;
    let (memory, region) = target(&mut pair, 2 * len);
    let source = Bytes::of(pattern(2 * len, 9));
    let inbox = Bytes::filled(len, 0);
    pair.post_recv(1, recv_wr(50, &inbox, len)).unwrap();
    let write = |n: u64| SendOp::Write {
        va: region.va + n * len as u64,
        rkey: region.rkey,
    };
    pair.post_send(0, send_wr(0, write(0), &source, len))
        .unwrap();
    pair.post_send(0, send_wr(1, write(1), &source, len))
        .unwrap();
    pair.post_send(0, send_wr(2, SendOp::Send, &source, len))
        .unwrap();
    pair.run(Duration::from_micros(200));
    let seen = memory.copy();
    let bytes = source.copy();
    for packet in 0..8 {
        let part = packet * MTU..(packet + 1) * MTU;
        // All but the missing one and the end are in place already.
        let placed = !matches!(packet, 3 | 7);
        assert_eq!(seen[part.clone()] == bytes[part], placed, "packet {packet}");
    }
    assert!(seen[len..].iter().all(|b| *b == 0), "message 1");
    assert!(inbox.copy().iter().all(|b| *b == 0), "message 2");
    assert_eq!(outcomes(&mut pair, 1), []);
    pair.script = None;
    assert!(pair.run_until_completions(0, 3, LONG));
    assert_eq!(memory.copy()[..len], bytes[..len]);
    assert_eq!(memory.copy()[len..], bytes[..len]);
    assert_eq!(inbox.copy(), bytes[..len]);
    assert_eq!(
        outcomes(&mut pair, 1),
        [(50, CqeOpcode::Recv, Status::Success)]
    );
}

#[test]
fn a_send_whose_first_is_lost_is_placed_into_the_receive_request_it_is_for() {
    let config = config(1);
    let mut pair = Pair::new(&config);
    pair.script = Some(lose(config.psn[0], vec![(1, u32::MAX)]));
    let len = 6 * MTU;
    let inboxes = [Bytes::filled(len, 0), Bytes::filled(len, 0)];
    for (n, inbox) in inboxes.iter().enumerate() {
        pair.post_recv(1, recv_wr(n as u64, inbox, len)).unwrap();
    }
    let source = Bytes::of(pattern(len, 1));
    pair.post_send(0, send_wr(8, SendOp::SendImm(4), &source, 1))
        .unwrap();
    pair.post_send(0, send_wr(9, SendOp::Send, &source, len))
        .unwrap();
    pair.run(Duration::from_micros(200));
    let early = inboxes[1].copy();
    assert_eq!(early[MTU..5 * MTU], source.copy()[MTU..5 * MTU]);
    assert!(
        early[..MTU]
            .iter()
            .chain(&early[5 * MTU..])
            .all(|b| *b == 0)
    );
    pair.script = None;
    assert!(pair.run_until_completions(0, 2, LONG));
    assert_eq!(inboxes[1].copy(), source.copy());
}

#[test]
fn what_the_peer_was_not_ready_for_goes_again_and_what_came_behind_it_does_not() {
    let config = config(1);
    let mut pair = Pair::new(&config);
    pair.capture();
    let (memory, region) = target(&mut pair, 20 * MTU);
    let source = Bytes::of(pattern(20 * MTU, 1));
    pair.post_send(0, send_wr(0, SendOp::Send, &source, MTU))
        .unwrap();
    pair.post_send(0, send_wr(1, write_op(&region), &source, 20 * MTU))
        .unwrap();
    pair.run(Duration::from_micros(100));
    assert!(memory.copy().iter().all(|b| *b == 0), "of a later message");
    let inbox = Bytes::filled(MTU, 0);
    pair.post_recv(1, recv_wr(5, &inbox, MTU)).unwrap();
    assert!(pair.run_until_completions(0, 2, LONG));
    assert_eq!(memory.copy(), source.copy());
    let sent = transmissions(&pair, &config, 21);
    assert_eq!(sent[0], 2);
    assert!(sent[1..].iter().all(|n| *n == 1), "{sent:?}");
    assert_eq!(stats(&pair, 0).rnr_naks_received, 1);
}

#[test]
fn room_for_early_packets_is_bounded_and_what_found_none_comes_again() {
    let mut config = config(1);
    config.endpoint[1] = EndpointConfig {
        reorder_packets: 4,
        ..EndpointConfig::default()
    };
    let mut pair = Pair::new(&config);
    pair.script = Some(lose(config.psn[0], vec![(0, 1)]));
    let len = 40 * MTU;
    write_arrives(&mut pair, len);
    assert!(drops(&pair, 1, DropReason::ReorderFull) > 30);
}

/// Everything at once, many times over: bytes exact, completions once and in order.
#[test]
fn all_faults_at_once_over_one_and_over_several_paths() {
    let mut again = 0;
    for seed in 0..12 {
        let p = Share::ratio([1, 3, 10][seed as usize % 3], 100);
        let faults = Faults {
            seed,
            drop: p,
            corrupt: p,
            duplicate: p,
            reorder: p,
            delay_ns: 2_000,
            ..Faults::default()
        };
        let other = Faults {
            seed: seed ^ 0xff,
            ..faults
        };
        let config = PairConfig {
            faults: [faults, other],
            path_mtu: PathMtu::ALL[seed as usize % 3],
            ..config([1, 3, 16][seed as usize / 4])
        };
        let mut pair = Pair::new(&config);
        let len = 30_000;
        let (memory, region) = target(&mut pair, 16 * len);
        let source = Bytes::of(pattern(len, seed));
        let inboxes: Vec<_> = (0..32).map(|_| Bytes::filled(len, 0)).collect();
        for (n, inbox) in inboxes.iter().enumerate() {
            pair.post_recv(1, recv_wr(n as u64, inbox, len)).unwrap();
        }
        for n in 0..48u64 {
            let va = region.va + n / 3 * len as u64;
            let rkey = region.rkey;
            let (op, len) = match n % 3 {
                0 => (SendOp::Write { va, rkey }, len),
                1 => (SendOp::SendImm(n as u32), len / 7),
                _ => (SendOp::WriteImm { va, rkey, imm: 1 }, 1),
            };
            pair.post_send(0, send_wr(n, op, &source, len)).unwrap();
        }
        assert!(pair.run_until_completions(0, 48, LONG), "seed {seed}");
        let done: Vec<u64> = outcomes(&mut pair, 0)
            .iter()
            .inspect(|(.., status)| assert_eq!(*status, Status::Success))
            .map(|(id, ..)| *id)
            .collect();
        assert_eq!(done, (0..48).collect::<Vec<_>>());
        let received: Vec<u64> = outcomes(&mut pair, 1).iter().map(|(id, ..)| *id).collect();
        assert_eq!(received, (0..32).collect::<Vec<_>>());
        for part in memory.copy().chunks(len) {
            assert!(part == source.copy(), "seed {seed}");
        }
        for inbox in inboxes.iter().step_by(2) {
            assert!(inbox.copy()[..len / 7] == source.copy()[..len / 7]);
        }
        again += stats(&pair, 0).retransmitted_packets;
    }
    assert!(again > 500, "the faults had work to do: {again}");
}

#[test]
fn a_peer_that_did_not_agree_sees_standard_opcodes_only() {
    let config = PairConfig {
        selective: None,
        ..config(1)
    };
    let mut pair = Pair::new(&config);
    pair.capture();
    pair.script = Some(lose(config.psn[0], vec![(2, 1)]));
    let len = 10 * MTU;
    write_arrives(&mut pair, len);
    assert!(pair.sent.iter().all(|s| !s.bth.opcode.is_selective()));
    // And takes no other.
    pair.inject(
        1,
        selective(&config, rc::WRITE_ONLY, 0, |_, _| {}).frame(&config, 0),
    );
    pair.run(LONG);
    assert_eq!(drops(&pair, 1, DropReason::TransportMismatch), 1);
}

#[test]
fn an_end_that_agreed_takes_nothing_else() {
    let config = config(1);
    let mut pair = Pair::new(&config);
    for opcode in [rc::SEND_ONLY, rc::ACKNOWLEDGE, rc::READ_REQUEST] {
        let headers = rocexdp_common::opcode::extensions_len(opcode.extensions().unwrap());
        let mut craft = Craft::new(0, opcode, config.psn[0]);
        craft.extensions = vec![0; headers];
        pair.inject(1, craft.frame(&config, 0));
    }
    pair.run(LONG);
    assert_eq!(drops(&pair, 1, DropReason::TransportMismatch), 3);
    assert!(pair.ends[1].events.is_empty());
}

/// A WRITE's packet of our own making, `ahead` of end 1's first expected one.
fn selective(
    config: &PairConfig,
    opcode: Opcode,
    ahead: u32,
    set: impl FnOnce(&mut Sreth, &mut Reth),
) -> Craft {
    let mut craft = Craft::new(0, opcode.selective(), config.psn[0].add(ahead)).asking();
    let mut sreth = Sreth {
        serial: config.psn[0].get() << 8 | ahead,
        path: 0,
        index: ahead,
    };
    let mut reth = Reth {
        va: 0x10_0000,
        rkey: 0,
        length: 10 * MTU as u32,
    };
    set(&mut sreth, &mut reth);
    let mut bytes = [0; Sreth::LEN];
    sreth.emit(&mut bytes);
    craft.extensions.extend(bytes);
    craft
        .reth(reth.va, reth.rkey, reth.length)
        .payload(&[7; MTU])
}

#[test]
fn early_packets_that_would_be_refused_in_their_turn_are_not_placed() {
    let config = config(1);
    let mut pair = Pair::new(&config);
    let (memory, region) = target(&mut pair, 10 * MTU);
    let good = |r: &mut Reth| r.rkey = region.rkey.0;
    let mut wrong: Vec<Craft> = Vec::new();
    let mut add = |ahead, set: &dyn Fn(&mut Sreth, &mut Reth)| {
        wrong.push(selective(&config, rc::WRITE_MIDDLE, ahead, |s, r| {
            good(r);
            set(s, r);
        }));
    };
    // Another key; a message that reaches beyond the region; one that this packet would end; of a later message.
    add(1, &|_, r| r.rkey ^= 1);
    add(2, &|_, r| r.length += 1);
    add(3, &|_, r| r.va = u64::MAX - 100);
    add(4, &|_, r| r.length = 5 * MTU as u32);
    add(5, &|s, _| s.index = 2);
    add(6, &|s, _| s.index = 0xff_ffff);
    // Not tracked, of a former connection, on no path.
    add(8192, &|_, _| {});
    add(7, &|s, _| s.serial ^= 0x4000_0000);
    add(7, &|s, _| s.path = 1);
    for craft in &wrong {
        pair.inject(1, craft.frame(&config, 0));
    }
    pair.run(Duration::from_millis(1));
    assert!(memory.copy().iter().all(|b| *b == 0));
    assert_eq!(drops(&pair, 1, DropReason::BeyondWindow), 2);
    assert_eq!(drops(&pair, 1, DropReason::UnknownPath), 1);
    let fine = selective(&config, rc::WRITE_MIDDLE, 7, |_, r| good(r));
    pair.inject(1, fine.frame(&config, 0));
    pair.run(Duration::from_millis(1));
    assert_eq!(memory.copy()[7 * MTU..8 * MTU], [7; MTU]);
    assert!(memory.copy()[..7 * MTU].iter().all(|b| *b == 0));
    // In its turn, the first of them ends the connection.
    let first = selective(&config, rc::WRITE_FIRST, 0, |_, r| good(r));
    pair.inject(1, first.frame(&config, 0));
    pair.run(Duration::from_millis(1));
    assert_eq!(memory.copy()[..MTU], [7; MTU]);
    assert_eq!(pair.ends[1].events.len(), 1, "{:?}", pair.ends[1].events);
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_is_dropped() {
    let config = config(2);
    let mut pair = Pair::new(&config);
    let source = Bytes::of(pattern(4, 1));
    pair.post_recv(1, recv_wr(0, &source, 4)).unwrap();
    pair.capture();
    pair.post_send(0, send_wr(0, SendOp::Send, &source, 4))
        .unwrap();
    assert!(pair.run_until_completions(0, 1, LONG));
    let ack = pair
        .sent
        .iter()
        .find(|s| s.end == 1 && s.bth.opcode == rc::ACKNOWLEDGE.selective())
        .unwrap()
        .clone();
    let at = [&ack.frame[..]];
    let p = Packet::parse(&Head::of(&at), &at).unwrap();
    assert_eq!(
        p.bth.opcode.decode(),
        Some((Operation::Acknowledge, Position::Only))
    );
    for (psn, path, serial) in [(1, 0, 0), (0, 0, 1), (0, 1, 0), (0, 2, 0)] {
        let mut craft = Craft::new(1, ack.bth.opcode, config.psn[0].add(psn));
        let mut sack = p.sack.unwrap();
        sack.path = path;
        sack.highest = sack.highest.wrapping_add(serial);
        let mut bytes = [0; 44];
        bytes[..4].copy_from_slice(&[0x1f, 0, 0, 1]);
        let mut body = [0; 40];
        sack.emit(&mut body);
        bytes[4..].copy_from_slice(&body);
        craft.extensions = bytes.to_vec();
        pair.inject(0, craft.frame(&config, 1));
    }
    pair.run(LONG);
    assert_eq!(drops(&pair, 0, DropReason::GhostAck), 4);
    assert_eq!(stats(&pair, 0).state, stats(&pair, 1).state);
    assert!(pair.ends[0].endpoint.qp_info(QPNS[0]).is_some());
}
