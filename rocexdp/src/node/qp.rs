//! A queue pair as an application holds it.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    ops::Deref,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context as _, Result, anyhow, bail};
use rand::RngExt as _;
use rocexdp_common::maps::{QpConfig, QpCounters, QpEngine};
use rocexdp_proto::{
    CreateQp, ModifyQp, QpAttr, QpHandle, QpInitAttr, QpState, QpTransition, RtrAttr, RtsAttr,
    Transport, UdAttr, VerbsError,
    ids::{Psn, Qpn},
    verbs::{CompletionQueue, Cqe, GSI_QKEY, GSI_QPN, PathMtu, PostError, RecvWr, SendWr},
    wire::Path,
};

use super::{
    ConnectAttr, QpSpec, Shared,
    deaths::Bell,
    resolve::{Resolver, User},
    slots::RESERVED,
};
use crate::{
    engine::Core,
    loader::{gid_of, mtu_needed},
};

/// A queue pair that completes into queues of the caller's. Dropping it destroys it and frees its slot.
#[derive(Debug)]
pub struct RawQp {
    pub(super) shared: Arc<Shared>,
    pub(super) resolver: Resolver,
    pub(super) slot: u32,
    handle: QpHandle,
    psn: Psn,
    pub(super) transport: Transport,
    /// UD: the multicast groups that it is in.
    pub(super) groups: Mutex<BTreeSet<IpAddr>>,
    /// Held while it joins one.
    pub(super) joining: tokio::sync::Mutex<()>,
    /// It is destroyed.
    closed: AtomicBool,
}

/// A queue pair with a completion queue of its own.
#[derive(Debug)]
pub struct NodeQp {
    qp: RawQp,
    cq: Arc<CompletionQueue>,
    bell: Arc<Bell>,
}

impl Deref for NodeQp {
    type Target = RawQp;
    fn deref(&self) -> &RawQp {
        &self.qp
    }
}

impl NodeQp {
    pub(super) fn create(
        shared: &Arc<Shared>,
        resolver: Option<Resolver>,
        transport: Transport,
        max_send: u32,
        max_recv: u32,
    ) -> Result<Self> {
        let depth = max_send.saturating_add(max_recv).max(1);
        let cq = Arc::new(CompletionQueue::new(depth));
        let bell = Bell::of(&cq, &shared.deaths);
        let spec = QpSpec {
            max_send,
            max_recv,
            ..QpSpec::new(transport, &cq, &cq)
        };
        Ok(Self {
            qp: RawQp::create(shared, resolver, spec)?,
            cq,
            bell,
        })
    }

    /// The next completion, of a send or a receive request. May be dropped at any time without losing one.
    ///
    /// # Errors
    /// A worker has died of a fault: nothing may complete any more.
    pub async fn completion(&self) -> Result<Cqe> {
        self.bell.next(|| self.cq.poll()).await
    }

    /// A completion, if there is one.
    pub fn try_completion(&self) -> Option<Cqe> {
        self.cq.poll()
    }
}

impl RawQp {
    pub(super) fn create(
        shared: &Arc<Shared>,
        resolver: Option<Resolver>,
        spec: QpSpec,
    ) -> Result<Self> {
        let resolver = resolver.ok_or_else(|| anyhow!("the node was closed"))?;
        let taken = shared.slots().take();
        let place = taken.ok_or_else(|| {
            anyhow!(
                "{}: all {} QP slots are taken; start rocexdp with more (--slots)",
                shared.iface,
                shared.maps.slots - RESERVED
            )
        })?;
        Self::create_at(shared, resolver, spec, place)
    }

    /// QP 1, in INIT.
    pub(super) fn create_gsi(
        shared: &Arc<Shared>,
        resolver: Option<Resolver>,
        spec: QpSpec,
    ) -> Result<Self> {
        let resolver = resolver.ok_or_else(|| anyhow!("the node was closed"))?;
        let taken = shared.slots().take_gsi();
        let place = taken.ok_or_else(|| {
            anyhow!(
                "{}: QP 1 is open already: one user of it serves all",
                shared.iface
            )
        })?;
        Self::create_at(shared, resolver, spec, place)
    }

    fn create_at(
        shared: &Arc<Shared>,
        resolver: Resolver,
        spec: QpSpec,
        (slot, qpn): (u32, Qpn),
    ) -> Result<Self> {
        let init = match spec.transport {
            Transport::Ud => QpTransition::InitUd(UdAttr {
                address: match shared.addresses.first() {
                    Some(first) if qpn != GSI_QPN => gid_of(*first),
                    _ => [0; 16],
                },
                // Nobody's, until it is told.
                qkey: if qpn == GSI_QPN {
                    GSI_QKEY
                } else {
                    rand::rng().random()
                },
                path_mtu: PathMtu::from_bytes(shared.path_mtu).unwrap_or(PathMtu::Mtu256),
            }),
            _ => QpTransition::Init {
                access: spec.access,
            },
        };
        let transport = spec.transport;
        let create = CreateQp {
            transport,
            pd: spec.pd,
            max_send: spec.max_send,
            max_recv: spec.max_recv,
            max_send_sge: spec.max_send_sge,
            max_recv_sge: spec.max_recv_sge,
            max_inline: spec.max_inline,
            srq: spec.srq,
            ..CreateQp::rc(qpn, &spec.send_cq, &spec.recv_cq)
        };
        let handle = shared
            .engine
            .call_blocking(slot, move |core, now| {
                let handle = core.endpoint.create_qp(create)?;
                // In INIT from the start, so that receives can be posted before the peer knows the QP.
                if let Err(e) = core.endpoint.modify_qp(now, qpn, init) {
                    let _ = core.endpoint.destroy_qp(qpn);
                    return Err(e);
                }
                // The slot is not published, so XDP does not touch its counters; marks of its last QP find nothing new.
                for queue in 0..core.maps.queues {
                    let entry = slot * core.maps.queues + queue;
                    core.maps.qp_counters.store(entry, &QpCounters::default());
                }
                core.maps.qp_engine.store(slot, &QpEngine::default());
                core.signals.assign(slot, qpn);
                core.publisher.add(slot, qpn);
                Ok::<_, VerbsError>(handle)
            })
            .and_then(|made| {
                made.with_context(|| format!("creating QP {qpn} on {}", shared.iface))
            });
        let handle = match handle {
            Ok(handle) => handle,
            Err(e) => {
                shared.slots().give_back(slot);
                return Err(e);
            }
        };
        Ok(Self {
            shared: Arc::clone(shared),
            resolver,
            slot,
            handle,
            psn: spec.psn.unwrap_or_else(|| Psn::new(rand::rng().random())),
            transport,
            groups: Mutex::default(),
            joining: tokio::sync::Mutex::default(),
            closed: AtomicBool::new(false),
        })
    }

    /// Our QP number.
    pub fn qpn(&self) -> Qpn {
        self.handle.qpn
    }

    /// PSN of our first request.
    pub fn psn(&self) -> Psn {
        self.psn
    }

    /// Resolves the peer's next hop, tells XDP of the QP, and takes it from INIT to RTS.
    ///
    /// # Errors
    /// No route or no answer from the next hop (names address and interface), a path MTU that does
    /// not fit the route, or an attribute out of range.
    pub async fn connect(&self, attr: ConnectAttr) -> Result<()> {
        let qpn = self.qpn();
        let shared = &self.shared;
        if self.transport == Transport::Ud {
            bail!("QP {qpn} is UD: it has no one peer; address handles lead to any");
        }
        if attr.path_mtu.bytes() > shared.path_mtu {
            bail!(
                "path MTU {} is more than {} carries ({})",
                attr.path_mtu.bytes(),
                shared.iface,
                shared.path_mtu
            );
        }
        let state = self.state().await?;
        if !matches!(state, Some(QpState::Reset | QpState::Init)) {
            bail!("QP {qpn} is connected, or was: make a new one");
        }
        let way = self
            .resolver
            .resolve(attr.local, attr.peer, User::Qp(qpn))
            .await?;
        if mtu_needed(attr.path_mtu) > way.mtu {
            bail!(
                "path MTU {} needs an MTU of {}, the route to {} through {} has {}",
                attr.path_mtu.bytes(),
                mtu_needed(attr.path_mtu),
                attr.peer,
                shared.iface,
                way.mtu
            );
        }
        let path = Path {
            src_mac: shared.mac,
            dst_mac: way.mac.0,
            vlan: shared.vlan,
            sl: shared.pcp,
            src: gid_of(attr.local),
            dst: gid_of(attr.peer),
            hop_limit: attr.hop_limit,
            dscp: attr.dscp,
            flow_label: attr.flow_label,
        };
        // XDP first: the peer may send as soon as it knows us.
        self.publish(&attr, &path);
        let rtr = RtrAttr {
            dest_qpn: attr.peer_qpn,
            path_mtu: attr.path_mtu,
            rq_psn: attr.peer_psn,
            min_rnr_timer: attr.min_rnr_timer,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            path,
            selective: attr.selective,
        };
        let rts = RtsAttr {
            sq_psn: attr.psn.unwrap_or(self.psn),
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            max_rd_atomic: attr.max_rd_atomic,
        };
        let (access, cnp) = (attr.access, attr.cnp);
        shared
            .engine
            .call(self.slot, move |core, now| {
                let endpoint = &mut core.endpoint;
                endpoint.modify_qp(now, qpn, QpTransition::Init { access })?;
                endpoint.set_cnp(qpn, cnp);
                endpoint.modify_qp(now, qpn, QpTransition::Rtr(rtr))?;
                endpoint.modify_qp(now, qpn, QpTransition::Rts(rts))
            })
            .await?
            .with_context(|| {
                format!(
                    "connecting QP {qpn} to QP {} at {}",
                    attr.peer_qpn, attr.peer
                )
            })?;
        self.resolver.confirm(User::Qp(qpn));
        Ok(())
    }

    /// Its state; `None` once the engine has forgotten it.
    ///
    /// # Errors
    /// When the engine has ended.
    pub async fn state(&self) -> Result<Option<QpState>> {
        let qpn = self.qpn();
        self.shared
            .engine
            .call(self.slot, move |core, _| {
                core.endpoint.qp_info(qpn).map(|i| i.state)
            })
            .await
    }

    /// Its attributes, and how it was made.
    ///
    /// # Errors
    /// When the engine has ended.
    pub async fn query(&self) -> Result<(QpAttr, QpInitAttr)> {
        let qpn = self.qpn();
        let answer = self
            .shared
            .engine
            .call(self.slot, move |core, _| core.endpoint.query_qp(qpn));
        Ok(answer.await??)
    }

    /// Changes attributes of a connected QP, knowing those that it has. Not its addresses, path MTU or PSNs, which XDP knows too.
    ///
    /// # Errors
    /// The change is not one of the modify table's, or a value is out of its range; or the engine has ended.
    pub async fn modify(
        &self,
        change: impl FnOnce(&QpAttr) -> ModifyQp + Send + 'static,
    ) -> Result<()> {
        let qpn = self.qpn();
        let modified = self.shared.engine.call(self.slot, move |core, now| {
            let (attr, _) = core.endpoint.query_qp(qpn)?;
            core.endpoint.modify_qp(now, qpn, change(&attr))
        });
        Ok(modified.await??)
    }

    /// Lets a QP in SQD send again, without waiting for it.
    pub fn resume(&self) {
        let qpn = self.qpn();
        // An engine that has ended sends nothing.
        let _ = self.shared.engine.call_qp(qpn, move |core, now| {
            let state = core.endpoint.qp_info(qpn).map(|info| info.state);
            if state == Some(QpState::Sqd) {
                let _ = core
                    .endpoint
                    .modify_qp(now, qpn, ModifyQp::to(QpState::Rts));
                core.endpoint.work_posted(now, qpn);
            }
        });
    }

    /// Takes it to ERR without waiting for it: its requests complete with
    /// [`Status::WrFlushErr`](rocexdp_proto::verbs::Status::WrFlushErr).
    pub fn fail(&self) {
        let qpn = self.qpn();
        // An engine that has ended completes nothing.
        let _ = self.shared.engine.call_qp(qpn, move |core, now| {
            // It exists as long as self.
            let _ = core.endpoint.modify_qp(now, qpn, QpTransition::Err);
        });
    }

    fn publish(&self, attr: &ConnectAttr, path: &Path) {
        self.shared.publish(
            self.slot,
            QpConfig {
                qpn: self.qpn().get(),
                peer_qpn: attr.peer_qpn.get(),
                local_gid: path.src,
                peer_gid: path.dst,
                // The trackers start from the PSNs agreed on, not from the first packet seen.
                resync: 1,
                resync_request_psn: attr.peer_psn.get(),
                resync_response_psn: attr.psn.unwrap_or(self.psn).get(),
                transport: self.transport as u8,
                path_mtu_log2: attr.path_mtu.bytes().trailing_zeros() as u8,
                selective_paths: attr.selective.map_or(0, |with| with.paths),
                ..QpConfig::default()
            },
        );
    }

    /// Why nothing that is posted will complete: its worker has died.
    pub fn died(&self) -> Option<&Arc<str>> {
        if self.shared.engine.has_ended(self.qpn()) {
            return self.shared.deaths.why();
        }
        None
    }

    /// Posts a send request.
    ///
    /// # Errors
    /// The queue is full, the QP is not ready, or the request is out of range.
    pub fn post_send(&self, wr: SendWr) -> Result<(), PostError> {
        self.handle.sq.post(wr)?;
        self.shared.engine.doorbell(self.qpn());
        Ok(())
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// As [`Self::post_send`].
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        self.handle.rq.post(wr)?;
        self.shared.engine.doorbell(self.qpn());
        Ok(())
    }

    /// What the engine did for this QP, now.
    ///
    /// # Errors
    /// When the engine has ended.
    pub async fn info(&self) -> Result<QpEngine> {
        let qpn = self.qpn();
        self.shared
            .engine
            .call(self.slot, move |core, _| {
                let mut out = QpEngine::default();
                core.endpoint.fill(qpn, &mut out);
                out
            })
            .await
    }

    /// What XDP counted for this QP.
    pub fn counters(&self) -> QpCounters {
        self.shared.maps.counters(self.slot).unwrap_or_default()
    }
}

impl Drop for RawQp {
    fn drop(&mut self) {
        self.close();
    }
}

impl RawQp {
    /// Has what was posted sent, as far as it may be now, before what is asked for next.
    pub(super) fn send_posted(&self) {
        let qpn = self.qpn();
        let posted = move |core: &mut Core, now| core.endpoint.work_posted(now, qpn);
        // An engine that has ended sends nothing.
        let _ = self.shared.engine.call_blocking(self.slot, posted);
    }

    /// Destroys it, before its last holder drops it: its slot may be taken again then.
    pub(super) fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let (slot, qpn) = (self.slot, self.qpn());
        self.leave_all();
        // XDP stops giving packets to the QP before the engine forgets it.
        if let Some(generation) = self.shared.maps.qp_config.u32_at(slot, 0) {
            generation.store(0, Ordering::Release);
        }
        // An engine that has ended has no QPs.
        let _ = self.shared.engine.call_blocking(slot, move |core, _| {
            core.publisher.remove(slot);
            let _ = core.endpoint.destroy_qp(qpn);
        });
        self.resolver.forget(User::Qp(qpn));
        self.shared.slots().give_back(slot);
    }
}
