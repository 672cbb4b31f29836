//! The interfaces that `monitor` and `top` look at: the maps of a rocexdp program that is there, else of a monitor started here.

use anyhow::bail;

use super::UsageError;
use crate::{
    control,
    live::{Sampler, Snapshot},
    maps::{Attachment, OwnPrograms, ProgramRole},
    monitor::{Change, Ingress, MonitorWish, Monitors},
    net::{IfIndex, Link},
    out,
    process::Background,
};

/// Which interfaces, and how to watch those that no rocexdp program is on.
#[derive(Clone, Debug, clap::Args)]
pub struct Watch {
    /// Interface; may be repeated, or several separated by commas [default: all that a rocexdp program is on]
    #[arg(long, value_name = "IF", value_delimiter = ',')]
    pub iface: Vec<String>,
    /// Flows that the table of a monitor started here holds; beyond, those not seen for longest make room
    #[arg(long, value_name = "N", default_value_t = MonitorWish::default().flows)]
    pub flows: u32,
    /// Where a monitor started here counts received packets
    #[arg(long, value_name = "auto|driver|generic|tcx", default_value = "auto")]
    pub ingress: Ingress,
    /// Do not count what the kernel's stack sends (TCX egress)
    #[arg(long)]
    pub no_egress: bool,
    /// Have the NIC take frames to other addresses meanwhile, as a mirror port needs
    #[arg(long)]
    pub promiscuous: bool,
}

/// Interfaces that are looked at. Dropped, what was attached here is detached.
#[derive(Debug)]
pub struct Watched {
    sampler: Sampler,
    own: OwnPrograms,
    monitors: Option<Monitors>,
    /// The events of those monitors, for `rocexdp events`.
    _events: Option<Background>,
    /// What was done, and what can't be seen: to be told once.
    pub notes: Vec<String>,
}

impl Watch {
    /// Finds programs, starts monitors.
    ///
    /// # Errors
    /// No interface is named and none has a program; one does not exist or can't be watched: then nothing stays attached.
    pub fn open(&self) -> anyhow::Result<Watched> {
        let (mut alone, mut notes) = (Vec::new(), Vec::new());
        let mut ifaces = each_once(&self.iface, &mut notes)?;
        if ifaces.is_empty() {
            ifaces = with_program()?;
        }
        for iface in &ifaces {
            match Attachment::all(iface)?.first() {
                Some(there) => notes.push(format!(
                    "{iface}: reading the maps of {} that is there ({}, program {})",
                    match there.role {
                        ProgramRole::Endpoint => "the endpoint",
                        ProgramRole::Monitor => "the monitor",
                    },
                    there.at,
                    there.program_id
                )),
                None => alone.push(iface.clone()),
            }
        }
        let monitors = if alone.is_empty() {
            None
        } else {
            let wish = MonitorWish {
                ingress: self.ingress,
                egress: !self.no_egress,
                flows: self.flows,
                promiscuous: self.promiscuous,
                ..MonitorWish::default()
            };
            Some(Monitors::start(&alone, &wish)?)
        };
        let own = monitors.as_ref().map(Monitors::programs);
        let own = own.unwrap_or_default();
        let mut sampler = Sampler::new(&ifaces).with_nic().with_own(own.clone());
        for monitor in monitors.iter().flat_map(Monitors::iter) {
            notes.extend(monitor.report().to_string().lines().map(str::to_owned));
            sampler.set_blind_spots(&monitor.report().iface, monitor.blind_spots());
        }
        let events = match alone.is_empty() {
            true => None,
            false => Some(control::events::of_monitors(alone, &own)?),
        };
        Ok(Watched {
            sampler,
            own,
            monitors,
            _events: events,
            notes,
        })
    }
}

/// The names, each device by the first of its own: a VLAN device's packets are its parent's, and an interface may have
/// alternative names.
fn each_once(names: &[String], notes: &mut Vec<String>) -> anyhow::Result<Vec<String>> {
    let mut found: Vec<(String, IfIndex)> = Vec::new();
    for name in names {
        let device = Link::by_name(name)?.xdp_device()?;
        match found.iter().find(|(_, index)| *index == device.index) {
            None => found.push((name.clone(), device.index)),
            Some((first, _)) if first == name => {}
            Some((first, _)) => notes.push(format!(
                "{name}: the same device as {first}, {}, which is shown once, as {first}",
                device.name
            )),
        }
    }
    Ok(found.into_iter().map(|(name, _)| name).collect())
}

/// The interfaces of this network namespace that a rocexdp program is on.
fn with_program() -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for link in Link::all()? {
        // What is on a VLAN device's parent is the parent's.
        if link.vlan.is_none() && !Attachment::all(&link.name)?.is_empty() {
            found.push(link.name);
        }
    }
    if found.is_empty() {
        return Err(UsageError(
            "no program of rocexdp is on any interface of this network namespace: name an interface with --iface, and it is \
             watched (or another namespace with --netns)"
                .to_owned(),
        )
        .into());
    }
    Ok(found)
}

impl Watched {
    /// Looks at all of them, once. An interface that is gone is an error in its own place; it is watched again when it is back.
    pub fn look(&mut self) -> Snapshot {
        if let Some(monitors) = &mut self.monitors {
            for change in monitors.poll() {
                // That it has gone is told by the sample.
                if let Change::Watched { iface } = change
                    && let Some(monitor) = monitors.get(&iface)
                {
                    self.sampler.set_blind_spots(&iface, monitor.blind_spots());
                }
            }
        }
        self.sampler.sample()
    }

    /// The programs that were attached here, for others that read their maps.
    #[must_use]
    pub fn programs(&self) -> OwnPrograms {
        self.own.clone()
    }

    /// What can't be seen, each said once.
    #[must_use]
    pub fn blind_spots(snapshot: &Snapshot) -> Vec<String> {
        let all = snapshot.ifaces.iter().flat_map(|iface| &iface.blind_spots);
        let mut said: Vec<String> = Vec::new();
        for spot in all {
            if !said.contains(spot) {
                said.push(spot.clone());
            }
        }
        said
    }

    /// Fails when nothing at all can be read.
    ///
    /// # Errors
    /// Why, for each interface.
    pub fn check(snapshot: &Snapshot) -> anyhow::Result<()> {
        if snapshot.ifaces.iter().all(|iface| iface.error.is_some()) {
            let all = snapshot
                .ifaces
                .iter()
                .filter_map(|iface| iface.error.clone());
            bail!("{}", all.collect::<Vec<_>>().join("; "));
        }
        Ok(())
    }
}

/// Notes and blind spots to standard error.
pub fn tell(watched: &Watched, snapshot: &Snapshot) {
    for note in &watched.notes {
        out::note(note);
    }
    for spot in Watched::blind_spots(snapshot) {
        out::note(format_args!("not seen: {spot}"));
    }
}
