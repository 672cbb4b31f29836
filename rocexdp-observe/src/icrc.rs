//! The invariant CRC of a captured packet, RoCEv2 or RoCEv1.
//!
//! What is covered, and what of it counts as ones, follows drivers/infiniband/sw/rxe/rxe_icrc.c (`rxe_icrc_hdr`). IPv4
//! options and IPv6 extension headers are covered as they stand. RoCEv1 has a GRH, which is laid out as an IPv6 header and
//! masked as one, and no UDP header. Whole packets only: what was not captured can't be judged.

use rocexdp_common::{
    headers::{Bth, ICRC_LEN},
    parse::{IpVersion, Packet},
};

/// CRC-32 of the 8 bytes 0xff that stand for InfiniBand's local route header (the state 0xdebb20e3 of rxe_icrc.c).
const SEED: u32 = !0xdebb_20e3;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;

/// What the ICRC says of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icrc {
    /// The packet is as it was sent.
    Right,
    /// It is not.
    Wrong {
        /// The four bytes on the wire, read as little-endian.
        stored: u32,
        /// What they should be.
        computed: u32,
        /// It would be right with the pad bytes left out, as Soft-RoCE up to kernel 5.4 did: an old sender, no damage.
        without_pad: bool,
    },
    /// Part of the packet was not captured.
    Unknown,
}

/// Checks a packet whose offsets are into `data`, the captured bytes.
pub fn check(data: &[u8], packet: &Packet) -> Icrc {
    judge(data, packet).unwrap_or(Icrc::Unknown)
}

fn judge(data: &[u8], packet: &Packet) -> Option<Icrc> {
    let stored_at = (packet.end as usize).checked_sub(ICRC_LEN)?;
    let stored = u32::from_le_bytes(*data.get(stored_at..)?.first_chunk()?);
    let bth_at = packet.udp_at as usize + UDP;
    let headers = over_headers(data, packet, bth_at)?;
    let rest = data.get(bth_at + Bth::LEN..stored_at)?;
    let computed = finish(headers.clone(), rest);
    if stored == computed {
        return Some(Icrc::Right);
    }
    let pad = usize::from(packet.bth.pad);
    let without = rest.len().checked_sub(pad).and_then(|n| rest.get(..n));
    Some(Icrc::Wrong {
        stored,
        computed,
        without_pad: pad != 0 && without.is_some_and(|rest| finish(headers, rest) == stored),
    })
}

fn finish(mut crc: crc32fast::Hasher, rest: &[u8]) -> u32 {
    crc.update(rest);
    crc.finalize()
}

/// Up to the end of the BTH. The pieces are short, so that each is copied and masked.
fn over_headers(data: &[u8], packet: &Packet, bth_at: usize) -> Option<crc32fast::Hasher> {
    let mut crc = crc32fast::Hasher::new_with_initial(SEED);
    let ip = data.get(packet.ip_at as usize..)?;
    let fixed = match packet.ip {
        IpVersion::V4 => {
            let mut header: [u8; IPV4] = *ip.first_chunk()?;
            // Type of service, time to live, checksum.
            header[1] = 0xff;
            header[8] = 0xff;
            header[10] = 0xff;
            header[11] = 0xff;
            crc.update(&header);
            IPV4
        }
        IpVersion::V6 => {
            let mut header: [u8; IPV6] = *ip.first_chunk()?;
            // Traffic class, flow label, hop limit.
            header[0] |= 0x0f;
            header[1] = 0xff;
            header[2] = 0xff;
            header[3] = 0xff;
            header[7] = 0xff;
            crc.update(&header);
            IPV6
        }
    };
    let ip_end = packet.ip_at as usize + fixed;
    let mut bth: [u8; Bth::LEN] = *data.get(bth_at..)?.first_chunk()?;
    bth[4] = 0xff;
    if ip_end < bth_at {
        let udp_at = bth_at - UDP;
        crc.update(data.get(ip_end..udp_at)?);
        let mut both = [0; UDP + Bth::LEN];
        let (udp, rest) = both.split_first_chunk_mut::<UDP>()?;
        *udp = *data.get(udp_at..)?.first_chunk()?;
        udp[6] = 0xff;
        udp[7] = 0xff;
        rest.copy_from_slice(&bth);
        crc.update(&both);
    } else {
        crc.update(&bth);
    }
    Some(crc)
}
