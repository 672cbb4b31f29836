//! How attempts and connections end: REJ, MRA and what it delays, DREQ and DREP, timeouts, timewait.
//!
//! Follows drivers/infiniband/core/cm.c `ib_send_cm_rej`, `cm_rej_handler`, `cm_mra_handler`, `ib_send_cm_dreq`, `cm_dreq_handler`,
//! `cm_drep_handler`, `cm_process_send_error`.

use rocexdp_common::mad::CmMessage;

use super::{
    active::{ABOUT_OTHER, ABOUT_REP, ABOUT_REQ},
    conn::{Conn, ConnId, Route, State},
    error::{CmError, Ignored},
    event::Event,
    manager::{Manager, build, build_with},
    reject::RejReason,
    timing::response_time,
};
use crate::{ids::Qpn, time::Timestamp};

impl Manager {
    /// Refuses a request, an answer, or gives up an attempt of ours. The connection is forgotten.
    ///
    /// # Errors
    /// There is no such connection, it is established or has ended, or too much private data (148 bytes).
    pub fn reject(
        &mut self,
        now: Timestamp,
        id: ConnId,
        reason: RejReason,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let ca_guid = self.config.ca_guid;
        let conn = self.of_user(id)?;
        let (local, about) = match conn.state {
            State::ReqReceived => (0, ABOUT_REQ),
            State::RepReceived => (id.0, ABOUT_REP),
            State::ReqSent | State::MraReqReceived | State::RepSent | State::MraRepReceived => {
                (id.0, ABOUT_OTHER)
            }
            State::Established | State::DreqSent | State::TimeWait => {
                return Err(CmError::State {
                    id,
                    state: conn.state.name(),
                    what: "rejected",
                });
            }
        };
        // Who gets a REJ for a timeout finds the connection by GUID and name of its sender.
        let info = match reason {
            RejReason::TIMEOUT => ca_guid.to_be_bytes().to_vec(),
            _ => Vec::new(),
        };
        let message = CmMessage::Rej {
            local_comm_id: local,
            remote_comm_id: conn.remote_id,
            message: about,
            info_length: info.len() as u8,
            reason: reason.0,
        };
        let mad = build_with(conn.tid, &message, &info, private_data)?;
        let (route, state) = (conn.route, conn.state);
        self.send(route, mad);
        match state {
            // The peer may have made its QP ready.
            State::RepSent | State::MraRepReceived => self.enter_timewait(now, id.0),
            _ => self.remove(id.0),
        }
        Ok(())
    }

    /// A peer's REJ. `ids`: ours and its, as it has them.
    pub(super) fn rejected(
        &mut self,
        now: Timestamp,
        route: Route,
        (local, remote): (u32, u32),
        reason: RejReason,
        info: Vec<u8>,
        private_data: Vec<u8>,
    ) -> Result<(), Ignored> {
        // Who gave up may not have known our name of it (cm_acquire_rejected_id).
        let by_its_name = self.by_remote_id.get(&(route.peer, remote)).copied();
        let local = match by_its_name {
            Some(id) if reason == RejReason::TIMEOUT => id,
            _ => local,
        };
        let conn = self.conns.get(&local).ok_or(Ignored::UnknownConnection)?;
        if conn.route != route {
            return Err(Ignored::NotThePeer);
        }
        // Nor may we know its name: it did not accept, or we did not hear of it.
        if conn.remote_id != remote && conn.remote_id != 0 {
            return Err(Ignored::UnknownConnection);
        }
        let stale = reason == RejReason::STALE_CONN;
        let event = Event::Refused {
            id: ConnId(local),
            reason,
            info,
            private_data,
        };
        match conn.state {
            State::TimeWait => return Err(Ignored::Duplicate),
            State::Established | State::DreqSent => {
                self.enter_timewait(now, local);
                self.tell(Event::Disconnected {
                    id: ConnId(local),
                    by_peer: true,
                });
                return Ok(());
            }
            State::RepReceived => self.enter_timewait(now, local),
            _ if stale => self.enter_timewait(now, local),
            _ => self.remove(local),
        }
        self.tell(event);
        Ok(())
    }

    /// A peer's MRA: it takes so long as it says, once.
    pub(super) fn takes_time(
        &mut self,
        now: Timestamp,
        route: Route,
        (local, remote): (u32, u32),
        about: u8,
        service_time: u8,
    ) -> Result<(), Ignored> {
        let conn = self.conns.get(&local).ok_or(Ignored::UnknownConnection)?;
        if conn.route != route {
            return Err(Ignored::NotThePeer);
        }
        let state = match (conn.state, about) {
            (State::ReqSent, ABOUT_REQ) => State::MraReqReceived,
            (State::RepSent, ABOUT_REP) if conn.remote_id == remote => State::MraRepReceived,
            (State::MraReqReceived | State::MraRepReceived, _) => return Err(Ignored::Duplicate),
            _ => return Err(Ignored::State),
        };
        // Copies that may follow are as far apart (ib_modify_mad).
        let interval = response_time(service_time, conn.life_time);
        let end = now.saturating_add(interval);
        if let Some(conn) = self.conns.get_mut(&local) {
            conn.interval = interval;
        }
        self.set_state(local, state);
        self.set_deadline(local, Some(end));
        Ok(())
    }

    /// Ends an established connection. [`Event::Disconnected`] follows.
    ///
    /// # Errors
    /// There is no such connection, or it is not established. (It may have ended by itself: no harm.)
    pub fn disconnect(&mut self, now: Timestamp, id: ConnId) -> Result<(), CmError> {
        let retries = self.config.max_retries.min(15);
        let response = self.config.response_time;
        let tid = self.fresh_tid(id.0);
        let conn = self.of_user(id)?;
        if conn.state != State::Established {
            return Err(CmError::State {
                id,
                state: conn.state.name(),
                what: "disconnected",
            });
        }
        let message = CmMessage::Dreq {
            local_comm_id: id.0,
            remote_comm_id: conn.remote_id,
            remote_qpn: conn.remote_qpn,
        };
        let mad = build(tid, &message, &[])?;
        conn.last = Some(mad.clone());
        conn.interval = response_time(response, conn.life_time.min(16));
        (conn.retries, conn.sent) = (retries, 1);
        let (route, end) = (conn.route, now.saturating_add(conn.interval));
        self.set_state(id.0, State::DreqSent);
        self.set_deadline(id.0, Some(end));
        self.send(route, mad);
        Ok(())
    }

    /// Its peer has forgotten it: it is ended, and the application told.
    pub(super) fn end_stale(&mut self, now: Timestamp, id: u32) {
        match self.conns.get(&id).map(|c| c.state) {
            Some(State::Established) => {
                // It is there and established.
                let _ = self.disconnect(now, ConnId(id));
                self.enter_timewait(now, id);
                self.tell(Event::Disconnected {
                    id: ConnId(id),
                    by_peer: true,
                });
            }
            Some(State::ReqReceived | State::RepSent | State::MraRepReceived) => {
                self.remove(id);
                self.tell(Conn::refused(ConnId(id), RejReason::STALE_CONN));
            }
            _ => {}
        }
    }

    /// A peer's DREQ.
    pub(super) fn ends(
        &mut self,
        now: Timestamp,
        route: Route,
        tid: u64,
        (local, remote): (u32, u32),
        qpn: Qpn,
    ) -> Result<(), Ignored> {
        let state = match self.named(route, local, remote) {
            Ok(conn) if conn.local_qpn != qpn => return Err(Ignored::Invalid),
            Ok(conn) => Some(conn.state),
            Err(Ignored::UnknownConnection) => None,
            Err(why) => return Err(why),
        };
        let answers = matches!(
            state,
            None | Some(
                State::RepSent
                    | State::MraRepReceived
                    | State::Established
                    | State::DreqSent
                    | State::TimeWait
            )
        );
        if !answers {
            return Err(Ignored::State);
        }
        let message = CmMessage::Drep {
            local_comm_id: local,
            remote_comm_id: remote,
        };
        if let Ok(mad) = build(tid, &message, &[]) {
            self.send(route, mad);
        }
        match state {
            // Its memory of it is longer than ours (cm_issue_drep).
            None => Err(Ignored::UnknownConnection),
            Some(State::TimeWait) => Err(Ignored::Duplicate),
            Some(_) => {
                self.enter_timewait(now, local);
                self.tell(Event::Disconnected {
                    id: ConnId(local),
                    by_peer: state != Some(State::DreqSent),
                });
                Ok(())
            }
        }
    }

    /// A peer's DREP.
    pub(super) fn ended(
        &mut self,
        now: Timestamp,
        route: Route,
        local: u32,
        remote: u32,
    ) -> Result<(), Ignored> {
        match self.named(route, local, remote)?.state {
            State::DreqSent => {
                self.enter_timewait(now, local);
                self.tell(Event::Disconnected {
                    id: ConnId(local),
                    by_peer: false,
                });
                Ok(())
            }
            State::TimeWait => Err(Ignored::Duplicate),
            _ => Err(Ignored::State),
        }
    }

    /// A connection's deadline has come.
    pub(super) fn expired(&mut self, now: Timestamp, id: u32) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let (state, sent) = (conn.state, conn.sent);
        let repeats = matches!(
            state,
            State::ReqSent
                | State::MraReqReceived
                | State::RepSent
                | State::MraRepReceived
                | State::DreqSent
        );
        let over = self.half_open.end(id).is_some_and(|end| end <= now);
        if repeats && conn.retries > 0 && !over {
            conn.retries -= 1;
            conn.sent += 1;
            let end = now.saturating_add(conn.interval);
            self.set_deadline(id, Some(end));
            self.send_last(id);
            return;
        }
        let unreachable = |message| Event::Unreachable {
            id: ConnId(id),
            message,
            sent,
        };
        let event = match state {
            State::ReqSent | State::MraReqReceived => unreachable("REQ"),
            State::RepSent | State::MraRepReceived => unreachable("REP"),
            State::ReqReceived | State::RepReceived => {
                Conn::refused(ConnId(id), RejReason::TIMEOUT)
            }
            State::DreqSent => {
                self.enter_timewait(now, id);
                return self.tell(Event::Disconnected {
                    id: ConnId(id),
                    by_peer: false,
                });
            }
            State::Established => return,
            State::TimeWait => return self.remove(id),
        };
        // Each of these states can be rejected.
        let _ = self.reject(now, ConnId(id), RejReason::TIMEOUT, &[]);
        self.tell(event);
    }
}
