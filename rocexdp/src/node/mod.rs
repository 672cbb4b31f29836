//! A node: one interface as an RDMA endpoint, from the XDP program to the running engine.
//!
//! [`Node::open`] does the whole set-up in the caller's network namespace; [`NodeQp`] is what an
//! application holds. Queues are shared rings, so posting and polling take no lock of the engine.

mod attr;
mod datagram;
mod deaths;
mod groups;
mod gsi;
mod handle;
mod memory;
mod net;
mod qp;
mod refusals;
mod resolve;
mod slots;

use std::{
    fmt,
    net::IpAddr,
    os::fd::{AsFd as _, AsRawFd as _},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use anyhow::{Context as _, Result};
use rand::RngExt as _;
use rocexdp_common::maps::{QpConfig, local_addr};
use rocexdp_proto::{EndpointConfig, Transport, verbs::PathMtu};
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::sync::broadcast;

use crate::{
    engine::{Engine, EngineConfig, EngineHandle, PfcConfig, PollPolicy, WorkerEvent},
    loader::{AttachReport, AttachWish, Dataplane, LoadConfig},
    maps::Maps,
    xsk::{Mode, Xsk, XskConfig, ZeroCopy},
};
use deaths::Deaths;
use handle::Ways;
use net::Network;
use slots::Slots;

pub use attr::{ConnectAttr, DEFAULT_HOP_LIMIT, DEFAULT_RD_ATOMIC, QpSpec};
pub use deaths::OnDeath;
pub use gsi::{Gsi, GsiEvent, ReceivedMad};
pub use handle::{AddressHandle, HandleAttr};
pub use qp::{NodeQp, RawQp};

/// Events that a slow subscriber may fall behind before it loses some.
const EVENTS: usize = 256;

/// Sizes of a socket's rings and of its packet memory, in entries and chunks of 4096 B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// RX and fill ring entries; as many chunks to receive into.
    pub rx: u32,
    /// TX and completion ring entries; as many chunks to send from.
    pub tx: u32,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self { rx: 4096, tx: 2048 }
    }
}

/// How to open a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Interface.
    pub iface: String,
    /// Driver or generic mode.
    pub attach: AttachWish,
    /// Largest path MTU to use; `None`: the largest that the interface carries.
    pub path_mtu: Option<PathMtu>,
    /// Addresses to answer for; empty: all of the interface.
    pub addresses: Vec<IpAddr>,
    /// VLAN id of the frames, if the interface is not itself a VLAN device.
    pub vlan: Option<u16>,
    /// Another RoCE stack uses the addresses too: packets for QPs that are not ours are passed on.
    pub shared_addresses: bool,
    /// QP slots, a power of two from 64 to 65536.
    pub slots: u32,
    /// Ring sizes.
    pub rings: RingConfig,
    /// When workers sleep.
    pub poll: PollPolicy,
    /// Whether AF_XDP is to be zero-copy.
    pub zero_copy: ZeroCopy,
    /// The transport's settings.
    pub endpoint: EndpointConfig,
    /// Pause frames.
    pub pfc: PfcConfig,
    /// Priority in the VLAN tags of QPs' packets, where frames are tagged, 0..=7.
    pub pcp: u8,
    /// Tell of each packet that XDP refuses ([`NodeEvent::Refused`]). For debugging: it costs per refused packet.
    pub log_refusals: bool,
}

impl NodeConfig {
    /// Defaults for an interface.
    pub fn new(iface: impl Into<String>) -> Self {
        Self {
            iface: iface.into(),
            attach: AttachWish::Auto,
            path_mtu: None,
            addresses: Vec::new(),
            vlan: None,
            shared_addresses: false,
            slots: rocexdp_common::maps::DEFAULT_SLOTS,
            rings: RingConfig::default(),
            poll: PollPolicy::default(),
            zero_copy: ZeroCopy::Try,
            endpoint: EndpointConfig::default(),
            pfc: PfcConfig::default(),
            pcp: 0,
            log_refusals: false,
        }
    }
}

/// Something that the user should know while a node runs.
#[derive(Clone, Debug)]
pub enum NodeEvent {
    /// The interface went up or down.
    Link {
        /// Interface.
        iface: String,
        /// Whether frames can pass.
        running: bool,
    },
    /// The interface has gone.
    LinkGone(String),
    /// The interface's MTU changed.
    Mtu {
        /// Interface.
        iface: String,
        /// MTU now, B.
        mtu: u32,
        /// Largest path MTU that it carries now, B; `None`: none.
        path_mtu: Option<u32>,
        /// Path MTU that connections were promised, B.
        promised: u32,
    },
    /// An address of ours has gone: packets to it are no longer taken.
    AddressGone(IpAddr),
    /// A new address, which is used from a restart on.
    AddressNew(IpAddr),
    /// A next hop has another Ethernet address now; QPs were told.
    NeighbourMoved {
        /// Next hop.
        next_hop: IpAddr,
        /// Its address.
        mac: String,
    },
    /// A peer's next hop does not answer.
    Unreachable(String),
    /// Something else about the network.
    Network(String),
    /// A QP's event.
    Qp(rocexdp_proto::Event),
    /// A socket's error.
    Device(String),
    /// XDP refused a packet: the reason, and on which queue.
    Refused(String),
}

impl fmt::Display for NodeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link {
                iface,
                running: true,
            } => write!(f, "{iface}: link is up"),
            Self::Link {
                iface,
                running: false,
            } => {
                write!(
                    f,
                    "{iface}: link is down: nothing can be sent or received until it is up"
                )
            }
            Self::LinkGone(iface) => write!(
                f,
                "{iface}: the interface has gone; restart rocexdp when it is back"
            ),
            Self::Mtu {
                iface,
                mtu,
                path_mtu,
                promised,
            } => {
                write!(f, "{iface}: MTU is now {mtu}")?;
                match path_mtu {
                    Some(p) if p >= promised => write!(f, ", enough for path MTU {promised}"),
                    Some(p) => write!(
                        f,
                        ", which carries path MTU {p} only: connections with path MTU {promised} will fail"
                    ),
                    None => {
                        f.write_str(", which carries no path MTU at all: connections will fail")
                    }
                }
            }
            Self::AddressGone(a) => write!(
                f,
                "address {a} was removed: its QPs receive nothing any more"
            ),
            Self::AddressNew(a) => write!(f, "address {a} was added; restart rocexdp to use it"),
            Self::NeighbourMoved { next_hop, mac } => {
                write!(f, "next hop {next_hop} is now at {mac}")
            }
            Self::Unreachable(text)
            | Self::Network(text)
            | Self::Device(text)
            | Self::Refused(text) => f.write_str(text),
            Self::Qp(event) => write!(f, "{event}"),
        }
    }
}

/// One interface as an RDMA endpoint. Dropping it detaches the XDP program.
#[derive(Debug)]
pub struct Node {
    shared: Arc<Shared>,
    // Dropped in this order: workers end before their sockets' steering and the program go.
    _engine: Engine,
    network: Network,
    dataplane: Dataplane,
    /// The next shared receive queue.
    srqs: AtomicU32,
}

/// What QPs keep of their node.
#[derive(Debug)]
struct Shared {
    engine: EngineHandle,
    maps: Arc<Maps>,
    slots: Mutex<Slots>,
    /// Of the last published QP; never repeated, so that XDP notices when a slot's QP changes while it reads.
    generation: AtomicU32,
    mac: [u8; 6],
    vlan: Option<u16>,
    pcp: u8,
    iface: String,
    path_mtu: u32,
    deaths: Arc<Deaths>,
    /// The addresses that the node answers for, and their `local_addr` flags.
    addresses: Vec<IpAddr>,
    address_flags: u32,
    /// Address handles in use, and how many there may be.
    ways: Arc<Ways>,
    max_ah: u32,
}

impl Shared {
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells XDP of the QP in a slot.
    fn publish(&self, slot: u32, config: QpConfig) {
        // 0 would mean that the slot is free.
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) | 1 << 31;
        self.maps.qp_config.publish(
            slot,
            &QpConfig {
                generation,
                ..config
            },
        );
    }
}

impl Node {
    /// Checks the interface, loads and attaches the program, opens a socket per queue and starts the
    /// workers, all in the calling thread's network namespace.
    ///
    /// # Errors
    /// As [`Dataplane::load`], and of the sockets: each names interface, queue and what to do.
    pub fn open(config: NodeConfig) -> Result<Self> {
        // AF_XDP packet memory counts against RLIMIT_MEMLOCK without CAP_IPC_LOCK
        // (net/xdp/xdp_umem.c, xdp_umem_account_pages); if it can't be raised the socket says so.
        let unlimited = Rlimit {
            current: None,
            maximum: None,
        };
        let _ = setrlimit(Resource::Memlock, unlimited);
        let mut dataplane = Dataplane::load(&LoadConfig {
            iface: config.iface.clone(),
            attach: config.attach,
            path_mtu: config.path_mtu,
            addresses: config.addresses.clone(),
            vlan: config.vlan,
            shared_addresses: config.shared_addresses,
            slots: config.slots,
            line_rate: config.endpoint.line_rate,
            log_refusals: config.log_refusals,
        })?;
        let sockets = open_sockets(&config, &dataplane)?;
        note_socket_mode(&mut dataplane.report, &sockets);
        let report = &dataplane.report;
        let (events, _) = broadcast::channel(EVENTS);
        let tell = events.clone();
        let deaths = Arc::new(Deaths::default());
        let (mourned, iface) = (Arc::clone(&deaths), config.iface.clone());
        let max_ah = config.endpoint.limits.max_ah;
        let engine_config = EngineConfig {
            endpoint: config.endpoint,
            path_mtu: report.path_mtu,
            mac: dataplane.device.mac.map_or([0; 6], |m| m.0),
            policy: config.poll,
            pfc: config.pfc,
            quantum_ps: dataplane.quantum_ps,
            seed: rand::rng().random(),
        };
        let engine = Engine::start(
            &engine_config,
            &dataplane.maps,
            sockets,
            move |queue, event| {
                let event = match event {
                    WorkerEvent::Transport(event) => NodeEvent::Qp(event),
                    WorkerEvent::Device(e) => NodeEvent::Device(format!(
                        "queue {queue}: sending fails: {e}; said once until it works again or fails otherwise"
                    )),
                    WorkerEvent::Died => {
                        let why: Arc<str> = format!(
                            "{iface}, queue {queue}: its worker has died of a fault in rocexdp: its QPs are dead; restart rocexdp"
                        )
                        .into();
                        mourned.died(&why);
                        NodeEvent::Device(why.to_string())
                    }
                };
                // Nobody may be listening.
                let _ = tell.send(event);
            },
        )?;
        let shared = Arc::new(Shared {
            engine: engine.handle().clone(),
            slots: Mutex::new(Slots::new(config.slots, engine.handle().workers())),
            maps: Arc::clone(&dataplane.maps),
            generation: AtomicU32::new(0),
            mac: dataplane.device.mac.map_or([0; 6], |m| m.0),
            vlan: report.vlan,
            pcp: config.pcp,
            iface: config.iface.clone(),
            path_mtu: report.path_mtu,
            deaths,
            addresses: report.addresses.clone(),
            address_flags: if config.shared_addresses {
                local_addr::SHARED
            } else {
                local_addr::EXCLUSIVE
            },
            ways: Arc::new(Ways::default()),
            max_ah,
        });
        let log = match config.log_refusals {
            true => Some(refusals::of_program(report.program_id, events.clone())?),
            false => None,
        };
        let network = Network::start(&dataplane, events, Arc::clone(&shared), log)
            .with_context(|| format!("watching the network of {}", config.iface))?;
        Ok(Self {
            shared,
            _engine: engine,
            network,
            dataplane,
            srqs: AtomicU32::new(1),
        })
    }

    /// What was attached, and how.
    pub fn report(&self) -> &AttachReport {
        &self.dataplane.report
    }

    /// The addresses that this node answers for.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.report().addresses
    }

    /// The Ethernet address that it sends from.
    pub fn mac(&self) -> [u8; 6] {
        self.shared.mac
    }

    /// The largest path MTU of this node.
    pub fn path_mtu(&self) -> PathMtu {
        PathMtu::from_bytes(self.shared.path_mtu).unwrap_or(PathMtu::Mtu256)
    }

    /// What happens while the node runs.
    pub fn subscribe(&self) -> broadcast::Receiver<NodeEvent> {
        self.network.subscribe()
    }

    /// Makes a QP in state INIT with a random number and a random starting PSN.
    ///
    /// # Errors
    /// When all slots are taken, or the depths are out of range.
    pub fn create_qp(&self, max_send: u32, max_recv: u32) -> Result<NodeQp> {
        let resolver = self.network.resolver();
        NodeQp::create(&self.shared, resolver, Transport::Rc, max_send, max_recv)
    }

    /// Makes a UD QP, in INIT: it takes receive requests, each with 40 bytes for the IP header before the message
    /// ([`rocexdp_proto::wire::Grh`]). [`RawQp::open_datagram`] opens it to peers, [`Self::address_handle`] leads to them:
    ///
    /// ```no_run
    /// # use std::net::IpAddr;
    /// # use rocexdp::node::{HandleAttr, Node};
    /// # use rocexdp_proto::{ids::{Qpn, WrId}, verbs::{SendOp, SendWr, SgList}};
    /// # async fn example(node: &Node, local: IpAddr, peer: IpAddr, peer_qpn: Qpn) -> anyhow::Result<()> {
    /// let qp = node.create_ud_qp(128, 128)?;
    /// qp.open_datagram(local, 0x1111_1111).await?;
    /// let way = node.address_handle(HandleAttr::new(local, peer)).await?;
    /// let request = SendWr::new(WrId(1), SendOp::Send, SgList::inline(b"hello"));
    /// qp.post_send(request.to(way.to(peer_qpn, 0x1111_1111)))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Self::create_qp`].
    pub fn create_ud_qp(&self, max_send: u32, max_recv: u32) -> Result<NodeQp> {
        let resolver = self.network.resolver();
        NodeQp::create(&self.shared, resolver, Transport::Ud, max_send, max_recv)
    }

    /// As [`Self::create_qp`], with queues of the caller's.
    ///
    /// # Errors
    /// As [`Self::create_qp`].
    pub fn create_raw_qp(&self, spec: QpSpec) -> Result<RawQp> {
        RawQp::create(&self.shared, self.network.resolver(), spec)
    }

    /// Tells `whom`, once, when a worker has died of a fault: what it served completes nothing any more.
    pub fn on_death(&self, whom: std::sync::Weak<dyn OnDeath>) {
        self.shared.deaths.tell(whom);
    }

    /// The workers, for what this interface does not offer.
    pub fn engine(&self) -> &EngineHandle {
        &self.shared.engine
    }

    /// The maps.
    pub fn maps(&self) -> &Maps {
        &self.shared.maps
    }
}

fn open_sockets(config: &NodeConfig, dataplane: &Dataplane) -> Result<Vec<Xsk>> {
    let device = &dataplane.device;
    let mut control = dataplane
        .control
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    (0..dataplane.report.queues)
        .map(|queue| {
            let xsk = Xsk::open(&XskConfig {
                rx_size: config.rings.rx,
                fill_size: config.rings.rx,
                frames_rx: config.rings.rx,
                tx_size: config.rings.tx,
                comp_size: config.rings.tx,
                frames_tx: config.rings.tx,
                tx_budget: config.rings.tx,
                multi_buffer: dataplane.report.multi_buffer,
                zero_copy: config.zero_copy,
                ..XskConfig::new(device.name.clone(), device.index.0, queue)
            })?;
            control.set_socket(queue, xsk.as_fd().as_raw_fd())?;
            Ok(xsk)
        })
        .collect()
}

fn note_socket_mode(report: &mut AttachReport, sockets: &[Xsk]) {
    let zero_copy = sockets
        .iter()
        .filter(|s| s.mode() == Mode::ZeroCopy)
        .count();
    report.socket_mode = Some(match zero_copy {
        0 => "copy".to_owned(),
        n if n == sockets.len() => "zero-copy".to_owned(),
        n => format!("zero-copy on {n} of {}", sockets.len()),
    });
    if zero_copy > 0 {
        report.warnings.push(format!(
            "{}: zero-copy sockets take all of their queues' packets into their memory, the kernel's as well; give              RoCE a queue of its own, for example `ethtool -L {} combined N` and `ethtool -N {} flow-type udp4              dst-port 4791 action QUEUE`",
            report.device, report.device, report.device
        ));
    }
}
