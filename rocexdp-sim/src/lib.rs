//! Faults, links, switches and whole networks, as sans-IO models that drive `rocexdp-proto`.
//!
//! Time is an argument, randomness is a seed, nothing here opens a socket or reads a clock: the same models run in the
//! protocol's tests, in the simulator and, in real time, as the lab's userspace wire.
#![forbid(unsafe_code)]

pub mod memory;
pub mod model;
pub mod net;
pub mod pair;
pub mod picos;
pub mod switch;
pub mod topology;
pub mod wire;
