//! The reaction point served late is the reaction point served on time, and its invariants hold under random input.

use std::time::Duration;

use rocexdp_proto::dcqcn::{Event, EventKind, Params, ReactionPoint, RpParams, Trace};
use rocexdp_proto::time::{Rate, Timestamp};

/// SplitMix64: enough for test inputs, and every run is the same.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// An observer that keeps nothing: with it, every tick is run and asked for by `poll_timeout`.
#[derive(Clone, Debug, Default)]
struct EveryTick {
    cuts: u64,
    increases: u64,
    last: Timestamp,
}

impl Trace for EveryTick {
    fn event(&mut self, event: Event) {
        assert!(event.at >= self.last, "events go back in time: {event:?}");
        self.last = event.at;
        self.cuts += u64::from(event.kind == EventKind::Cut);
        self.increases += u64::from(event.kind == EventKind::Increase);
    }
}

fn same<A: Trace, B: Trace>(a: &ReactionPoint<A>, b: &ReactionPoint<B>, what: &str) {
    assert_eq!(
        (a.rate(), a.target(), a.alpha(), a.ceiling(), a.counters()),
        (b.rate(), b.target(), b.alpha(), b.ceiling(), b.counters()),
        "{what}"
    );
}

/// The presets and settings that mix their switches.
fn settings() -> Vec<(String, RpParams)> {
    let mut all = Vec::new();
    for name in ["connectx", "ns3-mellanox", "paper"] {
        let rp = Params::preset(name).unwrap_or_default().rp;
        all.push((name.to_owned(), rp.clone()));
        // The increase timer as fast as the cut ticks, and faster: ties fall the other way.
        for us in [4, 2] {
            let rpg_time_reset = Duration::from_micros(us);
            all.push((
                format!("{name}, {us} us"),
                RpParams {
                    rpg_time_reset,
                    ..rp.clone()
                },
            ));
        }
        let no_steps = RpParams {
            rpg_ai_rate: Rate::ZERO,
            rpg_hai_rate: Rate::ZERO,
            ..rp.clone()
        };
        all.push((format!("{name}, no steps"), no_steps));
        // Additive steps that move nothing must not hide hyper steps that will.
        let hyper_only = RpParams {
            rpg_ai_rate: Rate::ZERO,
            rpg_byte_reset: 64,
            clamp_tgt_rate: true,
            ..rp.clone()
        };
        all.push((format!("{name}, hyper only"), hyper_only.clone()));
        all.push((
            format!("{name}, hyper only, no bytes"),
            RpParams {
                rpg_byte_reset: 0,
                ..hyper_only
            },
        ));
        let min_dec_100 = RpParams {
            rpg_min_dec_fac: 100,
            ..rp
        };
        all.push((format!("{name}, no cuts"), min_dec_100));
    }
    all
}

/// One run: `on_time` is served at each tick it asks for, `late` only when an input comes, `polled` when it asks.
fn run(name: &str, params: &RpParams, line: Option<Rate>, seed: u64, inputs: u32) {
    let mut rng = Rng(seed);
    let mut on_time = ReactionPoint::with_trace(params, line, EveryTick::default());
    let mut late = ReactionPoint::new(params, line);
    let mut polled = late.clone();
    let mut now = 1_000 + rng.below(10_000);
    let measured = Rate::from_mbps(1 + rng.below(20_000));
    for step in 0..inputs {
        now += match rng.below(20) {
            0 => rng.below(30_000_000),
            1..=4 => rng.below(1_000_000),
            // On the grid of the ticks, as often as not.
            5..=9 => 1_000 * rng.below(12),
            _ => rng.below(20_000),
        };
        let at = Timestamp::from_nanos(now);
        while let Some(due) = on_time.poll_timeout().filter(|due| *due <= at) {
            on_time.handle_timeout(due);
        }
        while let Some(due) = polled.poll_timeout().filter(|due| *due <= at) {
            polled.handle_timeout(due);
        }
        // What `poll_timeout` promises: nothing else can have changed the rate.
        assert_eq!(
            polled.rate(),
            on_time.rate(),
            "{name}, seed {seed}, step {step}: woken too late"
        );
        match rng.below(4) {
            0 => {
                let cnps = u32::try_from(rng.below(3)).unwrap_or(1);
                on_time.on_cnp_with_ceiling(at, cnps, measured);
                late.on_cnp_with_ceiling(at, cnps, measured);
                polled.on_cnp_with_ceiling(at, cnps, measured);
            }
            1 => {
                late.handle_timeout(at);
                polled.handle_timeout(at);
                on_time.handle_timeout(at);
                same(
                    &late,
                    &on_time,
                    &format!("{name}, seed {seed}, step {step}"),
                );
                same(
                    &polled,
                    &on_time,
                    &format!("{name}, seed {seed}, step {step}, polled"),
                );
            }
            _ => {
                let bytes = rng.below(4_000_000);
                on_time.on_bytes_sent(at, bytes);
                late.on_bytes_sent(at, bytes);
                polled.on_bytes_sent(at, bytes);
            }
        }
    }
    let end = Timestamp::from_nanos(now);
    late.handle_timeout(end);
    on_time.handle_timeout(end);
    same(&late, &on_time, &format!("{name}, seed {seed}, end"));
    let seen = on_time.trace_mut();
    let (cuts, increases) = (seen.cuts, seen.increases);
    assert_eq!(
        (cuts, increases),
        (late.counters().cuts, late.counters().increases),
        "{name}: events reported"
    );
}

#[test]
fn served_late_equals_served_at_each_tick() {
    for (name, params) in settings() {
        for seed in 0..3 {
            run(&name, &params, Some(Rate::from_gbps(25)), seed, 300);
            run(&name, &params, None, seed, 300);
        }
    }
}

#[test]
fn an_idle_century_takes_no_longer_than_an_idle_second() {
    for (name, params) in settings() {
        for line in [Some(Rate::from_gbps(400)), None] {
            let mut rp = ReactionPoint::new(&params, line);
            rp.on_cnp_with_ceiling(Timestamp::ZERO, 2, Rate::from_gbps(400));
            for us in 1..200 {
                rp.on_cnp_with_ceiling(Timestamp::from_micros(us), 1, Rate::from_gbps(400));
            }
            // Would not end if each tick of 1 us were run: 3 x 10^15 of them.
            rp.handle_timeout(Timestamp::from_micros(100 * 365 * 86_400 * 1_000_000));
            rp.on_bytes_sent(Timestamp::MAX, u64::MAX);
            rp.on_cnp_with_ceiling(Timestamp::MAX, u32::MAX, Rate::from_gbps(400));
            rp.handle_timeout(Timestamp::MAX);
            assert!(rp.ceiling().is_some(), "{name}");
        }
    }
}

#[test]
fn rates_stay_between_floor_and_ceiling_and_only_cnps_cut() {
    for (name, params) in settings() {
        for seed in 100..130 {
            let mut rng = Rng(seed);
            let line = Rate::from_bps(1_000_000 + rng.below(400_000_000_000));
            let floor = params.rpg_min_rate.min(line);
            let mut rp = ReactionPoint::new(&params, Some(line));
            let (mut now, mut cnps, mut cuts_allowed) = (0, 0, 0);
            for _ in 0..400 {
                now += rng.below(60_000);
                let at = Timestamp::from_nanos(now);
                let (before, cuts) = (rp.rate(), rp.counters().cuts);
                if rng.below(3) == 0 {
                    assert_eq!(rp.on_cnp(at, 1), Ok(()));
                    cnps += 1;
                    cuts_allowed = cuts_allowed.max(cuts) + 1;
                } else {
                    rp.on_bytes_sent(at, rng.below(300_000));
                    rp.handle_timeout(at);
                }
                match rp.rate() {
                    None => assert_eq!(cnps, 0, "{name}: unpaced after a CNP"),
                    Some(rate) => {
                        assert!(
                            rate >= floor && rate <= line,
                            "{name}, seed {seed}: {rate:?}"
                        );
                        assert!(
                            rp.target().is_some_and(|t| t >= rate && t <= line),
                            "{name}, seed {seed}"
                        );
                        assert!(
                            (0.0..=1.0).contains(&rp.alpha()),
                            "{name}: alpha {}",
                            rp.alpha()
                        );
                        // Real arithmetic halves both rates first and may lose a bit a second time; that is no cut.
                        let least = before.unwrap_or(floor).as_bps().saturating_sub(400);
                        assert!(
                            rp.counters().cuts > cuts || rate.as_bps() >= least,
                            "{name}, seed {seed}: {before:?} -> {rate:?} without a cut"
                        );
                    }
                }
                assert!(rp.counters().cuts <= cnps, "{name}: more cuts than CNPs");
                assert!(
                    rp.counters().cuts <= cuts_allowed,
                    "{name}: a cut without a new CNP"
                );
            }
            assert!(
                cnps > 50 && rp.counters().cuts > 0,
                "{name}: the test does not test"
            );
        }
    }
}
