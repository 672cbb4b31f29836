//! Loads the XDP program, attaches it to an interface, and says what was done.
//!
//! The attachment is a BPF link, which the kernel removes when the process ends, `kill -9`
//! included. Checks come before anything is changed; the mode in force is read back from the
//! kernel, since a request for one mode may silently give another.

pub(crate) mod check;
mod report;

use std::{
    net::IpAddr,
    os::fd::AsFd as _,
    str::FromStr,
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result, anyhow, bail};
use aya::{
    Ebpf, EbpfLoader,
    maps::Map,
    programs::{Program, ProgramError, Xdp, links::FdLink, xdp::XdpMode as AyaMode},
};
use rocexdp_common::{
    ids::{Gid, gid_from_ipv4},
    maps::{self, local_addr},
    watch::tap::{TX_TAP, TX_TAP_SLOTS},
};
use rocexdp_proto::{time::Rate, verbs::PathMtu};

use crate::{
    maps::{ControlMaps, Maps},
    net::{Link, link::XdpMode},
    sys::bpf::bind_map,
};

pub use check::{largest_path_mtu, mtu_needed};
pub use report::AttachReport;

/// The eBPF object of the dataplane, as built by `cargo xtask build`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("ROCEXDP_BPF_ROCEXDP"));

/// How the user wants the program attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachWish {
    /// In the driver; in generic mode, with a warning, where the driver can't.
    #[default]
    Auto,
    /// In the driver or not at all.
    Driver,
    /// In generic mode, after the kernel has made an skb.
    Generic,
}

impl FromStr for AttachWish {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "driver" => Ok(Self::Driver),
            "generic" => Ok(Self::Generic),
            _ => Err(format!(
                "\"{s}\" is no attach mode: use auto, driver or generic"
            )),
        }
    }
}

/// What to load, and where.
#[derive(Clone, Debug)]
pub struct LoadConfig {
    /// Interface; for a VLAN device its parent is attached to, and the tag is used in frames.
    pub iface: String,
    /// Driver or generic mode.
    pub attach: AttachWish,
    /// Path MTU that the interface must carry; `None`: the largest it does.
    pub path_mtu: Option<PathMtu>,
    /// Addresses to answer for; empty: all of the interface.
    pub addresses: Vec<IpAddr>,
    /// VLAN id of the frames, if the interface is not itself a VLAN device.
    pub vlan: Option<u16>,
    /// Another RoCE stack (Soft-RoCE) uses the addresses too.
    pub shared_addresses: bool,
    /// QP slots, a power of two from 64 to 65536.
    pub slots: u32,
    /// Rate of the link; `None`: what the device says. Pauses last by it.
    pub line_rate: Option<Rate>,
    /// Have the program log each packet that it refuses. For debugging: it costs per refused packet.
    pub log_refusals: bool,
}

/// A loaded and attached program with its maps. Dropping it detaches.
#[derive(Debug)]
pub struct Dataplane {
    // Order matters: the link goes first, so that no packet meets half a dataplane.
    _link: FdLink,
    _bpf: Ebpf,
    /// XSKMAP and address map.
    pub control: Arc<Mutex<ControlMaps>>,
    /// The mmapable maps.
    pub maps: Arc<Maps>,
    /// Picoseconds of a pause quantum; 0: the link's rate is not known.
    pub quantum_ps: u32,
    /// What was done.
    pub report: AttachReport,
    /// The device that XDP is attached to.
    pub device: Link,
}

/// Picoseconds of a pause quantum on a link of this rate.
fn quantum_ps(rate: Rate) -> u32 {
    let ps = 512_000_000_000_000_u64.checked_div(rate.as_bps());
    u32::try_from(ps.unwrap_or(0)).unwrap_or(u32::MAX)
}

/// The GID of an address.
pub fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(a) => gid_from_ipv4(a.octets()),
        IpAddr::V6(a) => a.octets(),
    }
}

/// The address of a GID, IPv4-mapped ones as IPv4.
pub fn address_of(gid: Gid) -> IpAddr {
    std::net::Ipv6Addr::from(gid).to_canonical()
}

impl Dataplane {
    /// Checks the interface, loads the program and attaches it. Runs in the caller's network namespace.
    ///
    /// # Errors
    /// Names the interface and what to do: missing, down, no Ethernet, another XDP program (name
    /// and id), MTU too small for the path MTU asked, missing capabilities, or what the kernel said.
    pub fn load(config: &LoadConfig) -> Result<Self> {
        if !config.slots.is_power_of_two() || !(64..=65536).contains(&config.slots) {
            bail!(
                "{} QP slots: use a power of two from 64 to 65536",
                config.slots
            );
        }
        check::capabilities()?;
        let link = Link::by_name(&config.iface)?;
        let device = link.xdp_device()?;
        let vlan = check::vlan(config, &link)?;
        check::usable(&link, &device)?;
        let addresses = check::addresses(config, &link)?;
        let queues = check::queues(&device);
        let mut warnings = check::warnings(&link, &device, vlan);
        let frags = check::frags(&device, config.attach)?;
        let path_mtu = check::path_mtu(config, &link, frags)?;
        warnings.extend(check::path_mtu_hint(&link, frags, path_mtu));

        let quantum_ps = match config.line_rate {
            Some(rate) => quantum_ps(rate),
            None => device.pause_quantum_ps(),
        };
        let mut bpf = EbpfLoader::new()
            .override_global(maps::GLOBAL_QUEUES, &queues, true)
            .override_global(
                maps::GLOBAL_LOG_REFUSALS,
                &u8::from(config.log_refusals),
                true,
            )
            .override_global(maps::GLOBAL_SLOT_MASK, &(config.slots - 1), true)
            .map_max_entries(maps::QP_CONFIG, config.slots)
            .map_max_entries(maps::QP_COUNTERS, config.slots * queues)
            .map_max_entries(maps::QP_ENGINE, config.slots)
            // One more, where frames of a queue that was added later are counted as `map_full`.
            .map_max_entries(maps::QUEUE_COUNTERS, queues + 1)
            .map_max_entries(maps::QUEUE_ENGINE, queues)
            .map_max_entries(maps::LINK_CONTROL, queues + 1)
            .map_max_entries(TX_TAP, TX_TAP_SLOTS * queues)
            .override_global(maps::GLOBAL_QUANTUM_PS, &quantum_ps, true)
            .map_max_entries(maps::DIRTY, config.slots.div_ceil(64))
            .map_max_entries(maps::DIRTY_INDEX, config.slots.div_ceil(4096))
            .map_max_entries(maps::FLOWS, maps::DEFAULT_FLOWS)
            .map_max_entries(maps::XSKS, queues)
            .load(OBJECT)
            .map_err(|e| check::explain_load(e.into(), &config.iface))?;
        let (fd_link, program, program_id) =
            attach(&mut bpf, &device, config.attach, frags, &mut warnings)?;
        let mode = mode_in_force(&device, program_id)?;
        bind_engine_maps(&bpf, program)?;
        let mut control = ControlMaps::take(&mut bpf)?;
        let flags = if config.shared_addresses {
            local_addr::SHARED
        } else {
            local_addr::EXCLUSIVE
        };
        for address in &addresses {
            control.add_address(gid_of(*address), flags)?;
        }
        let maps = Maps::take(&mut bpf, queues, config.slots)?;
        let report = AttachReport {
            iface: config.iface.clone(),
            device: device.name.clone(),
            ifindex: device.index.0,
            mode: mode.to_string(),
            program: program.to_owned(),
            program_id,
            multi_buffer: frags,
            queues,
            slots: config.slots,
            mtu: link.mtu,
            path_mtu: path_mtu.bytes(),
            vlan,
            addresses,
            socket_mode: None,
            warnings,
        };
        Ok(Self {
            _link: fd_link,
            _bpf: bpf,
            control: Arc::new(Mutex::new(control)),
            maps: Arc::new(maps),
            quantum_ps,
            report,
            device,
        })
    }
}

/// Attaches the wanted variant in the wanted mode. Returns the link, the variant's name and the program's id.
fn attach(
    bpf: &mut Ebpf,
    device: &Link,
    wish: AttachWish,
    frags: bool,
    warnings: &mut Vec<String>,
) -> Result<(FdLink, &'static str, u32)> {
    let name = if frags {
        maps::PROGRAM_FRAGS
    } else {
        maps::PROGRAM_PLAIN
    };
    let program: &mut Xdp = bpf
        .program_mut(name)
        .ok_or_else(|| {
            anyhow!("the eBPF object has no program {name}: it does not belong to this build")
        })?
        .try_into()?;
    program
        .load()
        .map_err(|e| check::explain_load(e.into(), &device.name))?;
    let id = program
        .info()
        .context("reading the loaded program's id")?
        .id();
    let first = if wish == AttachWish::Generic {
        AyaMode::Skb
    } else {
        AyaMode::Driver
    };
    match attach_in(program, device, first) {
        Ok(link) => Ok((link, name, id)),
        Err(error) if wish == AttachWish::Auto => {
            let link = attach_in(program, device, AyaMode::Skb).map_err(|generic| {
                generic.context(format!("driver mode was refused as well: {error:#}"))
            })?;
            warnings.push(format!(
                "{}: its driver refused XDP ({error:#}); attached in generic mode, which is several times slower, and may \
                 lose counts where several CPUs receive for one queue (RPS)",
                device.name
            ));
            Ok((link, name, id))
        }
        Err(error) => Err(error),
    }
}

fn attach_in(program: &mut Xdp, device: &Link, mode: AyaMode) -> Result<FdLink> {
    let word = if matches!(mode, AyaMode::Skb) {
        "generic"
    } else {
        "driver"
    };
    let id = program.attach_to_if_index(device.index.0, mode).map_err(|error| {
        let busy = matches!(&error, ProgramError::SyscallError(e) if e.io_error.raw_os_error() == Some(libc::EBUSY));
        let error = anyhow::Error::from(error).context(format!("attaching to {} in {word} mode", device.name));
        if busy { error.context(format!("{}: another XDP program was attached meanwhile", device.name)) } else { error }
    })?;
    let link = program.take_link(id)?;
    // A netlink attachment would outlive us on kill -9: dropping `link` here detaches it.
    FdLink::try_from(link).map_err(|_| {
        anyhow!(
            "{}: the kernel gave no BPF link for XDP (needs Linux 5.9, rocexdp needs 6.1)",
            device.name
        )
    })
}

/// Only the engine writes `QP_ENGINE`, `QUEUE_ENGINE` and `TX_TAP`: without this they would not be among the program's maps, and
/// `rocexdp qp` could not find them.
fn bind_engine_maps(bpf: &Ebpf, program: &str) -> Result<()> {
    let fd = match bpf.program(program) {
        Some(Program::Xdp(program)) => program.fd()?,
        _ => bail!("the eBPF object has no program {program}: it does not belong to this build"),
    };
    for name in [maps::QP_ENGINE, maps::QUEUE_ENGINE, TX_TAP] {
        if let Some(Map::Array(map)) = bpf.map(name) {
            bind_map(fd.as_fd(), map.fd().as_fd())
                .with_context(|| format!("binding map {name} to the program"))?;
        }
    }
    Ok(())
}

/// Reads back the mode in which our program really runs.
fn mode_in_force(device: &Link, program_id: u32) -> Result<XdpMode> {
    Link::by_index(device.index)?
        .xdp
        .iter()
        .find(|x| x.id == program_id)
        .map(|x| x.mode)
        .ok_or_else(|| {
            anyhow!(
                "{}: the program was attached, but the kernel does not show it there; is another tool changing it?",
                device.name
            )
        })
}
