//! Packets that never reach the transport: not from the peer, not for the QP, or with a wrong ICRC. They change a counter and
//! nothing else.

mod common;

use common::{Craft, LONG, stats, target};
use rocexdp_common::headers::Syndrome;
use rocexdp_common::opcode::{Opcode, rc};
use rocexdp_proto::DropReason;
use rocexdp_proto::ids::{PathMtu, Psn};
use rocexdp_sim::pair::{Pair, PairConfig, QPNS};

const FIRST: Psn = Psn::new(0xff_fff0);
const ACK: Syndrome = Syndrome::Ack(0x1f);
const VA: u64 = 0x10_0000;

fn small() -> PairConfig {
    PairConfig {
        path_mtu: PathMtu::Mtu256,
        ..PairConfig::default()
    }
}

fn packet(opcode: Opcode) -> Craft {
    Craft::new(0, opcode, FIRST)
}

#[test]
fn what_is_not_from_the_peer_or_not_for_the_qp_changes_nothing() {
    let config = small();
    let mut pair = Pair::new(&config);
    let (bytes, region) = target(&mut pair, 64);
    pair.capture();
    let good = packet(rc::WRITE_ONLY)
        .reth(VA, region.rkey.0, 8)
        .payload(&[7; 8])
        .asking();
    let mut other = |reason: DropReason, frame: Vec<u8>| {
        pair.inject(1, frame);
        assert!(pair.run(LONG));
        assert_eq!(
            pair.ends[1].endpoint.counters().drops[reason.index()],
            1,
            "{reason}"
        );
        assert_eq!(pair.sent.len(), 0, "{reason}: answered");
        assert_eq!(
            pair.ends[1].endpoint.qp_info(QPNS[1]).unwrap().expected_psn,
            FIRST,
            "{reason}"
        );
    };
    let variant = |f: &dyn Fn(&mut Craft)| {
        let mut craft = good.clone();
        f(&mut craft);
        craft.frame(&config, 0)
    };
    other(
        DropReason::UnknownQpn,
        variant(&|c| c.bth.dest_qpn = QPNS[0]),
    );
    other(DropReason::PKey, variant(&|c| c.bth.pkey = 0x8001));
    other(
        DropReason::TransportMismatch,
        variant(&|c| c.bth.opcode = Opcode(0x2a)),
    );
    let mut from_other = good.frame(&config, 0);
    from_other[29] = 5;
    from_other[25] = from_other[25].wrapping_sub(4);
    other(DropReason::PeerAddress, from_other);
    let mut to_other = good.frame(&config, 0);
    to_other[33] = 9;
    to_other[25] = to_other[25].wrapping_sub(7);
    other(DropReason::LocalAddress, to_other);
    other(
        DropReason::UnexpectedResponse,
        Craft::new(0, rc::ATOMIC_ACKNOWLEDGE, FIRST)
            .aeth(ACK)
            .payload(&[0; 8])
            .frame(&config, 0),
    );
    assert!(bytes.copy().iter().all(|b| *b == 0));
    let s = stats(&pair, 1);
    assert_eq!((s.rx_accepted, s.rx_dropped), (0, 5));
    // And the packet that all of these were made from is taken; so is limited membership of the partition.
    let mut limited = good.clone();
    limited.bth.pkey = 0x7fff;
    pair.inject(1, limited.frame(&config, 0));
    assert!(pair.run(LONG));
    assert_eq!(bytes.copy()[..8], [7; 8]);
}

#[test]
fn a_wrong_icrc_changes_nothing_unless_told_to_ignore_it() {
    for ignore in [false, true] {
        let mut config = small();
        if ignore {
            config.endpoint[1].icrc = rocexdp_proto::IcrcMode::Ignore;
        }
        let mut pair = Pair::new(&config);
        let (bytes, region) = target(&mut pair, 64);
        let mut frame = packet(rc::WRITE_ONLY)
            .reth(VA, region.rkey.0, 8)
            .payload(&[7; 8])
            .frame(&config, 0);
        let end = frame.len();
        frame[end - 4..].fill(0);
        pair.inject(1, frame);
        assert!(pair.run(LONG));
        let counters = pair.ends[1].endpoint.counters();
        let expected = if ignore { (1, 0, 1) } else { (0, 1, 0) };
        assert_eq!(
            (
                counters.accepted,
                counters.icrc_errors,
                counters.icrc_ignored
            ),
            expected
        );
        assert_eq!(counters.drops.iter().sum::<u64>(), 0);
        assert_eq!(bytes.copy()[..8] == [7; 8], ignore);
    }
}
