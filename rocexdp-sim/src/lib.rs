//! Faults, links and, later, switches and whole fabrics, as sans-IO models that drive `rocexdp-proto`.
//!
//! Time is an argument, randomness is a seed, nothing here opens a socket or reads a clock: the same models run in the
//! protocol's tests, in the simulator and, in real time, as the lab's userspace wire.
#![forbid(unsafe_code)]

pub mod memory;
pub mod model;
pub mod pair;
pub mod wire;
