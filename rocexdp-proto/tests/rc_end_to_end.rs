//! Every operation between two endpoints: every path MTU, the lengths at its edges, and loss in both directions.

mod common;

use std::time::Duration;

use common::{LONG, outcomes, pattern, recv_wr, send_wr, stats};
use rocexdp_common::fault::{Faults, Share};
use rocexdp_common::headers::{Feth, FlushRange};
use rocexdp_common::opcode::rc;
use rocexdp_proto::ids::{PathMtu, Psn};
use rocexdp_proto::mem::{Access, MemoryRegion};
use rocexdp_proto::rng::Rng;
use rocexdp_proto::verbs::{CqeOpcode, SendOp, Status};
use rocexdp_sim::pair::{Bytes, Pair, PairConfig};

const SUCCESS: Status = Status::Success;
const MIB: usize = 1 << 20;

fn access() -> Access {
    Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::FLUSH_GLOBAL
}

/// Memory at end 1 with these bytes, all of which end 0 may do anything with.
fn region(pair: &mut Pair, bytes: Vec<u8>) -> (std::sync::Arc<Bytes>, MemoryRegion) {
    let memory = Bytes::of(bytes);
    let endpoint = &mut pair.ends[1].endpoint;
    let mr = endpoint
        .register_memory(memory.clone(), 0x10_0000, access())
        .unwrap();
    (memory, mr)
}

fn config(path_mtu: PathMtu, loss_permille: u32, seed: u64) -> PairConfig {
    let fault = |seed| Faults {
        drop: Share::ratio(loss_permille, 1000),
        delay_ns: 2_000,
        seed,
        ..Faults::default()
    };
    PairConfig {
        path_mtu,
        access: access(),
        faults: [fault(seed), fault(seed + 1000)],
        ..PairConfig::default()
    }
}

fn lengths(mtu: PathMtu) -> [usize; 6] {
    let mtu = mtu.bytes() as usize;
    [0, 1, mtu - 1, mtu, mtu + 1, MIB]
}

#[test]
fn reads_and_writes_of_every_length_at_every_path_mtu() {
    for mtu in PathMtu::ALL {
        for len in lengths(mtu) {
            let mut pair = Pair::new(&config(mtu, 0, 1));
            let bytes = pattern(len, 1);
            let (memory, mr) = region(&mut pair, bytes.clone());
            let local = Bytes::filled(len, 0);
            let (va, rkey) = (mr.va, mr.rkey);
            pair.post_send(0, send_wr(1, SendOp::Read { va, rkey }, &local, len))
                .unwrap();
            assert!(pair.run(LONG));
            assert_eq!(
                outcomes(&mut pair, 0),
                [(1, CqeOpcode::Read, SUCCESS)],
                "{mtu} {len}"
            );
            assert!(local.copy() == bytes, "{mtu} {len}");
            let other = pattern(len, 2);
            let from = Bytes::of(other.clone());
            pair.post_send(0, send_wr(2, SendOp::Write { va, rkey }, &from, len))
                .unwrap();
            assert!(pair.run(LONG));
            assert!(memory.copy() == other, "{mtu} {len}");
            for end in 0..2 {
                let s = stats(&pair, end);
                assert_eq!((s.retransmitted_packets, s.local_ack_timeout_err), (0, 0));
            }
        }
    }
}

#[test]
fn reads_of_every_length_at_every_path_mtu_under_loss() {
    let mut again = 0;
    for mtu in PathMtu::ALL {
        for (i, len) in lengths(mtu).into_iter().enumerate() {
            let mut pair = Pair::new(&config(mtu, 20, i as u64));
            let bytes = pattern(len, 1);
            let (_, mr) = region(&mut pair, bytes.clone());
            let (va, rkey) = (mr.va, mr.rkey);
            let locals = [(); 4].map(|()| Bytes::filled(len, 0));
            for (id, local) in locals.iter().enumerate() {
                pair.post_send(0, send_wr(id as u64, SendOp::Read { va, rkey }, local, len))
                    .unwrap();
            }
            assert!(pair.run(LONG));
            let done: Vec<_> = (0..4).map(|id| (id, CqeOpcode::Read, SUCCESS)).collect();
            assert_eq!(outcomes(&mut pair, 0), done, "{mtu} {len}");
            for local in &locals {
                assert!(local.copy() == bytes, "{mtu} {len}");
            }
            again += stats(&pair, 0).retransmitted_packets;
        }
    }
    assert!(again > 100, "{again}");
}

/// A random program of all operations against a model of the peer's memory: every completion in order, all bytes right.
fn program(seed: u64, loss_permille: u32, mtu: PathMtu, depth: u8) {
    let mut c = config(mtu, loss_permille, seed);
    c.max_rd_atomic = depth;
    c.max_dest_rd_atomic = depth;
    c.endpoint[0].read_chunk_packets = 1 + (seed % 64) as u32;
    let mut rng = Rng::new(seed);
    let mut pair = Pair::new(&c);
    let size = 20_000usize;
    let mut model = pattern(size, seed);
    let (memory, mr) = region(&mut pair, model.clone());
    let inbox = Bytes::filled(size, 0);
    let mut expected = Vec::new();
    let mut brought = Vec::new();
    let count = 60u64;
    for id in 0..count {
        let mut below = |n: usize| (rng.next_u64() % n as u64) as usize;
        let at = below(size / 8 - 1) * 8;
        let len = match below(3) {
            0 => below(20),
            1 => below(2000),
            _ => below(size),
        }
        .min(size - at);
        let (va, rkey) = (mr.va + at as u64, mr.rkey);
        let word = u64::from_ne_bytes(model[at..at + 8].try_into().unwrap());
        let local;
        let (op, opcode) = match below(8) {
            0 => {
                let bytes = pattern(len, id);
                model[at..at + len].copy_from_slice(&bytes);
                local = Bytes::of(bytes);
                (SendOp::Write { va, rkey }, CqeOpcode::Write)
            }
            1 => {
                pair.post_recv(1, recv_wr(id, &inbox, size)).unwrap();
                local = Bytes::of(pattern(len, id));
                (SendOp::Send, CqeOpcode::Send)
            }
            2 => {
                let add = id + 1;
                model[at..at + 8].copy_from_slice(&word.wrapping_add(add).to_ne_bytes());
                local = Bytes::filled(8, 0);
                brought.push((local.clone(), word.to_ne_bytes().to_vec()));
                (SendOp::FetchAdd { va, rkey, add }, CqeOpcode::FetchAdd)
            }
            3 => {
                let hit = below(2) == 0;
                let compare = if hit { word } else { !word };
                if hit {
                    model[at..at + 8].copy_from_slice(&id.to_ne_bytes());
                }
                local = Bytes::filled(8, 0);
                brought.push((local.clone(), word.to_ne_bytes().to_vec()));
                let swap = id;
                (
                    SendOp::CompareSwap {
                        va,
                        rkey,
                        compare,
                        swap,
                    },
                    CqeOpcode::CompareSwap,
                )
            }
            4 => {
                model[at..at + 8].copy_from_slice(&(!id).to_ne_bytes());
                local = Bytes::of((!id).to_ne_bytes().to_vec());
                (SendOp::AtomicWrite { va, rkey }, CqeOpcode::AtomicWrite)
            }
            5 => {
                local = Bytes::filled(0, 0);
                let what = Feth {
                    global_visibility: true,
                    persistence: false,
                    placement_reserved: 0,
                    selectivity: FlushRange::Range,
                };
                let len = len as u32;
                (
                    SendOp::Flush {
                        va,
                        rkey,
                        len,
                        what,
                    },
                    CqeOpcode::Flush,
                )
            }
            _ => {
                local = Bytes::filled(len, 0);
                brought.push((local.clone(), model[at..at + len].to_vec()));
                (SendOp::Read { va, rkey }, CqeOpcode::Read)
            }
        };
        let n = local.copy().len();
        let mut wr = send_wr(id, op, &local, n);
        // A READ may see what a later request changes, unless that waits for it: its responses are read when they leave, and
        // read again when it is asked for again.
        let changes = matches!(
            opcode,
            CqeOpcode::Write
                | CqeOpcode::FetchAdd
                | CqeOpcode::CompareSwap
                | CqeOpcode::AtomicWrite
        );
        wr.fence = changes || below(4) == 0;
        pair.post_send(0, wr).unwrap();
        expected.push((id, opcode, SUCCESS));
        if below(3) == 0 {
            pair.run(Duration::from_micros(below(30) as u64));
        }
    }
    assert!(pair.run(LONG), "seed {seed}");
    assert_eq!(outcomes(&mut pair, 0), expected, "seed {seed}");
    assert!(memory.copy() == model, "seed {seed}");
    for (i, (local, bytes)) in brought.iter().enumerate() {
        assert!(&local.copy() == bytes, "seed {seed}, {i}");
    }
}

#[test]
fn programs_of_all_operations_without_loss() {
    for seed in 0..60 {
        program(
            seed,
            0,
            PathMtu::ALL[seed as usize % 5],
            1 + (seed % 16) as u8,
        );
    }
}

#[test]
fn programs_of_all_operations_under_loss_in_both_directions() {
    for seed in 0..120 {
        let loss = [5, 20, 50][seed as usize % 3];
        program(
            seed,
            loss,
            PathMtu::ALL[seed as usize % 5],
            1 + (seed % 16) as u8,
        );
    }
}

#[test]
fn a_clean_link_needs_no_retransmission_with_an_adaptive_timeout_either() {
    for floor in [
        None,
        Some(Duration::from_micros(4)),
        Some(Duration::from_micros(50)),
    ] {
        let mut c = config(PathMtu::Mtu1024, 0, 1);
        c.endpoint[0].adaptive_timeout_floor = floor;
        c.link_rate = Some(rocexdp_proto::time::Rate::from_gbps(10));
        let mut pair = Pair::new(&c);
        let (_, mr) = region(&mut pair, pattern(MIB, 1));
        let (va, rkey) = (mr.va, mr.rkey);
        for id in 0..60 {
            let op = match id % 3 {
                0 => SendOp::Read { va, rkey },
                1 => SendOp::Write { va, rkey },
                _ => SendOp::FetchAdd { va, rkey, add: 1 },
            };
            let len = if id % 3 == 2 { 8 } else { 200_000 };
            pair.post_send(0, send_wr(id, op, &Bytes::filled(len, 0), len))
                .unwrap();
            pair.run(Duration::from_micros(37));
        }
        assert!(pair.run(LONG));
        assert_eq!(outcomes(&mut pair, 0).len(), 60);
        let s = stats(&pair, 0);
        assert_eq!(
            (
                s.retransmitted_packets,
                s.local_ack_timeout_err,
                s.packet_seq_err
            ),
            (0, 0, 0),
            "{floor:?}"
        );
        assert_eq!(stats(&pair, 1).duplicate_request, 0);
    }
}

#[test]
fn an_atomic_whose_answer_is_lost_changes_memory_once() {
    let mut pair = Pair::new(&config(PathMtu::Mtu256, 0, 1));
    let (memory, mr) = region(&mut pair, vec![0; 8]);
    let (va, rkey) = (mr.va, mr.rkey);
    let mut lost = 0;
    pair.script = Some(Box::new(move |end, _, bth, _| {
        if end == 1 && bth.opcode == rc::ATOMIC_ACKNOWLEDGE && lost < 3 {
            lost += 1;
            return rocexdp_sim::pair::Fate::Drop;
        }
        rocexdp_sim::pair::Fate::Pass
    }));
    let local = Bytes::filled(8, 0xff);
    let op = SendOp::FetchAdd { va, rkey, add: 5 };
    pair.post_send(0, send_wr(1, op, &local, 8)).unwrap();
    assert!(pair.run(LONG));
    assert_eq!(outcomes(&mut pair, 0), [(1, CqeOpcode::FetchAdd, SUCCESS)]);
    assert_eq!(
        (local.copy(), memory.copy()),
        (vec![0; 8], 5u64.to_ne_bytes().to_vec())
    );
    assert_eq!(stats(&pair, 0).local_ack_timeout_err, 3);
}

#[test]
fn a_read_of_two_to_the_31_bytes_arrives() {
    use rocexdp_proto::ids::WrId;
    use rocexdp_proto::verbs::{Segment, SendWr};
    use rocexdp_sim::memory::NoBytes;
    let mut pair = Pair::new(&config(PathMtu::Mtu4096, 0, 1));
    let memory = std::sync::Arc::new(NoBytes(1 << 31));
    let endpoint = &mut pair.ends[1].endpoint;
    let mr = endpoint
        .register_memory(memory.clone(), 1 << 31, access())
        .unwrap();
    let (va, rkey) = (mr.va, mr.rkey);
    let local = Segment::new(memory, 0, 1 << 31);
    pair.post_send(0, SendWr::new(WrId(1), SendOp::Read { va, rkey }, local))
        .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(outcomes(&mut pair, 0), [(1, CqeOpcode::Read, SUCCESS)]);
    let info = pair.ends[0]
        .endpoint
        .qp_info(rocexdp_sim::pair::QPNS[0])
        .unwrap();
    assert_eq!(info.unacked_psn, Psn::new(0xff_fff0).add(1 << 19));
    assert_eq!(info.stats.retransmitted_packets, 0);
    // A request for each chunk of 64 packets.
    assert_eq!(info.stats.tx_packets, (1 << 19) / 64);
}
