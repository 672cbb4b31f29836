//! Changes of links, addresses, neighbours and routes, as they happen.
//!
//! One rtnetlink socket, multicast. It gives events and decides nothing. When the kernel lost notifications because the
//! reader was slow, [`Event::Lost`] says so: whoever keeps state reads it anew.

use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{RouteNetlinkMessage as Message, route::RouteMessage};
use rtnetlink_groups::{IPV4_IFADDR, IPV4_ROUTE, IPV6_IFADDR, IPV6_ROUTE, LINK, NEIGH};

use super::{
    IfIndex, Link,
    link::{self, Address},
    neigh::{self, Neighbour},
    netlink::Socket,
};

/// Bits of the multicast groups (`RTNLGRP_*` in include/uapi/linux/rtnetlink.h, as 1 << (group - 1)).
mod rtnetlink_groups {
    pub(super) const LINK: u32 = 1 << 0;
    pub(super) const NEIGH: u32 = 1 << 2;
    pub(super) const IPV4_IFADDR: u32 = 1 << 4;
    pub(super) const IPV4_ROUTE: u32 = 1 << 6;
    pub(super) const IPV6_IFADDR: u32 = 1 << 8;
    pub(super) const IPV6_ROUTE: u32 = 1 << 10;
}

/// Something changed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A link is new or changed: state, MTU, address, XDP program, name.
    Link(Box<Link>),
    /// A link is gone.
    LinkGone(IfIndex),
    /// An address is new or changed.
    Address(IfIndex, Address),
    /// An address is gone.
    AddressGone(IfIndex, IpAddr),
    /// A neighbour entry is new or changed.
    Neighbour(Neighbour),
    /// A neighbour entry is gone.
    NeighbourGone(IfIndex, IpAddr),
    /// Some route changed: look up again.
    Route,
    /// Notifications were lost.
    Lost,
}

/// Listens for changes in the network namespace of the thread that made it.
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
    queued: std::collections::VecDeque<Event>,
}

impl Watch {
    /// Starts listening: changes from now on are seen.
    ///
    /// # Errors
    /// The system's error.
    pub fn open() -> io::Result<Self> {
        let groups = LINK | NEIGH | IPV4_IFADDR | IPV4_ROUTE | IPV6_IFADDR | IPV6_ROUTE;
        Ok(Self {
            socket: Socket::route(groups)?,
            queued: Default::default(),
        })
    }

    /// The next change, waiting for at most `timeout`; `None` when there was none.
    ///
    /// # Errors
    /// The system's error.
    pub fn next(&mut self, timeout: Duration) -> io::Result<Option<Event>> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(event) = self.queued.pop_front() {
                return Ok(Some(event));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.socket.wait(left)? {
                if left.is_zero() {
                    return Ok(None);
                }
                continue;
            }
            match self.socket.receive::<Message>() {
                Ok(messages) => self.queued.extend(messages.into_iter().filter_map(event)),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    return Ok(Some(Event::Lost));
                }
                // One notification of a kind that can't be parsed: what it changed is unknown.
                Err(error) if error.raw_os_error().is_none() => return Ok(Some(Event::Lost)),
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Watch {
    /// Readable when [`Watch::next`] has something, for event loops.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn event(message: NetlinkMessage<Message>) -> Option<Event> {
    let NetlinkPayload::InnerMessage(message) = message.payload else {
        return None;
    };
    match message {
        Message::NewLink(message) => Some(Event::Link(Box::new(Link::from_message(&message)))),
        Message::DelLink(message) => Some(Event::LinkGone(IfIndex(message.header.index))),
        Message::NewAddress(message) => Some(Event::Address(
            IfIndex(message.header.index),
            link::address(&message)?,
        )),
        Message::DelAddress(message) => Some(Event::AddressGone(
            IfIndex(message.header.index),
            link::address(&message)?.ip,
        )),
        Message::NewNeighbour(message) => Some(Event::Neighbour(neigh::entry(&message)?)),
        Message::DelNeighbour(message) => {
            let gone = neigh::entry(&message)?;
            Some(Event::NeighbourGone(gone.interface, gone.ip))
        }
        Message::NewRoute(message) | Message::DelRoute(message) => {
            is_lasting(&message).then_some(Event::Route)
        }
        _ => None,
    }
}

/// Cached routes come and go with traffic.
fn is_lasting(message: &RouteMessage) -> bool {
    !message
        .header
        .flags
        .contains(netlink_packet_route::route::RouteFlags::Cloned)
}
