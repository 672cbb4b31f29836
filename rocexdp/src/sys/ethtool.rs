//! The ethtool ioctl: offloads, channel counts, driver statistics.
//!
//! Driver statistics and the old on/off switches exist in this interface only, or are simplest here; there is no policy
//! in it. Follows the kernel's include/uapi/linux/ethtool.h and net/ethtool/ioctl.c.

use std::{io, os::fd::AsRawFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

const SIOCETHTOOL: u32 = 0x8946;
const ETHTOOL_GSET: u32 = 0x01;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_STSO: u32 = 0x1f;
const ETHTOOL_SGSO: u32 = 0x24;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_FLAG_TXVLAN: u32 = 1 << 7;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;
const ETH_SS_STATS: u32 = 1;
const ETH_GSTRING_LEN: usize = 32;
/// More statistics than any driver has.
const MAX_STATISTICS: usize = 1 << 16;

/// An offload that can be switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Checksums filled in by the device.
    TxChecksum,
    /// TCP segmentation by the device.
    Tso,
    /// Segmentation just before the driver.
    Gso,
    /// Aggregation on receive. On veth it also makes the receive side use NAPI.
    Gro,
    /// VLAN tags kept beside the frame, both directions.
    Vlan,
}

/// Queue counts in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    /// Queues that receive: receive-only plus combined.
    pub rx: u32,
    /// Queues that send: send-only plus combined.
    pub tx: u32,
}

/// Does one ethtool request on interface `name` of the calling thread's namespace. `buffer` holds the request's struct
/// and gets the answer; it must be as long as the struct with its flexible array.
fn request(name: &str, buffer: &mut [u64]) -> io::Result<()> {
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut ifr_name = [0 as libc::c_char; libc::IFNAMSIZ];
    if name.is_empty() || name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (slot, byte) in ifr_name.iter_mut().zip(name.bytes()) {
        *slot = byte as libc::c_char;
    }
    let data = buffer.as_mut_ptr().cast();
    let mut ifreq = libc::ifreq {
        ifr_name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: data },
    };
    // SAFETY: `ifreq` and what it points to live through the call, and every caller sizes `buffer` for its request.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut ifreq) };
    if status < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Two adjacent 32-bit fields as one word in memory order.
fn pair(first: u32, second: u32) -> u64 {
    let [a, b, c, d] = first.to_ne_bytes();
    let [e, f, g, h] = second.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// The two 32-bit fields of a word.
fn unpair(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (
        u32::from_ne_bytes([a, b, c, d]),
        u32::from_ne_bytes([e, f, g, h]),
    )
}

/// Switches an offload.
///
/// # Errors
/// The interface is missing, does not let the offload be changed, or the caller lacks CAP_NET_ADMIN.
pub fn set_offload(name: &str, offload: Offload, on: bool) -> io::Result<()> {
    let set = |command| request(name, &mut [pair(command, u32::from(on))]);
    match offload {
        Offload::TxChecksum => set(ETHTOOL_STXCSUM),
        Offload::Tso => set(ETHTOOL_STSO),
        Offload::Gso => set(ETHTOOL_SGSO),
        Offload::Gro => set(ETHTOOL_SGRO),
        Offload::Vlan => {
            let mut value = [pair(ETHTOOL_GFLAGS, 0)];
            request(name, &mut value)?;
            let (_, flags) = unpair(value[0]);
            let both = ETH_FLAG_TXVLAN | ETH_FLAG_RXVLAN;
            let flags = if on { flags | both } else { flags & !both };
            request(name, &mut [pair(ETHTOOL_SFLAGS, flags)])
        }
    }
}

/// Whether VLAN tags are taken out of received frames (`rx-vlan-offload`), which XDP then does not see.
///
/// # Errors
/// The interface is missing.
pub fn vlan_stripped(name: &str) -> io::Result<bool> {
    let mut value = [pair(ETHTOOL_GFLAGS, 0)];
    request(name, &mut value)?;
    Ok(unpair(value[0]).1 & ETH_FLAG_RXVLAN != 0)
}

/// The number of queues in use.
///
/// # Errors
/// `EOPNOTSUPP` where the driver does not tell (then there is one).
pub fn channels(name: &str) -> io::Result<Channels> {
    // struct ethtool_channels: cmd, 4 maxima, then rx, tx, other, combined.
    let mut buffer = [pair(ETHTOOL_GCHANNELS, 0), 0, 0, 0, 0];
    request(name, &mut buffer)?;
    let (_, rx) = unpair(buffer[2]);
    let (tx, _) = unpair(buffer[3]);
    let (combined, _) = unpair(buffer[4]);
    Ok(Channels {
        rx: rx + combined,
        tx: tx + combined,
    })
}

/// The link's rate, Mb/s; `None`: not known, for instance because the link is down. A virtual link says what its driver
/// made up.
///
/// # Errors
/// `EOPNOTSUPP` where the driver does not tell.
pub fn speed_mbps(name: &str) -> io::Result<Option<u32>> {
    // struct ethtool_cmd, 44 bytes: `speed` stands at 12, `speed_hi` at 28.
    let mut buffer = [pair(ETHTOOL_GSET, 0), 0, 0, 0, 0, 0];
    request(name, &mut buffer)?;
    let half = |word: u32| {
        u32::from(u16::from_ne_bytes([
            word.to_ne_bytes()[0],
            word.to_ne_bytes()[1],
        ]))
    };
    let mbps = half(unpair(buffer[3]).1) << 16 | half(unpair(buffer[1]).1);
    Ok((mbps != 0 && mbps != u32::MAX).then_some(mbps))
}

/// The driver's own statistics, in its order.
///
/// # Errors
/// `EOPNOTSUPP` where the driver has none.
pub fn statistics(name: &str) -> io::Result<Vec<(String, u64)>> {
    // struct ethtool_sset_info: cmd, reserved, 64-bit mask, then one count for each bit set.
    let mut info = [pair(ETHTOOL_GSSET_INFO, 0), 1 << ETH_SS_STATS, 0];
    request(name, &mut info)?;
    let count = unpair(info[2]).0 as usize;
    if count == 0 || count > MAX_STATISTICS {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    // struct ethtool_gstrings: cmd, string_set, len, then the strings: the third word's second half is their first part.
    let mut strings = vec![0; 2 + (count * ETH_GSTRING_LEN).div_ceil(8)];
    strings[0] = pair(ETHTOOL_GSTRINGS, ETH_SS_STATS);
    strings[1] = pair(count as u32, 0);
    request(name, &mut strings)?;
    // struct ethtool_stats: cmd, n_stats, values.
    let mut values = vec![0; 1 + count];
    values[0] = pair(ETHTOOL_GSTATS, count as u32);
    request(name, &mut values)?;

    let bytes: Vec<u8> = strings.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let names = bytes
        .get(12..)
        .unwrap_or_default()
        .chunks_exact(ETH_GSTRING_LEN);
    Ok(names
        .zip(values.into_iter().skip(1))
        .map(|(name, value)| {
            let end = name
                .iter()
                .position(|byte| *byte == 0)
                .unwrap_or(name.len());
            (
                String::from_utf8_lossy(name.get(..end).unwrap_or_default()).into_owned(),
                value,
            )
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_an_error() {
        for name in [
            "",
            "no-such-iface",
            "a-name-that-is-too-long-for-the-kernel",
        ] {
            let error = statistics(name).unwrap_err();
            assert_eq!(
                error.raw_os_error(),
                Some(libc::ENODEV),
                "{name:?}: {error}"
            );
        }
    }

    #[test]
    fn two_halves_make_a_word_and_back() {
        assert_eq!(unpair(pair(1, 0xffff_fffe)), (1, 0xffff_fffe));
    }
}
