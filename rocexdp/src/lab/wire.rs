//! The wire's XDP program: loaded, attached to both ports, configured, read.
//!
//! Lives in the wire's namespace only while attaching; the program goes when this is dropped, or the process dies.

use aya::{
    Ebpf,
    maps::{Array, MapData, XskMap},
    programs::{Xdp, XdpMode as AyaMode},
};
use rocexdp_common::{
    fault::Faults,
    wire::{WIRE_CONFIG, WIRE_COUNTERS, WIRE_PROGRAM, WIRE_SOCKETS, WireConfig, WireCounters},
};

use super::Error;
use crate::net::{IfIndex, Link, link::XdpMode};

type ConfigBytes = [u8; size_of::<WireConfig>()];
type CounterBytes = [u8; size_of::<WireCounters>()];

/// The loaded and attached program.
#[derive(Debug)]
pub struct XdpWire {
    bpf: Ebpf,
    config: WireConfig,
}

impl XdpWire {
    /// Attaches to the two ports in driver mode, forwarding without faults. To be called in the wire's namespace.
    ///
    /// # Errors
    /// The kernel refused the program, or attached it otherwise than asked.
    pub fn attach(ports: [IfIndex; 2]) -> Result<Self, Error> {
        let config = WireConfig {
            ports: ports.map(|port| port.0),
            ..WireConfig::default()
        };
        Self::load(config, &ports)
    }

    /// Attaches to one port and gives every frame to the socket in place 0 of [`Self::sockets`]: AF_XDP with nothing else.
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn redirect_all(port: IfIndex) -> Result<Self, Error> {
        let config = WireConfig {
            ports: [port.0, 0],
            to_sockets: 1,
            ..WireConfig::default()
        };
        Self::load(config, &[port])
    }

    fn load(config: WireConfig, ports: &[IfIndex]) -> Result<Self, Error> {
        let object = aya::include_bytes_aligned!(env!("ROCEXDP_BPF_WIRE"));
        let mut bpf = Ebpf::load(object).map_err(Error::bpf("loading the wire's object"))?;
        write_config(&mut bpf, &config)?;
        let program: &mut Xdp = bpf
            .program_mut(WIRE_PROGRAM)
            .ok_or(Error::Object(WIRE_PROGRAM))?
            .try_into()
            .map_err(Error::bpf("finding the wire's program"))?;
        program
            .load()
            .map_err(Error::bpf("loading the wire's program"))?;
        for port in ports {
            program
                .attach_to_if_index(port.0, AyaMode::Driver)
                .map_err(Error::bpf("attaching the wire's program"))?;
            let link = Link::by_index(*port)?;
            if !link.xdp.iter().any(|xdp| xdp.mode == XdpMode::Driver) {
                return Err(Error::NotDriverMode(link.name));
            }
        }
        Ok(Self { bpf, config })
    }

    /// Changes the faults, and whether frames go to the userspace wire. Packets are numbered from 0 again. Packets on the
    /// way at this moment may still see the old faults, or a mixture.
    ///
    /// # Errors
    /// A map can't be written.
    pub fn configure(&mut self, faults: [Faults; 2], to_sockets: bool) -> Result<(), Error> {
        let counters = self.counters()?;
        self.config.base = counters.map(|port| port.packets);
        self.config.faults = faults;
        self.config.to_sockets = u32::from(to_sockets);
        write_config(&mut self.bpf, &self.config)
    }

    /// What happened so far to the frames that entered each port.
    ///
    /// # Errors
    /// The map can't be read.
    pub fn counters(&self) -> Result<[WireCounters; 2], Error> {
        let map = self
            .bpf
            .map(WIRE_COUNTERS)
            .ok_or(Error::Object(WIRE_COUNTERS))?;
        let map = Array::<_, CounterBytes>::try_from(map)
            .map_err(Error::bpf("opening the wire's counters"))?;
        let read = |port| -> Result<WireCounters, Error> {
            let bytes = map
                .get(&port, 0)
                .map_err(Error::bpf("reading the wire's counters"))?;
            Ok(bytemuck::pod_read_unaligned(&bytes))
        };
        Ok([read(0)?, read(1)?])
    }

    /// The map of the userspace wire's sockets, by port.
    ///
    /// # Errors
    /// The object lacks the map.
    pub fn sockets(&mut self) -> Result<XskMap<&mut MapData>, Error> {
        let map = self
            .bpf
            .map_mut(WIRE_SOCKETS)
            .ok_or(Error::Object(WIRE_SOCKETS))?;
        XskMap::try_from(map).map_err(Error::bpf("opening the wire's sockets"))
    }
}

fn write_config(bpf: &mut Ebpf, config: &WireConfig) -> Result<(), Error> {
    let map = bpf.map_mut(WIRE_CONFIG).ok_or(Error::Object(WIRE_CONFIG))?;
    let mut map = Array::<_, ConfigBytes>::try_from(map)
        .map_err(Error::bpf("opening the wire's configuration"))?;
    let bytes: ConfigBytes = bytemuck::cast(*config);
    map.set(0, bytes, 0)
        .map_err(Error::bpf("writing the wire's configuration"))
}
