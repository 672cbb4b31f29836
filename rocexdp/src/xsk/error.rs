//! Errors of opening a socket: which interface and queue, which call failed how, and what to do about it.

use std::fmt;

use rustix::io::Errno;

/// Why a socket could not be opened. Its text names interface, queue, cause and remedy.
#[derive(Debug)]
pub struct XskError {
    pub(super) ifname: String,
    pub(super) queue: u32,
    pub(super) cause: Cause,
}

/// The cause of an [`XskError`].
#[derive(Debug)]
pub enum Cause {
    /// The configuration cannot work; the text says which value and what is allowed.
    Config(String),
    /// A system call failed.
    System {
        /// The call and its option, as a manual page would name it.
        call: &'static str,
        /// What the kernel answered.
        errno: Errno,
    },
}

impl XskError {
    /// The interface.
    pub fn ifname(&self) -> &str {
        &self.ifname
    }

    /// The receive queue.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// The cause.
    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    /// The kernel's error number, if a system call failed.
    pub fn errno(&self) -> Option<Errno> {
        match &self.cause {
            Cause::Config(_) => None,
            Cause::System { errno, .. } => Some(*errno),
        }
    }

    fn remedy(&self) -> Option<&'static str> {
        let Cause::System { call, errno } = &self.cause else {
            return None;
        };
        Some(match *errno {
            Errno::PERM | Errno::ACCESS => {
                "run as root, or give the program CAP_NET_RAW and CAP_NET_ADMIN (and CAP_IPC_LOCK or a larger memlock \
                 limit)"
            }
            Errno::NOBUFS if *call == "setsockopt(XDP_UMEM_REG)" => {
                "the packet memory exceeds RLIMIT_MEMLOCK: raise it (ulimit -l), or give the program CAP_IPC_LOCK, or \
                 ask for fewer frames"
            }
            Errno::NOBUFS | Errno::NOMEM => {
                "the kernel has no memory for it: ask for fewer frames or smaller rings"
            }
            Errno::BUSY => {
                "another AF_XDP socket has this queue of this interface: stop that program, or use another queue"
            }
            Errno::OPNOTSUPP => {
                "the driver or kernel does not support this mode: do not require zero-copy, and for path MTU 4096 use \
                 kernel 6.6 or newer"
            }
            Errno::AFNOSUPPORT => "the kernel was built without CONFIG_XDP_SOCKETS",
            Errno::NODEV => {
                "no such interface in this network namespace: the socket must be opened in the interface's own"
            }
            Errno::NETDOWN => "set the interface up first (ip link set dev NAME up)",
            Errno::INVAL if call.starts_with("bind") => {
                "the queue does not exist (see ethtool -l), the chunk is too small for the interface's MTU, or the \
                 kernel is older than 6.6 and multi-buffer was asked for"
            }
            _ => return None,
        })
    }
}

impl fmt::Display for XskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AF_XDP socket on {} queue {}: ", self.ifname, self.queue)?;
        match &self.cause {
            Cause::Config(text) => write!(f, "{text}")?,
            Cause::System { call, errno } => write!(f, "{call} failed: {errno}")?,
        }
        match self.remedy() {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for XskError {}
