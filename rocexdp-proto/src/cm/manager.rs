//! The communication manager: its connections, by every name they are found by, its timers, and what it has to say.
//!
//! Must not: know what a message means; that is in the modules named after who takes it.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rocexdp_common::{
    mad::{
        CLASS_CM, CM_CLASS_VERSION, CmMessage, DATA_LEN, GSI_QPN, IpCm, MAD_LEN, METHOD_SEND, Mad,
    },
    opcode::Transport,
};

use super::{
    MadBytes,
    conn::{Conn, ConnId, Route, State},
    error::{CmError, Ignored},
    event::Event,
    half_open::HalfOpen,
    reject::RejReason,
    sidr::{Sidr, SidrId},
};
use crate::{
    ids::{Gid, PathMtu, Qpn},
    rng::SecretRng,
    time::Timestamp,
};

/// What a communication manager is, and how patient. Times are codes t for 4.096 us * 2^t.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmConfig {
    /// GUID of the device.
    pub ca_guid: u64,
    /// How long we take to answer, and expect a peer to, unless it says that it takes time. 18 (1.07 s).
    pub response_time: u8,
    /// How often a message is sent again that is not answered; at most 15. 7.
    pub max_retries: u8,
    /// How long a packet may be on its way. 14 (67 ms).
    pub packet_life_time: u8,
    /// How late our QPs may acknowledge (target ACK delay). 15 (134 ms).
    pub ack_delay: u8,
    /// How long a peer is asked to wait that repeats a message which the application has not decided on (MRA). 22 (17 s).
    pub service_time: u8,
    /// How long the application may take to decide.
    pub decision: Duration,
    /// Most requests that are not connections yet, of all listeners together.
    pub max_half_open: u32,
    /// Most SIDR_REQs of peers that are remembered. Of more, the one answered first is forgotten; if none is answered, more are not taken.
    pub max_sidr: u32,
}

impl CmConfig {
    /// Of this device, with the values named above; 60 s to decide, 1024 requests of either kind.
    #[must_use]
    pub const fn new(ca_guid: u64) -> Self {
        Self {
            ca_guid,
            response_time: 18,
            max_retries: 7,
            packet_life_time: 14,
            ack_delay: 15,
            service_time: 22,
            decision: Duration::from_secs(60),
            max_half_open: 1024,
            max_sidr: 1024,
        }
    }
}

/// Who listens, and to what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listen {
    /// The service ID.
    pub service_id: u64,
    /// The service of its QPs: RC, UC or UD.
    pub transport: Transport,
    /// The largest path MTU of its connections.
    pub path_mtu: PathMtu,
    /// Most requests of it that are not connections yet (backlog).
    pub max_half_open: u32,
}

/// What was counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CmCounters {
    /// MADs received.
    pub received: u64,
    /// MADs sent, copies included.
    pub sent: u64,
    /// Copies, for want of an answer.
    pub resent: u64,
    /// Requests that were given up for others, for want of room.
    pub evicted: u64,
    ignored: [u64; Ignored::ALL.len()],
}

impl CmCounters {
    /// MADs that were not taken for this reason.
    #[must_use]
    pub fn ignored(&self, why: Ignored) -> u64 {
        self.ignored.get(why as usize).copied().unwrap_or(0)
    }
}

/// A MAD to send from QP 1 to QP 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// From and to.
    pub route: Route,
    /// Its bytes.
    pub mad: Box<MadBytes>,
}

/// Connections in timewait that are remembered; of more, the oldest are forgotten early.
const MOST_TIMEWAIT: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timer {
    Conn(u32),
    Resolving(u32),
    Wanted(SidrId),
}

/// A port's communication manager. See [`super`].
#[derive(Debug)]
pub struct Manager {
    pub(super) config: CmConfig,
    pub(super) rng: SecretRng,
    pub(super) conns: BTreeMap<u32, Conn>,
    /// Connections by the peer's name of them, and by its QP.
    pub(super) by_remote_id: BTreeMap<(Gid, u32), u32>,
    pub(super) by_remote_qpn: BTreeMap<(Gid, u32), u32>,
    pub(super) listeners: BTreeMap<u64, Listen>,
    pub(super) half_open: HalfOpen,
    pub(super) sidr: Sidr,
    timers: BTreeSet<(Timestamp, Timer)>,
    timewait: VecDeque<u32>,
    outgoing: VecDeque<Outgoing>,
    events: VecDeque<Event>,
    pub(super) counters: CmCounters,
}

impl Manager {
    /// A manager without connections. Communication IDs follow from the seed.
    #[must_use]
    pub fn new(config: CmConfig, seed: u64) -> Self {
        Self {
            config,
            rng: SecretRng::new(seed),
            conns: BTreeMap::new(),
            by_remote_id: BTreeMap::new(),
            by_remote_qpn: BTreeMap::new(),
            listeners: BTreeMap::new(),
            half_open: HalfOpen::default(),
            sidr: Sidr::default(),
            timers: BTreeSet::new(),
            timewait: VecDeque::new(),
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            counters: CmCounters::default(),
        }
    }

    /// Takes a MAD that came to QP 1 at `route.local`, from QP `src_qpn` at `route.peer`.
    ///
    /// # Errors
    /// Why it was not taken; it is counted.
    pub fn handle_mad(
        &mut self,
        now: Timestamp,
        route: Route,
        src_qpn: Qpn,
        mad: &MadBytes,
    ) -> Result<(), Ignored> {
        self.counters.received += 1;
        let taken = self.take(now, route, src_qpn, mad);
        if let Err(why) = taken
            && let Some(count) = self.counters.ignored.get_mut(why as usize)
        {
            *count += 1;
        }
        taken
    }

    fn take(
        &mut self,
        now: Timestamp,
        route: Route,
        src_qpn: Qpn,
        mad: &MadBytes,
    ) -> Result<(), Ignored> {
        if src_qpn != GSI_QPN {
            return Err(Ignored::NotFromGsi);
        }
        let (head, data) = mad.split_first_chunk().ok_or(Ignored::NotCm)?;
        let data: &[u8; DATA_LEN] = data.try_into().map_err(|_| Ignored::NotCm)?;
        let head = Mad::parse(head);
        let wanted = (1, CLASS_CM, CM_CLASS_VERSION, METHOD_SEND);
        if (
            head.base_version,
            head.class,
            head.class_version,
            head.method,
        ) != wanted
        {
            return Err(Ignored::NotCm);
        }
        let message = CmMessage::parse(head.attribute, data).ok_or(Ignored::NotCm)?;
        let tid = head.transaction_id;
        let private = private_data(&message, data);
        match message {
            CmMessage::Req(req) => self.requested(now, route, tid, &req, private),
            CmMessage::Rep(rep) => self.replied(now, route, tid, &rep, private),
            CmMessage::Rtu {
                local_comm_id,
                remote_comm_id,
            } => self.peer_is_ready(route, remote_comm_id, local_comm_id),
            CmMessage::Mra {
                local_comm_id,
                remote_comm_id,
                message,
                service_timeout,
            } => {
                let ids = (remote_comm_id, local_comm_id);
                self.takes_time(now, route, ids, message, service_timeout)
            }
            CmMessage::Rej {
                local_comm_id,
                remote_comm_id,
                info_length,
                reason,
                ..
            } => {
                let (at, most) = CmMessage::REJ_INFO;
                let len = usize::from(info_length).min(most);
                let info = data.iter().skip(at).take(len).copied().collect();
                let ids = (remote_comm_id, local_comm_id);
                self.rejected(now, route, ids, RejReason(reason), info, private)
            }
            CmMessage::Dreq {
                local_comm_id,
                remote_comm_id,
                remote_qpn,
            } => self.ends(now, route, tid, (remote_comm_id, local_comm_id), remote_qpn),
            CmMessage::Drep {
                local_comm_id,
                remote_comm_id,
            } => self.ended(now, route, remote_comm_id, local_comm_id),
            CmMessage::SidrReq(req) => self.wanted(now, route, tid, &req, private),
            CmMessage::SidrRep(rep) => self.resolved(route, &rep, private),
            CmMessage::Lap { .. } | CmMessage::Apr { .. } => Err(Ignored::AlternatePath),
        }
    }

    /// Lets peers ask for a service.
    ///
    /// # Errors
    /// Someone listens there, or the service is none that is connected or resolved.
    pub fn listen(&mut self, what: Listen) -> Result<(), CmError> {
        if !matches!(
            what.transport,
            Transport::Rc | Transport::Uc | Transport::Ud
        ) {
            return Err(CmError::Attribute("listeners are of RC, UC or UD"));
        }
        if self.listeners.contains_key(&what.service_id) {
            return Err(CmError::ServiceTaken(what.service_id));
        }
        self.listeners.insert(what.service_id, what);
        Ok(())
    }

    /// Ends listening. Requests that are with the application stay with it.
    pub fn unlisten(&mut self, service_id: u64) {
        self.listeners.remove(&service_id);
    }

    /// The next MAD to send.
    pub fn poll_transmit(&mut self) -> Option<Outgoing> {
        self.outgoing.pop_front()
    }

    /// The next news.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Self::handle_timeout`] is to be called; `None`: not for now.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        while let Some((at, timer)) = self.timers.first().copied() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            match timer {
                Timer::Conn(id) => {
                    if let Some(conn) = self.conns.get_mut(&id) {
                        conn.deadline = None;
                        self.expired(now, id);
                    }
                }
                Timer::Resolving(id) => self.resolving_expired(now, id),
                Timer::Wanted(id) => self.wanted_expired(id),
            }
        }
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// Connections that it keeps state of, requests and those in timewait included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    // What the modules beside use.

    pub(super) fn tell(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(super) fn send(&mut self, route: Route, mad: Box<MadBytes>) {
        self.counters.sent += 1;
        self.outgoing.push_back(Outgoing { route, mad });
    }

    /// A connection's last message, again.
    pub(super) fn send_last(&mut self, id: u32) {
        if let Some(conn) = self.conns.get(&id)
            && let Some(mad) = &conn.last
        {
            let (route, mad) = (conn.route, mad.clone());
            self.counters.resent += 1;
            self.send(route, mad);
        }
    }

    /// A communication ID that is not in use.
    pub(super) fn fresh_id(&mut self) -> u32 {
        loop {
            let id = self.rng.next_u32();
            if id != 0 && !self.conns.contains_key(&id) && !self.sidr.is_resolving(id) {
                return id;
            }
        }
    }

    /// A transaction of ours.
    pub(super) fn fresh_tid(&mut self, id: u32) -> u64 {
        u64::from(self.rng.next_u32()) << 32 | u64::from(id)
    }

    /// Adds a connection under all of its names that are known.
    pub(super) fn insert(&mut self, id: u32, conn: Conn) {
        let (peer, deadline) = (conn.route.peer, conn.deadline);
        if conn.remote_id != 0 {
            self.by_remote_id.insert((peer, conn.remote_id), id);
        }
        if conn.remote_qpn.get() != 0 {
            self.by_remote_qpn.insert((peer, conn.remote_qpn.get()), id);
        }
        self.conns.insert(id, conn);
        if let Some(at) = deadline {
            self.timers.insert((at, Timer::Conn(id)));
        }
    }

    pub(super) fn set_state(&mut self, id: u32, state: State) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.state = state;
        if !state.half_open() {
            self.half_open.remove(id);
        }
    }

    /// When it is looked at next, if it is half open no later than its time ends; `None`: not by itself.
    pub(super) fn set_deadline(&mut self, id: u32, at: Option<Timestamp>) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        if let Some(before) = conn.deadline.take() {
            self.timers.remove(&(before, Timer::Conn(id)));
        }
        let at = at.map(|at| self.half_open.end(id).map_or(at, |end| at.min(end)));
        conn.deadline = at;
        if let Some(at) = at {
            self.timers.insert((at, Timer::Conn(id)));
        }
    }

    pub(super) fn add_timer(&mut self, at: Timestamp, timer: Timer) {
        self.timers.insert((at, timer));
    }

    pub(super) fn remove_timer(&mut self, at: Timestamp, timer: Timer) {
        self.timers.remove(&(at, timer));
    }

    /// Forgets it.
    pub(super) fn remove(&mut self, id: u32) {
        self.set_deadline(id, None);
        self.forget_remote_qpn(id);
        let Some(conn) = self.conns.remove(&id) else {
            return;
        };
        self.half_open.remove(id);
        let name = (conn.route.peer, conn.remote_id);
        if self.by_remote_id.get(&name) == Some(&id) {
            self.by_remote_id.remove(&name);
        }
    }

    /// The peer's QP may be in a new connection.
    pub(super) fn forget_remote_qpn(&mut self, id: u32) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let name = (conn.route.peer, conn.remote_qpn.get());
        if self.by_remote_qpn.get(&name) == Some(&id) {
            self.by_remote_qpn.remove(&name);
        }
    }

    /// Keeps its names from use until packets of it have gone (`cm_enter_timewait`).
    pub(super) fn enter_timewait(&mut self, now: Timestamp, id: u32) {
        self.forget_remote_qpn(id);
        self.set_state(id, State::TimeWait);
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let end = now.saturating_add(super::timing::time_wait(conn.ack_timeout));
        self.set_deadline(id, Some(end));
        self.timewait.push_back(id);
        if self.timewait.len() > MOST_TIMEWAIT
            && let Some(oldest) = self.timewait.pop_front()
            && self
                .conns
                .get(&oldest)
                .is_some_and(|c| c.state == State::TimeWait)
        {
            self.remove(oldest);
        }
    }

    /// The connection that both ends call so, from its peer.
    pub(super) fn named(
        &mut self,
        route: Route,
        local: u32,
        remote: u32,
    ) -> Result<&mut Conn, Ignored> {
        let conn = self
            .conns
            .get_mut(&local)
            .filter(|conn| conn.remote_id == remote)
            .ok_or(Ignored::UnknownConnection)?;
        if conn.route == route {
            Ok(conn)
        } else {
            Err(Ignored::NotThePeer)
        }
    }

    /// The state, for a command.
    pub(super) fn of_user(&mut self, id: ConnId) -> Result<&mut Conn, CmError> {
        self.conns.get_mut(&id.0).ok_or(CmError::Unknown(id))
    }
}

/// The application's bytes of a message: behind the RDMA CM's header, where there is one.
fn private_data(message: &CmMessage, data: &[u8; DATA_LEN]) -> Vec<u8> {
    let (at, len) = private_room(message);
    data.iter().skip(at).take(len).copied().collect()
}

/// Where they stand, and how many there may be.
fn private_room(message: &CmMessage) -> (usize, usize) {
    let (at, len) = message.private_data();
    match message {
        CmMessage::Req(super::active::Req { ip_cm: Some(_), .. })
        | CmMessage::SidrReq(super::sidr::SidrReq { ip_cm: Some(_), .. }) => {
            (at + IpCm::LEN, len.saturating_sub(IpCm::LEN))
        }
        _ => (at, len),
    }
}

/// The MAD of a message.
///
/// # Errors
/// More private data than it has room for.
pub(super) fn build(
    tid: u64,
    message: &CmMessage,
    private: &[u8],
) -> Result<Box<MadBytes>, CmError> {
    build_with(tid, message, &[], private)
}

/// The MAD of a REJ without private data.
pub(super) fn build_rej(tid: u64, message: &CmMessage, info: &[u8]) -> Box<MadBytes> {
    // Without private data there is nothing that may not fit.
    build_with(tid, message, info, &[]).unwrap_or_else(|_| Box::new([0; MAD_LEN]))
}

/// The MAD of a message; of a REJ with additional information.
///
/// # Errors
/// As [`build`].
pub(super) fn build_with(
    tid: u64,
    message: &CmMessage,
    info: &[u8],
    private: &[u8],
) -> Result<Box<MadBytes>, CmError> {
    let (at, most) = private_room(message);
    if private.len() > most {
        return Err(CmError::PrivateData {
            message: message.name(),
            len: private.len(),
            most,
        });
    }
    let mut data = [0; DATA_LEN];
    message.emit(&mut data);
    let mut put = |at: usize, bytes: &[u8]| {
        for (to, from) in data.iter_mut().skip(at).zip(bytes) {
            *to = *from;
        }
    };
    put(at, private);
    if matches!(message, CmMessage::Rej { .. }) {
        let (at, most) = CmMessage::REJ_INFO;
        put(at, info.get(..info.len().min(most)).unwrap_or_default());
    }
    let mut head = [0; Mad::LEN];
    Mad::cm(message.attribute(), tid).emit(&mut head);
    let mut mad = Box::new([0; MAD_LEN]);
    for (to, from) in mad.iter_mut().zip(head.iter().chain(&data)) {
        *to = *from;
    }
    Ok(mad)
}
