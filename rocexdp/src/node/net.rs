//! A node's view of the network: next hops of its QPs, and changes of link, address and MTU.
//!
//! Two threads, both in the network namespace in which the node was opened: one resolves and keeps
//! neighbours alive (AF_XDP traffic never confirms one; see `resolve`), one listens for changes.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context as _, Result};
use aya_log::EbpfLogger;
use netlink_packet_route::neighbour::NeighbourState;
use tokio::sync::broadcast;

use super::{
    NodeEvent, Shared,
    groups::Groups,
    refusals::Sink,
    resolve::{Line, NextHops, Request, Resolver, Resolving, Tell, distinct, locked},
};
use crate::{
    loader::{Dataplane, gid_of, largest_path_mtu},
    maps::ControlMaps,
    net::{
        IfIndex, Link,
        link::Address,
        neigh::Neighbour,
        watch::{Event, Watch},
    },
};

/// How often the listening thread looks whether it shall end.
const TICK: Duration = Duration::from_millis(100);

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
            line: Line::default(),
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
                let back = self.resolver.clone();
                let _ = self.resolver.send(Request::Recheck(back));
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
