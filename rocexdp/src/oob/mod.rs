//! What the programs that speak other tools' out-of-band protocols have in common: a TCP channel, the choice of interface and
//! addresses, queue pairs of any service, and waiting for completions.
//!
//! The protocols themselves are `perf`'s and `pingpong`'s. Must not: know either.

pub mod channel;
pub mod meet;
pub mod pair;
pub mod place;
pub mod wait;
