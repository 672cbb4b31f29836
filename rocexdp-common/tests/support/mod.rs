//! What the tests of the parser, the verdict and the XDP program share.
#![allow(dead_code, reason = "each test program uses a part")]

pub mod encap;
pub mod model;
pub mod packet;
pub mod rig;
