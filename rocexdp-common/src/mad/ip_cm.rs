//! The header that the RDMA CM puts before the private data of a request (`struct cma_hdr` of
//! drivers/infiniband/core/cma.c).

use crate::{
    headers::part,
    ids::{Gid, gid_from_ipv4},
};

/// What the RDMA CM tells of the sockets that its users think in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpCm {
    /// Version of the header: major and minor, 0.
    pub version: u8,
    /// 4 or 6.
    pub ip_version: u8,
    /// Port space, from the service ID: 0x06 TCP (RC), 0x11 UDP (UD).
    pub port_space: u8,
    /// Destination port, from the service ID.
    pub port: u16,
    /// Source port.
    pub src_port: u16,
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
}

/// Prefix of the RDMA CM's service IDs (`IB_CMA_SERVICE_ID`): 0x0000000001, port space, port.
const IP_SERVICE: u64 = 0x01;

impl IpCm {
    /// Bytes before the user's own private data.
    pub const LEN: usize = 36;

    /// Reads the header; `None`: the service is not one of the RDMA CM's, or the IP version is neither 4 nor 6.
    pub const fn parse(service_id: u64, b: [u8; 36]) -> Option<Self> {
        if service_id >> 24 != IP_SERVICE {
            return None;
        }
        let ip_version = b[1] >> 4;
        let (src, dst) = match ip_version {
            4 => (
                gid_from_ipv4(part::<16, 4, 36>(&b)),
                gid_from_ipv4(part::<32, 4, 36>(&b)),
            ),
            6 => (part::<4, 16, 36>(&b), part::<20, 16, 36>(&b)),
            _ => return None,
        };
        Some(Self {
            version: b[0],
            ip_version,
            port_space: (service_id >> 16) as u8,
            port: service_id as u16,
            src_port: u16::from_be_bytes(part::<2, 2, 36>(&b)),
            src,
            dst,
        })
    }
}
