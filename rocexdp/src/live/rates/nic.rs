//! What the NIC itself counted between two snapshots: pause frames that its MAC keeps from XDP, and RDMA ports.

use super::{
    super::model::IfaceSnapshot,
    iface::PauseRate,
    value::{Reason, gained},
};
use crate::nic::NicCounters;

const NO_TIME: Reason = "the NIC counts pause frames, not time";

/// A counter of an RDMA port that moved.
#[derive(Clone, Debug, PartialEq)]
pub struct NicRate {
    /// The device, such as `mlx5_0`.
    pub device: String,
    /// Its port.
    pub port: u32,
    /// Whether it is Soft-RoCE or the like, whose packets programs see too.
    pub software: bool,
    /// The counter's name as the driver has it.
    pub name: String,
    /// Per second, in the counter's own unit.
    pub per_second: f64,
    /// So far.
    pub total: u64,
}

/// Two readings of a NIC.
pub struct Between<'a> {
    before: &'a NicCounters,
    after: &'a NicCounters,
    seconds: f64,
}

impl<'a> Between<'a> {
    /// `None` where the NIC was not read twice.
    pub fn new(before: &'a IfaceSnapshot, after: &'a IfaceSnapshot) -> Option<Self> {
        let readings = after.nic.as_ref()?;
        let (now, after) = &readings.latest;
        let older = before.nic.as_ref().map(|nic| &nic.latest);
        // The interval was too short for a new reading: what the last one found holds on.
        let older = older.filter(|(then, _)| then < now);
        let (then, before) = older.or(readings.earlier.as_ref())?;
        let seconds = now.saturating_sub(*then) as f64 / 1e9;
        (seconds > 0.0).then_some(Self {
            before,
            after,
            seconds,
        })
    }

    /// The RDMA ports' counters that moved.
    pub fn counters(&self) -> Vec<NicRate> {
        let mut moved = Vec::new();
        for port in &self.after.rdma {
            let same =
                |p: &&crate::nic::sysfs::Port| p.device == port.device && p.port == port.port;
            let Some(old) = self.before.rdma.iter().find(same) else {
                continue;
            };
            let pairs = [
                (&old.counters, &port.counters),
                (&old.hw_counters, &port.hw_counters),
            ];
            for (old, new) in pairs {
                for (name, total) in new {
                    let Some(before) = old.get(name).filter(|before| *before != total) else {
                        continue;
                    };
                    moved.push(NicRate {
                        device: port.device.clone(),
                        port: port.port,
                        software: port.software,
                        name: name.clone(),
                        per_second: gained(*before, *total) as f64 / self.seconds,
                        total: *total,
                    });
                }
            }
        }
        moved
    }

    /// Priorities that the link partner paused, as the NIC counts received frames and, if it does, time.
    pub fn pauses(&self) -> Vec<PauseRate> {
        let both = self.before.pauses.rx.iter().zip(&self.after.pauses.rx);
        both.enumerate()
            .filter_map(|(priority, (old, new))| {
                let (frames, time) = (new.frames, new.duration_us);
                if frames.unwrap_or(0) == 0 && time.unwrap_or(0) == 0 {
                    return None;
                }
                let frames_gained = gained(old.frames.unwrap_or(0), frames.unwrap_or(0));
                let share = match (old.duration_us, time) {
                    (Some(old), Some(new)) => {
                        Ok((gained(old, new) as f64 / 1e6 / self.seconds).min(1.0))
                    }
                    _ => Err(NO_TIME),
                };
                Some(PauseRate {
                    priority: u8::try_from(priority).ok(),
                    pauses: frames_gained as f64 / self.seconds,
                    resumes: 0.0,
                    share,
                    paused: share.is_ok_and(|share| share > 0.99),
                    total: frames.unwrap_or(0),
                    counted_by: "nic",
                })
            })
            .collect()
    }
}
