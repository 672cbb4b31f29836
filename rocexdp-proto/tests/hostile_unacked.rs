//! Any packet, at any time, from anyone, to UC and UD QPs: no panic, no answer, nothing written outside what was granted, and
//! the QP works afterwards.

mod common;

use common::{Craft, LONG, pattern, recv_wr, send_wr, target};
use rocexdp_common::headers::Deth;
use rocexdp_common::opcode::{Opcode, ext, extensions_len};
use rocexdp_proto::ids::{Psn, Qpn};
use rocexdp_proto::mem::Access;
use rocexdp_proto::rng::Rng;
use rocexdp_proto::verbs::{SendOp, Status};
use rocexdp_proto::{QpState, Transport};
use rocexdp_sim::pair::{Bytes, Pair, PairConfig, QPNS, datagram};

fn config(transport: Transport) -> PairConfig {
    PairConfig {
        transport,
        depth: 16,
        ..PairConfig::default()
    }
}

/// A message of end 0, which must arrive at end 1 with a receive request of its own.
fn works(pair: &mut Pair, config: &PairConfig) {
    let inbox = Bytes::filled(3000, 0);
    pair.completions(1);
    // One may wait for the rest of its message; the next message takes it.
    while pair.ends[1].qp.rq.post(recv_wr(77, &inbox, 3000)).is_ok() {}
    let data = pattern(900, 9);
    let mut wr = send_wr(1, SendOp::SendImm(0x7777), &Bytes::of(data.clone()), 900);
    if config.transport == Transport::Ud {
        wr = wr.to(datagram(config, 0));
    }
    pair.post_send(0, wr).unwrap();
    assert!(pair.run(LONG));
    let done = pair.completions(1);
    let [c] = done[..] else { panic!("{done:?}") };
    assert_eq!((c.status, c.imm), (Status::Success, Some(0x7777)));
}

#[test]
fn valid_frames_with_any_bytes_changed_or_cut_off_never_do_harm() {
    for transport in [Transport::Uc, Transport::Ud] {
        let config = config(transport);
        let mut pair = Pair::new(&config);
        let inbox = Bytes::filled(3000, 0x11);
        pair.capture();
        let source = Bytes::of(pattern(900, 1));
        for n in 0..4 {
            let mut wr = send_wr(n, SendOp::SendImm(1), &source, 900);
            if transport == Transport::Ud {
                wr = wr.to(datagram(&config, 0));
            }
            pair.post_recv(1, recv_wr(n, &inbox, 3000)).unwrap();
            pair.post_send(0, wr).unwrap();
        }
        assert!(pair.run(LONG));
        assert_eq!(pair.completions(1).len(), 4);
        for n in 0..4 {
            pair.post_recv(1, recv_wr(n, &inbox, 3000)).unwrap();
        }
        let (seen, written) = (pair.sent.clone(), inbox.copy());
        let mut rng = Rng::new(7);
        for n in 0..20_000 {
            let mut frame = seen[rng.below(seen.len() as u64) as usize].frame.clone();
            for _ in 0..1 + rng.below(4) {
                // Not where the ICRC does not look: link addresses, TTL, TOS, checksums, FECN.
                let at = 20 + rng.below(frame.len() as u64 - 20) as usize;
                if !matches!(at, 22 | 24 | 25 | 40 | 41 | 46) {
                    frame[at] ^= 1 << rng.below(8);
                }
            }
            if rng.below(4) == 0 {
                frame.truncate(rng.below(frame.len() as u64) as usize);
            }
            // Two changes may have undone one another.
            if seen.iter().all(|s| s.frame != frame) {
                pair.inject(1, frame);
            }
            if n % 64 == 0 {
                pair.run(core::time::Duration::from_micros(10));
            }
        }
        assert!(pair.run(LONG));
        assert!(inbox.copy() == written && pair.completions(1).is_empty());
        assert!(pair.sent.iter().all(|s| s.end == 0), "nothing was answered");
        let stats = *pair.ends[1].endpoint.qp_info(QPNS[1]).unwrap().stats;
        assert!(stats.icrc_errors > 1_000, "{}", stats.icrc_errors);
        works(&mut pair, &config);
    }
}

/// Packets with right ICRCs, addresses and QPNs: the worst that a real peer can send.
#[test]
fn forged_packets_of_every_opcode_touch_nothing_outside_what_was_granted() {
    for transport in [Transport::Uc, Transport::Ud] {
        let mut rng = Rng::new(3);
        let mut accepted = 0;
        for round in 0..1_000 {
            let config = config(transport);
            let mut pair = Pair::new(&config);
            pair.capture();
            let guard = Bytes::filled(1024, 0x55);
            let (bytes, region) = target(&mut pair, 2048);
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
            let read_only = pair.ends[1]
                .endpoint
                .register_memory(guard.clone(), 0x20_0000, access)
                .unwrap();
            let inbox = Bytes::filled(3000, 0x11);
            for n in 0..8 {
                pair.post_recv(1, recv_wr(n, &inbox, 2000)).unwrap();
            }
            let mut expected = config.psn[0];
            for _ in 0..16 {
                let opcode = Opcode(match rng.below(4) {
                    0 => rng.next_u32() as u8,
                    _ if transport == Transport::Ud => 0x64 + rng.below(2) as u8,
                    _ => 0x20 + rng.below(0x0c) as u8,
                });
                let psn = match rng.below(8) {
                    0 => Psn::new(rng.next_u32()),
                    1 => expected.sub(1),
                    2 => expected.add(1),
                    _ => expected,
                };
                let mut craft = Craft::new(0, opcode, psn);
                craft.bth.ack_req = rng.below(2) == 0;
                let set = opcode.extensions().unwrap_or(ext::RETH);
                if set & ext::DETH != 0 {
                    let qkey = if rng.below(4) == 0 {
                        rng.next_u32()
                    } else {
                        config.qkey
                    };
                    let src_qpn = Qpn::new(rng.next_u32() & 0xff_ffff);
                    let mut b = [0; Deth::LEN];
                    Deth { qkey, src_qpn }.emit(&mut b);
                    craft.extensions.extend_from_slice(&b);
                }
                if set & ext::RETH != 0 {
                    let va = [
                        region.va,
                        region.va,
                        region.va,
                        region.va + 2044,
                        region.va - 4,
                        0x20_0000,
                        0,
                        u64::MAX - 8,
                    ][rng.below(8) as usize];
                    let rkey =
                        [region.rkey.0, read_only.rkey.0, rng.next_u32()][rng.below(3) as usize];
                    let len =
                        [0, 1, 4, 1024, 1500, 2048, 0x8000_0000, u32::MAX][rng.below(8) as usize];
                    craft = craft.reth(va, rkey, len);
                }
                craft
                    .extensions
                    .resize(extensions_len(set), (rng.next_u32() & 0x7f) as u8);
                let len = match opcode.0 {
                    // FIRST and MIDDLE: mostly as they have to be.
                    0x20 | 0x21 | 0x26 | 0x27 if rng.below(4) > 0 => 1024,
                    _ => [0, 1, 4, 1000, 1024, 1025, 1500, 4096][rng.below(8) as usize],
                };
                craft = craft.payload(&vec![0xcc; len]);
                if rng.below(8) == 0 {
                    craft.bth.pad = rng.below(4) as u8;
                }
                pair.inject(1, craft.frame(&config, 0));
                pair.run(core::time::Duration::from_micros(5));
                expected = pair.ends[1].endpoint.qp_info(QPNS[1]).unwrap().expected_psn;
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
            assert!(pair.sent.is_empty(), "nothing is answered");
            let info = pair.ends[1].endpoint.qp_info(QPNS[1]).unwrap();
            assert_eq!(info.state, QpState::Rts, "round {round}");
            accepted += info.stats.rx_accepted;
            works(&mut pair, &config);
        }
        assert!(accepted > 2_000, "{accepted} packets reach all the checks");
    }
}
