//! Any answer, at any time, to a requester: no panic, nothing written outside what was posted, and every request completes
//! once and in order, whatever the peer says.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::lone::{ADD, KEY, Lone, READ, VA, WRITE};
use common::{Craft, send_wr};
use rocexdp_common::headers::Syndrome;
use rocexdp_common::opcode::{Opcode, rc};
use rocexdp_proto::QpState;
use rocexdp_proto::ids::PathMtu;
use rocexdp_proto::rng::Rng;
use rocexdp_proto::verbs::{Segment, SendOp, Status};
use rocexdp_sim::pair::Bytes;

/// A random answer near what is outstanding. `mild`: none that ends the connection by itself.
fn answer(l: &Lone, rng: &mut Rng, mild: bool) -> Craft {
    let una = l.unacked();
    let at = match rng.below(8) {
        0 => una + rng.below(400) as i32 - 200,
        1 => rng.next_u32() as i32 >> 9,
        2..=4 => una,
        _ => una + rng.below(6) as i32,
    };
    let opcodes = [
        rc::ACKNOWLEDGE,
        rc::READ_RESPONSE_FIRST,
        rc::READ_RESPONSE_MIDDLE,
        rc::READ_RESPONSE_LAST,
        rc::READ_RESPONSE_ONLY,
        rc::ATOMIC_ACKNOWLEDGE,
    ];
    let opcode: Opcode = if mild {
        rc::ACKNOWLEDGE
    } else {
        opcodes[rng.below(6) as usize]
    };
    let mut craft = Craft::new(1, opcode, l.psn(at));
    if opcode != rc::READ_RESPONSE_MIDDLE {
        let syndrome = match rng.below(if mild { 4 } else { 12 }) {
            0 => Syndrome::NakSequence,
            1 => Syndrome::RnrNak(1 + rng.below(3) as u8),
            4 => Syndrome::from_byte(rng.next_u32() as u8),
            _ => Syndrome::Ack(rng.below(0x20) as u8),
        };
        craft = craft.aeth(syndrome);
    }
    if opcode == rc::ATOMIC_ACKNOWLEDGE {
        craft.extensions.extend_from_slice(&[0xee; 8]);
    } else if opcode != rc::ACKNOWLEDGE {
        let len = [0, 8, 44, 255, 256, 256, 256, 300][rng.below(8) as usize];
        craft = craft.payload(&vec![0xee; len]);
    }
    craft
}

/// Gives how many requests completed, and with what.
fn run(seed: u64, mild: bool) -> Vec<Status> {
    let mut rng = Rng::new(seed);
    let mut l = Lone::with(|c| {
        c.path_mtu = PathMtu::Mtu256;
        c.max_rd_atomic = 1 + (seed % 4) as u8;
        c.endpoint[0].max_inflight_packets = 1 + (seed % 20) as u32;
        c.endpoint[0].read_chunk_packets = 1 + (seed % 5) as u32;
        c.retry_cnt = 7;
    });
    let (mut posted, mut done, mut memories) = (0u64, Vec::new(), Vec::new());
    for _ in 0..400 {
        if posted < 60 && rng.below(3) == 0 {
            let ops = [
                READ,
                READ,
                ADD,
                WRITE,
                SendOp::Send,
                SendOp::AtomicWrite { va: VA, rkey: KEY },
            ];
            let op = ops[rng.below(6) as usize];
            let len = match op {
                SendOp::FetchAdd { .. } | SendOp::AtomicWrite { .. } => 8,
                _ => rng.below(1500) as usize,
            };
            let memory = Bytes::filled(len + 64, 0);
            let mut wr = send_wr(posted, op, &memory, len);
            wr.local = Segment::new(memory.clone(), 32, len as u32).into();
            wr.fence = rng.below(4) == 0;
            l.post_wr(wr);
            posted += 1;
            memories.push((op, memory));
        }
        let craft = answer(&l, &mut rng, mild);
        l.crafted(&craft);
        if rng.below(8) == 0 {
            l.wait(Duration::from_micros(rng.below(1200)));
        }
        done.extend(l.outcomes());
        l.asked();
    }
    l.pair.run(common::LONG);
    done.extend(l.outcomes());
    assert_eq!(
        l.state() == QpState::Err,
        posted > done.iter().filter(|d| d.1 == Status::Success).count() as u64
    );
    let ids: Vec<u64> = done.iter().map(|d| d.0).collect();
    assert_eq!(
        ids,
        (0..posted).collect::<Vec<_>>(),
        "seed {seed}: each once and in order"
    );
    // At most one failed by itself.
    let failed = done
        .iter()
        .filter(|d| !matches!(d.1, Status::Success | Status::WrFlushErr));
    assert!(failed.count() <= 1);
    for (op, memory) in &memories {
        check(*op, memory, seed);
    }
    done.iter().map(|d| d.1).collect()
}

fn check(op: SendOp, memory: &Arc<Bytes>, seed: u64) {
    let bytes = memory.copy();
    let (before, rest) = bytes.split_at(32);
    let (inside, behind) = rest.split_at(rest.len() - 32);
    assert!(before.iter().chain(behind).all(|b| *b == 0), "seed {seed}");
    if !matches!(op, SendOp::Read { .. } | SendOp::FetchAdd { .. }) {
        assert!(inside.iter().all(|b| *b == 0), "seed {seed}: {op:?}");
    }
}

#[test]
fn every_request_completes_once_and_in_order_whatever_is_answered() {
    let mut seen = [0; 14];
    for seed in 0..1500 {
        for status in run(seed, seed % 3 == 0) {
            seen[status as usize] += 1;
        }
    }
    for status in [
        Status::Success,
        Status::LocLenErr,
        Status::WrFlushErr,
        Status::BadRespErr,
        Status::RemInvReqErr,
        Status::RemAccessErr,
        Status::RemOpErr,
        Status::RetryExcErr,
    ] {
        assert!(seen[status as usize] > 0, "{status}: {seen:?}");
    }
}
