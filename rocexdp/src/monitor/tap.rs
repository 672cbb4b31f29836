//! The tap's reading side: records out of the ring buffer, switched on and off by a word in shared memory.

use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result, anyhow};
use aya::{
    Ebpf,
    maps::{Map, MapData, RingBuf},
};
use rocexdp_common::watch::tap::{OFF, TAP_BOOK, TAP_CONTROL, TapBook, TapControl, TapHead};

use crate::maps::SharedArray;

/// A frame from the tap.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// When, where, how long.
    pub head: TapHead,
    /// The frame's first bytes.
    pub data: &'a [u8],
}

/// The only consumer of a tap. Dropping it switches the tap off.
pub struct TapReader {
    ring: RingBuf<MapData>,
    control: SharedArray<TapControl>,
    book: SharedArray<TapBook>,
}

impl std::fmt::Debug for TapReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TapReader").finish_non_exhaustive()
    }
}

impl TapReader {
    pub(super) fn new(bpf: &mut Ebpf, ring: RingBuf<MapData>) -> Result<Self> {
        Ok(Self {
            ring,
            control: share(bpf, TAP_CONTROL, true)?,
            book: share(bpf, TAP_BOOK, false)?,
        })
    }

    /// Says what shall be recorded: `rocexdp_common::watch::tap::{OFF, HEADERS, WHOLE}`.
    pub fn set_mode(&self, mode: u32) {
        let control = TapControl {
            mode,
            ..TapControl::default()
        };
        self.control.store(0, &control);
    }

    /// Gives each record that is there to `take`, until it says that is enough.
    pub fn drain(&mut self, mut take: impl FnMut(Record<'_>) -> bool) {
        while let Some(item) = self.ring.next() {
            if let Some(record) = parse(&item)
                && !take(record)
            {
                return;
            }
        }
    }

    /// Records made, and frames lost because the ring was full.
    pub fn book(&self) -> (u64, u64) {
        (0..self.book.entries())
            .filter_map(|cpu| self.book.load(cpu))
            .fold((0, 0), |(recorded, lost), book| {
                (recorded + book.recorded, lost + book.lost)
            })
    }
}

impl Drop for TapReader {
    fn drop(&mut self) {
        self.set_mode(OFF);
    }
}

fn parse(item: &[u8]) -> Option<Record<'_>> {
    let (head, rest) = item.split_at_checked(size_of::<TapHead>())?;
    let head: TapHead = bytemuck::pod_read_unaligned(head);
    Some(Record {
        head,
        data: rest.get(..head.captured as usize)?,
    })
}

fn share<T: bytemuck::Pod>(bpf: &mut Ebpf, name: &str, writable: bool) -> Result<SharedArray<T>> {
    let Some(Map::Array(map)) = bpf.take_map(name) else {
        return Err(anyhow!("map {name} has a user already"));
    };
    let info = map.info().with_context(|| format!("map {name}"))?;
    if info.value_size() as usize != size_of::<T>() {
        return Err(anyhow!(
            "map {name} has values of {} B, not {}: the eBPF object does not belong to this build",
            info.value_size(),
            size_of::<T>()
        ));
    }
    SharedArray::map(map.fd().as_fd(), info.max_entries(), writable)
        .with_context(|| format!("mapping map {name}"))
}
