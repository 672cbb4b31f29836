//! The header that the RDMA CM puts before the private data of a request (`struct cma_hdr` of
//! drivers/infiniband/core/cma.c).

use crate::{
    headers::{part, put},
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
    /// The service ID of a port in a port space (`rdma_get_service_id`).
    pub const fn service_id(port_space: u8, port: u16) -> u64 {
        IP_SERVICE << 24 | (port_space as u64) << 16 | port as u64
    }

    /// Writes the header; port space and port go into the service ID.
    pub const fn emit(&self) -> [u8; 36] {
        let mut b = [0; 36];
        b[0] = self.version;
        b[1] = self.ip_version << 4;
        put::<2, 2, 36>(&mut b, self.src_port.to_be_bytes());
        if self.ip_version == 4 {
            put::<16, 4, 36>(&mut b, part::<12, 4, 16>(&self.src));
            put::<32, 4, 36>(&mut b, part::<12, 4, 16>(&self.dst));
        } else {
            put::<4, 16, 36>(&mut b, self.src);
            put::<20, 16, 36>(&mut b, self.dst);
        }
        b
    }
}
