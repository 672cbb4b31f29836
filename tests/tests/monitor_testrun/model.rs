//! The monitor's maps in plain memory: the oracle.

/// Receive queues that the programs are told of.
pub const QUEUES: u32 = 2;
/// CPUs.
pub const CPUS: u32 = 64;
/// Picoseconds of a pause quantum: 512 bit times at 10 Gb/s.
pub const QUANTUM_PS: u32 = 51_200;

pub struct Model;
