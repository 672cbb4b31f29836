//! Memory windows in programs: bound, unbound, invalidated by the peer, freed.
//!
//! Must not: know what becomes of them.

use rocexdp_proto::ids::PathMtu;

use super::super::program::{Args, Op, Setup, Verb, flag, kind, mistake};
use super::super::state::{SLOTS, TARGET_LEN, WINDOWS};
use super::{Dice, op};

/// Windows, bound and unbound at both ends.
pub(super) fn bindings(d: &mut Dice, s: &Setup, ops: &mut Vec<Op>, span: u64, mistakes: bool) {
    for end in 0..2 {
        for slot in 0..WINDOWS as u64 {
            let window = |d: &mut Dice| Args {
                end,
                slot,
                kind: d.of(&[1, 2, 2]),
                b: u64::from(mistakes && d.percent(5)),
                ..Args::default()
            };
            ops.push(op(0, Verb::Window, window(d)));
            let few = d.below(3);
            for _ in 0..few {
                let at = d.below(span);
                let args = window(d);
                ops.push(op(at, Verb::Free, args));
                ops.push(op(at + 1, Verb::Window, args));
            }
        }
        if mistakes && d.percent(30) {
            // Of the region that may be in another protection domain.
            let args = Args {
                end,
                pair: d.below(s.pairs),
                kind: kind::BIND,
                slot: d.below(WINDOWS as u64),
                b: SLOTS as u64 - 1,
                a: 4,
                len: 64,
                bad: mistake::AS_IT_IS,
                ..Args::default()
            };
            ops.push(op(d.below(span), Verb::Post, args));
        }
        for n in 0..d.from(15, 80) {
            let bad = match mistakes && d.percent(3) {
                true => d.of(&[
                    mistake::KEY,
                    mistake::RANGE,
                    mistake::RIGHT,
                    mistake::AS_IT_IS,
                ]),
                false => mistake::NONE,
            };
            let rights = [2 | 4 | 8 | 256, 2 | 4 | 8 | 256, 2, 4, 8, 2 | 32, 4 | 256];
            let args = Args {
                end,
                pair: d.below(s.pairs),
                kind: d.of(&[kind::BIND, kind::BIND, kind::BIND, kind::LOCAL_INV]),
                slot: d.below(WINDOWS as u64),
                b: if bad == mistake::AS_IT_IS {
                    SLOTS as u64 - 1
                } else {
                    d.below(if mistakes { SLOTS as u64 } else { 4 })
                },
                a: d.of(&rights),
                len: d.of(&[0, 64, 1000, 30_000, 65_536]),
                at: d.below(u64::from(TARGET_LEN)),
                flags: d.of(&[0, 0, flag::UNSIGNALED, flag::FENCE]),
                bad,
                age: d.of(&[0, 0, 0, 1]),
                ..Args::default()
            };
            // The first ones soon, so that there is something to reach.
            let at = if n < 5 { d.below(2000) } else { d.below(span) };
            ops.push(op(at, Verb::Post, args));
        }
    }
}

/// Windows that are bound for the peer, which invalidates them.
pub(super) fn invalidations(d: &mut Dice, s: &Setup, ops: &mut Vec<Op>, span: u64) {
    let mtu = u64::from(PathMtu::ALL[s.mtu as usize - 1].bytes());
    for _ in 0..d.from(18, 70) {
        let (end, pair, at) = (d.below(2), d.below(s.pairs), d.below(span));
        let bind = Args {
            end,
            pair,
            kind: kind::BIND,
            slot: d.below(WINDOWS as u64),
            b: d.below(4),
            a: 2 | 4,
            len: 4096,
            at: d.below(u64::from(TARGET_LEN)),
            ..Args::default()
        };
        ops.push(op(at, Verb::Post, bind));
        let then = at + d.from(1_000, 40_000);
        let recv = Args {
            end,
            pair,
            len: 65_536,
            segs: 1,
            ..Args::default()
        };
        ops.push(op(then, Verb::Recv, recv));
        let send = Args {
            end: 1 - end,
            pair,
            kind: kind::SEND_INV,
            len: d.of(&[0, 1, mtu, mtu + 1, 2 * mtu, 3 * mtu]),
            window: d.from(1, WINDOWS as u64),
            src: d.below(1 << 40),
            ..Args::default()
        };
        ops.push(op(then, Verb::Post, send));
    }
}
