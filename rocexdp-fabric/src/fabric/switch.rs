//! A switch's settings as the switch model has them, with defaults for what was not given, and what can't be refused.

use std::{fmt::Display, ops::Range, time::Duration};

use rocexdp_proto::time::Rate;
use rocexdp_sim::switch::{
    self as model, EcnConfig, MarkOn, PRIORITIES, PfcConfig, PfcThreshold, PortConfig, Problem,
    Scheduler, SwitchConfig, quanta_time,
};
use toml::Spanned;

use super::{
    build::Port,
    schema::{EcnRule, PfcEntry, SwitchEntry},
};
use crate::source::{Error, Source};

/// As in the reference runs at 100 Gb/s.
const BUFFER: u64 = 32_000_000;
/// As in the reference's buffer model.
const RESERVED: u64 = 4096;
/// The HPCC simulator's thresholds for 25 Gb/s, which it scales with the rate: Kmin, Kmax, Pmax.
const ECN: (u64, u64, f64) = (100_000, 400_000, 0.2);
const ECN_PER: Rate = Rate::from_gbps(25);
/// 6 carries CNPs, 7 the network's own control.
const ECN_PRIORITIES: [u8; 6] = [0, 1, 2, 3, 4, 5];
/// The one that RoCE is given by custom: DSCP 24 to 31.
const PFC_PRIORITIES: [u8; 1] = [3];
/// Of the reference's buffer model: a share of 1/8.
const ALPHA: f64 = 0.125;
/// Of the reference's buffer model.
const RESUME_OFFSET: u64 = 3072;
/// The longest pause.
const QUANTA: u16 = u16::MAX;
/// What a peer takes to stop after it has the pause frame: 60 quanta at most (the host's and the interface's delay that IEEE
/// 802.1Qbb allows).
const RESPONSE_QUANTA: u16 = 60;
/// Ethernet header with a tag, and FCS.
const FRAME: u64 = 22;

/// What a switch is called, and where that is written.
type Who<'a> = (&'a str, &'a Range<usize>);

pub(super) fn build(
    settings: &SwitchEntry,
    ports: &[Port<'_>],
    (name, at): Who<'_>,
    source: Source<'_>,
    warnings: &mut Vec<Error>,
) -> Result<SwitchConfig, Error> {
    let buffer = settings
        .buffer
        .as_ref()
        .map_or(BUFFER, |bytes| bytes.get_ref().0);
    let reserved = settings
        .reserved
        .as_ref()
        .map_or(RESERVED, |bytes| bytes.get_ref().0);
    if buffer == 0 {
        return Err(source.error_at(settings.buffer.as_ref(), format!("{name} has no buffer")));
    }
    let mark_on = match &settings.mark_on {
        None => MarkOn::default(),
        Some(word) => match word.get_ref().as_str() {
            "dequeue" => MarkOn::Dequeue,
            "enqueue" => MarkOn::Enqueue,
            other => return Err(unknown(source, word, "mark_on", other, "dequeue, enqueue")),
        },
    };
    let scheduler = scheduler(settings, source)?;
    let pfc = pfc(&settings.pfc, source)?;
    let mut configs = Vec::with_capacity(ports.len());
    for port in ports {
        let headroom = match (&pfc, &settings.pfc.headroom) {
            (None, _) => 0,
            (Some(_), Some(given)) => given.get_ref().0,
            (Some(_), None) => headroom(port),
        };
        configs.push(PortConfig {
            rate: port.rate,
            delay: Duration::from_nanos(port.delay.0.div_ceil(1000)),
            ecn: ecn(settings, port, buffer, name, source)?,
            scheduler: scheduler.clone(),
            headroom,
            alpha: None,
        });
    }
    let config = SwitchConfig {
        ports: configs,
        buffer,
        reserved,
        mark_on,
        pfc,
        tail_drop: settings.tail_drop.as_ref().map(|bytes| bytes.get_ref().0),
    };
    if let Err(error) = config.check() {
        let reason = format!("{name}: {error}");
        return Err(
            match (&error.problem, &settings.buffer, &settings.pfc.threshold) {
                (Problem::BufferTooSmall { .. }, Some(given), _) => {
                    source.error(given.span(), reason)
                }
                (Problem::ThresholdAboveBuffer { .. }, _, Some(given)) => {
                    source.error(given.span(), reason)
                }
                _ => source.error(at.clone(), reason),
            },
        );
    }
    warn_of_order(settings, &config, (name, at), source, warnings);
    Ok(config)
}

fn unknown(
    source: Source<'_>,
    at: &Spanned<String>,
    key: &str,
    word: &str,
    known: impl Display,
) -> Error {
    source.error(
        at.span(),
        format!("{key} can't be {word:?}: there are {known}"),
    )
}

/// Priorities as flags.
fn flags(source: Source<'_>, given: &Spanned<Vec<u8>>) -> Result<[bool; PRIORITIES], Error> {
    let mut flags = [false; PRIORITIES];
    for priority in given.get_ref() {
        let Some(flag) = flags.get_mut(usize::from(*priority)) else {
            return Err(source.error(given.span(), format!("{priority} is no priority: 0 to 7")));
        };
        *flag = true;
    }
    Ok(flags)
}

fn scheduler(settings: &SwitchEntry, source: Source<'_>) -> Result<Scheduler, Error> {
    let word = settings.scheduler.as_ref();
    let kind = word.map_or("strict", |word| word.get_ref().as_str());
    let strict = match &settings.strict {
        Some(given) => flags(source, given)?,
        None => [false; PRIORITIES],
    };
    if let Some(weights) = &settings.weights
        && kind != "weighted"
    {
        return Err(source.error(weights.span(), "weights need scheduler = \"weighted\""));
    }
    if let Some(given) = &settings.strict
        && kind == "strict"
    {
        let reason = "strict names priorities before the others of scheduler = \"weighted\" or \"round-robin\": give one of those";
        return Err(source.error(given.span(), reason));
    }
    match kind {
        "strict" => Ok(Scheduler::Strict),
        "round-robin" => Ok(Scheduler::RoundRobin { strict }),
        "weighted" => {
            let Some(given) = &settings.weights else {
                return Err(source.error_at(word, "a weighted scheduler needs weights"));
            };
            let Ok(weights) = <[u32; PRIORITIES]>::try_from(given.get_ref().as_slice()) else {
                let reason = format!(
                    "weights are eight, one for each priority, not {}",
                    given.get_ref().len()
                );
                return Err(source.error(given.span(), reason));
            };
            for (priority, (weight, strict)) in weights.iter().zip(strict).enumerate() {
                if *weight == 0 && !strict {
                    let reason = format!(
                        "priority {priority} has weight 0 and would never be served: give it a weight, or name it in strict"
                    );
                    return Err(source.error(given.span(), reason));
                }
            }
            Ok(Scheduler::Weighted { weights, strict })
        }
        other => {
            let known = "strict, weighted, round-robin";
            Err(word.map_or_else(
                || source.error_anywhere(other),
                |word| unknown(source, word, "scheduler", other, known),
            ))
        }
    }
}

fn pfc(entry: &PfcEntry, source: Source<'_>) -> Result<Option<PfcConfig>, Error> {
    if entry.enabled.as_ref().is_some_and(|on| !on.get_ref()) {
        return Ok(None);
    }
    let resume_offset = entry
        .resume_offset
        .as_ref()
        .map_or(RESUME_OFFSET, |bytes| bytes.get_ref().0);
    let threshold = match (&entry.threshold, &entry.alpha) {
        (Some(threshold), Some(_)) => {
            return Err(source.error(
                threshold.span(),
                "a PFC threshold is fixed or has an alpha, not both",
            ));
        }
        (Some(threshold), None) => {
            let bytes = threshold.get_ref().0;
            if bytes == 0 || resume_offset > bytes {
                let reason = format!(
                    "thresholds out of order: a queue is paused above {bytes} bytes and resumed {resume_offset} bytes below that"
                );
                return Err(source.error(threshold.span(), reason));
            }
            PfcThreshold::Static(bytes)
        }
        (None, Some(alpha)) => {
            let value = *alpha.get_ref();
            if !(value > 0.0 && value <= 64.0) {
                return Err(source.error(
                    alpha.span(),
                    format!("alpha is above 0 and at most 64, not {value}"),
                ));
            }
            PfcThreshold::Dynamic(value)
        }
        (None, None) => PfcThreshold::Dynamic(ALPHA),
    };
    let priorities = match &entry.priorities {
        Some(given) => flags(source, given)?,
        None => std::array::from_fn(|n| PFC_PRIORITIES.iter().any(|p| usize::from(*p) == n)),
    };
    let quanta = match entry
        .quanta
        .as_ref()
        .map_or(QUANTA, |quanta| *quanta.get_ref())
    {
        0 => None,
        quanta => Some(quanta),
    };
    Ok(Some(PfcConfig {
        priorities,
        threshold,
        resume_offset,
        quanta,
    }))
}

/// What a peer may still send after it has been told to stop.
fn headroom(port: &Port<'_>) -> u64 {
    let delay = Duration::from_nanos(port.delay.0.div_ceil(1000));
    let reaction = quanta_time(RESPONSE_QUANTA, port.rate).as_nanos();
    let frame = u64::from(port.mtu) + FRAME;
    model::headroom(port.rate, delay, Duration::from_nanos(reaction), frame)
}

fn ecn(
    settings: &SwitchEntry,
    port: &Port<'_>,
    buffer: u64,
    name: &str,
    source: Source<'_>,
) -> Result<[Option<EcnConfig>; PRIORITIES], Error> {
    let mut all = [None; PRIORITIES];
    let Some(rules) = &settings.ecn else {
        let (kmin, kmax, pmax) = ECN;
        let scale = |bytes| scaled(bytes, port.rate, ECN_PER);
        for priority in ECN_PRIORITIES {
            all[usize::from(priority)] = Some(EcnConfig {
                kmin: scale(kmin),
                kmax: scale(kmax),
                pmax,
            });
        }
        return Ok(all);
    };
    for rule in rules.get_ref() {
        let rule = rule.get_ref();
        let config = thresholds(rule, port, buffer, name, source)?;
        let elsewhere = rule
            .rate
            .as_ref()
            .is_some_and(|rate| rate.get_ref().0 != port.rate)
            || rule
                .to
                .as_ref()
                .is_some_and(|to| !to.get_ref().0.iter().any(|name| name == port.neighbour));
        if elsewhere {
            continue;
        }
        let priorities = match &rule.priorities {
            Some(given) => flags(source, given)?,
            None => std::array::from_fn(|n| ECN_PRIORITIES.iter().any(|p| usize::from(*p) == n)),
        };
        for (place, on) in all.iter_mut().zip(priorities) {
            if on {
                *place = Some(config);
            }
        }
    }
    Ok(all)
}

fn scaled(bytes: u64, rate: Rate, per: Rate) -> u64 {
    let product = u128::from(bytes) * u128::from(rate.as_bps());
    let value = product
        .checked_div(u128::from(per.as_bps()))
        .unwrap_or(product);
    u64::try_from(value).unwrap_or(u64::MAX)
}

fn thresholds(
    rule: &EcnRule,
    port: &Port<'_>,
    buffer: u64,
    name: &str,
    source: Source<'_>,
) -> Result<EcnConfig, Error> {
    let (mut kmin, mut kmax) = (rule.kmin.get_ref().0, rule.kmax.get_ref().0);
    if kmin > kmax {
        let reason =
            format!("thresholds out of order: kmin, {kmin} bytes, is above kmax, {kmax} bytes");
        return Err(source.error(rule.kmin.span(), reason));
    }
    if let Some(per) = &rule.per {
        if per.get_ref().0 == Rate::ZERO {
            return Err(source.error(per.span(), "per is a rate above zero"));
        }
        kmin = scaled(kmin, port.rate, per.get_ref().0);
        kmax = scaled(kmax, port.rate, per.get_ref().0);
    }
    if kmax > buffer {
        let reason = format!(
            "thresholds out of order: kmax, {kmax} bytes at {}, is above the buffer of {name}, {buffer} bytes",
            port.rate
        );
        return Err(source.error(rule.kmax.span(), reason));
    }
    Ok(EcnConfig {
        kmin,
        kmax,
        pmax: rule.pmax.get_ref().0,
    })
}

/// Flow control that begins before marking leaves DCQCN no turn (the reference's 8:1 run with 1 MB of buffer).
fn warn_of_order(
    settings: &SwitchEntry,
    config: &SwitchConfig,
    (name, at): Who<'_>,
    source: Source<'_>,
    warnings: &mut Vec<Error>,
) {
    let Some(pfc) = &config.pfc else { return };
    let free = config.buffer - config.set_aside();
    let threshold = match pfc.threshold {
        PfcThreshold::Static(bytes) => bytes,
        // What one queue reaches when it alone grows: q = alpha * (free - q).
        PfcThreshold::Dynamic(alpha) => (free as f64 * alpha / (1.0 + alpha)) as u64,
    };
    let late = config.ports.iter().find_map(|port| {
        let queues = port.ecn.iter().zip(pfc.priorities);
        queues
            .filter(|(_, lossless)| *lossless)
            .find_map(|(ecn, _)| (*ecn).filter(|ecn| ecn.kmin >= threshold))
    });
    if let Some(ecn) = late {
        let reason = format!(
            "{name}: PFC pauses an ingress queue at {threshold} bytes, before marking begins at {} bytes: DCQCN hardly gets its turn",
            ecn.kmin
        );
        let place = settings
            .buffer
            .as_ref()
            .map_or_else(|| at.clone(), Spanned::span);
        warnings.push(source.error(place, reason));
    }
}
