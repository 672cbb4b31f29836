//! Checks before anything is loaded. Each says which interface, what is wrong, and what to do.

use std::{fs, net::IpAddr};

use anyhow::{Result, bail};
use rocexdp_proto::verbs::PathMtu;

use super::{AttachWish, LoadConfig};
use crate::{
    net::{Link, features::XdpFeatures, rdma::RdmaDevice},
    sys::ethtool,
};

/// Largest path MTU of a frame in one buffer: a 4096 B chunk less 256 B of headroom holds 3840 B.
const PLAIN_PATH_MTU: PathMtu = PathMtu::Mtu2048;

/// IPv6, UDP, BTH, RETH, ImmDt and ICRC around the payload of the largest packet, B.
const HEADERS: u32 = 40 + 8 + 12 + 16 + 4 + 4;

/// The interface MTU that a path MTU needs, B. Soft-RoCE reckons with 80 B of headers
/// (drivers/infiniband/sw/rxe/rxe_hdr.h, `RXE_MAX_HDR_LENGTH`), which leaves out the ImmDt of a
/// WRITE ONLY with immediate over IPv6.
pub fn mtu_needed(path_mtu: PathMtu) -> u32 {
    path_mtu.bytes() + HEADERS
}

/// The largest path MTU that fits an interface MTU, or `None` below 256 + 84 B.
pub fn largest_path_mtu(mtu: u32) -> Option<PathMtu> {
    PathMtu::ALL
        .iter()
        .rev()
        .copied()
        .find(|p| mtu_needed(*p) <= mtu)
}

/// Bits of /proc/self/status CapEff (linux/capability.h).
const CAPABILITIES: [(u32, &str, &str); 3] = [
    (12, "CAP_NET_ADMIN", "attach XDP programs"),
    (13, "CAP_NET_RAW", "open AF_XDP sockets"),
    (CAP_BPF, "CAP_BPF", "load BPF programs"),
];
const CAP_BPF: u32 = 39;
const CAP_SYS_ADMIN: u32 = 21;

pub(crate) fn capabilities() -> Result<()> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let Some(effective) = status
        .lines()
        .find_map(|l| l.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
    else {
        return Ok(()); // no /proc: let the kernel say it
    };
    let missing = missing_capabilities(effective);
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "missing capabilities: {}; run as root, or grant them, for example with \
         setcap cap_net_admin,cap_net_raw,cap_bpf,cap_perfmon,cap_ipc_lock+ep",
        missing.join(", ")
    )
}

fn missing_capabilities(effective: u64) -> Vec<String> {
    let has = |bit: u32| effective & (1 << bit) != 0;
    CAPABILITIES
        .iter()
        // CAP_SYS_ADMIN stands in for CAP_BPF (include/linux/capability.h, bpf_capable).
        .filter(|(bit, ..)| !(has(*bit) || *bit == CAP_BPF && has(CAP_SYS_ADMIN)))
        .map(|(_, name, what)| format!("{name} (to {what})"))
        .collect()
}

/// Adds to a load error what usually causes it.
pub(crate) fn explain_load(error: anyhow::Error, iface: &str) -> anyhow::Error {
    let text = format!("{error:?}");
    let mut what = format!("loading the XDP program for {iface}");
    if text.contains("EPERM") || text.contains("Operation not permitted") {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        what += &match limit {
            None => "; needs CAP_BPF and CAP_PERFMON (or root)".to_owned(),
            Some(bytes) => format!(
                "; needs CAP_BPF and CAP_PERFMON (or root); on kernels before 5.11 also RLIMIT_MEMLOCK, now {bytes} B \
                 (ulimit -l unlimited)"
            ),
        };
    }
    error.context(what)
}

/// The VLAN id that frames carry: the device's own, or the one asked for.
pub(super) fn vlan(config: &LoadConfig, link: &Link) -> Result<Option<u16>> {
    match (link.vlan, config.vlan) {
        (Some(own), Some(asked)) if own.id != asked => bail!(
            "{} is VLAN device {}, but VLAN {asked} was asked for: name the parent interface, or leave the VLAN out",
            link.name,
            own.id
        ),
        (Some(own), _) => Ok(Some(own.id)),
        (None, Some(asked)) if asked > 4094 => bail!("VLAN {asked}: use 0 (priority tag) to 4094"),
        (None, asked) => Ok(asked),
    }
}

pub(super) fn usable(link: &Link, device: &Link) -> Result<()> {
    for l in [link, device] {
        if !l.up {
            bail!(
                "interface {} is down: bring it up with `ip link set {} up`",
                l.name,
                l.name
            );
        }
    }
    if device.mac.is_none() {
        bail!(
            "interface {} is no Ethernet device: RoCEv2 over XDP needs one",
            device.name
        );
    }
    if let Some(other) = device.xdp.first() {
        bail!(
            "interface {}: another XDP program is attached: {} (id {}, {} mode); stop the program that owns it, or \
             detach it with `ip link set {} xdp off`",
            device.name,
            other.name.as_deref().unwrap_or("name not readable"),
            other.id,
            other.mode,
            device.name
        );
    }
    Ok(())
}

/// The addresses to answer for.
pub(super) fn addresses(config: &LoadConfig, link: &Link) -> Result<Vec<IpAddr>> {
    let have: Vec<IpAddr> = link.addresses()?.iter().map(|a| a.ip).collect();
    if have.is_empty() {
        bail!(
            "interface {} has no IP address: add one with `ip address add ADDRESS/PREFIX dev {}`",
            link.name,
            link.name
        );
    }
    if let Some(missing) = config.addresses.iter().find(|a| !have.contains(a)) {
        let list: Vec<String> = have.iter().map(ToString::to_string).collect();
        bail!(
            "interface {} has no address {missing}: it has {}",
            link.name,
            list.join(", ")
        );
    }
    Ok(if config.addresses.is_empty() {
        have
    } else {
        config.addresses.clone()
    })
}

/// Receive queues in use: the driver's channels where it tells them, else what the device has.
pub(crate) fn queues(device: &Link) -> u32 {
    ethtool::channels(&device.name)
        .map_or(device.rx_queues, |c| c.rx)
        .max(1)
}

/// Whether the multi-buffer variant can be used, by what the device says of itself.
pub(crate) fn frags(device: &Link, wish: AttachWish) -> Result<bool> {
    // Generic mode keeps frames of several buffers for a multi-buffer program (net/core/dev.c,
    // bpf_prog_run_generic_xdp), whatever the driver says.
    let features = XdpFeatures::of(device.index)?;
    Ok(match features {
        None => false, // before Linux 6.3, so before AF_XDP multi-buffer (6.6) as well
        Some(f) => wish == AttachWish::Generic || f.rx_frags(),
    })
}

pub(super) fn path_mtu(config: &LoadConfig, link: &Link, frags: bool) -> Result<PathMtu> {
    let Some(by_mtu) = largest_path_mtu(link.mtu) else {
        bail!(
            "interface {}: MTU {} can't carry even path MTU 256, which needs {}",
            link.name,
            link.mtu,
            mtu_needed(PathMtu::Mtu256)
        );
    };
    let largest = if frags {
        by_mtu
    } else {
        by_mtu.min(PLAIN_PATH_MTU)
    };
    let Some(asked) = config.path_mtu else {
        return Ok(largest);
    };
    if asked > by_mtu {
        bail!(
            "interface {}: MTU {} can't carry path MTU {}, which needs {}; the largest it carries is {}: raise the MTU \
             with `ip link set {} mtu {}`, or ask for --path-mtu {}",
            link.name,
            link.mtu,
            asked.bytes(),
            mtu_needed(asked),
            largest.bytes(),
            link.name,
            mtu_needed(asked),
            largest.bytes()
        );
    }
    if asked > largest {
        bail!(
            "interface {}: path MTU {} needs multi-buffer XDP, which its driver or this kernel does not have; the \
             largest without is {}: ask for --path-mtu {}",
            link.name,
            asked.bytes(),
            largest.bytes(),
            largest.bytes()
        );
    }
    Ok(asked)
}

/// Says when a larger MTU would give a larger path MTU, or what multi-buffer costs here.
pub(super) fn path_mtu_hint(link: &Link, frags: bool, chosen: PathMtu) -> Option<String> {
    let by_mtu = largest_path_mtu(link.mtu)?;
    (!frags && by_mtu > chosen).then(|| {
        format!(
            "{}: no multi-buffer XDP here, so the path MTU is at most {} although MTU {} would carry {}",
            link.name,
            chosen.bytes(),
            link.mtu,
            by_mtu.bytes()
        )
    })
}

/// Things that work, but that the user should know.
pub(super) fn warnings(link: &Link, device: &Link, vlan: Option<u16>) -> Vec<String> {
    let mut out = Vec::new();
    match RdmaDevice::on(&device.name) {
        Ok(devices) => out.extend(devices.iter().map(|d| format!("{}: {d}", device.name))),
        Err(e) => out.push(format!(
            "{}: can't tell whether there is RDMA hardware: {e}",
            device.name
        )),
    }
    if vlan.is_some() && ethtool::vlan_stripped(&device.name).unwrap_or(false) {
        out.push(format!(
            "{}: the driver strips VLAN tags on receive, so XDP can't tell VLANs apart; turn that off with \
             `ethtool -K {} rxvlan off`",
            device.name, device.name
        ));
    }
    if !link.running {
        out.push(format!(
            "{}: no carrier: nothing will arrive until the link comes up",
            link.name
        ));
    }
    if let Ok(Some(features)) = XdpFeatures::of(device.index)
        && features.basic()
        && !features.redirect()
    {
        out.push(format!(
            "{}: the driver runs XDP programs but does not support redirect: no packet will reach AF_XDP in driver \
             mode; use --mode generic",
            device.name
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_mtu_leaves_room_for_the_largest_headers() {
        assert_eq!(largest_path_mtu(1500), Some(PathMtu::Mtu1024));
        assert_eq!(largest_path_mtu(4200), Some(PathMtu::Mtu4096));
        assert_eq!(largest_path_mtu(4179), Some(PathMtu::Mtu2048));
        assert_eq!(largest_path_mtu(340), Some(PathMtu::Mtu256));
        assert_eq!(largest_path_mtu(339), None);
    }

    #[test]
    fn missing_capabilities_are_named() {
        assert!(missing_capabilities(u64::MAX).is_empty());
        assert_eq!(missing_capabilities(0).len(), 3);
        let only_sys_admin = missing_capabilities(1 << CAP_SYS_ADMIN);
        assert_eq!(only_sys_admin.len(), 2, "{only_sys_admin:?}");
        assert!(only_sys_admin.iter().all(|m| !m.contains("CAP_BPF")));
    }
}
