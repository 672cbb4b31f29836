//! Fabrics and scenarios in TOML, workloads, runs of the simulator and what they show, and the reference simulators' formats.
//!
//! The lab and the simulator read the same fabric. Nothing here opens a file or a socket: text comes in, text goes out, and
//! the command line is in the crate `rocexdp`.
#![forbid(unsafe_code)]

pub mod fabric;
pub mod flowlevel;
pub mod names;
pub mod plots;
pub mod reference;
pub mod results;
pub mod run;
pub mod scenario;
pub mod shipped;
pub mod source;
pub mod units;
pub mod workload;

pub use source::{Error, Source};
