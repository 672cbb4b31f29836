//! Any packet, at any time, from anyone: no panic, nothing written outside what was granted, no state changed by a packet
//! that fails its checks, and the connection works afterwards (or has failed in order).

mod common;

use common::{Craft, LONG, pattern, recv_wr, send_wr, target, write_op};
use rocexdp_common::opcode::{Opcode, ext, extensions_len};
use rocexdp_proto::ids::Psn;
use rocexdp_proto::mem::Access;
use rocexdp_proto::rng::Rng;
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{SendOp, Status};
use rocexdp_proto::wire::RxMeta;
use rocexdp_proto::{Endpoint, EndpointConfig, QpState};
use rocexdp_sim::pair::{Bytes, Pair, PairConfig, QPNS};

const FIRST: Psn = Psn::new(0xff_fff0);

#[test]
fn random_bytes_of_any_length_in_any_pieces() {
    let mut ep = Endpoint::new(EndpointConfig::default(), 1);
    let mut rng = Rng::new(1);
    let count = 50_000;
    for _ in 0..count {
        let len = rng.below(300) as usize;
        let frame = pattern(len, rng.next_u64());
        let piece = 1 + rng.below(80) as usize;
        let pieces: Vec<&[u8]> = frame.chunks(piece).collect();
        assert!(
            ep.handle_frame(Timestamp::ZERO, &RxMeta::default(), &pieces)
                .is_err()
        );
    }
    assert_eq!(ep.counters().drops.iter().sum::<u64>(), count);
    assert!(ep.poll_transmit(Timestamp::ZERO).is_none());
}

#[test]
fn valid_frames_with_any_bytes_changed_or_cut_off_never_do_harm() {
    let config = PairConfig {
        rnr_retry: 7,
        ..PairConfig::default()
    };
    let mut pair = Pair::new(&config);
    let (bytes, region) = target(&mut pair, 4096);
    let inbox = Bytes::filled(4096, 0);
    for n in 0..4 {
        pair.post_recv(1, recv_wr(n, &inbox, 4096)).unwrap();
    }
    pair.capture();
    let source = Bytes::of(pattern(3000, 1));
    pair.post_send(0, send_wr(1, write_op(&region), &source, 3000))
        .unwrap();
    pair.post_send(0, send_wr(2, SendOp::SendImm(1), &source, 3000))
        .unwrap();
    assert!(pair.run(LONG));
    let (seen, written) = (pair.sent.clone(), bytes.copy());
    let before = *pair.ends[1].endpoint.qp_info(QPNS[1]).unwrap().stats;
    let mut rng = Rng::new(7);
    let mut changed = 0;
    for _ in 0..20_000 {
        let sent = &seen[rng.below(seen.len() as u64) as usize];
        let mut frame = sent.frame.clone();
        for _ in 0..1 + rng.below(4) {
            let at = rng.below(frame.len() as u64) as usize;
            frame[at] = rng.next_u32() as u8;
        }
        if rng.below(4) == 0 {
            frame.truncate(rng.below(frame.len() as u64) as usize);
        }
        changed += 1;
        pair.inject(1 - sent.end, frame);
        if changed % 64 == 0 {
            pair.run(core::time::Duration::from_micros(10));
        }
    }
    assert!(pair.run(LONG));
    assert!(bytes.copy() == written);
    let info = pair.ends[1].endpoint.qp_info(QPNS[1]).unwrap();
    assert_eq!(
        (info.state, info.expected_psn, info.msn),
        (QpState::Rts, FIRST.add(6), 2)
    );
    assert!(info.stats.icrc_errors > before.icrc_errors + 1_000);
    pair.post_send(0, send_wr(3, SendOp::Send, &source, 3000))
        .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        pair.completions(0).last().map(|c| c.status),
        Some(Status::Success)
    );
}

/// Packets with right ICRCs, addresses and QPNs: the worst that the real peer, or whoever can forge its address, can send.
#[test]
fn forged_packets_of_every_opcode_touch_nothing_outside_the_region() {
    let mut rng = Rng::new(3);
    let (mut failed, mut accepted) = (0, 0);
    for round in 0..3_000 {
        let config = PairConfig {
            depth: 16,
            rnr_retry: 2,
            ..PairConfig::default()
        };
        let mut pair = Pair::new(&config);
        // The granted kilobyte lies in the middle of memory that is not granted, and another region may not be written.
        let guard = Bytes::filled(1024, 0x55);
        let (bytes, region) = target(&mut pair, 1024);
        let read_only = pair.ends[1]
            .endpoint
            .register_memory(guard.clone(), 0x20_0000, Access::REMOTE_READ)
            .unwrap();
        let inbox = Bytes::filled(3000, 0x11);
        for n in 0..8 {
            pair.post_recv(1, recv_wr(n, &inbox, 2000)).unwrap();
        }
        pair.post_send(
            1,
            send_wr(50, SendOp::Send, &Bytes::of(pattern(5000, 1)), 5000),
        )
        .unwrap();
        let mut expected = FIRST;
        for _ in 0..12 {
            let opcode = Opcode(if rng.below(4) == 0 {
                rng.next_u32() as u8
            } else {
                (rng.below(0x18)) as u8
            });
            let psn = match rng.below(8) {
                0 => Psn::new(rng.next_u32()),
                1 => expected.sub(1),
                2 => expected.add(1),
                3 => config.psn[1].add(rng.below(7) as u32),
                _ => expected,
            };
            let mut craft = Craft::new(0, opcode, psn);
            craft.bth.ack_req = rng.below(2) == 0;
            let set = opcode.extensions().unwrap_or(ext::RETH);
            if set & ext::RETH != 0 {
                let va = [
                    region.va,
                    region.va + 1020,
                    region.va - 4,
                    0x20_0000,
                    0,
                    u64::MAX - 8,
                ][rng.below(6) as usize];
                let rkey = [region.rkey.0, read_only.rkey.0, rng.next_u32()][rng.below(3) as usize];
                let len = [0, 1, 4, 1024, 1500, 2048, 0x8000_0000, u32::MAX][rng.below(8) as usize];
                craft = craft.reth(va, rkey, len);
            }
            craft
                .extensions
                .resize(extensions_len(set), (rng.next_u32() & 0x7f) as u8);
            let len = [0, 1, 4, 1000, 1024, 1025, 1500, 4096][rng.below(8) as usize];
            craft = craft.payload(&vec![0xcc; len]);
            if rng.below(8) == 0 {
                craft.bth.pad = rng.below(4) as u8;
            }
            pair.inject(1, craft.frame(&config, 0));
            pair.run(core::time::Duration::from_micros(5));
            if let Some(info) = pair.ends[1].endpoint.qp_info(QPNS[1]) {
                expected = info.expected_psn;
            }
        }
        assert!(pair.run(LONG), "round {round}: it ends");
        assert!(guard.copy().iter().all(|b| *b == 0x55), "round {round}");
        assert!(
            bytes.copy().iter().all(|b| *b == 0 || *b == 0xcc),
            "round {round}"
        );
        assert!(
            inbox.copy()[2000..].iter().all(|b| *b == 0x11),
            "round {round}"
        );
        let info = pair.ends[1].endpoint.qp_info(QPNS[1]).unwrap();
        assert!(matches!(info.state, QpState::Rts | QpState::Err));
        failed += u64::from(info.state == QpState::Err);
        accepted += info.stats.rx_accepted;
        // In ERR everything posted has completed.
        if info.state == QpState::Err {
            assert!(pair.ends[1].qp.sq.is_empty() && pair.ends[1].qp.rq.is_empty());
            assert!(pair.completions(1).len() >= 9, "round {round}");
        }
        assert!(
            pair.ends[1].events.len() <= 1,
            "round {round}: {:?}",
            pair.ends[1].events
        );
    }
    assert!(
        failed > 500 && accepted > 2_000,
        "{failed} failed, {accepted} accepted: the packets reach all the checks"
    );
}
