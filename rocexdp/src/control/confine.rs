//! The receive directory: where a peer may put a file, and how the file comes to be there.
//!
//! A peer names a path; the kernel resolves it with `openat2(2)`, `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
//! RESOLVE_NO_MAGICLINKS`, so that no `..`, absolute path or link leads out of the directory. Bytes arrive in a file
//! without a name (`O_TMPFILE`) whose room is allocated beforehand, and which gets its name with all its bytes or never:
//! when the process dies, the kernel takes the file away. Nothing is ever overwritten unless that was allowed.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};

/// Longest path a peer may name, in bytes.
const MAX_PATH: usize = 1024;

/// Why a file can't be received under a path.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The path leads out of the receive directory, or is no path to a file.
    Path(String),
    /// Something is there already.
    Exists(String),
    /// The file system has no room, or can't hold such a file.
    Space(String),
    /// The system refused.
    Io(&'static str, io::Error),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(text) | Self::Exists(text) | Self::Space(text) => f.write_str(text),
            Self::Io(doing, error) => write!(f, "{doing}: {error}"),
        }
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    fn io(doing: &'static str) -> impl FnOnce(Errno) -> Self {
        move |error| Self::Io(doing, error.into())
    }
}

/// A directory that files may be received into.
#[derive(Debug)]
pub struct ReceiveDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl ReceiveDir {
    /// Opens the directory. Its path may hold links: the operator named it.
    ///
    /// # Errors
    /// It does not exist or is no directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        Ok(Self {
            fd,
            path: path.to_owned(),
        })
    }

    /// The directory, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A nameless file of `size` bytes, all allocated, that can be published as `wanted` below this directory.
    ///
    /// # Errors
    /// [`Refusal`]: the path leads out or is no file's, something is there and `overwrite` is false, or there is no room.
    pub fn create(&self, wanted: &str, size: u64, overwrite: bool) -> Result<Incoming, Refusal> {
        let (parent, name) = split(wanted)?;
        let parent = self.open_parent(parent, wanted)?;
        let incoming_name = OsString::from(name);
        check_target(&parent, &incoming_name, wanted, overwrite)?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&parent, ".", flags, Mode::from_raw_mode(0o644)).map_err(
            |error| match error {
                Errno::OPNOTSUPP | Errno::ISDIR => Refusal::Space(
                    "the receive directory's file system has no nameless files (O_TMPFILE); use \
                     ext4, xfs, btrfs or tmpfs"
                        .to_owned(),
                ),
                error => Refusal::Io("the receive directory can't be written", error.into()),
            },
        )?;
        if size > 0 {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size).map_err(|error| {
                match error {
                    Errno::NOSPC | Errno::DQUOT | Errno::FBIG => {
                        Refusal::Space(format!("no room for {size} bytes: {error}"))
                    }
                    error => Refusal::Io("the file's room can't be allocated", error.into()),
                }
            })?;
        }
        Ok(Incoming {
            file: file.into(),
            parent,
            name: incoming_name,
            wanted: wanted.to_owned(),
            overwrite,
        })
    }

    fn open_parent(&self, parent: &Path, wanted: &str) -> Result<OwnedFd, Refusal> {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = if parent.as_os_str().is_empty() {
            Path::new(".")
        } else {
            parent
        };
        // EAGAIN: a rename raced with the resolution.
        for _ in 0..16 {
            match rustix::fs::openat2(&self.fd, parent, flags, Mode::empty(), how) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                Ok(fd) => return Ok(fd),
                Err(Errno::XDEV) => {
                    return Err(Refusal::Path(format!(
                        "path {wanted:?} leads out of the receive directory"
                    )));
                }
                Err(Errno::LOOP) => {
                    return Err(Refusal::Path(format!(
                        "path {wanted:?} goes through a symbolic link, which is not followed below the receive directory"
                    )));
                }
                Err(Errno::NOENT) => {
                    return Err(Refusal::Path(format!(
                        "path {wanted:?}: there is no directory {:?} below the receive directory",
                        parent.display()
                    )));
                }
                Err(Errno::NOTDIR) => {
                    return Err(Refusal::Path(format!(
                        "path {wanted:?}: {:?} is no directory",
                        parent.display()
                    )));
                }
                Err(error) => {
                    return Err(Refusal::Io("the directory can't be opened", error.into()));
                }
            }
        }
        Err(Refusal::Io(
            "the directory can't be opened",
            Errno::AGAIN.into(),
        ))
    }
}

/// Splits a peer's path into the directory and the file's name. A first, lexical check with good messages; the kernel's
/// check follows.
fn split(wanted: &str) -> Result<(&Path, &OsStr), Refusal> {
    let refuse = |why: &str| Err(Refusal::Path(format!("path {wanted:?} {why}")));
    let path = Path::new(wanted);
    if wanted.is_empty() || wanted.len() > MAX_PATH {
        return refuse("is empty or too long");
    }
    if wanted.contains('\0') {
        return refuse("holds a zero byte");
    }
    for component in path.components() {
        match component {
            Component::RootDir | Component::Prefix(_) => {
                return refuse("is absolute: it must be relative to the receive directory");
            }
            Component::ParentDir => return refuse("leads out of the receive directory (..)"),
            Component::Normal(_) | Component::CurDir => {}
        }
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if !wanted.ends_with(['/']) && !wanted.ends_with("/.") => {
            if name.as_bytes().len() > 255 {
                return refuse("has a name longer than 255 bytes");
            }
            Ok((parent, name))
        }
        _ => refuse("names no file"),
    }
}

fn check_target(
    parent: &OwnedFd,
    name: &OsStr,
    wanted: &str,
    overwrite: bool,
) -> Result<(), Refusal> {
    let found = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        found => found.map_err(Refusal::io("the target can't be looked up"))?,
    };
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile if overwrite => Ok(()),
        FileType::RegularFile => Err(Refusal::Exists(format!(
            "{wanted:?} exists, and the receiver does not allow overwriting"
        ))),
        FileType::Symlink => Err(Refusal::Path(format!(
            "{wanted:?} is a symbolic link, which is neither followed nor replaced"
        ))),
        _ => Err(Refusal::Path(format!(
            "{wanted:?} exists and is no regular file"
        ))),
    }
}

/// A file that is arriving. Dropped before [`Incoming::publish`], it never existed.
#[derive(Debug)]
pub struct Incoming {
    file: File,
    parent: OwnedFd,
    name: OsString,
    wanted: String,
    overwrite: bool,
}

impl Incoming {
    /// The file, open for reading and writing.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Brings the bytes to the disk and gives the file its name. Blocks.
    ///
    /// # Errors
    /// [`Refusal::Exists`] when something has taken the name meanwhile and overwriting is not allowed; the disk failed.
    pub fn publish(self) -> Result<(), Refusal> {
        self.file
            .sync_all()
            .map_err(|error| Refusal::Io("the file can't be brought to the disk", error))?;
        match self.link(&self.name) {
            Ok(()) => {}
            Err(Errno::EXIST) if self.overwrite => self.replace()?,
            Err(Errno::EXIST) => {
                return Err(Refusal::Exists(format!(
                    "{:?} has come to exist meanwhile, and the receiver does not allow overwriting",
                    self.wanted
                )));
            }
            Err(error) => return Err(Refusal::Io("the file can't get its name", error.into())),
        }
        rustix::fs::fsync(&self.parent)
            .map_err(Refusal::io("the directory can't be brought to the disk"))
    }

    /// `linkat` of `/proc/self/fd/N`, the way of open(2), "O_TMPFILE", that needs no capability.
    fn link(&self, name: &OsStr) -> Result<(), Errno> {
        let from = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        rustix::fs::linkat(CWD, from, &self.parent, name, AtFlags::SYMLINK_FOLLOW)
    }

    /// Takes the place of what is there, in one step.
    fn replace(&self) -> Result<(), Refusal> {
        // Whatever has come to be there since the first check must still be a file.
        check_target(&self.parent, &self.name, &self.wanted, true)?;
        for _ in 0..8 {
            let random: u64 = rand::random();
            let name = OsString::from(format!(".rocexdp-{random:016x}"));
            match self.link(&name) {
                Err(Errno::EXIST) => {}
                Err(error) => {
                    return Err(Refusal::Io("the file can't get its name", error.into()));
                }
                Ok(()) => {
                    let renamed =
                        rustix::fs::renameat(&self.parent, &name, &self.parent, &self.name);
                    if renamed.is_err() {
                        // The name must not stay; that it can't go is no news on top of the failure.
                        let _ = rustix::fs::unlinkat(&self.parent, &name, AtFlags::empty());
                    }
                    return renamed.map_err(Refusal::io("the file can't take the old one's place"));
                }
            }
        }
        Err(Refusal::Io(
            "the file can't get its name",
            Errno::EXIST.into(),
        ))
    }
}

#[cfg(test)]
#[path = "confine_tests.rs"]
mod tests;
