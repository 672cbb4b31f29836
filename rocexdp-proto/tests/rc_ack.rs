//! Acknowledgements: when they are asked for and given, what a gap, a duplicate and a lost one lead to.

mod common;

use std::time::Duration;

use common::{
    Craft, LONG, answers, outcomes, pattern, recv_wr, requests, send_wr, stats, target, write_op,
};
use rocexdp_common::headers::Syndrome;
use rocexdp_common::opcode::rc;
use rocexdp_proto::ids::{PathMtu, Psn};
use rocexdp_proto::verbs::{CqeOpcode, SendOp, Status};
use rocexdp_sim::pair::{Bytes, Fate, Pair, PairConfig};

const ACK: Syndrome = Syndrome::Ack(0x1f);
const FIRST: Psn = Psn::new(0xff_fff0);

fn small() -> PairConfig {
    PairConfig {
        path_mtu: PathMtu::Mtu256,
        ..PairConfig::default()
    }
}

/// A pair with one WRITE of `packets` packets posted at end 0, everything captured.
fn writing(config: &PairConfig, packets: usize) -> (Pair, std::sync::Arc<Bytes>) {
    let mut pair = Pair::new(config);
    let size = packets * config.path_mtu.bytes() as usize;
    let (bytes, region) = target(&mut pair, size);
    pair.post_send(
        0,
        send_wr(1, write_op(&region), &Bytes::of(pattern(size, 1)), size),
    )
    .unwrap();
    pair.capture();
    (pair, bytes)
}

fn finish(pair: &mut Pair, bytes: &Bytes) {
    assert!(pair.run(LONG));
    assert_eq!(outcomes(pair, 0), [(1, CqeOpcode::Write, Status::Success)]);
    let got = bytes.copy();
    assert!(got == pattern(got.len(), 1));
}

#[test]
fn an_ack_is_asked_for_at_the_end_at_intervals_and_when_the_window_is_full() {
    let mut config = small();
    config.endpoint[0].ack_req_interval = 10;
    config.endpoint[0].max_inflight_packets = 15;
    let (mut pair, bytes) = writing(&config, 33);
    finish(&mut pair, &bytes);
    let asked: Vec<i32> = pair
        .sent
        .iter()
        .filter(|s| s.end == 0 && s.bth.ack_req)
        .map(|s| s.bth.psn.diff(FIRST))
        .collect();
    // 14 fills the first window; the ACK of it lets 15 more go (29 is both); then the last.
    assert_eq!(asked, [9, 14, 19, 29, 32]);
    assert_eq!(
        answers(&pair.sent, 1).len(),
        3,
        "one ACK for each burst that asked"
    );
}

#[test]
fn packets_that_ask_in_one_batch_get_one_ack() {
    let mut pair = Pair::new(&small());
    let (_, region) = target(&mut pair, 64);
    for n in 0..40 {
        pair.post_send(
            0,
            send_wr(n, write_op(&region), &Bytes::of(pattern(64, n)), 64),
        )
        .unwrap();
    }
    pair.capture();
    assert!(pair.run(LONG));
    assert_eq!(answers(&pair.sent, 1), [(FIRST.add(39), ACK)]);
    assert_eq!(pair.completions(0).len(), 40);
}

#[test]
fn one_nak_for_a_gap_and_then_silence_until_it_is_filled() {
    let (mut pair, bytes) = writing(&small(), 20);
    pair.script = Some(Box::new(|end, n, _, _| {
        if end == 0 && n == 5 {
            Fate::Drop
        } else {
            Fate::Pass
        }
    }));
    finish(&mut pair, &bytes);
    let missing = FIRST.add(5);
    assert_eq!(
        answers(&pair.sent, 1),
        [(missing, Syndrome::NakSequence), (FIRST.add(19), ACK)]
    );
    let sent: Vec<i32> = (0..20).chain(5..20).collect();
    assert_eq!(
        requests(&pair.sent, 0, FIRST),
        sent,
        "go-back-N from the missing packet"
    );
    let (s0, s1) = (stats(&pair, 0), stats(&pair, 1));
    assert_eq!(
        (
            s0.packet_seq_err,
            s0.local_ack_timeout_err,
            s0.retransmitted_packets
        ),
        (1, 0, 15)
    );
    assert_eq!((s1.tx_naks, s1.out_of_sequence), (1, 14));
}

#[test]
fn a_second_gap_gets_its_own_nak() {
    let (mut pair, bytes) = writing(&small(), 20);
    // Packet 5 is lost, then 8 when it is sent again.
    pair.script = Some(Box::new(|end, n, _, _| {
        if end == 0 && (n == 5 || n == 20 + 3) {
            Fate::Drop
        } else {
            Fate::Pass
        }
    }));
    finish(&mut pair, &bytes);
    let naks = [
        (FIRST.add(5), Syndrome::NakSequence),
        (FIRST.add(8), Syndrome::NakSequence),
        (FIRST.add(19), ACK),
    ];
    assert_eq!(answers(&pair.sent, 1), naks);
}

#[test]
fn a_lost_nak_is_made_up_for_by_the_timeout() {
    let (mut pair, bytes) = writing(&small(), 20);
    pair.script = Some(Box::new(|end, n, _, _| {
        if (end == 0 && n == 5) || (end == 1 && n == 0) {
            Fate::Drop
        } else {
            Fate::Pass
        }
    }));
    finish(&mut pair, &bytes);
    let s = stats(&pair, 0);
    assert_eq!((s.packet_seq_err, s.local_ack_timeout_err), (0, 1));
    // The timeout knows nothing of the gap: all is sent again, and the duplicates are acknowledged at once.
    assert_eq!(stats(&pair, 1).duplicate_request, 5);
}

#[test]
fn a_duplicate_is_acknowledged_again_even_if_it_does_not_ask() {
    let config = small();
    let mut pair = Pair::new(&config);
    let (bytes, region) = target(&mut pair, 256);
    pair.capture();
    let write = Craft::new(0, rc::WRITE_ONLY, FIRST)
        .reth(region.va, region.rkey.0, 256)
        .payload(&pattern(256, 1));
    pair.inject(1, write.frame(&config, 0));
    assert!(pair.run(LONG));
    assert_eq!(answers(&pair.sent, 1), [], "nobody asked");
    let mut other = write.clone();
    other.payload = pattern(256, 2);
    pair.inject(1, other.frame(&config, 0));
    assert!(pair.run(LONG));
    assert_eq!(answers(&pair.sent, 1), [(FIRST, ACK)]);
    assert!(
        bytes.copy() == pattern(256, 1),
        "a duplicate is not executed again"
    );
    // Half the PSN space behind is the oldest that counts as one.
    for behind in [1, 1000, 0x7f_ffff] {
        pair.sent.clear();
        let old = Craft::new(0, rc::SEND_ONLY, FIRST.sub(behind));
        pair.inject(1, old.frame(&config, 0));
        assert!(pair.run(LONG));
        assert_eq!(answers(&pair.sent, 1), [(FIRST, ACK)], "{behind} behind");
    }
}

#[test]
fn a_lost_ack_leads_to_duplicates_and_one_completion() {
    let mut pair = Pair::new(&small());
    let inbox = Bytes::filled(1000, 0);
    pair.post_recv(1, recv_wr(7, &inbox, 1000)).unwrap();
    pair.post_send(
        0,
        send_wr(1, SendOp::Send, &Bytes::of(pattern(1000, 1)), 1000),
    )
    .unwrap();
    pair.script = Some(Box::new(|end, n, _, _| {
        if end == 1 && n < 2 {
            Fate::Drop
        } else {
            Fate::Pass
        }
    }));
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Send, Status::Success)]
    );
    assert_eq!(
        outcomes(&mut pair, 1),
        [(7, CqeOpcode::Recv, Status::Success)]
    );
    assert_eq!(stats(&pair, 0).local_ack_timeout_err, 2);
    assert!(inbox.copy() == pattern(1000, 1));
}

#[test]
fn an_ack_that_comes_while_sending_again_is_not_wasted() {
    // The answer to all 20 is late: the timeout has the requester send again, and the ACK arrives in the middle of it.
    let mut config = small();
    config.link_rate = Some(rocexdp_proto::time::Rate::from_mbps(100));
    let (mut pair, bytes) = writing(&config, 20);
    pair.script = Some(Box::new(|end, n, _, _| {
        if end == 1 && n == 0 {
            Fate::Late(Duration::from_micros(1048 + 100))
        } else {
            Fate::Pass
        }
    }));
    finish(&mut pair, &bytes);
    let again = stats(&pair, 0).retransmitted_packets;
    assert!((1..20).contains(&again), "{again}");
}

#[test]
fn an_ack_of_something_never_sent_changes_nothing() {
    let config = small();
    let mut pair = Pair::new(&config);
    let (_, region) = target(&mut pair, 1024);
    pair.post_send(
        0,
        send_wr(1, write_op(&region), &Bytes::of(pattern(1024, 1)), 1024),
    )
    .unwrap();
    pair.script = Some(Box::new(
        |end, _, _, _| if end == 1 { Fate::Drop } else { Fate::Pass },
    ));
    pair.run(Duration::from_micros(10));
    for (psn, syndrome) in [
        (FIRST.add(4), ACK),
        (FIRST.add(4), Syndrome::NakRemoteAccess),
        (FIRST.add(0x7f_ffff), ACK),
        (FIRST.sub(1), Syndrome::NakSequence),
        (FIRST.sub(5), Syndrome::NakRemoteAccess),
        (FIRST.sub(5), ACK),
        (FIRST.add(1), Syndrome::Reserved(0x45)),
        (FIRST.add(1), Syndrome::Reserved(0x9f)),
    ] {
        let ack = Craft::new(1, rc::ACKNOWLEDGE, psn).aeth(syndrome);
        pair.inject(0, ack.frame(&config, 1));
        pair.run(Duration::ZERO);
        let info = pair.ends[0].endpoint.qp_info(pair.ends[0].qp.qpn).unwrap();
        assert_eq!(info.unacked_psn, FIRST, "{psn} {syndrome:?}");
        assert_eq!(info.stats.retransmitted_packets, 0, "{psn} {syndrome:?}");
    }
    let counters = pair.ends[0].endpoint.counters();
    assert_eq!(
        counters.drops[rocexdp_proto::DropReason::GhostAck.index()],
        6
    );
    assert_eq!(
        counters.drops[rocexdp_proto::DropReason::ReservedSyndrome.index()],
        2
    );
    assert_eq!(pair.completions(0).len(), 0);
    // Any credit code is an ACK, and it covers what is before it.
    let ack = Craft::new(1, rc::ACKNOWLEDGE, FIRST.add(3)).aeth(Syndrome::Ack(5));
    pair.inject(0, ack.frame(&config, 1));
    pair.run(Duration::ZERO);
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Write, Status::Success)]
    );
}

#[test]
fn an_ack_in_the_middle_of_a_message_completes_nothing_and_moves_the_window() {
    let config = small();
    let (mut pair, _) = writing(&config, 8);
    pair.script = Some(Box::new(
        |end, _, _, _| if end == 1 { Fate::Drop } else { Fate::Pass },
    ));
    pair.run(Duration::from_micros(10));
    let ack = Craft::new(1, rc::ACKNOWLEDGE, FIRST.add(4)).aeth(ACK);
    pair.inject(0, ack.frame(&config, 1));
    pair.run(Duration::ZERO);
    let info = pair.ends[0].endpoint.qp_info(pair.ends[0].qp.qpn).unwrap();
    assert_eq!(
        (info.unacked_psn, pair.completions(0).len()),
        (FIRST.add(5), 0)
    );
}

#[test]
fn an_old_nak_that_was_overtaken_changes_nothing() {
    let config = small();
    let (mut pair, _) = writing(&config, 8);
    pair.script = Some(Box::new(
        |end, _, _, _| {
            if end == 1 { Fate::Drop } else { Fate::Pass }
        },
    ));
    pair.run(Duration::from_micros(10));
    for (at, syndrome) in [
        (4, ACK),
        (4, Syndrome::NakRemoteAccess),
        (2, Syndrome::NakSequence),
        (0, Syndrome::RnrNak(0)),
        (0, Syndrome::NakInvalidRequest),
    ] {
        let ack = Craft::new(1, rc::ACKNOWLEDGE, FIRST.add(at)).aeth(syndrome);
        pair.inject(0, ack.frame(&config, 1));
        pair.run(Duration::ZERO);
        let info = pair.ends[0].endpoint.qp_info(pair.ends[0].qp.qpn).unwrap();
        assert_eq!(
            (info.unacked_psn, info.stats.retransmitted_packets),
            (FIRST.add(5), 0)
        );
        assert_eq!(pair.completions(0).len(), 0, "{syndrome:?}");
    }
}

#[test]
fn an_acknowledgement_leaves_before_a_request() {
    let config = small();
    let mut pair = Pair::new(&config);
    let (_, region) = target(&mut pair, 64);
    pair.capture();
    pair.post_recv(0, recv_wr(1, &Bytes::filled(64, 0), 64))
        .unwrap();
    pair.post_send(1, send_wr(2, SendOp::Send, &Bytes::of(pattern(64, 1)), 64))
        .unwrap();
    let write = Craft::new(0, rc::WRITE_ONLY, FIRST)
        .reth(region.va, region.rkey.0, 0)
        .asking();
    pair.inject(1, write.frame(&config, 0));
    pair.run(Duration::ZERO);
    let left: Vec<_> = pair.sent.iter().map(|s| (s.end, s.bth.opcode)).collect();
    assert_eq!(left, [(1, rc::ACKNOWLEDGE), (1, rc::SEND_ONLY)]);
}
