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
mod connect;
pub mod coverage;
mod expect;
pub mod generate;
mod io;
pub mod link;
pub mod oracle;
pub mod program;
pub mod shared;
pub mod shrink;
pub mod state;
pub mod tally;
pub mod unreliable;
pub mod watch;
pub mod window;
pub mod world;

pub use coverage::{REQUIRED_STATUSES, required_opcodes};
pub use program::Program;
pub use tally::Tally;
pub use world::{Outcome, run};

/// Runs a seed.
#[must_use]
pub fn seed(seed: u64) -> Outcome {
    run(&generate::program(seed))
}
