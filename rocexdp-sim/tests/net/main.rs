//! Networks of hosts that run the shipped transport.

mod basics;
mod common;
