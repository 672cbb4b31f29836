//! Names of the opcodes: those that Wireshark prints in its packet list.
//!
//! Where Wireshark 4.0 prints none (XRC, FLUSH, ATOMIC WRITE; CNP, which it lists as 0x80) or takes the opcode for
//! another (RD's, which ConnectX uses for DC), they are formed alike.

use super::{Opcode, Transport};

macro_rules! names {
    ($t:literal) => {
        [
            concat!($t, " Send First"),
            concat!($t, " Send Middle"),
            concat!($t, " Send Last"),
            concat!($t, " Send Last Immediate"),
            concat!($t, " Send Only"),
            concat!($t, " Send Only Immediate"),
            concat!($t, " RDMA Write First"),
            concat!($t, " RDMA Write Middle"),
            concat!($t, " RDMA Write Last"),
            concat!($t, " RDMA Write Last Immediate"),
            concat!($t, " RDMA Write Only"),
            concat!($t, " RDMA Write Only Immediate"),
            concat!($t, " RDMA Read Request"),
            concat!($t, " RDMA Read Response First"),
            concat!($t, " RDMA Read Response Middle"),
            concat!($t, " RDMA Read Response Last"),
            concat!($t, " RDMA Read Response Only"),
            concat!($t, " Acknowledge"),
            concat!($t, " Atomic Acknowledge"),
            concat!($t, " Compare Swap"),
            concat!($t, " Fetch Add"),
            concat!($t, " Resync"),
            concat!($t, " Send Last Invalidate"),
            concat!($t, " Send Only Invalidate"),
        ]
    };
}

static RC: [&str; 24] = names!("RC");
static UC: [&str; 24] = names!("UC");
static RD: [&str; 24] = names!("RD");
static UD: [&str; 24] = names!("UD");
static XRC: [&str; 24] = names!("XRC");
static SELECTIVE: [&str; 24] = names!("rocexdp SR");

/// The name of an undefined opcode, as Wireshark has it.
pub const UNKNOWN: &str = "Unknown OpCode";

/// The opcode's name; [`UNKNOWN`] where it is undefined.
pub fn name(opcode: Opcode) -> &'static str {
    if opcode.decode().is_none() {
        return UNKNOWN;
    }
    let table = match opcode.transport() {
        Transport::Rc => &RC,
        Transport::Uc => &UC,
        Transport::Rd => &RD,
        Transport::Ud => &UD,
        Transport::Xrc => &XRC,
        Transport::Cnp => return "CNP",
        // Nothing else of its range is defined.
        Transport::Manufacturer => &SELECTIVE,
    };
    match opcode.0 & 0x1f {
        0x1c if opcode.is_selective() => "rocexdp SR Flush",
        0x1d if opcode.is_selective() => "rocexdp SR Atomic Write",
        0x1c => "RC Flush",
        0x1d => "RC Atomic Write",
        low => table.get(usize::from(low)).copied().unwrap_or(UNKNOWN),
    }
}
