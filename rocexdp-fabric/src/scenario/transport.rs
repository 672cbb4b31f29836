//! What hosts are: their model, its settings, rate control.

use rocexdp_proto::dcqcn::Params;
use rocexdp_proto::qp::MAX_PATHS;
use rocexdp_proto::time::Rate;
use rocexdp_sim::picos::Picos;
use toml::{Spanned, Value};

use super::{
    Class, Control, HostModel, Transport,
    schema::{self, Congestion, Maybe},
};
use crate::{
    fabric::Fabric,
    source::{Error, Source},
};

/// The largest that RoCE has.
const MTU: u32 = 4096;
/// The reference's packets.
const REFERENCE_PAYLOAD: u32 = 1000;
/// IPv6 40, UDP 8, BTH 12, RETH 16, invariant CRC 4.
const HEADERS: u32 = 80;
/// As the shipped endpoint has it.
const ACK_INTERVAL: u32 = 32;
/// Enough for 100 Gb/s over 20 us at path MTU 4096, and not the 128 that veth's rings call for.
const WINDOW: u32 = 1024;
/// 0.5 ms: above every round trip that a fabric's buffers make, as a simulation of milliseconds wants it.
const TIMEOUT: Picos = Picos::from_micros(500);
/// DSCP of a scenario without classes: priority 3, which is lossless by default.
const DSCP: u8 = 26;

pub(super) fn build(
    given: &schema::Transport,
    fabric: &Fabric,
    source: Source<'_>,
) -> Result<Transport, Error> {
    let host = match &given.host {
        None => HostModel::Rc,
        Some(word) => match word.get_ref().as_str() {
            "rc" => HostModel::Rc,
            "reference" => HostModel::Reference,
            other => {
                let reason = format!(
                    "no host is called {other:?}: there are rc (the shipped transport) and reference"
                );
                return Err(source.error(word.span(), reason));
            }
        },
    };
    let (control, dcqcn) = congestion(&given.congestion, fabric, source)?;
    let transport = Transport {
        host,
        mtu: mtu(host, &given.mtu, fabric, source)?,
        selective_paths: selective(given, source)?,
        ack_interval: count(
            source,
            "ack_interval",
            &given.ack_interval,
            ACK_INTERVAL,
            65_536,
        )?,
        window: count(source, "window", &given.window, WINDOW, 65_536)?,
        timeout: timeout(&given.timeout, source)?,
        per_pair: per_pair(&given.connections, source)?,
        control,
        dcqcn,
    };
    if host == HostModel::Reference {
        // What the reference's hosts do not have.
        for (name, at) in [
            (
                "selective_repeat",
                given.selective_repeat.as_ref().map(Spanned::span),
            ),
            ("window", given.window.as_ref().map(Spanned::span)),
            ("timeout", given.timeout.as_ref().map(Spanned::span)),
            (
                "ack_interval",
                given.ack_interval.as_ref().map(Spanned::span),
            ),
            ("connections", given.connections.as_ref().map(Spanned::span)),
        ] {
            if let Some(at) = at {
                return Err(source.error(at, format!("{name} means nothing for reference hosts")));
            }
        }
    }
    Ok(transport)
}

fn count(
    source: Source<'_>,
    name: &str,
    given: &Maybe<u32>,
    default: u32,
    most: u32,
) -> Result<u32, Error> {
    match given {
        None => Ok(default),
        Some(given) if (1..=most).contains(given.get_ref()) => Ok(*given.get_ref()),
        Some(given) => {
            let reason = format!("{name} is 1 to {most}, not {}", given.get_ref());
            Err(source.error(given.span(), reason))
        }
    }
}

fn selective(given: &schema::Transport, source: Source<'_>) -> Result<Option<u8>, Error> {
    let on = given
        .selective_repeat
        .as_ref()
        .is_some_and(|on| *on.get_ref());
    if let Some(paths) = &given.paths
        && !on
    {
        return Err(source.error(paths.span(), "paths need selective_repeat = true"));
    }
    let paths = count(source, "paths", &given.paths, 1, u32::from(MAX_PATHS))?;
    Ok(on.then_some(u8::try_from(paths).unwrap_or(MAX_PATHS)))
}

fn mtu(
    host: HostModel,
    given: &Maybe<u32>,
    fabric: &Fabric,
    source: Source<'_>,
) -> Result<u32, Error> {
    let mtu = match (host, given) {
        (HostModel::Rc, None) => MTU,
        (HostModel::Reference, None) => REFERENCE_PAYLOAD,
        (_, Some(given)) => *given.get_ref(),
    };
    let at = given.as_ref();
    if host == HostModel::Rc && ![256, 512, 1024, 2048, 4096].contains(&mtu) {
        let reason = format!("a path MTU is 256, 512, 1024, 2048 or 4096, not {mtu}");
        return Err(source.error_at(at, reason));
    }
    if host == HostModel::Reference && !(64..=9000).contains(&mtu) {
        let reason = format!("the payload of reference hosts is 64 to 9000 bytes, not {mtu}");
        return Err(source.error_at(at, reason));
    }
    if let Some(link) = fabric.links.iter().find(|link| link.mtu < mtu + HEADERS) {
        let reason = format!(
            "path MTU {mtu} and its headers need {} bytes, and the MTU of the link {} is {}",
            mtu + HEADERS,
            link.name,
            link.mtu
        );
        return Err(source.error_at(at, reason));
    }
    Ok(mtu)
}

/// The least code whose timeout is at least this.
fn timeout(given: &Maybe<crate::units::Time>, source: Source<'_>) -> Result<u8, Error> {
    let least = given.as_ref().map_or(TIMEOUT, |given| given.get_ref().0);
    let code = (1..=31_u8).find(|code| Picos::from_nanos(4096 << *code) >= least);
    code.ok_or_else(|| source.error_at(given.as_ref(), "an ACK timeout is at most 8796 s"))
}

fn per_pair(given: &Maybe<String>, source: Source<'_>) -> Result<bool, Error> {
    let Some(word) = given else { return Ok(false) };
    match word.get_ref().as_str() {
        "flow" => Ok(false),
        "pair" => Ok(true),
        other => {
            let reason = format!(
                "connections can't be {other:?}: there are flow (one for each) and pair (shared by all between two NICs)"
            );
            Err(source.error(word.span(), reason))
        }
    }
}

fn congestion(
    given: &Congestion,
    fabric: &Fabric,
    source: Source<'_>,
) -> Result<(Control, Params), Error> {
    let word = given.control.as_ref();
    let control = match word.map_or("dcqcn", |word| word.get_ref().as_str()) {
        "dcqcn" => Control::Dcqcn,
        "dcqcn-window" => Control::DcqcnWindow,
        "none" => Control::None,
        "fixed" => match &given.rate {
            Some(rate) if rate.get_ref().0 != Rate::ZERO => Control::Fixed(rate.get_ref().0),
            Some(rate) => return Err(source.error(rate.span(), "a fixed rate is above zero")),
            None => return Err(source.error_at(word, "fixed needs a rate")),
        },
        other => {
            let reason = format!(
                "no rate control is called {other:?}: there are dcqcn, dcqcn-window, fixed and none (hpcc, dctcp, timely and others of the reference are not built)"
            );
            return Err(source.error_at(word, reason));
        }
    };
    let is_dcqcn = matches!(control, Control::Dcqcn | Control::DcqcnWindow);
    if let Some(rate) = &given.rate
        && !matches!(control, Control::Fixed(_))
    {
        return Err(source.error(rate.span(), "rate needs control = \"fixed\""));
    }
    let mut params = match &given.preset {
        None => Params::default(),
        Some(name) if !is_dcqcn => return Err(source.error(name.span(), "a preset needs DCQCN")),
        Some(name) => {
            Params::preset(name.get_ref()).map_err(|error| source.error(name.span(), error))?
        }
    };
    for (name, value) in &given.parameters {
        if !is_dcqcn {
            return Err(source.error(name.span(), "DCQCN's parameters need DCQCN"));
        }
        let text = match value.get_ref() {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        if name.get_ref() == "ewma_gain" {
            params.rp.ewma_gain = text.parse().ok();
            continue;
        }
        params
            .set(name.get_ref(), &text)
            .map_err(|error| source.error(value.span(), error))?;
    }
    let slowest = fabric
        .hosts
        .iter()
        .flat_map(|host| &host.nics)
        .map(|nic| nic.rate)
        .min();
    if is_dcqcn && let Err(error) = params.validate(slowest) {
        let text = error.to_string();
        let culprit = given
            .parameters
            .iter()
            .find(|(name, _)| text.contains(name.get_ref().as_str()));
        return Err(match (culprit, &given.preset) {
            (Some((name, _)), _) => source.error(name.span(), text),
            (None, preset) => source.error_at(preset.as_ref(), text),
        });
    }
    Ok((control, params))
}

pub(super) fn classes(
    given: &[Spanned<schema::Class>],
    fabric: &Fabric,
    source: Source<'_>,
) -> Result<Vec<Class>, Error> {
    let mut all: Vec<Class> = Vec::new();
    for class in given {
        let class = class.get_ref();
        let name = class.name.get_ref();
        if all.iter().any(|other| other.name == *name) {
            return Err(source.error(
                class.name.span(),
                format!("two classes are called {name:?}"),
            ));
        }
        let dscp = *class.dscp.get_ref();
        if dscp > 63 {
            return Err(source.error(class.dscp.span(), format!("{dscp} is no DSCP: 0 to 63")));
        }
        let weight = class.weight.as_ref().map_or(1, |weight| *weight.get_ref());
        let strict = class.strict.unwrap_or(false);
        if weight == 0 && !strict {
            let reason = format!(
                "the class {name} has weight 0 and would never send: give it a weight, or make it strict"
            );
            return Err(source.error_at(class.weight.as_ref(), reason));
        }
        if weight > u32::from(u16::MAX) {
            let reason = format!("a weight is at most {}, not {weight}", u16::MAX);
            return Err(source.error_at(class.weight.as_ref(), reason));
        }
        let priority = |dscp: u8| fabric.dscp_to_priority[usize::from(dscp)];
        let unlike = |other: &&Class| (other.weight, other.strict) != (weight, strict);
        let mut same = all
            .iter()
            .filter(|other| priority(other.dscp) == priority(dscp));
        if let Some(other) = same.find(unlike) {
            let reason = format!(
                "the classes {} and {name} have one priority, {}, which is served in one way: give both one weight, or another DSCP",
                other.name,
                priority(dscp)
            );
            return Err(source.error(class.dscp.span(), reason));
        }
        all.push(Class {
            name: name.clone(),
            dscp,
            weight,
            strict,
        });
    }
    if all.is_empty() {
        all.push(Class {
            name: "default".to_owned(),
            dscp: DSCP,
            weight: 1,
            strict: false,
        });
    }
    Ok(all)
}
