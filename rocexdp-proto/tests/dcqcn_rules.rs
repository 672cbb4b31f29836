//! The reaction point's rules, step by step, against numbers worked out by hand; they stand in the comments. Times are in
//! microseconds after the first CNP, rates in b/s on a 100 Gb/s port unless a test says otherwise.

use std::time::Duration;

use rocexdp_proto::dcqcn::{CeilingUnknown, Params, ReactionPoint, RpParams};
use rocexdp_proto::time::{Rate, Timestamp};

const LINE: Rate = Rate::from_gbps(100);
/// Time of the first CNP, not zero and not round.
const START_NS: u64 = 12_345;

fn at(us: u64) -> Timestamp {
    Timestamp::from_nanos(START_NS) + Duration::from_micros(us)
}

/// Rate and target now.
fn state(rp: &ReactionPoint) -> (u64, u64) {
    let bps = |r: Option<Rate>| r.map_or(0, Rate::as_bps);
    (bps(rp.rate()), bps(rp.target()))
}

/// A reaction point that has just had its first CNP.
fn congested(params: &RpParams) -> ReactionPoint {
    let mut rp = ReactionPoint::new(params, Some(LINE));
    assert_eq!(rp.on_cnp(at(0), 1), Ok(()));
    rp
}

/// Runs to `us` and gives rate and target there.
fn run(rp: &mut ReactionPoint, us: u64) -> (u64, u64) {
    rp.handle_timeout(at(us));
    state(rp)
}

#[test]
fn before_the_first_cnp_the_qp_is_unpaced_and_no_timer_runs() {
    let mut rp = ReactionPoint::new(&RpParams::default(), Some(LINE));
    rp.on_bytes_sent(at(0), 1 << 40);
    rp.handle_timeout(at(1_000_000));
    assert_eq!(rp.on_cnp(at(1_000_000), 0), Ok(()));
    assert_eq!(
        (rp.rate(), rp.target(), rp.poll_timeout()),
        (None, None, None)
    );
    assert_eq!(rp.counters(), Default::default());
}

#[test]
fn connectx_first_cut_comes_at_the_next_tick_with_alpha_decayed() {
    let mut rp = congested(&RpParams::default());
    // The CNP itself changes nothing but that the QP is paced now, at line rate, with alpha 1023.
    assert_eq!(state(&rp), (100_000_000_000, 100_000_000_000));
    assert_eq!(rp.alpha(), 1_023.0 / 1_024.0);
    assert_eq!(rp.poll_timeout(), Some(at(4)));

    // x 1019 / 1024, truncated: 1023 -> 1018 -> 1013 -> 1008 -> 1003. The first CNP is not counted into alpha again.
    assert_eq!(run(&mut rp, 3), (100_000_000_000, 100_000_000_000));
    assert_eq!(rp.alpha(), 1_008.0 / 1_024.0);
    // At 4 us alpha moves first, then the cut: 100e9 * 1003 / 2048 = 48 974 609 375 go. The target stays.
    assert_eq!(run(&mut rp, 4), (51_025_390_625, 100_000_000_000));
    assert_eq!(rp.alpha(), 1_003.0 / 1_024.0);
    assert_eq!(rp.counters().cuts, 1);
    // No second cut without a second CNP; next is the increase timer, 300 us after the cut.
    assert_eq!(run(&mut rp, 303).0, 51_025_390_625);
    assert_eq!(rp.poll_timeout(), Some(at(304)));
}

#[test]
fn connectx_recovers_fast_then_additively_and_a_late_cnp_hardly_cuts() {
    let mut rp = congested(&RpParams::default());
    // T = 0 < F: fast recovery, half-way to the target: (51 025 390 625 + 100e9) / 2.
    assert_eq!(run(&mut rp, 304), (75_512_695_312, 100_000_000_000));
    // T = 1 = F: additive, but the target is at the line rate.
    assert_eq!(run(&mut rp, 604), (87_756_347_656, 100_000_000_000));
    // Alpha lost at least 1 each microsecond, so after 600 us of silence it is 0.
    assert_eq!(rp.alpha(), 0.0);

    // A CNP at 610 us. Alpha: tick 611 adds 1024 - 1019 = 5, tick 612 makes it 5 * 1019 / 1024 = 4. Cut tick 612: T = 2, so
    // the target follows; 87 756 347 656 * 4 / 2048 = 171 399 116 go.
    assert_eq!(rp.on_cnp(at(610), 3), Ok(()));
    assert_eq!(rp.poll_timeout(), Some(at(612)));
    assert_eq!(run(&mut rp, 612), (87_584_948_540, 87_756_347_656));
    assert_eq!(rp.alpha(), 4.0 / 1_024.0);
    // The timer starts again at the cut. Fast recovery, then twice 5 Mb/s: without bytes there is no hyper increase.
    assert_eq!(run(&mut rp, 912), (87_670_648_098, 87_756_347_656));
    assert_eq!(run(&mut rp, 1_212), (87_715_997_877, 87_761_347_656));
    assert_eq!(run(&mut rp, 1_512), (87_741_172_766, 87_766_347_656));
    assert_eq!(rp.counters().cnps, 4);
}

#[test]
fn connectx_byte_counter_raises_too_and_hyper_needs_both() {
    // 32 767 x 64 B.
    const STEP: u64 = 2_097_088;
    let mut rp = congested(&RpParams {
        clamp_tgt_rate: true,
        ..RpParams::default()
    });
    run(&mut rp, 4);
    // Cut once more, so that the target is below the line: 51 025 390 625; alpha 4 ticks on (1 with a CNP): 1003 -> 1003
    // (998 + 5) -> 998 -> 993 -> 988; 51 025 390 625 * 988 / 2048 = 24 615 764 617 go.
    assert_eq!(rp.on_cnp(at(4), 1), Ok(()));
    assert_eq!(run(&mut rp, 8), (26_409_626_008, 51_025_390_625));

    // One byte short: nothing. Then T = B = 0: fast recovery, (26 409 626 008 + 51 025 390 625) / 2.
    rp.on_bytes_sent(at(9), STEP - 1);
    assert_eq!(state(&rp), (26_409_626_008, 51_025_390_625));
    rp.on_bytes_sent(at(9), 1);
    assert_eq!(state(&rp), (38_717_508_316, 51_025_390_625));
    // B = 1 = F: additive, + 5 Mb/s.
    rp.on_bytes_sent(at(10), STEP);
    assert_eq!(state(&rp), (44_873_949_470, 51_030_390_625));
    // Timer at 308 us: T = 0, B = 2: max(T, B) >= F, additive.
    assert_eq!(run(&mut rp, 308), (47_954_670_047, 51_035_390_625));
    // T = 1 is not above F yet: additive.
    assert_eq!(run(&mut rp, 608), (49_497_530_336, 51_040_390_625));
    // T = 2, B = 2: hyper, + 50 Mb/s, by bytes and by time; two byte steps in one call are two increases.
    rp.on_bytes_sent(at(609), STEP);
    assert_eq!(state(&rp), (50_293_960_480, 51_090_390_625));
    assert_eq!(run(&mut rp, 908), (50_717_175_552, 51_140_390_625));
    rp.on_bytes_sent(at(909), 2 * STEP);
    assert_eq!(state(&rp), (51_097_086_856, 51_240_390_625));
    assert_eq!(rp.counters().increases, 8);

    // A cut clears stages and bytes: a step minus one byte is no increase after it.
    rp.on_bytes_sent(at(910), STEP - 1);
    assert_eq!(rp.on_cnp(at(910), 1), Ok(()));
    let (cut, target) = run(&mut rp, 912);
    assert_eq!(target, 51_097_086_856);
    rp.on_bytes_sent(at(913), STEP - 1);
    assert_eq!(state(&rp), (cut, target));
}

#[test]
fn the_target_follows_a_cut_as_the_clamp_settings_say() {
    // (clamp_tgt_rate, clamp_tgt_rate_after_time_inc, increase before the cut) -> does the target follow?
    for (always, after_time, by, follows) in [
        (false, true, "none", false),
        (false, true, "time", true),
        (false, true, "bytes", true),
        (false, false, "none", false),
        (false, false, "time", false),
        (false, false, "bytes", true),
        (true, false, "none", true),
        (true, false, "time", true),
    ] {
        let mut rp = congested(&RpParams {
            clamp_tgt_rate: always,
            clamp_tgt_rate_after_time_inc: after_time,
            ..RpParams::default()
        });
        run(&mut rp, 4);
        let look = match by {
            "time" => 305,
            "bytes" => {
                rp.on_bytes_sent(at(200), 2_097_088);
                201
            }
            _ => 201,
        };
        let (before, _) = run(&mut rp, look);
        assert_eq!(rp.counters().increases, u64::from(by != "none"));
        assert_eq!(rp.on_cnp(at(look), 1), Ok(()));
        let (after, target) = run(&mut rp, look + 4);
        assert_eq!(rp.counters().cuts, 2, "{always} {after_time} {by}");
        assert!(after < before, "{always} {after_time} {by}: no cut");
        let expected = if follows { before } else { 100_000_000_000 };
        assert_eq!(target, expected, "{always} {after_time} {by}");
    }
}

#[test]
fn one_cut_never_takes_more_than_min_dec_fac_leaves() {
    // rpg_gd 10 would take alpha = 1003/1024 of the rate: 50 % stay by default, 80 % if so told.
    for (percent, rate) in [
        (50, 50_000_000_000),
        (80, 80_000_000_000),
        (100, 100_000_000_000),
    ] {
        let mut rp = congested(&RpParams {
            rpg_gd: 10,
            rpg_min_dec_fac: percent,
            ..RpParams::default()
        });
        assert_eq!(run(&mut rp, 4).0, rate, "{percent} %");
    }
    let mut rp = congested(&RpParams {
        rpg_gd: 10,
        rpg_min_dec_fac: 0,
        ..RpParams::default()
    });
    // 100e9 * 1003 / 1024 = 97 949 218 750 go.
    assert_eq!(run(&mut rp, 4).0, 2_050_781_250);
}

#[test]
fn cuts_stop_at_the_floor() {
    let mut rp = congested(&RpParams::default());
    for tick in 1..200 {
        run(&mut rp, 4 * tick);
        assert_eq!(rp.on_cnp(at(4 * tick), 1), Ok(()));
    }
    assert_eq!(state(&rp).0, 1_000_000);
    assert_eq!(rp.counters().cuts, 199);

    // A port slower than the floor is the floor.
    let mut rp = ReactionPoint::new(&RpParams::default(), Some(Rate::from_bps(500_000)));
    assert_eq!(rp.on_cnp(at(0), 1), Ok(()));
    assert_eq!(run(&mut rp, 4), (500_000, 500_000));
}

#[test]
fn the_first_cnp_can_set_the_rate() {
    let set = |mbps| {
        congested(&RpParams {
            rate_to_set_on_first_cnp: Rate::from_mbps(mbps),
            ..RpParams::default()
        })
    };
    assert_eq!(state(&set(20_000)), (20_000_000_000, 20_000_000_000));
    // At most 85 % of the line rate.
    assert_eq!(state(&set(99_000)), (85_000_000_000, 85_000_000_000));
}

#[test]
fn max_rate_is_a_ceiling_below_the_line() {
    let params = RpParams {
        rpg_max_rate: Rate::from_gbps(30),
        ..RpParams::default()
    };
    let mut rp = congested(&params);
    assert_eq!(state(&rp), (30_000_000_000, 30_000_000_000));
    assert_eq!(run(&mut rp, 1_000_000).1, 30_000_000_000);
    // The line becomes slower still, then faster: the lower of both holds.
    rp.set_line_rate(at(1_000_001), Rate::from_gbps(10));
    assert_eq!(state(&rp), (10_000_000_000, 10_000_000_000));
    rp.set_line_rate(at(1_000_002), LINE);
    assert_eq!(rp.ceiling(), Some(Rate::from_gbps(30)));
    // Additive increase from 10 Gb/s: (30 - 10) / 0.005 = 4000 steps of 300 us, and a few for the rate to close up.
    assert_eq!(run(&mut rp, 2_300_000), (29_999_999_999, 30_000_000_000));
}

#[test]
fn without_a_line_rate_the_measured_one_holds_until_recovery() {
    let mut rp = ReactionPoint::new(&RpParams::default(), None);
    assert_eq!(rp.on_cnp(at(0), 1), Err(CeilingUnknown));
    assert_eq!((rp.rate(), rp.counters().cnps), (None, 0));

    for epoch in 1..=2 {
        let start = 1_000_000 * epoch;
        rp.on_cnp_with_ceiling(at(start), 1, Rate::from_gbps(8));
        assert_eq!(state(&rp), (8_000_000_000, 8_000_000_000));
        // 8e9 * 1003 / 2048 = 3 917 968 750 go, as at any first cut.
        assert_eq!(run(&mut rp, start + 4), (4_082_031_250, 8_000_000_000));
        // The rate halves its distance each 300 us; 33 steps close 3.9e9 b/s up to the last bit, then it is released.
        assert_eq!(run(&mut rp, start + 4 + 300 * 32).1, 8_000_000_000);
        assert_eq!(rp.counters().releases, epoch - 1);
        run(&mut rp, start + 4 + 300 * 40);
        assert_eq!(
            (rp.rate(), rp.ceiling(), rp.poll_timeout()),
            (None, None, None)
        );
        assert_eq!(rp.counters().releases, epoch);
    }
    assert_eq!(rp.counters().cuts, 2);
}

#[test]
fn a_recovered_qp_needs_no_timer_and_keeps_the_tick_grid() {
    let mut rp = congested(&RpParams::default());
    // (100e9 - 1, 100e9): the mean of both, truncated, is the former.
    assert_eq!(run(&mut rp, 100_000), (99_999_999_999, 100_000_000_000));
    assert_eq!(rp.poll_timeout(), None);
    // A CNP an hour later is served by the tick grid of the first one.
    let hour = 3_600_000_000;
    assert_eq!(rp.on_cnp(at(hour + 1), 1), Ok(()));
    assert_eq!(rp.poll_timeout(), Some(at(hour + 4)));
    // Alpha 5 -> 4 -> 3 at ticks 2, 3, 4; 99 999 999 999 * 3 / 2048 = 146 484 374 go.
    assert_eq!(run(&mut rp, hour + 4), (99_853_515_625, 99_999_999_999));
}

#[test]
fn paper_cuts_on_the_cnp_with_the_old_alpha_and_restarts_its_timers() {
    let params = Params::paper().rp;
    let mut rp = ReactionPoint::new(&params, Some(Rate::from_gbps(40)));
    // Alpha is 1: half. Alpha then becomes (255 + 1) / 256 = 1 again.
    assert_eq!(rp.on_cnp(at(0), 1), Ok(()));
    assert_eq!(state(&rp), (20_000_000_000, 40_000_000_000));
    assert_eq!(rp.alpha(), 1.0);
    // 55 us later alpha decays and T = 1 < F = 5 recovers half of the cut.
    assert_eq!(run(&mut rp, 55), (30_000_000_000, 40_000_000_000));
    assert_eq!(rp.alpha(), 255.0 / 256.0);
    // At 60 us: target = rate; 30e9 * (1 - 255/512); then alpha = (255/256)^2 + 1/256. Both timers start again.
    assert_eq!(rp.on_cnp(at(60), 1), Ok(()));
    assert_eq!(state(&rp), (15_058_593_750, 30_000_000_000));
    assert_eq!(rp.alpha(), 65_281.0 / 65_536.0);
    assert_eq!(run(&mut rp, 114), (15_058_593_750, 30_000_000_000));
    assert_eq!(run(&mut rp, 115), (22_529_296_875, 30_000_000_000));
    // T = 2, 3, 4 recover; T = 5 adds 40 Mb/s.
    assert_eq!(run(&mut rp, 115 + 3 * 55).1, 30_000_000_000);
    assert_eq!(run(&mut rp, 115 + 4 * 55).1, 30_040_000_000);
    // Five byte steps of 10 MB: min(T, B) <= F, additive each; then T = 6, and both are above F only with a sixth.
    for step in 1..=5 {
        rp.on_bytes_sent(at(340), 10_000_000);
        assert_eq!(state(&rp).1, 30_040_000_000 + step * 40_000_000);
    }
    assert_eq!(run(&mut rp, 115 + 5 * 55).1, 30_280_000_000);
    // B = 6, T = 6: hyper, i = 1; T = 7 with B = 6: still i = 1; B = 7: i = 2, of 40 Mb/s.
    rp.on_bytes_sent(at(391), 10_000_000);
    assert_eq!(state(&rp).1, 30_320_000_000);
    assert_eq!(run(&mut rp, 115 + 6 * 55).1, 30_360_000_000);
    rp.on_bytes_sent(at(446), 10_000_000);
    assert_eq!(state(&rp).1, 30_440_000_000);
}

#[test]
fn paper_counts_each_cnp_of_a_batch_and_survives_a_flood() {
    let params = Params::paper().rp;
    let mut one_by_one = ReactionPoint::new(&params, Some(LINE));
    let mut batch = one_by_one.clone();
    for _ in 0..3 {
        assert_eq!(one_by_one.on_cnp(at(0), 1), Ok(()));
    }
    assert_eq!(batch.on_cnp(at(0), 3), Ok(()));
    assert_eq!(state(&batch), state(&one_by_one));
    assert_eq!(state(&batch), (12_500_000_000, 25_000_000_000));
    assert_eq!(batch.on_cnp(at(1), u32::MAX), Ok(()));
    assert_eq!(state(&batch), (40_000_000, 40_000_000));
}

#[test]
fn of_timers_due_together_the_one_set_earlier_goes_first() {
    // Cut ticks at 4, 8, 12 us; a CNP before each. An increase timer of 4 us is set by the cut it ties with, so the cut goes
    // first and cancels it; one of 8 us was set before the tick at 12 us was.
    for (period, increases) in [(4, 0), (8, 1)] {
        let mut rp = congested(&RpParams {
            rpg_time_reset: Duration::from_micros(period),
            ..RpParams::default()
        });
        run(&mut rp, 4);
        assert_eq!(rp.on_cnp(at(5 + period - 4), 1), Ok(()));
        run(&mut rp, 4 + period);
        assert_eq!(rp.counters().cuts, 2);
        assert_eq!(rp.counters().increases, increases, "{period} us");
    }
}

#[test]
fn halving_both_rates_first_does_not_go_below_the_floor() {
    let mut rp = ReactionPoint::new(
        &RpParams {
            rpg_min_rate: Rate::from_bps(1_000_001),
            ..Params::ns3_mellanox().rp
        },
        Some(Rate::from_bps(1_000_001)),
    );
    assert_eq!(rp.on_cnp(at(0), 1), Ok(()));
    // Truncated halves of 1 000 001 are 500 000 each.
    assert_eq!(run(&mut rp, 305), (1_000_001, 1_000_001));
    assert_eq!(rp.counters().increases, 1);
}
