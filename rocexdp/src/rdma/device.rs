//! Devices and protection domains.
//!
//! Must not: know requests.

use std::{net::IpAddr, sync::Arc};

use rocexdp_proto::{
    DeviceAttr,
    ids::{PathMtu, Pd},
    mem::Access,
};
use tokio::sync::broadcast;

use super::{
    CompletionQueue, Error, MemoryWindow, QueuePairBuilder, Rc, ReadOnly, ReadWrite, Region,
    Service, SharedReceiveQueue, WindowType,
};
use crate::{
    mem::{Registrable, Writable},
    node::{Node, NodeConfig, NodeEvent},
};

/// An interface as an RDMA device. Cloning gives another handle to the same one; with the last handle, and the last object made of
/// it, the XDP program is detached.
#[derive(Clone, Debug)]
pub struct Device {
    pub(super) node: Arc<Node>,
}

impl Device {
    /// Opens an interface with the defaults ([`NodeConfig::new`]): loads the XDP program, opens a socket per queue and starts an
    /// engine of its own, in the calling thread's network namespace. Blocks for about a second, while the kernel verifies the
    /// program.
    ///
    /// # Errors
    /// The interface is missing or down, has a program already, a right is missing: the text says what to do.
    pub fn open(iface: &str) -> Result<Self, Error> {
        Self::open_with(NodeConfig::new(iface))
    }

    /// As [`Self::open`], with settings.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(config: NodeConfig) -> Result<Self, Error> {
        let node = Node::open(config).map_err(Error::Device)?;
        Ok(Self::from_node(Arc::new(node)))
    }

    /// A device on a node that is open already, which goes on serving its other users.
    #[must_use]
    pub fn from_node(node: Arc<Node>) -> Self {
        Self { node }
    }

    /// The node below.
    #[must_use]
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// The addresses that it answers for.
    #[must_use]
    pub fn addresses(&self) -> &[IpAddr] {
        self.node.addresses()
    }

    /// The largest path MTU of its connections.
    #[must_use]
    pub fn path_mtu(&self) -> PathMtu {
        self.node.path_mtu()
    }

    /// Its limits, which are enforced where objects are made (`ibv_query_device(3)`). Of QPs there are as many as
    /// [`NodeConfig::slots`](super::NodeConfig::slots) at most.
    ///
    /// # Errors
    /// Its engine has ended.
    pub async fn limits(&self) -> Result<DeviceAttr, Error> {
        let engine = self.node.engine();
        let limits = engine.call(0, |core, _| *core.endpoint.device_attr());
        limits.await.map_err(Error::Device)
    }

    /// What happens while it runs: link changes, QPs that fail.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<NodeEvent> {
        self.node.subscribe()
    }

    /// A new protection domain.
    ///
    /// # Errors
    /// As many as the device allows are there, or its engine has ended.
    pub fn protection_domain(&self) -> Result<ProtectionDomain, Error> {
        let pd = self.node.alloc_pd().map_err(Error::Device)?;
        Ok(ProtectionDomain {
            domain: Arc::new(Domain {
                device: self.clone(),
                pd,
            }),
        })
    }
}

/// A domain's number, given back with its last object.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) device: Device,
    pub(super) pd: Pd,
}

impl Drop for Domain {
    fn drop(&mut self) {
        self.device.node.dealloc_pd(self.pd);
    }
}

/// A protection domain: queue pairs and regions work together only within one. A request that names another domain's region completes
/// with [`Status::LocProtErr`](super::Status::LocProtErr), and a peer that names one is refused: whose number is whose is known at run
/// time only, so it is checked there. Cloning gives another handle to the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    pub(super) domain: Arc<Domain>,
}

impl ProtectionDomain {
    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.domain.device
    }

    /// Registers memory that may be written to, with rights for peers: any of [`Access::REMOTE_READ`], [`Access::REMOTE_WRITE`],
    /// [`Access::REMOTE_ATOMIC`], [`Access::FLUSH_GLOBAL`], [`Access::FLUSH_PERSISTENT`], or [`Access::NONE`]; and [`Access::MW_BIND`] where
    /// memory windows are to be bound to it.
    ///
    /// # Errors
    /// A limit of the device (regions, bytes of a region), or its engine has ended.
    pub fn register<M: Writable>(
        &self,
        memory: M,
        remote: Access,
    ) -> Result<Region<ReadWrite>, Error> {
        Region::new(self, memory, remote | Access::LOCAL_WRITE, remote)
    }

    /// Registers memory for reading only: what is sent, and what peers may READ.
    ///
    /// # Errors
    /// As [`Self::register`]; or `remote` has a right that changes memory.
    pub fn register_read_only<M: Registrable>(
        &self,
        memory: M,
        remote: Access,
    ) -> Result<Region<ReadOnly>, Error> {
        if remote.changes_memory() {
            return Err(Error::Access(
                "peers can't have rights to change a region that is for reading only: use register",
            ));
        }
        Region::new(self, memory, remote, remote)
    }

    /// A memory window, not bound to anything.
    ///
    /// # Errors
    /// As many as the device allows are there, or its engine has ended.
    pub fn window<T: WindowType>(&self) -> Result<MemoryWindow<T>, Error> {
        MemoryWindow::new(self)
    }

    /// A shared receive queue for `depth` requests, at most 65536.
    ///
    /// # Errors
    /// A limit of the device (queues, depth), or its engine has ended.
    pub fn shared_receive_queue(&self, depth: u32) -> Result<SharedReceiveQueue, Error> {
        SharedReceiveQueue::new(self, depth)
    }

    /// Begins a reliable connected queue pair whose requests all complete into `cq`.
    pub fn queue_pair(&self, cq: &CompletionQueue) -> QueuePairBuilder<Rc> {
        self.queue_pair_of(cq)
    }

    /// Begins a queue pair of any service.
    pub fn queue_pair_of<S: Service>(&self, cq: &CompletionQueue) -> QueuePairBuilder<S> {
        QueuePairBuilder::new(self.clone(), cq.clone())
    }
}
