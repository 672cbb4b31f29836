//! Networks to test with.

use std::time::Duration;

use rocexdp_common::fault::Faults;
use rocexdp_proto::EndpointConfig;
use rocexdp_proto::time::Rate;
use rocexdp_sim::net::rc::{Connection, Done, End, Message, RcHost};
use rocexdp_sim::net::{Network, Options};
use rocexdp_sim::picos::Picos;
use rocexdp_sim::switch::{
    EcnConfig, MarkOn, PfcConfig, PfcThreshold, PortConfig, Scheduler, SwitchConfig, headroom,
};
use rocexdp_sim::topology::{
    HostId, HostSpec, LinkSpec, Node, PortId, SwitchId, SwitchSpec, Topology,
};

/// A link without faults.
pub fn link(a: Node, b: Node, rate: Rate, delay: Picos) -> LinkSpec {
    LinkSpec {
        ends: [a, b],
        rate,
        delay,
        overhead: 0,
        faults: [Faults::default(); 2],
        down: Vec::new(),
    }
}

pub const fn host(n: u32) -> Node {
    Node::Host(HostId(n))
}

pub const fn switch(n: u32) -> Node {
    Node::Switch(SwitchId(n))
}

/// A lossless switch that marks as the reference's 100 Gb/s set does.
pub fn lossless(rates: &[Rate], delay: Picos) -> SwitchConfig {
    let delay = Duration::from_nanos(delay.as_nanos());
    let ports = rates.iter().map(|rate| PortConfig {
        rate: *rate,
        delay,
        ecn: [Some(EcnConfig {
            kmin: rate.as_bps() / 250_000,
            kmax: rate.as_bps() / 62_500,
            pmax: 0.2,
        }); 8],
        scheduler: Scheduler::Strict,
        headroom: headroom(*rate, delay, Duration::ZERO, 5_000),
        alpha: None,
    });
    SwitchConfig {
        ports: ports.collect(),
        buffer: 16 << 20,
        reserved: 4096,
        mark_on: MarkOn::Dequeue,
        pfc: Some(PfcConfig {
            priorities: [true; 8],
            threshold: PfcThreshold::Dynamic(0.125),
            resume_offset: 3 << 10,
            quanta: None,
        }),
        tail_drop: None,
    }
}

pub fn named_hosts(n: usize) -> Vec<HostSpec> {
    (0..n)
        .map(|i| HostSpec {
            name: format!("h{i}"),
        })
        .collect()
}

pub fn named_switch(name: &str, config: SwitchConfig) -> SwitchSpec {
    SwitchSpec {
        name: name.to_owned(),
        config,
    }
}

/// `n` hosts at one switch.
pub fn star(n: usize, rate: Rate, delay: Picos) -> Topology {
    Topology {
        hosts: named_hosts(n),
        switches: vec![named_switch("s0", lossless(&vec![rate; n], delay))],
        links: (0..n as u32)
            .map(|i| link(host(i), switch(0), rate, delay))
            .collect(),
    }
}

/// An endpoint on a link of this rate.
pub fn endpoint(rate: Rate) -> EndpointConfig {
    EndpointConfig {
        line_rate: Some(rate),
        ..EndpointConfig::default()
    }
}

/// The network, each host's NICs being those that links name, of their rates.
pub fn network(topology: Topology, seed: u64) -> Network<RcHost> {
    network_with(topology, seed, |_| {})
}

/// As [`network`], with other endpoints.
pub fn network_with(
    topology: Topology,
    seed: u64,
    with: impl Fn(&mut EndpointConfig),
) -> Network<RcHost> {
    let hosts = (0..topology.hosts.len() as u32).map(|h| {
        let links = topology.links.iter().filter(|l| l.ends.contains(&host(h)));
        let nics: Vec<_> = links
            .map(|l| {
                let mut config = endpoint(l.rate);
                with(&mut config);
                config
            })
            .collect();
        RcHost::new(HostId(h), &nics, seed)
    });
    let hosts = hosts.collect();
    let options = Options {
        seed,
        ..Options::default()
    };
    Network::new(topology, hosts, &options).expect("a network")
}

/// Joins the first NICs of two hosts.
pub fn connect(net: &mut Network<RcHost>, a: u32, b: u32, with: &Connection) -> [End; 2] {
    let hosts = net.hosts_mut([HostId(a), HostId(b)]);
    RcHost::connect(hosts, [PortId(0); 2], with).expect("a connection")
}

/// A flow from one host to another, from a time on.
pub fn flow(
    net: &mut Network<RcHost>,
    [a, b]: [u32; 2],
    with: &Connection,
    message: Message,
) -> End {
    let [end, _] = connect(net, a, b, with);
    net.host_mut(HostId(a)).post(end, message);
    end
}

/// A WRITE.
pub fn write(bytes: u64, start: Picos) -> Message {
    Message {
        tag: 1,
        start,
        bytes,
        op: Default::default(),
    }
}

/// What a host has done.
pub fn done(net: &mut Network<RcHost>, host: u32) -> Vec<Done> {
    net.host_mut(HostId(host)).take_done()
}
