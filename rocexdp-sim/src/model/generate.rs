//! Programs from seeds.
//!
//! A seed first draws what kind of run it is (how bad the link, whether QPs come and go, whether anyone makes mistakes), then the
//! operations; sizes lie where segmentation has its edges. Must not: depend on anything but the seed.

mod windows;

use rocexdp_common::opcode::rc;
use rocexdp_proto::ids::PathMtu;
use rocexdp_proto::rng::Rng;

use super::link::ack_timeout_ns;
use super::program::{Args, Op, Program, Setup, Verb, flag, kind, mistake};
use super::state::{SLOTS, TARGET_LEN, TARGETS, WINDOWS};

/// All bits of `mem::Access`.
const EVERYTHING: u64 = 1 | 2 | 4 | 8 | 16 | 256 | 512;

/// A generator with words for what is drawn.
struct Dice(Rng);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }

    /// From `low` to `high`, both included.
    fn from(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// The program of a seed.
#[must_use]
pub fn program(seed: u64) -> Program {
    let mut d = Dice(Rng::new(seed ^ 0x6d6f_6465_6c21));
    let mut setup = setup(&mut d);
    setup.seed = d.below(u64::MAX) | 1;
    faults(&mut d, &mut setup);
    if d.percent(4) {
        return sparse(&mut d, setup);
    }
    let mut ops = Vec::new();
    let span = d.of(&[100_000, 400_000, 2_000_000]);
    let (posts, mistakes) = (d.from(40, 340), d.percent(30));
    let windows = d.percent(40);
    memory(&mut d, &mut ops, mistakes);
    if mistakes && d.percent(25) {
        (setup.forge0, setup.forge1) = (d.below(9000), d.below(9000));
    }
    if d.percent(if windows { 88 } else { 42 }) {
        let invalidates = [rc::SEND_LAST_INVALIDATE, rc::SEND_ONLY_INVALIDATE];
        let rare = [
            rc::FLUSH,
            rc::ATOMIC_WRITE,
            rc::SEND_ONLY_IMM,
            rc::SEND_LAST_IMM,
            rc::WRITE_ONLY,
            rc::WRITE_LAST,
            rc::WRITE_ONLY_IMM,
            rc::READ_RESPONSE_FIRST,
            rc::READ_RESPONSE_MIDDLE,
            rc::READ_RESPONSE_LAST,
        ];
        let aim = if windows {
            d.of(&invalidates)
        } else {
            d.of(&rare)
        };
        setup.aim = u64::from(aim.0) + 1;
    }
    let style = Style {
        posts,
        mistakes,
        windows,
    };
    traffic(&mut d, &setup, &mut ops, span, style);
    if windows {
        windows::bindings(&mut d, &setup, &mut ops, span, mistakes);
        windows::invalidations(&mut d, &setup, &mut ops, span);
    }
    if setup.srq > 0 {
        for _ in 0..d.from(1, 8) {
            let (end, a) = (d.below(2), d.from(1, setup.srq));
            let args = Args {
                end,
                a,
                ..Args::default()
            };
            ops.push(op(d.below(span), Verb::Limit, args));
        }
    }
    if d.percent(30) {
        lifecycle(&mut d, &setup, &mut ops, span);
    }
    if mistakes && d.percent(75) {
        withdrawals(&mut d, &mut ops, span);
    }
    let dark = match (setup.mark0 >= 2000, windows) {
        (true, _) => 70,
        (_, true) => 50,
        _ => 16,
    };
    if d.percent(dark) {
        blackouts(&mut d, &setup, &mut ops, span);
    }
    ops.sort_by_key(|op| op.at);
    Program {
        setup,
        ops,
        faults: None,
    }
}

/// A long program with few faults, so that those before the last answer explain nothing of a failure.
fn sparse(d: &mut Dice, mut setup: Setup) -> Program {
    let mut ops = Vec::new();
    memory(d, &mut ops, false);
    let (drop, timeout, retry) = (d.from(500, 1500), 6, 7);
    setup = Setup {
        timeout,
        retry,
        ..setup
    };
    faults_of(&mut setup, [0; 14]);
    (setup.drop0, setup.drop1) = (drop, drop);
    let style = Style {
        posts: 300,
        mistakes: false,
        windows: false,
    };
    traffic(d, &setup, &mut ops, 60_000_000, style);
    ops.sort_by_key(|op| op.at);
    Program {
        setup,
        ops,
        faults: None,
    }
}

/// How a program's traffic is.
#[derive(Clone, Copy)]
struct Style {
    posts: u64,
    mistakes: bool,
    windows: bool,
}

/// Which pairs are UC and which UD, and how many there are.
fn services(d: &mut Dice, s: &mut Setup) {
    match d.below(100) {
        0..71 => {}
        71..85 => {
            s.pairs = d.of(&[1, 2, 3]);
            s.uc = d.from(1, (1 << s.pairs) - 1);
        }
        85..94 => {
            s.pairs = d.of(&[2, 3, 4]);
            s.ud = d.from(1, (1 << s.pairs) - 1) | 1;
        }
        _ => {
            s.pairs = 4;
            (s.uc, s.ud) = (d.of(&[2, 6]), d.of(&[1, 8, 9]));
        }
    }
    if d.percent(15) {
        s.srq = d.of(&[4, 16, 64]);
        s.limit = d.below(s.srq + 1);
    } else if s.uc | s.ud == 0 && d.percent(8) {
        s.cq = d.of(&[2, 4, 8, 16, 32]);
        s.poll = d.of(&[1_000, 20_000, 100_000]);
    }
}

fn setup(d: &mut Dice) -> Setup {
    let timeout = d.from(6, 8);
    let few = d.percent(20);
    let depth = d.of(&[1, 2, 4, 8, 16]);
    let mut near_wrap = || {
        if d.percent(60) {
            0xff_ffff - d.below(64)
        } else {
            d.below(1 << 24)
        }
    };
    let (psn0, psn1) = (near_wrap(), near_wrap());
    let selective = if d.percent(45) {
        d.of(&[1, 1, 2, 4])
    } else {
        0
    };
    let mut s = Setup {
        pairs: d.of(&[1, 1, 1, 2, 3]),
        cqs: d.of(&[1, 2]),
        mtu: d.of(&[1, 1, 1, 1, 1, 2, 3, 5]),
        window: d.of(&[1, 2, 4, 8, 16, 32, 64, 128]),
        interval: d.of(&[1, 2, 4, 16, 32]),
        timeout,
        retry: if few { d.below(3) } else { 7 },
        rnr_retry: if d.percent(50) { 7 } else { d.below(4) },
        rnr_timer: d.from(1, 12),
        sends: d.of(&[4, 16, 64]),
        recvs: d.of(&[4, 16, 64]),
        depth,
        resources: if selective == 0 && d.percent(8) {
            depth / 2
        } else {
            depth
        },
        access: if d.percent(4) {
            EVERYTHING & !d.of(&[2, 4, 8])
        } else {
            EVERYTHING
        },
        piece: d.of(&[0, 0, 0, 64, 100, 333]),
        budget: d.of(&[1, 4, 64]),
        gap: d.of(&[0, 20, 100, 300]),
        delay0: d.from(500, 10_000),
        delay1: d.from(500, 10_000),
        psn0,
        psn1,
        ipv6: u64::from(d.percent(20)),
        selective,
        ..Setup::default()
    };
    services(d, &mut s);
    s
}

/// The link's faults, in 65536: none, a few of all, many of one kind, or a storm.
fn faults(d: &mut Dice, s: &mut Setup) {
    let profile = d.below(100);
    let mut all = [0u64; 14];
    match profile {
        0..15 => {}
        15..70 => {
            for share in &mut all {
                *share = d.below(2000);
            }
        }
        70..90 => {
            let which = d.below(14) as usize;
            all[which] = d.from(1000, 16_000);
        }
        _ => {
            for share in &mut all {
                *share = d.below(4000);
            }
        }
    }
    faults_of(s, all);
    // A mark slows the sender down for long, so there are fewer of them.
    s.mark0 /= 8;
    s.mark1 /= 8;
    if d.percent(7) {
        (s.mark0, s.mark1) = (d.of(&[2000, 20_000]), d.of(&[2000, 20_000]));
    }
}

fn faults_of(s: &mut Setup, all: [u64; 14]) {
    [
        s.drop0,
        s.drop1,
        s.corrupt0,
        s.corrupt1,
        s.duplicate0,
        s.duplicate1,
        s.reorder0,
        s.reorder1,
        s.late0,
        s.late1,
        s.truncate0,
        s.truncate1,
        s.mark0,
        s.mark1,
    ] = all;
}

fn op(at: u64, verb: Verb, args: Args) -> Op {
    Op { at, verb, args }
}

/// Regions at the start.
fn memory(d: &mut Dice, ops: &mut Vec<Op>, mistakes: bool) {
    for end in 0..2 {
        for slot in 0..SLOTS as u64 {
            // The last one may be in another protection domain.
            let b = u64::from(slot == 5 && mistakes && d.percent(40));
            let a = match slot {
                0..4 => EVERYTHING,
                _ => d.of(&[1, 1 | 2, 1 | 4, 1 | 8, EVERYTHING]),
            };
            ops.push(op(
                0,
                Verb::Register,
                Args {
                    end,
                    slot,
                    kind: d.below(TARGETS as u64),
                    a,
                    b,
                    ..Args::default()
                },
            ));
        }
    }
}

/// Bytes of a message, at the edges of segmentation.
fn length(d: &mut Dice, mtu: u64) -> u64 {
    let most = 16_000.max(4 * mtu);
    let len = match d.below(100) {
        0..8 => 0,
        8..14 => 1,
        14..20 => d.of(&[2, 3, 4, 5, 7, 8]),
        20..45 => d.of(&[mtu - 1, mtu, mtu + 1]),
        45..65 => d.of(&[2 * mtu - 1, 2 * mtu, 2 * mtu + 1, 3 * mtu]),
        65..85 => d.below(4 * mtu),
        85..97 => d.from(1, 12) * mtu + d.of(&[0, 1]),
        _ => d.from(20, 60) * mtu,
    };
    len.min(most).min(u64::from(TARGET_LEN))
}

fn traffic(d: &mut Dice, s: &Setup, ops: &mut Vec<Op>, span: u64, style: Style) {
    let Style {
        posts,
        mistakes,
        windows,
    } = style;
    let mtu = u64::from(PathMtu::ALL[s.mtu as usize - 1].bytes());
    let one_way = d.percent(30);
    // How receive requests are posted: all first, in time, or short.
    let supply = d.of(&[200, 100, 100, 60]);
    for _ in 0..posts {
        let end = if one_way { 0 } else { d.below(2) };
        let pair = d.below(s.pairs);
        let kind = d.of(&[
            kind::SEND,
            kind::SEND,
            kind::SEND,
            kind::SEND_IMM,
            kind::SEND_IMM,
            kind::SEND_IMM,
            kind::WRITE,
            kind::WRITE,
            kind::WRITE,
            kind::WRITE_IMM,
            kind::WRITE_IMM,
            kind::WRITE_IMM,
            kind::READ,
            kind::READ,
            kind::READ,
            kind::COMPARE_SWAP,
            kind::COMPARE_SWAP,
            kind::FETCH_ADD,
            kind::FETCH_ADD,
            kind::ATOMIC_WRITE,
            kind::ATOMIC_WRITE,
            kind::FLUSH,
            kind::FLUSH,
            kind::SEND_INV,
        ]);
        let kind = if windows && d.percent(30) {
            kind::SEND_INV
        } else {
            kind
        };
        let len = length(d, mtu);
        let mut flags = 0;
        for (flag, percent) in [
            (flag::UNSIGNALED, 30),
            (flag::SOLICITED, 20),
            (flag::FENCE, 12),
        ] {
            if d.percent(percent) {
                flags |= flag;
            }
        }
        if len <= 400 && kind != kind::READ && d.percent(30) {
            flags |= flag::INLINE;
        }
        let bad = if mistakes && d.percent(3) {
            d.of(&[
                mistake::KEY,
                mistake::RANGE,
                mistake::ALIGN,
                mistake::LENGTH,
            ])
        } else if windows && d.percent(if mistakes { 6 } else { 1 }) {
            d.of(&[mistake::AS_IT_IS, mistake::AS_IT_IS, mistake::RANGE])
        } else {
            mistake::NONE
        };
        let by_window = windows && (kind == kind::SEND_INV || d.percent(50));
        // Slots beyond the fourth may not allow it.
        let slot = d.below(if mistakes { SLOTS as u64 } else { 4 });
        let at = d.below(span);
        let args = Args {
            end,
            pair,
            kind,
            len,
            segs: d.of(&[1, 1, 1, 2, 3, 5]),
            flags,
            slot,
            at: d.below(u64::from(TARGET_LEN)) & !d.of(&[0, 7, 63]),
            a: d.below(1 << 32),
            b: d.below(1 << 32),
            bad,
            src: d.below(1 << 40),
            window: if by_window {
                d.from(1, WINDOWS as u64)
            } else {
                0
            },
            age: d.of(&[0, 0, 1, 2]),
            to: d.below(s.pairs),
        };
        ops.push(op(at, Verb::Post, args));
        // What stands for another operation of UC and UD may consume one, too.
        let service = 1u64 << pair;
        let consumes = match kind {
            kind::SEND..=kind::SEND_INV | kind::WRITE_IMM => true,
            _ => s.ud & service != 0 || (s.uc & service != 0 && d.percent(40)),
        };
        if consumes && d.percent(supply) {
            let (sooner, later) = (d.below(20_000), d.below(60_000));
            let when = d.of(&[0, at.saturating_sub(sooner), at + later]);
            // A shared queue's short one would be anyone's.
            let short = mistakes && (s.srq == 0 || s.selective == 0) && d.percent(4);
            let args = Args {
                end: 1 - end,
                pair: if s.ud & service != 0 { args.to } else { pair },
                len: if short { d.below(len + 1) } else { 65_536 },
                segs: d.of(&[1, 1, 2, 4]),
                src: d.below(1 << 40),
                ..Args::default()
            };
            ops.push(op(when, Verb::Recv, args));
        }
    }
    for _ in 0..d.below(10) {
        ops.push(op(
            d.below(span),
            Verb::Poke,
            Args {
                end: d.below(2),
                kind: d.below(TARGETS as u64),
                at: d.below(u64::from(TARGET_LEN)),
                len: d.from(1, 2000),
                src: d.below(1 << 40),
                ..Args::default()
            },
        ));
    }
}

/// QPs fail, are reset, destroyed, made and connected again.
fn lifecycle(d: &mut Dice, s: &Setup, ops: &mut Vec<Op>, span: u64) {
    for _ in 0..d.from(1, 3) {
        let (end, pair, at) = (d.below(2), d.below(s.pairs), d.below(span));
        let args = |end| Args {
            end,
            pair,
            ..Args::default()
        };
        let soon = |d: &mut Dice| d.of(&[0, 1_000, 10_000, 100_000]);
        match d.below(4) {
            0 => ops.push(op(at, Verb::Err, args(end))),
            1 => ops.push(op(at, Verb::Reset, args(end))),
            2 => {
                ops.push(op(at, Verb::Destroy, args(end)));
                ops.push(op(at + soon(d), Verb::Create, args(end)));
            }
            _ => {}
        }
        if d.percent(75) {
            let first = at + 200_001 + soon(d);
            ops.push(op(first, Verb::Connect, args(end)));
            ops.push(op(first + soon(d), Verb::Connect, args(1 - end)));
            // Something to do for the new connection.
            let n = d.from(5, 30);
            let mut more = Vec::new();
            let style = Style {
                posts: n,
                mistakes: false,
                windows: false,
            };
            traffic(d, s, &mut more, 300_000, style);
            ops.extend(more.into_iter().map(|mut o| {
                o.at += first;
                o
            }));
        }
    }
}

/// Regions are withdrawn and registered again; memory goes away.
fn withdrawals(d: &mut Dice, ops: &mut Vec<Op>, span: u64) {
    for _ in 0..d.from(2, 5) {
        let (end, slot, at) = (d.below(2), d.below(SLOTS as u64), d.below(span));
        if d.percent(50) {
            ops.push(op(
                at,
                Verb::Deregister,
                Args {
                    end,
                    slot,
                    ..Args::default()
                },
            ));
            ops.push(op(
                at + d.below(50_000),
                Verb::Register,
                Args {
                    end,
                    slot,
                    kind: d.below(TARGETS as u64),
                    a: EVERYTHING,
                    ..Args::default()
                },
            ));
        } else {
            let kind = d.from(0, 2 + 2 * TARGETS as u64);
            let kind = if kind < 3 + TARGETS as u64 {
                kind
            } else {
                kind - TARGETS as u64
            };
            for (at, verb) in [
                (at, Verb::TakeAway),
                (at + d.below(300_000), Verb::GiveBack),
            ] {
                ops.push(op(
                    at,
                    verb,
                    Args {
                        end,
                        kind,
                        ..Args::default()
                    },
                ));
            }
        }
    }
}

fn blackouts(d: &mut Dice, s: &Setup, ops: &mut Vec<Op>, span: u64) {
    for _ in 0..d.from(1, 3) {
        let times = d.of(&[1, 3, 12]);
        ops.push(op(
            d.below(span),
            Verb::Blackout,
            Args {
                end: d.below(2),
                a: d.from(1, times * ack_timeout_ns(s)),
                ..Args::default()
            },
        ));
    }
}
