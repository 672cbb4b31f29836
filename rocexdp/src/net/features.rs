//! What a device's driver can do with XDP and AF_XDP, as the kernel's `netdev` generic netlink family tells.
//!
//! The loader chooses by this, not by kernel version. Follows the kernel's Documentation/netlink/specs/netdev.yaml; the
//! family is there since Linux 6.3, `xdp-zc-max-segs` since 6.6.

use std::io;

use netlink_packet_core::{
    DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable, NlasIterator,
};

use super::{Error, IfIndex, netlink::Socket};

const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;

/// XDP features of a device (`enum netdev_xdp_act`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpFeatures {
    bits: u64,
    zc_max_segs: u32,
}

impl XdpFeatures {
    const BASIC: u64 = 1 << 0;
    const REDIRECT: u64 = 1 << 1;
    const NDO_XMIT: u64 = 1 << 2;
    const XSK_ZEROCOPY: u64 = 1 << 3;
    const RX_SG: u64 = 1 << 5;
    const NDO_XMIT_SG: u64 = 1 << 6;

    /// Reads the features of an interface. `Ok(None)` when the kernel has no such interface to ask (before 6.3).
    ///
    /// # Errors
    /// The interface is missing or netlink fails.
    pub fn of(index: IfIndex) -> Result<Option<Self>, Error> {
        let doing = "reading XDP features";
        let failed = |error| Error::Interface(format!("with index {index}"), doing, error);
        let mut socket = Socket::generic().map_err(failed)?;
        let Some(family) = family(&mut socket, "netdev").map_err(failed)? else {
            return Ok(None);
        };
        let request = Generic::new(family, NETDEV_CMD_DEV_GET)
            .attribute(NETDEV_A_DEV_IFINDEX, &index.0.to_ne_bytes());
        let mut features = Self::default();
        for answer in socket.request(request, 0).map_err(failed)? {
            for (kind, value) in answer.attributes() {
                match kind {
                    NETDEV_A_DEV_XDP_FEATURES => features.bits = unsigned(&value),
                    NETDEV_A_DEV_XDP_ZC_MAX_SEGS => {
                        features.zc_max_segs = u32::try_from(unsigned(&value)).unwrap_or(0);
                    }
                    _ => {}
                }
            }
        }
        Ok(Some(features))
    }

    /// The raw bits of `enum netdev_xdp_act`.
    pub fn bits(self) -> u64 {
        self.bits
    }

    /// Runs XDP programs in the driver: aborted, drop, pass, tx.
    pub fn basic(self) -> bool {
        self.bits & Self::BASIC != 0
    }

    /// Programs may redirect.
    pub fn redirect(self) -> bool {
        self.bits & Self::REDIRECT != 0
    }

    /// Can be the target of a redirect (AF_XDP receive does not need that).
    pub fn redirect_target(self) -> bool {
        self.bits & Self::NDO_XMIT != 0
    }

    /// Can be the target of a redirect of frames in fragments.
    pub fn redirect_target_frags(self) -> bool {
        self.bits & Self::NDO_XMIT_SG != 0
    }

    /// AF_XDP sockets may bind in zero-copy mode.
    pub fn zero_copy(self) -> bool {
        self.bits & Self::XSK_ZEROCOPY != 0
    }

    /// Receives frames in fragments while an XDP program is attached, if that is aware of fragments.
    pub fn rx_frags(self) -> bool {
        self.bits & Self::RX_SG != 0
    }

    /// Fragments of a frame sent in zero-copy mode at most; 0 where not known.
    pub fn zero_copy_max_segments(self) -> u32 {
        self.zc_max_segs
    }

    /// The names of the features set, for people.
    pub fn names(self) -> Vec<&'static str> {
        [
            (Self::BASIC, "basic"),
            (Self::REDIRECT, "redirect"),
            (Self::NDO_XMIT, "ndo-xmit"),
            (Self::XSK_ZEROCOPY, "xsk-zerocopy"),
            (1 << 4, "hw-offload"),
            (Self::RX_SG, "rx-sg"),
            (Self::NDO_XMIT_SG, "ndo-xmit-sg"),
        ]
        .into_iter()
        .filter_map(|(bit, name)| (self.bits & bit != 0).then_some(name))
        .collect()
    }
}

/// A number of whatever width the kernel chose (`uint` is 4 or 8 bytes).
fn unsigned(value: &[u8]) -> u64 {
    if let Ok(bytes) = value.try_into() {
        u64::from_ne_bytes(bytes)
    } else if let Ok(bytes) = value.try_into() {
        u64::from(u32::from_ne_bytes(bytes))
    } else {
        0
    }
}

/// The number of a generic netlink family, `None` when the kernel has none of that name.
fn family(socket: &mut Socket, name: &str) -> io::Result<Option<u16>> {
    let mut text = name.as_bytes().to_vec();
    text.push(0);
    let request =
        Generic::new(GENL_ID_CTRL, CTRL_CMD_GETFAMILY).attribute(CTRL_ATTR_FAMILY_NAME, &text);
    let answers = match socket.request(request, 0) {
        Ok(answers) => answers,
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(answers
        .iter()
        .flat_map(Generic::attributes)
        .find_map(|(kind, value)| {
            let bytes = <[u8; 2]>::try_from(value.as_slice()).ok()?;
            (kind == CTRL_ATTR_FAMILY_ID).then(|| u16::from_ne_bytes(bytes))
        }))
}

/// A generic netlink message: command, version 1, attributes.
#[derive(Clone, Debug)]
struct Generic {
    family: u16,
    bytes: Vec<u8>,
}

impl Generic {
    fn new(family: u16, command: u8) -> Self {
        Self {
            family,
            bytes: vec![command, 1, 0, 0],
        }
    }

    fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    fn attributes(&self) -> Vec<(u16, Vec<u8>)> {
        NlasIterator::new(self.bytes.get(4..).unwrap_or_default())
            .filter_map(Result::ok)
            .map(|attribute| (attribute.kind(), attribute.value().to_vec()))
            .collect()
    }
}

impl NetlinkSerializable for Generic {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        self.bytes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.bytes);
    }
}

impl NetlinkDeserializable for Generic {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self {
            family: header.message_type,
            bytes: payload.to_vec(),
        })
    }
}
