//! The RoCEv2 transport and DCQCN as a sans-IO core.
//!
//! [`endpoint::Endpoint`] is one RDMA endpoint: frames, congestion signals and the time go in, frames, timer requests and
//! events come out. It has no clock, thread, socket, file or ambient randomness, so that one seed gives one run, and the
//! AF_XDP engine, the simulator and the tests drive the same code through [`drive::step`].
//!
//! From the bottom up: [`ids`], [`time`], [`rng`], [`mod@drop`]; [`wire`] (frames and the ICRC); [`mem`] (application memory and
//! regions) and [`verbs`] (work requests and queues); [`qp`] (requester, completer, responder); [`endpoint`]; [`drive`].
//! [`dcqcn`] depends on [`time`] only, [`rate`] (the choice of a rate controller) on both; [`cm`] stands beside, on [`ids`], [`time`] and [`rng`].
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

// First: its macro is for all others.
#[macro_use]
#[cfg_attr(not(rocexdp_mutants), doc(hidden))]
pub mod mutant;

pub mod cm;
pub mod dcqcn;
pub mod drive;
pub mod drop;
pub mod endpoint;
mod hash;
pub mod ids;
pub mod mem;
pub mod qp;
pub mod rate;
pub mod rng;
pub mod time;
mod timer;
pub mod verbs;
pub mod wire;

pub use drop::DropReason;
pub use endpoint::{
    AsyncError, ClassService, CongestionSignal, CreateQp, DeviceAttr, Endpoint, EndpointConfig,
    EndpointCounters, ErrorCause, Event, IcrcMode, Marking, PRIORITIES, PauseState, QpHandle,
    QpInfo, TrafficClasses, Trust, VerbsError, pause_time,
};
pub use qp::{
    AttrMask, MAX_PATHS, MAX_RD_ATOMIC, MigrationState, ModifyError, ModifyQp, QpAttr, QpInitAttr,
    QpState, QpTransition, RtrAttr, RtsAttr, SelectiveRepeat, UdAttr,
};
pub use rate::RateControl;
pub use rocexdp_common::opcode::Transport;
