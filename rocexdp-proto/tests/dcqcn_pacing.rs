//! The pacer's send times, the notification point's gaps, and the parameters by name.

use std::time::Duration;

use rocexdp_proto::dcqcn::{GapMarks, NotificationPoint, NpParams, Pacer, ParamError, Params};
use rocexdp_proto::time::{Rate, Timestamp};

fn ns(ns: u64) -> Timestamp {
    Timestamp::from_nanos(ns)
}

/// Sends `packets` at their earliest times, `late(i)` ns after; gives the last send time. A new pacer has `burst` ns saved up.
fn send_all(
    burst: u64,
    sizes: &[u32],
    packets: usize,
    rate: Rate,
    late: impl Fn(usize) -> u64,
) -> u64 {
    let mut pacer = Pacer::new(Duration::from_nanos(burst));
    let start = 1_000_000;
    let (mut now, mut sent_bits) = (start, 0u128);
    for (i, size) in sizes.iter().cycle().take(packets).enumerate() {
        let earliest = pacer.earliest(ns(now));
        assert!(!pacer.ready(ns(earliest.as_nanos() - 1)) || earliest == ns(now));
        assert!(pacer.ready(earliest));
        // Never early: what went before took its time at the rate.
        let due = u128::from(earliest.as_nanos() + burst - start) * u128::from(rate.as_bps());
        assert!(due >= sent_bits * 1_000_000_000, "packet {i} is early");
        now = earliest.as_nanos() + late(i);
        pacer.sent(ns(now), *size, Some(rate));
        sent_bits += u128::from(*size) * 8;
    }
    now - start
}

#[test]
fn the_long_run_rate_is_exact_and_no_packet_is_early() {
    // 1048 B at 100 Gb/s are 83.84 ns; at 3 b/s below that they are never a whole number.
    for bps in [
        100_000_000_000,
        99_999_999_997,
        40_000_000_000,
        1_000_000,
        999_983,
        400_000_000_000,
    ] {
        let rate = Rate::from_bps(bps);
        let sizes = [1_048, 64, 4_170, 1];
        let packets = 40_001;
        let took = send_all(0, &sizes, packets, rate, |_| 0);
        // The last packet goes when the 40 000 before it have taken their time: rounded up once, not 40 000 times.
        let bits = 10_000 * 8 * (1_048 + 64 + 4_170 + 1u128);
        let exact = (bits * 1_000_000_000).div_ceil(u128::from(bps));
        assert_eq!(u128::from(took), exact, "{bps} b/s");
    }
}

#[test]
fn lateness_is_caught_up_within_the_burst_only() {
    let rate = Rate::from_gbps(10);
    // 1250 B take 1 us. Packets go up to 679 ns late; with 16 us of burst the rate does not suffer.
    let late = |i: usize| if i == 10_000 { 0 } else { 97 * (i as u64 % 8) };
    let took = send_all(16_000, &[1_250], 10_001, rate, late);
    assert_eq!(took, 10_000_000 - 16_000);
    // Without burst, all the lateness adds up: 97 * (0 + ... + 7) per 8 packets.
    let took = send_all(0, &[1_250], 10_001, rate, late);
    assert_eq!(took, 10_000_000 + 1_250 * 97 * 28);

    // After a second of idleness 16 packets (16 us) and the one that is due go at once, no more.
    let mut pacer = Pacer::default();
    pacer.sent(ns(0), 1_250, Some(rate));
    let now = ns(1_000_000_000);
    let mut burst = 0;
    while pacer.ready(now) && burst < 1_000 {
        pacer.sent(now, 1_250, Some(rate));
        burst += 1;
    }
    assert_eq!(burst, 17);
    assert_eq!(pacer.earliest(now), ns(1_000_001_000));
}

#[test]
fn a_rate_change_holds_from_the_next_packet_on() {
    let mut pacer = Pacer::new(Duration::ZERO);
    pacer.sent(ns(1_000), 1_250, Some(Rate::from_gbps(10)));
    assert_eq!(pacer.earliest(ns(1_000)), ns(2_000));
    pacer.sent(ns(2_000), 1_250, Some(Rate::from_gbps(1)));
    assert_eq!(pacer.earliest(ns(2_000)), ns(12_000));
    // Changing at each packet never makes one early, nor more than a nanosecond late in all.
    let mut pacer = Pacer::new(Duration::ZERO);
    let mut exact = 0.0;
    pacer.sent(ns(0), 0, Some(Rate::from_bps(1)));
    for i in 0..10_000u32 {
        let rate = 7_000_000_001 + u64::from(i % 13) * 1_000_003;
        let at = pacer.earliest(ns(0));
        assert!(
            at.as_nanos() as f64 >= exact - 1e-3 && (at.as_nanos() as f64) < exact + 1.01,
            "packet {i}"
        );
        pacer.sent(at, 1_048, Some(Rate::from_bps(rate)));
        exact += 1_048.0 * 8e9 / rate as f64;
    }
}

#[test]
fn what_is_owed_is_paid_at_the_rate_of_the_moment() {
    let (mbps, gbps) = (Rate::from_mbps, Rate::from_gbps);
    // 4170 B at 1 Mb/s take 33.36 ms. At 1 ms the rate is 100 Gb/s: the rest takes 323.6 ns.
    let mut pacer = Pacer::new(Duration::ZERO);
    pacer.sent(ns(0), 4_170, Some(mbps(1)));
    assert_eq!(pacer.earliest(ns(0)), ns(33_360_000));
    pacer.rate_changed(ns(1_000_000), Some(gbps(100)));
    assert_eq!(pacer.earliest(ns(1_000_000)), ns(1_000_324));
    // A cut makes it later, and back again it is what it was, to the nanosecond.
    pacer.rate_changed(ns(1_000_100), Some(mbps(10)));
    assert_eq!(pacer.earliest(ns(0)), ns(1_000_100 + 2_236_000));
    pacer.rate_changed(ns(1_000_100), Some(gbps(100)));
    assert_eq!(pacer.earliest(ns(0)), ns(1_000_324));
    // Nothing is owed: nothing moves. Unpaced, it may go at once.
    pacer.rate_changed(ns(2_000_000), Some(mbps(1)));
    assert_eq!(pacer.earliest(ns(2_000_000)), ns(2_000_000));
    pacer.sent(ns(2_000_000), 4_170, Some(mbps(1)));
    pacer.rate_changed(ns(2_000_001), None);
    assert!(pacer.ready(ns(2_000_001)));
}

#[test]
fn unpaced_and_stopped_are_the_ends_of_the_scale() {
    let mut pacer = Pacer::default();
    for _ in 0..100 {
        pacer.sent(ns(5_000), u32::MAX, None);
        assert!(pacer.ready(ns(5_000)));
    }
    pacer.sent(ns(5_000), u32::MAX, Some(Rate::ZERO));
    assert!(!pacer.ready(ns(u64::MAX / 2)));
    // A release from a slow rate does not wait for the slow packet.
    pacer.sent(ns(6_000), 1, None);
    assert!(pacer.ready(ns(6_000)));
}

#[test]
fn the_first_mark_makes_a_cnp_at_once_and_a_gap_follows() {
    let mut np = NotificationPoint::new(&NpParams::default());
    assert_eq!(np.poll_timeout(), None);
    assert!(!np.on_ce(ns(10), 0));
    assert!(np.on_ce(ns(10), 5));
    // 4 us of gap; one CNP for all marks in it, at its end, and then a gap again.
    assert!(!np.on_ce(ns(11), 1));
    assert!(!np.on_ce(ns(4_009), 7));
    assert_eq!(np.poll_timeout(), Some(ns(4_010)));
    assert!(!np.handle_timeout(ns(4_009)));
    assert!(np.handle_timeout(ns(4_010)));
    assert!(!np.handle_timeout(ns(4_011)));
    assert_eq!(np.poll_timeout(), None);
    assert!(!np.on_ce(ns(8_009), 1));
    // The engine looks late: the owed CNP and the new marks are one.
    assert!(np.on_ce(ns(9_000), 1));
    assert!(!np.handle_timeout(ns(9_001)));
    assert_eq!((np.marks(), np.cnps()), (15, 3));
    // After silence, at once again.
    assert!(np.on_ce(ns(100_000), 1));
}

#[test]
fn marks_in_the_gap_can_be_dropped_and_the_gap_be_nothing() {
    let mut np = NotificationPoint::new(&NpParams {
        gap_marks: GapMarks::Dropped,
        ..NpParams::default()
    });
    assert!(np.on_ce(ns(0), 1));
    assert!(!np.on_ce(ns(3_999), 1));
    assert_eq!(np.poll_timeout(), None);
    assert!(!np.handle_timeout(ns(50_000)));
    assert!(np.on_ce(ns(50_000), 1));

    let mut np = NotificationPoint::new(&Params::ns3_mellanox().np);
    assert!((0..100).all(|t| np.on_ce(ns(t / 2), 1)));
}

#[test]
fn cnps_never_come_closer_than_the_gap() {
    let mut np = NotificationPoint::new(&NpParams::default());
    let (mut last, mut x) = (None, 1u64);
    for _ in 0..20_000 {
        x = x
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let now = last.unwrap_or(0) + (x >> 33) % 6_000;
        if np.on_ce(ns(now), u32::from(x >> 60 > 3)) {
            assert!(last.is_none_or(|l| now - l >= 4_000));
            last = Some(now);
        }
    }
    assert!(np.cnps() > 1_000);
}

#[test]
fn every_parameter_is_listed_under_its_connectx_name_and_settable() -> Result<(), ParamError> {
    let defaults = Params::connectx();
    for (name, value) in [
        ("clamp_tgt_rate", "0"),
        ("clamp_tgt_rate_after_time_inc", "1"),
        ("rpg_time_reset", "300"),
        ("rpg_byte_reset", "32767"),
        ("rpg_threshold", "1"),
        ("rpg_max_rate", "0"),
        ("rpg_ai_rate", "5"),
        ("rpg_hai_rate", "50"),
        ("rpg_gd", "11"),
        ("rpg_min_dec_fac", "50"),
        ("rpg_min_rate", "1"),
        ("rate_to_set_on_first_cnp", "0"),
        ("dce_tcp_g", "1019"),
        ("dce_tcp_rtt", "1"),
        ("initial_alpha_value", "1023"),
        ("rate_reduce_monitor_period", "4"),
        ("min_time_between_cnps", "4"),
        ("cnp_dscp", "48"),
        ("cnp_802p_prio", "6"),
    ] {
        assert!(
            defaults.iter().any(|p| p.name == name && p.value == value),
            "{name} = {value}"
        );
    }
    // What is printed can be set: any preset can be copied by name.
    for name in ["paper", "ns3-mellanox", "connectx"] {
        let source = Params::preset(name).unwrap_or_default();
        let mut copy = if name == "connectx" {
            Params::paper()
        } else {
            Params::connectx()
        };
        assert_ne!(copy, source);
        for p in source.iter() {
            copy.set(p.name, &p.value)?;
        }
        assert_eq!(copy, source);
        source.validate(Some(Rate::from_gbps(40)))?;
    }
    let mut p = Params::default();
    p.set("rpg_time_reset", "55.25")?;
    p.set("rpg_ai_rate", "8.5")?;
    p.set("clamp_tgt_rate", "true")?;
    p.set("cut_on", "event")?;
    assert_eq!(p.rp.rpg_time_reset, Duration::from_nanos(55_250));
    assert_eq!(p.rp.rpg_ai_rate, Rate::from_bps(8_500_000));
    assert!(
        p.iter()
            .any(|x| x.name == "rpg_time_reset" && x.value == "55.25" && x.unit == "us")
    );
    Ok(())
}

#[test]
fn a_bad_value_is_refused_with_name_range_and_unit_and_changes_nothing() {
    let mut p = Params::default();
    let mut refused = |name: &str, value: &str| {
        p.set(name, value).map_or_else(
            |e| e.to_string(),
            |()| format!("{name} = {value} was taken"),
        )
    };
    assert_eq!(
        refused("rpg_gd", "12"),
        r#"rpg_gd can't be "12": it takes 10 to 11, in log2"#
    );
    assert_eq!(
        refused("dce_tcp_rtt", "0"),
        r#"dce_tcp_rtt can't be "0": it takes 1 to 131071, in us"#
    );
    assert_eq!(
        refused("clamp_tgt_rate", "yes"),
        r#"clamp_tgt_rate can't be "yes": it takes 0 or 1"#
    );
    assert_eq!(
        refused("cut_on", "never"),
        r#"cut_on can't be "never": it takes event or tick"#
    );
    assert!(refused("rpg_min_rat", "1").contains("rpg_min_rate, "));
    for value in [
        "",
        "-1",
        "1e3",
        "x",
        "1.2345",
        ".5",
        "99999999999999999999",
        "1,5",
    ] {
        let error = refused("rpg_time_reset", value);
        assert!(error.starts_with("rpg_time_reset can't be "), "{error}");
    }
    for (name, value) in [
        ("rpg_min_dec_fac", "101"),
        ("cnp_dscp", "64"),
        ("cnp_802p_prio", "8"),
        ("dce_tcp_g", "1024"),
        ("initial_alpha_value", "0"),
        ("rpg_min_rate", "0"),
        ("rpg_threshold", "32"),
    ] {
        let error = refused(name, value);
        assert!(error.starts_with(&format!("{name} can't be ")), "{error}");
    }
    assert_eq!(p, Params::default());
}

#[test]
fn parameters_that_contradict_one_another_are_refused() {
    let line = Some(Rate::from_gbps(10));
    let refused = |p: Params| {
        p.validate(line)
            .err()
            .map(|e| e.to_string())
            .unwrap_or_default()
    };
    let mut p = Params::default();
    p.rp.rpg_max_rate = Rate::from_mbps(100);
    p.rp.rpg_min_rate = Rate::from_mbps(200);
    assert!(refused(p).starts_with("rpg_min_rate: the floor, 200 Mb/s, is above rpg_max_rate"));
    let mut p = Params::default();
    p.rp.rpg_min_rate = Rate::from_gbps(40);
    assert!(refused(p).contains("above the line rate, 10.0 Gb/s"));
    let mut p = Params::default();
    p.rp.rate_to_set_on_first_cnp = Rate::from_gbps(9);
    assert!(refused(p).contains("at most 8.50 Gb/s"));
    let mut p = Params::default();
    p.rp.rpg_ai_rate = Rate::from_bps(10);
    assert!(refused(p).starts_with("rpg_ai_rate: 10 b/s is below 1 Mb/s"));
    let mut p = Params::default();
    p.rp.ewma_gain = Some(f64::NAN);
    assert!(refused(p).starts_with("ewma_gain"));
    // Fields written by hand are checked against the ranges too.
    let mut p = Params::default();
    p.rp.rpg_time_reset = Duration::ZERO;
    assert!(refused(p).starts_with("rpg_time_reset can't be \"0\""));
}
