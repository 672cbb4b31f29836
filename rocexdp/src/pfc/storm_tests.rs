//! Storms, and what only looks like one.

use super::*;

const TICK: u64 = 100_000_000;
const STUCK: Traffic = Traffic::Known {
    waiting: true,
    left: 7,
};

/// Looks every 100 ms at a priority that is paused for a share of the time, in periods of 2 ms; its pause frames are renewed
/// before they end.
struct Wire {
    detector: Detector,
    now: u64,
    paused: u64,
}

impl Wire {
    fn new() -> Self {
        Self {
            detector: Detector::new(Config::default()),
            now: 5_000_000_000,
            paused: 1000,
        }
    }

    fn tick(&mut self, share: f64, traffic: Traffic) -> Option<Change> {
        self.now += TICK;
        self.paused += (TICK as f64 * share) as u64;
        self.detector.look(&Look {
            now_ns: self.now,
            link_up: true,
            paused_ns: Some(self.paused),
            traffic,
        })
    }

    /// All changes of so many ticks.
    fn ticks(&mut self, n: usize, share: f64, traffic: Traffic) -> Vec<Change> {
        (0..n).filter_map(|_| self.tick(share, traffic)).collect()
    }
}

#[test]
fn paused_all_the_time_with_traffic_stuck_is_a_storm_after_one_window() {
    let mut wire = Wire::new();
    assert_eq!(wire.ticks(10, 1.0, STUCK), []);
    assert_eq!(wire.detector.share(), Err(NoShare::Warming));
    assert_eq!(
        wire.tick(1.0, STUCK),
        Some(Change::Flagged {
            certainty: Certainty::Storm,
            share: 1.0
        })
    );
    assert_eq!(wire.ticks(1000, 1.0, STUCK), [], "said once");
    assert_eq!(wire.detector.flagged(), Some(Certainty::Storm));
}

#[test]
fn paused_for_85_percent_is_never_flagged() {
    for traffic in [STUCK, Traffic::Unknown] {
        let mut wire = Wire::new();
        assert_eq!(wire.ticks(1000, 0.85, traffic), []);
        assert!((wire.detector.share().unwrap() - 0.85).abs() < 1e-6);
        // Nor just at the threshold.
        assert_eq!(wire.ticks(1000, 0.99, traffic), []);
    }
}

#[test]
fn bursts_of_full_pause_shorter_than_the_window_are_not_flagged() {
    let mut wire = Wire::new();
    for _ in 0..100 {
        assert_eq!(wire.ticks(9, 1.0, STUCK), []);
        assert_eq!(wire.ticks(1, 0.0, STUCK), []);
    }
}

#[test]
fn traffic_that_leaves_or_does_not_wait_is_no_storm() {
    let mut wire = Wire::new();
    for n in 0..100 {
        let traffic = Traffic::Known {
            waiting: true,
            left: n / 5,
        };
        assert_eq!(wire.tick(1.0, traffic), None);
    }
    let idle = Traffic::Known {
        waiting: false,
        left: 20,
    };
    assert_eq!(wire.ticks(100, 1.0, idle), []);
    assert_eq!(wire.detector.share(), Ok(1.0));
    // A queue that emptied once within the window was not stuck.
    let wait = Traffic::Known {
        waiting: true,
        left: 20,
    };
    for _ in 0..20 {
        assert_eq!(wire.ticks(9, 1.0, wait), []);
        assert_eq!(wire.tick(1.0, idle), None);
    }
}

#[test]
fn with_traffic_unknown_it_is_suspected_and_can_be_confirmed() {
    let mut wire = Wire::new();
    let suspected = wire.ticks(20, 1.0, Traffic::Unknown);
    assert_eq!(
        suspected,
        [Change::Flagged {
            certainty: Certainty::Suspected,
            share: 1.0
        }]
    );
    let confirmed = wire.ticks(20, 1.0, STUCK);
    assert_eq!(
        confirmed,
        [Change::Flagged {
            certainty: Certainty::Storm,
            share: 1.0
        }]
    );
    assert_eq!(
        wire.ticks(20, 1.0, Traffic::Unknown),
        [],
        "no step back to a suspicion"
    );
}

#[test]
fn it_is_released_below_90_percent_and_not_in_between() {
    let mut wire = Wire::new();
    assert_eq!(wire.ticks(20, 1.0, STUCK).len(), 1);
    assert_eq!(
        wire.ticks(100, 0.95, STUCK),
        [],
        "between the thresholds nothing changes"
    );
    assert_eq!(wire.detector.flagged(), Some(Certainty::Storm));
    let released = wire.ticks(20, 0.85, STUCK);
    let [Change::Released { reason, lasted_ns }] = released[..] else {
        panic!("{released:?}");
    };
    assert_eq!(reason, Released::NotPaused);
    assert!(lasted_ns > 100 * TICK, "{lasted_ns}");
    assert_eq!(wire.ticks(100, 0.95, STUCK), [], "nor does it flag there");
}

#[test]
fn it_is_released_when_packets_leave() {
    let mut wire = Wire::new();
    assert_eq!(wire.ticks(20, 1.0, STUCK).len(), 1);
    let moved = Traffic::Known {
        waiting: true,
        left: 8,
    };
    assert!(matches!(
        wire.tick(1.0, moved),
        Some(Change::Released {
            reason: Released::TrafficMoves,
            ..
        })
    ));
    assert_eq!(wire.ticks(5, 1.0, moved), []);
}

#[test]
fn all_eight_priorities_at_once_are_eight_storms() {
    let mut all: Vec<Wire> = (0..8).map(|_| Wire::new()).collect();
    let mut flagged = [0; 8];
    for _ in 0..30 {
        for (wire, n) in all.iter_mut().zip(&mut flagged) {
            *n += usize::from(wire.tick(1.0, STUCK).is_some());
        }
    }
    assert_eq!(flagged, [1; 8]);
    // They end one by one, each by itself.
    for i in 0..8 {
        for (k, wire) in all.iter_mut().enumerate() {
            wire.ticks(20, if k <= i { 0.0 } else { 1.0 }, STUCK);
            assert_eq!(wire.detector.flagged().is_some(), k > i);
        }
    }
}

#[test]
fn a_link_flap_begins_anew() {
    let mut wire = Wire::new();
    let down = |wire: &mut Wire| {
        wire.now += TICK;
        wire.detector.look(&Look {
            now_ns: wire.now,
            link_up: false,
            paused_ns: Some(wire.paused),
            traffic: STUCK,
        })
    };
    for _ in 0..50 {
        assert_eq!(
            wire.ticks(10, 1.0, STUCK),
            [],
            "the link was up for less than a window"
        );
        assert_eq!(down(&mut wire), None);
        assert_eq!(wire.detector.share(), Err(NoShare::LinkDown));
    }
    assert_eq!(wire.ticks(20, 1.0, STUCK).len(), 1);
    assert!(matches!(
        down(&mut wire),
        Some(Change::Released {
            reason: Released::LinkDown,
            ..
        })
    ));
}

#[test]
fn a_counter_that_was_reset_or_wrapped_is_looked_at_for_a_window_first() {
    let mut wire = Wire::new();
    assert_eq!(wire.ticks(8, 1.0, STUCK), []);
    wire.paused = 0;
    assert_eq!(wire.ticks(10, 1.0, STUCK), []);
    assert_eq!(wire.ticks(2, 1.0, STUCK).len(), 1);
    // Flagged, a reset does not take the flag back; the next full window decides.
    wire.paused = 5;
    assert_eq!(wire.ticks(12, 1.0, STUCK), []);
    wire.paused = 0;
    assert!(matches!(
        wire.ticks(12, 0.2, STUCK)[..],
        [Change::Released { .. }]
    ));
    // Packets that left, of a new program.
    let mut wire = Wire::new();
    wire.ticks(
        8,
        1.0,
        Traffic::Known {
            waiting: true,
            left: 1 << 40,
        },
    );
    assert_eq!(wire.ticks(10, 1.0, STUCK), []);
}

#[test]
fn a_counter_renewed_once_a_second_tells_nothing_about_a_second() {
    // Half of the time paused: two renewals within a window would look like all of it.
    for share in [0.5, 0.85, 1.0] {
        let mut wire = Wire::new();
        for n in 1..200_u64 {
            wire.now += TICK;
            // Renewed after 0.9 and 1.1 s in turn.
            if n % 20 == 9 || n % 20 == 0 {
                wire.paused += (1e9 * share) as u64;
            }
            let change = wire.detector.look(&Look {
                now_ns: wire.now,
                link_up: true,
                paused_ns: Some(wire.paused),
                traffic: STUCK,
            });
            assert_eq!(change, None, "{share} at {n}");
        }
    }
}

#[test]
fn what_is_not_counted_is_never_flagged() {
    let mut detector = Detector::new(Config::default());
    for n in 0..100 {
        let look = Look {
            now_ns: n * TICK,
            link_up: true,
            paused_ns: None,
            traffic: STUCK,
        };
        assert_eq!(detector.look(&look), None);
    }
    assert_eq!(detector.share(), Err(NoShare::NotCounted));
}

#[test]
fn many_looks_take_no_more_memory_and_judge_the_same() {
    let mut detector = Detector::new(Config::default());
    let mut changes = Vec::new();
    for n in 0..200_000_u64 {
        let now_ns = n * 20_000; // 20 us apart
        changes.extend(detector.look(&Look {
            now_ns,
            link_up: true,
            paused_ns: Some(now_ns),
            traffic: STUCK,
        }));
        assert!(detector.looks.len() <= MOST_LOOKS);
    }
    assert_eq!(changes.len(), 1);
    // A look within the window at which nothing waited is not lost by thinning.
    let mut detector = Detector::new(Config::default());
    for n in 0..100_000_u64 {
        let look = Look {
            now_ns: n * 20_000,
            link_up: true,
            paused_ns: Some(n * 20_000),
            traffic: Traffic::Known {
                waiting: n % 40_000 != 39_999,
                left: 0,
            },
        };
        assert_eq!(detector.look(&look), None, "{n}");
    }
}
