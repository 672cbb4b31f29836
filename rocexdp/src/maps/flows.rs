//! Reading all flows of a program, often: by batches, into buffers that stay. And the pause frames beside them.

use anyhow::{Context as _, Result, bail};
use rocexdp_common::maps::{self, FlowKey, FlowState, LinkControl};

use super::{ProgramMaps, SharedArray, check_layout};
use crate::sys::bpf_batch::{Table, Walk};

/// Entries of one batch: bounds the buffers, and is far above what a bucket of a hash map holds.
const BATCH: usize = 1024;
/// Batches until the walk is given up: more entries than a table can have.
const MOST_BATCHES: usize = 1 << 14;

/// Reads a program's `FLOWS`, and `LINK_CONTROL` where it has one.
#[derive(Debug)]
pub struct FlowReader {
    flows: Table,
    link_control: Option<SharedArray<LinkControl>>,
    keys: Vec<FlowKey>,
    values: Vec<FlowState>,
}

impl FlowReader {
    /// Of the loaded program `id`.
    ///
    /// # Errors
    /// The program is gone or not of this version; CAP_BPF or CAP_SYS_ADMIN is missing.
    pub fn of_program(id: u32) -> Result<Self> {
        let program = ProgramMaps::of(id)?;
        let flows = program.info(maps::FLOWS)?;
        check_layout::<FlowState>(maps::FLOWS, flows.value_size(), flows.max_entries(), 1)?;
        if flows.key_size() as usize != size_of::<FlowKey>() {
            bail!(
                "map {} has keys of another size: program and tool are of different versions",
                maps::FLOWS
            );
        }
        let link_control = if program.has(maps::LINK_CONTROL) {
            Some(program.share(maps::LINK_CONTROL, false)?)
        } else {
            None
        };
        Ok(Self {
            flows: Table::open(flows).context("opening map FLOWS")?,
            link_control,
            keys: vec![FlowKey::default(); BATCH],
            values: vec![FlowState::default(); BATCH],
        })
    }

    /// Most flows at a time.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.flows.capacity
    }

    /// All flows that the map holds now, in no order.
    ///
    /// # Errors
    /// The map can't be read.
    pub fn flows(&mut self) -> Result<Vec<(FlowKey, FlowState)>> {
        let mut all = Vec::new();
        let mut walk = Walk::default();
        for _ in 0..MOST_BATCHES {
            let read = walk
                .read(
                    &self.flows,
                    bytemuck::cast_slice_mut(&mut self.keys),
                    bytemuck::cast_slice_mut(&mut self.values),
                )
                .context("reading map FLOWS")?;
            let entries = self.keys.iter().copied().zip(self.values.iter().copied());
            all.extend(entries.take(read));
            if walk.done() {
                break;
            }
        }
        Ok(all)
    }

    /// Pause frames and the like, per receive queue; empty where the program has no such map.
    #[must_use]
    pub fn link_control(&self) -> Vec<LinkControl> {
        let Some(array) = &self.link_control else {
            return Vec::new();
        };
        (0..array.entries()).filter_map(|i| array.load(i)).collect()
    }
}
