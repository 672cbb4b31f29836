//! Whether the kernel may send a packet out on the interface that it came in on: routing is on, or the interface is a port of a
//! bridge. Such a packet passes both of the monitor's programs. Reads settings only; which packets do that is not known.

use std::fs;

use crate::net::Link;

/// By what a packet may go out on `device` again, in words; `None`: nothing of that kind is on. The settings are those of the
/// calling thread's network namespace (`/proc/sys/net` shows the reader's, net/sysctl_net.c); one that can't be read is off, as
/// where there is no IPv6.
pub(super) fn sends_back(device: &Link) -> Option<String> {
    let on = |path: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() != "0");
    for (name, path) in [
        ("net.ipv4.ip_forward", "/proc/sys/net/ipv4/ip_forward"),
        (
            "net.ipv6.conf.all.forwarding",
            "/proc/sys/net/ipv6/conf/all/forwarding",
        ),
    ] {
        if on(path) {
            return Some(format!("this host routes ({name} is on)"));
        }
    }
    // What all of them have not, this one may.
    for family in ["ipv4", "ipv6"] {
        let setting = format!("/proc/sys/net/{family}/conf/{}/forwarding", device.name);
        if on(&setting) {
            return Some(format!(
                "this host routes what comes in here (forwarding of net/{family}/conf/{} is on)",
                device.name
            ));
        }
    }
    let master = Link::by_index(device.master?).ok()?;
    let switches = matches!(master.kind.as_deref(), Some("bridge" | "openvswitch"));
    switches.then(|| format!("it is a port of the bridge {}", master.name))
}
