//! Puts the monitor's programs on an interface, each by a BPF link.

use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result, anyhow};
use aya::{
    Ebpf,
    maps::Map,
    programs::{
        LinkOrder, Program, ProgramError, SchedClassifier, TcAttachType, Xdp,
        links::FdLink,
        tc::{TcAttachOptions, TcError},
        xdp::XdpMode as AyaMode,
    },
};
use rocexdp_common::{
    maps,
    watch::{self, tap},
};

use super::{Ingress, report::Hook};
use crate::{
    loader::{AttachWish, check::explain_load},
    net::Link,
    sys::bpf::bind_map,
};

/// A program on its hook.
pub(super) struct Attached {
    pub link: FdLink,
    /// The kernel's id of it.
    pub id: u32,
    pub hook: Hook,
    /// The XDP program that owns the NIC, where that is why it is not this one.
    pub other: Option<String>,
}

/// A direction of TCX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Ingress,
    Egress,
}

impl Side {
    /// Its program's name.
    pub(super) const fn program(self) -> &'static str {
        match self {
            Self::Ingress => watch::TCX_INGRESS,
            Self::Egress => watch::TCX_EGRESS,
        }
    }
}

/// Attaches what counts received packets.
pub(super) fn ingress(
    bpf: &mut Ebpf,
    device: &Link,
    wish: Ingress,
    frags: bool,
    warnings: &mut Vec<String>,
) -> Result<Attached> {
    let other = device.xdp.first().map(|x| {
        let name = x.name.as_deref().unwrap_or("name not readable");
        format!("{name} (id {}, {} mode)", x.id, x.mode)
    });
    match (wish, other) {
        (Ingress::Tcx, _) => tcx(bpf, device, Side::Ingress),
        (Ingress::Xdp(_), Some(other)) => Err(anyhow!(
            "interface {}: another XDP program is attached: {other}; watch behind it with TCX, or stop the program that \
             owns it",
            device.name
        )),
        (Ingress::Auto, Some(other)) => {
            let attached = tcx(bpf, device, Side::Ingress).with_context(|| {
                format!(
                    "interface {}: an XDP program is attached already: {other}",
                    device.name
                )
            })?;
            Ok(Attached {
                other: Some(other),
                ..attached
            })
        }
        (Ingress::Auto, None) => match xdp(bpf, device, AttachWish::Auto, frags, warnings) {
            Ok(attached) => Ok(attached),
            Err(error) => {
                let attached = tcx(bpf, device, Side::Ingress)
                    .map_err(|tcx| tcx.context(format!("XDP was refused as well: {error:#}")))?;
                warnings.push(format!(
                    "{}: XDP was refused ({error:#}); counting received packets with TCX",
                    device.name
                ));
                Ok(attached)
            }
        },
        (Ingress::Xdp(mode), None) => xdp(bpf, device, mode, frags, warnings),
    }
}

fn xdp(
    bpf: &mut Ebpf,
    device: &Link,
    wish: AttachWish,
    frags: bool,
    warnings: &mut Vec<String>,
) -> Result<Attached> {
    let name = if frags {
        watch::XDP_FRAGS
    } else {
        watch::XDP_PLAIN
    };
    prepare(bpf, device, name)?;
    let program: &mut Xdp = program(bpf, name)?.try_into()?;
    let id = program
        .info()
        .context("reading the loaded program's id")?
        .id();
    let first = match wish {
        AttachWish::Generic => AyaMode::Skb,
        AttachWish::Auto | AttachWish::Driver => AyaMode::Driver,
    };
    let link = match xdp_in(program, device, first) {
        Err(error) if wish == AttachWish::Auto => {
            let link = xdp_in(program, device, AyaMode::Skb).map_err(|generic| {
                generic.context(format!("driver mode was refused as well: {error:#}"))
            })?;
            warnings.push(format!(
                "{}: its driver refused XDP ({error:#}); attached in generic mode, which is several times slower",
                device.name
            ));
            link
        }
        other => other?,
    };
    // Read back: what is in force may differ from what was asked for.
    let mode = Link::by_index(device.index)?
        .xdp
        .iter()
        .find(|x| x.id == id)
        .map(|x| x.mode)
        .ok_or_else(|| {
            anyhow!(
                "{}: the program was attached, but the kernel does not show it there; is another tool changing it?",
                device.name
            )
        })?;
    Ok(Attached {
        link,
        id,
        hook: Hook::Xdp { mode },
        other: None,
    })
}

fn xdp_in(program: &mut Xdp, device: &Link, mode: AyaMode) -> Result<FdLink> {
    let word = match mode {
        AyaMode::Skb => "generic",
        _ => "driver",
    };
    let id = program
        .attach_to_if_index(device.index.0, mode)
        .with_context(|| format!("attaching to {} in {word} mode", device.name))?;
    // A netlink attachment would outlive us on kill -9: dropping the link then detaches it.
    FdLink::try_from(program.take_link(id)?).map_err(|_| {
        anyhow!(
            "{}: the kernel gave no BPF link for XDP (needs Linux 5.9)",
            device.name
        )
    })
}

/// Attaches a TCX program, in front of those that are there: what they drop is counted too.
pub(super) fn tcx(bpf: &mut Ebpf, device: &Link, side: Side) -> Result<Attached> {
    let (at, word) = match side {
        Side::Ingress => (TcAttachType::Ingress, "ingress"),
        Side::Egress => (TcAttachType::Egress, "egress"),
    };
    let name = side.program();
    prepare(bpf, device, name)?;
    let program: &mut SchedClassifier = program(bpf, name)?.try_into()?;
    let id = program
        .info()
        .context("reading the loaded program's id")?
        .id();
    let order = TcAttachOptions::TcxOrder(LinkOrder::first());
    let link = program
        .attach_with_options(&device.name, at, order)
        .map_err(|error| explain_tcx(error, &device.name, word))?;
    let link = FdLink::try_from(program.take_link(link)?)
        .map_err(|_| anyhow!("{}: the kernel gave no BPF link for TCX", device.name))?;
    Ok(Attached {
        link,
        id,
        hook: Hook::Tcx,
        other: None,
    })
}

fn explain_tcx(error: ProgramError, iface: &str, side: &str) -> anyhow::Error {
    let code = match &error {
        ProgramError::SyscallError(e) => e.io_error.raw_os_error(),
        ProgramError::TcError(TcError::IoError(e)) => e.raw_os_error(),
        _ => None,
    };
    let error = anyhow::Error::from(error).context(format!("attaching to {iface} at TCX {side}"));
    if code == Some(libc::EINVAL) {
        error.context(format!("{iface}: this kernel has no TCX (needs Linux 6.6)"))
    } else {
        error
    }
}

fn program<'a>(bpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Program> {
    bpf.program_mut(name).ok_or_else(|| {
        anyhow!("the eBPF object has no program {name}: it does not belong to this build")
    })
}

/// Loads a program that is not loaded yet, and makes every map one of its own, whether its code names it or not. To be done before
/// it is attached: whoever finds a program on an interface finds all maps.
pub(super) fn prepare(bpf: &mut Ebpf, device: &Link, name: &str) -> Result<()> {
    const NAMES: [&str; 8] = [
        maps::FLOWS,
        watch::PENDING,
        maps::QUEUE_COUNTERS,
        watch::TCX_COUNTERS,
        maps::LINK_CONTROL,
        maps::EVENTS,
        tap::TAP_CONTROL,
        tap::TAP_BOOK,
    ];
    let loaded = match program(bpf, name)? {
        Program::Xdp(p) if p.fd().is_err() => p.load(),
        Program::SchedClassifier(p) if p.fd().is_err() => p.load(),
        _ => Ok(()),
    };
    loaded.map_err(|e| explain_load(e.into(), &device.name))?;
    let fd = match bpf.program(name) {
        Some(Program::Xdp(p)) => p.fd()?,
        Some(Program::SchedClassifier(p)) => p.fd()?,
        _ => return Err(anyhow!("the eBPF object has no program {name}")),
    };
    for map_name in NAMES {
        let map = match bpf.map(map_name) {
            Some(Map::Array(map) | Map::LruHashMap(map) | Map::RingBuf(map)) => map,
            _ => {
                return Err(anyhow!(
                    "the eBPF object has no map {map_name}: it does not belong to this build"
                ));
            }
        };
        bind_map(fd.as_fd(), map.fd().as_fd())
            .with_context(|| format!("binding map {map_name} to program {name}"))?;
    }
    Ok(())
}
