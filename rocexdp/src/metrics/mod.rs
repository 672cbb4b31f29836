//! Metrics for Prometheus: what the maps and the NIC say, as text on `GET /metrics`.
//!
//! [`observer`] is a thread that reads at an interval and when it is scraped; [`server`] answers HTTP; the rest turns numbers
//! into families. Names, labels, sources and blind spots stand in docs/metrics.md. Nothing here is on a packet's way.

pub mod books;
mod iface;
mod nic;
pub mod observer;
pub mod page;
pub mod qp;
pub mod server;
mod serving;

pub use crate::control::address::MetricsAddr;
pub use observer::{Observer, ObserverConfig, Scraper};
pub use server::{Listener, serve};
pub use serving::{MOST_TOP, Serving, check_top};

/// QPs with series of their own unless asked otherwise.
pub const DEFAULT_TOP: usize = 20;
