//! Next hops of QPs and address handles, and the host's multicast groups: the thread that resolves them, and how it is asked.
//!
//! What the kernel knows is answered at once; what it has to ask the network for, by a thread per question, so that a host that is not there
//! holds up no other. Must not: watch for changes (`net` does).

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError, mpsc},
    time::Instant,
};

use anyhow::{Result, anyhow, bail};
use rocexdp_proto::ids::Qpn;
use tokio::sync::{broadcast, oneshot};

use super::{NodeEvent, Shared, groups::Groups, handle::Ways};
use crate::{
    engine::EngineHandle,
    net::{
        Link, Mac,
        neigh::{Neighbour, REFRESH_INTERVAL, RESOLVE_TIMEOUT, Route},
    },
};

/// Next hops that the network is asked for at once; more wait.
const ASKED: usize = 64;

/// The way to a peer, resolved.
#[derive(Clone, Copy, Debug)]
pub struct Resolved {
    /// The next hop's Ethernet address.
    pub mac: Mac,
    /// Largest IP packet on the way, B.
    pub mtu: u32,
}

/// What the resolving thread is asked.
pub enum Request {
    Resolve(Question),
    /// What came of asking the network for the next hop of a question.
    Asked {
        number: u64,
        route: Route,
        mac: Result<Mac>,
    },
    /// The user takes a peer's address now: give it the one that is known by now.
    Confirm(User),
    /// Routes changed. With a way back to this thread.
    Recheck(mpsc::Sender<Request>),
    Forget(User),
    /// A QP is attached to a group: the host must be in it.
    Join {
        group: IpAddr,
        user: Qpn,
        answer: oneshot::Sender<Result<()>>,
    },
    /// A QP no longer is.
    Leave(IpAddr, Qpn),
}

/// A question for a next hop.
pub struct Question {
    local: IpAddr,
    peer: IpAddr,
    user: User,
    then: Then,
    /// To the resolving thread.
    back: mpsc::Sender<Request>,
}

/// What becomes of the next hop.
enum Then {
    /// Who asks is told.
    Answer(oneshot::Sender<Result<Resolved>>),
    /// The user, whose route has changed, is given it.
    Move,
}

impl Then {
    fn is_moot(&self) -> bool {
        matches!(self, Self::Answer(answer) if answer.is_closed())
    }
}

/// Asks the resolving thread.
#[derive(Clone, Debug)]
pub struct Resolver(pub(super) mpsc::Sender<Request>);

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
            .send(Request::Resolve(Question {
                local,
                peer,
                user,
                then: Then::Answer(answer),
                back: self.0.clone(),
            }))
            .map_err(|_| closed())?;
        got.await.map_err(|_| closed())?
    }

    /// The user has been told of its peer; a change of the next hop's address between then and [`Self::resolve`] is made up for.
    pub fn confirm(&self, user: User) {
        // The node has gone as well, otherwise.
        let _ = self.0.send(Request::Confirm(user));
    }

    /// Makes the host a member of a multicast group on the interface, for this QP, and XDP take the group's packets.
    ///
    /// # Errors
    /// The kernel refuses the membership, or there are too many groups.
    pub async fn join(&self, group: IpAddr, user: Qpn) -> Result<()> {
        let (answer, got) = oneshot::channel();
        let closed = || anyhow!("the node was closed");
        self.0
            .send(Request::Join {
                group,
                user,
                answer,
            })
            .map_err(|_| closed())?;
        got.await.map_err(|_| closed())?
    }

    /// Ends [`Self::join`], whatever came of it.
    pub fn leave(&self, group: IpAddr, user: Qpn) {
        // The node has gone as well, otherwise.
        let _ = self.0.send(Request::Leave(group, user));
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
pub struct Tell {
    pub(super) engine: EngineHandle,
    pub(super) ways: Arc<Ways>,
}

impl Tell {
    pub fn moved(&self, user: User, mac: Mac) {
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
pub struct Hop {
    local: IpAddr,
    peer: IpAddr,
    pub next_hop: IpAddr,
    pub mac: Mac,
}

/// Next hops in use.
pub type NextHops = Arc<Mutex<HashMap<User, Hop>>>;

pub fn locked(hops: &NextHops) -> std::sync::MutexGuard<'_, HashMap<User, Hop>> {
    hops.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next hops, each once.
pub fn distinct(hops: &NextHops) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = locked(hops).values().map(|hop| hop.next_hop).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The resolving thread.
pub struct Resolving {
    pub(super) link: Link,
    pub(super) hops: NextHops,
    pub(super) tell_users: Tell,
    pub(super) groups: Groups,
    pub(super) shared: Arc<Shared>,
    pub(super) events: broadcast::Sender<NodeEvent>,
    pub(super) line: Line,
}

/// Questions that the network has not answered yet.
#[derive(Default)]
pub struct Line {
    next: u64,
    /// Asked, each by a thread of its own: what does not answer takes seconds, and holds up nobody.
    asked: HashMap<u64, Question>,
    waiting: VecDeque<Question>,
}

impl Resolving {
    /// Answers requests until nobody can have any.
    pub fn run(mut self, inbox: &mpsc::Receiver<Request>) {
        let mut refresh_at = Instant::now() + REFRESH_INTERVAL;
        loop {
            match inbox.recv_timeout(refresh_at.saturating_duration_since(Instant::now())) {
                Ok(Request::Resolve(question)) => self.resolve(question),
                Ok(Request::Asked { number, route, mac }) => {
                    if let Some(question) = self.line.asked.remove(&number) {
                        self.answer(question, &route, mac);
                    }
                    while self.line.asked.len() < ASKED
                        && let Some(question) = self.line.waiting.pop_front()
                    {
                        self.resolve(question);
                    }
                }
                Ok(Request::Confirm(user)) => {
                    let known = locked(&self.hops).get(&user).map(|hop| hop.mac);
                    if let Some(mac) = known {
                        self.tell_users.moved(user, mac);
                    }
                }
                Ok(Request::Join {
                    group,
                    user,
                    answer,
                }) => {
                    // Who asked may have given up: then it leaves.
                    let _ = answer.send(self.groups.join(group, user));
                }
                Ok(Request::Leave(group, user)) => self.groups.leave(group, user),
                Ok(Request::Recheck(back)) => self.recheck(&back),
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

    fn resolve(&mut self, question: Question) {
        if question.then.is_moot() {
            return;
        }
        let Question { local, peer, .. } = question;
        // The engine gives what is sent to an address of ours to the QP itself; a group's address says to which Ethernet address.
        let nearby = if self.shared.addresses.contains(&peer) {
            Some(Mac(self.shared.mac))
        } else {
            peer.is_multicast().then_some(Mac([0; 6]))
        };
        if let Some(mac) = nearby {
            // As it is now: that of the start may be another.
            let mtu = Link::by_index(self.link.index).map_or(self.link.mtu, |link| link.mtu);
            return self.settle(question, Ok(Resolved { mac, mtu }));
        }
        match self.route(local, peer) {
            Err(error) => self.settle(question, Err(error)),
            Ok(route) => match route.known() {
                Ok(None) => self.ask(question, route),
                Ok(Some(mac)) => self.answer(question, &route, Ok(mac)),
                Err(error) => self.answer(question, &route, Err(error.into())),
            },
        }
    }

    /// Has the network asked, by a thread in the same namespace.
    fn ask(&mut self, question: Question, route: Route) {
        if self.line.asked.len() >= ASKED {
            self.line.waiting.push_back(question);
            return;
        }
        let number = self.line.next;
        self.line.next += 1;
        let back = question.back.clone();
        let spawned = std::thread::Builder::new()
            .name("rocexdp-ask".to_owned())
            .spawn(move || {
                let mac = route.resolve(RESOLVE_TIMEOUT).map_err(Into::into);
                // The resolving thread waits for it.
                let _ = back.send(Request::Asked { number, route, mac });
            });
        match spawned {
            Ok(_) => {
                self.line.asked.insert(number, question);
            }
            Err(error) => {
                let error = anyhow!(error).context("starting a thread that asks for a next hop");
                self.settle(question, Err(error));
            }
        }
    }

    fn answer(&self, question: Question, route: &Route, mac: Result<Mac>) {
        let Question {
            local, peer, user, ..
        } = question;
        if question.then.is_moot() {
            return;
        }
        let way = mac.map(|mac| Resolved {
            mac,
            mtu: route.mtu,
        });
        if let Ok(way) = &way {
            let hop = Hop {
                local,
                peer,
                next_hop: route.next_hop,
                mac: way.mac,
            };
            let mut hops = locked(&self.hops);
            // A user that is to be moved may have gone.
            if !matches!(question.then, Then::Move) || hops.contains_key(&user) {
                hops.insert(user, hop);
            }
        }
        self.settle(question, way);
    }

    fn settle(&self, question: Question, way: Result<Resolved>) {
        let Question { peer, user, .. } = question;
        match question.then {
            Then::Answer(answer) => {
                if answer.send(way).is_err() {
                    // Who asked has given up.
                    locked(&self.hops).remove(&user);
                }
            }
            Then::Move => self.tell(match way {
                Ok(way) => {
                    self.tell_users.moved(user, way.mac);
                    format!(
                        "{user}: the way to {peer} leads through another next hop now, at {}",
                        way.mac
                    )
                }
                Err(error) => changed(user, peer, &error),
            }),
        }
    }

    fn tell(&self, text: String) {
        // Nobody may be listening.
        let _ = self.events.send(NodeEvent::Network(text));
    }

    /// Routes changed: QPs whose next hop is another now are told of it.
    fn recheck(&mut self, back: &mpsc::Sender<Request>) {
        let hops: Vec<(User, Hop)> = locked(&self.hops)
            .iter()
            .map(|(user, hop)| (*user, *hop))
            .collect();
        for (
            user,
            Hop {
                local,
                peer,
                next_hop,
                ..
            },
        ) in hops
        {
            match self.route(local, peer) {
                Ok(route) if route.next_hop == next_hop => {}
                Ok(_) => self.resolve(Question {
                    local,
                    peer,
                    user,
                    then: Then::Move,
                    back: back.clone(),
                }),
                Err(error) => self.tell(changed(user, peer, &error)),
            }
        }
    }
}

fn changed(user: User, peer: IpAddr, error: &anyhow::Error) -> String {
    format!("{user}: the route to {peer} changed: {error:#}")
}
