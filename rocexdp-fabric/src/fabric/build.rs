//! From what was written to a checked [`Fabric`]: nodes, links, addresses, connectedness. Switches are in `switch.rs`.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
    ops::Range,
};

use rocexdp_common::fault::Faults;
use rocexdp_proto::time::Rate;
use rocexdp_sim::{
    picos::Picos,
    topology::{
        ETHERNET_OVERHEAD, HostId, HostSpec, LinkId, LinkSpec, Node, SwitchId, SwitchSpec, Topology,
    },
};
use toml::Spanned;

use super::{
    Fabric, Host, Link, Nic, VERSION, generate,
    plan::{LinkPlan, Named, Plan, link_over, over},
    schema::{FaultsEntry, FlapEntry, LinkEntry, Schema, Set},
    switch,
};
use crate::{
    source::{Error, Source},
    units::Time,
};

/// A path MTU of 4096 with all its headers, as operators set it.
const MTU: u32 = 4200;
/// The least that IPv6 allows, and room for a path MTU of 1024.
const LEAST_MTU: u32 = 1280;
/// Jumbo frames, with some room.
const MOST_MTU: u32 = 10_000;
/// Most that a frame may have beside its bytes.
const MOST_OVERHEAD: u32 = 256;
/// Times down of one link at most.
const MOST_DOWN: u64 = 100_000;
/// NICs of one host at most: the simulator's hosts number theirs in a byte.
const MOST_NICS_OF_HOST: usize = 255;
/// Hosts' NICs that fit a /16.
const MOST_NICS: usize = 65_000;

/// `changes` come after the schema's own.
pub(super) fn build(schema: &Schema, changes: &Set, source: Source<'_>) -> Result<Fabric, Error> {
    if let Some(version) = &schema.version
        && *version.get_ref() != VERSION
    {
        let reason = format!(
            "version {}: this program reads {VERSION}",
            version.get_ref()
        );
        return Err(source.error(version.span(), reason));
    }
    let plan = gather(schema, changes, source)?;
    let mut links = Vec::with_capacity(plan.links.len());
    let mut infos = Vec::with_capacity(plan.links.len());
    let mut parallel = BTreeMap::new();
    for link in &plan.links {
        let (spec, mut info) = build_link(schema, source, &plan, link)?;
        let nth = parallel.entry(info.name.clone()).or_insert(0_u32);
        if *nth != 0 {
            info.name = format!("{}.{nth}", info.name);
        }
        *nth += 1;
        links.push(spec);
        infos.push(info);
    }
    let mut topology = Topology {
        hosts: plan
            .hosts
            .iter()
            .map(|host| HostSpec {
                name: host.name.clone(),
            })
            .collect(),
        switches: Vec::new(),
        links,
    };
    let hosts = build_hosts(schema, source, &plan, &topology, &infos)?;
    connected(source, &plan, &topology)?;
    let mut warnings = Vec::new();
    let ports = ports(&plan, &topology, &infos);
    for (planned, ports) in plan.switches.iter().zip(ports) {
        if let Some(given) = &planned.settings.ports
            && usize::from(*given.get_ref()) != ports.len()
        {
            let reason = format!(
                "{} has {} ports by its links, not {}",
                planned.name,
                ports.len(),
                given.get_ref()
            );
            return Err(source.error(given.span(), reason));
        }
        let settings = over(&planned.settings, &schema.defaults.switch);
        let config = switch::build(
            &settings,
            &ports,
            (&planned.name, &planned.at),
            source,
            &mut warnings,
        )?;
        topology.switches.push(SwitchSpec {
            name: planned.name.clone(),
            config,
        });
    }
    every_pair(source, &plan, &topology)?;
    // The same warning for each switch of a kind is said once.
    warnings.dedup();
    Ok(Fabric {
        name: schema
            .name
            .clone()
            .unwrap_or_else(|| source.name().to_owned()),
        topology,
        hosts,
        links: infos,
        dscp_to_priority: priorities(schema, source)?,
        warnings,
    })
}

/// All nodes and links by name.
fn gather(schema: &Schema, changes: &Set, source: Source<'_>) -> Result<Plan, Error> {
    if let Some(ends) = &schema.defaults.link.ends {
        return Err(source.error(ends.span(), "defaults have no ends: they are for all links"));
    }
    if let Some(name) = &schema.defaults.switch.name {
        return Err(source.error(
            name.span(),
            "defaults have no name: they are for all switches",
        ));
    }
    let mut plan = Plan::default();
    if let Some(rule) = &schema.generate {
        generate::generate(source, rule, &mut plan)?;
    }
    for entry in &schema.host {
        plan.list_host(source, entry)?;
    }
    for entry in &schema.switch {
        plan.list_switch(source, entry)?;
    }
    for entry in &schema.link {
        plan.list_link(source, entry)?;
    }
    for entry in schema.set.switch.iter().chain(&changes.switch) {
        plan.set_switch(source, entry)?;
    }
    for entry in schema.set.link.iter().chain(&changes.link) {
        plan.set_link(source, entry)?;
    }
    if plan.hosts.len() < 2 {
        return Err(source.error_anywhere(format!(
            "a fabric needs two hosts at least, and has {}: give [generate], or [[host]] and [[link]]",
            plan.hosts.len()
        )));
    }
    Ok(plan)
}

fn node(plan: &Plan, name: &str) -> Option<Node> {
    let id = |n: usize| u32::try_from(n).ok();
    Some(match plan.names.get(name)? {
        Named::Host(n) => Node::Host(HostId(id(*n)?)),
        Named::Switch(n) => Node::Switch(SwitchId(id(*n)?)),
    })
}

fn build_link(
    schema: &Schema,
    source: Source<'_>,
    plan: &Plan,
    link: &LinkPlan,
) -> Result<(LinkSpec, Link), Error> {
    let [a, b] = &link.ends;
    let settings = link_over(&link.settings, &schema.defaults.link, false);
    let wrong = |reason: String| source.error(link.at.clone(), reason);
    if a == b {
        return Err(wrong(format!("a link joins {a} to itself")));
    }
    let (Some(first), Some(second)) = (node(plan, a), node(plan, b)) else {
        return Err(wrong(format!("no such nodes: {a}, {b}")));
    };
    let Some(rate) = &settings.rate else {
        return Err(wrong(format!(
            "the link {a}-{b} has no rate: give it one, or give defaults.link.rate"
        )));
    };
    if rate.get_ref().0 == Rate::ZERO {
        return Err(source.error(rate.span(), format!("the rate of {a}-{b} is zero")));
    }
    let mtu = within(source, "mtu", &settings.mtu, MTU, LEAST_MTU, MOST_MTU)?;
    let overhead = within(
        source,
        "frame_overhead",
        &settings.frame_overhead,
        ETHERNET_OVERHEAD,
        0,
        MOST_OVERHEAD,
    )?;
    let common = settings.faults.as_ref().map(Spanned::get_ref);
    let spec = LinkSpec {
        ends: [first, second],
        rate: rate.get_ref().0,
        delay: settings
            .delay
            .as_ref()
            .map_or(Picos::from_micros(1), |delay| delay.get_ref().0),
        overhead,
        faults: [
            faults(
                settings
                    .faults_forward
                    .as_ref()
                    .map(Spanned::get_ref)
                    .or(common),
            ),
            faults(
                settings
                    .faults_backward
                    .as_ref()
                    .map(Spanned::get_ref)
                    .or(common),
            ),
        ],
        down: down(source, &settings)?,
    };
    let info = Link {
        name: format!("{a}-{b}"),
        mtu,
    };
    Ok((spec, info))
}

fn within(
    source: Source<'_>,
    name: &str,
    given: &Option<Spanned<u32>>,
    default: u32,
    least: u32,
    most: u32,
) -> Result<u32, Error> {
    let Some(given) = given else {
        return Ok(default);
    };
    let value = *given.get_ref();
    if (least..=most).contains(&value) {
        Ok(value)
    } else {
        Err(source.error(
            given.span(),
            format!("{name} is {least} to {most}, not {value}"),
        ))
    }
}

fn faults(entry: Option<&FaultsEntry>) -> Faults {
    let entry = entry.copied().unwrap_or_default();
    let share =
        |part: Option<crate::units::Part>| part.map(crate::units::Part::share).unwrap_or_default();
    Faults {
        drop: share(entry.drop),
        corrupt: share(entry.corrupt),
        ce: share(entry.ce),
        duplicate: share(entry.duplicate),
        reorder: share(entry.reorder),
        reorder_depth: entry.reorder_depth.unwrap_or(0),
        ..Faults::default()
    }
}

/// Times down, in order.
fn down(source: Source<'_>, settings: &LinkEntry) -> Result<Vec<(Picos, Picos)>, Error> {
    let mut all: Vec<(Picos, Picos)> = Vec::new();
    if let Some(flap) = &settings.flap {
        flaps(source, flap, &mut all)?;
    }
    for entry in &settings.down {
        let (from, until) = (
            entry.get_ref().from.get_ref().0,
            entry.get_ref().until.get_ref().0,
        );
        if from >= until {
            return Err(source.error(
                entry.span(),
                "a link comes up after it goes down: from is below until",
            ));
        }
        all.push((from, until));
    }
    all.sort_unstable();
    for pair in all.windows(2) {
        if let [before, after] = pair
            && after.0 <= before.1
        {
            let at = settings
                .down
                .last()
                .map(Spanned::span)
                .or(settings.flap.as_ref().map(Spanned::span));
            return Err(source.error(
                at.unwrap_or_default(),
                "two times down of one link overlap or touch",
            ));
        }
    }
    Ok(all)
}

fn flaps(
    source: Source<'_>,
    flap: &Spanned<FlapEntry>,
    all: &mut Vec<(Picos, Picos)>,
) -> Result<(), Error> {
    let FlapEntry {
        from,
        until,
        every,
        down,
    } = flap.get_ref();
    let (every_ps, down_ps) = (every.get_ref().0.0, down.get_ref().0.0);
    if down_ps == 0 || down_ps >= every_ps {
        return Err(source.error(down.span(), "down is above zero and below every"));
    }
    let Time(end) = *until.get_ref();
    if end <= from.0 {
        return Err(source.error(
            until.span(),
            "a flap ends after it begins: from is below until",
        ));
    }
    if (end - from.0).0 / every_ps > MOST_DOWN {
        return Err(source.error(every.span(), format!("more than {MOST_DOWN} times down")));
    }
    let mut start = from.0;
    while start < end {
        all.push((start, start + Picos(down_ps)));
        start = start + Picos(every_ps);
    }
    Ok(())
}

fn build_hosts(
    schema: &Schema,
    source: Source<'_>,
    plan: &Plan,
    topology: &Topology,
    infos: &[Link],
) -> Result<Vec<Host>, Error> {
    let mut hosts: Vec<_> = plan
        .hosts
        .iter()
        .map(|host| Host {
            name: host.name.clone(),
            nics: Vec::new(),
        })
        .collect();
    for ((n, link), info) in (0_u32..).zip(&topology.links).zip(infos) {
        for end in link.ends {
            if let Node::Host(host) = end
                && let Some(host) = hosts.get_mut(host.0 as usize)
            {
                host.nics.push(Nic {
                    link: LinkId(n),
                    rate: link.rate,
                    mtu: info.mtu,
                    mac: [0; 6],
                    ipv4: Ipv4Addr::UNSPECIFIED,
                    ipv6: Ipv6Addr::UNSPECIFIED,
                });
            }
        }
    }
    for (host, planned) in hosts.iter().zip(&plan.hosts) {
        if host.nics.is_empty() {
            let reason = format!("the host {} has no link", host.name);
            return Err(source.error(planned.at.clone(), reason));
        }
        if host.nics.len() > MOST_NICS_OF_HOST {
            let reason = format!(
                "the host {} has {} NICs by its links: {MOST_NICS_OF_HOST} at most",
                host.name,
                host.nics.len()
            );
            return Err(source.error(planned.at.clone(), reason));
        }
        if let Some(given) = &planned.nics
            && usize::from(*given.get_ref()) != host.nics.len()
        {
            let reason = format!(
                "{} has {} NICs by its links, not {}",
                host.name,
                host.nics.len(),
                given.get_ref()
            );
            return Err(source.error(given.span(), reason));
        }
    }
    address(schema, source, &mut hosts)?;
    Ok(hosts)
}

/// Addresses, in the order of hosts and their NICs.
fn address(schema: &Schema, source: Source<'_>, hosts: &mut [Host]) -> Result<(), Error> {
    let (ipv4, ipv6) = (&schema.addresses.ipv4, &schema.addresses.ipv6);
    let base4 = ipv4.get_ref().to_bits();
    if base4 & 0xffff != 0 {
        return Err(source.error(
            ipv4.span(),
            "addresses.ipv4 is the network of a /16, as in 10.78.0.0",
        ));
    }
    let base6 = ipv6.get_ref().to_bits();
    if base6 & u128::from(u64::MAX) != 0 {
        return Err(source.error(
            ipv6.span(),
            "addresses.ipv6 is the network of a /64, as in fd78::",
        ));
    }
    let nics = hosts.iter().map(|host| host.nics.len()).sum::<usize>();
    if nics > MOST_NICS {
        return Err(source.error_anywhere(format!(
            "{nics} NICs are more than the {MOST_NICS} of a fabric"
        )));
    }
    for (n, nic) in (1_u32..).zip(hosts.iter_mut().flat_map(|host| &mut host.nics)) {
        nic.ipv4 = Ipv4Addr::from_bits(base4 | n);
        nic.ipv6 = Ipv6Addr::from_bits(base6 | u128::from(n));
        // Locally administered.
        let [_, _, high, low] = n.to_be_bytes();
        nic.mac = [0x02, 0x72, 0x78, 0, high, low];
    }
    Ok(())
}

/// A port, as its switch must know it: who is at the other end, rate, delay, MTU.
pub(super) struct Port<'a> {
    pub neighbour: &'a str,
    pub rate: Rate,
    pub delay: Picos,
    pub mtu: u32,
}

/// Ports of each switch, in the order of links.
fn ports<'a>(plan: &'a Plan, topology: &Topology, infos: &[Link]) -> Vec<Vec<Port<'a>>> {
    let mut all: Vec<Vec<Port<'_>>> = plan.switches.iter().map(|_| Vec::new()).collect();
    for ((planned, link), info) in plan.links.iter().zip(&topology.links).zip(infos) {
        for (end, neighbour) in link.ends.iter().zip(planned.ends.iter().rev()) {
            if let Node::Switch(switch) = end
                && let Some(ports) = all.get_mut(switch.0 as usize)
            {
                ports.push(Port {
                    neighbour,
                    rate: link.rate,
                    delay: link.delay,
                    mtu: info.mtu,
                });
            }
        }
    }
    all
}

/// From the first host, through switches, every node is reached.
fn connected(source: Source<'_>, plan: &Plan, topology: &Topology) -> Result<(), Error> {
    let hosts = plan.hosts.len();
    let index = |node: Node| match node {
        Node::Host(host) => host.0 as usize,
        Node::Switch(switch) => hosts + switch.0 as usize,
    };
    let mut neighbours = vec![Vec::new(); hosts + plan.switches.len()];
    for link in &topology.links {
        let [a, b] = link.ends.map(index);
        neighbours[a].push(b);
        neighbours[b].push(a);
    }
    let mut reached = vec![false; neighbours.len()];
    let mut todo = vec![0];
    while let Some(node) = todo.pop() {
        if !std::mem::replace(&mut reached[node], true) {
            // Hosts do not forward.
            if node >= hosts || node == 0 {
                todo.extend_from_slice(&neighbours[node]);
            }
        }
    }
    let name = |n: usize| -> (&str, &Range<usize>) {
        match n.checked_sub(hosts) {
            None => (&plan.hosts[n].name, &plan.hosts[n].at),
            Some(n) => (&plan.switches[n].name, &plan.switches[n].at),
        }
    };
    let lost: Vec<_> = (0..reached.len())
        .filter(|n| !reached[*n])
        .map(name)
        .collect();
    let Some((_, at)) = lost.first() else {
        return Ok(());
    };
    let (from, _) = name(0);
    let mut names: Vec<_> = lost.iter().take(8).map(|(name, _)| *name).collect();
    if lost.len() > names.len() {
        names.push("...");
    }
    let reason = format!(
        "not connected: no links (through switches) lead from {from} to {}",
        names.join(", ")
    );
    Err(source.error((*at).clone(), reason))
}

/// What the first host reaches may still be apart: it has NICs at several switches, say, and others have one.
fn every_pair(source: Source<'_>, plan: &Plan, topology: &Topology) -> Result<(), Error> {
    let Some([a, b]) = topology.unreachable() else {
        return Ok(());
    };
    let [a, b] = [a, b].map(|host| &plan.hosts[host.0 as usize]);
    let reason = format!(
        "not connected: no links (through switches) lead from {} to {}, and hosts forward nothing",
        a.name, b.name
    );
    Err(source.error(b.at.clone(), reason))
}

fn priorities(schema: &Schema, source: Source<'_>) -> Result<[u8; 64], Error> {
    // ConnectX with trust DSCP.
    let mut map: [u8; 64] = std::array::from_fn(|dscp| (dscp >> 3) as u8);
    for (dscp, priority) in &schema.qos.dscp_to_priority {
        let place = dscp
            .get_ref()
            .parse::<usize>()
            .ok()
            .and_then(|dscp| map.get_mut(dscp));
        let Some(place) = place else {
            let reason = format!("{:?} is no DSCP: 0 to 63", dscp.get_ref());
            return Err(source.error(dscp.span(), reason));
        };
        if *priority.get_ref() > 7 {
            let reason = format!("{} is no priority: 0 to 7", priority.get_ref());
            return Err(source.error(priority.span(), reason));
        }
        *place = *priority.get_ref();
    }
    Ok(map)
}
