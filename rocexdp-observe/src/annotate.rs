//! A capture copied with what was found as comments of its packets, for Wireshark and tshark (`frame.comment`).
//!
//! Findings are known at the end, comments stand at the packets, so that a capture is read twice: a file is opened again,
//! standard input is kept in a [`Spool`]. The copy is pcapng with nanoseconds, whatever the capture was; what pcapng has
//! beside packets (names, secrets, comments that were there) is not copied.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, Write},
    sync::{Arc, Mutex, PoisonError},
};

use crate::capture::{CaptureError, PcapngWriter, Reader};

/// Comments of one packet at most; what is more is counted in the last.
const MOST_PER_PACKET: usize = 32;

/// Texts by frame number.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    texts: Vec<String>,
    frames: BTreeMap<u64, Vec<u32>>,
    more: BTreeMap<u64, u32>,
}

impl Notes {
    /// No notes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a text to these frames.
    pub fn add(&mut self, frames: &[u64], text: &str) {
        let index = self.texts.len() as u32;
        for &frame in frames {
            let of_frame = self.frames.entry(frame).or_default();
            if of_frame.len() < MOST_PER_PACKET {
                of_frame.push(index);
            } else {
                *self.more.entry(frame).or_default() += 1;
            }
        }
        self.texts.push(text.to_owned());
    }

    /// Frames that have one.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.frames.len()
    }

    fn of(&self, frame: u64) -> impl Iterator<Item = &str> {
        self.frames
            .get(&frame)
            .into_iter()
            .flatten()
            .filter_map(|&index| self.texts.get(index as usize))
            .map(String::as_str)
    }
}

/// Why there is no whole copy.
#[derive(Debug, thiserror::Error)]
pub enum AnnotateError {
    /// Writing failed.
    #[error("writing the capture failed: {0}")]
    Write(#[source] io::Error),
    /// Reading it again failed.
    #[error("reading the capture again failed: {0}")]
    Read(#[source] CaptureError),
}

/// What was copied.
#[derive(Debug)]
pub struct Copied {
    /// Packets.
    pub packets: u64,
    /// Of these with comments.
    pub with_comments: u64,
    /// Why it ends where it ends, if the capture is cut or damaged there.
    pub end: Option<CaptureError>,
}

/// Copies all packets of `reader` that are read (see [`Reader::next`]), with their notes. `about` speaks of the whole.
///
/// # Errors
/// If reading or writing fails. That the capture is cut or damaged is told in [`Copied::end`]: it was so the first time.
pub fn copy<W: Write>(
    mut reader: Reader,
    notes: &Notes,
    about: &str,
    out: W,
) -> Result<(Copied, W), AnnotateError> {
    let mut writer = PcapngWriter::new(out, about).map_err(AnnotateError::Write)?;
    let mut copied = Copied {
        packets: 0,
        with_comments: 0,
        end: None,
    };
    let mut known = 0;
    loop {
        let (number, interface) = match reader.next() {
            Ok(Some(packet)) => (packet.number, packet.interface),
            Ok(None) => break,
            Err(e) if e.is_partial() => {
                copied.end = Some(e);
                break;
            }
            Err(e) => return Err(AnnotateError::Read(e)),
        };
        if interface as usize >= known {
            writer
                .interfaces_of(reader.interfaces())
                .map_err(AnnotateError::Write)?;
            known = reader.interfaces().len();
        }
        let Some(packet) = reader.last() else {
            break;
        };
        let more = notes.more.get(&number).map(|n| format!("and {n} more"));
        let comments = notes.of(number).chain(more.as_deref());
        writer
            .packet(
                packet.interface,
                packet.time_ns,
                packet.wire_len,
                packet.data,
                comments,
            )
            .map_err(AnnotateError::Write)?;
        copied.packets += 1;
        copied.with_comments += u64::from(notes.frames.contains_key(&number));
    }
    let out = writer.finish().map_err(AnnotateError::Write)?;
    Ok((copied, out))
}

/// Keeps a stream that can be read once only, to read it again: in a temporary file that has no name, so that nothing of
/// it stays behind. It is as large as the stream.
pub struct Spool {
    file: File,
    failed: Arc<Mutex<Option<io::Error>>>,
}

/// What passes is kept.
struct Tee<R> {
    source: R,
    file: File,
    failed: Arc<Mutex<Option<io::Error>>>,
    whole: bool,
}

impl<R: Read> Read for Tee<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.source.read(buffer)?;
        // A full disk ends the keeping, not the reading.
        if self.whole
            && let Err(e) = self.file.write_all(buffer.get(..n).unwrap_or_default())
        {
            self.whole = false;
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
        }
        Ok(n)
    }
}

impl Spool {
    /// Makes the file, where temporary files are (`TMPDIR`), and returns the stream to read instead of `source`.
    ///
    /// # Errors
    /// If it can't be made.
    pub fn of(
        source: impl Read + Send + 'static,
    ) -> io::Result<(Self, impl Read + Send + 'static)> {
        let file = tempfile::tempfile()?;
        let failed = Arc::new(Mutex::new(None));
        let tee = Tee {
            source,
            file: file.try_clone()?,
            failed: failed.clone(),
            whole: true,
        };
        Ok((Self { file, failed }, tee))
    }

    /// What was read, from its start. The first reader must be done.
    ///
    /// # Errors
    /// If not all could be kept.
    pub fn again(mut self) -> io::Result<File> {
        let failed = self
            .failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match failed {
            Some(e) => Err(e),
            None => {
                self.file.rewind()?;
                Ok(self.file)
            }
        }
    }
}
