//! Address handles: the way to a UD peer, or to a group.
//!
//! The headers that all packets on that way share are put together once, here. Must not: resolve anything (the engine asks the
//! kernel).

use crate::wire::{HeaderTemplate, Path, is_multicast, multicast_mac};

/// The way to a UD peer (`ibv_create_ah(3)`): addresses, resolved once, for any number of requests.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    path: Path,
    template: HeaderTemplate,
}

impl AddressHandle {
    /// The handle of a path; `None` unless both addresses are of one family and set. The destination may be a multicast group,
    /// whose link address then is what follows from it, whatever the path says.
    #[must_use]
    pub fn new(mut path: Path) -> Option<Self> {
        if !path.is_valid_to_group() {
            return None;
        }
        if let Some(mac) = multicast_mac(&path.dst) {
            path.dst_mac = mac;
        }
        let template = HeaderTemplate::datagram(&path);
        Some(Self { path, template })
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it leads to a multicast group.
    #[must_use]
    pub fn is_group(&self) -> bool {
        is_multicast(&self.path.dst)
    }

    pub(crate) fn template(&self) -> &HeaderTemplate {
        &self.template
    }
}
