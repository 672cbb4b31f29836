//! Messages of the communication manager, with the names and places of include/rdma/ibta_vol1_c12.h.
//!
//! Each field's place stands once, in [`super::fields`], for reading and for writing.

use super::{
    DATA_LEN, IpCm,
    fields::{layout, messages},
};
use crate::ids::{Gid, Psn, Qpn};

pub(super) type Data = [u8; DATA_LEN];

/// One path of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmPath {
    /// LID of the sender's port; 0xffff over RoCE.
    pub local_lid: u16,
    /// LID of the receiver's port.
    pub remote_lid: u16,
    /// The sender's address.
    pub local_gid: Gid,
    /// The receiver's address.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Packet rate, as encoded.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
    /// The path does not leave the subnet.
    pub subnet_local: bool,
    /// Local ACK timeout t: 4.096 us * 2^t.
    pub local_ack_timeout: u8,
}

impl CmPath {
    /// No path.
    pub const NONE: Self = Self {
        local_lid: 0,
        remote_lid: 0,
        local_gid: [0; 16],
        remote_gid: [0; 16],
        flow_label: 0,
        packet_rate: 0,
        traffic_class: 0,
        hop_limit: 0,
        sl: 0,
        subnet_local: false,
        local_ack_timeout: 0,
    };
}

/// Request for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Req {
    /// The sender's name of the connection.
    pub local_comm_id: u32,
    /// What is asked for; see [`IpCm::port`].
    pub service_id: u64,
    /// GUID of the sender's device.
    pub local_ca_guid: u64,
    /// Q_Key.
    pub local_qkey: u32,
    /// The sender's QP.
    pub local_qpn: Qpn,
    /// READs and atomics that the sender takes at once.
    pub responder_resources: u8,
    /// End-to-end context (RD).
    pub local_eecn: u32,
    /// READs and atomics that the sender makes at once.
    pub initiator_depth: u8,
    /// End-to-end context of the receiver (RD).
    pub remote_eecn: u32,
    /// Time for the receiver's answer: 4.096 us * 2^t.
    pub remote_cm_timeout: u8,
    /// 0 RC, 1 UC, 2 RD, 3: see `extended_transport`.
    pub transport: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// PSN of the receiver's first request, which the sender expects.
    pub starting_psn: Psn,
    /// Time for the sender's answer: 4.096 us * 2^t.
    pub local_cm_timeout: u8,
    /// Retries after a timeout or sequence NAK.
    pub retry_count: u8,
    /// Partition.
    pub pkey: u16,
    /// Path MTU: 1 to 5 for 256 to 4096 bytes.
    pub path_mtu: u8,
    /// RD channel exists.
    pub rdc_exists: bool,
    /// Retries after an RNR NAK; 7: for ever.
    pub rnr_retry_count: u8,
    /// Resends of a message of the communication manager.
    pub max_cm_retries: u8,
    /// The sender's QP has a shared receive queue.
    pub srq: bool,
    /// 1: XRC.
    pub extended_transport: u8,
    /// The path to use.
    pub primary: CmPath,
    /// The path to fall back to; all zero: none.
    pub alternate: CmPath,
    /// The RDMA CM's header, where the service ID is one of its.
    pub ip_cm: Option<IpCm>,
}

/// Answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rep {
    /// The answerer's name of the connection.
    pub local_comm_id: u32,
    /// The asker's.
    pub remote_comm_id: u32,
    /// Q_Key.
    pub local_qkey: u32,
    /// The answerer's QP.
    pub local_qpn: Qpn,
    /// End-to-end context (RD; of XRC the target QP).
    pub local_eecn: u32,
    /// PSN of the asker's first request, which the answerer expects.
    pub starting_psn: Psn,
    /// READs and atomics that it takes at once.
    pub responder_resources: u8,
    /// READs and atomics that it makes at once.
    pub initiator_depth: u8,
    /// How late it may acknowledge: 4.096 us * 2^t.
    pub target_ack_delay: u8,
    /// Whether the alternate path was taken: 0 yes.
    pub failover_accepted: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries after an RNR NAK; 7: for ever.
    pub rnr_retry_count: u8,
    /// Its QP has a shared receive queue.
    pub srq: bool,
    /// GUID of its device.
    pub local_ca_guid: u64,
}

/// Asks for the UD QP of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrReq {
    /// The request's name.
    pub request_id: u32,
    /// Partition.
    pub pkey: u16,
    /// What is asked for.
    pub service_id: u64,
    /// The RDMA CM's header, where the service ID is one of its.
    pub ip_cm: Option<IpCm>,
}

/// Names the UD QP of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrRep {
    /// The request's name.
    pub request_id: u32,
    /// 0: found. See [`super::sidr_status_name`].
    pub status: u8,
    /// The QP.
    pub qpn: Qpn,
    /// The service.
    pub service_id: u64,
    /// The QP's Q_Key.
    pub qkey: u32,
}

/// A message of the communication manager. `local` is its sender, `remote` its receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// The largest is by far the most wanted, and there is no allocation here.
#[allow(clippy::large_enum_variant)]
pub enum CmMessage {
    /// Request for a connection.
    Req(Req),
    /// The message was received, the answer takes time.
    Mra {
        /// The sender's name of the connection.
        local_comm_id: u32,
        /// The receiver's.
        remote_comm_id: u32,
        /// Which message: 0 REQ, 1 REP, 2 LAP.
        message: u8,
        /// Time that it takes: 4.096 us * 2^t.
        service_timeout: u8,
    },
    /// Refusal, or end of an attempt.
    Rej {
        /// The sender's name of the connection; 0 where it has none.
        local_comm_id: u32,
        /// The receiver's.
        remote_comm_id: u32,
        /// Which message: 0 REQ, 1 REP, 2 another, 3 none.
        message: u8,
        /// Bytes of additional information.
        info_length: u8,
        /// Why; see [`super::rej_reason_name`].
        reason: u16,
    },
    /// Answer to a request.
    Rep(Rep),
    /// The connection is ready to use.
    Rtu {
        /// The sender's name of the connection.
        local_comm_id: u32,
        /// The receiver's.
        remote_comm_id: u32,
    },
    /// Request to end a connection.
    Dreq {
        /// The sender's name of the connection.
        local_comm_id: u32,
        /// The receiver's.
        remote_comm_id: u32,
        /// The receiver's QP (RD: context).
        remote_qpn: Qpn,
    },
    /// The connection has ended.
    Drep {
        /// The sender's name of the connection.
        local_comm_id: u32,
        /// The receiver's.
        remote_comm_id: u32,
    },
    /// Asks for the UD QP of a service.
    SidrReq(SidrReq),
    /// Names it.
    SidrRep(SidrRep),
    /// Request to load an alternate path.
    Lap {
        /// The sender's name of the connection.
        local_comm_id: u32,
        /// The receiver's.
        remote_comm_id: u32,
        /// The receiver's QP.
        remote_qpn: Qpn,
        /// Time for the answer: 4.096 us * 2^t.
        remote_cm_timeout: u8,
        /// The path.
        alternate: CmPath,
    },
    /// Answer to it.
    Apr {
        /// The sender's name of the connection.
        local_comm_id: u32,
        /// The receiver's.
        remote_comm_id: u32,
        /// Bytes of additional information.
        info_length: u8,
        /// 0: loaded.
        status: u8,
    },
}

impl CmMessage {
    /// The message's name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Req(_) => "REQ",
            Self::Mra { .. } => "MRA",
            Self::Rej { .. } => "REJ",
            Self::Rep(_) => "REP",
            Self::Rtu { .. } => "RTU",
            Self::Dreq { .. } => "DREQ",
            Self::Drep { .. } => "DREP",
            Self::SidrReq(_) => "SIDR_REQ",
            Self::SidrRep(_) => "SIDR_REP",
            Self::Lap { .. } => "LAP",
            Self::Apr { .. } => "APR",
        }
    }

    /// Where the additional information of a REJ stands in the MAD's data (`CM_REJ_ARI`), and its most bytes.
    pub const REJ_INFO: (usize, usize) = (12, 72);

    /// Where the private data stands in the MAD's data: offset and bytes.
    pub const fn private_data(&self) -> (usize, usize) {
        let at = match self {
            Self::Req(_) => 140,
            Self::Mra { .. } => 10,
            Self::Rej { .. } | Self::Apr { .. } => 84,
            Self::Rep(_) => 36,
            Self::Rtu { .. } | Self::Drep { .. } => 8,
            Self::Dreq { .. } => 12,
            Self::SidrReq(_) => 16,
            Self::SidrRep(_) => 96,
            Self::Lap { .. } => 64,
        };
        (at, DATA_LEN - at)
    }
}

impl Req {
    /// Path MTU in bytes; `None`: a reserved value.
    pub const fn path_mtu_bytes(&self) -> Option<u32> {
        match self.path_mtu {
            1..=5 => Some(128 << self.path_mtu),
            _ => None,
        }
    }
}

// Of each field: byte, bit from that byte's top, bits.
messages! {
    0x10 => Req(req), 0x13 => Rep(rep), 0x17 => SidrReq(sidr_req), 0x18 => SidrRep(sidr_rep);
    0x11 => Mra {
        local_comm_id: 0, 0, 32;
        remote_comm_id: 4, 0, 32;
        message: 8, 0, 2;
        service_timeout: 9, 0, 5;
    }
    0x12 => Rej {
        local_comm_id: 0, 0, 32;
        remote_comm_id: 4, 0, 32;
        message: 8, 0, 2;
        info_length: 9, 0, 7;
        reason: 10, 0, 16;
    }
    0x14 => Rtu {
        local_comm_id: 0, 0, 32;
        remote_comm_id: 4, 0, 32;
    }
    0x15 => Dreq {
        local_comm_id: 0, 0, 32;
        remote_comm_id: 4, 0, 32;
        remote_qpn: 8, 0, 24;
    }
    0x16 => Drep {
        local_comm_id: 0, 0, 32;
        remote_comm_id: 4, 0, 32;
    }
    0x19 => Lap {
        local_comm_id: 0, 0, 32;
        remote_comm_id: 4, 0, 32;
        remote_qpn: 12, 0, 24;
        remote_cm_timeout: 15, 0, 5;
        + alternate: lap_path;
    }
    0x1a => Apr {
        local_comm_id: 0, 0, 32;
        remote_comm_id: 4, 0, 32;
        info_length: 8, 0, 8;
        status: 9, 0, 8;
    }
}

layout! {
    mod req: Req {
        local_comm_id: 0, 0, 32;
        service_id: 8, 0, 64;
        local_ca_guid: 16, 0, 64;
        local_qkey: 28, 0, 32;
        local_qpn: 32, 0, 24;
        responder_resources: 35, 0, 8;
        local_eecn: 36, 0, 24;
        initiator_depth: 39, 0, 8;
        remote_eecn: 40, 0, 24;
        remote_cm_timeout: 43, 0, 5;
        transport: 43, 5, 2;
        flow_control: 43, 7, 1;
        starting_psn: 44, 0, 24;
        local_cm_timeout: 47, 0, 5;
        retry_count: 47, 5, 3;
        pkey: 48, 0, 16;
        path_mtu: 50, 0, 4;
        rdc_exists: 50, 4, 1;
        rnr_retry_count: 50, 5, 3;
        max_cm_retries: 51, 0, 4;
        srq: 51, 4, 1;
        extended_transport: 51, 5, 3;
        + primary: primary_path;
        + alternate: alternate_path;
        + ip_cm: req_ip_cm;
    }
    mod rep: Rep {
        local_comm_id: 0, 0, 32;
        remote_comm_id: 4, 0, 32;
        local_qkey: 8, 0, 32;
        local_qpn: 12, 0, 24;
        local_eecn: 16, 0, 24;
        starting_psn: 20, 0, 24;
        responder_resources: 24, 0, 8;
        initiator_depth: 25, 0, 8;
        target_ack_delay: 26, 0, 5;
        failover_accepted: 26, 5, 2;
        flow_control: 26, 7, 1;
        rnr_retry_count: 27, 0, 3;
        srq: 27, 3, 1;
        local_ca_guid: 28, 0, 64;
    }
    mod sidr_req: SidrReq {
        request_id: 0, 0, 32;
        pkey: 4, 0, 16;
        service_id: 8, 0, 64;
        + ip_cm: sidr_ip_cm;
    }
    mod sidr_rep: SidrRep {
        request_id: 0, 0, 32;
        status: 4, 0, 8;
        qpn: 8, 0, 24;
        service_id: 12, 0, 64;
        qkey: 20, 0, 32;
    }
    mod primary_path: CmPath {
        local_lid: 52, 0, 16;
        remote_lid: 54, 0, 16;
        local_gid: 56, 0, 128;
        remote_gid: 72, 0, 128;
        flow_label: 88, 0, 20;
        packet_rate: 91, 2, 6;
        traffic_class: 92, 0, 8;
        hop_limit: 93, 0, 8;
        sl: 94, 0, 4;
        subnet_local: 94, 4, 1;
        local_ack_timeout: 95, 0, 5;
    }
    mod alternate_path: CmPath {
        local_lid: 96, 0, 16;
        remote_lid: 98, 0, 16;
        local_gid: 100, 0, 128;
        remote_gid: 116, 0, 128;
        flow_label: 132, 0, 20;
        packet_rate: 135, 2, 6;
        traffic_class: 136, 0, 8;
        hop_limit: 137, 0, 8;
        sl: 138, 0, 4;
        subnet_local: 138, 4, 1;
        local_ack_timeout: 139, 0, 5;
    }
    mod lap_path: CmPath {
        local_lid: 20, 0, 16;
        remote_lid: 22, 0, 16;
        local_gid: 24, 0, 128;
        remote_gid: 40, 0, 128;
        flow_label: 56, 0, 20;
        traffic_class: 59, 0, 8;
        hop_limit: 60, 0, 8;
        packet_rate: 61, 2, 6;
        sl: 62, 0, 4;
        subnet_local: 62, 4, 1;
        local_ack_timeout: 63, 0, 5;
    }
}

/// The RDMA CM's header before the private data at `AT`: the service ID says whether there is one.
macro_rules! ip_cm {
    ($($table:ident at $at:literal;)*) => {$(
        mod $table {
            use super::{DATA_LEN, Data, IpCm};
            use crate::{headers::{part, put}, mad::fields::get};

            pub(super) fn read(d: &Data) -> Option<IpCm> {
                IpCm::parse(get::<64, 64, _>(d), part::<$at, { IpCm::LEN }, DATA_LEN>(d))
            }

            pub(super) fn write(header: &Option<IpCm>, d: &mut Data) {
                if let Some(header) = header {
                    put::<$at, { IpCm::LEN }, DATA_LEN>(d, header.emit());
                }
            }
        }
    )*};
}
ip_cm! {
    req_ip_cm at 140;
    sidr_ip_cm at 16;
}
