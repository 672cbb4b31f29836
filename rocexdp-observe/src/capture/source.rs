//! Where a capture's bytes come from: a file, standard input or any reader; unpacked if gzip or zstd packed them.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::CaptureError;

/// Bytes looked at to tell how a stream is packed.
const MAGIC: usize = 4;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Read at once from a packed file.
const PACKED: usize = 64 * 1024;

/// How many bytes were read of how many.
#[derive(Clone, Default)]
pub(super) struct Progress {
    read: Arc<AtomicU64>,
    pub(super) total: Option<u64>,
}

impl Progress {
    pub(super) fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
}

/// Counts what passes.
struct Counted<R> {
    inner: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// Opens a file, or standard input for `-`.
pub(super) fn open(path: &Path) -> Result<(Box<dyn Read + Send>, Progress), CaptureError> {
    let failed = |source| CaptureError::Open {
        path: path.to_owned(),
        source,
    };
    if path.as_os_str() == "-" {
        return counted(io::stdin(), None);
    }
    let file = File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if about.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    counted(file, about.is_file().then_some(about.len()))
}

/// Wraps a reader: counted, and unpacked if it is packed.
pub(super) fn counted(
    source: impl Read + Send + 'static,
    total: Option<u64>,
) -> Result<(Box<dyn Read + Send>, Progress), CaptureError> {
    let progress = Progress {
        total,
        ..Progress::default()
    };
    let counted = Counted {
        inner: source,
        read: progress.read.clone(),
    };
    let source = unpacked(counted).map_err(|source| CaptureError::Io { offset: 0, source })?;
    Ok((source, progress))
}

fn unpacked(mut source: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    let mut magic = [0; MAGIC];
    let mut got = 0;
    while let Some(room) = magic.get_mut(got..).filter(|room| !room.is_empty()) {
        match source.read(room) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let start = magic.get(..got).unwrap_or_default();
    let (gzip, zstd) = (start.starts_with(&GZIP), start == ZSTD);
    let whole = io::Cursor::new(start.to_vec()).chain(source);
    Ok(if gzip {
        let packed = io::BufReader::with_capacity(PACKED, whole);
        Box::new(flate2::bufread::MultiGzDecoder::new(packed))
    } else if zstd {
        let packed = io::BufReader::with_capacity(PACKED, whole);
        Box::new(zstd::stream::read::Decoder::with_buffer(packed)?)
    } else {
        Box::new(whole)
    })
}
