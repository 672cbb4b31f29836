//! Watching an interface: loads the monitor's programs, attaches them, keeps them, says what they can't see.
//!
//! Everything passes. What is received is counted by XDP, in the driver where it can, or by TCX ingress where another XDP
//! program owns the NIC; what the kernel's stack sends, by TCX egress. All attachments are BPF links, which end with the
//! process, `kill -9` included. What the programs do is `rocexdp_common::watch`'s; the maps are read through
//! [`MapsView`], by this process or another.

mod attach;
mod forwarding;
mod report;
mod several;
mod tap;
mod tap_sent;

use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow, bail};
use aya::{Ebpf, EbpfLoader, programs::links::FdLink};
use rocexdp_common::{
    maps,
    watch::{self, tap as tap_maps},
};

use crate::{
    loader::{
        AttachWish,
        check::{capabilities, explain_load, frags, queues},
    },
    maps::MapsView,
    net::{IfIndex, Link, rdma::RdmaDevice},
    sys::{ethtool, promiscuous::Promiscuous},
};

pub use report::{Hook, MonitorReport};
pub use several::{Change, Monitors};
pub use tap::{Record, TapReader};

/// The monitor's eBPF object, as built by `cargo xtask build`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("ROCEXDP_BPF_MONITOR"));

/// Most entries of `FLOWS`: half a gigabyte of kernel memory.
pub const MOST_FLOWS: u32 = 1 << 19;

/// Where received packets shall be counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ingress {
    /// XDP in the driver; else XDP in generic mode; TCX where another XDP program is there.
    #[default]
    Auto,
    /// XDP, in this mode.
    Xdp(AttachWish),
    /// TCX.
    Tcx,
}

impl FromStr for Ingress {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "driver" => Ok(Self::Xdp(AttachWish::Driver)),
            "generic" => Ok(Self::Xdp(AttachWish::Generic)),
            "tcx" => Ok(Self::Tcx),
            _ => Err(format!(
                "\"{s}\" is no place to watch from: use auto, driver, generic or tcx"
            )),
        }
    }
}

/// How to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MonitorWish {
    /// Where received packets are counted.
    pub ingress: Ingress,
    /// Whether packets that the kernel's stack sends are counted too, where the kernel has TCX (6.6).
    pub egress: bool,
    /// Whether the NIC shall take frames to other addresses meanwhile, as a mirror port needs.
    pub promiscuous: bool,
    /// Flows that the table holds, 1 to [`MOST_FLOWS`]; beyond, the ones not seen for longest make room.
    pub flows: u32,
    /// Requests that can wait for their answer at a time; beyond, the oldest give no round trip.
    pub pending: u32,
    /// Bytes of the tap's ring buffer, a power of two of at least a page; `None`: nobody will record.
    pub tap_bytes: Option<u32>,
}

impl Default for MonitorWish {
    fn default() -> Self {
        Self {
            ingress: Ingress::Auto,
            egress: true,
            promiscuous: false,
            flows: maps::DEFAULT_FLOWS,
            pending: watch::DEFAULT_PENDING,
            tap_bytes: None,
        }
    }
}

/// An interface that is watched. Dropping it detaches.
#[derive(Debug)]
pub struct Monitor {
    // Order matters: the links go first.
    _links: Vec<FdLink>,
    _promiscuous: Option<Promiscuous>,
    // Programs and maps: they go with it.
    _bpf: Ebpf,
    program_id: u32,
    index: IfIndex,
    report: MonitorReport,
}

impl Monitor {
    /// Checks the interface, loads the programs and attaches them. Runs in the caller's network namespace; nothing of the
    /// interface is changed.
    ///
    /// # Errors
    /// Names the interface and what to do: missing, no Ethernet, the wanted hook is not to be had, missing capabilities.
    pub fn start(iface: &str, wish: &MonitorWish) -> Result<Self> {
        if !(1..=MOST_FLOWS).contains(&wish.flows) || !(1..=MOST_FLOWS).contains(&wish.pending) {
            bail!(
                "{} flows, {} waiting requests: use 1 to {MOST_FLOWS} of each",
                wish.flows,
                wish.pending
            );
        }
        capabilities()?;
        let asked = Link::by_name(iface)?;
        let device = asked.xdp_device()?;
        if device.mac.is_none() {
            bail!("interface {}: no Ethernet device", device.name);
        }
        let queues = queues(&device);
        let cpus = u32::try_from(aya::util::nr_cpus().map_err(|(what, e)| anyhow!("{what}: {e}"))?)
            .context("counting CPUs")?;
        let quantum_ps = device.pause_quantum_ps();
        let mut bpf = load(wish, queues, cpus, quantum_ps)
            .map_err(|error| explain_load(error, &device.name))?;

        let mut warnings = report::warnings(&asked, &device);
        let mut links = Vec::new();
        let frags = frags(&device, mode_wish(wish.ingress))?;
        // Loaded before anything is attached: from the first packet on both directions are counted.
        let egress = match wish.egress {
            true => attach::prepare(&mut bpf, &device, attach::Side::Egress.program()),
            false => Err(anyhow!("not asked for")),
        };
        let ingress = attach::ingress(&mut bpf, &device, wish.ingress, frags, &mut warnings)?;
        links.push(ingress.link);
        let egress = egress
            .and_then(|()| attach::tcx(&mut bpf, &device, attach::Side::Egress))
            .map(|attached| links.push(attached.link))
            .map_err(|error| format!("{error:#}"));
        let promiscuous = wish
            .promiscuous
            .then(|| Promiscuous::on(device.index.0))
            .transpose()
            .with_context(|| format!("interface {}: making it promiscuous", device.name))?;
        let report = MonitorReport {
            iface: iface.to_owned(),
            device: device.name.clone(),
            ifindex: device.index.0,
            ingress: ingress.hook,
            program_id: ingress.id,
            egress: egress.is_ok(),
            no_egress: egress.err(),
            queues,
            flows: wish.flows,
            quantum_ps,
            promiscuous: wish.promiscuous,
            other_xdp: ingress.other,
            rdma: RdmaDevice::on(&device.name).map_err(|e| e.to_string()),
            sent_back: forwarding::sends_back(&device),
            vlan_stripped: ethtool::vlan_stripped(&device.name).unwrap_or(false),
            warnings,
        };
        Ok(Self {
            _links: links,
            _promiscuous: promiscuous,
            _bpf: bpf,
            program_id: ingress.id,
            index: device.index,
            report,
        })
    }

    /// What was done, and what can't be seen.
    pub fn report(&self) -> &MonitorReport {
        &self.report
    }

    /// What this monitor can't see, in plain words, one statement each.
    pub fn blind_spots(&self) -> Vec<String> {
        self.report.blind_spots()
    }

    /// The kernel's id of the program that counts what is received. All maps are found by it.
    pub fn program_id(&self) -> u32 {
        self.program_id
    }

    /// The maps, read-only.
    ///
    /// # Errors
    /// The kernel's.
    pub fn maps(&self) -> Result<MapsView> {
        MapsView::of_program(self.program_id)
    }

    /// Whether the interface is still there. Its programs went with it if not.
    ///
    /// # Errors
    /// It has gone, or is another one of the same name.
    pub fn check(&self) -> Result<()> {
        let link = Link::by_index(self.index)
            .map_err(|_| anyhow!("interface {} has gone", self.report.device))?;
        if link.name != self.report.device {
            bail!(
                "interface {} was renamed to {}",
                self.report.device,
                link.name
            );
        }
        Ok(())
    }

    /// The tap, which is off. It has one reader, and room only if `tap_bytes` was given.
    ///
    /// # Errors
    /// Somebody reads it already.
    pub fn tap(&self) -> Result<TapReader> {
        TapReader::of_program(self.program_id, self.report.ifindex)
    }
}

/// What the variant for frames of several buffers is chosen by.
const fn mode_wish(ingress: Ingress) -> AttachWish {
    match ingress {
        Ingress::Xdp(wish) => wish,
        Ingress::Auto | Ingress::Tcx => AttachWish::Auto,
    }
}

fn load(wish: &MonitorWish, queues: u32, cpus: u32, quantum_ps: u32) -> Result<Ebpf> {
    let page = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
    let tap = wish.tap_bytes.unwrap_or(page);
    if !tap.is_power_of_two() || tap < page {
        bail!("a tap of {tap} B: use a power of two of at least {page}");
    }
    Ok(EbpfLoader::new()
        .override_global(maps::GLOBAL_QUEUES, &queues, true)
        .override_global(watch::GLOBAL_CPUS, &cpus, true)
        .override_global(maps::GLOBAL_QUANTUM_PS, &quantum_ps, true)
        .map_max_entries(maps::FLOWS, wish.flows)
        .map_max_entries(watch::PENDING, wish.pending)
        // One more, for frames of queues that come later.
        .map_max_entries(maps::QUEUE_COUNTERS, queues + 1)
        .map_max_entries(watch::TCX_COUNTERS, cpus * 2)
        .map_max_entries(maps::LINK_CONTROL, queues + 1 + cpus)
        .map_max_entries(tap_maps::TAP, tap)
        .load(OBJECT)?)
}
