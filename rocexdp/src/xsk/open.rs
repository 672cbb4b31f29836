//! Opening a socket: configuration, its checks, and the calls in the order the kernel wants them.
//!
//! Order (`net/xdp/xsk.c`): socket, `XDP_UMEM_REG`, fill and completion ring sizes, RX and TX ring sizes, mmap of all
//! four (only before bind), fill ring filled, bind. Nothing here runs per packet.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::MAX_FRAGS;
use super::error::{Cause, XskError};
use super::ring::{Consumer, Producer};
use super::socket::{Mode, Parts, Xsk};
use super::sys::{self, Mapping};
use super::umem::{CHUNK_SIZES, Umem, XDP_PACKET_HEADROOM};

/// Descriptors per send call that the kernel allows unasked in copy mode (`TX_BATCH_SIZE`).
pub(super) const DEFAULT_TX_BUDGET: u32 = 32;

/// A queue's pool is torn down by a kernel worker after the last close, so a restart may find it busy for a moment.
const BUSY_RETRIES: u32 = 10;
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Whether the driver is to use the packet memory directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Ask for it, take copy mode if refused. [`Xsk::mode`] tells which.
    Try,
    /// Fail if refused.
    Require,
    /// Copy mode.
    Never,
}

/// What a socket is to be. Sizes in entries are powers of two.
#[derive(Clone, Debug)]
pub struct XskConfig {
    /// Name of the interface, for messages.
    pub ifname: String,
    /// Index of the interface in the calling thread's network namespace.
    pub ifindex: u32,
    /// Receive queue.
    pub queue: u32,
    /// RX ring entries.
    pub rx_size: u32,
    /// TX ring entries.
    pub tx_size: u32,
    /// Fill ring entries; at least `frames_rx`, or some frames wait in userspace.
    pub fill_size: u32,
    /// Completion ring entries; at least `frames_tx`, or the kernel stops sending until completions are read.
    pub comp_size: u32,
    /// Chunks for receiving.
    pub frames_rx: u32,
    /// Chunks for sending.
    pub frames_tx: u32,
    /// Bytes per chunk: 2048 or 4096.
    pub chunk_size: u32,
    /// Bytes kept free before a received packet, beyond the kernel's own 256.
    pub headroom: u32,
    /// Packets of several chunks (`XDP_USE_SG`, kernel 6.6).
    pub multi_buffer: bool,
    /// Zero-copy or copy mode.
    pub zero_copy: ZeroCopy,
    /// Descriptors per send call in copy mode; more than 32 needs kernel 6.17 and is ignored before. At most `tx_size`.
    pub tx_budget: u32,
    /// Socket send buffer in bytes (copy mode): how much may sit in device queues before a send is told to wait.
    /// `None` leaves the system's default (`net.core.wmem_default`).
    pub send_buffer: Option<u32>,
}

impl XskConfig {
    /// A configuration for frames up to path MTU 4096, on `queue` of the interface.
    pub fn new(ifname: impl Into<String>, ifindex: u32, queue: u32) -> Self {
        Self {
            ifname: ifname.into(),
            ifindex,
            queue,
            rx_size: 4096,
            tx_size: 2048,
            fill_size: 4096,
            comp_size: 4096,
            frames_rx: 4096,
            frames_tx: 4096,
            chunk_size: 4096,
            headroom: 0,
            multi_buffer: true,
            zero_copy: ZeroCopy::Try,
            tx_budget: 2048,
            send_buffer: None,
        }
    }

    fn check(&self) -> Result<(), String> {
        if !CHUNK_SIZES.contains(&self.chunk_size) {
            return Err(format!(
                "chunk_size {} is neither 2048 nor 4096",
                self.chunk_size
            ));
        }
        // xdp_umem_reg refuses a headroom that leaves nothing.
        if self.headroom >= self.chunk_size - XDP_PACKET_HEADROOM {
            return Err(format!(
                "headroom {} leaves no room in chunks of {} B (the kernel takes {XDP_PACKET_HEADROOM})",
                self.headroom, self.chunk_size
            ));
        }
        let rings = [
            ("rx_size", self.rx_size),
            ("tx_size", self.tx_size),
            ("fill_size", self.fill_size),
            ("comp_size", self.comp_size),
        ];
        for (name, size) in rings {
            if !size.is_power_of_two() || (size as usize) < MAX_FRAGS || size > 1 << 20 {
                return Err(format!(
                    "{name} {size} is not a power of two from {MAX_FRAGS} to 2^20"
                ));
            }
        }
        for (name, frames) in [("frames_rx", self.frames_rx), ("frames_tx", self.frames_tx)] {
            if (frames as usize) < MAX_FRAGS || frames > 1 << 20 {
                return Err(format!("{name} {frames} is not in {MAX_FRAGS} to 2^20"));
            }
        }
        if self.tx_budget > self.tx_size {
            return Err(format!(
                "tx_budget {} is larger than tx_size {}",
                self.tx_budget, self.tx_size
            ));
        }
        Ok(())
    }
}

impl Xsk {
    /// Opens, fills and binds a socket. The calling thread must be in the interface's network namespace; afterwards the
    /// socket works from any thread.
    ///
    /// # Errors
    /// [`XskError`]: names interface, queue, the call that failed and what to do.
    pub fn open(config: &XskConfig) -> Result<Self, XskError> {
        let fail = |cause| XskError {
            ifname: config.ifname.clone(),
            queue: config.queue,
            cause,
        };
        config.check().map_err(|text| fail(Cause::Config(text)))?;
        open(config).map_err(|(call, errno)| fail(Cause::System { call, errno }))
    }
}

fn open(config: &XskConfig) -> Result<Xsk, (&'static str, Errno)> {
    let on = |call: &'static str| move |errno: Errno| (call, errno);

    let socket = rustix::net::socket_with(
        AddressFamily::XDP,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(on("socket(AF_XDP)"))?;

    let bytes =
        (config.frames_rx as usize + config.frames_tx as usize) * config.chunk_size as usize;
    let memory = Mapping::anonymous(bytes).map_err(on("mmap(packet memory)"))?;
    let (umem, mut spare) = Umem::new(memory, config.chunk_size);
    let free = spare.split_off(config.frames_rx as usize);
    let registration = XdpUmemReg {
        addr: umem.address(),
        len: bytes as u64,
        chunk_size: config.chunk_size,
        headroom: config.headroom,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(&socket, registration).map_err(on("setsockopt(XDP_UMEM_REG)"))?;
    sockopt::set_xdp_umem_fill_ring_size(&socket, config.fill_size)
        .map_err(on("setsockopt(XDP_UMEM_FILL_RING)"))?;
    sockopt::set_xdp_umem_completion_ring_size(&socket, config.comp_size)
        .map_err(on("setsockopt(XDP_UMEM_COMPLETION_RING)"))?;
    sockopt::set_xdp_rx_ring_size(&socket, config.rx_size)
        .map_err(on("setsockopt(XDP_RX_RING)"))?;
    sockopt::set_xdp_tx_ring_size(&socket, config.tx_size)
        .map_err(on("setsockopt(XDP_TX_RING)"))?;

    let tx_budget = raise_tx_budget(socket.as_fd(), config.tx_budget);
    if let Some(bytes) = config.send_buffer {
        sockopt::set_socket_send_buffer_size_force(&socket, bytes as usize)
            .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, bytes as usize))
            .map_err(on("setsockopt(SO_SNDBUF)"))?;
    }

    let offsets = sockopt::xdp_mmap_offsets(&socket).map_err(on("getsockopt(XDP_MMAP_OFFSETS)"))?;
    let fd = socket.as_fd();
    let rx = sys::map_ring(
        fd,
        &offsets.rx,
        libc::XDP_PGOFF_RX_RING as u64,
        config.rx_size,
    )
    .map_err(on("mmap(RX ring)"))?;
    let tx = sys::map_ring(
        fd,
        &offsets.tx,
        libc::XDP_PGOFF_TX_RING as u64,
        config.tx_size,
    )
    .map_err(on("mmap(TX ring)"))?;
    let fill = sys::map_ring(
        fd,
        &offsets.fr,
        libc::XDP_UMEM_PGOFF_FILL_RING,
        config.fill_size,
    )
    .map_err(on("mmap(fill ring)"))?;
    let comp = sys::map_ring(
        fd,
        &offsets.cr,
        libc::XDP_UMEM_PGOFF_COMPLETION_RING,
        config.comp_size,
    )
    .map_err(on("mmap(completion ring)"))?;

    let mut xsk = Xsk::new(Parts {
        socket,
        umem,
        rx: Consumer::new(rx),
        tx: Producer::new(tx),
        fill: Producer::new(fill),
        comp: Consumer::new(comp),
        spare,
        free,
        multi_buffer: config.multi_buffer,
        tx_budget,
    });
    xsk.refill();
    let zero_copy_refused = bind(xsk.as_fd(), config).map_err(on("bind"))?;
    let options = sockopt::xdp_options(&xsk).map_err(on("getsockopt(XDP_OPTIONS)"))?;
    let mode = if options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY) {
        Mode::ZeroCopy
    } else {
        Mode::Copy
    };
    xsk.bound(mode, zero_copy_refused);
    Ok(xsk)
}

/// Returns the budget in force.
fn raise_tx_budget(socket: BorrowedFd<'_>, wanted: u32) -> u32 {
    if wanted > DEFAULT_TX_BUDGET && sys::set_tx_budget(socket, wanted).is_ok() {
        wanted
    } else {
        DEFAULT_TX_BUDGET
    }
}

/// Binds, zero-copy first if allowed. Returns why zero-copy was refused, if it was asked for and not had.
fn bind(socket: BorrowedFd<'_>, config: &XskConfig) -> rustix::io::Result<Option<Errno>> {
    let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    flags.set(SocketAddrXdpFlags::XDP_USE_SG, config.multi_buffer);
    let with = |mode| {
        let address = SocketAddrXdp::new(flags | mode, config.ifindex, config.queue);
        for _ in 0..BUSY_RETRIES {
            match rustix::net::bind(socket, &address) {
                Err(Errno::BUSY) => std::thread::sleep(BUSY_PAUSE),
                result => return result,
            }
        }
        rustix::net::bind(socket, &address)
    };
    match config.zero_copy {
        ZeroCopy::Require => with(SocketAddrXdpFlags::XDP_ZEROCOPY).map(|()| None),
        ZeroCopy::Never => with(SocketAddrXdpFlags::XDP_COPY).map(|()| None),
        ZeroCopy::Try => match with(SocketAddrXdpFlags::XDP_ZEROCOPY) {
            Ok(()) => Ok(None),
            Err(refused) => with(SocketAddrXdpFlags::XDP_COPY).map(|()| Some(refused)),
        },
    }
}
