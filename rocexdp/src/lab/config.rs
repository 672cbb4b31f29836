//! What a lab looks like: its two hosts with their fixed addresses, and what may be chosen.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use serde::{Deserialize, Serialize};

use super::Error;
use crate::net::Mac;

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Host {
    /// Host a: 10.77.0.1, fd77::1, the wire's port 0.
    A,
    /// Host b: 10.77.0.2, fd77::2, the wire's port 1.
    B,
}

impl Host {
    /// 0 or 1: also the number of the wire's port.
    pub const fn index(self) -> usize {
        match self {
            Self::A => 0,
            Self::B => 1,
        }
    }

    /// The other host.
    pub const fn peer(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// Its IPv4 address (in a /24).
    pub const fn ipv4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.index() as u8 + 1)
    }

    /// Its IPv6 address (in a /64).
    pub const fn ipv6(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, self.index() as u16 + 1)
    }

    /// Its IPv4 and IPv6 address.
    pub const fn addresses(self) -> [IpAddr; 2] {
        [IpAddr::V4(self.ipv4()), IpAddr::V6(self.ipv6())]
    }

    /// Its Ethernet address: fixed, so that frames are the same in every run.
    pub const fn mac(self) -> Mac {
        Mac([2, 10, 77, 0, 0, self.index() as u8 + 1])
    }

    /// The wire's port towards it, an interface in the wire's namespace.
    pub const fn port(self) -> &'static str {
        match self {
            Self::A => "port-a",
            Self::B => "port-b",
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "a",
            Self::B => "b",
        })
    }
}

impl std::str::FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "a" => Ok(Self::A),
            "b" => Ok(Self::B),
            _ => Err(format!("{text:?} is no host of the lab: there are a and b")),
        }
    }
}

/// What a lab looks like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabConfig {
    /// The namespaces are NAME-a, NAME-b and NAME-wire.
    pub name: String,
    /// MTU of all links, bytes. 4200 carries path MTU 4096.
    pub mtu: u32,
    /// The VLAN id of 802.1Q tags in the frames.
    pub vlan: Option<u16>,
    /// Give the hosts' interfaces a `pfifo` queue.
    pub qdisc: bool,
}

impl Default for LabConfig {
    fn default() -> Self {
        Self {
            name: "rocexdp".to_owned(),
            mtu: 4200,
            vlan: None,
            qdisc: true,
        }
    }
}

impl LabConfig {
    /// The default lab under another name.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        check_name(&self.name)?;
        if !(1280..=9000).contains(&self.mtu) {
            return Err(Error::Config(format!(
                "MTU {}: must be 1280 to 9000",
                self.mtu
            )));
        }
        if let Some(id) = self.vlan
            && !(1..=4094).contains(&id)
        {
            return Err(Error::Config(format!("VLAN id {id}: must be 1 to 4094")));
        }
        Ok(())
    }
}

/// That namespaces can have this name.
pub(super) fn check_name(name: &str) -> Result<(), Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        return Err(Error::Config(format!(
            "lab name {name:?}: must be 1 to 64 letters, digits, '-' or '_'"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_distinct_addresses() {
        assert_eq!("b".parse(), Ok(Host::B));
        assert!("wire".parse::<Host>().is_err());
        assert_eq!(Host::A.peer().ipv4().to_string(), "10.77.0.2");
        assert_eq!(Host::A.ipv6().to_string(), "fd77::1");
        assert_ne!(Host::A.mac(), Host::B.mac());
    }
}
