//! The passive end: a peer asks, the application decides, the peer says that it is ready.
//!
//! Follows drivers/infiniband/core/cm.c `cm_req_handler`, `cm_match_req`, `cm_dup_req_handler`, `ib_send_cm_rep`, `cm_rtu_handler`. A
//! REQ whose communication ID is in use, but which is not a copy of the one that brought it, is a peer's that has lost its memory: it is
//! refused as stale, as one of a QP in use is, and the old connection is ended.

use rocexdp_common::{
    mad::{CmMessage, Rep},
    opcode::Transport,
};

use super::{
    active::{ABOUT_REQ, DEFAULT_PKEY, Req},
    conn::{Conn, ConnId, Route, State},
    error::{CmError, Ignored},
    event::{Event, Request},
    manager::{Listen, Manager, build, build_rej},
    port_space,
    reject::RejReason,
    timing::response_time,
};
use crate::{
    ids::{PathMtu, Psn, Qpn},
    time::Timestamp,
};

/// How to accept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accept {
    /// Our QP, which can receive.
    pub qpn: Qpn,
    /// PSN that the peer's first request shall have.
    pub psn: Psn,
    /// READs and atomics of the peer that we take at once: at most as many as it asked for.
    pub responder_resources: u8,
    /// READs and atomics of ours that may be unanswered: at most as many as it takes.
    pub initiator_depth: u8,
    /// The peer's retries after an RNR NAK, 0 to 7; 7: for ever.
    pub rnr_retry_count: u8,
    /// Our QP has a shared receive queue.
    pub srq: bool,
    /// The application's bytes, at most 196.
    pub private_data: Vec<u8>,
}

/// The path MTU of a code, 1 to 5.
fn path_mtu(code: u8) -> Option<PathMtu> {
    PathMtu::from_bytes(128_u32.checked_shl(code.into())?)
}

/// Why a request can't be taken, with additional information.
fn unfit(req: &Req, route: Route, listen: &Listen) -> Result<PathMtu, (RejReason, Vec<u8>)> {
    let refuse = |reason| Err((reason, Vec::new()));
    let transport = match req.transport {
        0 => Transport::Rc,
        1 => Transport::Uc,
        _ => return refuse(RejReason::INVALID_TRANSPORT_TYPE),
    };
    if transport != listen.transport {
        return refuse(RejReason::INVALID_TRANSPORT_TYPE);
    }
    if req.local_qpn.get() <= 1 {
        return refuse(RejReason::NO_QP);
    }
    if (req.primary.local_gid, req.primary.remote_gid) != (route.peer, route.local) {
        return Err((RejReason::INVALID_GID, route.local.to_vec()));
    }
    let largest = listen.path_mtu;
    let mtu = match path_mtu(req.path_mtu) {
        Some(mtu) if mtu <= largest => mtu,
        _ => return Err((RejReason::INVALID_MTU, vec![largest.log2() - 7])),
    };
    let of_rdma_cm = (req.service_id >> 24, (req.service_id >> 16) as u8) == (1, port_space::TCP);
    let no_header = of_rdma_cm && req.ip_cm.is_none_or(|ip| ip.version != 0);
    if req.pkey & DEFAULT_PKEY >> 1 != DEFAULT_PKEY >> 1 || no_header {
        return refuse(RejReason::UNSUPPORTED);
    }
    Ok(mtu)
}

impl Manager {
    /// A peer's REQ.
    pub(super) fn requested(
        &mut self,
        now: Timestamp,
        route: Route,
        tid: u64,
        req: &Req,
        private_data: Vec<u8>,
    ) -> Result<(), Ignored> {
        let remote = req.local_comm_id;
        if remote == 0 {
            return Err(Ignored::Invalid);
        }
        if let Some(id) = self.by_remote_id.get(&(route.peer, remote)).copied() {
            let same = self.conns.get(&id).is_some_and(|c| {
                (c.tid, c.remote_qpn, c.route, c.passive) == (tid, req.local_qpn, route, true)
                    || c.state == State::TimeWait && c.tid == tid
            });
            if same {
                return self.again(route, tid, req, id);
            }
            if self.conns.get(&id).map(|c| c.state) != Some(State::TimeWait) {
                self.refuse_request(route, tid, remote, RejReason::STALE_CONN, &[]);
                self.end_stale(now, id);
                return Err(Ignored::Refused);
            }
        }
        let used = (route.peer, req.local_qpn.get());
        if let Some(id) = self.by_remote_qpn.get(&used).copied() {
            self.refuse_request(route, tid, remote, RejReason::STALE_CONN, &[]);
            self.end_stale(now, id);
            return Err(Ignored::Refused);
        }
        let fits = match self.listeners.get(&req.service_id) {
            None => Err((RejReason::INVALID_SERVICE_ID, Vec::new())),
            Some(&listen) => unfit(req, route, &listen).and_then(|mtu| {
                let room = self.make_room(now, req.service_id, route.peer);
                let full = (RejReason::NO_RESOURCES, Vec::new());
                room.then_some((mtu, listen.transport)).ok_or(full)
            }),
        };
        let (path_mtu, transport) = match fits {
            Ok(fits) => fits,
            Err((reason, info)) => {
                self.refuse_request(route, tid, remote, reason, &info);
                return Err(Ignored::Refused);
            }
        };
        let id = self.fresh_id();
        let life_time = req.primary.local_ack_timeout.saturating_sub(1);
        self.insert(
            id,
            Conn {
                route,
                state: State::ReqReceived,
                remote_id: remote,
                tid,
                passive: true,
                local_qpn: Qpn::new(0),
                remote_qpn: req.local_qpn,
                last: None,
                interval: response_time(req.local_cm_timeout, 0),
                retries: 0,
                sent: 0,
                deadline: Some(now.saturating_add(self.config.decision)),
                life_time,
                ack_timeout: req.primary.local_ack_timeout,
                max_retries: req.max_cm_retries,
            },
        );
        self.half_open.add(id, req.service_id, route.peer, now);
        let request = Request {
            route,
            service_id: req.service_id,
            ip: req.ip_cm,
            transport,
            qpn: req.local_qpn,
            psn: req.starting_psn,
            path_mtu,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            ack_timeout: req.primary.local_ack_timeout,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            private_data,
        };
        self.tell(Event::Request(ConnId(id), Box::new(request)));
        Ok(())
    }

    /// A copy of a REQ.
    fn again(&mut self, route: Route, tid: u64, req: &Req, id: u32) -> Result<(), Ignored> {
        match self.conns.get(&id).map(|c| c.state) {
            Some(State::ReqReceived) => {
                let takes_time = CmMessage::Mra {
                    local_comm_id: id,
                    remote_comm_id: req.local_comm_id,
                    message: ABOUT_REQ,
                    service_timeout: self.config.service_time,
                };
                if let Ok(mad) = build(tid, &takes_time, &[]) {
                    self.send(route, mad);
                }
            }
            Some(State::RepSent | State::MraRepReceived) => self.send_last(id),
            Some(State::TimeWait) => {
                let stale = RejReason::STALE_CONN;
                self.refuse_request(route, tid, req.local_comm_id, stale, &[]);
            }
            _ => {}
        }
        Err(Ignored::Duplicate)
    }

    /// Accepts a request. [`Event::Established`] follows, or [`Event::Refused`], [`Event::Unreachable`].
    ///
    /// # Errors
    /// There is no such request, an attribute is out of range, or too much private data.
    pub fn accept(&mut self, now: Timestamp, id: ConnId, how: &Accept) -> Result<(), CmError> {
        let (ack_delay, ca_guid) = (self.config.ack_delay, self.config.ca_guid);
        let conn = self.of_user(id)?;
        if conn.state != State::ReqReceived {
            return Err(CmError::State {
                id,
                state: conn.state.name(),
                what: "accepted",
            });
        }
        if how.rnr_retry_count > 7 {
            return Err(CmError::Attribute("retry counts are 0 to 7"));
        }
        let message = CmMessage::Rep(Rep {
            local_comm_id: id.0,
            remote_comm_id: conn.remote_id,
            local_qkey: 0,
            local_qpn: how.qpn,
            local_eecn: 0,
            starting_psn: how.psn,
            responder_resources: how.responder_resources,
            initiator_depth: how.initiator_depth,
            target_ack_delay: ack_delay,
            failover_accepted: 0,
            flow_control: false,
            rnr_retry_count: how.rnr_retry_count,
            srq: how.srq,
            local_ca_guid: ca_guid,
        });
        let mad = build(conn.tid, &message, &how.private_data)?;
        conn.local_qpn = how.qpn;
        conn.last = Some(mad.clone());
        (conn.retries, conn.sent) = (conn.max_retries.min(15), 1);
        let (route, end) = (conn.route, now.saturating_add(conn.interval));
        self.half_open.accept(id.0, now);
        self.set_state(id.0, State::RepSent);
        self.set_deadline(id.0, Some(end));
        self.send(route, mad);
        Ok(())
    }

    /// A peer's RTU.
    pub(super) fn peer_is_ready(
        &mut self,
        route: Route,
        local: u32,
        remote: u32,
    ) -> Result<(), Ignored> {
        let conn = self.named(route, local, remote)?;
        match conn.state {
            State::RepSent | State::MraRepReceived => {
                self.establish(local);
                Ok(())
            }
            State::Established => Err(Ignored::Duplicate),
            _ => Err(Ignored::State),
        }
    }

    fn establish(&mut self, id: u32) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.last = None;
        }
        self.set_state(id, State::Established);
        self.set_deadline(id, None);
        self.tell(Event::Established(ConnId(id)));
    }

    /// A packet of the peer has come to a connection's QP: it is ready, whether its RTU came or not (`ib_cm_notify`). Without effect
    /// where that is known.
    pub fn heard(&mut self, id: ConnId) {
        let state = self.conns.get(&id.0).map(|c| c.state);
        if matches!(state, Some(State::RepSent | State::MraRepReceived)) {
            self.establish(id.0);
        }
    }

    pub(super) fn refuse_request(
        &mut self,
        route: Route,
        tid: u64,
        remote: u32,
        reason: RejReason,
        info: &[u8],
    ) {
        let message = CmMessage::Rej {
            local_comm_id: 0,
            remote_comm_id: remote,
            message: ABOUT_REQ,
            info_length: info.len() as u8,
            reason: reason.0,
        };
        self.send(route, build_rej(tid, &message, info));
    }
}
