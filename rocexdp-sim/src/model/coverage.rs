//! What a run of the model has to have seen to count.
//!
//! Must not: judge a seed.

use rocexdp_common::opcode::{CNP, rc};
use rocexdp_proto::verbs::Status;

/// UC's range of opcodes.
const UC: u8 = 0x20;
/// UD's.
const UD: u8 = 0x60;
/// Selective repeat's.
const SELECTIVE: u8 = 0xc0;

/// Opcodes that must meet every fault: RC's, the same of selective repeat, UC's, UD's, and the CNP.
#[must_use]
pub fn required_opcodes() -> Vec<u8> {
    let data = [
        rc::SEND_FIRST,
        rc::SEND_MIDDLE,
        rc::SEND_LAST,
        rc::SEND_LAST_IMM,
        rc::SEND_ONLY,
        rc::SEND_ONLY_IMM,
        rc::WRITE_FIRST,
        rc::WRITE_MIDDLE,
        rc::WRITE_LAST,
        rc::WRITE_LAST_IMM,
        rc::WRITE_ONLY,
        rc::WRITE_ONLY_IMM,
    ]
    .map(|op| op.0);
    let reliable = [
        rc::SEND_LAST_INVALIDATE,
        rc::SEND_ONLY_INVALIDATE,
        rc::READ_REQUEST,
        rc::READ_RESPONSE_FIRST,
        rc::READ_RESPONSE_MIDDLE,
        rc::READ_RESPONSE_LAST,
        rc::READ_RESPONSE_ONLY,
        rc::ACKNOWLEDGE,
        rc::ATOMIC_ACKNOWLEDGE,
        rc::COMPARE_SWAP,
        rc::FETCH_ADD,
        rc::ATOMIC_WRITE,
        rc::FLUSH,
    ]
    .map(|op| op.0);
    let rc = || data.into_iter().chain(reliable);
    let datagram = [rc::SEND_ONLY, rc::SEND_ONLY_IMM].map(|op| op.0 | UD);
    rc().chain(rc().map(|op| op | SELECTIVE))
        .chain(data.map(|op| op | UC))
        .chain(datagram)
        .chain([CNP.0])
        .collect()
}

/// Statuses that must occur.
pub const REQUIRED_STATUSES: &[Status] = &[
    Status::Success,
    Status::LocLenErr,
    Status::LocQpOpErr,
    Status::LocProtErr,
    Status::WrFlushErr,
    Status::MwBindErr,
    Status::BadRespErr,
    Status::RemInvReqErr,
    Status::RemAccessErr,
    Status::RemOpErr,
    Status::RetryExcErr,
    Status::RnrRetryExcErr,
];

/// Statuses of `enum ibv_wc_status` (rdma-core, libibverbs/verbs.h) that this transport never reports, and why not.
pub const IMPOSSIBLE_STATUSES: &[(&str, &str)] = &[
    ("LOC_EEC_OP_ERR", "RD only"),
    (
        "LOC_ACCESS_ERR",
        "local keys and rights that fail are LOC_PROT_ERR, as with rxe; what a peer may not do is refused with a NAK",
    ),
    ("LOC_RDD_VIOL_ERR", "RD only"),
    ("REM_INV_RD_REQ_ERR", "RD only"),
    ("REM_ABORT_ERR", "RD and XRC only"),
    ("INV_EECN_ERR", "RD only"),
    ("INV_EEC_STATE_ERR", "RD only"),
    (
        "FATAL_ERR",
        "a device that has failed as a whole: there is none",
    ),
    ("RESP_TIMEOUT_ERR", "tag matching's rendezvous and RD only"),
    (
        "GENERAL_ERR",
        "a driver's last resort: every failure here has a name",
    ),
    ("TM_ERR", "tag matching only"),
    ("TM_RNDV_INCOMPLETE", "tag matching only"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_of_the_transport_is_required_or_said_to_be_impossible() {
        for status in Status::ALL {
            let name = format!("{status:?}").to_uppercase();
            let impossible = IMPOSSIBLE_STATUSES
                .iter()
                .any(|(n, _)| n.replace('_', "") == name);
            assert_ne!(
                REQUIRED_STATUSES.contains(&status),
                impossible,
                "{status:?}"
            );
        }
        assert_eq!(REQUIRED_STATUSES.len() + IMPOSSIBLE_STATUSES.len(), 24);
    }
}
