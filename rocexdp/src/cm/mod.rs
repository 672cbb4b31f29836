//! Connection management over a node's QP 1: [`rocexdp_proto::cm::Manager`] driven by the clock, the node's GSI and its address handles.
//!
//! One [`Service`] per node, since there is one QP 1. Its task takes MADs and does what is due; commands act at once, under the same
//! lock, and what they send is posted before they return. News go to whoever holds the connection ([`Conn`]) or listens ([`Listening`]).
//!
//! The way back to who sent a MAD is resolved as any way is. That many at once, and no more: who sends from many addresses that do not
//! answer delays strangers, not peers whose way is known.
//!
//! Must not: know what a QP is beyond its number.

mod ways;

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use anyhow::{Context as _, Result, anyhow};
use rand::RngExt as _;
use rocexdp_proto::{
    cm::{
        Accept, CmConfig, CmCounters, CmError, ConnId, Connect, Event, Listen, Manager, RejReason,
        Request, Resolve, Route, SidrAnswer, SidrId,
    },
    time::Timestamp,
};
use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc},
    task::JoinHandle,
};

use crate::{
    loader::{address_of, gid_of},
    node::{Gsi, GsiEvent, Node},
};
use ways::Ways;

/// Addresses of a connection.
#[must_use]
pub fn route(local: IpAddr, peer: IpAddr) -> Route {
    Route {
        local: gid_of(local),
        peer: gid_of(peer),
    }
}

/// The other end's address.
#[must_use]
pub fn peer(route: Route) -> IpAddr {
    address_of(route.peer)
}

/// Our end's address.
#[must_use]
pub fn local(route: Route) -> IpAddr {
    address_of(route.local)
}

/// GUID of an Ethernet device (EUI-64, `addrconf_ifid_eui48` of include/net/addrconf.h).
fn guid(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// The news of one connection or request.
type News = mpsc::UnboundedSender<Event>;

struct State {
    manager: Manager,
    /// Who holds a connection, or asks for a datagram service.
    held: HashMap<ConnId, News>,
    /// Who listens. Bounded by what the manager takes half open ([`CmConfig`]'s `max_half_open` and `max_sidr`).
    listening: HashMap<u64, News>,
    /// Why nothing comes and goes any more.
    dead: Option<String>,
}

/// What the task has too.
struct Core {
    state: Mutex<State>,
    gsi: Arc<Gsi>,
    ways: Arc<Ways>,
    start: Instant,
    /// Deadlines changed.
    due: Notify,
    runtime: Handle,
}

/// The communication manager of a node.
pub struct Service {
    core: Arc<Core>,
    task: JoinHandle<()>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // The task ends only when its runtime comes to it.
        self.core.gsi.close();
        self.task.abort();
    }
}

impl Service {
    /// Opens the node's QP 1. Its task runs in the runtime that this is called in, until the service is dropped.
    ///
    /// # Errors
    /// As [`Node::open_gsi`].
    pub fn open(node: &Arc<Node>, config: impl FnOnce(&mut CmConfig)) -> Result<Arc<Self>> {
        let mut settings = CmConfig::new(guid(node.mac()));
        config(&mut settings);
        let runtime = Handle::try_current().context(
            "connection management is opened in a tokio runtime, which its task runs in",
        )?;
        let gsi = Arc::new(node.open_gsi()?);
        let core = Arc::new(Core {
            state: Mutex::new(State {
                manager: Manager::new(settings, rand::rng().random()),
                held: HashMap::new(),
                listening: HashMap::new(),
                dead: None,
            }),
            ways: Ways::new(node, &gsi),
            gsi,
            start: Instant::now(),
            due: Notify::new(),
            runtime: runtime.clone(),
        });
        let task = runtime.spawn(serve(Arc::clone(&core)));
        Ok(Arc::new(Self { core, task }))
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> CmCounters {
        self.core.lock().manager.counters().clone()
    }

    fn act<T>(&self, act: impl FnOnce(&mut State, Timestamp) -> T) -> T {
        self.core.act(act)
    }

    /// Lets peers ask for a service.
    ///
    /// # Errors
    /// Someone listens there.
    pub fn listen(self: &Arc<Self>, what: Listen) -> Result<Listening, CmError> {
        let (tell, news) = mpsc::unbounded_channel();
        self.act(|state, _| {
            state.manager.listen(what)?;
            state.listening.insert(what.service_id, tell);
            Ok(Listening {
                service: Arc::clone(self),
                service_id: what.service_id,
                news,
            })
        })
    }

    fn hold(self: &Arc<Self>, state: &mut State, id: ConnId) -> Conn {
        let (tell, news) = mpsc::unbounded_channel();
        state.held.insert(id, tell);
        Conn {
            service: Arc::clone(self),
            id,
            news,
        }
    }

    /// Asks for a connection.
    ///
    /// # Errors
    /// As [`Manager::connect`].
    pub fn connect(self: &Arc<Self>, ask: &Connect) -> Result<Conn, CmError> {
        self.act(|state, now| {
            let id = state.manager.connect(now, ask)?;
            Ok(self.hold(state, id))
        })
    }

    /// Asks for a datagram service.
    ///
    /// # Errors
    /// As [`Manager::resolve`].
    pub fn resolve(self: &Arc<Self>, ask: &Resolve) -> Result<Conn, CmError> {
        self.act(|state, now| {
            let id = state.manager.resolve(now, ask)?;
            Ok(self.hold(state, id))
        })
    }

    /// Answers a request for a datagram service.
    ///
    /// # Errors
    /// As [`Manager::answer`].
    pub fn answer(&self, id: SidrId, how: SidrAnswer, private: &[u8]) -> Result<(), CmError> {
        self.act(|state, _| state.manager.answer(id, how, private))
    }

    /// Why no more news come.
    fn ended(&self) -> anyhow::Error {
        match &self.core.lock().dead {
            Some(why) => anyhow!("connection management has ended: {why}"),
            None => anyhow!("connection management has ended"),
        }
    }

    /// The way to a peer's QP 1, resolved before anything is sent: errors are the caller's then.
    ///
    /// # Errors
    /// No such address here, no route, or no answer from the next hop.
    pub async fn reach(&self, route: Route) -> Result<()> {
        self.core.ways.resolve(route).await.map(drop)
    }
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Acts on the manager, then sends what it has to say and passes on its news.
    fn act<T>(&self, act: impl FnOnce(&mut State, Timestamp) -> T) -> T {
        let now = self.now();
        let mut state = self.lock();
        let before = state.manager.poll_timeout();
        let done = act(&mut state, now);
        while let Some(out) = state.manager.poll_transmit() {
            self.ways.send(&self.runtime, out);
        }
        while let Some(event) = state.manager.poll_event() {
            state.tell(event);
        }
        if state.manager.poll_timeout() != before {
            self.due.notify_one();
        }
        done
    }
}

impl State {
    /// No MAD comes or goes any more: who waits is told. What is begun from now on ends as if the peer did not answer.
    fn die(&mut self, why: String) {
        self.dead = Some(why);
        self.held.clear();
        self.listening.clear();
    }

    fn tell(&mut self, event: Event) {
        let id = match &event {
            Event::Request(_, request) => {
                if let Some(listener) = self.listening.get(&request.service_id) {
                    // One that is gone has unlistened; the request times out.
                    let _ = listener.send(event);
                }
                return;
            }
            Event::Wanted { service_id, .. } => {
                if let Some(listener) = self.listening.get(service_id) {
                    let _ = listener.send(event);
                }
                return;
            }
            Event::Reply(id, _)
            | Event::Established(id)
            | Event::Refused { id, .. }
            | Event::Unreachable { id, .. }
            | Event::Disconnected { id, .. }
            | Event::Resolved { id, .. }
            | Event::NotResolved { id, .. } => *id,
        };
        if let Some(holder) = self.held.get(&id) {
            // Who holds it may have lost interest.
            let _ = holder.send(event);
        }
    }
}

/// Takes MADs and does what is due.
async fn serve(core: Arc<Core>) {
    let mut alive = true;
    loop {
        let at = core.lock().manager.poll_timeout();
        let wait = at.map(|at| at.saturating_since(core.now()));
        let due = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = core.gsi.next(), if alive => match event {
                Ok(GsiEvent::Received(mad)) => {
                    let route = route(mad.to, mad.from);
                    // Counted, if not taken.
                    let _ = core.act(|state, now| state.manager.handle_mad(now, route, mad.src_qpn, &mad.mad));
                }
                Ok(GsiEvent::Sent { .. }) => {}
                Err(error) => {
                    alive = false;
                    core.lock().die(format!("{error:#}"));
                }
            },
            () = due => core.act(|state, now| state.manager.handle_timeout(now)),
            () = core.due.notified() => {}
        }
    }
}

/// Someone listens. Dropping it ends that; requests that were not taken are refused.
#[derive(Debug)]
pub struct Listening {
    service: Arc<Service>,
    service_id: u64,
    news: mpsc::UnboundedReceiver<Event>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.service.act(|state, now| {
            state.manager.unlisten(self.service_id);
            state.listening.remove(&self.service_id);
            self.news.close();
            while let Ok(Event::Request(id, _)) = self.news.try_recv() {
                let _ = state
                    .manager
                    .reject(now, id, RejReason::CONSUMER_DEFINED, &[]);
            }
        });
    }
}

impl Listening {
    /// The next request for a connection.
    ///
    /// # Errors
    /// The service has ended.
    pub async fn request(&mut self) -> Result<(Conn, Request)> {
        loop {
            match self.news.recv().await {
                Some(Event::Request(id, request)) => {
                    let service = Arc::clone(&self.service);
                    let conn = service.act(|state, _| service.hold(state, id));
                    return Ok((conn, *request));
                }
                Some(_) => {}
                None => return Err(self.service.ended()),
            }
        }
    }

    /// The next request for a datagram service: which, and what its application gave along.
    ///
    /// # Errors
    /// The service has ended.
    pub async fn wanted(&mut self) -> Result<(SidrId, Vec<u8>)> {
        loop {
            match self.news.recv().await {
                Some(Event::Wanted {
                    id, private_data, ..
                }) => return Ok((id, private_data)),
                Some(_) => {}
                None => return Err(self.service.ended()),
            }
        }
    }

    /// The service.
    #[must_use]
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }
}

/// A connection, or an attempt at one. Dropping it ends it: the peer is told by DREQ or REJ, whichever fits.
#[derive(Debug)]
pub struct Conn {
    service: Arc<Service>,
    id: ConnId,
    news: mpsc::UnboundedReceiver<Event>,
}

impl Drop for Conn {
    fn drop(&mut self) {
        let id = self.id;
        self.service.act(|state, now| {
            state.held.remove(&id);
            state.manager.cancel_resolve(id);
            // One of them, unless it has ended by itself.
            if state.manager.disconnect(now, id).is_err() {
                let _ = state
                    .manager
                    .reject(now, id, RejReason::CONSUMER_DEFINED, &[]);
            }
        });
    }
}

impl Conn {
    /// The next news of it.
    ///
    /// # Errors
    /// The service has ended.
    pub async fn next(&mut self) -> Result<Event> {
        let event = self.news.recv().await;
        event.ok_or_else(|| self.service.ended())
    }

    /// Accepts it; [`Event::Established`] follows.
    ///
    /// # Errors
    /// As [`Manager::accept`].
    pub fn accept(&self, how: &Accept) -> Result<(), CmError> {
        self.service
            .act(|state, now| state.manager.accept(now, self.id, how))
    }

    /// A packet of the peer has come to our QP: it is ready, whether its RTU came or not.
    pub fn heard(&self) {
        self.service.act(|state, _| state.manager.heard(self.id));
    }

    /// Our QP is ready.
    ///
    /// # Errors
    /// As [`Manager::ready`].
    pub fn ready(&self) -> Result<(), CmError> {
        self.service
            .act(|state, _| state.manager.ready(self.id, &[]))
    }

    /// Says no.
    ///
    /// # Errors
    /// As [`Manager::reject`].
    pub fn reject(&self, reason: RejReason, private: &[u8]) -> Result<(), CmError> {
        self.service
            .act(|state, now| state.manager.reject(now, self.id, reason, private))
    }

    /// Ends it; [`Event::Disconnected`] follows.
    ///
    /// # Errors
    /// As [`Manager::disconnect`].
    pub fn disconnect(&self) -> Result<(), CmError> {
        self.service
            .act(|state, now| state.manager.disconnect(now, self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guid_is_that_of_soft_roce() {
        // MAC and GUID of captures cm-*.
        assert_eq!(guid([0x52, 0x54, 0, 0x77, 0, 2]), 0x5054_00ff_fe77_0002);
    }

    #[test]
    fn addresses_survive_the_way() {
        let (ours, theirs) = ("10.77.0.1".parse().unwrap(), "10.77.0.2".parse().unwrap());
        let way = route(ours, theirs);
        assert_eq!((local(way), peer(way)), (ours, theirs));
    }
}
