//! The reference's experiments with the shipped transport: near the reference's host it comes to the same, and each thing in which it
//! differs does what docs/congestion.md says of it. Shorter than the published runs.

use rocexdp_fabric::reference::{Case, Outcome, Settings, run as reference};
use rocexdp_fabric::shipped::{Control, Transport, run};
use rocexdp_proto::ids::PathMtu;

mod published;

use published::Error;

/// The first so many milliseconds of an experiment.
fn case(name: &str, millis: u64) -> Result<Case, Error> {
    let mut case = published::case(name)?;
    case.config.monitor.end = case.config.monitor.start + millis * 1_000_000;
    case.config.stop = case.config.monitor.end;
    Ok(case)
}

fn shipped(case: &Case, transport: Transport, seed: u64) -> Result<Outcome, String> {
    run(case, transport, Settings::seeded(seed), |_| true)
}

fn mean(outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    outcomes.iter().map(of).sum::<f64>() / outcomes.len() as f64
}

fn coalesced() -> Transport {
    Transport {
        window: 65_536,
        ..Transport::default()
    }
}

#[test]
fn near_the_reference_the_shipped_transport_gives_its_figures() -> Result<(), Error> {
    let case = case("mlx25_8to1", 40)?;
    let theirs = (2..5).map(|seed| reference(&case, Settings::seeded(seed), |_| true));
    let theirs: Vec<Outcome> = theirs.collect::<Result<_, _>>()?;
    let ours = (2..5).map(|seed| shipped(&case, Transport::near_reference(), seed));
    let ours: Vec<Outcome> = ours.collect::<Result<_, _>>()?;
    for (name, of, allowed) in [
        (
            "utilisation",
            (|o| o.summary.util) as fn(&Outcome) -> f64,
            0.01,
        ),
        ("mean queue", |o| o.summary.q_mean_bytes, 0.05),
        ("p99 of the queue", |o| o.summary.q_p99, 0.10),
        ("cuts", |o| o.summary.cuts_per_flow_per_ms, 0.05),
        ("alpha", |o| o.summary.alpha_mean, 0.05),
        ("CNPs", |o| o.summary.cnp_per_s, 0.05),
        ("Jain", |o| o.summary.jain_window, 0.005),
    ] {
        let (ours, theirs) = (mean(&ours, of), mean(&theirs, of));
        println!("{name}: {ours} {theirs}");
        let off = (ours / theirs - 1.0).abs();
        assert!(off <= allowed, "{name}: {ours} and {theirs}");
    }
    Ok(())
}

#[test]
fn without_a_window_it_does_not_matter_how_often_acknowledgements_come() -> Result<(), Error> {
    let case = case("mlx25_8to1", 10)?;
    let often = Transport {
        ack_interval: 1,
        ..coalesced()
    };
    let (often, seldom) = (shipped(&case, often, 1)?, shipped(&case, coalesced(), 1)?);
    assert_eq!(often.summary, seldom.summary);
    assert!(often.packet_hops > 3 * seldom.packet_hops / 2);
    Ok(())
}

#[test]
fn the_window_of_packets_keeps_a_small_incast_below_the_threshold() -> Result<(), Error> {
    let case = case("mlx100_2to1", 10)?;
    let with = shipped(&case, Transport::default(), 1)?.summary;
    let without = shipped(&case, coalesced(), 1)?.summary;
    // 2 x 128 packets of 1082 B are less than Kmin.
    assert_eq!((with.cnp_per_s, with.cuts_per_flow_per_ms), (0.0, 0.0));
    assert!(with.q_max_all < 2.0 * 128.0 * 1082.0 + 1082.0);
    assert!(with.util > 0.999 && with.jain_window > 0.999);
    assert!(without.cnp_per_s > 1000.0);
    Ok(())
}

/// Acknowledgements are far apart where a QP is slow: that is no silence to probe in.
#[test]
fn nothing_is_sent_again_where_nothing_is_lost() -> Result<(), Error> {
    for case in [case("mlx25_8to1", 20)?, case("zhu40_8to1", 20)?] {
        for mtu in [PathMtu::Mtu1024, PathMtu::Mtu4096] {
            for selective in [false, true] {
                let transport = Transport {
                    mtu,
                    selective,
                    ..Transport::default()
                };
                let ran = shipped(&case, transport, 1)?;
                let (sent, again) = ran.sent;
                let what = format!("{} {mtu:?} selective repeat {selective}", case.name);
                println!("{what}: {again} of {sent}");
                assert_eq!((ran.summary.drops, again), (0.0, 0), "{what}");
            }
        }
    }
    Ok(())
}

#[test]
fn controllers_do_what_they_are_for() -> Result<(), Error> {
    let case = case("mlx25_8to1", 10)?;
    let with = |control| {
        shipped(
            &case,
            Transport {
                control,
                ..coalesced()
            },
            1,
        )
    };
    let (dcqcn, windowed, fixed) = (
        with(Control::Given)?.summary,
        with(Control::DcqcnWindow)?.summary,
        with(Control::Fixed)?.summary,
    );
    // One bandwidth-delay product each, 13 kB or so, and a packet beyond.
    assert!(windowed.q_max_all < 8.0 * 16_000.0 && windowed.q_max_all < dcqcn.q_max_all / 3.0);
    assert!(windowed.util > 0.999);
    // Marked and told, and it changes nothing: pauses hold it.
    assert!(fixed.cnp_per_s > 0.0 && fixed.cuts_per_flow_per_ms == 0.0);
    assert!(fixed.pfc_pauses > 0.0 && dcqcn.pfc_pauses == 0.0);
    Ok(())
}

/// The defaults halve the rate at every tick while the first packets' queue drains, to some 10 Mb/s, where a packet of 4 KiB takes
/// milliseconds; the first increase comes 300 us later and is half the line rate. Whoever then still waited for a send time that was
/// set at the bottom would find the others with all of the link, and no more marks to make them give way.
#[test]
fn with_connectx_defaults_the_first_trough_holds_nobody_back() -> Result<(), Error> {
    let case = case("mlx100np4_4to1", 60)?;
    let transport = Transport {
        mtu: PathMtu::Mtu4096,
        connectx: true,
        ..coalesced()
    };
    let settings = Settings {
        seed: 1,
        keep: (60_000_000, 10_000),
    };
    let ran = run(&case, transport, settings, |_| true)?;
    let slowest = ran.series.iter().flat_map(|s| &s.flows).map(|f| f.rate);
    assert!(slowest.min().unwrap_or(0) < 200_000_000);
    // Each flow delivers in every 600 us.
    for (before, after) in ran.series.iter().zip(ran.series.iter().skip(60)) {
        for (n, (a, b)) in before.flows.iter().zip(&after.flows).enumerate() {
            assert!(b.received > a.received, "flow {n} from {} ns on", before.at);
        }
    }
    let s = &ran.summary;
    println!("{} {} {}", s.jain_window, s.util, s.q_mean_bytes);
    assert!(s.jain_window > 0.99 && s.util > 0.97, "{s:?}");
    Ok(())
}
