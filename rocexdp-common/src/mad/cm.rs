//! Messages of the communication manager, with the names and places of include/rdma/ibta_vol1_c12.h.

use super::{DATA_LEN, IpCm};
use crate::{
    headers::{low24, part},
    ids::{Gid, Psn, Qpn},
};

type Data = [u8; DATA_LEN];

const fn be16<const AT: usize>(d: &Data) -> u16 {
    u16::from_be_bytes(part::<AT, 2, DATA_LEN>(d))
}
const fn be24<const AT: usize>(d: &Data) -> u32 {
    low24_of(part::<AT, 3, DATA_LEN>(d))
}
const fn low24_of([a, b, c]: [u8; 3]) -> u32 {
    low24([0, a, b, c])
}
const fn be32<const AT: usize>(d: &Data) -> u32 {
    u32::from_be_bytes(part::<AT, 4, DATA_LEN>(d))
}
const fn be64<const AT: usize>(d: &Data) -> u64 {
    u64::from_be_bytes(part::<AT, 8, DATA_LEN>(d))
}
const fn gid<const AT: usize>(d: &Data) -> Gid {
    part::<AT, 16, DATA_LEN>(d)
}
/// 20 bits.
const fn flow_label<const AT: usize>(d: &Data) -> u32 {
    be24::<AT>(d) >> 4
}

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
    /// PSN of the sender's first packet.
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
    /// PSN of the answerer's first packet.
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
    /// Reads the data of a MAD of the communication manager; `None`: no message has this attribute.
    pub const fn parse(attribute: u16, d: &Data) -> Option<Self> {
        let local_comm_id = be32::<0>(d);
        let remote_comm_id = be32::<4>(d);
        Some(match attribute {
            0x10 => Self::Req(req(d)),
            0x11 => Self::Mra {
                local_comm_id,
                remote_comm_id,
                message: d[8] >> 6,
                service_timeout: d[9] >> 3,
            },
            0x12 => Self::Rej {
                local_comm_id,
                remote_comm_id,
                message: d[8] >> 6,
                info_length: d[9] >> 1,
                reason: be16::<10>(d),
            },
            0x13 => Self::Rep(rep(d)),
            0x14 => Self::Rtu {
                local_comm_id,
                remote_comm_id,
            },
            0x15 => Self::Dreq {
                local_comm_id,
                remote_comm_id,
                remote_qpn: Qpn::new(be24::<8>(d)),
            },
            0x16 => Self::Drep {
                local_comm_id,
                remote_comm_id,
            },
            0x17 => {
                let service_id = be64::<8>(d);
                Self::SidrReq(SidrReq {
                    request_id: local_comm_id,
                    pkey: be16::<4>(d),
                    service_id,
                    ip_cm: IpCm::parse(service_id, part::<16, 36, DATA_LEN>(d)),
                })
            }
            0x18 => Self::SidrRep(SidrRep {
                request_id: local_comm_id,
                status: d[4],
                qpn: Qpn::new(be24::<8>(d)),
                service_id: be64::<12>(d),
                qkey: be32::<20>(d),
            }),
            0x19 => Self::Lap {
                local_comm_id,
                remote_comm_id,
                remote_qpn: Qpn::new(be24::<12>(d)),
                remote_cm_timeout: d[15] >> 3,
                alternate: CmPath {
                    local_lid: be16::<20>(d),
                    remote_lid: be16::<22>(d),
                    local_gid: gid::<24>(d),
                    remote_gid: gid::<40>(d),
                    flow_label: flow_label::<56>(d),
                    traffic_class: d[59],
                    hop_limit: d[60],
                    packet_rate: d[61] & 0x3f,
                    sl: d[62] >> 4,
                    subnet_local: d[62] & 8 != 0,
                    local_ack_timeout: d[63] >> 3,
                },
            },
            0x1a => Self::Apr {
                local_comm_id,
                remote_comm_id,
                info_length: d[8],
                status: d[9],
            },
            _ => return None,
        })
    }

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

/// A path of a REQ, whose fields begin at `AT` and end at `AT + 44`.
macro_rules! req_path {
    ($d:expr, $at:literal) => {
        CmPath {
            local_lid: be16::<$at>($d),
            remote_lid: be16::<{ $at + 2 }>($d),
            local_gid: gid::<{ $at + 4 }>($d),
            remote_gid: gid::<{ $at + 20 }>($d),
            flow_label: flow_label::<{ $at + 36 }>($d),
            packet_rate: $d[$at + 39] & 0x3f,
            traffic_class: $d[$at + 40],
            hop_limit: $d[$at + 41],
            sl: $d[$at + 42] >> 4,
            subnet_local: $d[$at + 42] & 8 != 0,
            local_ack_timeout: $d[$at + 43] >> 3,
        }
    };
}

const fn req(d: &Data) -> Req {
    let service_id = be64::<8>(d);
    Req {
        local_comm_id: be32::<0>(d),
        service_id,
        local_ca_guid: be64::<16>(d),
        local_qkey: be32::<28>(d),
        local_qpn: Qpn::new(be24::<32>(d)),
        responder_resources: d[35],
        local_eecn: be24::<36>(d),
        initiator_depth: d[39],
        remote_eecn: be24::<40>(d),
        remote_cm_timeout: d[43] >> 3,
        transport: (d[43] >> 1) & 3,
        flow_control: d[43] & 1 != 0,
        starting_psn: Psn::new(be24::<44>(d)),
        local_cm_timeout: d[47] >> 3,
        retry_count: d[47] & 7,
        pkey: be16::<48>(d),
        path_mtu: d[50] >> 4,
        rdc_exists: d[50] & 8 != 0,
        rnr_retry_count: d[50] & 7,
        max_cm_retries: d[51] >> 4,
        srq: d[51] & 8 != 0,
        extended_transport: d[51] & 7,
        primary: req_path!(d, 52),
        alternate: req_path!(d, 96),
        ip_cm: IpCm::parse(service_id, part::<140, 36, DATA_LEN>(d)),
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

const fn rep(d: &Data) -> Rep {
    Rep {
        local_comm_id: be32::<0>(d),
        remote_comm_id: be32::<4>(d),
        local_qkey: be32::<8>(d),
        local_qpn: Qpn::new(be24::<12>(d)),
        local_eecn: be24::<16>(d),
        starting_psn: Psn::new(be24::<20>(d)),
        responder_resources: d[24],
        initiator_depth: d[25],
        target_ack_delay: d[26] >> 3,
        failover_accepted: (d[26] >> 1) & 3,
        flow_control: d[26] & 1 != 0,
        rnr_retry_count: d[27] >> 5,
        srq: d[27] & 0x10 != 0,
        local_ca_guid: be64::<28>(d),
    }
}
