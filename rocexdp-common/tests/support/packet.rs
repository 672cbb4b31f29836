//! Builds RoCEv2 frames byte by byte, right or wrong. Independent of the crate's parser and ICRC: the CRC here goes bit
//! by bit over a masked copy, as the standard words it.

use rocexdp_common::{
    headers::Bth,
    ids::{Gid, Psn, Qpn, gid_from_ipv4},
    opcode::Opcode,
};

/// An IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addr {
    V4([u8; 4]),
    V6([u8; 16]),
}

impl Addr {
    pub fn gid(self) -> Gid {
        match self {
            Self::V4(a) => gid_from_ipv4(a),
            Self::V6(a) => a,
        }
    }
}

pub const A4: Addr = Addr::V4([10, 0, 0, 1]);
pub const B4: Addr = Addr::V4([10, 0, 0, 2]);
pub const C4: Addr = Addr::V4([10, 0, 0, 3]);
pub const A6: Addr = Addr::V6([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
pub const B6: Addr = Addr::V6([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);

/// A frame to be built.
#[derive(Clone, Debug)]
pub struct Spec {
    /// VLAN tags: EtherType, tag control information.
    pub tags: Vec<(u16, u16)>,
    pub src: Addr,
    pub dst: Addr,
    /// Type of service or traffic class.
    pub tos: u8,
    /// IPv4 options, whole words.
    pub options: Vec<u8>,
    /// IPv6 extension headers: number, and what follows next header and length.
    pub extensions: Vec<(u8, Vec<u8>)>,
    pub sport: u16,
    pub dport: u16,
    pub bth: Bth,
    /// Reserved bits of BTH byte 4.
    pub resv6a: u8,
    /// Extension headers of the transport.
    pub headers: Vec<u8>,
    pub payload: Vec<u8>,
    /// Bytes behind the IP packet.
    pub padding: usize,
}

impl Spec {
    /// A packet from `A4` to `B4`, without extension headers and payload.
    pub fn new(opcode: Opcode, qpn: u32, psn: u32) -> Self {
        Self {
            tags: vec![],
            src: A4,
            dst: B4,
            tos: 2,
            options: vec![],
            extensions: vec![],
            sport: 0xc123,
            dport: 4791,
            bth: Bth {
                opcode,
                solicited: false,
                mig_req: false,
                pad: 0,
                version: 0,
                pkey: 0xffff,
                fecn: false,
                becn: false,
                dest_qpn: Qpn::new(qpn),
                ack_req: false,
                psn: Psn::new(psn),
            },
            resv6a: 0,
            headers: vec![],
            payload: vec![],
            padding: 0,
        }
    }

    /// A CNP as a ConnectX sends it.
    pub fn cnp(qpn: u32) -> Self {
        let mut s = Self::new(Opcode(0x81), qpn, 0);
        s.bth.becn = true;
        s.tos = 0xc2;
        s.sport = 0;
        s.payload = vec![0; 16];
        s
    }

    /// ACK or NAK.
    pub fn ack(qpn: u32, psn: u32, syndrome: u8, msn: u32) -> Self {
        let msn = msn.to_be_bytes();
        Self::new(Opcode(0x11), qpn, psn).headers(&[syndrome, msn[1], msn[2], msn[3]])
    }

    /// With a RETH of this length.
    pub fn reth(self, length: u32) -> Self {
        let mut h = vec![0x11; 12];
        h.extend(length.to_be_bytes());
        self.headers(&h)
    }

    pub fn headers(mut self, bytes: &[u8]) -> Self {
        self.headers = bytes.to_vec();
        self
    }

    /// With a payload of this many bytes, and the pad it needs.
    pub fn payload(mut self, len: usize) -> Self {
        self.payload = (0..len).map(|i| i as u8).collect();
        self.bth.pad = (len.wrapping_neg() & 3) as u8;
        self
    }

    pub fn from(mut self, src: Addr) -> Self {
        self.src = src;
        self
    }

    pub fn to(mut self, dst: Addr) -> Self {
        self.dst = dst;
        self
    }

    pub fn tos(mut self, tos: u8) -> Self {
        self.tos = tos;
        self
    }

    /// Offset of the IP header in the built frame.
    pub fn ip_at(&self) -> usize {
        14 + 4 * self.tags.len()
    }

    /// Offset of the UDP header in the built frame.
    pub fn udp_at(&self) -> usize {
        self.ip_at()
            + match self.src {
                Addr::V4(_) => 20 + self.options.len(),
                Addr::V6(_) => {
                    40 + self
                        .extensions
                        .iter()
                        .map(|(_, b)| 2 + b.len())
                        .sum::<usize>()
                }
            }
    }

    /// The frame, with right lengths and ICRC.
    pub fn build(&self) -> Vec<u8> {
        let mut f = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        for (ether_type, tci) in &self.tags {
            f.extend(ether_type.to_be_bytes());
            f.extend(tci.to_be_bytes());
        }
        let udp_len =
            8 + 12 + self.headers.len() + self.payload.len() + usize::from(self.bth.pad) + 4;
        let ip_at = f.len() + 2;
        match (self.src, self.dst) {
            (Addr::V4(src), Addr::V4(dst)) => {
                f.extend([8, 0]);
                let header_len = 20 + self.options.len();
                f.extend([0x40 | (header_len / 4) as u8, self.tos]);
                f.extend(((header_len + udp_len) as u16).to_be_bytes());
                f.extend([0x12, 0x34, 0x40, 0, 64, 17, 0, 0]);
                f.extend(src);
                f.extend(dst);
                f.extend(&self.options);
                let sum = checksum(&f[ip_at..]);
                f[ip_at + 10..ip_at + 12].copy_from_slice(&sum.to_be_bytes());
            }
            (Addr::V6(src), Addr::V6(dst)) => {
                f.extend([0x86, 0xdd]);
                f.extend([0x60 | self.tos >> 4, self.tos << 4 | 0x0a, 0xbc, 0xde]);
                let extensions: usize = self.extensions.iter().map(|(_, b)| 2 + b.len()).sum();
                f.extend(((extensions + udp_len) as u16).to_be_bytes());
                f.push(self.extensions.first().map_or(17, |(number, _)| *number));
                f.push(64);
                f.extend(src);
                f.extend(dst);
                for (i, (number, body)) in self.extensions.iter().enumerate() {
                    f.push(self.extensions.get(i + 1).map_or(17, |(number, _)| *number));
                    let len = 2 + body.len();
                    f.push(if *number == 51 {
                        len / 4 - 2
                    } else {
                        len / 8 - 1
                    } as u8);
                    f.extend(body);
                }
            }
            _ => panic!("addresses of two families"),
        }
        let udp_at = f.len();
        f.extend(self.sport.to_be_bytes());
        f.extend(self.dport.to_be_bytes());
        f.extend((udp_len as u16).to_be_bytes());
        f.extend([0, 0]);
        let mut bth = [0xa5; 12];
        self.bth.emit(&mut bth);
        bth[4] |= self.resv6a & 0x3f;
        f.extend(bth);
        f.extend(&self.headers);
        f.extend(&self.payload);
        f.extend(vec![0; usize::from(self.bth.pad)]);
        f.extend([0; 4]);
        seal(&mut f, ip_at, udp_at, udp_at + udp_len);
        f.extend(vec![0xee; self.padding]);
        f
    }
}

/// Writes the ICRC of the packet whose IP header, UDP header and end are given.
pub fn seal(frame: &mut [u8], ip_at: usize, udp_at: usize, end: usize) {
    let crc = icrc(&frame[ip_at..end - 4], udp_at - ip_at);
    frame[end - 4..end].copy_from_slice(&crc.to_le_bytes());
}

/// ICRC of a packet from its IP header on, without the ICRC itself.
pub fn icrc(packet: &[u8], udp_at: usize) -> u32 {
    let mut masked = packet.to_vec();
    let ones: &[usize] = if packet[0] >> 4 == 4 {
        &[1, 8, 10, 11]
    } else {
        &[1, 2, 3, 7]
    };
    for at in ones
        .iter()
        .copied()
        .chain([udp_at + 6, udp_at + 7, udp_at + 12])
    {
        masked[at] = 0xff;
    }
    if packet[0] >> 4 == 6 {
        masked[0] |= 0x0f;
    }
    let mut crc = !0u32;
    for byte in [0xff; 8].iter().chain(&masked) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 != 0 { 0xedb8_8320 } else { 0 };
        }
    }
    !crc
}

fn checksum(header: &[u8]) -> u16 {
    let mut sum: u32 = header
        .chunks(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Bytes of a string of hexadecimal digits.
pub fn hex(s: &str) -> Vec<u8> {
    (0..s.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap())
        .collect()
}

/// A small seeded generator (xorshift64*), so that a failure repeats.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 32) as usize % n
    }

    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}
