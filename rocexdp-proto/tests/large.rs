//! The longest message, 2^31 bytes, packet by packet; and one byte more, which is refused where it is posted.

mod common;

use std::sync::Arc;

use common::LONG;
use rocexdp_proto::ids::{PathMtu, Psn, WrId};
use rocexdp_proto::mem::Access;
use rocexdp_proto::verbs::{
    CqeOpcode, MAX_MESSAGE, PostError, RecvWr, Segment, SendOp, SendWr, Status,
};
use rocexdp_sim::memory::NoBytes;
use rocexdp_sim::pair::{Pair, PairConfig, QPNS};

fn wr(op: SendOp, memory: &Arc<NoBytes>, len: u32) -> SendWr {
    SendWr {
        wr_id: WrId(1),
        op,
        local: Segment::new(memory.clone(), 0, len).into(),
        signaled: true,
        solicited: false,
        fence: false,
        to: None,
    }
}

#[test]
fn a_write_of_two_to_the_31_bytes_arrives() {
    let config = PairConfig {
        path_mtu: PathMtu::Mtu4096,
        ..PairConfig::default()
    };
    let mut pair = Pair::new(&config);
    let memory = Arc::new(NoBytes(1 << 32));
    let access = Access::REMOTE_WRITE;
    let region = pair.ends[1]
        .endpoint
        .register_memory(memory.clone(), u64::from(u32::MAX), access)
        .unwrap();
    pair.post_recv(
        1,
        RecvWr {
            wr_id: WrId(2),
            local: Segment::empty().into(),
        },
    )
    .unwrap();
    let op = SendOp::WriteImm {
        va: region.va + (1 << 31),
        rkey: region.rkey,
        imm: 1,
    };
    assert_eq!(
        pair.post_send(0, wr(op, &memory, MAX_MESSAGE + 1)),
        Err(PostError::TooLong)
    );
    pair.post_send(0, wr(op, &memory, MAX_MESSAGE)).unwrap();
    assert!(pair.run(LONG));
    let done = pair.completions(1)[0];
    assert_eq!(
        (done.opcode, done.status, done.byte_len),
        (CqeOpcode::RecvWriteImm, Status::Success, MAX_MESSAGE)
    );
    assert_eq!(pair.completions(0)[0].status, Status::Success);
    let info = pair.ends[1].endpoint.qp_info(QPNS[1]).unwrap();
    assert_eq!(
        (info.expected_psn, info.msn),
        (Psn::new(0xff_fff0).add(1 << 19), 1)
    );
    assert_eq!(info.stats.rx_bytes, 1 << 31);
}

/// 2^23 packets are half of all PSNs: an acknowledgement must still be told from a duplicate. Sent up to a window, since the
/// rest is more of the same.
#[test]
fn the_message_with_the_most_packets_starts_and_its_window_moves() {
    let config = PairConfig {
        path_mtu: PathMtu::Mtu256,
        ..PairConfig::default()
    };
    let mut pair = Pair::new(&config);
    let memory = Arc::new(NoBytes(1 << 31));
    let region = pair.ends[1]
        .endpoint
        .register_memory(memory.clone(), 0, Access::REMOTE_WRITE)
        .unwrap();
    pair.post_send(
        0,
        wr(
            SendOp::Write {
                va: 0,
                rkey: region.rkey,
            },
            &memory,
            MAX_MESSAGE,
        ),
    )
    .unwrap();
    let until = pair.now() + core::time::Duration::from_millis(20);
    pair.run_while(until, |_| true);
    let info = pair.ends[0].endpoint.qp_info(QPNS[0]).unwrap();
    assert!(
        info.unacked_psn.diff(Psn::new(0xff_fff0)) > 100_000,
        "{}",
        info.unacked_psn
    );
    assert_eq!(info.stats.retransmitted_packets, 0);
    // One byte beyond the region, it is refused at once.
    let mut pair = Pair::new(&config);
    let short = Arc::new(NoBytes((1 << 31) - 1));
    let region = pair.ends[1]
        .endpoint
        .register_memory(short, 0, Access::REMOTE_WRITE)
        .unwrap();
    pair.post_send(
        0,
        wr(
            SendOp::Write {
                va: 0,
                rkey: region.rkey,
            },
            &memory,
            MAX_MESSAGE,
        ),
    )
    .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(pair.completions(0)[0].status, Status::RemAccessErr);
}
