//! A lab whose host b is the guest.
//!
//! b's end of the wire and the guest's tap are in a bridge in b's namespace. XDP on the tap itself would do for small frames only: the
//! driver (drivers/net/tun.c) takes no frames in fragments, so path MTU 4096 does not fit. Must not: know what is tested.

use rocexdp::lab::{HOST_INTERFACE, Host, Impairment, Lab, LabConfig, PortCounters, namespaces};

use super::guest::{Guest, Kernel};
use crate::hop::ip;

/// The guest's tap, in b's namespace.
pub const NEAR_TAP: &str = "tap0";

/// The lab and the guest in it.
#[derive(Debug)]
pub struct Site {
    // Dropped first: its namespace is the lab's.
    guest: Guest,
    lab: Lab,
    /// What the guest was booted with.
    netns: String,
    nic: String,
}

impl Site {
    /// Makes it; `test` makes the lab's name. `None`, said as `SKIP`, where it can't be.
    pub fn up(test: &str, kernel: Kernel) -> Option<Self> {
        Self::with_mtu(test, kernel, LabConfig::default().mtu)
    }

    /// The same with another MTU of all links, the guest's included.
    pub fn with_mtu(test: &str, kernel: Kernel, mtu: u32) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: not root");
            return None;
        }
        let name = format!("{test}{}", std::process::id());
        let lab = Lab::up(LabConfig {
            name: name.clone(),
            mtu,
            ..LabConfig::default()
        });
        let lab = lab.unwrap();
        let [_, b, _] = namespaces(&name);
        let end = HOST_INTERFACE;
        for line in [
            format!("address flush dev {end}"),
            // The guest has b's.
            format!("link set {end} address 02:00:00:00:ff:02"),
            "link add hub type bridge mcast_snooping 0".to_owned(),
            format!("link set {end} master hub"),
            format!("link set hub mtu {mtu} up"),
            format!("tuntap add {NEAR_TAP} mode tap"),
        ] {
            ip(&format!("-n {b} {line}"));
        }
        lab.host(Host::B)
            .run(|| {
                for interface in ["hub", end, NEAR_TAP] {
                    let switch = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
                    std::fs::write(switch, "1").unwrap();
                }
            })
            .unwrap();
        let nic = format!(
            "{NEAR_TAP},bridge=hub,mtu={mtu},mac={},ip={}/24,ip6={}/64",
            Host::B.mac(),
            Host::B.ipv4(),
            Host::B.ipv6()
        );
        match Guest::boot(kernel, &b, &nic) {
            Ok(guest) => Some(Self {
                guest,
                lab,
                netns: b,
                nic,
            }),
            Err(lacks) => {
                println!("SKIP: no Soft-RoCE peer: {lacks}");
                None
            }
        }
    }

    /// Boots another guest in place of one that was killed: the same addresses, and nothing that it remembers.
    pub fn reboot(&mut self) {
        let kernel = self.guest.kernel();
        self.guest = Guest::boot(kernel, &self.netns, &self.nic).unwrap();
    }

    /// The guest.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// The lab: rocexdp is at home on its host a.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Faults for what rocexdp sends, and for what the guest sends.
    pub fn impair(&mut self, faults: [&str; 2]) {
        let faults = faults.map(|text| text.parse::<Impairment>().unwrap().0);
        self.lab.impair_each(faults).unwrap();
    }

    /// What the wire did to the frames of rocexdp and of the guest.
    pub fn wire(&self) -> [PortCounters; 2] {
        self.lab.counters().unwrap()
    }
}
