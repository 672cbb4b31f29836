//! rocexdp: RDMA over any Linux NIC, with XDP and AF_XDP.
//!
//! From the bottom up: [`xsk`] (AF_XDP, no RoCE), [`sys`] and [`net`] (what the host says), [`mem`] and
//! [`maps`] (application memory, BPF maps), [`loader`] (the XDP program on an interface), [`engine`]
//! (the transport driven over AF_XDP), [`node`] (an interface as an RDMA endpoint).
//!
//! Applications begin with [`rdma`].

pub mod bench;
pub mod cli;
pub mod cm;
pub mod control;
pub mod demo;
pub mod engine;
pub mod events;
pub mod lab;
pub mod live;
pub mod loader;
pub mod maps;
pub mod mem;
pub mod metrics;
pub mod monitor;
pub mod net;
pub mod nic;
pub mod node;
pub mod oob;
pub mod out;
pub mod perf;
pub mod pfc;
pub mod pingpong;
pub mod process;
pub mod rdma;
pub mod record;
pub mod rping;
pub mod sys;
pub mod top;
pub mod view;
pub mod xsk;

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
