//! The directory of the control sockets: one daemon at a time makes or removes a socket there.
//!
//! A socket that refuses connections is a dead daemon's, or that of one between bind(2) and listen(2). The lock (flock(2) on
//! a file that only the owner can open) tells them apart: whoever holds it knows that nobody else is in between, and that a
//! name still stands for the socket that was asked. The kernel gives it up when its holder dies.

use std::{
    ffi::OsStr,
    fs::{DirBuilder, File},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, FileTypeExt},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use rustix::{
    fs::{CWD, FlockOperation, Mode, OFlags},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};

/// Name of the lock file in the directory.
const LOCK: &str = ".lock";
/// How often the lock is tried, and how long is waited in between.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// The directory, held.
#[derive(Debug)]
pub struct Sockets {
    directory: PathBuf,
    _lock: File,
}

impl Sockets {
    /// Makes the directory if there is none, and waits a few seconds for whoever holds it.
    ///
    /// # Errors
    /// It can't be made or written, or another daemon holds it for that long.
    pub async fn hold(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join(LOCK);
        let what = || format!("lock file {}", path.display());
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)
            .with_context(|| format!("directory {}", directory.display()))?;
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(0o600);
        let lock = rustix::fs::openat(CWD, &path, flags, mode).with_context(what)?;
        for _ in 0..TRIES {
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    return Ok(Self {
                        directory: directory.to_owned(),
                        _lock: lock.into(),
                    });
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(error).with_context(what),
            }
        }
        bail!(
            "{}: another rocexdp is starting and does not come to an end; end it (fuser names it)",
            what()
        )
    }

    /// Removes the sockets of daemons that were killed: their namespaces may never come back, so no one else would.
    pub fn remove_abandoned(&self) {
        let Ok(entries) = std::fs::read_dir(&self.directory) else {
            return;
        };
        for entry in entries.flatten() {
            let ours = entry.file_name().as_bytes().contains(&b'@');
            let socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
            if ours && socket && is_abandoned(entry.path().as_os_str()) {
                // What stays is in nobody's way: it is tried again at the next start.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// Whether nobody listens. Never waits: a daemon that takes no connections (stopped, or too many) is not dead.
fn is_abandoned(path: &OsStr) -> bool {
    let asked = || {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
    };
    asked().is_err_and(|error| io::Error::from(error).kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::net::{UnixListener, UnixStream},
        time::Instant,
    };

    use super::*;

    #[tokio::test]
    async fn only_sockets_that_nobody_serves_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let served = UnixListener::bind(path("served@1.sock")).unwrap();
        for name in ["dead@1.sock", "lab-dead.sock"] {
            drop(UnixListener::bind(path(name)).unwrap());
        }
        std::fs::write(path("file@1.sock"), "").unwrap();
        Sockets::hold(place.path())
            .await
            .unwrap()
            .remove_abandoned();
        assert!(!path("dead@1.sock").exists());
        for name in ["served@1.sock", "lab-dead.sock", "file@1.sock"] {
            assert!(path(name).exists(), "{name}");
        }
        drop(served);
    }

    #[tokio::test]
    async fn a_daemon_that_takes_no_connections_is_neither_waited_for_nor_removed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("stopped@1.sock");
        let stopped = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&stopped, 0).unwrap();
        // Its backlog is full after this one.
        let waiting = UnixStream::connect(&path).unwrap();
        let begun = Instant::now();
        Sockets::hold(place.path())
            .await
            .unwrap()
            .remove_abandoned();
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert!(path.exists());
        drop((waiting, stopped));
    }

    #[tokio::test]
    async fn one_at_a_time_holds_the_directory() {
        let place = tempfile::tempdir().unwrap();
        let first = Sockets::hold(place.path()).await.unwrap();
        let second = Sockets::hold(place.path());
        tokio::pin!(second);
        let early = tokio::time::timeout(2 * PAUSE, &mut second).await;
        assert!(early.is_err(), "both hold it");
        drop(first);
        second.await.unwrap();
    }
}
