//! A blocking netlink socket: one request, its answers, or a stream of notifications.
//!
//! Message contents are `netlink-packet-route`'s; this is only the transport. It is blocking because its callers are:
//! the loader, engine threads inside a namespace and destructors, none of which has an async runtime. Every wait is
//! bounded. A socket belongs to the network namespace of the thread that opens it. Follows the kernel's
//! Documentation/userspace-api/netlink/intro.rst.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType,
    netlink::SocketAddrNetlink, sockopt,
};

/// How long an answer of the kernel may take. It answers at once unless the RTNL lock is held.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Larger than what one read of a dump or a notification returns (the kernel's own limit is 32 KiB).
const BUFFER: usize = 64 * 1024;
/// Datagrams read for one request at most: several hundred thousand routes fit.
const MAX_DATAGRAMS: usize = 1 << 16;

/// A netlink socket of one protocol.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Socket {
    /// Opens a route netlink socket that listens to the multicast groups whose bit (group number - 1) is set.
    ///
    /// # Errors
    /// The system's error.
    pub fn route(groups: u32) -> io::Result<Self> {
        // Protocol 0, which the crate spells as none.
        Self::open(None, groups)
    }

    /// Opens a generic netlink socket.
    ///
    /// # Errors
    /// The system's error.
    pub fn generic() -> io::Result<Self> {
        Self::open(Some(rustix::net::netlink::GENERIC), 0)
    }

    /// Opens an RDMA netlink socket.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` on a kernel without RDMA; else the system's error.
    pub fn rdma() -> io::Result<Self> {
        Self::open(Some(rustix::net::netlink::RDMA), 0)
    }

    fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        let fd = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(ANSWER_TIMEOUT))?;
        Ok(Self {
            fd,
            buffer: vec![0; BUFFER],
            sequence: 0,
        })
    }

    /// Sends `payload` with `flags` (request and acknowledgement are added) and returns the answers.
    ///
    /// # Errors
    /// The kernel's refusal as its errno, or `InvalidData` for an answer that can't be parsed.
    pub fn request<T>(&mut self, payload: T, flags: u16) -> io::Result<Vec<T>>
    where
        T: NetlinkSerializable + NetlinkDeserializable,
    {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(payload));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        rustix::net::send(&self.fd, &bytes, SendFlags::empty())?;

        let mut answers = Vec::new();
        for _ in 0..MAX_DATAGRAMS {
            for message in self.receive::<T>()? {
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(error.to_io());
                    }
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        return Err(io::Error::from_raw_os_error(-done.code));
                    }
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(answers),
                    _ => {}
                }
            }
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "netlink: the answer does not end",
        ))
    }

    /// One datagram's messages, waiting for it.
    ///
    /// # Errors
    /// `ENOBUFS` when notifications were lost, `WouldBlock` or `TimedOut` when none came in time.
    pub fn receive<T: NetlinkDeserializable>(&mut self) -> io::Result<Vec<NetlinkMessage<T>>> {
        let (length, _) = rustix::net::recv(&self.fd, &mut self.buffer[..], RecvFlags::TRUNC)?;
        let mut rest = self
            .buffer
            .get(..length)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "netlink: oversized"))?;
        let mut messages = Vec::new();
        while rest.len() >= 16 {
            let message = NetlinkMessage::<T>::deserialize(rest).map_err(io::Error::other)?;
            let step = (message.header.length as usize).max(16).next_multiple_of(4);
            messages.push(message);
            rest = rest.get(step..).unwrap_or_default();
        }
        Ok(messages)
    }

    /// Waits until something can be received; false when `timeout` passed first.
    ///
    /// # Errors
    /// The system's error.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
