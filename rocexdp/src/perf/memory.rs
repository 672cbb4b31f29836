//! Where each message of a test comes from and goes to.
//!
//! As in perftest (`set_up_connection`, `increase_rem_addr`): half of the memory is sent from, the other half is the peers', each with one
//! part per queue pair; small messages go through a page in steps of cache lines, larger ones always to the same place. Only
//! where a peer's part begins is told.

/// The division of one region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    qps: u64,
    /// Bytes of one part.
    part: u64,
    cycle_buffer: u64,
    cache_line: u64,
}

impl Layout {
    /// For `qps` queue pairs and receive requests of up to `largest` bytes.
    #[must_use]
    pub fn new(qps: u32, largest: u32, cycle_buffer: u32, cache_line: u32) -> Self {
        Self {
            qps: qps.into(),
            part: u64::from(largest.max(cycle_buffer)).next_multiple_of(8),
            cycle_buffer: cycle_buffer.into(),
            cache_line: u64::from(cache_line).max(1),
        }
    }

    /// Bytes of the region.
    #[must_use]
    pub fn len(&self) -> u64 {
        2 * self.qps * self.part
    }

    /// Bytes of a queue pair's part.
    #[must_use]
    pub fn part(&self) -> u64 {
        self.part
    }

    /// Where queue pair `qp` sends from.
    #[must_use]
    pub fn ours(&self, qp: usize) -> u64 {
        qp as u64 * self.part
    }

    /// Where the peer of queue pair `qp` puts, or reads from.
    #[must_use]
    pub fn theirs(&self, qp: usize) -> u64 {
        (self.qps + qp as u64) * self.part
    }

    /// Offset in either part of message number `n`, of `size` bytes.
    #[must_use]
    pub fn cycle(&self, n: u64, size: u32) -> u64 {
        let size = u64::from(size);
        if size > self.cycle_buffer / 2 {
            return 0;
        }
        let step = size.max(1).next_multiple_of(self.cache_line);
        n % (self.cycle_buffer / step).max(1) * step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_lies_in_its_part() {
        let layout = Layout::new(3, 5000, 4096, 64);
        assert_eq!((layout.part(), layout.len()), (5000, 30_000));
        assert_eq!(
            (layout.ours(2), layout.theirs(0), layout.theirs(2)),
            (10_000, 15_000, 25_000)
        );
        for size in [1, 2, 63, 64, 65, 100, 1000, 2048, 2049, 4096, 5000] {
            for n in 0..200 {
                assert!(
                    layout.cycle(n, size) + u64::from(size) <= layout.part(),
                    "{size} {n}"
                );
            }
        }
        assert_eq!(
            (layout.cycle(1, 2), layout.cycle(64, 2), layout.cycle(1, 65)),
            (64, 0, 128)
        );
        assert_eq!((layout.cycle(1, 2048), layout.cycle(1, 2049)), (2048, 0));
        // The smallest that a peer's numbers can make of it.
        assert_eq!(Layout::new(1, 8, 64, 64).cycle(5, 33), 0);
    }
}
