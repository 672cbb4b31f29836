//! Network namespaces: make, enter and remove named ones, run code and commands inside.
//!
//! A name lives as a bind mount of the namespace in `/run/netns`, as iproute2 does it (`ip netns` sees ours and we see
//! its). Entering is `setns(CLONE_NEWNET)` and nothing else, unlike `ip netns exec`, which also makes a mount namespace
//! with its own `/sys`: BPF pins and sockets in the file system stay those of the caller. A namespace belongs to a thread,
//! so code runs on a thread of its own here: the caller's namespace never changes.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use rustix::{
    mount::{MountPropagationFlags, UnmountFlags},
    thread::{LinkNameSpaceType, UnshareFlags},
};

/// Where names of network namespaces live.
pub const DIRECTORY: &str = "/run/netns";

/// An open network namespace. Keeps it alive as long as this lives, even when its name is gone.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
    label: String,
}

impl NetNs {
    /// The namespace that `ip netns` calls `name`.
    ///
    /// # Errors
    /// The name does not exist, or is no plain file name.
    pub fn open(name: &str) -> io::Result<Self> {
        let path = path_of(name)?;
        let file = fs::File::open(&path)
            .map_err(|error| context(error, format_args!("network namespace {name}")))?;
        Ok(Self {
            fd: file.into(),
            label: name.to_owned(),
        })
    }

    /// The calling thread's namespace.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn current() -> io::Result<Self> {
        let file = fs::File::open("/proc/thread-self/ns/net")?;
        Ok(Self {
            fd: file.into(),
            label: "current".to_owned(),
        })
    }

    /// A new namespace with a name, its loopback still down.
    ///
    /// # Errors
    /// The name is taken, or the caller lacks CAP_SYS_ADMIN.
    pub fn create(name: &str) -> io::Result<Self> {
        let path = path_of(name)?;
        share_directory()?;
        fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(|error| context(error, format_args!("network namespace {name}")))?;
        let made = thread::scope(|scope| {
            scope
                .spawn(|| {
                    leave_for_new()?;
                    rustix::mount::mount_bind("/proc/thread-self/ns/net", &path)?;
                    Ok(())
                })
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("thread died")))
        });
        if let Err(error) = made {
            // The name must not stay behind as an empty file.
            let _ = fs::remove_file(&path);
            return Err(context(error, format_args!("network namespace {name}")));
        }
        Self::open(name)
    }

    /// Removes the name. The namespace itself goes when the last process, socket and handle in it are gone.
    ///
    /// # Errors
    /// The name does not exist, or the caller lacks CAP_SYS_ADMIN.
    pub fn delete(name: &str) -> io::Result<()> {
        let path = path_of(name)?;
        // EINVAL: a file that is no mount, which a failed creation can leave.
        match rustix::mount::unmount(&path, UnmountFlags::DETACH) {
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => {
                return Err(context(
                    error.into(),
                    format_args!("network namespace {name}"),
                ));
            }
        }
        fs::remove_file(&path)
    }

    /// The names in [`DIRECTORY`] that start with `prefix`, sorted.
    ///
    /// # Errors
    /// The directory can't be read; that it does not exist is no error.
    pub fn names(prefix: &str) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(DIRECTORY) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in entries {
            if let Ok(name) = entry?.file_name().into_string()
                && name.starts_with(prefix)
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// The name, for messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// A second handle.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            fd: self.fd.try_clone()?,
            label: self.label.clone(),
        })
    }

    /// Moves the calling thread, for good, into this namespace. For threads that are made for it.
    ///
    /// # Errors
    /// The caller lacks CAP_SYS_ADMIN.
    pub fn enter(&self) -> io::Result<()> {
        rustix::thread::move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| {
                context(
                    error.into(),
                    format_args!("network namespace {}", self.label),
                )
            })
    }

    /// Runs `work` on a thread inside this namespace and waits for it. Sockets made there stay in the namespace.
    ///
    /// # Errors
    /// Entering failed, or `work` panicked (its panic is shown, not passed on).
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            scope
                .spawn(|| self.enter().map(|()| work()))
                .join()
                .unwrap_or_else(|_| {
                    Err(io::Error::other(format!(
                        "work in network namespace {} died",
                        self.label
                    )))
                })
        })
    }

    /// Starts a thread that lives inside this namespace.
    ///
    /// # Errors
    /// No thread can be made. That the namespace can't be entered is the thread's result.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<thread::JoinHandle<io::Result<T>>> {
        let namespace = self.try_clone()?;
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            namespace.enter()?;
            Ok(work())
        })
    }

    /// Makes `command` start inside this namespace.
    ///
    /// # Errors
    /// No file descriptor is left. That the namespace can't be entered shows when the command is spawned.
    pub fn confine(&self, command: &mut Command) -> io::Result<()> {
        let namespace = self.fd.try_clone()?;
        let enter = move || {
            rustix::thread::move_into_link_name_space(
                namespace.as_fd(),
                Some(LinkNameSpaceType::Network),
            )?;
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn context(error: io::Error, what: std::fmt::Arguments<'_>) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn path_of(name: &str) -> io::Result<PathBuf> {
    let plain = !name.is_empty()
        && name.len() <= 200
        && name != "."
        && name != ".."
        && !name.contains(['/', '\0']);
    if !plain {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name:?} is no name for a network namespace"),
        ));
    }
    Ok(Path::new(DIRECTORY).join(name))
}

/// Moves the calling thread into a new, empty network namespace.
fn leave_for_new() -> io::Result<()> {
    // SAFETY: CLONE_NEWNET alone changes neither memory nor the file descriptor table.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.map_err(io::Error::from)
}

/// Makes [`DIRECTORY`] a shared mount, so that names made here show up in other mount namespaces (iproute2's
/// `netns_add` does the same).
fn share_directory() -> io::Result<()> {
    fs::create_dir_all(DIRECTORY)?;
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    match rustix::mount::mount_change(DIRECTORY, shared) {
        Ok(()) => Ok(()),
        // Not a mount point yet: make it one.
        Err(rustix::io::Errno::INVAL) => {
            rustix::mount::mount_bind_recursive(DIRECTORY, DIRECTORY)?;
            rustix::mount::mount_change(DIRECTORY, shared)?;
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_path_component() {
        for bad in ["", ".", "..", "a/b", "/etc/passwd", "a\0b"] {
            assert_eq!(
                path_of(bad).unwrap_err().kind(),
                io::ErrorKind::InvalidInput,
                "{bad:?}"
            );
        }
        assert_eq!(
            path_of("rocexdp-a").unwrap(),
            Path::new("/run/netns/rocexdp-a")
        );
    }
}
