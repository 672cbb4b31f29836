//! What the host's network stack knows: interfaces, XDP features, RDMA devices, routes, neighbours, and changes of them.
//!
//! All of it is read by netlink from the calling thread's network namespace. Nothing here changes configuration but
//! neighbour entries, which are only asked to be (re)confirmed.

pub mod features;
pub mod link;
pub mod neigh;
pub mod netlink;
pub mod rdma;
pub mod watch;

use std::{io, net::IpAddr};

pub use link::{IfIndex, Link, Mac};

/// Why something about the network could not be told.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no such interface in this namespace.
    NoInterface(String),
    /// Something went wrong on an interface: its name, what was tried, why.
    Interface(String, &'static str, io::Error),
    /// Netlink refused: what was tried, why.
    Netlink(&'static str, io::Error),
    /// No route leads to the address.
    NoRoute(IpAddr, io::Error),
    /// A neighbour does not answer.
    Unreachable(Unreachable),
}

/// A peer whose next hop does not answer ARP or neighbour discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// The peer asked for.
    pub peer: IpAddr,
    /// Who should have answered: the peer, or a gateway.
    pub next_hop: IpAddr,
    /// The interface.
    pub interface: String,
    /// Why, if the kernel said so.
    pub state: String,
}

impl Error {
    fn interface(name: &str, doing: &'static str, error: io::Error) -> Self {
        Self::Interface(name.to_owned(), doing, error)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoInterface(name) => {
                write!(f, "interface {name}: no such interface (see: ip link)")
            }
            Self::Interface(name, doing, error) => write!(f, "interface {name}: {doing}: {error}"),
            Self::Netlink(doing, error) => write!(f, "{doing}: {error}"),
            Self::NoRoute(peer, error) => {
                write!(f, "no route to {peer}: {error} (see: ip route get {peer})")
            }
            Self::Unreachable(unreachable) => unreachable.fmt(f),
        }
    }
}

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            peer,
            next_hop,
            interface,
            state,
        } = self;
        if peer == next_hop {
            write!(
                f,
                "{peer} is unreachable: it does not answer on interface {interface}"
            )?;
        } else {
            write!(
                f,
                "{peer} is unreachable: its gateway {next_hop} does not answer on interface {interface}"
            )?;
        }
        write!(f, " (neighbour {state})")
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Interface(_, _, error) | Self::Netlink(_, error) | Self::NoRoute(_, error) => {
                Some(error)
            }
            Self::NoInterface(_) | Self::Unreachable(_) => None,
        }
    }
}
