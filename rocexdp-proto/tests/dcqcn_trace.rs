//! The reaction point replays the reference simulator's event logs row by row (see `data/dcqcn/README.md`): only the times of
//! the CNPs are fed in; every time, rate, target, alpha and stage must come out as printed there.

use std::time::Duration;

use rocexdp_proto::dcqcn::{Event, EventKind, Params, ReactionPoint};
use rocexdp_proto::time::{Rate, Timestamp};

type Error = Box<dyn std::error::Error>;

/// One run of the simulator: its configuration and QP 0's event log.
struct Case {
    name: &'static str,
    config: &'static str,
    log: &'static str,
}

macro_rules! case {
    ($name:literal) => {
        Case {
            name: $name,
            config: include_str!(concat!("data/dcqcn/", $name, "/config.txt")),
            log: include_str!(concat!("data/dcqcn/", $name, "/rp_events.csv")),
        }
    };
}

/// Parameters and link rate from a `config.txt` of the simulator.
fn configuration(case: &Case) -> Result<(Params, Rate), Error> {
    let value = |key: &str| -> Result<&str, Error> {
        let line = case
            .config
            .lines()
            .find_map(|l| l.strip_prefix(key)?.strip_prefix(' '));
        Ok(line
            .ok_or_else(|| format!("{}: no {key}", case.name))?
            .trim())
    };
    let micros =
        |key: &str| -> Result<Duration, Error> { Ok(Duration::from_micros(value(key)?.parse()?)) };
    let mut params = Params::ns3_mellanox();
    let rp = &mut params.rp;
    rp.dce_tcp_rtt = micros("ALPHA_RESUME_INTERVAL")?;
    rp.rate_reduce_monitor_period = micros("RATE_DECREASE_INTERVAL")?;
    rp.rpg_time_reset = micros("RP_TIMER")?;
    rp.clamp_tgt_rate = value("CLAMP_TARGET_RATE")? == "1";
    rp.ewma_gain = Some(value("EWMA_GAIN")?.parse()?);
    rp.rpg_threshold = value("FAST_RECOVERY_TIMES")?.parse()?;
    rp.rpg_ai_rate = value("RATE_AI")?.parse()?;
    rp.rpg_hai_rate = value("RATE_HAI")?.parse()?;
    rp.rpg_min_rate = value("MIN_RATE")?.parse()?;
    let line = value("KMAX_MAP")?
        .split(' ')
        .nth(1)
        .ok_or("KMAX_MAP has no rate")?
        .parse()?;
    params.validate(Some(line))?;
    Ok((params, line))
}

/// A double as C's `%.12g` and C++ streams with `setprecision(12)` print it.
fn twelve_digits(x: f64) -> String {
    let scientific = format!("{x:.11e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |s: &str| s.trim_end_matches('0').trim_end_matches('.').to_owned();
    if exponent < -4 {
        return format!("{}e-{:02}", trim(mantissa), -exponent);
    }
    let decimals = usize::try_from(11 - exponent).unwrap_or(0);
    let fixed = format!("{x:.decimals$}");
    if decimals == 0 { fixed } else { trim(&fixed) }
}

fn row(event: &Event) -> String {
    let kind = match event.kind {
        EventKind::Cnp => "cnp",
        EventKind::Alpha => "alpha",
        EventKind::Cut => "cut",
        EventKind::Increase => "inc",
        EventKind::Release => "release",
    };
    format!(
        "{},{kind},{},{},{},{}",
        event.at.as_nanos(),
        event.rate.as_bps(),
        event.target.as_bps(),
        twelve_digits(event.alpha),
        event.time_stage
    )
}

/// Replays one log; returns how many rows were compared.
fn replay(case: &Case) -> Result<usize, Error> {
    let (params, line) = configuration(case)?;
    let expected: Vec<&str> = case.log.lines().skip(1).collect();

    let mut rp = ReactionPoint::with_trace(&params.rp, Some(line), Vec::new());
    let time = |row: &str| -> Result<Timestamp, Error> {
        Ok(Timestamp::from_nanos(
            row.split(',').next().unwrap_or_default().parse()?,
        ))
    };
    for row in expected
        .iter()
        .filter(|r| r.split(',').nth(1) == Some("cnp"))
    {
        rp.on_cnp(time(row)?, 1)?;
    }
    rp.handle_timeout(time(expected.last().ok_or("empty log")?)?);

    let name = case.name;
    let got: Vec<String> = rp.trace_mut().iter().map(row).collect();
    for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert_eq!(got, expected, "{name}, row {}", i + 2);
    }
    assert_eq!(got.len(), expected.len(), "{name}: number of rows");
    Ok(got.len())
}

#[test]
fn every_row_of_the_reference_logs_comes_out_identical() -> Result<(), Error> {
    let mut rows = 0;
    for case in [
        case!("mlx100_4to1"),
        case!("mlx100clampF5_4to1"),
        case!("paperT100_4to1"),
        case!("zhu40_4to1"),
    ] {
        rows += replay(&case)?;
    }
    assert_eq!(rows, 12_681, "rows of the four logs together");
    Ok(())
}

#[test]
fn doubles_print_as_the_logs_have_them() {
    assert_eq!(twelve_digits(1.0), "1");
    assert_eq!(twelve_digits(0.0), "0");
    assert_eq!(twelve_digits(0.99609375), "0.99609375");
    assert_eq!(twelve_digits(0.028_104_164_191_234), "0.0281041641912");
    assert_eq!(twelve_digits(0.000_012_345), "1.2345e-05");
}
