//! What changed between two snapshots, per second: a line for each local QP and each pair of flows, and each interface's
//! totals and pauses. A number that can't be known is that, with the reason ([`Value`]).

mod flow;
mod iface;
mod local;
mod nic;
mod row;
#[cfg(test)]
mod tests;
mod value;

pub use iface::{IfaceRates, PauseRate, rates};
pub use nic::NicRate;
pub use row::{Direction, End, Row, RowKey};
pub use value::{NO_PACKET, NO_ROUND_TRIP, Reason, RttSummary, RttValue, Value, gained, sum};
