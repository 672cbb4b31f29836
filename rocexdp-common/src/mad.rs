//! Management datagrams: what UD packets to QP 1 carry. The common header, and the messages of the communication manager
//! ([`CmMessage`]), which tie the QPs of a connection together.
//!
//! Layouts: include/rdma/ib_mad.h (`struct ib_mad_hdr`), include/rdma/ibta_vol1_c12.h.

mod cm;
mod fields;
mod ip_cm;
mod names;

use crate::{
    bytes::Bytes,
    dissect::extensions,
    headers::{part, put},
    ids::Qpn,
    opcode::{Operation, Transport},
    parse::Packet,
};

pub use cm::{CmMessage, CmPath, Rep, Req, SidrRep, SidrReq};
pub use ip_cm::IpCm;
pub use names::{rej_reason_name, sidr_status_name};

/// The QP of general management (`IB_QP1`).
pub const GSI_QPN: Qpn = Qpn::new(1);
/// Bytes of a MAD (`IB_MGMT_MAD_SIZE`).
pub const MAD_LEN: usize = 256;
/// Bytes behind the common header.
pub const DATA_LEN: usize = MAD_LEN - Mad::LEN;
/// Management class of the communication manager (`IB_MGMT_CLASS_CM`).
pub const CLASS_CM: u8 = 0x07;
/// Its class version (`IB_CM_CLASS_VERSION`).
pub const CM_CLASS_VERSION: u8 = 2;

/// Method of all of its messages (`IB_MGMT_METHOD_SEND`).
pub const METHOD_SEND: u8 = 0x03;
/// Q_Key of QP 1 (`IB_QP1_QKEY`).
pub const GSI_QKEY: u32 = 0x8001_0000;
/// Q_Key of the RDMA CM's datagram services (`RDMA_UDP_QKEY`).
pub const RDMA_UDP_QKEY: u32 = 0x0123_4567;

/// The header that all MADs have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mad {
    /// 1.
    pub base_version: u8,
    /// Management class: 0x07 communication manager, 0x03 subnet administration, 0x04 performance ...
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method; bit 7: a response. 0x03: Send, the only one of the communication manager.
    pub method: u8,
    /// Status.
    pub status: u16,
    /// Defined by the class.
    pub class_specific: u16,
    /// Transaction.
    pub transaction_id: u64,
    /// Attribute: of the communication manager the kind of message.
    pub attribute: u16,
    /// Attribute modifier.
    pub modifier: u32,
}

impl Mad {
    /// Bytes on the wire.
    pub const LEN: usize = 24;

    /// Reads the header.
    pub const fn parse(b: &[u8; 24]) -> Self {
        Self {
            base_version: b[0],
            class: b[1],
            class_version: b[2],
            method: b[3],
            status: u16::from_be_bytes(part::<4, 2, 24>(b)),
            class_specific: u16::from_be_bytes(part::<6, 2, 24>(b)),
            transaction_id: u64::from_be_bytes(part::<8, 8, 24>(b)),
            attribute: u16::from_be_bytes(part::<16, 2, 24>(b)),
            modifier: u32::from_be_bytes(part::<20, 4, 24>(b)),
        }
    }

    /// A message of the communication manager.
    pub const fn cm(attribute: u16, transaction_id: u64) -> Self {
        Self {
            base_version: 1,
            class: CLASS_CM,
            class_version: CM_CLASS_VERSION,
            method: METHOD_SEND,
            status: 0,
            class_specific: 0,
            transaction_id,
            attribute,
            modifier: 0,
        }
    }

    /// Writes the header; reserved bytes become 0.
    pub const fn emit(&self, b: &mut [u8; 24]) {
        *b = [0; 24];
        b[0] = self.base_version;
        b[1] = self.class;
        b[2] = self.class_version;
        b[3] = self.method;
        put::<4, 2, 24>(b, self.status.to_be_bytes());
        put::<6, 2, 24>(b, self.class_specific.to_be_bytes());
        put::<8, 8, 24>(b, self.transaction_id.to_be_bytes());
        put::<16, 2, 24>(b, self.attribute.to_be_bytes());
        put::<20, 4, 24>(b, self.modifier.to_be_bytes());
    }
}

/// A management datagram in a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// Its header.
    pub mad: Mad,
    /// Where the bytes behind it begin in the frame: [`DATA_LEN`] of them belong to the packet, if as many were captured.
    pub data_at: u32,
    /// The sender's QP and Q_Key are in the packet's DETH; this is the QP.
    pub src_qpn: Qpn,
    /// The message, if it is one of the communication manager's that are known, and all of it was captured.
    pub cm: Option<CmMessage>,
}

/// The MAD of a packet; `None`: it carries none (no UD SEND to QP 1 of a MAD's length), or its header was not captured.
pub fn datagram<B: Bytes + ?Sized>(frame: &B, packet: &Packet) -> Option<Datagram> {
    let is_ud_send = packet.bth.opcode.transport() as u8 == Transport::Ud as u8
        && matches!(packet.operation, Some((Operation::Send, _)));
    if !is_ud_send || packet.bth.dest_qpn != GSI_QPN || packet.payload < MAD_LEN as u32 {
        return None;
    }
    let ext = extensions(frame, packet)?;
    let mad = Mad::parse(&frame.load(ext.payload_at as usize)?);
    let data_at = ext.payload_at + Mad::LEN as u32;
    let cm = if mad.base_version == 1
        && mad.class == CLASS_CM
        && mad.class_version == CM_CLASS_VERSION
    {
        frame
            .load(data_at as usize)
            .and_then(|data| CmMessage::parse(mad.attribute, &data))
    } else {
        None
    };
    Some(Datagram {
        mad,
        data_at,
        src_qpn: ext.deth?.src_qpn,
        cm,
    })
}
