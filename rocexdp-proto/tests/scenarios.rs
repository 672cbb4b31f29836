//! Faults met in public that no other test shows (`docs/scenarios.md`).

mod common;

use common::{Craft, LONG, pattern, recv_wr};
use rocexdp_common::opcode::rc;
use rocexdp_proto::DropReason;
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::Status;
use rocexdp_proto::wire::RxMeta;
use rocexdp_sim::pair::{Bytes, Pair, PairConfig, QPNS};

/// Where the BTH of an untagged IPv4 frame begins.
const BTH: usize = 14 + 20 + 8;

/// lrdma:a8e215e2c: senders and receivers that left the pad out of the ICRC did not understand each other.
#[test]
fn the_pad_is_inside_the_icrc() {
    let config = PairConfig::default();
    let inbox = Bytes::filled(64, 0);
    let mut pair = Pair::new(&config);
    pair.post_recv(1, recv_wr(1, &inbox, 64)).unwrap();
    let payload = pattern(33, 1);
    let right = Craft::new(0, rc::SEND_ONLY, config.psn[0])
        .payload(&payload)
        .frame(&config, 0);
    let pad = right.len() - 4 - 3;
    for at in pad..pad + 3 {
        let mut wrong = right.clone();
        wrong[at] ^= 1;
        let result =
            pair.ends[1]
                .endpoint
                .handle_frame(Timestamp::ZERO, &RxMeta::default(), &[&wrong]);
        assert_eq!(result, Err(DropReason::Icrc), "byte {at}");
    }
    pair.inject(1, right);
    pair.run(LONG);
    assert_eq!(pair.completions(1)[0].status, Status::Success);
    assert_eq!(inbox.copy()[..33], payload);
}

/// lrdma:1f2af3068: the byte that holds FECN, BECN and six reserved bits.
#[test]
fn no_combination_of_congestion_and_reserved_bits_changes_what_a_packet_does() {
    let config = PairConfig {
        depth: 256,
        ..PairConfig::default()
    };
    let mut pair = Pair::new(&config);
    let inbox = Bytes::filled(64, 0);
    for byte in 0..=255_u8 {
        pair.post_recv(1, recv_wr(u64::from(byte), &inbox, 64))
            .unwrap();
        let psn = config.psn[0].add(u32::from(byte));
        // The ICRC was computed with another value of the byte, which a router may have changed.
        let mut frame = Craft::new(0, rc::SEND_ONLY, psn)
            .asking()
            .payload(&[byte; 8])
            .frame(&config, 0);
        frame[BTH + 4] = byte;
        pair.inject(1, frame);
        pair.run(core::time::Duration::from_micros(10));
        let done = pair.completions(1);
        assert_eq!(done.len(), 1, "{byte:#04x}");
        assert_eq!(done[0].status, Status::Success, "{byte:#04x}");
        assert_eq!(inbox.copy()[..8], [byte; 8]);
    }
    let info = pair.ends[1].endpoint.qp_info(QPNS[1]).unwrap();
    assert_eq!(info.stats.rx_dropped, 0);
    // FECN and BECN of a data packet are nothing to DCQCN here: marks are IP's, CNPs have an opcode.
    assert_eq!(info.stats.rp_cnp_handled, 0);
}

/// lrdma:54999a0b1: a frame lies in memory that its sender, on the same host, may still write. What is acted on is what was
/// checked: a frame that changes behind the check of its ICRC is impossible for a borrowed slice, and one that had changed
/// before is refused.
#[test]
fn what_is_acted_on_is_what_was_checked() {
    let config = PairConfig::default();
    let mut pair = Pair::new(&config);
    let inbox = Bytes::filled(64, 0);
    pair.post_recv(1, recv_wr(1, &inbox, 64)).unwrap();
    let frame = Craft::new(0, rc::SEND_ONLY, config.psn[0])
        .asking()
        .payload(&[7; 32])
        .frame(&config, 0);
    let before = pair.ends[1].endpoint.state_digest();
    // Each byte that the ICRC covers, changed after it was computed; a router's own bytes aside.
    for at in BTH..frame.len() {
        if at == BTH + 4 {
            continue;
        }
        let mut changed = frame.clone();
        changed[at] ^= 0x40;
        let result =
            pair.ends[1]
                .endpoint
                .handle_frame(Timestamp::ZERO, &RxMeta::default(), &[&changed]);
        assert!(result.is_err(), "byte {at}");
        assert_eq!(pair.ends[1].endpoint.state_digest(), before, "byte {at}");
    }
    assert_eq!(inbox.copy(), vec![0; 64]);
}
