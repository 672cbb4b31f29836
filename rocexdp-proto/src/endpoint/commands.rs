//! Commands: QPs come, change and go.
//!
//! Everything that a QP will need is allocated here. Must not: send anything.

use std::sync::Arc;

use rocexdp_common::opcode::Transport;

use super::{CreateQp, DeviceAttr, Endpoint, MAX_QUEUE_DEPTH, QpHandle, VerbsError, qp_at};
use crate::ids::Qpn;
use crate::qp::{Lazy, NewQp, Qp, SendLimits, SendState, Service};
use crate::verbs::{GSI_QPN, MAX_MESSAGE, QueueCaps};

impl Endpoint {
    /// Makes a QP, in RESET.
    ///
    /// # Errors
    /// The number is taken or reserved, the service is none of RC, UC and UD, or a queue is deeper than [`MAX_QUEUE_DEPTH`].
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
        if self.slots.len() >= limits.max_qp as usize {
            return Err(VerbsError::Limit {
                what: "QPs",
                limit: limits.max_qp.into(),
            });
        }
        self.pds.check(create.pd)?;
        let max_message = limits.max_msg_sz.min(MAX_MESSAGE);
        let send_caps = QueueCaps {
            transport: create.transport,
            max_sge: create.max_send_sge,
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
        for queue in [&mut self.cnps, &mut self.acks, &mut self.senders] {
            queue.reserve((2 * n).saturating_sub(queue.len()));
        }
        self.events
            .reserve((2 * n).saturating_sub(self.events.len()));
        self.timers.reserve_qp(n);
        Ok(handle)
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
            self.pds.unused(qp.pd);
            self.regions.forget_qp(qpn);
            if matches!(qp.service, Service::Datagram(_)) {
                self.leave_groups(slot);
            }
            self.free.push(slot);
        }
        Ok(())
    }
}

/// What a new QP asks for against what the device has.
fn check_caps(create: &CreateQp, limits: &DeviceAttr) -> Result<(), VerbsError> {
    let qpn = create.qpn;
    let refuse = |what| Err(VerbsError::InvalidAttr { qpn, what });
    let deepest = limits.max_qp_wr.min(MAX_QUEUE_DEPTH);
    if create.max_send > deepest || (create.srq.is_none() && create.max_recv > deepest) {
        return refuse("a queue is deeper than the device's max_qp_wr, which is at most 65536");
    }
    if create.max_send_sge > limits.max_sge || create.max_recv_sge > limits.max_sge {
        return refuse("a request has more ranges than the device's max_sge");
    }
    if create.max_inline > limits.max_inline {
        return refuse("more inline data than the device's max_inline");
    }
    if create.srq.as_ref().is_some_and(|srq| !srq.is_shared()) {
        return refuse("srq must be made by create_srq");
    }
    Ok(())
}
