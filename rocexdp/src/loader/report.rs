//! What the loader did, for people and for machines.

use std::{fmt, net::IpAddr};

use serde::Serialize;

/// The attachment as it is in force.
#[derive(Clone, Debug, Serialize)]
pub struct AttachReport {
    /// Interface asked for.
    pub iface: String,
    /// Interface that XDP is attached to: the parent, for a VLAN device.
    pub device: String,
    /// Its index.
    pub ifindex: u32,
    /// `driver`, `generic` or `hardware`, read back from the kernel.
    pub mode: String,
    /// Program variant: `rocexdp_frags` (multi-buffer) or `rocexdp`.
    pub program: String,
    /// The kernel's id of the program.
    pub program_id: u32,
    /// Whether frames may span buffers.
    pub multi_buffer: bool,
    /// Receive queues, each with a socket.
    pub queues: u32,
    /// QP slots.
    pub slots: u32,
    /// MTU of the interface, B.
    pub mtu: u32,
    /// Largest path MTU that it carries, B.
    pub path_mtu: u32,
    /// VLAN id of the frames.
    pub vlan: Option<u16>,
    /// Addresses that rocexdp answers for.
    pub addresses: Vec<IpAddr>,
    /// `zero-copy` or `copy`, once the sockets are open.
    pub socket_mode: Option<String>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

impl fmt::Display for AttachReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.iface)?;
        if self.device != self.iface {
            write!(f, " (on {})", self.device)?;
        }
        write!(
            f,
            ": XDP program {} id {} in {} mode, AF_XDP {} on {} queue{}, MTU {}, path MTU up to {}",
            self.program,
            self.program_id,
            self.mode,
            self.socket_mode.as_deref().unwrap_or("not open"),
            self.queues,
            if self.queues == 1 { "" } else { "s" },
            self.mtu,
            self.path_mtu
        )?;
        if let Some(vlan) = self.vlan {
            write!(f, ", VLAN {vlan}")?;
        }
        f.write_str(", addresses")?;
        for address in &self.addresses {
            write!(f, " {address}")?;
        }
        for warning in &self.warnings {
            write!(f, "\nwarning: {warning}")?;
        }
        Ok(())
    }
}
