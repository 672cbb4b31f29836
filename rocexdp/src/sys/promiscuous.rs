//! Makes a NIC take frames to any address, for as long as this is held.
//!
//! By a packet socket's membership (packet(7), `PACKET_MR_PROMISC`): the kernel counts those who ask, and takes the membership
//! back when the socket is closed, `kill -9` included. Nothing is received by the socket: it has protocol 0.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// A NIC that takes frames to any address. Dropped, it does as before.
#[derive(Debug)]
pub struct Promiscuous {
    _socket: OwnedFd,
}

impl Promiscuous {
    /// Asks for the interface with this index in the caller's namespace.
    ///
    /// # Errors
    /// The system's: no such interface, or CAP_NET_RAW is missing.
    pub fn on(ifindex: u32) -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let request = libc::packet_mreq {
            mr_ifindex: i32::try_from(ifindex).map_err(io::Error::other)?,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        // SAFETY: the kernel reads size_of::<packet_mreq>() bytes of an initialised structure and keeps no pointer to it.
        let status = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                (&raw const request).cast(),
                size_of::<libc::packet_mreq>() as libc::socklen_t,
            )
        };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { _socket: socket })
    }
}
