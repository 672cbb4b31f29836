//! All extension headers of a packet, read when they are asked for.

use crate::{
    bytes::Bytes,
    headers::{
        Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Rdeth, Reth, Sack, Sreth,
        Xrceth,
    },
    opcode::ext,
    parse::Packet,
};
use network_types::udp::UdpHdr;

/// What stands between BTH and payload; `None`: the opcode has no such header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extensions {
    /// RD: end-to-end context.
    pub rdeth: Option<Rdeth>,
    /// UD and RD: Q_Key and the sender's QP.
    pub deth: Option<Deth>,
    /// XRC: shared receive queue.
    pub xrceth: Option<Xrceth>,
    /// FLUSH.
    pub feth: Option<Feth>,
    /// WRITE, READ, FLUSH, ATOMIC WRITE: address, rkey, length.
    pub reth: Option<Reth>,
    /// COMPARE SWAP, FETCH ADD.
    pub atomic: Option<AtomicEth>,
    /// Acknowledgements and READ responses.
    pub aeth: Option<Aeth>,
    /// ATOMIC Acknowledge: what stood there before.
    pub atomic_ack: Option<u64>,
    /// Immediate data, as a big-endian number.
    pub imm: Option<u32>,
    /// SEND with invalidate: the rkey.
    pub ieth: Option<u32>,
    /// Selective repeat: place and transmission.
    pub sreth: Option<Sreth>,
    /// Selective repeat: what has arrived.
    pub sack: Option<Sack>,
    /// Where the payload begins, in bytes from the frame's start.
    pub payload_at: u32,
}

/// Reads the extension headers of a packet of this frame. `None`: the opcode is undefined, or a header was not
/// captured.
#[inline]
pub fn extensions<B: Bytes + ?Sized>(frame: &B, packet: &Packet) -> Option<Extensions> {
    let set = packet.bth.opcode.extensions()?;
    let mut out = Extensions::default();
    let mut at = packet.udp_at as usize + UdpHdr::LEN + Bth::LEN;
    if set & ext::SRETH != 0 {
        out.sreth = Some(Sreth::parse(&frame.load(at)?));
        at += Sreth::LEN;
    }
    // In the order of rxe_opcode.c's offsets.
    if set & ext::RDETH != 0 {
        out.rdeth = Some(Rdeth::parse(&frame.load(at)?));
        at += Rdeth::LEN;
    }
    if set & ext::DETH != 0 {
        out.deth = Some(Deth::parse(&frame.load(at)?));
        at += Deth::LEN;
    }
    if set & ext::XRCETH != 0 {
        out.xrceth = Some(Xrceth::parse(&frame.load(at)?));
        at += Xrceth::LEN;
    }
    if set & ext::FETH != 0 {
        out.feth = Some(Feth::parse(&frame.load(at)?));
        at += Feth::LEN;
    }
    if set & ext::RETH != 0 {
        out.reth = Some(Reth::parse(&frame.load(at)?));
        at += Reth::LEN;
    }
    if set & ext::ATOMIC != 0 {
        out.atomic = Some(AtomicEth::parse(&frame.load(at)?));
        at += AtomicEth::LEN;
    }
    if set & ext::AETH != 0 {
        out.aeth = Some(Aeth::parse(&frame.load(at)?));
        at += Aeth::LEN;
    }
    if set & ext::ATOMIC_ACK != 0 {
        out.atomic_ack = Some(AtomicAckEth::parse(&frame.load(at)?).original);
        at += AtomicAckEth::LEN;
    }
    if set & ext::IMM != 0 {
        out.imm = Some(ImmDt::parse(&frame.load(at)?).data);
        at += ImmDt::LEN;
    }
    if set & ext::IETH != 0 {
        out.ieth = Some(Ieth::parse(&frame.load(at)?).rkey);
        at += Ieth::LEN;
    }
    if set & ext::SACK != 0 {
        out.sack = Some(Sack::parse(&frame.load(at)?));
        at += Sack::LEN;
    }
    out.payload_at = at as u32;
    Some(out)
}
