//! Placeholder replaced below.
pub mod dcqcn;
pub mod time;
