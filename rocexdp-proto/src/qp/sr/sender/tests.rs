//! The sender's books against links of which the tests say what arrives.

use super::*;

/// A link of a number of paths: what arrives is what the test says.
struct Rig {
    s: Sender,
    una: u64,
    /// Serials that have arrived, by path.
    arrived: Vec<Vec<u32>>,
    now: u64,
}

impl Rig {
    fn new(paths: u8, serial: u32) -> Self {
        Self {
            s: Sender::new(paths, serial),
            una: 0,
            arrived: vec![Vec::new(); usize::from(paths)],
            now: 0,
        }
    }

    fn time(&mut self) -> Timestamp {
        self.now += 100;
        Timestamp::from_nanos(self.now)
    }

    fn send(&mut self, packet: u64) -> (u8, u32) {
        let now = self.time();
        self.s.sent(packet, now)
    }

    /// These transmissions arrive; then the path is acknowledged.
    fn arrive(&mut self, path: u8, serials: &[u32]) -> News {
        let all = &mut self.arrived[usize::from(path)];
        all.extend(serials);
        let highest = all
            .iter()
            .copied()
            .max_by_key(|s| s.wrapping_sub(all[0]) as i32)
            .unwrap();
        let mut below = [0; 4];
        for s in all.iter() {
            let n = highest.wrapping_sub(*s);
            if (1..=SACK_BITS).contains(&n) {
                below[(n as usize - 1) / 64] |= 1 << ((n - 1) % 64);
            }
        }
        let now = self.time();
        let sack = Sack {
            path,
            answers: false,
            mark: 0,
            highest,
            below,
        };
        self.s.sack(&sack, self.una, now).unwrap()
    }

    fn lost(&mut self) -> Vec<u64> {
        let mut out = Vec::new();
        while let Some(packet) = self.s.next_lost() {
            out.push(packet);
            self.send(packet);
        }
        out
    }
}

#[test]
fn a_lost_packet_is_found_by_later_ones_and_a_lost_retransmission_too() {
    for start in [0, u32::MAX - 4] {
        let at = |n: u32| start.wrapping_add(n);
        let mut r = Rig::new(1, start);
        for p in 0..6 {
            r.send(p);
        }
        // Packet 1 is lost. Two that overtake are within the tolerance.
        assert_eq!(r.arrive(0, &[at(0), at(2), at(3)]).lost, 0);
        let news = r.arrive(0, &[at(4)]);
        assert_eq!((news.lost, news.arrived), (1, true));
        assert_eq!(r.s.in_flight(), 1);
        assert_eq!(r.lost(), [1]);
        assert_eq!(r.s.in_flight(), 2);
        // The retransmission, serial 6, is lost too: 7, 8 and 9 tell.
        for p in 6..9 {
            r.send(p);
        }
        assert_eq!(r.arrive(0, &[at(5), at(7), at(8)]).lost, 0);
        assert_eq!(r.arrive(0, &[at(9)]).lost, 1);
        assert_eq!(r.lost(), [1]);
        assert_eq!(r.arrive(0, &[at(10)]).lost, 0);
        assert_eq!(r.s.in_flight(), 0);
    }
}

#[test]
fn reordering_between_paths_is_no_loss() {
    let mut r = Rig::new(4, 0);
    let mut sent = Vec::new();
    for p in 0..40 {
        sent.push(r.send(p));
    }
    // Round robin while all have the same on the way.
    assert_eq!(sent[..5], [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1)]);
    let on = |path| -> Vec<u32> {
        sent.iter()
            .filter(|(p, _)| *p == path)
            .map(|(_, s)| *s)
            .collect()
    };
    // Path 3 comes first, path 0 last.
    for path in (0..4).rev() {
        assert_eq!(r.arrive(path, &on(path)).lost, 0);
    }
    assert_eq!(r.s.in_flight(), 0);
    assert_eq!(r.s.next_lost(), None);
}

#[test]
fn a_path_that_reorders_gets_tolerance_and_what_turns_up_is_not_sent_again() {
    let mut r = Rig::new(1, 0);
    for p in 0..20 {
        r.send(p);
    }
    let news = r.arrive(0, &[0, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(news.lost, 1);
    let news = r.arrive(0, &[1]);
    assert_eq!((news.spurious, news.lost), (1, 0));
    assert_eq!(r.lost(), [], "it has come");
    // Overtaken by eight: as much is no loss now.
    assert_eq!(r.arrive(0, &[11, 12, 13, 14, 15, 16, 17, 18]).lost, 0);
    assert_eq!(r.arrive(0, &[19]).lost, 1);
}

#[test]
fn a_path_that_no_longer_reorders_loses_its_tolerance_again() {
    let mut r = Rig::new(1, 0);
    for p in 0..10 {
        r.send(p);
    }
    r.arrive(0, &[0, 2, 3, 4, 5, 6, 7, 8, 9]);
    r.arrive(0, &[1]);
    assert!(r.s.paths[0].tolerance >= 8 && !r.s.paths[0].reordering.is_zero());
    assert_eq!(r.lost(), []);
    r.s.acknowledged(0, 10);
    r.una = 10;
    // Recoveries, one lost packet each; the sixteenth ends it.
    for n in 0..16u64 {
        assert!(r.s.paths[0].tolerance >= 8, "after {n}");
        let first = r.una;
        let sent: Vec<u32> = (first..first + 20).map(|p| r.send(p).1).collect();
        let news = r.arrive(0, &sent[1..]);
        assert_eq!((news.lost, news.spurious), (1, 0), "{n}");
        let (_, again) = (r.s.next_lost(), r.send(first).1);
        r.arrive(0, &[again]);
        r.s.acknowledged(first, first + 20);
        r.una = first + 20;
    }
    assert_eq!(
        (r.s.paths[0].tolerance, r.s.paths[0].reordering),
        (2, Duration::ZERO)
    );
}

#[test]
fn a_transmission_that_was_never_made_is_refused() {
    let mut r = Rig::new(1, 7);
    r.send(0);
    let sack = |path, highest| Sack {
        path,
        answers: false,
        mark: 0,
        highest,
        below: [u64::MAX; 4],
    };
    let t = Timestamp::ZERO;
    for bad in [sack(0, 8), sack(1, 7), sack(0, 1 << 31 | 7)] {
        assert_eq!(r.s.sack(&bad, 0, t), None);
    }
    // An older one than any that is open tells nothing.
    assert_eq!(r.s.sack(&sack(0, 6), 0, t), Some(News::default()));
    assert_eq!(r.s.in_flight(), 1);
}

#[test]
fn the_tail_is_probed_first_with_one_packet_then_with_all_on_the_path() {
    let mut r = Rig::new(1, 0);
    for p in 0..6 {
        r.send(p);
    }
    r.arrive(0, &[0]);
    r.s.acknowledged(0, 1);
    r.una = 1;
    let due = r.s.deadline().unwrap();
    assert!(!r.s.probe(r.una, Timestamp::from_nanos(due.as_nanos() - 1)));
    assert!(r.s.probe(r.una, due));
    r.now = due.as_nanos();
    assert_eq!(r.lost(), [1]);
    let later = r.s.deadline().unwrap();
    assert!(later > due);
    assert!(r.s.probe(r.una, later));
    r.now = later.as_nanos();
    let mut again = r.lost();
    again.sort_unstable();
    assert_eq!(again, [1, 2, 3, 4, 5]);
}

#[test]
fn an_acknowledged_window_leaves_nothing_behind() {
    let mut r = Rig::new(2, 0);
    let mut una = 0;
    for p in 0..100_000u64 {
        let (path, serial) = r.send(p);
        if p % 50 == 49 {
            r.s.acknowledged(una, p + 1);
            (una, r.una) = (p + 1, p + 1);
            r.arrived[usize::from(path)].clear();
            r.arrive(path, &[serial]);
        }
    }
    assert_eq!(r.s.in_flight(), 0);
    assert!(
        r.s.paths.iter().all(|p| p.sent.len() <= 100),
        "{r:?}",
        r = r.s.paths
    );
    assert!(r.s.lost.is_empty());
}

#[test]
fn what_leaves_seldom_is_found_lost_by_the_next_one_that_arrives() {
    let mut r = Rig::new(1, 0);
    r.send(0);
    r.arrive(0, &[0]);
    for p in 1..4 {
        r.now += 5_000;
        r.send(p);
    }
    // Packet 1 is lost, and lost again.
    assert_eq!(r.arrive(0, &[2]).lost, 1);
    assert_eq!(r.lost(), [1]);
    r.now += 5_000;
    r.send(5);
    assert_eq!(r.arrive(0, &[5]).lost, 2, "3 and the retransmission, 4");
    assert_eq!(r.lost(), [3, 1]);
}

#[test]
fn what_was_overtaken_by_little_is_lost_once_its_round_trip_has_passed() {
    let mut r = Rig::new(1, 0);
    let at = |p: &Rig| Timestamp::from_nanos(p.now);
    for n in 0..50 {
        r.send(n);
        r.now += 9_900;
        r.arrive(0, &[n as u32]);
    }
    r.send(50);
    let left = at(&r);
    r.send(51);
    r.now += 9_800;
    assert_eq!(r.arrive(0, &[51]).lost, 0, "100 ns later");
    let due = r.s.deadline().unwrap();
    let wait = due.saturating_since(left);
    assert!(
        (Duration::from_micros(11)..Duration::from_micros(12)).contains(&wait),
        "a round trip, and an eighth: {wait:?}"
    );
    r.una = 50;
    assert!(!r.s.probe(50, due.saturating_sub(Duration::from_nanos(1))));
    assert!(r.s.probe(50, due));
    assert_eq!(r.lost(), [50]);
}

#[test]
fn a_path_that_reorders_over_time_gets_that_time() {
    let mut r = Rig::new(1, 0);
    r.send(0);
    // The round trip, which bounds it.
    r.now += 12_000;
    r.arrive(0, &[0]);
    for p in 1..6 {
        r.now += 5_000;
        r.send(p);
    }
    assert_eq!(r.arrive(0, &[2]).lost, 1);
    assert_eq!(r.arrive(0, &[1]).spurious, 1);
    assert_eq!(r.lost(), []);
    // As much later is no loss now; more is.
    assert_eq!(r.arrive(0, &[4]).lost, 0);
    assert_eq!(r.arrive(0, &[5]).lost, 1);
}
