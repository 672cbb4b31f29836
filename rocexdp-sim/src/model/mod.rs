//! The model test: random verbs programs at both ends of a faulty link, from a seed, judged by a simple oracle of what RC
//! promises.
//!
//! [`generate`] draws a program from a seed, [`world`] runs it in virtual time, [`oracle`] and [`completion`] judge each access to
//! memory and each completion at the moment it is made, [`tally`] counts what occurred, [`shrink`] cuts a failing program
//! down to what is needed, and [`program`] gives that a text form that can be replayed (`cargo xtask model --replay FILE`). Two
//! runs of one seed are identical.
//!
//! Must not: share any code with the transport that could hide its mistakes: the oracle knows requests and bytes, not PSNs.

mod act;
pub mod completion;
mod expect;
pub mod generate;
mod io;
pub mod link;
pub mod oracle;
pub mod program;
pub mod shrink;
pub mod state;
pub mod tally;
pub mod watch;
pub mod world;

use rocexdp_common::opcode::rc;
use rocexdp_proto::verbs::Status;

pub use program::Program;
pub use tally::Tally;
pub use world::{Outcome, run};

/// Opcodes that must meet every fault: RC's, and the same of selective repeat.
#[must_use]
pub fn required_opcodes() -> Vec<u8> {
    let rc = [
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
    rc.into_iter().chain(rc.map(|op| op | 0xc0)).collect()
}

/// Statuses that must occur.
pub const REQUIRED_STATUSES: &[Status] = &[
    Status::Success,
    Status::LocLenErr,
    Status::LocProtErr,
    Status::WrFlushErr,
    Status::RemInvReqErr,
    Status::RemAccessErr,
    Status::RemOpErr,
    Status::RetryExcErr,
    Status::RnrRetryExcErr,
];

/// Runs a seed.
#[must_use]
pub fn seed(seed: u64) -> Outcome {
    run(&generate::program(seed))
}
