//! What the reference's hosts send: data packets and acknowledgements, as small records.
//!
//! Sizes are its wire's: 48 B of headers before the payload, 60 B for an acknowledgement, nothing for preamble, FCS and gap.

use rocexdp_sim::net::Packet;
use rocexdp_sim::switch::Queued;
use rocexdp_sim::topology::HostId;

use super::case::HEADERS;
use super::files::NodeId;

/// Bytes of an acknowledgement.
pub const ACK_LEN: u32 = 60;

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `payload` bytes from `sequence` on.
    Data,
    /// Everything below `sequence` has arrived.
    Ack,
    /// So has it, and what came was further on.
    Nack,
}

/// A packet. Acknowledgements have the flow's ends and ports swapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefPacket {
    /// Data or acknowledgement.
    pub kind: Kind,
    /// Its flow's place in the case's list.
    pub flow: u32,
    /// Where it comes from, by the reference's number.
    pub source: NodeId,
    /// Where it goes, by the reference's number.
    pub target: NodeId,
    /// The same, by the simulator's.
    pub destination: HostId,
    /// Where it comes from, by the simulator's.
    pub origin: HostId,
    /// UDP source port.
    pub source_port: u16,
    /// UDP destination port.
    pub destination_port: u16,
    /// First byte of the payload, or what is expected next.
    pub sequence: u32,
    /// Bytes of payload.
    pub payload: u32,
    /// Priority.
    pub priority: u8,
    /// Congestion Experienced.
    pub ce: bool,
    /// On an acknowledgement: the CNP flag.
    pub cnp: bool,
}

/// IPv4 address of a node (`node_id_to_ip`).
pub(super) const fn address(node: NodeId) -> u32 {
    0x0b00_0001 + ((node.0 / 256) << 16) + ((node.0 % 256) << 8)
}

impl RefPacket {
    /// Bytes that it takes of buffers and links.
    #[must_use]
    pub const fn bytes(&self) -> u32 {
        match self.kind {
            Kind::Data => self.payload + HEADERS as u32,
            Kind::Ack | Kind::Nack => ACK_LEN,
        }
    }

    /// What the reference hashes: addresses and ports, as three little-endian words.
    fn key(&self) -> [u32; 3] {
        [
            address(self.source),
            address(self.target),
            u32::from(self.source_port) | u32::from(self.destination_port) << 16,
        ]
    }
}

/// MurmurHash3 (Appleby), 32 bits, of whole words: what `EcmpHash` of `switch-node.cc` is.
fn murmur3(words: &[u32], seed: u32) -> u32 {
    let mut hash = seed;
    for word in words {
        let mixed = word
            .wrapping_mul(0xcc9e_2d51)
            .rotate_left(15)
            .wrapping_mul(0x1b87_3593);
        hash = (hash ^ mixed)
            .rotate_left(13)
            .wrapping_mul(5)
            .wrapping_add(0xe654_6b64);
    }
    hash ^= 4 * words.len() as u32;
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

impl Queued for RefPacket {
    fn wire_len(&self) -> u32 {
        self.bytes()
    }

    fn priority(&self) -> u8 {
        self.priority
    }

    fn ecn_capable(&self) -> bool {
        true
    }

    fn mark(&mut self) {
        self.ce = true;
    }
}

impl Packet for RefPacket {
    fn destination(&self) -> HostId {
        self.destination
    }

    fn flow_hash(&self) -> u32 {
        murmur3(&self.key(), 0)
    }

    fn ecmp_hash(&self, seed: u32) -> u32 {
        murmur3(&self.key(), seed)
    }

    /// No link of the reference's changes bytes: its errors are losses.
    fn corrupt(&mut self, _: u64) {}

    /// Ethernet, IPv4 and, of data, UDP with the sequence number and priority; of acknowledgements, IP protocol 0xfc (0xfd: of
    /// a gap) with ports, flags, priority and sequence number (`qbb-header.cc`).
    fn write_frame(&self, out: &mut Vec<u8>) {
        let mac = |node: NodeId| {
            let [.., a, b, c, d] = u64::from(node.0).to_be_bytes();
            [2, 0, a, b, c, d]
        };
        let start = out.len();
        out.extend(mac(self.target));
        out.extend(mac(self.source));
        out.extend([0x08, 0x00]);
        let length = self.wire_len().saturating_sub(14);
        let protocol = match self.kind {
            Kind::Data => 17,
            Kind::Ack => 0xfc,
            Kind::Nack => 0xfd,
        };
        out.extend([0x45, if self.ce { 3 } else { 2 }]);
        out.extend(u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes());
        out.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
        out.extend(address(self.source).to_be_bytes());
        out.extend(address(self.target).to_be_bytes());
        out.extend(self.source_port.to_be_bytes());
        out.extend(self.destination_port.to_be_bytes());
        if self.kind == Kind::Data {
            let udp = length.saturating_sub(20);
            out.extend(u16::try_from(udp).unwrap_or(u16::MAX).to_be_bytes());
            out.extend([0, 0]);
            out.extend(self.sequence.to_be_bytes());
            out.extend(u16::from(self.priority).to_be_bytes());
        } else {
            out.extend(u16::from(self.cnp).to_be_bytes());
            out.extend(u16::from(self.priority).to_be_bytes());
            out.extend(self.sequence.to_be_bytes());
            out.resize(start + ACK_LEN as usize, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur3_gives_the_published_values() {
        let word = u32::from_le_bytes(*b"aaaa");
        assert_eq!(murmur3(&[word], 0x9747_b28c), 0x5a97_808a);
        assert_eq!(murmur3(&[], 1), 0x514e_28b7);
    }

    #[test]
    fn frames_are_as_long_as_their_kind() {
        let data = RefPacket {
            kind: Kind::Data,
            flow: 0,
            source: NodeId(3),
            target: NodeId(300),
            destination: HostId(0),
            origin: HostId(1),
            source_port: 10_000,
            destination_port: 100,
            sequence: 7_000,
            payload: 1_000,
            priority: 3,
            ce: false,
            cnp: false,
        };
        let mut frame = Vec::new();
        data.write_frame(&mut frame);
        // The payload is not kept.
        assert_eq!((data.wire_len(), frame.len()), (1_048, 48));
        assert_eq!(frame.get(26..34), Some(&[11, 0, 3, 1, 11, 1, 44, 1][..]));
        let ack = RefPacket {
            kind: Kind::Ack,
            ..data
        };
        frame.clear();
        ack.write_frame(&mut frame);
        assert_eq!((ack.wire_len(), frame.len()), (60, 60));
    }
}
