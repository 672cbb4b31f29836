//! Entries of `FLOWS`, for both objects: found, or entered.

use aya_ebpf::{bindings::BPF_NOEXIST, maps::LruHashMap};
use rocexdp_common::maps::{FlowKey, FlowState};

/// The flow's entry, and whether it was made now; `None`: the map gives none.
#[inline(always)]
pub fn entry(
    map: &LruHashMap<FlowKey, FlowState>,
    key: &FlowKey,
) -> Option<(&'static mut FlowState, bool)> {
    let (entry, inserted) = match map.get_ptr_mut(key) {
        Some(entry) => (entry, false),
        None => {
            static ZERO: FlowState = FlowState::ZERO;
            // By reference: a copy would not fit the 512 B of a BPF program's stack. Another CPU may have made the entry
            // meanwhile, and counted in it: then it stays.
            #[expect(
                clippy::needless_borrows_for_generic_args,
                reason = "a copy overflows the stack"
            )]
            let inserted = map.insert(key, &ZERO, u64::from(BPF_NOEXIST)).is_ok();
            (map.get_ptr_mut(key)?, inserted)
        }
    };
    // SAFETY: a map value; an LRU map does not free it, at worst it becomes another flow's.
    Some((unsafe { &mut *entry }, inserted))
}
