//! Reading the file that is sent: chunk by chunk into staging memory, hashing on the way.
//!
//! Runs on a blocking thread. The file is read, never mapped: another process may shrink it meanwhile, which is an error
//! here and would be a SIGBUS there. A chunk of staging memory is not touched again until it comes back as free.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    sync::{Arc, mpsc},
};

use anyhow::{Context, bail};
use rocexdp_proto::mem::Memory;
use sha2::{Digest, Sha256};

use super::{super::exchange::Sha256Digest, CHUNK};
use crate::mem::Buffer;

/// A part of the file in staging memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filled {
    /// Which chunk of staging memory.
    pub chunk: usize,
    /// Where its first byte stands in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// Reads `size` bytes of `file`, each chunk into the next free place of `staging`, and returns their digest. Ends early
/// without error when nobody takes the chunks any more.
///
/// # Errors
/// Reading failed, or the file is shorter than `size` by now.
pub(super) fn read_all(
    file: &File,
    size: u64,
    staging: &Arc<Buffer>,
    free: &mpsc::Receiver<usize>,
    filled: &tokio::sync::mpsc::Sender<Filled>,
) -> anyhow::Result<Sha256Digest> {
    let mut hash = Sha256::new();
    let mut bytes = vec![0; CHUNK];
    let mut offset = 0;
    while offset < size {
        let Ok(chunk) = free.recv() else {
            bail!("the copy was given up")
        };
        let len = usize::try_from(size - offset).unwrap_or(CHUNK).min(CHUNK);
        let part = bytes.get_mut(..len).unwrap_or_default();
        file.read_exact_at(part, offset).with_context(|| {
            format!("reading {len} bytes at {offset} of {size} (did the file shrink?)")
        })?;
        hash.update(&*part);
        staging
            .write((chunk * CHUNK) as u64, part)
            .map_err(|_| anyhow::anyhow!("staging memory has no chunk {chunk}"))?;
        let part = Filled {
            chunk,
            offset,
            len: len as u32,
        };
        if filled.blocking_send(part).is_err() {
            bail!("the copy was given up");
        }
        offset += len as u64;
    }
    Ok(Sha256Digest(hash.finalize().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of(bytes: &[u8]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file
    }

    /// Reads with two chunks of staging memory and returns what came through it.
    fn through(file: &File, size: u64) -> (anyhow::Result<Sha256Digest>, Vec<u8>) {
        let staging = Buffer::new(2 * CHUNK).unwrap();
        let (give, free) = mpsc::channel();
        give.send(0).unwrap();
        give.send(1).unwrap();
        let (filled, mut taken) = tokio::sync::mpsc::channel(2);
        std::thread::scope(|scope| {
            let reader = scope.spawn({
                let staging = &staging;
                move || read_all(file, size, staging, &free, &filled)
            });
            let mut got = Vec::new();
            while let Some(part) = taken.blocking_recv() {
                assert_eq!(part.offset, got.len() as u64);
                let mut bytes = vec![0; part.len as usize];
                staging
                    .read((part.chunk * CHUNK) as u64, &mut bytes)
                    .unwrap();
                got.extend_from_slice(&bytes);
                let _ = give.send(part.chunk);
            }
            (reader.join().unwrap(), got)
        })
    }

    #[test]
    fn all_bytes_come_in_order_with_their_digest() {
        for size in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 17] {
            let bytes: Vec<u8> = (0..size).map(|i| (i * 31 / 7) as u8).collect();
            let (digest, got) = through(&file_of(&bytes), size as u64);
            assert!(got == bytes, "{size}");
            assert_eq!(digest.unwrap().0[..], Sha256::digest(&bytes)[..]);
        }
        let (empty, _) = through(&file_of(b""), 0);
        assert_eq!(
            empty.unwrap().to_string(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn a_file_that_shrank_is_an_error() {
        let (digest, _) = through(&file_of(&[1; 100]), 101);
        assert!(
            digest
                .unwrap_err()
                .to_string()
                .contains("did the file shrink?")
        );
    }
}
