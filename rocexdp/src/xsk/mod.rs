//! AF_XDP: packets between one receive queue of a NIC and userspace, without the kernel's network stack.
//!
//! One [`Xsk`] is one socket on one (interface, queue) with its own packet memory. It receives whole packets in one or
//! more pieces, sends whole packets, never loses one locally without counting it, and never trusts a descriptor. It
//! must not know what the packets are: nothing here names RoCE. Attaching the XDP program and putting the socket into
//! its XSKMAP is the loader's work; the socket must be opened by a thread in the interface's network namespace.
//!
//! ```text
//!   receive:  spare -> fill ring -> kernel -> RX ring -> closure -> spare
//!   send:     free  -> closure   -> TX ring -> kernel -> completion ring -> free
//! ```
//! [`umem`] holds the memory and who owns what, `ring` the index arithmetic, `socket` the two paths above, `open` the
//! set-up, `stats` the counters, `sys` what rustix lacks, [`baseline`] the yardstick for everything built on top.
//!
//! Follows `Documentation/networking/af_xdp.rst`, `net/xdp/xsk.c` and `include/uapi/linux/if_xdp.h` of the kernel.
//!
//! # Why no AF_XDP crate
//! Path MTU 4096 needs frames in several chunks, both ways: bind with `XDP_USE_SG`, `XDP_PKT_CONTD` on descriptors.
//! Sources read, as published in November 2026:
//!
//! | crate | several chunks per packet | descriptors checked in release | frames linear | statistics | licence, state |
//! |---|---|---|---|---|---|
//! | `xdp` 0.8.0 | receive only in name: the bind flag is defined but cannot be set | no ("barring kernel bugs") | no, `unsafe` calls | all | MIT or Apache-2.0, alive |
//! | `xsk-rs` 0.11.0 | yes | no | no, copyable descriptors, `unsafe` calls | all | MIT, alive; builds the C libxdp and libbpf |
//! | `xdpilone` 1.3.0 | no | no | no, copyable descriptors | all | EUPL-1.2: not for an MIT OR Apache-2.0 program |
//! | `s2n-quic-xdp` 0.91.0 | flags defined, sender and receiver ignore them | no (debug only) | no, copyable descriptors | all | Apache-2.0, alive; tied to s2n-quic's cores, ring flags read non-atomically |
//!
//! None raises the copy mode's send budget, none keeps a ledger of chunks. `rustix` has the socket options, addresses
//! and constants of AF_XDP behind safe calls, so what is left to write is this: rings, ledger, two paths. Taken from
//! the above as ideas: s2n-quic's oracle test of a ring with random start indexes; agave's frame tokens, extended to
//! the receive side.

pub mod baseline;
mod error;
mod open;
#[cfg(test)]
mod plain;
mod ring;
mod socket;
mod stats;
mod sys;
pub mod umem;

pub use error::{Cause, XskError};
pub use open::{XskConfig, ZeroCopy};
pub use socket::{Mode, TxError, Xsk};
pub use stats::{XskCounters, XskStatistics};

/// Most pieces one packet may have, either way. 4170 B (path MTU 4096) are 2 in 4096 B chunks and 3 in 2048 B chunks;
/// 9000 B are 6 in the smallest.
pub const MAX_FRAGS: usize = 8;
