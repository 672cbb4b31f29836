//! What the tests of whole copies share: a lab with rocexdp on its hosts, files, and the checks that every copy must pass.
//!
//! The product is driven as a user drives it, by its binary and its JSON; only what has to be looked at often is read from
//! the BPF maps directly. Everything here fails by panic, waits with a bound, and is gone when dropped.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "a test fails by panic"
)]

pub mod check;
pub mod files;
pub mod hop;
pub mod http;
pub mod pause;
pub mod process;
pub mod rig;
pub mod softroce;
pub mod switch_rig;
pub mod traffic;
pub mod veth;

pub use files::SourceFile;
pub use process::{Outcome, Running, eventually};
pub use rig::Rig;
