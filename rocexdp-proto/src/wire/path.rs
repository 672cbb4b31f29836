//! The way to a peer: addresses of the link and of IP, and the UDP source port.
//!
//! Must not: resolve anything (the engine asks the kernel).

use crate::ids::{Gid, Qpn};

/// The way to a QP's peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// Our interface's.
    pub src_mac: [u8; 6],
    /// The next hop's.
    pub dst_mac: [u8; 6],
    /// 802.1Q VLAN id (12 bits) to tag with. Received frames may carry any tags.
    pub vlan: Option<u16>,
    /// Service level, 0..=15. On Ethernet it is the VLAN priority of requests and answers, of which it gives the low three bits
    /// (drivers/infiniband/hw/mlx5/qp.c `mlx5_set_path`, `eth_prio`); without a VLAN tag nothing carries it.
    pub sl: u8,
    /// Our address.
    pub src: Gid,
    /// The peer's, of the same family.
    pub dst: Gid,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// DSCP of requests and acknowledgements (0..=63, the upper six bits of the traffic class); `None`: the endpoint's.
    pub dscp: Option<u8>,
    /// IPv6 flow label (20 bits), and the source of the UDP source port; 0: computed from the QPNs.
    pub flow_label: u32,
}

impl Path {
    /// The IPv4 addresses (source, destination), or `None` for IPv6 or a mixture.
    #[must_use]
    pub fn ipv4(&self) -> Option<([u8; 4], [u8; 4])> {
        Some((ipv4_of(&self.src)?, ipv4_of(&self.dst)?))
    }

    /// Whether both addresses are of one family and neither is unset, multicast or broadcast.
    pub(crate) fn is_valid(&self) -> bool {
        is_unicast(&self.dst) && self.is_valid_to_group()
    }

    /// As [`Path::is_valid`], but the destination may be a multicast group.
    pub(crate) fn is_valid_to_group(&self) -> bool {
        is_unicast(&self.src)
            && (is_unicast(&self.dst) || is_multicast(&self.dst))
            && ipv4_of(&self.src).is_some() == ipv4_of(&self.dst).is_some()
            && self.vlan.is_none_or(|v| v < 4096)
            && self.sl < 16
            && self.flow_label < 1 << 20
            && self.dscp.is_none_or(|d| d < 64)
    }
}

/// Whether the address is neither unset, multicast nor broadcast.
pub(crate) fn is_unicast(gid: &Gid) -> bool {
    match ipv4_of(gid) {
        Some([a, ..]) => a != 0 && a < 224,
        None => *gid != [0; 16] && gid.first() != Some(&0xff),
    }
}

/// Whether the address is a multicast group's.
pub(crate) fn is_multicast(gid: &Gid) -> bool {
    match ipv4_of(gid) {
        Some([a, ..]) => (224..240).contains(&a),
        None => gid.first() == Some(&0xff),
    }
}

/// The link address of a multicast group: 01:00:5e and 23 bits of an IPv4 group, 33:33 and 32 bits of an IPv6 one
/// (`ip_eth_mc_map`, `ipv6_eth_mc_map` of the kernel). `None` for any other address.
#[must_use]
pub fn multicast_mac(group: &Gid) -> Option<[u8; 6]> {
    if !is_multicast(group) {
        return None;
    }
    let [.., a, b, c, d] = *group;
    Some(match ipv4_of(group) {
        Some(_) => [0x01, 0x00, 0x5e, b & 0x7f, c, d],
        None => [0x33, 0x33, a, b, c, d],
    })
}

/// The IPv4 address in a GID of the form `::ffff:a.b.c.d`.
pub(crate) fn ipv4_of(gid: &Gid) -> Option<[u8; 4]> {
    let [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] = *gid else {
        return None;
    };
    Some([a, b, c, d])
}

/// The UDP source port of a QP: `rdma_get_udp_sport`, `rdma_calc_flow_label` and `rdma_flow_label_to_udp_sport` of
/// include/rdma/ib_verbs.h. In 0xc000..=0xffff, the same on each packet, so that a flow keeps its path.
#[must_use]
pub fn udp_source_port(flow_label: u32, local: Qpn, remote: Qpn) -> u16 {
    let label = if flow_label == 0 {
        let mut v = u64::from(local.get()) * u64::from(remote.get());
        v ^= v >> 20;
        v ^= v >> 40;
        (v & 0xf_ffff) as u32
    } else {
        flow_label
    };
    ((label & 0x3fff) ^ ((label & 0xf_c000) >> 14)) as u16 | 0xc000
}

/// A flow label (20 bits, not 0) that makes [`udp_source_port`] this one; `None` below 0xc000, which no label makes.
#[must_use]
pub const fn flow_label_of_port(port: u16) -> Option<u32> {
    match port {
        // 0 would mean computed: the bit above is folded onto the lowest.
        0xc000 => Some(1 << 14 | 1),
        0xc001.. => Some((port & 0x3fff) as u32),
        _ => None,
    }
}

/// The UDP source port of a QP's path `n`, of which path 0 has `port`: as far apart as may be, in the same range.
pub(crate) fn path_source_port(port: u16, n: u8) -> u16 {
    // Odd, so that no two are the same: 2^14 divided by the golden ratio.
    let step = u16::from(n).wrapping_mul(0x278d);
    0xc000 | (port.wrapping_add(step) & 0x3fff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_groups_link_address_follows_from_it() {
        let v4 = |a| multicast_mac(&crate::ids::gid_from_ipv4(a));
        assert_eq!(v4([239, 205, 0, 1]), Some([1, 0, 0x5e, 0x4d, 0, 1]));
        assert_eq!(v4([10, 77, 0, 1]), None);
        let mut v6 = [0; 16];
        (v6[0], v6[1]) = (0xff, 0x02);
        v6[12..].copy_from_slice(&[0x81, 2, 3, 4]);
        assert_eq!(multicast_mac(&v6), Some([0x33, 0x33, 0x81, 2, 3, 4]));
        v6[0] = 0xfd;
        assert_eq!(multicast_mac(&v6), None);
    }

    #[test]
    fn each_path_has_a_source_port_of_its_own() {
        for port in [0xc000, 0xffff, 0xd123] {
            let mut ports: Vec<u16> = (0..16).map(|n| path_source_port(port, n)).collect();
            assert_eq!(ports[0], port);
            ports.sort_unstable();
            ports.dedup();
            assert_eq!(ports.len(), 16);
            assert!(ports.iter().all(|p| *p >= 0xc000));
        }
    }

    #[test]
    fn every_port_of_the_range_has_a_label() {
        for port in 0xc000..=0xffff {
            let label = flow_label_of_port(port).unwrap();
            assert!(label != 0 && label < 1 << 20);
            assert_eq!(udp_source_port(label, Qpn::new(5), Qpn::new(7)), port);
        }
        assert_eq!(flow_label_of_port(0xbfff), None);
    }

    #[test]
    fn udp_source_port_follows_the_kernel() {
        assert_eq!(udp_source_port(0, Qpn::new(17), Qpn::new(17)), 0xc000 | 289);
        assert_eq!(
            udp_source_port(0xf_ffff, Qpn::new(1), Qpn::new(2)),
            0xc000 | (0x3fff ^ 0x3f)
        );
        // Products above 20 bits fold in.
        let v: u64 = 0x80_0001 * 0x80_0002;
        let f = v ^ (v >> 20);
        let label = ((f ^ (f >> 40)) & 0xf_ffff) as u32;
        let port = udp_source_port(0, Qpn::new(0x80_0001), Qpn::new(0x80_0002));
        assert_eq!(port, ((label & 0x3fff) ^ (label >> 14)) as u16 | 0xc000);
    }
}
