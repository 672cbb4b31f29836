//! The maps as JSON. Keys are stable: a key that means something else gets a new name, and [`VERSION`] goes up when one is
//! removed. They are the field names of `rocexdp_common::maps`, so that the map's documentation is theirs.
//!
//! `null` is a value that does not exist or can't be known: a PSN before the first packet, the rate of a QP that was never
//! paced, a time of what never happened. Times are nanoseconds of CLOCK_MONOTONIC. What stands under `xdp` was counted at
//! ingress, before the ICRC check, frames with the Ethernet header and without FCS; under `engine`, behind that check.

mod live;
mod qp;
mod queue;
mod rtt;

pub use live::Interval;
pub use qp::{Amount, Ecn, Engine, Flow, Naks, Qp, QpList, Stream, Xdp};
pub use queue::{Counters, Queue, QueueEvents, QueueTransport, QueueXdp};
pub use rtt::Rtt;

/// Version of the JSON.
pub const VERSION: u32 = 1;
