//! Watching interfaces while they work: the maps copied at an interval ([`Sampler`], [`Snapshot`]), and what changed between
//! two copies ([`rates()`]), in words ([`news`]). Reads maps only: attaches nothing, prints nothing.

mod model;
pub mod news;
mod rates;
mod sampler;

pub use model::{FlowTable, IfaceSnapshot, NicReadings, Role, Snapshot, Source};
pub use rates::{
    Direction, End, IfaceRates, NO_PACKET, NO_ROUND_TRIP, NicRate, PauseRate, Reason, Row, RowKey,
    RttSummary, RttValue, Value, gained, rates, sum,
};
pub use sampler::Sampler;
