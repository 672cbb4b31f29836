//! Writes pcapng: one section, interfaces in nanoseconds, packets with comments.

use std::io::{self, Write};

use super::{Interface, LinkType, options};

/// Type of an Interface Description Block.
const INTERFACE: u32 = 1;
/// Type of an Enhanced Packet Block.
const ENHANCED: u32 = 6;
/// Type of a Section Header Block.
const SECTION: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// Length of a section that says none.
const NO_LENGTH: u64 = u64::MAX;

/// Writes a capture. Little-endian; it buffers one block, so `W` should buffer more.
pub struct PcapngWriter<W: Write> {
    out: W,
    block: Vec<u8>,
    interfaces: u32,
}

impl<W: Write> PcapngWriter<W> {
    /// Starts a capture; `comment` speaks of all of it, empty for none.
    ///
    /// # Errors
    /// If writing fails.
    pub fn new(out: W, comment: &str) -> io::Result<Self> {
        let mut writer = Self {
            out,
            block: Vec::new(),
            interfaces: 0,
        };
        writer.start(SECTION);
        writer.block.extend_from_slice(&BYTE_ORDER.to_le_bytes());
        writer.block.extend_from_slice(&[1, 0, 0, 0]);
        writer.block.extend_from_slice(&NO_LENGTH.to_le_bytes());
        let program = concat!("rocexdp ", env!("CARGO_PKG_VERSION"));
        options::put(&mut writer.block, options::SHB_USERAPPL, program.as_bytes());
        if !comment.is_empty() {
            options::put(&mut writer.block, options::COMMENT, comment.as_bytes());
        }
        options::end(&mut writer.block);
        writer.finish_block()?;
        Ok(writer)
    }

    /// Adds an interface; returns its index. `snaplen` 0: no limit.
    ///
    /// # Errors
    /// If writing fails.
    pub fn interface(&mut self, name: &str, link: LinkType, snaplen: u32) -> io::Result<u32> {
        self.start(INTERFACE);
        self.block.extend_from_slice(&link.number().to_le_bytes());
        self.block.extend_from_slice(&[0, 0]);
        self.block.extend_from_slice(&snaplen.to_le_bytes());
        if !name.is_empty() {
            options::put(&mut self.block, options::IF_NAME, name.as_bytes());
        }
        let nanoseconds = [options::Resolution::NANOSECONDS_OPTION];
        options::put(&mut self.block, options::IF_TSRESOL, &nanoseconds);
        options::end(&mut self.block);
        self.finish_block()?;
        self.interfaces += 1;
        Ok(self.interfaces - 1)
    }

    /// Adds the interfaces of a capture that is copied, from the first that isn't there yet.
    ///
    /// # Errors
    /// If writing fails.
    pub fn interfaces_of(&mut self, interfaces: &[Interface]) -> io::Result<()> {
        for interface in interfaces
            .get(self.interfaces as usize..)
            .unwrap_or_default()
        {
            self.interface(&interface.name, interface.link, interface.snaplen)?;
        }
        Ok(())
    }

    /// Writes a packet: `data` of the `wire_len` bytes it had. A time before 1970 is written as 0. A comment longer than
    /// an option (65 535 bytes) is cut.
    ///
    /// # Errors
    /// If writing fails, the interface is not there, or the packet doesn't fit a block.
    pub fn packet<'c>(
        &mut self,
        interface: u32,
        time_ns: i64,
        wire_len: u32,
        data: &[u8],
        comments: impl IntoIterator<Item = &'c str>,
    ) -> io::Result<()> {
        let captured = u32::try_from(data.len())
            .ok()
            .filter(|&n| n <= super::MAX_CAPTURED && interface < self.interfaces)
            .ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "a packet too long, or of an interface that was not written",
                )
            })?;
        let ticks = u64::try_from(time_ns).unwrap_or(0);
        self.start(ENHANCED);
        for word in [
            interface,
            (ticks >> 32) as u32,
            ticks as u32,
            captured,
            wire_len,
        ] {
            self.block.extend_from_slice(&word.to_le_bytes());
        }
        self.block.extend_from_slice(data);
        self.block.resize(self.block.len().next_multiple_of(4), 0);
        let bare = self.block.len();
        for comment in comments {
            options::put(&mut self.block, options::COMMENT, comment.as_bytes());
        }
        if self.block.len() != bare {
            options::end(&mut self.block);
        }
        self.finish_block()
    }

    /// Flushes, and gives the output back.
    ///
    /// # Errors
    /// If writing fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    /// Flushes what is written, for a reader that follows.
    ///
    /// # Errors
    /// If writing fails.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn start(&mut self, block_type: u32) {
        self.block.clear();
        self.block.extend_from_slice(&block_type.to_le_bytes());
        self.block.extend_from_slice(&[0; 4]);
    }

    fn finish_block(&mut self) -> io::Result<()> {
        let length = self.block.len() + 4;
        let length = u32::try_from(length)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a block of 4 GiB"))?
            .to_le_bytes();
        if let Some(field) = self.block.get_mut(4..8) {
            field.copy_from_slice(&length);
        }
        self.block.extend_from_slice(&length);
        self.out.write_all(&self.block)
    }
}
