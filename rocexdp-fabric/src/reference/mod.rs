//! DCQCN held against its reference: experiments in the format of the HPCC simulator (ns-3), a host that sends as its hosts do,
//! and the numbers that its runs are summed up in.
//!
//! The reference is alibaba-edu/High-Precision-Congestion-Control, directory `simulation`; files and functions that the
//! comments name are its. Nothing of it is copied. What a comparison is about is `rocexdp_proto`'s reaction point and
//! `rocexdp_sim`'s switch; so that nothing else differs, the host here follows the reference's in every rule and rounding
//! ([`host`]), and network time is in whole nanoseconds ([`clock`]).
//!
//! [`Config::read`] first, since the configuration names the other two files; then [`Case::new`]; then [`run()`].
//!
//! Must not: open files, read a clock, or adjust anything until it fits.

pub mod case;
pub mod clock;
pub mod config;
pub mod fct;
pub mod files;
pub mod host;
pub mod packet;
mod qp;
pub mod random;
pub mod result;
pub mod run;
pub mod stats;
mod text;

pub use case::Case;
pub use config::Config;
pub use result::CaseResult;
pub(crate) use run::{Hosts, Watched, observe};
pub use run::{Outcome, Settings, busiest, run};

pub use text::FileError;
