//! Each rule of the switch, and that its accounting never leaks.

mod admission;
mod config;
mod marking;
mod pfc;
mod scheduling;

use core::time::Duration;
use std::collections::VecDeque;

use rocexdp_proto::rng::Rng;
use rocexdp_proto::time::Rate;

use super::*;
use crate::picos::Picos;
use crate::topology::PortId;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Packet {
    len: u32,
    priority: u8,
    ecn: bool,
    ce: bool,
    id: u32,
}

impl Queued for Packet {
    fn wire_len(&self) -> u32 {
        self.len
    }
    fn priority(&self) -> u8 {
        self.priority
    }
    fn ecn_capable(&self) -> bool {
        self.ecn
    }
    fn mark(&mut self) {
        self.ce = true;
    }
}

const fn packet(len: u32, priority: u8) -> Packet {
    Packet {
        len,
        priority,
        ecn: true,
        ce: false,
        id: 0,
    }
}

fn port() -> PortConfig {
    PortConfig {
        rate: Rate::from_gbps(100),
        delay: Duration::from_micros(1),
        ecn: [None; PRIORITIES],
        scheduler: Scheduler::Strict,
        headroom: 0,
        alpha: None,
    }
}

fn config(ports: usize) -> SwitchConfig {
    SwitchConfig {
        ports: vec![port(); ports],
        buffer: 1_000_000,
        reserved: 0,
        mark_on: MarkOn::Dequeue,
        pfc: None,
        tail_drop: None,
    }
}

/// Priority 3 lossless, as the reference has it.
fn reference_pfc() -> PfcConfig {
    let mut priorities = [false; PRIORITIES];
    priorities[3] = true;
    PfcConfig {
        priorities,
        threshold: PfcThreshold::Dynamic(0.125),
        resume_offset: 3 * 1024,
        quanta: None,
    }
}

fn switch(config: &SwitchConfig) -> Switch<Packet> {
    Switch::new(config, 7).unwrap_or_else(|e| panic!("{e}"))
}

fn outputs(switch: &mut Switch<Packet>) -> Vec<Output> {
    core::iter::from_fn(|| switch.poll_output()).collect()
}

const T0: Picos = Picos::ZERO;
const A: PortId = PortId(0);
const B: PortId = PortId(1);
const C: PortId = PortId(2);
