//! Frames put together: a header template per QP, the headers of one packet, and a packet ready to be written out.
//!
//! On the wire as hardware does it: IPv4 with DF and identification 0, UDP checksum 0, data and acknowledgements ECT(0),
//! CNPs ECT(0) with their own DSCP and UDP source port 0 (capture of a ConnectX-4 Lx in the tests).
//!
//! Acknowledgements are ECT(0) too and carry the data's DSCP: where a switch marks ECT packets it drops the others.
//!
//! Must not: keep state of a QP.

use rocexdp_common::headers::{Bth, ICRC_LEN, ROCE_UDP_PORT};
use rocexdp_common::opcode::CNP;

use super::path::{ipv4_of, path_source_port, udp_source_port};
use super::{
    DEFAULT_PKEY, ETH_HEADER, ETHERTYPE_8021Q, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Icrc, PROTOCOL_UDP,
    Path, UDP_HEADER, VLAN_TAG, put,
};
use crate::ids::{Psn, Qpn};
use crate::mem::{Memory, MemoryFault, SgList};

/// Ethernet, a VLAN tag, IPv6, UDP.
const TEMPLATE: usize = ETH_HEADER + VLAN_TAG + 40 + UDP_HEADER;
/// Bytes of extension headers at most: a manufacturer packet's (RC's longest is AtomicETH, 28).
const EXTENSIONS: usize = 64;
/// All that stands before a payload.
const HEADERS: usize = TEMPLATE + Bth::LEN + EXTENSIONS;
/// ECT(0).
const ECT0: u8 = 2;
/// Zero bytes behind the BTH of a CNP.
const CNP_RESERVED: usize = 16;
/// IEEE 802 local experimental ethertype, of a frame that says nothing.
const ETHERTYPE_VOID: [u8; 2] = [0x88, 0xb5];

/// Ethernet to UDP of a QP's packets, all but the lengths filled in.
#[derive(Clone, Debug)]
pub struct HeaderTemplate {
    bytes: [u8; TEMPLATE],
    len: usize,
    ip: usize,
    ipv6: bool,
    /// Ones' complement sum of the IPv4 header with length and checksum 0.
    sum: u32,
}

impl HeaderTemplate {
    /// For the QP's requests and acknowledgements.
    #[must_use]
    pub fn data(path: &Path, local: Qpn, remote: Qpn, dscp: u8) -> Self {
        let port = udp_source_port(path.flow_label, local, remote);
        Self::new(path, port, dscp, path.sl)
    }

    /// As [`HeaderTemplate::data`], for path `n` of the QP: it differs in the UDP source port, by which networks choose the way.
    #[must_use]
    pub fn data_on(path: &Path, local: Qpn, remote: Qpn, dscp: u8, n: u8) -> Self {
        let port = udp_source_port(path.flow_label, local, remote);
        Self::new(path, path_source_port(port, n), dscp, path.sl)
    }

    /// For the QP's CNPs.
    #[must_use]
    pub fn cnp(path: &Path, dscp: u8, priority: u8) -> Self {
        Self::new(path, 0, dscp, priority)
    }

    fn new(path: &Path, source_port: u16, dscp: u8, priority: u8) -> Self {
        let mut t = Self {
            bytes: [0; TEMPLATE],
            len: 0,
            ip: 0,
            ipv6: false,
            sum: 0,
        };
        let tos = (dscp << 2) | ECT0;
        t.push(&path.dst_mac);
        t.push(&path.src_mac);
        if let Some(vid) = path.vlan {
            t.push(&ETHERTYPE_8021Q.to_be_bytes());
            t.push(&(u16::from(priority & 7) << 13 | (vid & 0xfff)).to_be_bytes());
        }
        match (ipv4_of(&path.src), ipv4_of(&path.dst)) {
            (Some(src), Some(dst)) => {
                t.push(&ETHERTYPE_IPV4.to_be_bytes());
                t.ip = t.len;
                t.push(&[
                    0x45,
                    tos,
                    0,
                    0,
                    0,
                    0,
                    0x40,
                    0,
                    path.hop_limit,
                    PROTOCOL_UDP,
                    0,
                    0,
                ]);
                t.push(&src);
                t.push(&dst);
                let header = t.bytes.get(t.ip..t.len).unwrap_or(&[]);
                t.sum = header
                    .chunks_exact(2)
                    .filter_map(|w| w.first_chunk().copied())
                    .map(|w| u32::from(u16::from_be_bytes(w)))
                    .sum();
            }
            _ => {
                t.push(&ETHERTYPE_IPV6.to_be_bytes());
                t.ip = t.len;
                t.ipv6 = true;
                let first = 6 << 28 | u32::from(tos) << 20 | (path.flow_label & 0xf_ffff);
                t.push(&first.to_be_bytes());
                t.push(&[0, 0, PROTOCOL_UDP, path.hop_limit]);
                t.push(&path.src);
                t.push(&path.dst);
            }
        }
        t.push(&source_port.to_be_bytes());
        t.push(&ROCE_UDP_PORT.to_be_bytes());
        t.push(&[0; 4]);
        t
    }

    fn push(&mut self, bytes: &[u8]) {
        put(&mut self.bytes, self.len, bytes);
        self.len += bytes.len();
    }

    /// The next hop has another link address.
    pub fn set_dst_mac(&mut self, mac: [u8; 6]) {
        put(&mut self.bytes, 0, &mac);
    }

    /// For datagrams to any QP there, with any DSCP: both come with [`HeaderTemplate::start_datagram`].
    #[must_use]
    pub fn datagram(path: &Path) -> Self {
        Self::new(path, 0, 0, path.sl)
    }

    /// As [`HeaderTemplate::start`], with this UDP source port and DSCP.
    pub fn start_datagram(
        &self,
        out: &mut HeaderBuf,
        udp_payload: usize,
        source_port: u16,
        dscp: u8,
    ) {
        let tos = dscp << 2;
        let mut sum = self.sum;
        if !self.ipv6 {
            sum += u32::from(tos);
        }
        self.start_with(out, udp_payload, sum);
        put(&mut out.bytes, out.udp, &source_port.to_be_bytes());
        if tos == 0 {
            return;
        }
        // Into what the template has there: ECT(0).
        if self.ipv6 {
            let first = (0x6000u16 | u16::from(tos | ECT0) << 4).to_be_bytes();
            let [high, low] = first;
            let label = self.bytes.get(self.ip + 1).map_or(0, |b| b & 0xf);
            put(&mut out.bytes, self.ip, &[high, low | label]);
        } else {
            put(&mut out.bytes, self.ip + 1, &[tos | ECT0]);
        }
    }

    /// Starts a packet with `udp_payload` bytes behind the UDP header.
    pub fn start(&self, out: &mut HeaderBuf, udp_payload: usize) {
        self.start_with(out, udp_payload, self.sum);
    }

    /// `sum` is that of the IPv4 header without its length.
    fn start_with(&self, out: &mut HeaderBuf, udp_payload: usize, sum: u32) {
        out.clear();
        out.push(self.bytes.get(..self.len).unwrap_or(&[]));
        out.ip = self.ip;
        out.udp = self.len - UDP_HEADER;
        let udp = (udp_payload + UDP_HEADER) as u16;
        put(&mut out.bytes, out.udp + 4, &udp.to_be_bytes());
        if self.ipv6 {
            put(&mut out.bytes, self.ip + 4, &udp.to_be_bytes());
        } else {
            let total = udp + 20;
            put(&mut out.bytes, self.ip + 2, &total.to_be_bytes());
            let sum = sum + u32::from(total);
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            put(&mut out.bytes, self.ip + 10, &(!(sum as u16)).to_be_bytes());
        }
    }

    /// A whole CNP for the peer's QP, but for the ICRC.
    pub fn cnp_packet(&self, out: &mut HeaderBuf, peer: Qpn) {
        self.start(out, Bth::LEN + CNP_RESERVED + ICRC_LEN);
        let bth = Bth {
            opcode: CNP,
            solicited: false,
            mig_req: false,
            pad: 0,
            version: 0,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: true,
            dest_qpn: peer,
            ack_req: false,
            psn: Psn::new(0),
        };
        out.push_bth(&bth);
        out.push(&[0; CNP_RESERVED]);
    }
}

/// The headers of one packet, from Ethernet on.
#[derive(Clone, Debug)]
pub struct HeaderBuf {
    bytes: [u8; HEADERS],
    len: usize,
    ip: usize,
    udp: usize,
}

impl Default for HeaderBuf {
    fn default() -> Self {
        Self {
            bytes: [0; HEADERS],
            len: 0,
            ip: 0,
            udp: 0,
        }
    }
}

impl HeaderBuf {
    fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends a header.
    pub fn push(&mut self, bytes: &[u8]) {
        put(&mut self.bytes, self.len, bytes);
        self.len = (self.len + bytes.len()).min(HEADERS);
    }

    /// Appends a BTH.
    pub fn push_bth(&mut self, bth: &Bth) {
        let mut b = [0; Bth::LEN];
        bth.emit(&mut b);
        self.push(&b);
    }

    /// The headers so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// Another DSCP than the template's, and another priority in its VLAN tag, if it has one.
    pub(crate) fn remark(&mut self, dscp: u8, pcp: u8) {
        let tos = dscp << 2 | ECT0;
        let ip = self.ip;
        let tagged = ip > ETH_HEADER;
        if let Some(tag) = self.bytes.get_mut(ETH_HEADER).filter(|_| tagged) {
            *tag = pcp << 5 | *tag & 0x1f;
        }
        let Some([first, second]) = self.bytes.get_mut(ip..).and_then(|b| b.first_chunk_mut())
        else {
            return;
        };
        if *first >> 4 == 6 {
            *first = 0x60 | tos >> 4;
            *second = tos << 4 | *second & 0xf;
            return;
        }
        let old = core::mem::replace(second, tos);
        let Some(sum) = self
            .bytes
            .get_mut(ip + 10..)
            .and_then(|b| b.first_chunk_mut())
        else {
            return;
        };
        // RFC 1624, equation 3.
        let sum16 =
            u32::from(!u16::from_be_bytes(*sum)) + u32::from(!u16::from(old)) + u32::from(tos);
        let folded = (sum16 & 0xffff) + (sum16 >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        *sum = (!(folded as u16)).to_be_bytes();
    }

    /// The ICRC over these headers, to be continued over payload and pad.
    fn icrc(&self) -> Option<Icrc> {
        let bth = self.udp + UDP_HEADER + Bth::LEN;
        let mut crc = Icrc::over_headers(self.bytes().get(self.ip..bth)?, self.udp - self.ip)?;
        crc.update(self.bytes().get(bth..)?);
        Some(crc)
    }
}

/// What kind of packet leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransmitKind {
    /// Congestion notification.
    Cnp,
    /// ACK, NAK or RNR NAK.
    Acknowledge,
    /// Request, sent for the first time.
    Request,
    /// Request, sent again.
    Retransmission,
    /// READ response, or atomic acknowledge.
    Response,
}

/// Where a packet's payload is.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// None.
    Nothing,
    /// A work request's bytes, from this one on.
    List(&'a SgList, u32),
    /// Memory that the peer reads, from this offset on.
    Memory(&'a dyn Memory, u64),
}

/// A packet that leaves now: headers here, payload still in the application's memory.
///
/// For the transport it has been sent. The driver writes it into a frame of [`Transmit::len`] bytes.
pub struct Transmit<'a> {
    pub(crate) headers: &'a HeaderBuf,
    pub(crate) payload: Source<'a>,
    pub(crate) payload_len: usize,
    pub(crate) qpn: Qpn,
    pub(crate) kind: TransmitKind,
    pub(crate) priority: u8,
}

impl Transmit<'_> {
    /// Bytes of the frame, without FCS.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // No frame is empty.
    pub fn len(&self) -> usize {
        self.headers.len + self.payload_len + self.pad() + ICRC_LEN
    }

    /// The frame up to its payload. Behind it come [`Transmit::payload_len`] bytes, pad to a multiple of four, and the ICRC.
    #[must_use]
    pub fn headers(&self) -> &[u8] {
        self.headers.bytes()
    }

    /// Bytes of payload, without pad.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.payload_len
    }

    /// The local QP.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> TransmitKind {
        self.kind
    }

    /// Its priority, 0..=7, by the endpoint's traffic classes.
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.priority
    }

    fn pad(&self) -> usize {
        self.payload_len.wrapping_neg() & 3
    }

    /// Writes the frame into `pieces`, whose lengths sum to [`Transmit::len`]. The payload is copied once, straight from the
    /// application's memory.
    ///
    /// # Errors
    /// [`MemoryFault`] if the application's memory could not be read. The pieces then hold a frame that no one takes
    /// (addressed to ourselves, local experimental ethertype), so that it may be sent or thrown away; call
    /// `Endpoint::transmit_failed`.
    pub fn write(&self, pieces: &mut [&mut [u8]]) -> Result<(), MemoryFault> {
        let done = self.fill(pieces);
        if done.is_err() {
            self.void(pieces);
        }
        done
    }

    fn fill(&self, pieces: &mut [&mut [u8]]) -> Result<(), MemoryFault> {
        let mut crc = self.headers.icrc().ok_or(MemoryFault)?;
        let headers = self.headers.bytes();
        scatter(pieces, 0, headers);
        let (mut at, mut offset) = (headers.len(), 0);
        for piece in pieces.iter_mut() {
            let Some(rest) = piece.get_mut(at..) else {
                at -= piece.len();
                continue;
            };
            at = 0;
            let room = rest.len().min(self.payload_len - offset);
            let Some(dst) = rest.get_mut(..room).filter(|d| !d.is_empty()) else {
                continue;
            };
            match self.payload {
                Source::Nothing => return Err(MemoryFault),
                Source::List(list, start) => {
                    list.read(start.checked_add(offset as u32).ok_or(MemoryFault)?, dst)?;
                }
                Source::Memory(mem, start) => {
                    mem.read(start.checked_add(offset as u64).ok_or(MemoryFault)?, dst)?;
                }
            }
            crc.update(dst);
            offset += room;
        }
        let pad = [0u8; 3];
        let pad = pad.get(..self.pad()).unwrap_or(&[]);
        crc.update(pad);
        let behind = headers.len() + self.payload_len;
        scatter(pieces, behind, pad);
        scatter(pieces, behind + pad.len(), &crc.finish());
        Ok(())
    }

    fn void(&self, pieces: &mut [&mut [u8]]) {
        for piece in pieces.iter_mut() {
            piece.fill(0);
        }
        let own = self.headers.bytes().get(6..12).unwrap_or(&[]);
        scatter(pieces, 0, own);
        scatter(pieces, 6, own);
        scatter(pieces, 12, &ETHERTYPE_VOID);
    }
}

/// Writes `bytes` at `at` of a frame in pieces.
fn scatter(pieces: &mut [&mut [u8]], at: usize, bytes: &[u8]) {
    let (mut skip, mut left) = (at, bytes);
    for piece in pieces.iter_mut() {
        let Some(rest) = piece.get_mut(skip..) else {
            skip -= piece.len();
            continue;
        };
        skip = 0;
        let (now, later) = left.split_at(left.len().min(rest.len()));
        put(rest, 0, now);
        left = later;
    }
}
