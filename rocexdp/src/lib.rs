//! Placeholder replaced below.
pub mod xsk;
