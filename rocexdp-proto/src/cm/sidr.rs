//! Service ID resolution: which UD QP serves a service, and its Q_Key.
//!
//! Follows drivers/infiniband/core/cm.c `ib_send_cm_sidr_req`, `cm_sidr_req_handler`, `ib_send_cm_sidr_rep`. An answer is kept for a
//! while, for copies of its request.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

pub(super) use rocexdp_common::mad::SidrReq;
use rocexdp_common::{
    mad::{CmMessage, SidrRep},
    opcode::Transport,
};

use super::{
    IpCm, MadBytes,
    active::DEFAULT_PKEY,
    conn::{ConnId, Route},
    error::{CmError, Ignored},
    event::Event,
    manager::{Manager, Timer, build},
    timing::response_time,
};
use crate::{ids::Qpn, time::Timestamp};

/// How long a request or its answer is remembered.
const KEPT: Duration = Duration::from_secs(10);
/// `enum ib_cm_sidr_status`.
const UNSUPPORTED: u8 = 1;

/// A peer's request for a datagram service.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SidrId {
    route: Route,
    request: u32,
}

impl SidrId {
    /// Addresses.
    #[must_use]
    pub const fn route(&self) -> Route {
        self.route
    }
}

/// A datagram service to ask for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolve {
    /// Addresses.
    pub route: Route,
    /// What is asked for.
    pub service_id: u64,
    /// The RDMA CM's header, where the service is one of its.
    pub ip: Option<IpCm>,
    /// The application's bytes: at most 216, behind the RDMA CM's header 180.
    pub private_data: Vec<u8>,
}

/// How to answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SidrAnswer {
    /// This QP serves it.
    Found {
        /// The QP.
        qpn: Qpn,
        /// Its Q_Key.
        qkey: u32,
    },
    /// It is refused ([`rocexdp_common::mad::sidr_status_name`]): 1 unsupported, 2 rejected, 3 no QP.
    Refused(u8),
}

#[derive(Debug)]
struct Resolving {
    route: Route,
    service_id: u64,
    mad: Box<MadBytes>,
    interval: Duration,
    retries: u8,
    sent: u32,
    deadline: Timestamp,
}

#[derive(Debug)]
struct Wanted {
    tid: u64,
    service_id: u64,
    answer: Option<Box<MadBytes>>,
    /// When it is forgotten.
    end: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct Sidr {
    resolving: BTreeMap<u32, Resolving>,
    wanted: BTreeMap<SidrId, Wanted>,
    /// Those that were answered, the oldest answer first; of some of them, nothing is remembered any more.
    answered: VecDeque<SidrId>,
}

impl Sidr {
    pub(super) fn is_resolving(&self, id: u32) -> bool {
        self.resolving.contains_key(&id)
    }

    /// Makes room: a copy of the request is a new one then. Which it was, and when its time would have come.
    fn forget_answered(&mut self) -> Option<(SidrId, Timestamp)> {
        while let Some(id) = self.answered.pop_front() {
            if self.wanted.get(&id).is_some_and(|w| w.answer.is_some()) {
                return self.wanted.remove(&id).map(|w| (id, w.end));
            }
        }
        None
    }
}

impl Manager {
    /// Asks for a datagram service. [`Event::Resolved`], [`Event::NotResolved`] or [`Event::Unreachable`] follows.
    ///
    /// # Errors
    /// Too much private data.
    pub fn resolve(&mut self, now: Timestamp, ask: &Resolve) -> Result<ConnId, CmError> {
        let id = self.fresh_id();
        let tid = self.fresh_tid(id);
        let message = CmMessage::SidrReq(SidrReq {
            request_id: id,
            pkey: DEFAULT_PKEY,
            service_id: ask.service_id,
            ip_cm: ask.ip,
        });
        let mad = build(tid, &message, &ask.private_data)?;
        let interval = response_time(self.config.response_time, self.config.packet_life_time);
        let deadline = now.saturating_add(interval);
        self.sidr.resolving.insert(
            id,
            Resolving {
                route: ask.route,
                service_id: ask.service_id,
                mad: mad.clone(),
                interval,
                retries: self.config.max_retries.min(15),
                sent: 1,
                deadline,
            },
        );
        self.add_timer(deadline, Timer::Resolving(id));
        self.send(ask.route, mad);
        Ok(ConnId(id))
    }

    /// Gives it up. No event follows.
    pub fn cancel_resolve(&mut self, id: ConnId) {
        if let Some(given_up) = self.sidr.resolving.remove(&id.0) {
            self.remove_timer(given_up.deadline, Timer::Resolving(id.0));
        }
    }

    pub(super) fn resolving_expired(&mut self, now: Timestamp, id: u32) {
        let Some(asked) = self.sidr.resolving.get_mut(&id) else {
            return;
        };
        if asked.retries == 0 {
            let sent = asked.sent;
            self.sidr.resolving.remove(&id);
            return self.tell(Event::Unreachable {
                id: ConnId(id),
                message: "SIDR_REQ",
                sent,
            });
        }
        asked.retries -= 1;
        asked.sent += 1;
        asked.deadline = now.saturating_add(asked.interval);
        let (route, mad, at) = (asked.route, asked.mad.clone(), asked.deadline);
        self.add_timer(at, Timer::Resolving(id));
        self.send(route, mad);
    }

    /// A peer's SIDR_REP.
    pub(super) fn resolved(
        &mut self,
        route: Route,
        rep: &SidrRep,
        private_data: Vec<u8>,
    ) -> Result<(), Ignored> {
        let id = rep.request_id;
        let asked = self
            .sidr
            .resolving
            .get(&id)
            .ok_or(Ignored::UnknownConnection)?;
        if asked.route != route {
            return Err(Ignored::NotThePeer);
        }
        if rep.service_id != asked.service_id || rep.status == 0 && rep.qpn.get() <= 1 {
            return Err(Ignored::Invalid);
        }
        self.cancel_resolve(ConnId(id));
        let id = ConnId(id);
        self.tell(match rep.status {
            0 => Event::Resolved {
                id,
                qpn: rep.qpn,
                qkey: rep.qkey,
                private_data,
            },
            status => Event::NotResolved { id, status },
        });
        Ok(())
    }

    /// A peer's SIDR_REQ.
    pub(super) fn wanted(
        &mut self,
        now: Timestamp,
        route: Route,
        tid: u64,
        req: &SidrReq,
        private_data: Vec<u8>,
    ) -> Result<(), Ignored> {
        let id = SidrId {
            route,
            request: req.request_id,
        };
        if let Some(known) = self.sidr.wanted.get(&id)
            && (known.tid, known.service_id) == (tid, req.service_id)
        {
            if let Some(mad) = known.answer.clone() {
                self.send(route, mad);
            }
            return Err(Ignored::Duplicate);
        }
        let listened = self
            .listeners
            .get(&req.service_id)
            .is_some_and(|l| l.transport == Transport::Ud);
        let header = req.service_id >> 24 != 1 || req.ip_cm.is_some_and(|ip| ip.version == 0);
        // Known, but not the same: its sender has started anew. The answer would be another's.
        let anew = self.sidr.wanted.contains_key(&id);
        if !(listened && header) || anew {
            let message = sidr_rep(id, req.service_id, SidrAnswer::Refused(UNSUPPORTED));
            if let Ok(mad) = build(tid, &message, &[]) {
                self.send(route, mad);
            }
            return Err(Ignored::Refused);
        }
        // An answer would be final for the peer, which asks again without one: by then there may be room.
        if self.sidr.wanted.len() >= self.config.max_sidr as usize {
            let (forgotten, end) = self.sidr.forget_answered().ok_or(Ignored::NoRoom)?;
            self.remove_timer(end, Timer::Wanted(forgotten));
        }
        let end = now.saturating_add(KEPT);
        self.sidr.wanted.insert(
            id,
            Wanted {
                tid,
                service_id: req.service_id,
                answer: None,
                end,
            },
        );
        self.add_timer(end, Timer::Wanted(id));
        self.tell(Event::Wanted {
            id,
            service_id: req.service_id,
            ip: req.ip_cm,
            private_data,
        });
        Ok(())
    }

    /// Answers a peer's request for a datagram service.
    ///
    /// # Errors
    /// It was answered or forgotten (after 10 s), or too much private data (136 bytes).
    pub fn answer(
        &mut self,
        id: SidrId,
        how: SidrAnswer,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let wanted = self
            .sidr
            .wanted
            .get_mut(&id)
            .filter(|wanted| wanted.answer.is_none())
            .ok_or(CmError::NoRequest)?;
        let message = sidr_rep(id, wanted.service_id, how);
        let mad = build(wanted.tid, &message, private_data)?;
        wanted.answer = Some(mad.clone());
        self.sidr.answered.push_back(id);
        self.send(id.route, mad);
        Ok(())
    }

    pub(super) fn wanted_expired(&mut self, id: SidrId) {
        let Sidr {
            wanted, answered, ..
        } = &mut self.sidr;
        wanted.remove(&id);
        while answered.front().is_some_and(|id| !wanted.contains_key(id)) {
            answered.pop_front();
        }
    }
}

fn sidr_rep(id: SidrId, service_id: u64, how: SidrAnswer) -> CmMessage {
    let (status, qpn, qkey) = match how {
        SidrAnswer::Found { qpn, qkey } => (0, qpn, qkey),
        SidrAnswer::Refused(status) => (status.max(1), Qpn::new(0), 0),
    };
    CmMessage::SidrRep(SidrRep {
        request_id: id.request,
        status,
        qpn,
        service_id,
        qkey,
    })
}
