//! Commands: QPs come, change and go.
//!
//! Everything that a QP will need is allocated here. Must not: send anything.

use std::sync::Arc;

use rocexdp_common::opcode::Transport;

use super::limit::{at_most, room};
use super::modify::classify;
use super::{CreateQp, DeviceAttr, Endpoint, MAX_QUEUE_DEPTH, QpHandle, VerbsError, qp_at};
use crate::ids::Qpn;
use crate::qp::{Lazy, NewQp, Qp, SendLimits, SendState, Service};
use crate::verbs::{GSI_QPN, MAX_MESSAGE, QueueCaps};

impl Endpoint {
    /// Makes a QP, in RESET.
    ///
    /// # Errors
    /// The number is taken or reserved, the service is none of RC, UC and UD, its domain is unknown, or a limit of the device is
    /// reached: on queues (their depth is at most [`MAX_QUEUE_DEPTH`]), on lists, inline data or completion queues.
    pub fn create_qp(&mut self, create: CreateQp) -> Result<QpHandle, VerbsError> {
        let qpn = create.qpn;
        // 0 and 1 are the management QPs, of which 1 is to be had, 0xffffff the multicast one.
        let reserved = match qpn {
            GSI_QPN => create.transport != Transport::Ud,
            _ => matches!(qpn.get(), 0 | 0xff_ffff),
        };
        if reserved || self.slots.contains_key(&qpn.get()) {
            return Err(VerbsError::QpnTaken(qpn));
        }
        let Some(service) = Service::of(create.transport) else {
            return Err(VerbsError::InvalidAttr {
                qpn,
                what: "the transport must be RC, UC or UD",
            });
        };
        let limits = &self.config.limits;
        check_caps(&create, limits)?;
        room("QPs (max_qp)", self.slots.len(), limits.max_qp)?;
        self.pds.check(create.pd)?;
        let cqs = [&create.send_cq, &create.recv_cq];
        self.cqs.check(cqs, limits)?;
        for cq in cqs {
            self.cqs.used(cq, limits);
        }
        let max_message = limits.max_msg_sz.min(MAX_MESSAGE);
        let send_caps = QueueCaps {
            transport: create.transport,
            max_sge: create.max_send_sge,
            max_sge_rd: create.max_send_sge.min(limits.max_sge_rd),
            max_inline: create.max_inline,
            max_message,
            signal_all: create.signal_all,
        };
        let recv_caps = QueueCaps {
            max_sge: create.max_recv_sge,
            max_message,
            ..QueueCaps::default()
        };
        let limits = SendLimits {
            window: self.config.max_inflight_packets,
            ack_interval: self.config.ack_req_interval,
            read_chunk: self.config.read_chunk_packets,
            adaptive: self.config.adaptive_timeout_floor,
        };
        let send = SendState::new(create.max_send, &limits);
        let qp = Qp::new(NewQp {
            qpn,
            pd: create.pd,
            service,
            srq: create.srq,
            max_send: create.max_send,
            max_recv: create.max_recv,
            send_caps,
            recv_caps,
            send_cq: create.send_cq,
            recv_cq: create.recv_cq,
            send,
            congestion: Lazy::new(&self.congestion),
        });
        let mut qp = qp;
        classify(&self.config, &mut qp);
        qp.rq.enter();
        let handle = QpHandle {
            qpn,
            sq: Arc::clone(&qp.sq),
            rq: Arc::clone(&qp.rq),
        };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.qps.push(None);
                (self.qps.len() - 1) as u32
            }
        };
        if let Some(place) = self.qps.get_mut(slot as usize) {
            *place = Some(Box::new(qp));
        }
        self.slots.insert(qpn.get(), slot);
        self.pds.used(create.pd);
        // Room for each QP to wait everywhere, so that waiting never allocates. Twice: a destroyed QP's entries may still
        // be there.
        let n = self.qps.len();
        self.cnps.reserve((2 * n).saturating_sub(self.cnps.len()));
        self.acks.grow(n);
        self.senders.grow(n);
        self.events
            .reserve((2 * n).saturating_sub(self.events.len()));
        self.timers.reserve_qp(n);
        Ok(handle)
    }

    /// Whether a QP's peer is told of congestion by CNPs, which the device's setting ([`EndpointConfig::cnp_enabled`]) must allow too. It is,
    /// unless said otherwise or reset; not every peer understands them. Gives whether there is such a QP.
    ///
    /// [`EndpointConfig::cnp_enabled`]: super::EndpointConfig::cnp_enabled
    pub fn set_cnp(&mut self, qpn: Qpn, wanted: bool) -> bool {
        let slot = self.slots.get(&qpn.get()).copied();
        let Some(qp) = slot.and_then(|slot| qp_at(&mut self.qps, slot)) else {
            return false;
        };
        qp.cnp_wanted = wanted;
        qp.cnp_owed &= wanted;
        true
    }

    /// The next hop to a QP's peer has another link address. False if there is no such QP, or it has no peer yet.
    pub fn set_dest_mac(&mut self, qpn: Qpn, mac: [u8; 6]) -> bool {
        let slot = self.slots.get(&qpn.get()).copied();
        let qp = slot.and_then(|slot| qp_at(&mut self.qps, slot));
        let Some(route) = qp.and_then(|qp| qp.route.as_mut()) else {
            return false;
        };
        route.path.dst_mac = mac;
        for template in core::iter::once(&mut route.data).chain(&mut route.others) {
            template.set_dst_mac(mac);
        }
        true
    }

    /// Removes a QP. Requests that have not completed never do; posting to its queues fails from now on.
    ///
    /// # Errors
    /// The QP is unknown.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), VerbsError> {
        let slot = self
            .slots
            .remove(&qpn.get())
            .ok_or(VerbsError::UnknownQp(qpn))?;
        if let Some(mut qp) = self.qps.get_mut(slot as usize).and_then(Option::take) {
            qp.reset();
            qp.rq.leave();
            self.timers.forget(&qp.timers);
            self.pds.unused(qp.pd);
            for cq in qp.cqs() {
                self.cqs.unused(cq);
            }
            self.regions.forget_qp(qpn);
            if matches!(qp.service, Service::Datagram(_)) {
                self.leave_groups(slot);
            }
            self.free.push(slot);
            self.sweep_timers();
        }
        Ok(())
    }
}

/// What a new QP asks for against what the device has.
fn check_caps(create: &CreateQp, limits: &DeviceAttr) -> Result<(), VerbsError> {
    let deepest = limits.max_qp_wr.min(MAX_QUEUE_DEPTH);
    at_most(
        "max_qp_wr: the depth of a send queue",
        create.max_send,
        deepest,
    )?;
    if create.srq.is_none() {
        at_most(
            "max_qp_wr: the depth of a receive queue",
            create.max_recv,
            deepest,
        )?;
    }
    at_most(
        "max_sge: the ranges of a send request",
        create.max_send_sge,
        limits.max_sge,
    )?;
    at_most(
        "max_sge: the ranges of a receive request",
        create.max_recv_sge,
        limits.max_sge,
    )?;
    at_most(
        "max_inline: the inline data of a request",
        create.max_inline,
        limits.max_inline,
    )?;
    if create.srq.as_ref().is_some_and(|srq| !srq.is_shared()) {
        let what = "srq must be made by create_srq";
        return Err(VerbsError::InvalidAttr {
            qpn: create.qpn,
            what,
        });
    }
    Ok(())
}
