//! A file that one process holds, by flock(2): the kernel gives it up when its holder dies, `kill -9` included.
//!
//! The holder writes its process id into it, for whoever finds it held, and removes it when it lets go. Between opening a file
//! and locking it another may have removed it: then the lock is on no name, and the next try makes a new file.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FlockOperation, Mode, OFlags},
    io::Errno,
};

/// Each more means that another removed the file just then.
const TRIES: u32 = 16;

/// A file that is held. Dropped, it is removed.
#[derive(Debug)]
pub struct LockFile {
    path: PathBuf,
    _file: File,
}

/// Who holds a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The process with this id, in its own pid namespace.
    By(u32),
    /// It has not written its id (yet).
    Unknown,
}

impl LockFile {
    /// Takes `path`, which is made, mode 0600, and its directory too. Does not wait. `Ok(Err(_))`: another has it.
    ///
    /// # Errors
    /// The file or its directory can't be made, or not be locked.
    pub fn take(path: &Path) -> io::Result<Result<Self, Taken>> {
        if let Some(directory) = path.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(directory)?;
        }
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        for _ in 0..TRIES {
            let file = rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o600))?;
            let mut file = File::from(file);
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(Err(holder(&mut file))),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let ours = file.metadata()?;
            let named = match fs::symlink_metadata(path) {
                Ok(named) => (named.dev(), named.ino()) == (ours.dev(), ours.ino()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => false,
                Err(error) => return Err(error),
            };
            if !named {
                continue;
            }
            // What a holder that was killed wrote.
            file.set_len(0)?;
            writeln!(file, "{}", std::process::id())?;
            return Ok(Ok(Self {
                path: path.to_owned(),
                _file: file,
            }));
        }
        Err(io::Error::other("others remove it again and again"))
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Still locked: it is this process's own. What stays is taken over by the next one.
        let _ = fs::remove_file(&self.path);
    }
}

fn holder(file: &mut File) -> Taken {
    let mut text = String::new();
    // A process id has few digits.
    let read = file.take(32).read_to_string(&mut text);
    match (read, text.trim().parse()) {
        (Ok(_), Ok(pid)) => Taken::By(pid),
        _ => Taken::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holds_it_and_it_is_free_when_that_one_is_gone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("below/it.lock");
        let first = LockFile::take(&path).unwrap().unwrap();
        let found = LockFile::take(&path).unwrap().unwrap_err();
        assert_eq!(found, Taken::By(std::process::id()));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        drop(first);
        assert!(!path.exists());
        // What a killed holder leaves.
        fs::write(&path, "123456789 and more").unwrap();
        let next = LockFile::take(&path).unwrap().unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            format!("{}\n", std::process::id())
        );
        drop(next);
    }

    /// Many threads take and drop it: never do two have it.
    #[test]
    fn never_two_hold_it_while_others_remove_it() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("it.lock");
        let (inside, taken) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        if let Ok(Ok(held)) = LockFile::take(&path) {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            taken.fetch_add(1, Ordering::SeqCst);
                            std::thread::yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                            drop(held);
                        }
                    }
                });
            }
        });
        assert!(taken.into_inner() >= 4);
    }
}
