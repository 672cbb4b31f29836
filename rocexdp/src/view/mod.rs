//! What the maps say, as tables for people and as JSON for programs.
//!
//! Reads nothing and prints nothing: map values in, text out. Each number's source and blind spot is in [`model`]'s head.

pub mod counters;
pub mod lab;
pub mod live;
pub mod model;
pub mod monitor;
pub mod pcap;
pub mod plot;
pub mod qp;
pub mod table;
pub mod text;
