//! Hashing the file that arrived.
//!
//! Only once its region is withdrawn: a digest of bytes that the peer can still change says nothing about the file that is
//! published. Blocks, and so runs on a blocking thread. Reads the file, not the mapping.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicBool, Ordering},
};

use sha2::{Digest, Sha256};

use super::{super::exchange::Sha256Digest, CHUNK};

/// The digest of the first `size` bytes of `file`.
///
/// # Errors
/// Reading failed, or `stop` was set meanwhile ([`io::ErrorKind::Interrupted`]).
pub(super) fn hash(file: &File, size: u64, stop: &AtomicBool) -> io::Result<Sha256Digest> {
    let mut hash = Sha256::new();
    let mut bytes = vec![0; CHUNK];
    let mut done = 0;
    while done < size {
        if stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let len = usize::try_from(size - done).unwrap_or(CHUNK).min(CHUNK);
        let part = bytes.get_mut(..len).unwrap_or_default();
        file.read_exact_at(part, done)?;
        hash.update(&*part);
        done += len as u64;
    }
    Ok(Sha256Digest(hash.finalize().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_of_all_bytes() {
        for size in [0, 1, CHUNK, 2 * CHUNK + 5] {
            let bytes: Vec<u8> = (0..size).map(|i| (i * 17 / 3) as u8).collect();
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&bytes, 0).unwrap();
            let digest = hash(&file, size as u64, &AtomicBool::new(false)).unwrap();
            assert_eq!(digest.0[..], Sha256::digest(&bytes)[..]);
            // Shorter than it should be.
            assert!(hash(&file, size as u64 + 1, &AtomicBool::new(false)).is_err());
        }
    }

    #[test]
    fn it_ends_when_told_to() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1).unwrap();
        let error = hash(&file, 1, &AtomicBool::new(true)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
    }
}
