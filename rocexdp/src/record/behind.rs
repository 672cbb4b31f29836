//! A file that a thread of its own writes: a disk that makes write(2) wait (dirty pages, NFS) does not keep the taps waiting.
//!
//! What is handed over and not written yet is counted, not bounded here: the caller stops while [`Progress::is_behind`].

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Sender},
    },
    thread::{self, JoinHandle},
};

/// Bytes handed over at a time.
const CHUNK: usize = 256 << 10;
/// Bytes that may wait to be written before the caller should stop.
const MOST: usize = 8 << 20;

/// The end that bytes go into. Flushed and dropped, the file is complete when the thread has ended.
pub struct Behind {
    chunk: Vec<u8>,
    to: Sender<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
}

/// The thread. Dropped, it ends after what it was given.
pub struct Progress {
    thread: Option<JoinHandle<io::Result<()>>>,
    waiting: Arc<AtomicUsize>,
}

/// Starts a thread that writes what comes to `file`.
///
/// # Errors
/// There can be no more threads.
pub fn start(mut file: impl Write + Send + 'static) -> io::Result<(Behind, Progress)> {
    let (to, from) = mpsc::channel::<Vec<u8>>();
    let waiting = Arc::new(AtomicUsize::new(0));
    let theirs = Arc::clone(&waiting);
    let thread = thread::Builder::new()
        .name("record file".to_owned())
        .spawn(move || {
            for chunk in from {
                file.write_all(&chunk)?;
                theirs.fetch_sub(chunk.len(), Ordering::AcqRel);
            }
            file.flush()
        })?;
    let behind = Behind {
        chunk: Vec::with_capacity(CHUNK),
        to,
        waiting: Arc::clone(&waiting),
    };
    let progress = Progress {
        thread: Some(thread),
        waiting,
    };
    Ok((behind, progress))
}

impl Write for Behind {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.chunk.extend_from_slice(bytes);
        if self.chunk.len() >= CHUNK {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK));
        self.waiting.fetch_add(chunk.len(), Ordering::AcqRel);
        // Then the thread has ended by an error, which `ended` has.
        self.to
            .send(chunk)
            .map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Progress {
    /// Whether so much waits that no more should be handed over now.
    pub fn is_behind(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
            && self.waiting.load(Ordering::Acquire) >= MOST
    }

    /// Whether the thread has ended: by itself once [`Behind`] is gone.
    ///
    /// # Errors
    /// It could not write; said once.
    pub fn ended(&mut self) -> io::Result<bool> {
        if self.thread.as_ref().is_some_and(|t| !t.is_finished()) {
            return Ok(false);
        }
        self.join().map(|()| true)
    }

    /// Waits for the thread, which has ended or is about to.
    ///
    /// # Errors
    /// It could not write; said once.
    pub fn join(&mut self) -> io::Result<()> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        thread
            .join()
            .map_err(|_| io::Error::other("the thread that writes it died"))?
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        time::{Duration, Instant},
    };

    use super::*;

    fn wait(progress: &mut Progress) -> io::Result<()> {
        let until = Instant::now() + Duration::from_secs(20);
        while !progress.ended()? {
            assert!(Instant::now() < until);
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    #[test]
    fn all_is_written_in_order() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        let (mut behind, mut progress) = start(File::create(&path).unwrap()).unwrap();
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i / 7) as u8).collect();
        for piece in bytes.chunks(997) {
            behind.write_all(piece).unwrap();
        }
        assert!(!progress.ended().unwrap());
        behind.flush().unwrap();
        drop(behind);
        wait(&mut progress).unwrap();
        assert!(std::fs::read(&path).unwrap() == bytes);
    }

    #[test]
    fn a_disk_that_waits_is_told_and_a_full_one_is_an_error() {
        // A pipe that nobody reads is full after 64 KiB.
        let (mut read, write) = io::pipe().unwrap();
        let (mut behind, mut progress) = start(write).unwrap();
        let mut given = 0;
        while !progress.is_behind() {
            behind.write_all(&[7; 4096]).unwrap();
            given += 4096;
            assert!(given < 2 * MOST);
        }
        behind.flush().unwrap();
        drop(behind);
        assert_eq!(io::copy(&mut read, &mut io::sink()).unwrap(), given as u64);
        wait(&mut progress).unwrap();
        assert!(!progress.is_behind());

        let full = File::options().write(true).open("/dev/full").unwrap();
        let (mut behind, mut progress) = start(full).unwrap();
        behind.write_all(&[7; CHUNK]).unwrap();
        drop(behind);
        let error = wait(&mut progress).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
