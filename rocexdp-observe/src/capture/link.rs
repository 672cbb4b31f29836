//! Link types of captures: those whose packets are read, and the names of others that people meet.
//!
//! Numbers: LINKTYPE_ values of libpcap (`pcap/dlt.h`, `pcap-common.c`). Cooked headers: `pcap/sll.h`.

use std::fmt;

/// How the packets of an interface start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LinkType {
    /// Ethernet header.
    Ethernet,
    /// IPv4 or IPv6 header, told by its version.
    Ip,
    /// Linux cooked capture: 16 bytes, the protocol in the last two.
    Sll,
    /// Linux cooked capture, version 2: 20 bytes, the protocol in the first two.
    Sll2,
    /// Not read: the number.
    Other(u16),
}

const ETHERNET: u16 = 1;
/// DLT_RAW of most systems: old files have it where LINKTYPE_RAW belongs.
const DLT_RAW: u16 = 12;
const RAW: u16 = 101;
const SLL: u16 = 113;
const IPV4: u16 = 228;
const IPV6: u16 = 229;
const SLL2: u16 = 276;

const SLL_LEN: usize = 16;
const SLL2_LEN: usize = 20;

impl LinkType {
    /// The type of a LINKTYPE_ number.
    pub const fn from_number(number: u16) -> Self {
        match number {
            ETHERNET => Self::Ethernet,
            DLT_RAW | RAW | IPV4 | IPV6 => Self::Ip,
            SLL => Self::Sll,
            SLL2 => Self::Sll2,
            other => Self::Other(other),
        }
    }

    /// The LINKTYPE_ number to write.
    pub const fn number(self) -> u16 {
        match self {
            Self::Ethernet => ETHERNET,
            Self::Ip => RAW,
            Self::Sll => SLL,
            Self::Sll2 => SLL2,
            Self::Other(number) => number,
        }
    }

    /// Whether its packets can be read for RoCE.
    pub const fn is_read(self) -> bool {
        !matches!(self, Self::Other(_))
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Ethernet => "Ethernet",
            Self::Ip => "raw IP",
            Self::Sll => "Linux cooked (SLL)",
            Self::Sll2 => "Linux cooked (SLL2)",
            Self::Other(number) => match number {
                0 | 108 => "BSD loopback",
                6 => "Token Ring",
                8 => "SLIP",
                9 | 50 | 51 => "PPP",
                10 => "FDDI",
                104 => "Cisco HDLC",
                105 | 119 | 127 | 163 => "IEEE 802.11",
                117 => "pflog",
                187 | 201 => "Bluetooth HCI",
                189 | 220 => "USB",
                192 => "PPI",
                197 => "ERF",
                227 => "CAN",
                239 => "NFLOG",
                247 => "InfiniBand",
                249 => "USBPcap",
                252 => "exported PDUs of Wireshark",
                253 => "Netlink",
                _ => return write!(f, "link type {number}"),
            },
        };
        match self {
            Self::Other(number) => write!(f, "{name} (link type {number})"),
            _ => f.write_str(name),
        }
    }
}

/// What a packet starts with, once a cooked header is off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Start {
    /// An Ethernet header.
    Ethernet,
    /// An IPv4 or IPv6 header.
    Ip,
    /// At this offset, what this EtherType says.
    EtherType(u32, u16),
    /// Not told: cut within the cooked header.
    Unknown,
}

/// Where reading starts in a packet of this link type. VLAN tags that libpcap put back behind a cooked header
/// (`pcap-linux.c`) are left to the parser.
pub(super) fn start(link: LinkType, data: &[u8]) -> Start {
    let (protocol_at, at) = match link {
        LinkType::Ethernet => return Start::Ethernet,
        LinkType::Ip => return Start::Ip,
        LinkType::Sll => (SLL_LEN - 2, SLL_LEN),
        LinkType::Sll2 => (0, SLL2_LEN),
        LinkType::Other(_) => return Start::Unknown,
    };
    match u16_at(data, protocol_at) {
        Some(protocol) if data.len() >= at => Start::EtherType(at as u32, protocol),
        _ => Start::Unknown,
    }
}

fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*data.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cooked_headers_tell_where_the_packet_starts() {
        let mut sll = [0u8; 24];
        [sll[14], sll[15]] = [0x81, 0x00];
        assert_eq!(start(LinkType::Sll, &sll), Start::EtherType(16, 0x8100));
        assert_eq!(start(LinkType::Sll, &sll[..15]), Start::Unknown);
        let mut sll2 = [0u8; 24];
        [sll2[0], sll2[1]] = [0x89, 0x15];
        assert_eq!(start(LinkType::Sll2, &sll2), Start::EtherType(20, 0x8915));
        assert_eq!(start(LinkType::Sll2, &sll2[..19]), Start::Unknown);
    }

    #[test]
    fn a_number_written_is_read_back() {
        for number in 0..400 {
            let link = LinkType::from_number(number);
            assert_eq!(LinkType::from_number(link.number()), link);
        }
    }
}
