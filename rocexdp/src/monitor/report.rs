//! What a monitor is attached to, and what it can't see from there.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::net::{Link, link::XdpMode, rdma::RdmaDevice};

/// Where received packets are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// By XDP, in this mode.
    Xdp {
        /// As the kernel has it.
        mode: XdpMode,
    },
    /// By TCX ingress.
    Tcx,
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xdp { mode } => write!(f, "XDP in {mode} mode"),
            Self::Tcx => f.write_str("TCX"),
        }
    }
}

impl Serialize for Hook {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The attachment as it is in force.
#[derive(Clone, Debug, Serialize)]
pub struct MonitorReport {
    /// Interface asked for.
    pub iface: String,
    /// Interface attached to: the parent, for a VLAN device.
    pub device: String,
    /// Its index.
    pub ifindex: u32,
    /// Where received packets are counted.
    pub ingress: Hook,
    /// The kernel's id of the program there.
    pub program_id: u32,
    /// Whether packets that the kernel's stack sends are counted.
    pub egress: bool,
    /// Why not.
    pub no_egress: Option<String>,
    /// Receive queues.
    pub queues: u32,
    /// Flows that the table holds.
    pub flows: u32,
    /// Length of a pause quantum, ps; 0: the link's rate is not known, so that paused time can't be told.
    pub quantum_ps: u32,
    /// Whether the NIC takes frames to other addresses for this monitor.
    pub promiscuous: bool,
    /// The XDP program that owns the NIC instead.
    pub other_xdp: Option<String>,
    /// RDMA devices on the interface, or why that can't be told.
    #[serde(skip)]
    pub rdma: Result<Vec<RdmaDevice>, String>,
    /// By what the kernel may send a packet out where it came in; `None`: by nothing that is seen here.
    pub sent_back: Option<String>,
    /// The driver takes VLAN tags out of received frames.
    pub vlan_stripped: bool,
    /// What the user should know.
    pub warnings: Vec<String>,
}

impl MonitorReport {
    /// Whether there is RDMA hardware, whose traffic no program sees.
    pub fn has_rdma_hardware(&self) -> bool {
        matches!(&self.rdma, Ok(devices) if devices.iter().any(|d| !d.software))
    }

    /// What can't be seen, in plain words, one statement each.
    pub fn blind_spots(&self) -> Vec<String> {
        let name = &self.device;
        let mut out = Vec::new();
        match &self.rdma {
            Ok(devices) => {
                for device in devices.iter().filter(|d| !d.software) {
                    out.push(format!(
                        "{name}: {device}; only the NIC's own counters tell of it"
                    ));
                }
            }
            Err(error) => out.push(format!(
                "{name}: can't tell whether there is RDMA hardware, whose traffic would not be seen: {error}"
            )),
        }
        if let Some(other) = &self.other_xdp {
            out.push(format!(
                "{name}: received packets are counted behind another XDP program, {other}: what that takes or drops is not seen"
            ));
        }
        match &self.no_egress {
            None => out.push(format!(
                "{name}: of sent packets only those of the kernel's stack are seen (Soft-RoCE, bridges, routing), not those of \
                 AF_XDP sockets, XDP redirects or hardware"
            )),
            Some(why) => out.push(format!(
                "{name}: sent packets are not seen ({why}): where both directions do not arrive here, as on a mirror port, there is no round-trip time"
            )),
        }
        if let (Some(how), true) = (&self.sent_back, self.egress) {
            out.push(format!(
                "{name}: {how}: a packet that comes in here and goes out here again (a router on one interface, a hairpin, a \
                 tunnel's gateway) is counted twice, the second time as sent again; --no-egress counts received ones only"
            ));
        }
        if self.ingress
            == (Hook::Xdp {
                mode: XdpMode::Generic,
            })
        {
            out.push(format!(
                "{name}: XDP in generic mode runs on whichever CPU the kernel takes a packet on, several for one receive queue \
                 (RPS, virtual links): what two of them count at the same moment may be counted once; --ingress tcx counts per CPU"
            ));
        }
        match self.ingress {
            Hook::Xdp { .. } if self.vlan_stripped => out.push(format!(
                "{name}: the driver takes VLAN tags out of received frames, so that flows of different VLANs with the same \
                 addresses are one, and recorded frames have no tag; `ethtool -K {name} rxvlan off` shows them"
            )),
            Hook::Tcx => out.push(format!(
                "{name}: received packets are seen behind the kernel's aggregation (GRO): several may be seen as one"
            )),
            Hook::Xdp { .. } => {}
        }
        if !self.promiscuous {
            out.push(format!(
                "{name}: frames to other hosts' addresses are seen only if the NIC is promiscuous: for a mirror port, \
                 `ip link set {name} promisc on`"
            ));
        }
        out.push(format!(
            "{name}: most NICs take pause frames out before any program sees them{}",
            if self.quantum_ps == 0 {
                ", and the link's rate is not known, so that paused time can't be told"
            } else {
                ""
            }
        ));
        out.push(format!(
            "{name}: packets are counted before their ICRC is checked (CNPs excepted)"
        ));
        out
    }
}

impl fmt::Display for MonitorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.iface)?;
        if self.device != self.iface {
            write!(f, " (on {})", self.device)?;
        }
        write!(
            f,
            ": received packets by {} (program {}), {} queue{}, ",
            self.ingress,
            self.program_id,
            self.queues,
            if self.queues == 1 { "" } else { "s" }
        )?;
        match &self.no_egress {
            None => f.write_str("sent ones by TCX")?,
            Some(why) => write!(f, "sent ones not: {why}")?,
        }
        write!(f, ", table of {} flows", self.flows)?;
        for warning in &self.warnings {
            write!(f, "\nwarning: {warning}")?;
        }
        Ok(())
    }
}

/// Things that work, but that the user should know.
pub(super) fn warnings(asked: &Link, device: &Link) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(vlan) = asked.vlan {
        out.push(format!(
            "{} is VLAN {} of {}: all of {} is watched, whatever its VLAN",
            asked.name, vlan.id, device.name, device.name
        ));
    }
    if !device.running {
        out.push(format!(
            "{}: no carrier: nothing will be seen until the link comes up",
            device.name
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> MonitorReport {
        MonitorReport {
            iface: "eth1.5".into(),
            device: "eth1".into(),
            ifindex: 3,
            ingress: Hook::Xdp {
                mode: XdpMode::Driver,
            },
            program_id: 9,
            egress: true,
            no_egress: None,
            queues: 4,
            flows: 8192,
            quantum_ps: 5120,
            promiscuous: true,
            other_xdp: None,
            rdma: Ok(Vec::new()),
            sent_back: None,
            vlan_stripped: false,
            warnings: Vec::new(),
        }
    }

    #[test]
    fn what_is_not_seen_depends_on_the_hooks_and_the_hardware() {
        let says = |report: &MonitorReport, what: &str| {
            report.blind_spots().iter().any(|line| line.contains(what))
        };
        let plain = report();
        assert!(says(&plain, "only those of the kernel's stack"));
        assert!(!says(&plain, "twice") && !says(&plain, "generic"));
        let router = MonitorReport {
            sent_back: Some("net.ipv4.ip_forward is on".into()),
            ingress: Hook::Xdp {
                mode: XdpMode::Generic,
            },
            ..report()
        };
        for what in ["ip_forward is on: a packet", "--no-egress", "generic mode"] {
            assert!(says(&router, what), "{what}");
        }
        let received_only = MonitorReport {
            egress: false,
            no_egress: Some("not asked for".into()),
            ..router
        };
        assert!(!says(&received_only, "twice"));
        assert!(!says(&plain, "bypasses") && !says(&plain, "VLAN") && !says(&plain, "GRO"));
        let hardware = MonitorReport {
            rdma: Ok(vec![RdmaDevice {
                name: "mlx5_0".into(),
                software: false,
            }]),
            vlan_stripped: true,
            no_egress: Some("not asked for".into()),
            ..report()
        };
        for what in ["mlx5_0", "rxvlan off", "not asked for"] {
            assert!(says(&hardware, what), "{what}");
        }
        let behind = MonitorReport {
            ingress: Hook::Tcx,
            other_xdp: Some("rocexdp_frags (id 7, driver mode)".into()),
            quantum_ps: 0,
            promiscuous: false,
            ..report()
        };
        for what in ["id 7", "GRO", "rate is not known", "promisc on"] {
            assert!(says(&behind, what), "{what}");
        }
    }
}
