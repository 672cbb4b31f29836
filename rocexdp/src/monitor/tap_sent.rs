//! The tap's other half on an endpoint: what its engine sent, out of shared memory (`TX_TAP`).
//!
//! One ring of numbered records a worker, which the worker overwrites: a record that is not read in time is lost, and
//! the numbers tell how many were.

use rocexdp_common::{
    dissect::Captured,
    headers::ICRC_LEN,
    maps::EGRESS,
    parse,
    watch::tap::{TX_TAP_SLOTS, TapHead, TxTap},
};

use crate::maps::SharedArray;

/// Reads what all workers sent.
pub struct Sent {
    records: SharedArray<TxTap>,
    /// Number of each worker's next record.
    next: Vec<u64>,
    /// Read and not yet taken, in order of time.
    waiting: Vec<TxTap>,
    ifindex: u32,
    recorded: u64,
    lost: u64,
}

impl Sent {
    /// What is sent from now on.
    pub fn new(records: SharedArray<TxTap>, ifindex: u32) -> Self {
        let workers = records.entries() / TX_TAP_SLOTS;
        let next = (0..workers)
            .map(|worker| {
                let numbers = (0..TX_TAP_SLOTS)
                    .filter_map(|slot| records.load_u64(worker * TX_TAP_SLOTS + slot, 0));
                numbers.max().unwrap_or(0) + 1
            })
            .collect();
        Self {
            records,
            next,
            waiting: Vec::new(),
            ifindex,
            recorded: 0,
            lost: 0,
        }
    }

    /// Records read, and records that were overwritten before.
    pub fn book(&self) -> (u64, u64) {
        (self.recorded, self.lost)
    }

    /// Reads what is there.
    pub fn read(&mut self) {
        for worker in 0..self.next.len() {
            // As many as there can be, so that a busy worker does not keep us.
            for _ in 0..TX_TAP_SLOTS {
                let Some(record) = self.read_one(worker) else {
                    break;
                };
                self.waiting.push(record);
                self.recorded += 1;
            }
        }
        // The last first: they are taken from the end.
        self.waiting
            .sort_by_key(|record| std::cmp::Reverse(record.time_ns));
    }

    fn read_one(&mut self, worker: usize) -> Option<TxTap> {
        let next = self.next.get_mut(worker)?;
        let slot = ((*next - 1) % u64::from(TX_TAP_SLOTS)) as u32;
        let record = self
            .records
            .load_numbered(worker as u32 * TX_TAP_SLOTS + slot)?;
        // What stood there a round ago: the next one has not been written yet.
        let skipped = record.number.checked_sub(*next)?;
        self.lost += skipped;
        *next = record.number + 1;
        Some(record)
    }

    /// Gives `take` the records read that are older than `before_ns`, until it says that is enough.
    pub fn give(
        &mut self,
        before_ns: u64,
        headers_only: bool,
        take: &mut impl FnMut(TapHead, &[u8]) -> bool,
    ) -> bool {
        while let Some(record) = self.waiting.pop_if(|record| record.time_ns < before_ns) {
            let data = record.data.get(..record.captured as usize);
            let mut data = data.unwrap_or(&record.data);
            if headers_only && let Some(head) = headers(data, record.wire_len) {
                data = data.get(..head).unwrap_or(data);
            }
            let head = TapHead {
                time_ns: record.time_ns,
                wire_len: record.wire_len,
                captured: data.len() as u32,
                queue: EGRESS,
                ifindex: self.ifindex,
                ..TapHead::default()
            };
            if !take(head, data) {
                return false;
            }
        }
        true
    }
}

/// Bytes before the payload.
fn headers(data: &[u8], wire_len: u32) -> Option<usize> {
    let packet = parse::parse(&Captured { data, wire_len }).ok()?;
    let behind = packet.payload + u32::from(packet.bth.pad) + ICRC_LEN as u32;
    packet.end.checked_sub(behind).map(|n| n as usize)
}
