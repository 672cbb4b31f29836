//! Several interfaces at once. One that vanishes is reported and the others go on; when it is back, it is watched again.

use anyhow::{Result, bail};

use super::{Monitor, MonitorWish};
use crate::{maps::OwnPrograms, net::Link, out};

/// What happened to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has gone, and with it its programs and counts.
    Gone {
        /// Its name.
        iface: String,
        /// What was found.
        why: String,
    },
    /// It is watched, or is so again; its counts begin at 0.
    Watched {
        /// Its name.
        iface: String,
    },
}

#[derive(Debug)]
struct Entry {
    iface: String,
    monitor: Option<Monitor>,
    /// Why it is not watched.
    error: Option<String>,
}

/// Monitors of several interfaces. Dropping it detaches all.
#[derive(Debug)]
pub struct Monitors {
    wish: MonitorWish,
    entries: Vec<Entry>,
    own: OwnPrograms,
}

impl Monitors {
    /// Starts all of them; the same name twice counts once.
    ///
    /// # Errors
    /// One can't be watched, or two names are of one device: nothing is then left attached.
    pub fn start(ifaces: &[String], wish: &MonitorWish) -> Result<Self> {
        let mut entries: Vec<Entry> = Vec::new();
        let own = OwnPrograms::default();
        for iface in ifaces {
            if entries.iter().any(|entry| entry.iface == *iface) {
                continue;
            }
            // An alternative name, or a VLAN device and its parent: everything would be counted and told twice.
            let device = Link::by_name(iface)?.xdp_device()?;
            let twin = |m: &&Monitor| m.report().ifindex == device.index.0;
            let mut watched = entries.iter().filter_map(|e| e.monitor.as_ref());
            if let Some(first) = watched.find(twin) {
                bail!(
                    "{} and {iface} are the same device, {}: name one of them",
                    first.report().iface,
                    device.name
                );
            }
            let monitor = Monitor::start(iface, wish)?;
            own.set(iface, Some(monitor.program_id()));
            entries.push(Entry {
                iface: iface.clone(),
                monitor: Some(monitor),
                error: None,
            });
        }
        Ok(Self {
            wish: *wish,
            entries,
            own,
        })
    }

    /// Those that are there.
    pub fn iter(&self) -> impl Iterator<Item = &Monitor> {
        self.entries.iter().filter_map(|e| e.monitor.as_ref())
    }

    /// The same, to take rings from.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Monitor> {
        self.entries.iter_mut().filter_map(|e| e.monitor.as_mut())
    }

    /// The monitor of an interface, if it is there.
    pub fn get(&self, iface: &str) -> Option<&Monitor> {
        self.iter().find(|m| m.report().iface == iface)
    }

    /// The programs of these monitors, for whoever reads their maps; kept up to date by [`Self::poll`].
    pub fn programs(&self) -> OwnPrograms {
        self.own.clone()
    }

    /// Interfaces that are not watched now, with the reason.
    pub fn missing(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries
            .iter()
            .filter(|entry| entry.monitor.is_none())
            .map(|entry| (entry.iface.as_str(), entry.error.as_deref().unwrap_or("")))
    }

    /// Looks which interfaces have gone or are back. To be called now and then, about once a second.
    pub fn poll(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        for entry in &mut self.entries {
            if let Some(monitor) = &entry.monitor {
                if let Err(error) = monitor.check() {
                    let why = out::chain(&error);
                    self.own.set(&entry.iface, None);
                    entry.monitor = None;
                    entry.error = Some(why.clone());
                    changes.push(Change::Gone {
                        iface: entry.iface.clone(),
                        why,
                    });
                }
                continue;
            }
            match Monitor::start(&entry.iface, &self.wish) {
                Ok(monitor) => {
                    self.own.set(&entry.iface, Some(monitor.program_id()));
                    entry.monitor = Some(monitor);
                    entry.error = None;
                    changes.push(Change::Watched {
                        iface: entry.iface.clone(),
                    });
                }
                Err(error) => entry.error = Some(out::chain(&error)),
            }
        }
        changes
    }
}
