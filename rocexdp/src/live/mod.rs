//! Watching interfaces while they work: the maps copied at an interval ([`Sampler`], [`Snapshot`]), and what changed between
//! two copies. Reads maps only: attaches nothing, prints nothing.

mod model;
mod sampler;

pub use model::{FlowTable, IfaceSnapshot, Role, Snapshot, Source};
pub use sampler::Sampler;
