//! A node's view of the network: next hops of its QPs, and changes of link, address and MTU.
//!
//! Two threads, both in the network namespace in which the node was opened: one resolves and keeps
//! neighbours alive (AF_XDP traffic never confirms one), one listens for changes.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use aya_log::EbpfLogger;
use rocexdp_proto::ids::Qpn;
use tokio::sync::{broadcast, oneshot};

use super::{NodeEvent, refusals::Sink};
use crate::{
    engine::EngineHandle,
    loader::{Dataplane, gid_of, largest_path_mtu},
    maps::ControlMaps,
    net::{
        IfIndex, Link, Mac,
        neigh::{Neighbour, REFRESH_INTERVAL, RESOLVE_TIMEOUT, Route},
        watch::{Event, Watch},
    },
};

/// How often the listening thread looks whether it shall end.
const TICK: Duration = Duration::from_millis(100);

/// The way to a peer, resolved.
#[derive(Clone, Copy, Debug)]
pub struct Resolved {
    /// The next hop's Ethernet address.
    pub mac: Mac,
    /// Largest IP packet on the way, B.
    pub mtu: u32,
}

enum Request {
    Resolve {
        local: IpAddr,
        peer: IpAddr,
        qpn: Qpn,
        answer: oneshot::Sender<Result<Resolved>>,
    },
    Forget(Qpn),
}

/// Asks the resolving thread.
#[derive(Clone, Debug)]
pub struct Resolver(mpsc::Sender<Request>);

impl Resolver {
    /// The way from `local` to `peer`, kept alive for `qpn` until [`Self::forget`].
    ///
    /// # Errors
    /// No route, a route through another interface, or no answer from the next hop: each names
    /// address and interface.
    pub async fn resolve(&self, local: IpAddr, peer: IpAddr, qpn: Qpn) -> Result<Resolved> {
        let (answer, got) = oneshot::channel();
        let closed = || anyhow!("the node was closed");
        self.0
            .send(Request::Resolve {
                local,
                peer,
                qpn,
                answer,
            })
            .map_err(|_| closed())?;
        got.await.map_err(|_| closed())?
    }

    /// The QP has gone.
    pub fn forget(&self, qpn: Qpn) {
        // The node has gone as well, otherwise.
        let _ = self.0.send(Request::Forget(qpn));
    }
}

/// Next hops in use, by QP.
type NextHops = Arc<Mutex<HashMap<Qpn, (IpAddr, Mac)>>>;

/// The two threads. Dropping it ends them.
#[derive(Debug)]
pub struct Network {
    resolver: Option<Resolver>,
    events: broadcast::Sender<NodeEvent>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Network {
    /// Starts watching, in the calling thread's network namespace.
    ///
    /// # Errors
    /// When netlink or a thread can't be had.
    pub fn start(
        dataplane: &Dataplane,
        events: broadcast::Sender<NodeEvent>,
        engine: EngineHandle,
        log: Option<EbpfLogger<Sink>>,
    ) -> Result<Self> {
        let hops = NextHops::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (requests, inbox) = mpsc::channel();
        // The interface that holds the addresses: the VLAN device, where there is one.
        let link = Link::by_name(&dataplane.report.iface)?;
        let resolving = Resolving {
            link: link.clone(),
            hops: Arc::clone(&hops),
        };
        let watching = Watching {
            watch: Watch::open()?,
            link,
            device: dataplane.device.index,
            promised: dataplane.report.path_mtu,
            addresses: dataplane.report.addresses.clone(),
            control: Arc::clone(&dataplane.control),
            hops,
            engine,
            events: events.clone(),
            log,
            stop: Arc::clone(&stop),
        };
        let spawn = |name: &str, f: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(f)
                .context("starting a thread")
        };
        let threads = vec![
            spawn("rocexdp-neigh", Box::new(move || resolving.run(&inbox)))?,
            spawn("rocexdp-watch", Box::new(move || watching.run()))?,
        ];
        Ok(Self {
            resolver: Some(Resolver(requests)),
            events,
            stop,
            threads,
        })
    }

    /// A way to the resolving thread.
    pub fn resolver(&self) -> Option<Resolver> {
        self.resolver.clone()
    }

    /// Changes from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<NodeEvent> {
        self.events.subscribe()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The resolving thread ends when the last resolver has gone, QPs' ones included; it is not
        // waited for, since a QP may outlive its node.
        self.resolver = None;
        self.stop.store(true, Ordering::Relaxed);
        if let Some(watching) = self.threads.pop() {
            let _ = watching.join();
        }
    }
}

struct Resolving {
    link: Link,
    hops: NextHops,
}

impl Resolving {
    fn run(self, inbox: &mpsc::Receiver<Request>) {
        let mut refresh_at = Instant::now() + REFRESH_INTERVAL;
        loop {
            match inbox.recv_timeout(refresh_at.saturating_duration_since(Instant::now())) {
                Ok(Request::Resolve {
                    local,
                    peer,
                    qpn,
                    answer,
                }) => {
                    let resolved = self.resolve(local, peer, qpn);
                    // Who asked may have given up.
                    let _ = answer.send(resolved);
                }
                Ok(Request::Forget(qpn)) => {
                    self.hops
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .remove(&qpn);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    self.refresh();
                    refresh_at = Instant::now() + REFRESH_INTERVAL;
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn resolve(&self, local: IpAddr, peer: IpAddr, qpn: Qpn) -> Result<Resolved> {
        let route = Route::lookup(peer, Some(local), Some(self.link.index))?;
        if route.local {
            bail!(
                "{peer} is an address of this host: rocexdp on {} reaches other hosts only",
                self.link.name
            );
        }
        if route.interface != self.link.index {
            bail!(
                "{peer} is reached through {}, not through {}",
                route.name,
                self.link.name
            );
        }
        let mac = route.resolve(RESOLVE_TIMEOUT)?;
        self.hops
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(qpn, (route.next_hop, mac));
        Ok(Resolved {
            mac,
            mtu: route.mtu,
        })
    }

    fn refresh(&self) {
        let mut next_hops: Vec<IpAddr> = self
            .hops
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .map(|(ip, _)| *ip)
            .collect();
        next_hops.sort_unstable();
        next_hops.dedup();
        for next_hop in next_hops {
            // If it fails the entry goes stale, which the watching thread sees.
            let _ = Neighbour::refresh(self.link.index, next_hop);
        }
    }
}

struct Watching {
    watch: Watch,
    link: Link,
    device: IfIndex,
    promised: u32,
    addresses: Vec<IpAddr>,
    control: Arc<Mutex<ControlMaps>>,
    hops: NextHops,
    engine: EngineHandle,
    events: broadcast::Sender<NodeEvent>,
    log: Option<EbpfLogger<Sink>>,
    stop: Arc<AtomicBool>,
}

impl Watching {
    fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            if let Some(log) = &mut self.log {
                log.flush();
            }
            match self.watch.next(TICK) {
                Ok(Some(event)) => self.handle(event),
                Ok(None) => {}
                Err(e) => {
                    self.tell(NodeEvent::Network(format!(
                        "{}: changes of link, address and neighbours are no longer noticed: {e}",
                        self.link.name
                    )));
                    return;
                }
            }
        }
    }

    fn tell(&self, event: NodeEvent) {
        // Nobody may be listening.
        let _ = self.events.send(event);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Link(link) if link.index == self.link.index => self.link_changed(*link),
            Event::LinkGone(index) if index == self.link.index || index == self.device => {
                self.tell(NodeEvent::LinkGone(self.link.name.clone()));
            }
            Event::AddressGone(index, ip)
                if index == self.link.index && self.addresses.contains(&ip) =>
            {
                self.address_gone(ip);
            }
            Event::Address(index, address)
                if index == self.link.index && !self.addresses.contains(&address.ip) =>
            {
                self.addresses.push(address.ip);
                self.tell(NodeEvent::AddressNew(address.ip));
            }
            Event::Neighbour(entry) if entry.interface == self.link.index => {
                self.neighbour_changed(&entry)
            }
            Event::Lost => self.reread(),
            _ => {}
        }
    }

    fn address_gone(&mut self, ip: IpAddr) {
        self.addresses.retain(|a| *a != ip);
        self.control
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove_address(gid_of(ip));
        self.tell(NodeEvent::AddressGone(ip));
    }

    fn link_changed(&mut self, link: Link) {
        if link.running != self.link.running {
            self.tell(NodeEvent::Link {
                iface: link.name.clone(),
                running: link.running,
            });
        }
        if link.mtu != self.link.mtu {
            self.tell(NodeEvent::Mtu {
                iface: link.name.clone(),
                mtu: link.mtu,
                path_mtu: largest_path_mtu(link.mtu).map(|p| p.bytes()),
                promised: self.promised,
            });
        }
        self.link = link;
    }

    fn neighbour_changed(&self, entry: &Neighbour) {
        let mut moved = Vec::new();
        {
            let mut hops = self.hops.lock().unwrap_or_else(PoisonError::into_inner);
            if !hops.values().any(|(ip, _)| *ip == entry.ip) {
                return;
            }
            let Some(mac) = entry.usable() else {
                if entry.state == netlink_packet_route::neighbour::NeighbourState::Failed {
                    self.tell(NodeEvent::Unreachable(format!(
                        "next hop {} does not answer on {}: {} QPs can't reach their peers",
                        entry.ip,
                        self.link.name,
                        hops.values().filter(|(ip, _)| *ip == entry.ip).count()
                    )));
                }
                return;
            };
            for (qpn, (ip, known)) in hops.iter_mut() {
                if *ip == entry.ip && *known != mac {
                    *known = mac;
                    moved.push((*qpn, mac));
                }
            }
        }
        if let Some((_, mac)) = moved.first() {
            self.tell(NodeEvent::NeighbourMoved {
                next_hop: entry.ip,
                mac: mac.to_string(),
            });
        }
        for (qpn, mac) in moved {
            // An engine that has ended sends nothing.
            let _ = self
                .engine
                .call_qp(qpn, move |core, _| core.endpoint.set_dest_mac(qpn, mac.0));
        }
    }

    /// Notifications were lost: look at what they may have said.
    fn reread(&mut self) {
        if let Ok(link) = Link::by_index(self.link.index) {
            if let Ok(now) = link.addresses() {
                let now: Vec<IpAddr> = now.iter().map(|a| a.ip).collect();
                for gone in self
                    .addresses
                    .clone()
                    .into_iter()
                    .filter(|a| !now.contains(a))
                {
                    self.address_gone(gone);
                }
            }
            self.link_changed(link);
        }
        let next_hops: Vec<IpAddr> = self
            .hops
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .map(|(ip, _)| *ip)
            .collect();
        for next_hop in next_hops {
            if let Ok(Some(entry)) = Neighbour::get(self.link.index, next_hop) {
                self.neighbour_changed(&entry);
            }
        }
    }
}
