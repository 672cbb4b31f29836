//! Rings over plain memory, producer and consumer paired, against an oracle (a queue of numbers). No kernel.
//!
//! Start indexes are random and near the `u32` wrap, so that each run crosses it.

use super::super::plain::Plain;
use super::*;
use std::collections::VecDeque;

/// xorshift64*, enough to scatter operations; a seed is a run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

/// What the ring must behave like: numbers in order, in three places.
#[derive(Default)]
struct Oracle {
    /// Pushed, not published.
    pushed: VecDeque<u64>,
    /// Published, not popped.
    visible: VecDeque<u64>,
    /// Popped, not released: their slots are still taken.
    popped: usize,
    /// The next number to push.
    next: u64,
}

impl Oracle {
    fn taken(&self) -> usize {
        self.pushed.len() + self.visible.len() + self.popped
    }
}

fn run(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let size = 1u32 << random.below(7);
    let start = 0u32.wrapping_sub(random.below(4 * u64::from(size) + 1) as u32);
    let plain = Plain::new(size, start, u64::MAX);
    let mut producer = plain.producer_half();
    let mut consumer = plain.consumer_half();
    let mut oracle = Oracle::default();

    for step in 0..2_000 {
        let context = format!("seed {seed} step {step} size {size} start {start:#x}");
        match random.below(6) {
            0 | 1 => {
                for _ in 0..=random.below(u64::from(size)) {
                    let full = oracle.taken() == size as usize;
                    assert_eq!(producer.push(oracle.next).is_err(), full, "{context}");
                    if !full {
                        oracle.pushed.push_back(oracle.next);
                        oracle.next += 1;
                    }
                }
            }
            2 => {
                assert_eq!(producer.publish(), !oracle.pushed.is_empty(), "{context}");
                oracle.visible.append(&mut oracle.pushed);
            }
            3 => {
                for _ in 0..=random.below(u64::from(size)) {
                    let popped = consumer.pop();
                    assert_eq!(popped, oracle.visible.pop_front(), "{context}");
                    oracle.popped += usize::from(popped.is_some());
                }
            }
            4 => {
                assert_eq!(consumer.release(), oracle.popped > 0, "{context}");
                oracle.popped = 0;
            }
            _ => {
                assert_eq!(
                    producer.free(size) as usize,
                    size as usize - oracle.taken(),
                    "{context}"
                );
                assert_eq!(
                    producer.outstanding() as usize,
                    oracle.visible.len() + oracle.popped,
                    "{context}"
                );
                // `available` may answer from its cache, never with more than there is, and never 0 when there is one.
                let available = consumer.available() as usize;
                assert!(available <= oracle.visible.len(), "{context}");
                assert_eq!(available == 0, oracle.visible.is_empty(), "{context}");
            }
        }
    }
    assert!(
        oracle.next > 4 * u64::from(size),
        "seed {seed} never wrapped"
    );
}

#[test]
fn ring_behaves_like_a_bounded_queue_across_index_wrap() {
    (0..200).for_each(run);
}

#[test]
fn entries_cross_threads_in_order_across_index_wrap() {
    const COUNT: u64 = 200_000;
    let plain = Plain::new(64, u32::MAX - 1_000, u64::MAX);
    let mut producer = plain.producer_half();
    let mut consumer = plain.consumer_half();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut next = 0;
            while next < COUNT {
                let mut room = producer.free(16).min(16);
                while room > 0 && next < COUNT {
                    producer.push(next).unwrap();
                    next += 1;
                    room -= 1;
                }
                if !producer.publish() {
                    std::thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < COUNT {
            while let Some(entry) = consumer.pop() {
                assert_eq!(entry, expected);
                expected += 1;
            }
            if !consumer.release() {
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn unpublished_entries_are_invisible_and_unreleased_slots_stay_taken() {
    let plain = Plain::new(2, u32::MAX, u64::MAX);
    let mut producer = plain.producer_half();
    let mut consumer = plain.consumer_half();
    producer.push(1).unwrap();
    producer.push(2).unwrap();
    assert_eq!(consumer.pop(), None);
    assert!(producer.publish());
    assert_eq!(
        (consumer.pop(), consumer.pop(), consumer.pop()),
        (Some(1), Some(2), None)
    );
    assert_eq!(
        producer.push(3),
        Err(3),
        "slots are not free before release"
    );
    assert!(consumer.release());
    assert_eq!(producer.push(3), Ok(()));
}

#[test]
fn broken_shared_indexes_never_lead_outside_the_ring() {
    let plain = Plain::new(4, 10, u64::MAX);
    let mut producer = plain.producer_half();
    let mut consumer = plain.consumer_half();
    // The other side claims 2^31 entries: no more than the ring holds are read before the claim is looked at again.
    plain
        .producer
        .store(10u32.wrapping_add(1 << 31), Ordering::Release);
    assert_eq!(consumer.available(), 4);
    for _ in 0..4 {
        assert_eq!(consumer.pop(), Some(u64::MAX));
    }
    // The other side claims to have consumed what was never produced: the ring counts as full.
    plain.consumer.store(11, Ordering::Release);
    assert_eq!(producer.free(5), 0);
    assert_eq!(producer.push(0), Err(0));
    assert!(producer.outstanding() <= 4);
}

#[test]
fn wakeup_flag_is_read_each_time() {
    let plain = Plain::new(4, 0, u64::MAX);
    let producer = plain.producer_half();
    assert!(!producer.needs_wakeup());
    plain.flags.store(NEED_WAKEUP, Ordering::Relaxed);
    assert!(producer.needs_wakeup());
    plain.flags.store(0, Ordering::Relaxed);
    assert!(!producer.needs_wakeup());
}
