//! Nodes and links by name, with the settings that each has so far: from the generator, the lists, and the changes after them.
//!
//! Must not: know what settings mean (`build.rs`).

use std::{collections::BTreeMap, ops::Range};

use toml::Spanned;

use super::schema::{HostEntry, LinkEntry, Maybe, PfcEntry, SwitchEntry};
use crate::source::{Error, Source};

/// Links of one fabric at most.
const MOST_LINKS: usize = 1 << 20;

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Named {
    Host(usize),
    Switch(usize),
}

pub(super) struct HostPlan {
    pub name: String,
    pub at: Range<usize>,
    pub nics: Maybe<u16>,
}

pub(super) struct SwitchPlan {
    pub name: String,
    pub at: Range<usize>,
    pub settings: SwitchEntry,
}

pub(super) struct LinkPlan {
    pub ends: [String; 2],
    pub at: Range<usize>,
    pub settings: LinkEntry,
}

/// All that was said.
#[derive(Default)]
pub(super) struct Plan {
    pub names: BTreeMap<String, Named>,
    pub hosts: Vec<HostPlan>,
    pub switches: Vec<SwitchPlan>,
    pub links: Vec<LinkPlan>,
}

impl Plan {
    fn name(
        &mut self,
        source: Source<'_>,
        at: &Range<usize>,
        name: &str,
        named: Named,
    ) -> Result<(), Error> {
        if self.names.insert(name.to_owned(), named).is_some() {
            let reason =
                format!("two nodes are called {name:?}: names are unique among hosts and switches");
            return Err(source.error(at.clone(), reason));
        }
        Ok(())
    }

    pub fn add_host(
        &mut self,
        source: Source<'_>,
        at: Range<usize>,
        name: String,
    ) -> Result<(), Error> {
        self.name(source, &at, &name, Named::Host(self.hosts.len()))?;
        self.hosts.push(HostPlan {
            name,
            at,
            nics: None,
        });
        Ok(())
    }

    pub fn add_switch(
        &mut self,
        source: Source<'_>,
        at: Range<usize>,
        name: String,
    ) -> Result<(), Error> {
        self.name(source, &at, &name, Named::Switch(self.switches.len()))?;
        let settings = SwitchEntry::default();
        self.switches.push(SwitchPlan { name, at, settings });
        Ok(())
    }

    pub fn add_link(&mut self, at: Range<usize>, a: &str, b: &str, settings: LinkEntry) {
        let ends = [a.to_owned(), b.to_owned()];
        self.links.push(LinkPlan { ends, at, settings });
    }

    pub fn list_host(
        &mut self,
        source: Source<'_>,
        entry: &Spanned<HostEntry>,
    ) -> Result<(), Error> {
        let HostEntry { name, nics } = entry.get_ref();
        for one in &name.get_ref().0 {
            self.add_host(source, name.span(), one.clone())?;
            if let Some(host) = self.hosts.last_mut() {
                host.nics.clone_from(nics);
            }
        }
        Ok(())
    }

    pub fn list_switch(
        &mut self,
        source: Source<'_>,
        entry: &Spanned<SwitchEntry>,
    ) -> Result<(), Error> {
        let Some(name) = &entry.get_ref().name else {
            return Err(source.error(entry.span(), "a switch needs a name"));
        };
        for one in &name.get_ref().0 {
            self.add_switch(source, name.span(), one.clone())?;
            if let Some(switch) = self.switches.last_mut() {
                switch.settings = entry.get_ref().clone();
            }
        }
        Ok(())
    }

    pub fn list_link(
        &mut self,
        source: Source<'_>,
        entry: &Spanned<LinkEntry>,
    ) -> Result<(), Error> {
        let settings = entry.get_ref();
        let (first, second) = self.ends(source, entry)?;
        let pairs: Vec<(&String, &String)> = match (first.len(), second.len()) {
            _ if settings.mesh.as_ref().is_some_and(|mesh| *mesh.get_ref()) => first
                .iter()
                .flat_map(|a| second.iter().map(move |b| (a, b)))
                .collect(),
            (a, b) if a == b => first.iter().zip(second).collect(),
            (1, _) => second.iter().map(|b| (&first[0], b)).collect(),
            (_, 1) => first.iter().map(|a| (a, &second[0])).collect(),
            (a, b) => {
                let reason = format!(
                    "{a} nodes can't be joined to {b} one by one: give as many, or one, or mesh = true for all with all"
                );
                return Err(source.error(entry.span(), reason));
            }
        };
        let count = match &settings.count {
            Some(count) if *count.get_ref() == 0 => {
                return Err(source.error(count.span(), "count is 1 or more"));
            }
            Some(count) => usize::from(*count.get_ref()),
            None => 1,
        };
        if pairs
            .len()
            .saturating_mul(count)
            .saturating_add(self.links.len())
            > MOST_LINKS
        {
            return Err(source.error(entry.span(), format!("more than {MOST_LINKS} links")));
        }
        for (a, b) in pairs {
            for _ in 0..count {
                self.add_link(entry.span(), a, b, settings.clone());
            }
        }
        Ok(())
    }

    /// The two ends of an entry, all of whose names exist.
    fn ends<'a>(
        &self,
        source: Source<'_>,
        entry: &'a Spanned<LinkEntry>,
    ) -> Result<(&'a [String], &'a [String]), Error> {
        let Some(ends) = &entry.get_ref().ends else {
            return Err(source.error(entry.span(), "a link needs ends = [\"one\", \"other\"]"));
        };
        let [first, second] = ends.get_ref().as_slice() else {
            let reason = format!("a link has two ends, not {}", ends.get_ref().len());
            return Err(source.error(ends.span(), reason));
        };
        for end in [first, second] {
            for name in &end.get_ref().0 {
                if !self.names.contains_key(name) {
                    return Err(source.error(end.span(), format!("no node is called {name:?}")));
                }
            }
        }
        Ok((&first.get_ref().0, &second.get_ref().0))
    }

    /// Changes switches that exist.
    pub fn set_switch(
        &mut self,
        source: Source<'_>,
        entry: &Spanned<SwitchEntry>,
    ) -> Result<(), Error> {
        let Some(names) = &entry.get_ref().name else {
            return Err(source.error(entry.span(), "name says which switches to set"));
        };
        for name in &names.get_ref().0 {
            let switch = match self.names.get(name) {
                Some(Named::Switch(switch)) => self.switches.get_mut(*switch),
                _ => None,
            };
            let Some(switch) = switch else {
                return Err(source.error(names.span(), format!("no switch is called {name:?}")));
            };
            switch.settings = over(entry.get_ref(), &switch.settings);
        }
        Ok(())
    }

    /// Changes links that exist, whichever way round their ends are.
    pub fn set_link(
        &mut self,
        source: Source<'_>,
        entry: &Spanned<LinkEntry>,
    ) -> Result<(), Error> {
        let settings = entry.get_ref();
        let mesh = settings.mesh.as_ref().map(Spanned::span);
        if let Some(at) = mesh.or(settings.count.as_ref().map(Spanned::span)) {
            let reason = "mesh and count make links: they can't be set afterwards";
            return Err(source.error(at, reason));
        }
        let (first, second) = self.ends(source, entry)?;
        let mut found = false;
        for link in &mut self.links {
            let [a, b] = &link.ends;
            let forward = first.contains(a) && second.contains(b);
            let backward = first.contains(b) && second.contains(a);
            if forward || backward {
                found = true;
                link.settings = link_over(settings, &link.settings, !forward);
            }
        }
        if found {
            Ok(())
        } else {
            Err(source.error(entry.span(), "no link joins these ends"))
        }
    }
}

/// `above`'s value, or `below`'s.
fn or<T: Clone>(above: &Maybe<T>, below: &Maybe<T>) -> Maybe<T> {
    above.clone().or_else(|| below.clone())
}

/// A switch's settings, where not given those below.
pub(super) fn over(above: &SwitchEntry, below: &SwitchEntry) -> SwitchEntry {
    SwitchEntry {
        name: None,
        ports: or(&above.ports, &below.ports),
        buffer: or(&above.buffer, &below.buffer),
        reserved: or(&above.reserved, &below.reserved),
        mark_on: or(&above.mark_on, &below.mark_on),
        scheduler: or(&above.scheduler, &below.scheduler),
        weights: or(&above.weights, &below.weights),
        strict: or(&above.strict, &below.strict),
        tail_drop: or(&above.tail_drop, &below.tail_drop),
        ecn: or(&above.ecn, &below.ecn),
        pfc: pfc_over(&above.pfc, &below.pfc),
    }
}

fn pfc_over(above: &PfcEntry, below: &PfcEntry) -> PfcEntry {
    // A threshold of either kind stands for both.
    let (alpha, threshold) = if above.alpha.is_some() || above.threshold.is_some() {
        (above.alpha.clone(), above.threshold.clone())
    } else {
        (below.alpha.clone(), below.threshold.clone())
    };
    PfcEntry {
        enabled: or(&above.enabled, &below.enabled),
        priorities: or(&above.priorities, &below.priorities),
        alpha,
        threshold,
        resume_offset: or(&above.resume_offset, &below.resume_offset),
        quanta: or(&above.quanta, &below.quanta),
        headroom: or(&above.headroom, &below.headroom),
    }
}

/// A link's settings, where not given those below; `turned`: `above` names the ends the other way round.
pub(super) fn link_over(above: &LinkEntry, below: &LinkEntry, turned: bool) -> LinkEntry {
    let (forward, backward) = if turned {
        (&above.faults_backward, &above.faults_forward)
    } else {
        (&above.faults_forward, &above.faults_backward)
    };
    LinkEntry {
        ends: None,
        mesh: None,
        count: None,
        rate: or(&above.rate, &below.rate),
        delay: or(&above.delay, &below.delay),
        mtu: or(&above.mtu, &below.mtu),
        frame_overhead: or(&above.frame_overhead, &below.frame_overhead),
        faults: or(&above.faults, &below.faults),
        faults_forward: or(forward, &below.faults_forward),
        faults_backward: or(backward, &below.faults_backward),
        down: if above.down.is_empty() {
            below.down.clone()
        } else {
            above.down.clone()
        },
        flap: or(&above.flap, &below.flap),
    }
}
