//! Commands: a QP's attributes are changed and queried.
//!
//! The table says which attributes a change takes (`qp::modify`); their values are checked here, all before anything changes.
//! Must not: send anything.

use super::limit::at_most;
use super::traffic::Marking;
use super::{DeviceAttr, Endpoint, EndpointConfig, VerbsError, qp_at};
use crate::ids::{PathMtu, Qpn};
use crate::mem::Access;
use crate::qp::{
    MAX_PATHS, MAX_RD_ATOMIC, MigrationState, ModifyError, ModifyQp, Own, Qp, QpAttr, QpInitAttr,
    QpState, Route, SelectiveRepeat, Service,
};
use crate::time::Timestamp;
use crate::verbs::GSI_QPN;
use crate::wire::{HeaderTemplate, Path, is_unicast};

impl Endpoint {
    /// Changes a QP's state and attributes (`ibv_modify_qp(3)`): by a [`crate::QpTransition`], or attribute by attribute by a
    /// [`ModifyQp`].
    ///
    /// # Errors
    /// The QP is unknown; no QP goes from its state to that one; attributes that the change needs are missing, or it does not
    /// take some; or a value is out of range. Nothing has changed.
    pub fn modify_qp(
        &mut self,
        now: Timestamp,
        qpn: Qpn,
        change: impl Into<ModifyQp>,
    ) -> Result<(), VerbsError> {
        let m = change.into();
        let slot = self.slots.get(&qpn.get()).copied();
        let slot = slot.ok_or(VerbsError::UnknownQp(qpn))?;
        let qp = self.qp(qpn).ok_or(VerbsError::UnknownQp(qpn))?;
        let from = qp.state();
        let to = m.check(from, qp.service.transport()).map_err(|e| match e {
            ModifyError::Transition { to } => VerbsError::InvalidTransition { qpn, from, to },
            why => VerbsError::Attributes {
                qpn,
                from,
                to: m.state.unwrap_or(from),
                why,
            },
        })?;
        check_values(&m, from).map_err(|what| VerbsError::InvalidAttr { qpn, what })?;
        check_limits(&m, &self.config.limits)?;
        check_selective(&m, from, &qp.service)
            .map_err(|what| VerbsError::InvalidAttr { qpn, what })?;
        let own = self
            .own(qp, &m, to)
            .map_err(|what| VerbsError::InvalidAttr { qpn, what })?;
        let route = match (&qp.route, m.path) {
            // UD has its way in each request.
            _ if matches!(qp.service, Service::Datagram(_)) => None,
            (Some(old), Some(path)) => {
                let peer = m.dest_qpn.unwrap_or(old.peer);
                Some(self.route(qpn, path, peer, m.selective.or(qp.selective)))
            }
            (None, Some(path)) => m
                .dest_qpn
                .map(|peer| self.route(qpn, path, peer, m.selective)),
            (_, None) => None,
        };
        if let Some(qp) = qp_at(&mut self.qps, slot) {
            qp.change(to, &m, route, own);
            classify(&self.config, qp);
            if m.timeout.is_some() {
                qp.send.await_answer(now);
            }
            if let Some(with) = m.selective {
                qp.repeat_selectively(with, self.config.reorder_packets, &self.reorder);
            }
        }
        self.settle(slot);
        Ok(())
    }

    /// A QP's attributes as they were set, and how it was made (`ibv_query_qp(3)`).
    ///
    /// # Errors
    /// The QP is unknown.
    pub fn query_qp(&self, qpn: Qpn) -> Result<(QpAttr, QpInitAttr), VerbsError> {
        let qp = self.qp(qpn).ok_or(VerbsError::UnknownQp(qpn))?;
        Ok((qp.attr(), qp.init_attr()))
    }

    fn route(&self, qpn: Qpn, path: Path, peer: Qpn, selective: Option<SelectiveRepeat>) -> Route {
        let dscp = path.dscp.unwrap_or(self.config.data_dscp);
        let paths = selective.map_or(1, |with| with.paths);
        let other = |n| HeaderTemplate::data_on(&path, qpn, peer, dscp, n);
        Route {
            path,
            peer,
            data: HeaderTemplate::data(&path, qpn, peer, dscp),
            others: (1..paths).map(other).collect(),
        }
    }

    /// What becomes a UD QP's own, if that changes.
    fn own(&self, qp: &Qp, m: &ModifyQp, to: QpState) -> Result<Option<Own>, &'static str> {
        let Service::Datagram(own) = &qp.service else {
            return if m.address.is_some() {
                Err("only a UD QP has an address of its own: others have it in their path")
            } else {
                Ok(None)
            };
        };
        let mut new = *own;
        let from = qp.state();
        if to == QpState::Init {
            if from == QpState::Reset {
                new = Own {
                    path_mtu: self.config.limits.max_path_mtu,
                    ..Own::default()
                };
            }
            new.address = m.address.unwrap_or(new.address);
            new.path_mtu = m.path_mtu.unwrap_or(new.path_mtu);
            // The management QP is that of all addresses.
            let right = if qp.qpn == GSI_QPN {
                new.is_everywhere()
            } else {
                is_unicast(&new.address)
            };
            if !right {
                return Err(
                    "a UD QP's own address is neither unset, multicast nor broadcast; QP 1 has none of its own",
                );
            }
        } else if m.address.is_some() {
            return Err("UD: the QP's own address is set in RESET and INIT only");
        }
        new.qkey = m.qkey.unwrap_or(new.qkey);
        Ok(Some(new))
    }
}

/// Gives a QP the priorities that follow from its path, or, without one, from the endpoint's own DSCP.
pub(super) fn classify(config: &EndpointConfig, qp: &mut Qp) {
    let marking = marking(config, qp);
    qp.priority = config.classes.priority(marking);
    qp.answer_priority = config.classes.answer_priority(marking);
}

/// How a QP's data are marked. Datagrams are marked by their handles; their QP has the endpoint's.
pub(super) fn marking(config: &EndpointConfig, qp: &Qp) -> Marking {
    let path = qp.route.as_ref().map(|route| &route.path);
    Marking {
        dscp: path.and_then(|p| p.dscp).unwrap_or(config.data_dscp),
        pcp: path.map_or(0, |p| p.sl & 7),
    }
}

/// What a peer agreed to concerns RC only, and is known when the QP goes to RTR.
fn check_selective(m: &ModifyQp, from: QpState, service: &Service) -> Result<(), &'static str> {
    let Some(with) = m.selective else {
        return Ok(());
    };
    if !service.is_reliable() || from != QpState::Init || m.state != Some(QpState::Rtr) {
        return Err("selective: only an RC QP has it, and only from INIT to RTR");
    }
    if (1..=MAX_PATHS).contains(&with.paths) {
        Ok(())
    } else {
        Err("selective: paths is 1..=16")
    }
}

/// What the device allows.
fn check_limits(m: &ModifyQp, limits: &DeviceAttr) -> Result<(), VerbsError> {
    let mtu = m.path_mtu.map_or(0, PathMtu::bytes);
    at_most(
        "max_path_mtu: the path MTU",
        mtu,
        limits.max_path_mtu.bytes(),
    )?;
    let depth = |n: Option<u8>, most: u8| (n.unwrap_or(0), most.min(MAX_RD_ATOMIC));
    let (asked, most) = depth(m.max_rd_atomic, limits.max_rd_atomic);
    at_most("max_rd_atomic: the initiator depth", asked, most)?;
    let (asked, most) = depth(m.max_dest_rd_atomic, limits.max_dest_rd_atomic);
    at_most("max_dest_rd_atomic: the responder resources", asked, most)
}

/// The ranges of values.
fn check_values(m: &ModifyQp, from: QpState) -> Result<(), &'static str> {
    let within = |value: Option<u8>, most: u8| value.is_none_or(|v| v <= most);
    let checks = [
        (
            m.cur_state.is_none_or(|s| s == from),
            "cur_state is not the state that the QP is in",
        ),
        (
            m.port.is_none_or(|p| p == 1),
            "port must be 1, the only one",
        ),
        (
            m.pkey_index.is_none_or(|i| i == 0),
            "pkey_index must be 0, the only one",
        ),
        (
            m.access.is_none_or(|a| {
                let of_regions = Access::ZERO_BASED | Access::MW_BIND;
                a.bits() & of_regions.bits() == 0
            }),
            "access: ZERO_BASED and MW_BIND are rights of regions",
        ),
        (
            m.path.as_ref().is_none_or(Path::is_valid),
            "the path needs two unicast addresses of one family, a VLAN below 4096, a service level below 16, a DSCP below 64, a flow label below 2^20",
        ),
        (
            m.path.as_ref().is_none_or(|p| p.hop_limit > 0),
            "the path needs a hop limit of at least 1",
        ),
        (
            m.dest_qpn
                .is_none_or(|q| !matches!(q.get(), 0 | 1 | 0xff_ffff)),
            "dest_qpn: 0 and 1 are management QPs, 0xffffff is the multicast one",
        ),
        (within(m.timeout, 31), "timeout is 0..=31"),
        (within(m.retry_cnt, 7), "retry_cnt is 0..=7"),
        (within(m.rnr_retry, 7), "rnr_retry is 0..=7"),
        (within(m.min_rnr_timer, 31), "min_rnr_timer is 0..=31"),
        (
            m.alt_path.is_none(),
            "alt_path: there is no automatic path migration here, leave it out",
        ),
        (
            matches!(m.path_mig_state, None | Some(MigrationState::Migrated)),
            "path_mig_state: there is no automatic path migration here, leave it MIGRATED",
        ),
    ];
    match checks.into_iter().find(|(holds, _)| !holds) {
        Some((_, what)) => Err(what),
        None => Ok(()),
    }
}
