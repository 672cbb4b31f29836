//! Networks of hosts that run the shipped transport.

mod basics;
mod common;
mod deadlock;
mod faults;
mod pauses;
mod ways;
