//! Hashing the file that arrives, as far as it has been placed.
//!
//! Runs on a blocking thread, behind the WRITEs: when the last one is in, little is left to hash. Reads the file, not the
//! mapping, which is the engine's to write.

use std::{fs::File, os::unix::fs::FileExt, sync::mpsc};

use sha2::{Digest, Sha256};

use super::{super::exchange::Sha256Digest, CHUNK};

/// Hashes `file` up to each number of bytes that comes from `placed`, and returns how many bytes it hashed and their digest
/// when no more come.
///
/// # Errors
/// Reading failed.
pub(super) fn hash_placed(
    file: &File,
    placed: &mpsc::Receiver<u64>,
) -> std::io::Result<(u64, Sha256Digest)> {
    let mut hash = Sha256::new();
    let mut bytes = vec![0; CHUNK];
    let mut done = 0;
    while let Ok(until) = placed.recv() {
        while done < until {
            let len = usize::try_from(until - done).unwrap_or(CHUNK).min(CHUNK);
            let part = bytes.get_mut(..len).unwrap_or_default();
            file.read_exact_at(part, done)?;
            hash.update(&*part);
            done += len as u64;
        }
    }
    Ok((done, Sha256Digest(hash.finalize().into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_of_all_bytes_however_they_were_announced() {
        let bytes: Vec<u8> = (0..2 * CHUNK + 5).map(|i| (i * 17 / 3) as u8).collect();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let (tell, placed) = mpsc::channel();
        for until in [0, 1, 1, 5000, CHUNK as u64 + 1, bytes.len() as u64] {
            tell.send(until).unwrap();
        }
        drop(tell);
        let (done, digest) = hash_placed(&file, &placed).unwrap();
        assert_eq!(done, bytes.len() as u64);
        assert_eq!(digest.0[..], Sha256::digest(&bytes)[..]);
    }
}
