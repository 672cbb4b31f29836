//! From what was written to a checked [`Workload`].

use std::ops::Range;

use rocexdp_sim::{
    picos::Picos,
    topology::{HostId, PortId},
};
use toml::Spanned;

use super::{Flow, Kind, MOST_FLOWS, Part, Pattern, Traffic, Workload, file, sizes::Distribution};
use crate::{
    fabric::Fabric,
    names::Names,
    scenario::{Class, Load, Schema, Sizes},
    source::{Error, Source},
    units::Time,
};

/// What a workload is built against.
struct Site<'a> {
    source: Source<'a>,
    fabric: &'a Fabric,
    classes: &'a [Class],
    duration: Option<Picos>,
}

/// Where something without an end is written, and what it is.
type Endless = Option<(Range<usize>, String)>;

impl Workload {
    /// What a scenario says. `endless` names the first part without an end, which the run's duration must give.
    pub(crate) fn build(
        schema: &Schema,
        fabric: &Fabric,
        classes: &[Class],
        duration: Option<Picos>,
        source: Source<'_>,
        load: Load<'_>,
        endless: &mut Endless,
    ) -> Result<Self, Error> {
        let site = Site {
            source,
            fabric,
            classes,
            duration,
        };
        let mut parts = Vec::new();
        for entry in &schema.flow {
            parts.push(Part::Listed(site.flows(entry.get_ref(), endless)?));
        }
        for entry in &schema.pattern {
            parts.push(Part::Pattern(site.pattern(entry, endless)?));
        }
        for entry in &schema.traffic {
            parts.push(Part::Traffic(site.traffic(entry, endless)?));
        }
        if let Some(name) = &schema.flows_file {
            let wrong = |why: String| {
                source.error(name.span(), format!("the flows {}: {why}", name.get_ref()))
            };
            let text = load(name.get_ref()).map_err(wrong)?;
            parts.push(Part::Listed(file::read(
                name.get_ref(),
                &text,
                fabric,
                classes,
            )?));
        }
        let workload = Self { parts };
        if workload.parts.is_empty() {
            let reason =
                "nobody sends anything: give [[flow]], [[pattern]], [[traffic]] or flows_file";
            return Err(source.error_anywhere(reason));
        }
        let expected = workload.expected();
        if expected > MOST_FLOWS as f64 {
            let reason =
                format!("about {expected:.0} flows are more than the {MOST_FLOWS} of a run");
            return Err(source.error_anywhere(reason));
        }
        Ok(workload)
    }
}

/// A time, or another.
fn time(given: &Option<Spanned<Time>>, otherwise: Picos) -> Picos {
    given.as_ref().map_or(otherwise, |time| time.get_ref().0)
}

impl Site<'_> {
    fn host(&self, name: &str, at: Range<usize>) -> Result<HostId, Error> {
        let missing = || self.source.error(at, format!("no host is called {name:?}"));
        self.fabric.host(name).ok_or_else(missing)
    }

    fn hosts(&self, names: &Spanned<Names>) -> Result<Vec<HostId>, Error> {
        let all = names.get_ref().0.iter();
        all.map(|name| self.host(name, names.span())).collect()
    }

    /// The named hosts, each once, or all.
    fn among(
        &self,
        names: &Option<Spanned<Names>>,
        entry: Range<usize>,
    ) -> Result<Vec<HostId>, Error> {
        let hosts = match names {
            Some(names) => self.hosts(names)?,
            None => (0..self.fabric.hosts.len() as u32).map(HostId).collect(),
        };
        let at = names.as_ref().map_or(entry, Spanned::span);
        let mut sorted = hosts.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != hosts.len() {
            return Err(self.source.error(at, "a host is named twice"));
        }
        if hosts.len() < 2 {
            return Err(self.source.error(at, "two hosts at least"));
        }
        Ok(hosts)
    }

    fn class(&self, name: &Option<Spanned<String>>) -> Result<usize, Error> {
        let Some(name) = name else { return Ok(0) };
        let place = self
            .classes
            .iter()
            .position(|class| class.name == *name.get_ref());
        place.ok_or_else(|| {
            let known: Vec<_> = self
                .classes
                .iter()
                .map(|class| class.name.as_str())
                .collect();
            let reason = format!(
                "no class is called {:?}: there are {}",
                name.get_ref(),
                known.join(", ")
            );
            self.source.error(name.span(), reason)
        })
    }

    fn nic(&self, host: HostId, given: &Option<Spanned<u16>>) -> Result<PortId, Error> {
        let Some(nic) = given else {
            return Ok(PortId(0));
        };
        let host = &self.fabric.hosts[host.0 as usize];
        if usize::from(*nic.get_ref()) < host.nics.len() {
            Ok(PortId(*nic.get_ref()))
        } else {
            let reason = format!(
                "{} has {} NICs, from 0: no {}",
                host.name,
                host.nics.len(),
                nic.get_ref()
            );
            Err(self.source.error(nic.span(), reason))
        }
    }

    fn flows(
        &self,
        entry: &crate::scenario::FlowEntry,
        endless: &mut Endless,
    ) -> Result<Vec<Flow>, Error> {
        let (from, to) = (self.hosts(&entry.from)?, self.hosts(&entry.to)?);
        if to.len() != 1 && to.len() != from.len() {
            let reason = format!(
                "{} senders and {} receivers: give one receiver, or as many",
                from.len(),
                to.len()
            );
            return Err(self.source.error(entry.to.span(), reason));
        }
        if let Some(bytes) = &entry.bytes
            && bytes.get_ref().0 == 0
        {
            return Err(self.source.error(bytes.span(), "a flow has 1 byte or more"));
        }
        let bytes = entry.bytes.as_ref().map(|bytes| bytes.get_ref().0);
        if bytes.is_none() && endless.is_none() {
            *endless = Some((entry.from.span(), "a flow without bytes".to_owned()));
        }
        let count = entry.count.as_ref().map_or(1, |count| *count.get_ref());
        if count == 0 || from.len().saturating_mul(count as usize) > MOST_FLOWS {
            return Err(self.source.error_at(
                entry.count.as_ref(),
                format!("count is 1 or more, and flows {MOST_FLOWS} at most"),
            ));
        }
        let class = self.class(&entry.class)?;
        let stagger = time(&entry.stagger, Picos::ZERO);
        let mut start = time(&entry.start, Picos::ZERO);
        let mut flows = Vec::new();
        for _ in 0..count {
            for (n, from) in from.iter().enumerate() {
                let to = *to.get(n).unwrap_or(&to[0]);
                if *from == to {
                    let name = &self.fabric.hosts[to.0 as usize].name;
                    return Err(self
                        .source
                        .error(entry.to.span(), format!("{name} would send to itself")));
                }
                let (nic, to_nic) = (self.nic(*from, &entry.nic)?, self.nic(to, &entry.to_nic)?);
                flows.push(Flow {
                    from: *from,
                    nic,
                    to,
                    to_nic,
                    bytes,
                    start,
                    class,
                });
                start = start + stagger;
            }
        }
        Ok(flows)
    }

    fn pattern(
        &self,
        entry: &Spanned<crate::scenario::PatternEntry>,
        endless: &mut Endless,
    ) -> Result<Pattern, Error> {
        let at = entry.span();
        let entry = entry.get_ref();
        let hosts = self.among(&entry.hosts, at.clone())?;
        let kind = match entry.kind.get_ref().as_str() {
            "permutation" => Kind::Permutation,
            "all-to-all" => Kind::AllToAll,
            "incast" => self.incast(entry, &hosts)?,
            other => {
                let reason = format!(
                    "no pattern is called {other:?}: there are permutation, incast and all-to-all"
                );
                return Err(self.source.error(entry.kind.span(), reason));
            }
        };
        if !matches!(kind, Kind::Incast { .. }) {
            let strange = entry
                .to
                .as_ref()
                .map(Spanned::span)
                .or(entry.senders.as_ref().map(Spanned::span));
            if let Some(at) = strange {
                return Err(self.source.error(at, "to and senders are an incast's"));
            }
        }
        if entry
            .bytes
            .as_ref()
            .is_some_and(|bytes| bytes.get_ref().0 == 0)
        {
            return Err(self
                .source
                .error_at(entry.bytes.as_ref(), "a flow has 1 byte or more"));
        }
        let bytes = entry.bytes.as_ref().map(|bytes| bytes.get_ref().0);
        let start = time(&entry.start, Picos::ZERO);
        let until = entry.until.as_ref().map(|time| time.get_ref().0);
        let every = match &entry.every {
            None => None,
            Some(every) if every.get_ref().0 == Picos::ZERO => {
                return Err(self
                    .source
                    .error(every.span(), "every is a time above zero"));
            }
            Some(every) => {
                let end = match (until, self.duration) {
                    (Some(until), Some(end)) => until.min(end),
                    (Some(end), None) | (None, Some(end)) => end,
                    (None, None) => {
                        let reason =
                            "a pattern that repeats never ends: give until, or run.duration";
                        return Err(self.source.error(every.span(), reason));
                    }
                };
                if end <= start {
                    return Err(self
                        .source
                        .error(every.span(), "the pattern ends before it starts"));
                }
                Some((every.get_ref().0, end))
            }
        };
        if bytes.is_none() && endless.is_none() {
            *endless = Some((at, "a pattern without bytes".to_owned()));
        }
        let class = self.class(&entry.class)?;
        let jitter = time(&entry.jitter, Picos::ZERO);
        Ok(Pattern {
            kind,
            hosts,
            bytes,
            start,
            jitter,
            every,
            class,
        })
    }

    fn incast(
        &self,
        entry: &crate::scenario::PatternEntry,
        hosts: &[HostId],
    ) -> Result<Kind, Error> {
        let to = match &entry.to {
            Some(name) => Some(self.host(name.get_ref(), name.span())?),
            None => None,
        };
        let others =
            hosts.iter().filter(|host| to != Some(**host)).count() - usize::from(to.is_none());
        let senders = match &entry.senders {
            Some(given) if !(1..=others).contains(&(*given.get_ref() as usize)) => {
                let reason = format!(
                    "senders is 1 to {others}, the other hosts, not {}",
                    given.get_ref()
                );
                return Err(self.source.error(given.span(), reason));
            }
            Some(given) => *given.get_ref() as usize,
            None => others,
        };
        Ok(Kind::Incast {
            to,
            senders: Some(senders),
        })
    }

    fn traffic(
        &self,
        entry: &Spanned<crate::scenario::TrafficEntry>,
        endless: &mut Endless,
    ) -> Result<Traffic, Error> {
        let at = entry.span();
        let entry = entry.get_ref();
        let sizes = match entry.sizes.get_ref() {
            Sizes::Named(name) => Distribution::named(name),
            Sizes::Listed(points) => Distribution::listed(points.clone()),
        };
        let sizes = sizes.map_err(|why| self.source.error(entry.sizes.span(), why))?;
        let load = entry.load.get_ref().0;
        if load <= 0.0 {
            return Err(self.source.error(entry.load.span(), "load is above zero"));
        }
        let start = time(&entry.start, Picos::ZERO);
        let until = match (&entry.until, self.duration) {
            (Some(until), _) => until.get_ref().0,
            (None, Some(end)) => end,
            (None, None) => {
                if endless.is_none() {
                    *endless = Some((at.clone(), "traffic without until".to_owned()));
                }
                start + Picos(1)
            }
        };
        if until <= start {
            let reason = "traffic ends before it starts";
            return Err(self
                .source
                .error(entry.until.as_ref().map_or(at, Spanned::span), reason));
        }
        let hosts = self.among(&entry.hosts, at)?;
        let rate = |host: &HostId| self.fabric.hosts[host.0 as usize].nics[0].rate;
        Ok(Traffic {
            sizes,
            load,
            hosts: hosts.iter().map(|host| (*host, rate(host))).collect(),
            start,
            until,
            class: self.class(&entry.class)?,
        })
    }
}
