//! What is known about a network interface: state, MTU, addresses, queues, VLAN parent, attached XDP program.
//!
//! Reads only, by rtnetlink, so it tells about the caller's network namespace whatever is mounted on `/sys`.

use std::{fmt, io, net::IpAddr};

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::{
    RouteNetlinkMessage as Message,
    address::{AddressAttribute, AddressHeaderFlags, AddressMessage},
    link::{
        InfoData, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
        LinkXdp, State, Stats64, XdpAttached,
    },
};

use super::{Error, netlink::Socket};
use crate::sys::ethtool;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Mac {
    /// From a link-layer address attribute; `None` when it is not six bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

/// An interface's index in its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IfIndex(pub u32);

impl fmt::Display for IfIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// How an XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver ("native").
    Driver,
    /// On socket buffers, for any driver: slow.
    Generic,
    /// On the NIC.
    Hardware,
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Driver => "driver",
            Self::Generic => "generic",
            Self::Hardware => "hardware",
        })
    }
}

/// An XDP program on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpAttachment {
    /// The kernel's program id.
    pub id: u32,
    /// Where it runs.
    pub mode: XdpMode,
    /// The program's name, or `None` without the right to read it (CAP_SYS_ADMIN).
    pub name: Option<String>,
}

/// An interface address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// The length of its prefix in bits.
    pub prefix: u8,
    /// Duplicate address detection is not done or failed: it can't be used yet.
    pub tentative: bool,
}

/// A VLAN device's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// The VLAN id.
    pub id: u16,
    /// The device that carries the tagged frames: XDP attaches there.
    pub parent: IfIndex,
}

/// What the kernel says about an interface, at one moment.
#[derive(Clone, Debug)]
pub struct Link {
    /// Its index.
    pub index: IfIndex,
    /// Its name.
    pub name: String,
    /// Administratively up.
    pub up: bool,
    /// Up and with carrier: frames can pass.
    pub running: bool,
    /// Largest IP packet, bytes.
    pub mtu: u32,
    /// Ethernet address, or `None` when this is no Ethernet device.
    pub mac: Option<Mac>,
    /// Kind of a virtual device ("veth", "vlan", "bond", ...), `None` for a NIC.
    pub kind: Option<String>,
    /// The bridge, bond or VRF it belongs to.
    pub master: Option<IfIndex>,
    /// Set when this is a VLAN device.
    pub vlan: Option<Vlan>,
    /// Receive queues allocated.
    pub rx_queues: u32,
    /// Transmit queues allocated.
    pub tx_queues: u32,
    /// XDP programs, one per mode at most.
    pub xdp: Vec<XdpAttachment>,
    /// The root queueing discipline.
    pub qdisc: Option<String>,
    /// The kernel's counters. AF_XDP traffic may be missing there, depending on the driver.
    pub stats: Stats64,
}

impl Link {
    /// The interface called `name`.
    ///
    /// # Errors
    /// [`Error::NoInterface`], or a netlink failure.
    pub fn by_name(name: &str) -> Result<Self, Error> {
        // The kernel answers EINVAL or ERANGE for a name it could not have.
        if name.is_empty() || name.len() > 15 {
            return Err(Error::NoInterface(name.to_owned()));
        }
        let mut message = LinkMessage::default();
        message
            .attributes
            .push(LinkAttribute::IfName(name.to_owned()));
        Self::get(message, name)
    }

    /// The interface with this index.
    ///
    /// # Errors
    /// [`Error::NoInterface`], or a netlink failure.
    pub fn by_index(index: IfIndex) -> Result<Self, Error> {
        let mut message = LinkMessage::default();
        message.header.index = index.0;
        Self::get(message, &format!("with index {index}"))
    }

    fn get(message: LinkMessage, what: &str) -> Result<Self, Error> {
        let answers = match Socket::route(0)?.request(Message::GetLink(message), 0) {
            Ok(answers) => answers,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                return Err(Error::NoInterface(what.to_owned()));
            }
            Err(error) => return Err(Error::interface(what, "reading its state", error)),
        };
        answers
            .into_iter()
            .find_map(|answer| match answer {
                Message::NewLink(link) => Some(Self::from_message(&link)),
                _ => None,
            })
            .ok_or_else(|| Error::NoInterface(what.to_owned()))
    }

    /// All interfaces of this namespace.
    ///
    /// # Errors
    /// A netlink failure.
    pub fn all() -> Result<Vec<Self>, Error> {
        let answers = Socket::route(0)?
            .request(Message::GetLink(LinkMessage::default()), NLM_F_DUMP)
            .map_err(|error| Error::Netlink("listing interfaces", error))?;
        Ok(answers
            .iter()
            .filter_map(|answer| match answer {
                Message::NewLink(link) => Some(Self::from_message(link)),
                _ => None,
            })
            .collect())
    }

    pub(super) fn from_message(message: &LinkMessage) -> Self {
        let flags = message.header.flags;
        let mut link = Self {
            index: IfIndex(message.header.index),
            name: String::new(),
            up: flags.contains(LinkFlags::Up),
            running: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
            mtu: 0,
            mac: None,
            kind: None,
            master: None,
            vlan: None,
            rx_queues: 1,
            tx_queues: 1,
            xdp: Vec::new(),
            qdisc: None,
            stats: Stats64::default(),
        };
        let ethernet = message.header.link_layer_type == LinkLayerType::Ether;
        let (mut lower, mut vlan_id) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::Address(bytes) if ethernet => link.mac = Mac::from_bytes(bytes),
                LinkAttribute::Controller(index) => link.master = Some(IfIndex(*index)),
                LinkAttribute::Link(index) => lower = Some(IfIndex(*index)),
                LinkAttribute::NumRxQueues(queues) => link.rx_queues = *queues,
                LinkAttribute::NumTxQueues(queues) => link.tx_queues = *queues,
                LinkAttribute::Qdisc(name) => link.qdisc = Some(name.clone()),
                LinkAttribute::Stats64(stats) => link.stats = *stats,
                LinkAttribute::OperState(State::Down | State::LowerLayerDown) => {
                    link.running = false;
                }
                LinkAttribute::Xdp(xdp) => link.xdp = attachments(xdp),
                LinkAttribute::LinkInfo(infos) => {
                    for info in infos {
                        match info {
                            LinkInfo::Kind(kind) => link.kind = Some(kind.to_string()),
                            LinkInfo::Data(InfoData::Vlan(vlan)) => {
                                vlan_id = vlan.iter().find_map(|item| match item {
                                    InfoVlan::Id(id) => Some(*id),
                                    _ => None,
                                });
                            }
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        link.vlan = vlan_id.zip(lower).map(|(id, parent)| Vlan { id, parent });
        link
    }

    /// The device that XDP must attach to: the parent of a VLAN device, else this one.
    ///
    /// # Errors
    /// The parent can't be read, for example because it is in another namespace.
    pub fn xdp_device(&self) -> Result<Self, Error> {
        match self.vlan {
            None => Ok(self.clone()),
            Some(vlan) => Self::by_index(vlan.parent),
        }
    }

    /// Picoseconds of a pause quantum, 512 bit times at the link's rate; 0: the rate is not known. Call it in the link's
    /// namespace.
    pub fn pause_quantum_ps(&self) -> u32 {
        match ethtool::speed_mbps(&self.name) {
            Ok(Some(mbps)) => 512_000_000 / mbps,
            _ => 0,
        }
    }

    /// Its addresses.
    ///
    /// # Errors
    /// A netlink failure.
    pub fn addresses(&self) -> Result<Vec<Address>, Error> {
        let mut message = AddressMessage::default();
        message.header.index = self.index.0;
        let answers = Socket::route(0)?
            .request(Message::GetAddress(message), NLM_F_DUMP)
            .map_err(|error| Error::interface(&self.name, "listing its addresses", error))?;
        Ok(answers
            .iter()
            .filter_map(|answer| match answer {
                // Without strict checking the kernel lists all interfaces.
                Message::NewAddress(found) if found.header.index == self.index.0 => address(found),
                _ => None,
            })
            .collect())
    }
}

/// The address in an address message.
pub(super) fn address(message: &AddressMessage) -> Option<Address> {
    let (mut local, mut peer) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            // On a point-to-point link IFA_ADDRESS is the peer.
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => peer = Some(*ip),
            _ => {}
        }
    }
    let unusable = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
    Some(Address {
        ip: local.or(peer)?,
        prefix: message.header.prefix_len,
        tentative: message.header.flags.intersects(unusable),
    })
}

fn attachments(attributes: &[LinkXdp]) -> Vec<XdpAttachment> {
    let mut found = Vec::new();
    let (mut single, mut mode) = (None, None);
    for attribute in attributes {
        match attribute {
            LinkXdp::DrvProgId(id) => found.push((*id, XdpMode::Driver)),
            LinkXdp::SkbProgId(id) => found.push((*id, XdpMode::Generic)),
            LinkXdp::HwProgId(id) => found.push((*id, XdpMode::Hardware)),
            LinkXdp::ProgId(id) => single = Some(*id),
            LinkXdp::Attached(XdpAttached::Driver) => mode = Some(XdpMode::Driver),
            LinkXdp::Attached(XdpAttached::SocketBuffer) => mode = Some(XdpMode::Generic),
            LinkXdp::Attached(XdpAttached::Hardware) => mode = Some(XdpMode::Hardware),
            _ => {}
        }
    }
    if found.is_empty()
        && let (Some(id), Some(mode)) = (single, mode)
    {
        found.push((id, mode));
    }
    found
        .into_iter()
        .filter(|(id, _)| *id != 0)
        .map(|(id, mode)| XdpAttachment {
            id,
            mode,
            name: program_name(id),
        })
        .collect()
}

fn program_name(id: u32) -> Option<String> {
    let program = aya::programs::loaded_programs().find_map(|program| {
        let program = program.ok()?;
        (program.id() == id).then_some(program)
    })?;
    program.name_as_str().map(str::to_owned)
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Netlink("talking to the kernel", error)
    }
}
