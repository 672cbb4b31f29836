//! Two programs find each other: one listens, the other connects, and each has a device by then.
//!
//! Must not: exchange anything.

use std::sync::Arc;

use anyhow::bail;
use rocexdp_proto::ids::PathMtu;

use super::{
    channel::{Channel, Listener},
    place::{self, Wish},
};
use crate::{
    control::{config::RunOptions, settings},
    out,
    process::Cancel,
    rdma::Device,
};

/// Who is to meet whom.
#[derive(Clone, Copy, Debug)]
pub struct Meeting<'a> {
    /// What this is, for messages.
    pub name: &'a str,
    /// The host that listens; `None`: we do.
    pub host: Option<&'a str>,
    /// TCP port.
    pub port: u16,
    /// What the device is opened with; without an interface, the one that the connection takes.
    pub options: &'a RunOptions,
    /// The address to listen on, if one is wanted.
    pub wish: Wish,
    /// Queue pairs that the device must have room for.
    pub qps: u32,
    /// The path MTU that the device must carry, where one is asked for (`-m`).
    pub path_mtu: Option<PathMtu>,
}

impl Meeting<'_> {
    /// Opens the device and the channel. A device that can't be opened is told before the peer is bothered, where the interface is known.
    ///
    /// # Errors
    /// No interface, no device, one that does not carry the path MTU, no peer, or a signal.
    pub fn meet(self, cancel: &Arc<Cancel>) -> anyhow::Result<(Device, Channel)> {
        if let Some(host) = self.host {
            let iface = match &self.options.iface {
                Some(iface) => iface.clone(),
                None => place::interface_to(host)?,
            };
            let device = self.open(&iface)?;
            return Ok((device, Channel::connect(host, self.port, cancel)?));
        }
        let listener = Listener::bind(self.wish.address, self.port, cancel)?;
        let opened = self
            .options
            .iface
            .as_deref()
            .map(|iface| self.open(iface))
            .transpose()?;
        out::note(format_args!(
            "rocexdp: {} waits for a client on TCP port {}",
            self.name,
            listener.port()
        ));
        let channel = listener.accept()?;
        let device = match opened {
            Some(device) => device,
            None => self.open(&place::interface_of(channel.local())?)?,
        };
        Ok((device, channel))
    }

    fn open(self, iface: &str) -> anyhow::Result<Device> {
        let mut options = self.options.clone();
        options.iface = Some(iface.to_owned());
        let mut config = settings::node_config(&options)?;
        // The device's own queue pairs have room beside them.
        config.slots = config.slots.max((2 * self.qps).next_power_of_two());
        let device = Device::open_with(config)?;
        let carries = device.path_mtu();
        if let Some(wanted) = self.path_mtu.filter(|wanted| *wanted > carries) {
            bail!(
                "-m {}: {iface} carries a path MTU of {} B at most (raise its MTU, or give both ends a smaller -m)",
                wanted.bytes(),
                carries.bytes()
            );
        }
        Ok(device)
    }
}
