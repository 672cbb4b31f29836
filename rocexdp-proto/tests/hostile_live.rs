//! Packets of every opcode, right, nearly right and damaged, at an endpoint in the middle of transfers: see `common/victim.rs`.

mod common;

use std::collections::BTreeMap;

use common::victim::Victim;
use rocexdp_proto::DropReason;
use rocexdp_proto::rng::Rng;

#[test]
fn any_packet_at_any_time_changes_nothing_that_it_may_not() {
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..7_000 {
        let mut rng = Rng::new(seed);
        let mut victim = Victim::new(&mut rng);
        for _ in 0..32 {
            if !victim.step(&mut rng) {
                break;
            }
        }
        for (name, n) in victim.finish() {
            *seen.entry(name).or_default() += n;
        }
    }
    // A test that reaches nothing shows nothing.
    println!("{seen:?}");
    for reason in [
        DropReason::UnknownOpcode,
        DropReason::TransportMismatch,
        DropReason::Icrc,
        DropReason::OutOfSequence,
        DropReason::ReceiverNotReady,
        DropReason::InvalidRequest,
        DropReason::RemoteAccess,
        DropReason::DuplicateUnanswered,
        DropReason::GhostAck,
        DropReason::ReservedSyndrome,
        DropReason::UnexpectedResponse,
        DropReason::DuplicateResponse,
        DropReason::QpState,
        DropReason::LocalAddress,
        DropReason::PeerAddress,
        DropReason::UnknownPath,
        DropReason::BeyondWindow,
        DropReason::ReorderFull,
    ] {
        let n = seen.get(reason.name()).copied().unwrap_or(0);
        assert!(n >= 20, "{reason}: only {n}");
    }
    for what in [
        "accepted",
        "completed",
        "completed with an error",
        "failed",
        "alive",
        "UC",
        "UD",
        "shared receive queue",
        "selective repeat, 1 path",
        "selective repeat, 4 paths",
    ] {
        let n = seen.get(what).copied().unwrap_or(0);
        assert!(n >= 50, "{what}: only {n}");
    }
}
