//! What the NIC itself counts: pause frames that its MAC keeps from XDP, and RDMA traffic that bypasses the kernel.
//!
//! Reads and changes nothing. Per priority, frames come from DCB netlink (`struct ieee_pfc` of the kernel's
//! include/uapi/linux/dcbnl.h), else from the driver's ethtool statistics; times paused only from the latter. RDMA counters come
//! from sysfs (Documentation/ABI/stable/sysfs-class-infiniband) and RDMA netlink. What a device does not have is absent, with the
//! reason in [`NicCounters::notes`]; nothing is taken for zero.

pub mod dcb;
pub mod ethtool;
pub mod nldev;
mod raw;
pub mod sysfs;

use std::path::Path;

use serde::Serialize;

use crate::{net::rdma::RdmaDevice, sys::ethtool::statistics};

/// Where RDMA devices are in sysfs.
pub const CLASS: &str = "/sys/class/infiniband";

/// Pause frames of one priority in one direction, as far as the NIC tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PauseCounts {
    /// Frames that ask to stop (XOFF).
    pub frames: Option<u64>,
    /// Frames that allow to go on (XON), where the NIC counts them apart.
    pub resumes: Option<u64>,
    /// Times that the priority went from paused to not paused, or back.
    pub transitions: Option<u64>,
    /// Time paused, microseconds.
    pub duration_us: Option<u64>,
}

/// Of which direction a counter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Received: the other end of the link asks this NIC to stop.
    Rx,
    /// Sent: this NIC asks the other end to stop.
    Tx,
}

impl Direction {
    /// For output and labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rx => "rx",
            Self::Tx => "tx",
        }
    }
}

/// What a counter of pauses counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Item {
    /// XOFF frames, or pause frames of any kind where the NIC does not tell them apart.
    Frames,
    /// XON frames.
    Resumes,
    /// Changes between paused and not paused.
    Transitions,
    /// Microseconds paused.
    DurationUs,
}

/// A counter of the whole port: it does not tell which priority was paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortWide {
    /// The driver's name for it.
    pub name: String,
    /// Direction.
    pub direction: Direction,
    /// What it counts.
    pub item: Item,
    /// Its value.
    pub value: u64,
}

/// Where per-priority frames come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// DCB netlink, `ieee_pfc`.
    Dcb,
    /// The driver's ethtool statistics.
    Ethtool,
}

impl Source {
    /// For output and labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dcb => "dcb",
            Self::Ethtool => "ethtool",
        }
    }
}

/// What a NIC counts of pauses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pauses {
    /// Received, by priority.
    pub rx: [PauseCounts; 8],
    /// Sent, by priority.
    pub tx: [PauseCounts; 8],
    /// Where the frames per priority come from; `None`: there are none. Durations and transitions are always ethtool's.
    pub frames_from: Option<Source>,
    /// Priorities for which PFC is on, bit i = priority i; `None`: DCB netlink does not tell.
    pub enabled: Option<u8>,
    /// Counters of the whole port.
    pub port_wide: Vec<PortWide>,
}

impl Pauses {
    /// Counters of a direction.
    #[must_use]
    pub const fn of(&self, direction: Direction) -> &[PauseCounts; 8] {
        match direction {
            Direction::Rx => &self.rx,
            Direction::Tx => &self.tx,
        }
    }

    /// Whether anything is known per priority.
    #[must_use]
    pub fn per_priority(&self) -> bool {
        self.rx
            .iter()
            .chain(&self.tx)
            .any(|counts| *counts != PauseCounts::default())
    }

    /// Takes DCB's frames, and what ethtool knows beside.
    ///
    /// A driver that answers DCB but does not count leaves zeros there: where ethtool has frames, ethtool is believed.
    #[must_use]
    pub fn merge(dcb: Option<&dcb::IeeePfc>, ethtool: Self) -> Self {
        let Some(dcb) = dcb else { return ethtool };
        let counted = dcb.indications.iter().chain(&dcb.requests).any(|n| *n > 0);
        let other = |counts: &[PauseCounts; 8]| counts.iter().any(|c| c.frames.is_some());
        let mut merged = ethtool;
        merged.enabled = Some(dcb.enabled);
        if counted || !(other(&merged.rx) || other(&merged.tx)) {
            merged.frames_from = Some(Source::Dcb);
            for (to, from) in merged.rx.iter_mut().zip(dcb.indications) {
                to.frames = Some(from);
            }
            for (to, from) in merged.tx.iter_mut().zip(dcb.requests) {
                to.frames = Some(from);
            }
        }
        merged
    }
}

/// Everything that the NIC of an interface counts and XDP can't see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NicCounters {
    /// Pauses.
    pub pauses: Pauses,
    /// RDMA ports of the interface, hardware and software.
    pub rdma: Vec<sysfs::Port>,
    /// Counters of single QPs of RDMA hardware, where `rdma statistic` has bound them.
    pub rdma_qps: Vec<nldev::QpCounters>,
    /// What is not there, and why; what is port-wide.
    pub notes: Vec<String>,
}

/// Reads what the NIC of `iface` counts, in the calling thread's network namespace.
///
/// Never fails: what can't be read is a note.
#[must_use]
pub fn read(iface: &str) -> NicCounters {
    read_from(iface, Path::new(CLASS))
}

/// Only what the NIC of `iface` counts of pauses: for looking at it often.
#[must_use]
pub fn pauses(iface: &str) -> Pauses {
    let ethtool = statistics(iface).map_or_else(|_| Pauses::default(), |all| ethtool::pauses(&all));
    Pauses::merge(dcb::ieee_pfc(iface).ok().as_ref(), ethtool)
}

fn read_from(iface: &str, class: &Path) -> NicCounters {
    let mut notes = Vec::new();
    let ethtool = match statistics(iface) {
        Ok(all) => ethtool::pauses(&all),
        Err(error) => {
            notes.push(format!(
                "{iface}: no ethtool statistics of the driver: {error}"
            ));
            Pauses::default()
        }
    };
    let dcb = match dcb::ieee_pfc(iface) {
        Ok(dcb) => Some(dcb),
        Err(error) => {
            notes.push(format!("{iface}: no PFC counters by DCB netlink: {error}"));
            None
        }
    };
    let pauses = Pauses::merge(dcb.as_ref(), ethtool);
    if !pauses.per_priority() {
        notes.push(format!(
            "{iface}: pauses per priority n/a: neither DCB netlink nor the driver's statistics have them"
        ));
        if !pauses.port_wide.is_empty() {
            notes.push(format!(
                "{iface}: its pause counters are those of the whole port"
            ));
        }
    } else if pauses.rx.iter().all(|c| c.duration_us.is_none()) {
        notes.push(format!(
            "{iface}: time paused n/a: the driver counts pause frames, not how long they pause"
        ));
    }
    let (rdma, rdma_qps) = match RdmaDevice::on(iface) {
        Ok(devices) => read_rdma(&devices, class, &mut notes),
        Err(error) => {
            notes.push(format!("{iface}: RDMA devices can't be listed: {error}"));
            (Vec::new(), Vec::new())
        }
    };
    NicCounters {
        pauses,
        rdma,
        rdma_qps,
        notes,
    }
}

fn read_rdma(
    devices: &[RdmaDevice],
    class: &Path,
    notes: &mut Vec<String>,
) -> (Vec<sysfs::Port>, Vec<nldev::QpCounters>) {
    let mut ports = Vec::new();
    for device in devices {
        match sysfs::ports(class, &device.name, device.software) {
            Ok(found) => ports.extend(found),
            Err(error) => notes.push(format!(
                "{}: its counters can't be read: {error}",
                device.name
            )),
        }
    }
    let hardware: Vec<&str> = devices
        .iter()
        .filter(|d| !d.software)
        .map(|d| d.name.as_str())
        .collect();
    if hardware.is_empty() {
        return (ports, Vec::new());
    }
    let qps = match nldev::qp_counters(&hardware) {
        Ok(found) => found,
        Err(error) => {
            notes.push(format!(
                "{}: no counters of single QPs: {error}",
                hardware.join(", ")
            ));
            return (ports, Vec::new());
        }
    };
    if qps.is_empty() {
        notes.push(format!(
            "{}: counters of single QPs n/a: none is bound (see: rdma statistic qp set link DEVICE/PORT auto type on)",
            hardware.join(", ")
        ));
    }
    (ports, qps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dcb_is_believed_unless_it_only_has_zeros_where_the_driver_counts() {
        let ethtool = ethtool::pauses(&[
            ("rx_prio3_pause".to_owned(), 7),
            ("rx_prio3_pause_duration".to_owned(), 900),
        ]);
        let mut dcb = dcb::IeeePfc {
            enabled: 0b1000,
            ..dcb::IeeePfc::default()
        };
        let zeros = Pauses::merge(Some(&dcb), ethtool.clone());
        assert_eq!(
            (
                zeros.frames_from,
                zeros.rx[3].frames,
                zeros.rx[4].frames,
                zeros.enabled
            ),
            (Some(Source::Ethtool), Some(7), None, Some(0b1000))
        );
        dcb.indications[3] = 8;
        let counted = Pauses::merge(Some(&dcb), ethtool);
        assert_eq!(
            (
                counted.frames_from,
                counted.rx[3].frames,
                counted.rx[3].duration_us
            ),
            (Some(Source::Dcb), Some(8), Some(900))
        );
        // A driver without statistics of its own: then zeros are what it says.
        let alone = Pauses::merge(Some(&dcb::IeeePfc::default()), Pauses::default());
        assert_eq!(
            (alone.frames_from, alone.tx[0].frames),
            (Some(Source::Dcb), Some(0))
        );
    }

    #[test]
    fn an_interface_that_is_not_there_has_notes_and_no_counters() {
        let read = read("no-such-iface");
        assert_eq!(read.pauses, Pauses::default());
        assert!(read.rdma.is_empty() && read.notes.len() >= 3, "{read:?}");
        assert!(
            read.notes.iter().any(|n| n.contains("n/a")),
            "{:?}",
            read.notes
        );
    }
}
