//! UD at the endpoint: multicast groups, and the headers of datagrams.
//!
//! A group's packet has IP address, link address and QPN of one; it is checked once and then given to each QP attached, which
//! takes it or not by its own Q_Key, state and receive requests (rxe_recv.c `rxe_rcv_mcast_pkt`). Only receiving needs
//! attachment. The host joins the group on its link (IGMP, MLD, the NIC's filter): that is the driver's to do.
//!
//! Must not: give a frame that leaves back to this host.

use rocexdp_common::headers::{Bth, Deth, ICRC_LEN};

use super::input::{check_member, icrc_is_right};
use super::limit::{at_most, room};
use super::output::{bth, extensions};
use super::{Endpoint, VerbsError, qp_at};
use crate::drop::DropReason;
use crate::ids::{Gid, Qpn};
use crate::qp::{Qp, Request, Service};
use crate::verbs::MULTICAST_QPN;
use crate::wire::{
    Head, HeaderBuf, Origin, Packet, RxMeta, is_multicast, multicast_mac, udp_source_port,
};

impl Endpoint {
    /// Lets a UD QP receive what is sent to a multicast group (`ibv_attach_mcast(3)`). Attaching again changes nothing.
    ///
    /// # Errors
    /// The QP is unknown or not UD, the address is no multicast one, or there are as many groups, or QPs attached to this one, as
    /// the device has.
    pub fn attach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<(), VerbsError> {
        let slot = self.datagram_slot(qpn)?;
        if !is_multicast(&group) {
            let what = "a QP is attached to a multicast address";
            return Err(VerbsError::InvalidAttr { qpn, what });
        }
        let limits = &self.config.limits;
        let groups = self.groups.len();
        match self.groups.get_mut(&group) {
            Some(members) if members.contains(&slot) => {}
            Some(members) => {
                let what = "QPs of the multicast group (max_mcast_qp_attach)";
                room(what, members.len(), limits.max_mcast_qp_attach)?;
                members.push(slot);
            }
            None => {
                room(
                    "multicast groups (max_mcast_grp)",
                    groups,
                    limits.max_mcast_grp,
                )?;
                at_most(
                    "max_mcast_qp_attach: QPs of a group",
                    1u32,
                    limits.max_mcast_qp_attach,
                )?;
                self.groups.insert(group, vec![slot]);
            }
        }
        Ok(())
    }

    /// Ends [`Endpoint::attach_mcast`]. Destroying the QP does too.
    ///
    /// # Errors
    /// The QP is unknown or not attached.
    pub fn detach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<(), VerbsError> {
        let slot = self.datagram_slot(qpn)?;
        let members = self.groups.get_mut(&group);
        let Some((members, at)) =
            members.and_then(|m| m.iter().position(|s| *s == slot).map(|at| (m, at)))
        else {
            let what = "the QP is not attached to this group";
            return Err(VerbsError::InvalidAttr { qpn, what });
        };
        members.remove(at);
        if members.is_empty() {
            self.groups.remove(&group);
        }
        Ok(())
    }

    /// The groups that some QP is attached to, in order: what the host has to join.
    pub fn groups(&self) -> impl Iterator<Item = Gid> + '_ {
        self.groups.keys().copied()
    }

    /// The QP in a slot goes.
    pub(super) fn leave_groups(&mut self, slot: u32) {
        self.groups.retain(|_, members| {
            members.retain(|s| *s != slot);
            !members.is_empty()
        });
    }

    fn datagram_slot(&self, qpn: Qpn) -> Result<u32, VerbsError> {
        let qp = self.qp(qpn).ok_or(VerbsError::UnknownQp(qpn))?;
        if !matches!(qp.service, Service::Datagram(_)) {
            let what = "only UD QPs are attached to multicast groups";
            return Err(VerbsError::InvalidAttr { qpn, what });
        }
        self.slots
            .get(&qpn.get())
            .copied()
            .ok_or(VerbsError::UnknownQp(qpn))
    }

    /// A packet that says by its address or by its QPN that it is a group's. Accepted if one QP takes it; else dropped for the
    /// reason that the first one gives.
    pub(super) fn receive_group(
        &mut self,
        head: &Head,
        p: &Packet<'_>,
        meta: &RxMeta,
    ) -> Result<(), DropReason> {
        let origin = meta.origin;
        let mac = multicast_mac(&p.dst).ok_or(DropReason::GroupAddress)?;
        if p.bth.dest_qpn != MULTICAST_QPN || head.dst_mac() != Some(mac) {
            return Err(DropReason::GroupAddress);
        }
        let members = self.groups.get(&p.dst).ok_or(DropReason::UnknownGroup)?;
        if p.deth.is_none() {
            return Err(DropReason::TransportMismatch);
        }
        icrc_is_right(&self.config, &mut self.counters, p, head, meta.icrc)?;
        let grh = p.grh(head).ok_or(DropReason::NotIp)?;
        let (mut taken, mut refused, mut refusals) = (false, None, 0);
        for at in 0..members.len() {
            // A QP that is given a packet may change itself, not its group.
            let slot = self.groups.get(&p.dst).and_then(|m| m.get(at)).copied();
            let Some((slot, qp)) =
                slot.and_then(|slot| qp_at(&mut self.qps, slot).map(|qp| (slot, qp)))
            else {
                continue;
            };
            if origin == Origin::Looped {
                qp.stats.rx_looped += 1;
            } else {
                qp.stats.rx_mcast += 1;
            }
            match check_member(qp, p).and_then(|()| qp.datagram(&mut self.regions, p, &grh)) {
                Ok(()) => {
                    taken = true;
                    qp.stats.rx_accepted += 1;
                    if qp.take_established() {
                        self.events
                            .push_back(super::Event::CommunicationEstablished { qpn: qp.qpn });
                    }
                }
                Err(reason) => {
                    refusals += 1;
                    qp.stats.rx_dropped += 1;
                    refused = refused.or(Some(reason));
                }
            }
            self.settle(slot);
        }
        if taken {
            self.counters.group_refusals += refusals;
            return Ok(());
        }
        self.counters.group_refusals += refusals.saturating_sub(1);
        Err(refused.unwrap_or(DropReason::UnknownGroup))
    }
}

/// The headers of a UD request, with this DSCP unless its handle has another. Gives the bytes of the whole frame.
pub(super) fn build(qp: &Qp, out: &mut HeaderBuf, r: &Request, dscp: u8) -> Option<u32> {
    let to = qp.send.wqes.get(r.wqe)?.wr.to.as_ref()?;
    let pad = r.len.wrapping_neg() & 3;
    let behind = extensions(r) + (r.len + pad) as usize;
    let path = to.ah.path();
    let port = udp_source_port(path.flow_label, qp.qpn, to.qpn);
    let dscp = path.dscp.unwrap_or(dscp);
    to.ah
        .template()
        .start_datagram(out, Bth::LEN + behind + ICRC_LEN, port, dscp);
    let mut header = bth(r.opcode, to.qpn, r.psn);
    header.pad = pad as u8;
    header.solicited = r.solicited;
    out.push_bth(&header);
    let mut bytes = [0; Deth::LEN];
    r.deth?.emit(&mut bytes);
    out.push(&bytes);
    if let Some(imm) = r.imm {
        out.push(&imm.to_be_bytes());
    }
    Some(out.bytes().len() as u32 + r.len + pad + ICRC_LEN as u32)
}
