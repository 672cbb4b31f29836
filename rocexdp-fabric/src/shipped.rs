//! The reference's experiments with hosts that run the shipped transport: the same networks, flows and DCQCN parameters, another
//! host (`docs/congestion.md`, "The shipped transport").
//!
//! What a host is differs from the reference's in several things at once; each is a value of [`Transport`], so that a difference
//! in the results can be laid to one of them by a run that changes nothing else: [`Transport::near_reference`] is as near the
//! reference's host as the shipped one comes, [`Transport::default`] is what `rocexdp run` has. What no value changes: packets
//! have the shipped headers and path MTUs, an acknowledgement is a packet of its own and a CNP another one, of a priority of its
//! own, which no acknowledgement waits for; a lost packet is found by NAKs, selective acknowledgements and a timer.
//!
//! Must not: change a parameter of the experiment.

use std::time::Duration;

use rocexdp_proto::dcqcn::{NpParams, Params};
use rocexdp_proto::ids::PathMtu;
use rocexdp_proto::rate::RateController as _;
use rocexdp_proto::verbs::Status;
use rocexdp_proto::{EndpointConfig, RateControl, SelectiveRepeat};
use rocexdp_sim::net::rc::{Connection, Message, Op, RcHost};
use rocexdp_sim::net::{Network, Options};
use rocexdp_sim::picos::Picos;
use rocexdp_sim::topology::{HostId, PortId};

use crate::reference::case::Numbering;
use crate::reference::config::Controller;
use crate::reference::random::ErrorModels;
use crate::reference::stats::FlowSample;
use crate::reference::{Case, Hosts, Outcome, Settings, Watched, observe};

/// 67 ms, as perftest and most applications ask for. Nothing is lost in these networks but for want of headroom, and a timer that
/// fires because a queue is long would be another experiment.
const TIMEOUT: u8 = 14;
/// The NIC of each host.
const NIC: PortId = PortId(0);

/// Rate control.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// As the experiment says: DCQCN, with a window where it has one, or none.
    Given,
    /// DCQCN with a window of the largest bandwidth-delay product, shrinking with the rate.
    DcqcnWindow,
    /// The line rate, whatever the network says.
    Fixed,
}

/// What is chosen of the shipped transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transport {
    /// Path MTU.
    pub mtu: PathMtu,
    /// Selective repeat instead of go-back-N.
    pub selective: bool,
    /// An acknowledgement is asked for on every so-manieth packet.
    pub ack_interval: u32,
    /// Packets of a QP that may be unacknowledged.
    pub window: u32,
    /// Rate control.
    pub control: Control,
    /// DCQCN with ConnectX's defaults, as `rocexdp run` has it, instead of the experiment's parameters.
    pub connectx: bool,
    /// The network is as the reference's: whole nanoseconds, and its order of events.
    pub whole_nanoseconds: bool,
}

/// As `rocexdp run` has it, at path MTU 1024, with the experiment's DCQCN.
impl Default for Transport {
    fn default() -> Self {
        let endpoint = EndpointConfig::default();
        Self {
            mtu: PathMtu::Mtu1024,
            selective: false,
            ack_interval: endpoint.ack_req_interval,
            window: endpoint.max_inflight_packets,
            control: Control::Given,
            connectx: false,
            whole_nanoseconds: false,
        }
    }
}

impl Transport {
    /// No window of packets, an acknowledgement per packet, the reference's time.
    #[must_use]
    pub fn near_reference() -> Self {
        Self {
            ack_interval: 1,
            window: 65_536,
            whole_nanoseconds: true,
            ..Self::default()
        }
    }
}

/// Runs a case with the shipped transport. `settings.seed` is that of marks and of the transport's draws.
///
/// # Errors
/// What the network or an endpoint refuses, by name.
pub fn run(
    case: &Case,
    transport: Transport,
    settings: Settings,
    progress: impl FnMut(f64) -> bool,
) -> Result<Outcome, String> {
    let numbering = case.numbering();
    let mut hosts = Shipped::new(case, &numbering, transport, settings.seed)?;
    Ok(observe(case, &numbering, settings, &mut hosts, progress))
}

/// Where a flow is.
struct Place {
    ends: [rocexdp_sim::net::rc::End; 2],
    start: Picos,
    ended: Option<Picos>,
}

/// The hosts.
struct Shipped {
    network: Network<RcHost>,
    places: Vec<Place>,
}

impl Shipped {
    fn new(
        case: &Case,
        numbering: &Numbering,
        transport: Transport,
        seed: u64,
    ) -> Result<Self, String> {
        let hosts = (0..)
            .zip(case.host_links())
            .map(|(n, (_, rate))| RcHost::new(HostId(n), &[endpoint(case, transport, rate)], seed));
        let options = Options {
            seed,
            reference: transport.whole_nanoseconds,
            ecmp_seeds: Some(numbering.switches.iter().map(|id| id.0).collect()),
            ..Options::default()
        };
        let mut network = Network::new(case.topology(numbering), hosts.collect(), &options)
            .map_err(|error| error.to_string())?;
        if let Some(losses) = ErrorModels::new(seed, &case.error_rates()) {
            network.set_losses(Box::new(losses));
        }
        let mut places = Vec::with_capacity(case.flows.len());
        for (number, flow) in (0_u64..).zip(&case.flows) {
            let [from, to] = [flow.source, flow.destination].map(|id| numbering.host(id));
            let with = Connection {
                path_mtu: transport.mtu,
                selective: transport.selective.then_some(SelectiveRepeat { paths: 1 }),
                // The first DSCP of the flow's priority.
                dscp: Some(flow.priority << 3),
                timeout: TIMEOUT,
                ..Connection::default()
            };
            let ends = RcHost::connect(network.hosts_mut([from, to]), [NIC; 2], &with)
                .map_err(|error| format!("flow {number}: {error}"))?;
            let start = Picos::from_nanos(flow.start);
            let message = Message {
                tag: number,
                start,
                bytes: flow.size,
                op: Op::Write,
            };
            let [sender, _] = ends;
            network.host_mut(from).post(sender, message);
            places.push(Place {
                ends,
                start,
                ended: None,
            });
        }
        Ok(Self { network, places })
    }
}

/// An endpoint with the experiment's DCQCN.
fn endpoint(case: &Case, transport: Transport, rate: rocexdp_proto::time::Rate) -> EndpointConfig {
    let config = &case.config;
    let windowed = RateControl::DcqcnWindow {
        base_rtt: Duration::from_nanos(case.largest.rtt),
        scaled: config.variable_window || !config.window,
    };
    let rate_control = match (transport.control, config.controller) {
        (Control::Fixed, _) | (_, Controller::Off) => RateControl::Fixed(None),
        (Control::DcqcnWindow, _) => windowed,
        (Control::Given, Controller::Dcqcn) if config.window => windowed,
        (Control::Given, Controller::Dcqcn) => RateControl::Dcqcn,
    };
    let given = Params {
        rp: case.rp_params(),
        np: NpParams {
            min_time_between_cnps: Duration::from_nanos(config.cnp_interval),
            ..Params::ns3_mellanox().np
        },
    };
    let params = if transport.connectx {
        Params::connectx()
    } else {
        given
    };
    EndpointConfig {
        rp: params.rp,
        np: params.np,
        rate_control,
        line_rate: Some(rate),
        max_inflight_packets: transport.window,
        ack_req_interval: transport.ack_interval,
        ..EndpointConfig::default()
    }
}

impl Hosts for Shipped {
    type Host = RcHost;

    fn network(&self) -> &Network<RcHost> {
        &self.network
    }

    fn network_mut(&mut self) -> &mut Network<RcHost> {
        &mut self.network
    }

    fn went_on(&mut self) {
        for host in (0..self.network.hosts().len() as u32).map(HostId) {
            for done in self.network.host_mut(host).take_done() {
                let place = self.places.get_mut(done.tag as usize);
                if let Some(place) = place.filter(|_| done.status == Status::Success) {
                    place.ended = Some(done.end);
                }
            }
        }
    }

    fn flow(&self, flow: Watched) -> FlowSample {
        let now = self.network.now();
        let Some(place) = self.places.get(flow.number as usize) else {
            return FlowSample::default();
        };
        let [sender, receiver] = place.ends;
        let source = self.network.host(flow.source).endpoint(NIC);
        let destination = self.network.host(flow.destination).endpoint(NIC);
        let Some(mut control) = source.controller(sender.qpn).cloned() else {
            return FlowSample::default();
        };
        if place.start > now {
            return FlowSample::default();
        }
        control.handle_timeout(place.ended.unwrap_or(now).timestamp());
        let counters = control.counters();
        let line = source.config().line_rate;
        FlowSample {
            active: place.ended.is_none(),
            rate: control.rate().or(line).map_or(0, |rate| rate.as_bps()),
            alpha: control.alpha(),
            received: destination
                .qp_info(receiver.qpn)
                .map_or(0, |info| info.stats.rx_bytes),
            cnps: counters.cnps,
            cuts: counters.cuts,
        }
    }

    fn sent(&self) -> (u64, u64) {
        let endpoints = self.network.hosts().iter().map(|host| host.endpoint(NIC));
        let infos = endpoints.flat_map(|endpoint| {
            endpoint
                .qpns()
                .filter_map(|qpn| endpoint.qp_info(qpn).map(|info| info.stats))
        });
        infos.fold((0, 0), |(sent, again), stats| {
            (sent + stats.tx_packets, again + stats.retransmitted_packets)
        })
    }

    fn ended(&self) -> Vec<(u32, Picos)> {
        (0..)
            .zip(&self.places)
            .filter_map(|(n, place)| Some((n, place.ended?)))
            .collect()
    }
}
