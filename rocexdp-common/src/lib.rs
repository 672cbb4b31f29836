//! What both sides of the kernel boundary agree on: RoCEv2 headers, the opcode table, the verdict
//! as a pure function, and the names, keys and values of the BPF maps.
//!
//! `no_std`, no allocation, no I/O. The XDP program and userspace compile the same code, so they
//! cannot disagree about a packet.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod account;
pub mod bytes;
pub mod dissect;
pub mod fault;
pub mod headers;
pub mod icrc;
pub mod ids;
pub mod mad;
pub mod maps;
pub mod news;
pub mod opcode;
pub mod parse;
pub mod reason;
pub mod stray;
pub mod track;
pub mod verdict;
pub mod watch;
pub mod wire;
