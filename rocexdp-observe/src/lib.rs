//! What RoCEv2 traffic says of itself: capture files in, flows and findings out.
//!
//! Passive and sans-network: it reads packets that somebody else captured, never sends. Memory is bounded by the number of
//! flows, not by the length of the capture. What a capture can't tell is said to be unknown, never guessed.
#![forbid(unsafe_code)]

pub mod analyse;
pub mod annotate;
pub mod capture;
pub mod csv;
pub mod diff;
pub mod findings;
pub mod flow;
pub mod icrc;
pub mod merge;
pub mod plot;
pub mod report;
