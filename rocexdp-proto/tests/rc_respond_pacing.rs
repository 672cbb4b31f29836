//! READ responses are data: metered, paced by the responder's own rate, and in turn with its own requests.

mod common;

use core::time::Duration;
use std::sync::Arc;

use common::{pattern, send_wr, stats};
use rocexdp_common::opcode::rc;
use rocexdp_proto::mem::Access;
use rocexdp_proto::time::Rate;
use rocexdp_proto::verbs::SendOp;
use rocexdp_proto::{CongestionSignal, EndpointConfig};
use rocexdp_sim::pair::{Bytes, NoBytes, Pair, PairConfig, QPNS};

const LONG: usize = 64 << 20;

/// A pair whose end 1 keeps the rate that CNPs have brought it to.
fn holding() -> Pair {
    let mut responder = EndpointConfig {
        line_rate: Some(Rate::from_gbps(10)),
        ..EndpointConfig::default()
    };
    responder.rp.rpg_time_reset = Duration::from_secs(50);
    responder.rp.rpg_byte_reset = 0;
    Pair::new(&PairConfig {
        endpoint: [EndpointConfig::default(), responder],
        link_rate: Some(Rate::from_gbps(10)),
        timeout: 14,
        ..PairConfig::default()
    })
}

/// CNPs come to end 1, which sends; gives its rate.
fn cut(pair: &mut Pair, cnps: u32) -> Rate {
    pair.run(Duration::from_micros(500));
    for _ in 0..cnps {
        let signal = CongestionSignal {
            ce_marks: 0,
            cnps: 1,
        };
        let now = pair.now();
        pair.ends[1]
            .endpoint
            .handle_congestion(now, QPNS[1], signal);
        pair.run(Duration::from_micros(20));
    }
    let info = pair.ends[1].endpoint.qp_info(QPNS[1]).unwrap();
    info.rate.unwrap()
}

/// End 0 reads 64 MiB of end 1, whose rate has been cut.
fn reading() -> (Pair, Rate) {
    let mut pair = holding();
    let source = Arc::new(NoBytes(LONG as u64));
    let end = &mut pair.ends[1].endpoint;
    let region = end.register_memory(source, 0, Access::REMOTE_READ).unwrap();
    let op = SendOp::Read {
        va: region.va,
        rkey: region.rkey,
    };
    let sink = Bytes::filled(LONG, 0);
    pair.post_send(0, send_wr(1, op, &sink, LONG)).unwrap();
    let held = cut(&mut pair, 6);
    pair.capture();
    (pair, held)
}

/// End 1 writes 4 MiB to end 0.
fn write(pair: &mut Pair) {
    let end = &mut pair.ends[0].endpoint;
    let sink = Arc::new(NoBytes(4 << 20));
    let region = end.register_memory(sink, 0, Access::REMOTE_WRITE).unwrap();
    let op = SendOp::Write {
        va: 0,
        rkey: region.rkey,
    };
    let source = Bytes::of(pattern(4 << 20, 1));
    pair.post_send(1, send_wr(2, op, &source, 4 << 20)).unwrap();
}

/// Bytes that end 1 sent in 5 ms: READ responses, requests.
fn sent(pair: &mut Pair) -> [usize; 2] {
    pair.sent.clear();
    let until = pair.now() + Duration::from_millis(5);
    pair.run_while(until, |_| true);
    let of = |response: bool| {
        pair.sent
            .iter()
            .filter(|s| s.end == 1 && s.bth.opcode != rc::ACKNOWLEDGE)
            .filter(|s| s.bth.opcode.is_response() == response)
            .map(|s| s.frame.len())
            .sum()
    };
    [of(true), of(false)]
}

fn close(bytes: usize, held: Rate) {
    let seen = Rate::measured(bytes as u64, Duration::from_millis(5)).unwrap();
    let share = seen.as_bps() as f64 / held.as_bps() as f64;
    assert!((0.98..1.02).contains(&share), "{seen} instead of {held}");
}

#[test]
fn read_responses_leave_at_the_responders_rate() {
    let (mut pair, held) = reading();
    assert!(held < Rate::from_gbps(2), "{held}");
    let [responses, requests] = sent(&mut pair);
    assert_eq!(requests, 0);
    close(responses, held);
    assert_eq!(stats(&pair, 1).retransmitted_packets, 0);
}

#[test]
fn read_responses_and_requests_of_a_qp_share_its_rate_in_turn() {
    let (mut pair, held) = reading();
    write(&mut pair);
    let [responses, requests] = sent(&mut pair);
    close(responses + requests, held);
    let share = responses as f64 / (responses + requests) as f64;
    assert!((0.45..0.55).contains(&share), "{share}");
}

#[test]
fn an_answer_without_data_does_not_wait_for_the_pacer() {
    let mut pair = holding();
    write(&mut pair);
    let held = cut(&mut pair, 30);
    assert!(held < Rate::from_mbps(80), "{held}");
    let end = &mut pair.ends[1].endpoint;
    let region = end
        .register_memory(Bytes::filled(8, 0), 0, Access::REMOTE_ATOMIC)
        .unwrap();
    let add = SendOp::FetchAdd {
        va: 0,
        rkey: region.rkey,
        add: 1,
    };
    let before = pair.now();
    let sink = Bytes::filled(8, 0);
    pair.post_send(0, send_wr(3, add, &sink, 8)).unwrap();
    assert!(pair.run_until_completions(0, 1, Duration::from_millis(1)));
    // A round trip is 4 us; the next packet of 1 KiB has 100 us to wait.
    let took = pair.now().saturating_since(before);
    assert!(took < Duration::from_micros(8), "{took:?}");
}
