//! Selective repeat at the receiver: which transmissions of each path have arrived, and when to say so.
//!
//! Must not: look at what arrived; a transmission that is recorded here must have been kept or carried out.

use rocexdp_common::headers::{SACK_BITS, Sack};

/// A path is acknowledged at least once for as many packets, asked or not: the sender learns of losses from later arrivals.
const ACK_EVERY: u32 = 16;
/// So many packets behind a gap are acknowledged each, so that the sender's tolerance of reordering is passed at once.
const BEHIND_GAP: u32 = 4;

/// Serials of a connection are closer together than this.
const NEAR: u32 = 1 << 20;

/// What arrived on one path.
#[derive(Clone, Copy, Debug, Default)]
struct Arrived {
    /// Before the first one: the serial before that.
    highest: u32,
    /// As in a [`Sack`].
    below: [u64; 4],
    /// Since the last acknowledgement.
    fresh: u32,
    /// Packets that are to be acknowledged each.
    urgent: u32,
    owed: bool,
}

/// What arrived on all paths of a QP.
#[derive(Debug)]
pub(crate) struct Arrivals {
    paths: Box<[Arrived]>,
    /// The path that is looked at first for an acknowledgement.
    turn: usize,
}

impl Arrivals {
    /// Nothing on any of these paths; each starts with serial `first`.
    pub(crate) fn new(paths: u8, first: u32) -> Self {
        let path = Arrived {
            highest: first.wrapping_sub(1),
            ..Arrived::default()
        };
        Self {
            paths: vec![path; usize::from(paths)].into(),
            turn: 0,
        }
    }

    /// Nothing on as many paths; each starts with serial `first`.
    pub(crate) fn other(&self, first: u32) -> Self {
        Self::new(self.paths.len() as u8, first)
    }

    /// Whether the QP has such a path.
    pub(crate) fn has_path(&self, path: u8) -> bool {
        usize::from(path) < self.paths.len()
    }

    /// Whether a transmission with this serial may be of this connection: a former one's, still on its way, had others.
    pub(crate) fn is_near(&self, path: u8, serial: u32) -> bool {
        self.paths
            .get(usize::from(path))
            .is_some_and(|p| (serial.wrapping_sub(p.highest) as i32).unsigned_abs() < NEAR)
    }

    /// A transmission arrived. `ask`: it is to be acknowledged at once.
    pub(crate) fn record(&mut self, path: u8, serial: u32, ask: bool) {
        let Some(path) = self.paths.get_mut(usize::from(path)) else {
            return;
        };
        let ahead = serial.wrapping_sub(path.highest) as i32;
        let mut odd = false;
        if ahead > 0 {
            path.below = shifted(path.below, ahead as u32);
            path.highest = serial;
            odd = ahead > 1;
            if odd {
                path.urgent = BEHIND_GAP;
            }
        } else if ahead < 0 {
            let i = ahead.unsigned_abs() - 1;
            if let Some(word) = path.below.get_mut((i / 64) as usize) {
                *word |= 1 << (i % 64);
            }
            odd = true;
        }
        path.fresh += 1;
        path.owed |= ask || odd || ahead == 0 || path.urgent > 0 || path.fresh >= ACK_EVERY;
        path.urgent = path.urgent.saturating_sub(u32::from(!odd));
    }

    /// Whether a path is to be acknowledged.
    pub(crate) fn owes(&self) -> bool {
        self.paths.iter().any(|p| p.owed)
    }

    /// The acknowledgement of the next path that is owed one, or else has news, or else of the first one; it counts as sent.
    pub(crate) fn take(&mut self) -> Option<Sack> {
        let n = self.paths.len();
        let find = |wanted: fn(&Arrived) -> bool| {
            (self.turn..n)
                .chain(0..self.turn)
                .find(|i| self.paths.get(*i).is_some_and(wanted))
        };
        let index = find(|p| p.owed)
            .or_else(|| find(|p| p.fresh > 0))
            .unwrap_or(0);
        self.turn = if index + 1 < n { index + 1 } else { 0 };
        self.take_of(index as u8)
    }

    /// The acknowledgement of this path; it counts as sent.
    pub(crate) fn take_of(&mut self, index: u8) -> Option<Sack> {
        let path = self.paths.get_mut(usize::from(index))?;
        (path.owed, path.fresh) = (false, 0);
        Some(Sack {
            path: index,
            answers: false,
            mark: 0,
            highest: path.highest,
            below: path.below,
        })
    }
}

/// The bits when the highest serial moves up by `by`: the one that was highest is the last of those between.
fn shifted(below: [u64; 4], by: u32) -> [u64; 4] {
    let mut out = [0; 4];
    if by > SACK_BITS {
        return out;
    }
    let (words, bits) = ((by / 64) as usize, by % 64);
    for (i, word) in out.iter_mut().enumerate() {
        let from = |back: usize| {
            i.checked_sub(words + back)
                .and_then(|j| below.get(j))
                .copied()
                .unwrap_or(0)
        };
        *word = from(0) << bits;
        if bits > 0 {
            *word |= from(1) >> (64 - bits);
        }
    }
    let i = by - 1;
    if let Some(word) = out.get_mut((i / 64) as usize) {
        *word |= 1 << (i % 64);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn the_bitmap_names_what_arrived_whatever_the_order() {
        let mut rng = Rng::new(7);
        for start in [0u32, u32::MAX - 300] {
            let mut a = Arrivals::new(1, start);
            let mut came = Vec::new();
            let mut top = 0u32;
            for _ in 0..3000 {
                let n = match rng.below(8) {
                    0 => top.saturating_sub(rng.below(250) as u32),
                    1 => top + 1 + rng.below(90) as u32,
                    _ => top + 1,
                };
                top = top.max(n);
                let serial = start.wrapping_add(n);
                a.record(0, serial, true);
                came.push(serial);
                assert!(a.owes());
                let sack = a.take().unwrap();
                assert_eq!(sack.highest, start.wrapping_add(top));
                for back in 1..=SACK_BITS.min(top) {
                    let s = sack.highest.wrapping_sub(back);
                    assert_eq!(sack.has(s), came.contains(&s), "{s} of {sack:x?}");
                }
            }
        }
    }

    #[test]
    fn gaps_are_told_at_once_and_the_rest_now_and_then() {
        let mut a = Arrivals::new(2, 0);
        let mut told = Vec::new();
        for serial in (0..100).filter(|s| *s != 50) {
            a.record(1, serial, serial == 3);
            if a.owes() {
                assert_eq!(a.take().map(|s| s.path), Some(1));
                told.push(serial);
            }
        }
        assert_eq!(told, [3, 19, 35, 51, 52, 53, 54, 55, 71, 87]);
        // What fills the gap, or comes again.
        for serial in [50, 99, 98] {
            a.record(1, serial, false);
            assert!(a.owes());
            assert!(a.take().unwrap().has(serial));
        }
        assert!(!a.owes());
    }

    #[test]
    fn a_first_packet_that_is_not_the_first_serial_is_a_gap() {
        let mut a = Arrivals::new(1, 7);
        assert_eq!(a.take().map(|s| (s.highest, s.has(7))), Some((6, false)));
        a.record(0, 9, false);
        let sack = a.take().unwrap();
        assert!(sack.has(9) && !sack.has(8) && !sack.has(7));
    }

    #[test]
    fn what_a_former_connection_left_on_its_way_is_far_off() {
        let a = Arrivals::new(2, 0x10_0000);
        assert!(a.is_near(1, 0x10_0000) && a.is_near(1, 0x1f_fffe) && a.is_near(1, 1));
        for far in [0x20_0000, 0xffff_0000, 0x8000_0000] {
            assert!(!a.is_near(1, far));
        }
        assert!(!a.is_near(2, 0x10_0000));
    }
}
