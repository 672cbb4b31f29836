//! A moving window over a stream: one buffer, reused, from which packets are lent.
//!
//! Grows only to what [`Window::fill`] asks for, which the formats bound; skips without storing.

use std::io::{self, Read};

/// Bytes read at once: small enough for a second-level cache, large enough that system calls don't count.
const USUAL: usize = 256 * 1024;

/// The window.
pub(super) struct Window {
    source: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of the stream before `start`.
    offset: u64,
}

impl Window {
    pub(super) fn new(source: Box<dyn Read + Send>) -> Self {
        Self {
            source,
            buffer: vec![0; USUAL],
            start: 0,
            end: 0,
            offset: 0,
        }
    }

    /// Bytes of the stream consumed.
    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes there without reading.
    pub(super) fn available(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// Makes `n` bytes available; `false`: the stream ends before. Reads no further than it must, so that a live stream
    /// is not waited for.
    pub(super) fn fill(&mut self, n: usize) -> io::Result<bool> {
        if self.end - self.start >= n {
            return Ok(true);
        }
        self.fill_slowly(n)
    }

    #[cold]
    fn fill_slowly(&mut self, n: usize) -> io::Result<bool> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if n > self.buffer.len() {
            self.buffer.resize(n, 0);
        }
        while self.end < n {
            let room = self.buffer.get_mut(self.end..).unwrap_or_default();
            match self.source.read(room) {
                Ok(0) => return Ok(false),
                Ok(read) => self.end += read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// The first `N` bytes, if they are there or can be read.
    #[inline]
    pub(super) fn peek<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        Ok(if self.fill(N)? {
            self.available().first_chunk().copied()
        } else {
            None
        })
    }

    /// Consumes `n` bytes that are available.
    #[inline]
    pub(super) fn consume(&mut self, n: usize) {
        let n = n.min(self.end - self.start);
        self.start += n;
        self.offset += n as u64;
    }

    /// Consumes `n` bytes, reading what is not there and storing none of it; `false`: the stream ends before.
    pub(super) fn skip(&mut self, n: u64) -> io::Result<bool> {
        let mut rest = n;
        loop {
            let here = (self.end - self.start) as u64;
            if rest <= here {
                self.consume(rest as usize);
                return Ok(true);
            }
            self.consume(here as usize);
            rest -= here;
            if !self.fill(1)? {
                return Ok(false);
            }
        }
    }

    /// The `len` bytes that were consumed last but `behind`: they stay until the next [`Window::fill`].
    #[inline]
    pub(super) fn consumed(&self, behind: usize, len: usize) -> &[u8] {
        self.start
            .checked_sub(behind)
            .and_then(|from| self.buffer.get(from..from.checked_add(len)?))
            .unwrap_or_default()
    }
}
