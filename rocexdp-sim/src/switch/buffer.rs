//! Who holds how much of a switch's buffer, who is admitted, and whom to pause.
//!
//! Follows `switch-mmu.cc` of HPCC's ns-3: a lossless ingress queue first fills what is reserved for it, then the shared part up to
//! its threshold, then its headroom; it gives back in the opposite order. Differences: what the shared part can't hold is refused
//! even where a threshold (alpha above 1, or a static one) would admit it; reserved bytes are granted though headroom is full; lossy
//! priorities take from the shared part alone, limited per egress queue.
//!
//! Must not: know packets, or time.

use super::PRIORITIES;
use super::config::{PfcConfig, PfcThreshold, SwitchConfig};
use super::counters::{BufferUse, DropReason};

/// An ingress queue's share.
#[derive(Clone, Copy, Default, Debug)]
struct Ingress {
    /// Reserved and shared.
    bytes: u64,
    headroom: u64,
}

#[derive(Clone, Debug)]
struct Port {
    ingress: [Ingress; PRIORITIES],
    headroom: u64,
    /// Of its lossless ingress queues.
    threshold: PfcThreshold,
    /// Alpha of its lossy egress queues, where no limit is set.
    alpha: f64,
}

#[derive(Clone, Debug)]
pub(super) struct Buffer {
    ports: Vec<Port>,
    lossless: [bool; PRIORITIES],
    reserved: u64,
    resume_offset: u64,
    tail_drop: Option<u64>,
    use_: BufferUse,
    reference: bool,
}

/// This share of what is free, as the reference's right shift rounds it.
fn share(alpha: f64, free: u64) -> u64 {
    (alpha * free as f64) as u64
}

impl Buffer {
    /// Of a configuration that was checked.
    pub(super) fn new(config: &SwitchConfig) -> Self {
        let pfc = config.pfc.as_ref();
        let threshold = pfc.map_or(PfcThreshold::Dynamic(1.0), |pfc| pfc.threshold);
        let ports = config.ports.iter().map(|port| Port {
            ingress: [Ingress::default(); PRIORITIES],
            headroom: port.headroom,
            threshold: port.alpha.map_or(threshold, PfcThreshold::Dynamic),
            alpha: port.alpha.unwrap_or(match threshold {
                PfcThreshold::Dynamic(alpha) => alpha,
                PfcThreshold::Static(_) => 1.0,
            }),
        });
        Self {
            ports: ports.collect(),
            lossless: pfc.map_or([false; PRIORITIES], |pfc: &PfcConfig| pfc.priorities),
            reserved: config.reserved,
            resume_offset: pfc.map_or(0, |pfc| pfc.resume_offset),
            tail_drop: config.tail_drop,
            use_: BufferUse {
                shared_size: config.buffer.saturating_sub(config.set_aside()),
                ..BufferUse::default()
            },
            reference: false,
        }
    }

    /// [`super::Switch::follow_reference`].
    pub(super) fn follow_reference(&mut self) {
        self.reference = true;
    }

    pub(super) const fn follows_reference(&self) -> bool {
        self.reference
    }

    pub(super) const fn usage(&self) -> BufferUse {
        self.use_
    }

    pub(super) fn is_lossless(&self, priority: u8) -> bool {
        self.lossless[usize::from(priority)]
    }

    /// What an ingress queue holds: reserved and shared, headroom.
    pub(super) fn ingress(&self, port: u16, priority: u8) -> (u64, u64) {
        let queue = self.queue(port, priority);
        (queue.bytes, queue.headroom)
    }

    fn queue(&self, port: u16, priority: u8) -> Ingress {
        self.ports[usize::from(port)].ingress[usize::from(priority)]
    }

    fn free(&self) -> u64 {
        self.use_.shared_size.saturating_sub(self.use_.shared)
    }

    /// The PFC threshold of a port's ingress queues now.
    pub(super) fn threshold(&self, port: u16) -> u64 {
        match self.ports[usize::from(port)].threshold {
            PfcThreshold::Static(bytes) => bytes,
            PfcThreshold::Dynamic(alpha) => share(alpha, self.free()),
        }
    }

    /// Takes room for a packet that goes to an egress queue of `queued` bytes.
    pub(super) fn admit(
        &mut self,
        [from, to]: [u16; 2],
        priority: u8,
        len: u64,
        queued: u64,
    ) -> Result<(), DropReason> {
        if self.is_lossless(priority) {
            self.admit_lossless(from, priority, len)?;
        } else {
            let limit = self
                .tail_drop
                .unwrap_or_else(|| share(self.ports[usize::from(to)].alpha, self.free()));
            if queued + len > limit {
                return Err(DropReason::QueueFull);
            }
            if len > self.free() {
                return Err(DropReason::BufferFull);
            }
            self.use_.shared += len;
        }
        self.use_.used += len;
        self.use_.max = self.use_.max.max(self.use_.used);
        Ok(())
    }

    fn admit_lossless(&mut self, from: u16, priority: u8, len: u64) -> Result<(), DropReason> {
        let (threshold, mut free) = (self.threshold(from), self.free());
        let port = &mut self.ports[usize::from(from)];
        let queue = &mut port.ingress[usize::from(priority)];
        let above = (queue.bytes + len).saturating_sub(self.reserved);
        let more = above.min(len);
        if self.reference {
            // `CheckIngressAdmission`.
            let shared = queue.bytes.saturating_sub(self.reserved);
            if queue.headroom + len > port.headroom && shared + len > threshold {
                return Err(DropReason::HeadroomFull);
            }
            free = u64::MAX;
        }
        if above == 0 || above <= threshold && more <= free {
            queue.bytes += len;
            self.use_.shared += more;
        } else if queue.headroom + len <= port.headroom {
            queue.headroom += len;
        } else {
            return Err(DropReason::HeadroomFull);
        }
        Ok(())
    }

    /// Gives a packet's room back.
    pub(super) fn release(&mut self, from: u16, priority: u8, len: u64) {
        self.use_.used -= len;
        if !self.is_lossless(priority) {
            self.use_.shared -= len;
            return;
        }
        let queue = &mut self.ports[usize::from(from)].ingress[usize::from(priority)];
        let headroom = queue.headroom.min(len);
        let rest = len - headroom;
        let shared = queue.bytes.saturating_sub(self.reserved).min(rest);
        queue.headroom -= headroom;
        queue.bytes -= rest;
        self.use_.shared -= shared;
    }

    /// Whether the peer of an ingress queue has to stop.
    pub(super) fn must_pause(&self, port: u16, priority: u8) -> bool {
        let queue = self.queue(port, priority);
        let shared = queue.bytes.saturating_sub(self.reserved);
        self.is_lossless(priority) && (queue.headroom > 0 || shared >= self.threshold(port))
    }

    /// Whether a peer that was stopped may go on.
    pub(super) fn may_resume(&self, port: u16, priority: u8) -> bool {
        let queue = self.queue(port, priority);
        let shared = queue.bytes.saturating_sub(self.reserved);
        queue.headroom == 0 && (shared == 0 || shared + self.resume_offset <= self.threshold(port))
    }
}
