//! The control plane: the daemon, its socket, the exchange between hosts, and copies.
//!
//! Works on [`crate::node`] and knows nothing of the command line or of output, but for what the daemon says. What comes
//! from a peer or a local client is checked where it enters ([`frame`], [`exchange`], [`confine`], [`local`]).

pub mod address;
pub mod config;
pub mod confine;
pub mod copy;
pub mod daemon;
pub mod events;
pub mod exchange;
pub mod frame;
pub mod hex;
pub mod local;
pub mod settings;
mod sockets;
pub mod target;
pub mod token;
pub mod units;
