//! The active end: it asks, is answered, and says that it is ready.
//!
//! Follows drivers/infiniband/core/cm.c `ib_send_cm_req`, `cm_rep_handler`, `cm_dup_rep_handler`, `ib_send_cm_rtu`; what a REQ says is
//! drivers/infiniband/core/cma.c's `cma_connect_ib`.

use rocexdp_common::{
    mad::{CmMessage, CmPath, Rep},
    opcode::Transport,
};

pub(super) use rocexdp_common::mad::Req;

use super::{
    IpCm,
    conn::{Conn, ConnId, Route, State},
    error::{CmError, Ignored},
    event::{Event, Reply},
    manager::{Manager, build, build_rej},
    reject::RejReason,
    timing::{ack_timeout, response_time},
};
use crate::{
    ids::{PathMtu, Psn, Qpn},
    time::Timestamp,
};

/// LID of a port that has none (`IB_LID_PERMISSIVE`).
const NO_LID: u16 = 0xffff;
/// The partition that all are in.
pub(super) const DEFAULT_PKEY: u16 = 0xffff;
/// The message that a MRA or REJ is about (`enum cm_msg_response`).
pub(super) const ABOUT_REQ: u8 = 0;
pub(super) const ABOUT_REP: u8 = 1;
pub(super) const ABOUT_OTHER: u8 = 2;

/// A connection to ask for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connect {
    /// Addresses.
    pub route: Route,
    /// What is asked for.
    pub service_id: u64,
    /// The RDMA CM's header, where the service is one of its.
    pub ip: Option<IpCm>,
    /// RC or UC.
    pub transport: Transport,
    /// Our QP.
    pub qpn: Qpn,
    /// PSN that the peer's first request shall have.
    pub psn: Psn,
    /// Path MTU of both directions.
    pub path_mtu: PathMtu,
    /// READs and atomics of the peer that we take at once.
    pub responder_resources: u8,
    /// READs and atomics of ours that may be unanswered.
    pub initiator_depth: u8,
    /// Retries of both ends after a timeout or sequence NAK, 0 to 7.
    pub retry_count: u8,
    /// The peer's retries after an RNR NAK, 0 to 7; 7: for ever.
    pub rnr_retry_count: u8,
    /// Our QP has a shared receive queue.
    pub srq: bool,
    /// Traffic class of the connection.
    pub traffic_class: u8,
    /// Hop limit of the connection.
    pub hop_limit: u8,
    /// The application's bytes: at most 92, behind the RDMA CM's header 56.
    pub private_data: Vec<u8>,
}

impl Manager {
    /// Asks for a connection. [`Event::Reply`], [`Event::Refused`] or [`Event::Unreachable`] follows.
    ///
    /// # Errors
    /// Too much private data, or an attribute out of range.
    pub fn connect(&mut self, now: Timestamp, ask: &Connect) -> Result<ConnId, CmError> {
        let transport = match ask.transport {
            Transport::Rc => 0,
            Transport::Uc => 1,
            _ => return Err(CmError::Attribute("connections are of RC or UC")),
        };
        if ask.retry_count > 7 || ask.rnr_retry_count > 7 {
            return Err(CmError::Attribute("retry counts are 0 to 7"));
        }
        let id = self.fresh_id();
        let tid = self.fresh_tid(id);
        let config = self.config;
        let life_time = config.packet_life_time.min(30);
        let message = CmMessage::Req(Req {
            local_comm_id: id,
            service_id: ask.service_id,
            local_ca_guid: config.ca_guid,
            local_qkey: 0,
            local_qpn: ask.qpn,
            responder_resources: ask.responder_resources,
            local_eecn: 0,
            initiator_depth: ask.initiator_depth,
            remote_eecn: 0,
            remote_cm_timeout: config.response_time,
            transport,
            flow_control: false,
            starting_psn: ask.psn,
            local_cm_timeout: config.response_time,
            retry_count: ask.retry_count,
            pkey: DEFAULT_PKEY,
            path_mtu: ask.path_mtu.log2() - 7,
            rdc_exists: false,
            rnr_retry_count: ask.rnr_retry_count,
            max_cm_retries: config.max_retries.min(15),
            srq: ask.srq,
            extended_transport: 0,
            primary: CmPath {
                local_lid: NO_LID,
                remote_lid: NO_LID,
                local_gid: ask.route.local,
                remote_gid: ask.route.peer,
                flow_label: 0,
                packet_rate: 0,
                traffic_class: ask.traffic_class,
                hop_limit: ask.hop_limit,
                sl: 0,
                subnet_local: ask.hop_limit <= 1,
                local_ack_timeout: ack_timeout(config.ack_delay, life_time),
            },
            alternate: CmPath::NONE,
            ip_cm: ask.ip,
        });
        let mad = build(tid, &message, &ask.private_data)?;
        let interval = response_time(config.response_time, life_time);
        let conn = Conn {
            route: ask.route,
            state: State::ReqSent,
            remote_id: 0,
            tid,
            passive: false,
            local_qpn: ask.qpn,
            remote_qpn: Qpn::new(0),
            last: Some(mad.clone()),
            interval,
            retries: config.max_retries.min(15),
            sent: 1,
            deadline: Some(now.saturating_add(interval)),
            life_time,
            ack_timeout: ack_timeout(config.ack_delay, life_time),
            max_retries: config.max_retries.min(15),
        };
        self.insert(id, conn);
        self.send(ask.route, mad);
        Ok(ConnId(id))
    }

    /// A peer's REP.
    pub(super) fn replied(
        &mut self,
        now: Timestamp,
        route: Route,
        tid: u64,
        rep: &Rep,
        private_data: Vec<u8>,
    ) -> Result<(), Ignored> {
        let id = rep.remote_comm_id;
        let conn = self.conns.get(&id).ok_or(Ignored::UnknownConnection)?;
        if conn.route != route {
            return Err(Ignored::NotThePeer);
        }
        match conn.state {
            State::ReqSent | State::MraReqReceived => {}
            _ if conn.passive || conn.remote_id != rep.local_comm_id => {
                return Err(Ignored::UnknownConnection);
            }
            State::RepReceived => {
                // The application is at it: the peer shall wait for it.
                let takes_time = CmMessage::Mra {
                    local_comm_id: id,
                    remote_comm_id: rep.local_comm_id,
                    message: ABOUT_REP,
                    service_timeout: self.config.service_time,
                };
                if let Ok(mad) = build(tid, &takes_time, &[]) {
                    self.send(route, mad);
                }
                return Err(Ignored::Duplicate);
            }
            State::Established => {
                // Our RTU was lost.
                self.send_last(id);
                return Err(Ignored::Duplicate);
            }
            _ => return Err(Ignored::State),
        }
        let remote = rep.local_comm_id;
        if remote == 0 || rep.local_qpn.get() <= 1 {
            return Err(Ignored::Invalid);
        }
        let life_time = conn.life_time;
        // cm_insert_remote_id and cm_insert_remote_qpn: a connection in timewait has neither name any more (cm_remove_remote). A REP
        // whose name is another connection's is taken for a copy that has gone astray, and not answered; one whose QP is, is stale.
        let named = self.by_remote_id.get(&(route.peer, remote));
        let taken = named.and_then(|other| self.conns.get(other));
        if taken.is_some_and(|other| other.state != State::TimeWait) {
            return Err(Ignored::Duplicate);
        }
        let used = (route.peer, rep.local_qpn.get());
        if let Some(other) = self.by_remote_qpn.get(&used).copied() {
            self.refuse_reply(route, tid, id, remote, RejReason::STALE_CONN);
            self.remove(id);
            self.tell(Conn::refused(ConnId(id), RejReason::STALE_CONN));
            self.end_stale(now, other);
            return Err(Ignored::Refused);
        }
        let ack_timeout = ack_timeout(rep.target_ack_delay, life_time);
        if let Some(conn) = self.conns.get_mut(&id) {
            (conn.remote_id, conn.remote_qpn) = (remote, rep.local_qpn);
            (conn.ack_timeout, conn.last) = (ack_timeout, None);
        }
        self.by_remote_id.insert((route.peer, remote), id);
        self.by_remote_qpn
            .insert((route.peer, rep.local_qpn.get()), id);
        self.set_state(id, State::RepReceived);
        let end = now.saturating_add(self.config.decision);
        self.set_deadline(id, Some(end));
        let reply = Reply {
            qpn: rep.local_qpn,
            psn: rep.starting_psn,
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            ack_timeout,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            private_data,
        };
        self.tell(Event::Reply(ConnId(id), Box::new(reply)));
        Ok(())
    }

    /// Our QP is ready: the connection is established. The peer hears of it.
    ///
    /// # Errors
    /// There is no such connection, it awaits no such thing, or too much private data (224 bytes).
    pub fn ready(&mut self, id: ConnId, private_data: &[u8]) -> Result<(), CmError> {
        let conn = self.of_user(id)?;
        if conn.state != State::RepReceived {
            return Err(CmError::State {
                id,
                state: conn.state.name(),
                what: "ready",
            });
        }
        let message = CmMessage::Rtu {
            local_comm_id: id.0,
            remote_comm_id: conn.remote_id,
        };
        let mad = build(conn.tid, &message, private_data)?;
        // Again for each copy of the REP.
        conn.last = Some(mad.clone());
        let route = conn.route;
        self.set_state(id.0, State::Established);
        self.set_deadline(id.0, None);
        self.send(route, mad);
        Ok(())
    }

    pub(super) fn refuse_reply(
        &mut self,
        route: Route,
        tid: u64,
        local: u32,
        remote: u32,
        reason: RejReason,
    ) {
        let message = CmMessage::Rej {
            local_comm_id: local,
            remote_comm_id: remote,
            message: ABOUT_REP,
            info_length: 0,
            reason: reason.0,
        };
        self.send(route, build_rej(tid, &message, &[]));
    }
}
