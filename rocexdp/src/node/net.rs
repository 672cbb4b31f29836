//! A node's view of the network: next hops of its QPs, and changes of link, address and MTU.
//!
//! Two threads, both in the network namespace in which the node was opened: one resolves and keeps
//! neighbours alive (AF_XDP traffic never confirms one), one listens for changes.

use std::{
    collections::HashMap,
    fmt,
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
use netlink_packet_route::neighbour::NeighbourState;
use rocexdp_proto::ids::Qpn;
use tokio::sync::{broadcast, oneshot};

use super::{NodeEvent, Shared, groups::Groups, handle::Ways, refusals::Sink};
use crate::{
    engine::EngineHandle,
    loader::{Dataplane, gid_of, largest_path_mtu},
    maps::ControlMaps,
    net::{
        IfIndex, Link, Mac,
        link::Address,
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
        user: User,
        answer: oneshot::Sender<Result<Resolved>>,
    },
    /// The user takes a peer's address now: give it the one that is known by now.
    Confirm(User),
    /// Routes changed.
    Recheck,
    Forget(User),
    /// A QP is attached to a group: the host must be in it.
    Join {
        group: IpAddr,
        answer: oneshot::Sender<Result<()>>,
    },
    /// A QP no longer is.
    Leave(IpAddr),
}

/// Asks the resolving thread.
#[derive(Clone, Debug)]
pub struct Resolver(mpsc::Sender<Request>);

impl Resolver {
    /// The way from `local` to `peer`, kept alive for `user` until [`Self::forget`].
    ///
    /// # Errors
    /// No route, a route through another interface, or no answer from the next hop: each names
    /// address and interface.
    pub async fn resolve(&self, local: IpAddr, peer: IpAddr, user: User) -> Result<Resolved> {
        let (answer, got) = oneshot::channel();
        let closed = || anyhow!("the node was closed");
        self.0
            .send(Request::Resolve {
                local,
                peer,
                user,
                answer,
            })
            .map_err(|_| closed())?;
        got.await.map_err(|_| closed())?
    }

    /// The user has been told of its peer; a change of the next hop's address between then and [`Self::resolve`] is made up for.
    pub fn confirm(&self, user: User) {
        // The node has gone as well, otherwise.
        let _ = self.0.send(Request::Confirm(user));
    }

    /// Makes the host a member of a multicast group on the interface, and XDP take the group's packets; counted, for each
    /// [`Self::leave`].
    ///
    /// # Errors
    /// The kernel refuses the membership, or there are too many groups.
    pub async fn join(&self, group: IpAddr) -> Result<()> {
        let (answer, got) = oneshot::channel();
        let closed = || anyhow!("the node was closed");
        self.0
            .send(Request::Join { group, answer })
            .map_err(|_| closed())?;
        got.await.map_err(|_| closed())?
    }

    /// Ends one [`Self::join`].
    pub fn leave(&self, group: IpAddr) {
        // The node has gone as well, otherwise.
        let _ = self.0.send(Request::Leave(group));
    }

    /// The user has gone.
    pub fn forget(&self, user: User) {
        // The node has gone as well, otherwise.
        let _ = self.0.send(Request::Forget(user));
    }
}

/// Who uses a next hop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum User {
    /// A connected QP.
    Qp(Qpn),
    /// An address handle, by its number.
    Handle(u64),
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Qp(qpn) => write!(f, "QP {qpn}"),
            Self::Handle(_) => f.write_str("an address handle"),
        }
    }
}

/// Tells users of next hops of changes.
#[derive(Clone, Debug)]
struct Tell {
    engine: EngineHandle,
    ways: Arc<Ways>,
}

impl Tell {
    fn moved(&self, user: User, mac: Mac) {
        match user {
            // An engine that has ended sends nothing.
            User::Qp(qpn) => {
                let _ = self
                    .engine
                    .call_qp(qpn, move |core, _| core.endpoint.set_dest_mac(qpn, mac.0));
            }
            User::Handle(id) => self.ways.moved(id, mac),
        }
    }
}

/// How a QP's packets leave.
#[derive(Clone, Copy, Debug)]
struct Hop {
    local: IpAddr,
    peer: IpAddr,
    next_hop: IpAddr,
    mac: Mac,
}

/// Next hops in use.
type NextHops = Arc<Mutex<HashMap<User, Hop>>>;

fn locked(hops: &NextHops) -> std::sync::MutexGuard<'_, HashMap<User, Hop>> {
    hops.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next hops, each once.
fn distinct(hops: &NextHops) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = locked(hops).values().map(|hop| hop.next_hop).collect();
    all.sort_unstable();
    all.dedup();
    all
}

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
        shared: Arc<Shared>,
        log: Option<EbpfLogger<Sink>>,
    ) -> Result<Self> {
        let tell_users = Tell {
            engine: shared.engine.clone(),
            ways: Arc::clone(&shared.ways),
        };
        let hops = NextHops::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (requests, inbox) = mpsc::channel();
        // The interface that holds the addresses: the VLAN device, where there is one.
        let link = Link::by_name(&dataplane.report.iface)?;
        let resolving = Resolving {
            link: link.clone(),
            hops: Arc::clone(&hops),
            tell_users: tell_users.clone(),
            groups: Groups::new(&link, Arc::clone(&shared), Arc::clone(&dataplane.control)),
            shared,
            events: events.clone(),
        };
        let watching = Watching {
            watch: Watch::open()?,
            link,
            device: dataplane.device.index,
            promised: dataplane.report.path_mtu,
            addresses: dataplane.report.addresses.clone(),
            control: Arc::clone(&dataplane.control),
            others: Vec::new(),
            hops,
            tell_users,
            events: events.clone(),
            resolver: requests.clone(),
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
    tell_users: Tell,
    groups: Groups,
    shared: Arc<Shared>,
    events: broadcast::Sender<NodeEvent>,
}

impl Resolving {
    fn run(mut self, inbox: &mpsc::Receiver<Request>) {
        let mut refresh_at = Instant::now() + REFRESH_INTERVAL;
        loop {
            match inbox.recv_timeout(refresh_at.saturating_duration_since(Instant::now())) {
                Ok(Request::Resolve {
                    local,
                    peer,
                    user,
                    answer,
                }) => {
                    // Who asked may have given up.
                    let _ = answer.send(self.resolve(local, peer, user));
                }
                Ok(Request::Confirm(user)) => {
                    let known = locked(&self.hops).get(&user).map(|hop| hop.mac);
                    if let Some(mac) = known {
                        self.tell_users.moved(user, mac);
                    }
                }
                Ok(Request::Join { group, answer }) => {
                    let _ = answer.send(self.groups.join(group));
                }
                Ok(Request::Leave(group)) => self.groups.leave(group),
                Ok(Request::Recheck) => self.recheck(),
                Ok(Request::Forget(user)) => {
                    locked(&self.hops).remove(&user);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    for next_hop in distinct(&self.hops) {
                        // If it fails the entry goes stale, which the watching thread sees.
                        let _ = Neighbour::refresh(self.link.index, next_hop);
                    }
                    refresh_at = Instant::now() + REFRESH_INTERVAL;
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn route(&self, local: IpAddr, peer: IpAddr) -> Result<Route> {
        let route = Route::lookup(peer, Some(local), Some(self.link.index))?;
        if route.local {
            bail!(
                "{peer} is an address of this host, but not one that rocexdp on {} answers for",
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
        Ok(route)
    }

    fn resolve(&self, local: IpAddr, peer: IpAddr, user: User) -> Result<Resolved> {
        if self.shared.addresses.contains(&peer) {
            // The engine gives it to the QP itself.
            return Ok(Resolved {
                mac: Mac(self.shared.mac),
                mtu: self.link.mtu,
            });
        }
        if peer.is_multicast() {
            // The address says to which Ethernet address.
            return Ok(Resolved {
                mac: Mac([0; 6]),
                mtu: self.link.mtu,
            });
        }
        let route = self.route(local, peer)?;
        let mac = route.resolve(RESOLVE_TIMEOUT)?;
        let next_hop = route.next_hop;
        locked(&self.hops).insert(
            user,
            Hop {
                local,
                peer,
                next_hop,
                mac,
            },
        );
        Ok(Resolved {
            mac,
            mtu: route.mtu,
        })
    }

    /// Routes changed: QPs whose next hop is another now are told of it.
    fn recheck(&self) {
        let hops: Vec<(User, Hop)> = locked(&self.hops)
            .iter()
            .map(|(user, hop)| (*user, *hop))
            .collect();
        for (user, hop) in hops {
            let text = match self.route(hop.local, hop.peer) {
                Ok(route) if route.next_hop == hop.next_hop => continue,
                Ok(_) => match self.resolve(hop.local, hop.peer, user) {
                    Ok(way) => {
                        self.tell_users.moved(user, way.mac);
                        format!(
                            "{user}: the way to {} leads through another next hop now, at {}",
                            hop.peer, way.mac
                        )
                    }
                    Err(e) => format!("{user}: the route to {} changed: {e:#}", hop.peer),
                },
                Err(e) => format!("{user}: the route to {} changed: {e:#}", hop.peer),
            };
            // Nobody may be listening.
            let _ = self.events.send(NodeEvent::Network(text));
        }
    }
}

struct Watching {
    watch: Watch,
    link: Link,
    device: IfIndex,
    promised: u32,
    /// Addresses that the node answers for.
    addresses: Vec<IpAddr>,
    /// Addresses that came later, which were said.
    others: Vec<IpAddr>,
    control: Arc<Mutex<ControlMaps>>,
    hops: NextHops,
    tell_users: Tell,
    events: broadcast::Sender<NodeEvent>,
    resolver: mpsc::Sender<Request>,
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
            Event::AddressGone(index, ip) if index == self.link.index => {
                self.others.retain(|a| *a != ip)
            }
            Event::Address(index, Address { ip, .. })
                if index == self.link.index
                    && !self.addresses.contains(&ip)
                    && !self.others.contains(&ip) =>
            {
                self.others.push(ip);
                self.tell(NodeEvent::AddressNew(ip));
            }
            Event::Route => {
                // The resolving thread ends after this one.
                let _ = self.resolver.send(Request::Recheck);
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
        if link.mac != self.link.mac {
            self.tell(NodeEvent::Network(format!(
                "{}: its Ethernet address changed: restart rocexdp, which still sends from the old one",
                link.name
            )));
        }
        self.link = link;
    }

    fn neighbour_changed(&self, entry: &Neighbour) {
        let mut moved = Vec::new();
        let mut users = 0;
        for (user, hop) in locked(&self.hops)
            .iter_mut()
            .filter(|(_, hop)| hop.next_hop == entry.ip)
        {
            users += 1;
            if let Some(mac) = entry.usable()
                && hop.mac != mac
            {
                hop.mac = mac;
                moved.push((*user, mac));
            }
        }
        if users > 0 && entry.state == NeighbourState::Failed {
            self.tell(NodeEvent::Unreachable(format!(
                "next hop {} does not answer on {}: {users} QPs and address handles can't reach their peers",
                entry.ip, self.link.name
            )));
        }
        if let Some((_, mac)) = moved.first() {
            self.tell(NodeEvent::NeighbourMoved {
                next_hop: entry.ip,
                mac: mac.to_string(),
            });
        }
        for (user, mac) in moved {
            self.tell_users.moved(user, mac);
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
        for next_hop in distinct(&self.hops) {
            if let Ok(Some(entry)) = Neighbour::get(self.link.index, next_hop) {
                self.neighbour_changed(&entry);
            }
        }
    }
}
