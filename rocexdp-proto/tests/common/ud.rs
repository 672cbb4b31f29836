//! What the tests of UD share.

use rocexdp_common::headers::Deth;
use rocexdp_common::opcode::Opcode;
use rocexdp_proto::Transport;
use rocexdp_proto::ids::Psn;
use rocexdp_proto::verbs::{CqeOpcode, Datagram, SendOp, Status};
use rocexdp_sim::pair::{Bytes, Pair, PairConfig, QPNS};

use super::{Craft, LONG, outcomes, pattern, send_wr};

/// UD's SEND.
pub const SEND: Opcode = Opcode(0x64);
/// SEND with immediate.
pub const SEND_IMM: Opcode = Opcode(0x65);
/// The Q_Key of a pair's QPs.
pub const QKEY: u32 = 0x1111_1111;

/// A pair of UD QPs.
pub fn config() -> PairConfig {
    PairConfig {
        transport: Transport::Ud,
        ..PairConfig::default()
    }
}

/// A packet to end 1 with this Q_Key.
pub fn packet(opcode: Opcode, qkey: u32) -> Craft {
    let mut craft = Craft::new(0, opcode, Psn::new(0));
    let mut deth = [0; Deth::LEN];
    let src_qpn = QPNS[0];
    Deth { qkey, src_qpn }.emit(&mut deth);
    craft.extensions.extend_from_slice(&deth);
    if opcode == SEND_IMM {
        craft.extensions.extend_from_slice(&[0, 0, 0, 9]);
    }
    craft
}

/// Sends `len` bytes from end 0 to `to`.
pub fn send(pair: &mut Pair, op: SendOp, len: usize, to: Datagram) -> Vec<u8> {
    let data = pattern(len, len as u64);
    let wr = send_wr(6, op, &Bytes::of(data.clone()), len).to(to);
    pair.post_send(0, wr).unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(pair, 0),
        [(6, CqeOpcode::Send, Status::Success)],
        "whoever takes it"
    );
    data
}
