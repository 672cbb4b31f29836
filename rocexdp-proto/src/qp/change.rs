//! Carrying out a change of a QP's state and attributes, and what a query gives of them.
//!
//! Must not: check anything: the table (`modify`) and the ranges (the endpoint) have been looked at.

use rocexdp_common::opcode::Transport;

use super::attr::ack_timeout;
use super::modify::ModifyQp;
use super::sr::{Sender, first_serial};
use super::{MAX_RD_ATOMIC, MigrationState, Own, Qp, Route, RtrAttr, RtsAttr, Service};
use crate::ids::{CqNum, PathMtu, Pd, Psn, Qpn, SrqNum};
use crate::mem::Access;
use crate::verbs::QpState;
use crate::wire::Path;

/// A QP's attributes as they were set (`ibv_query_qp(3)`): of counters, what was configured, not what is left of them
/// (lrdma:3da1057c1). Those that were not set, or mean nothing to the service, are 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpAttr {
    /// State now.
    pub state: QpState,
    /// In SQD: requests that had begun are not done yet.
    pub sq_draining: bool,
    /// What the peer may do with this QP.
    pub access: Access,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// Port; 0 in RESET.
    pub port: u8,
    /// UD: the Q_Key.
    pub qkey: u32,
    /// The way to the peer, with the link address of the next hop as it is now.
    pub path: Option<Path>,
    /// Largest payload of a packet.
    pub path_mtu: PathMtu,
    /// The peer's QP.
    pub dest_qpn: Option<Qpn>,
    /// PSN of the peer's first request. That of its next: [`crate::QpInfo::expected_psn`].
    pub rq_psn: Psn,
    /// PSN of our first request. That of our next: [`crate::QpInfo::send_psn`].
    pub sq_psn: Psn,
    /// Code of the ACK timeout.
    pub timeout: u8,
    /// Retries.
    pub retry_cnt: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// Code of the RNR timer.
    pub min_rnr_timer: u8,
    /// Initiator depth.
    pub max_rd_atomic: u8,
    /// Responder resources.
    pub max_dest_rd_atomic: u8,
    /// State of path migration.
    pub path_mig_state: MigrationState,
}

/// How a QP was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInitAttr {
    /// Its service.
    pub transport: Transport,
    /// Its protection domain.
    pub pd: Pd,
    /// Depth of the send queue.
    pub max_send: u32,
    /// Depth of the receive queue.
    pub max_recv: u32,
    /// Ranges in the list of a send request.
    pub max_send_sge: u32,
    /// Ranges in the list of a receive request.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
    /// Every send request makes a completion.
    pub signal_all: bool,
    /// Where sends complete.
    pub send_cq: CqNum,
    /// Where receives complete.
    pub recv_cq: CqNum,
    /// The shared receive queue.
    pub srq: Option<SrqNum>,
}

/// What was set and is kept nowhere else.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept {
    access: Access,
    port: u8,
    qkey: u32,
    rq_psn: Option<Psn>,
    sq_psn: Option<Psn>,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    min_rnr_timer: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
}

impl Kept {
    fn take(&mut self, m: &ModifyQp) {
        fn set<T: Copy>(place: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *place = value;
            }
        }
        set(&mut self.access, m.access);
        set(&mut self.port, m.port);
        set(&mut self.qkey, m.qkey);
        self.rq_psn = m.rq_psn.or(self.rq_psn);
        self.sq_psn = m.sq_psn.or(self.sq_psn);
        set(&mut self.timeout, m.timeout);
        set(&mut self.retry_cnt, m.retry_cnt);
        set(&mut self.rnr_retry, m.rnr_retry);
        set(&mut self.min_rnr_timer, m.min_rnr_timer);
        set(&mut self.max_rd_atomic, m.max_rd_atomic);
        set(&mut self.max_dest_rd_atomic, m.max_dest_rd_atomic);
    }
}

impl Qp {
    /// Changes attributes, then the state. `route` is the new way to the peer, if there is one; `own` a UD QP's new own.
    pub(crate) fn change(
        &mut self,
        to: QpState,
        m: &ModifyQp,
        route: Option<Route>,
        own: Option<Own>,
    ) {
        let from = self.state;
        if to == QpState::Reset {
            self.reset();
            self.kept = Kept::default();
            return;
        }
        if to == QpState::Err {
            if from != QpState::Err {
                self.enter_error();
            }
            return;
        }
        self.kept.take(m);
        if let Some(own) = own {
            self.service = Service::Datagram(own);
            self.sq.set_max_datagram(own.path_mtu.bytes());
        }
        match (from, to) {
            (QpState::Init, QpState::Rtr) => self.enter_rtr(m),
            (QpState::Rtr, QpState::Rts) => self.enter_rts(m),
            (QpState::Rts, QpState::Sqd) => self.draining = m.en_sqd_async_notify == Some(true),
            _ => self.adjust(m),
        }
        self.recv.access = self.kept.access;
        self.recv.min_rnr_timer = self.kept.min_rnr_timer;
        if let Some(route) = route {
            self.route = Some(route);
        }
        self.set_state(to);
    }

    fn enter_rtr(&mut self, m: &ModifyQp) {
        self.silent = true;
        if let Some((path, dest_qpn)) = m.path.zip(m.dest_qpn) {
            self.recv.start(&RtrAttr {
                dest_qpn,
                path_mtu: m.path_mtu.unwrap_or(PathMtu::Mtu1024),
                rq_psn: m.rq_psn.unwrap_or_default(),
                min_rnr_timer: self.kept.min_rnr_timer,
                max_dest_rd_atomic: self.kept.max_dest_rd_atomic,
                path,
                selective: m.selective,
            });
        }
    }

    fn enter_rts(&mut self, m: &ModifyQp) {
        let sq_psn = m.sq_psn.unwrap_or_default();
        let path_mtu = self.path_mtu();
        if !self.service.is_reliable() {
            self.send.start_unacknowledged(sq_psn, path_mtu);
            return;
        }
        let attr = RtsAttr {
            sq_psn,
            timeout: self.kept.timeout,
            retry_cnt: self.kept.retry_cnt,
            rnr_retry: self.kept.rnr_retry,
            max_rd_atomic: self.kept.max_rd_atomic,
        };
        self.send.start(&attr, path_mtu);
        if let (Some(with), Some(of_requests)) = (self.selective, &self.recv.selective) {
            let sender = Sender::new(with.paths, first_serial(sq_psn));
            self.send
                .repeat_selectively(sender, of_requests.other(sq_psn));
        }
    }

    /// A change while the QP runs. Counters of retries go on from the new values with the next acknowledgement.
    fn adjust(&mut self, m: &ModifyQp) {
        if let Some(timeout) = m.timeout {
            self.send.ack_timer.start(ack_timeout(timeout));
        }
        if let Some(n) = m.retry_cnt {
            self.send.retry_cnt = n;
            self.send.retry_left = n;
        }
        if let Some(n) = m.rnr_retry {
            self.send.rnr_retry = n;
            self.send.rnr_left = n;
        }
        if let Some(n) = m.max_rd_atomic {
            self.send.set_max_rd_atomic(n.min(MAX_RD_ATOMIC));
        }
        if let Some(n) = m.max_dest_rd_atomic {
            self.recv.set_max_dest_rd_atomic(n);
        }
    }

    fn path_mtu(&self) -> PathMtu {
        match &self.service {
            Service::Datagram(own) => own.path_mtu,
            _ => self.recv.path_mtu,
        }
    }

    /// The attributes, as set.
    pub(crate) fn attr(&self) -> QpAttr {
        let kept = &self.kept;
        QpAttr {
            state: self.state,
            sq_draining: self.state == QpState::Sqd && !self.send.wqes.is_empty(),
            access: kept.access,
            pkey_index: 0,
            port: kept.port,
            qkey: kept.qkey,
            path: self.route.as_ref().map(|r| r.path),
            path_mtu: self.path_mtu(),
            dest_qpn: self.route.as_ref().map(|r| r.peer),
            rq_psn: kept.rq_psn.unwrap_or_default(),
            sq_psn: kept.sq_psn.unwrap_or_default(),
            timeout: kept.timeout,
            retry_cnt: kept.retry_cnt,
            rnr_retry: kept.rnr_retry,
            min_rnr_timer: kept.min_rnr_timer,
            max_rd_atomic: kept.max_rd_atomic,
            max_dest_rd_atomic: kept.max_dest_rd_atomic,
            path_mig_state: MigrationState::Migrated,
        }
    }

    /// How it was made.
    pub(crate) fn init_attr(&self) -> QpInitAttr {
        let (sends, receives) = (self.sq.caps(), self.rq.caps());
        QpInitAttr {
            transport: self.service.transport(),
            pd: self.pd,
            max_send: self.sq.capacity(),
            max_recv: if self.shared_rq {
                0
            } else {
                self.rq.capacity()
            },
            max_send_sge: sends.max_sge,
            max_recv_sge: receives.max_sge,
            max_inline: sends.max_inline,
            signal_all: sends.signal_all,
            send_cq: self.send_cq.num(),
            recv_cq: self.recv_cq.num(),
            srq: self.rq.srq_num(),
        }
    }
}
