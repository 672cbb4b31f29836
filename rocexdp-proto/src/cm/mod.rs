//! Connection management: REQ, REP, RTU and their kin, which tie the QPs of a connection together, over QP 1.
//!
//! [`Manager`] is one port's communication manager, sans-IO: MADs and the time go in by [`Manager::handle_mad`] and
//! [`Manager::handle_timeout`], applications' wishes by its commands; MADs, events and the next deadline come out of
//! [`Manager::poll_transmit`], [`Manager::poll_event`] and [`Manager::poll_timeout`], which the driver empties after each input. It
//! moves no QP: an event says what was agreed on, and its user makes the QP so before it goes on.
//!
//! ```text
//!  active                                        passive
//!  connect ── REQ ──────────────────────────────▶ Event::Request
//!             ◀─────────────── MRA (it takes time)
//!  Event::Reply ◀──────────────────────── REP ── accept     (or REJ: reject)
//!  ready ──── RTU ──────────────────────────────▶ Event::Established
//!  disconnect ─ DREQ ───────────────────────────▶ Event::Disconnected
//!  Event::Disconnected ◀───────────────── DREP ──
//! ```
//!
//! and, for datagrams, `resolve` ── SIDR_REQ ──▶ [`Event::Wanted`], `answer` ── SIDR_REP ──▶ [`Event::Resolved`].
//!
//! Follows drivers/infiniband/core/cm.c, whose names the states have. What is sent to a peer is bounded by what it sent; requests
//! that nobody decided on are bounded per listener and in all, and in time.
//!
//! Must not: load alternate paths (RoCE has none: `cm_lap_handler`), or know a QP's state.

mod active;
mod close;
mod conn;
mod error;
mod event;
mod half_open;
mod manager;
mod passive;
mod reject;
mod sidr;
mod timing;

pub use active::Connect;
pub use conn::{ConnId, Route};
pub use error::{CmError, Ignored};
pub use event::{Event, Reply, Request};
pub use manager::{CmConfig, CmCounters, Listen, Manager, Outgoing};
pub use passive::Accept;
pub use reject::RejReason;
pub use rocexdp_common::mad::{DATA_LEN, IpCm, MAD_LEN, RDMA_UDP_QKEY};
pub use sidr::{Resolve, SidrAnswer, SidrId};
pub use timing::{ack_timeout, response_time};

/// A MAD.
pub type MadBytes = [u8; MAD_LEN];

/// Port spaces of the RDMA CM's service IDs (`enum rdma_ucm_port_space`).
pub mod port_space {
    /// RC (`RDMA_PS_TCP`).
    pub const TCP: u8 = 0x06;
    /// UD (`RDMA_PS_UDP`).
    pub const UDP: u8 = 0x11;
}
