//! Address handles: the way to a UD peer.
//!
//! Must not: resolve anything (the engine asks the kernel).

use crate::wire::Path;

/// The way to a UD peer (`ibv_create_ah(3)`): addresses, resolved once, for any number of requests.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    path: Path,
}

impl AddressHandle {
    /// The handle of a path; `None` unless both addresses are of one family and set. The destination may be multicast.
    #[must_use]
    pub fn new(path: Path) -> Option<Self> {
        path.is_valid_to_group().then_some(Self { path })
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}
