//! Capture files: pcap and pcapng, read as a stream and written.
//!
//! [`Reader`] lends one packet after the other out of one buffer; its memory does not grow with the capture, whatever a
//! file says of itself. It takes files apart no further than to packets: what is in them is for [`rocexdp_common`]'s
//! parsers. Of the crates that read captures `pcap-file` and `pcap-parser` were measured (both as fast as this, 9 GB/s
//! from the page cache): neither passes over a large unknown block without storing it, tells where a cut is, or knows
//! the obsolete packet block, and the latter allocates for every packet that has options.

mod endian;
mod error;
mod link;
mod options;
mod pcap;
mod pcapng;
mod source;
mod window;
mod write;

use std::{
    fmt,
    io::{self, Read},
    path::Path,
};

use rocexdp_common::dissect::{Captured, Dissected, dissect, dissect_at, dissect_ip};

pub use error::CaptureError;
pub use link::LinkType;
pub use write::PcapngWriter;

use link::Start;
use pcap::Pcap;
use pcapng::Pcapng;
use source::Progress;
use window::Window;

/// Captured bytes of a packet at most: four times libpcap's largest snapshot length. More is a damaged file.
pub const MAX_CAPTURED: u32 = 1 << 20;
/// Interfaces of a file at most, over all its sections.
pub const MAX_INTERFACES: usize = 1 << 16;

/// A packet, lent until the next is asked for.
#[derive(Clone, Copy, Debug)]
pub struct PacketRef<'a> {
    /// Frame number in its file, from 1, as Wireshark counts.
    pub number: u64,
    /// Nanoseconds since 1970, as captured.
    pub time_ns: i64,
    /// Index into [`Reader::interfaces`].
    pub interface: u32,
    /// What `data` starts with.
    pub link: LinkType,
    /// Bytes it had on the wire; at least those captured.
    pub wire_len: u32,
    /// The bytes captured.
    pub data: &'a [u8],
}

impl PacketRef<'_> {
    /// Takes the packet apart; offsets are into `data`.
    pub fn dissect(&self) -> Dissected {
        let frame = Captured {
            data: self.data,
            wire_len: self.wire_len,
        };
        match link::start(self.link, self.data) {
            Start::Ethernet => dissect(&frame),
            Start::Ip => dissect_ip(&frame),
            Start::EtherType(at, ether_type) => dissect_at(&frame, at, ether_type),
            // Nothing to start from: told as a frame of which nothing was captured.
            Start::Unknown => dissect(&Captured { data: &[], ..frame }),
        }
    }

    /// Whether less was captured than was on the wire.
    pub const fn is_truncated(&self) -> bool {
        (self.data.len() as u64) < self.wire_len as u64
    }
}

/// An interface that packets were captured on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name; empty where the capture has none (pcap never has).
    pub name: String,
    /// What its packets start with.
    pub link: LinkType,
    /// Bytes captured of a packet at most; 0: no limit.
    pub snaplen: u32,
    /// Packets that the capturing system says it lost; `None`: it doesn't say (pcap never does).
    pub dropped: Option<u64>,
    /// Packets passed over because their link type is not read.
    pub skipped: u64,
}

/// A packet found by one of the formats: `len` bytes, `behind` bytes before where the window now starts.
#[derive(Clone, Copy)]
struct Found {
    time_ns: i64,
    interface: u32,
    link: LinkType,
    wire_len: u32,
    behind: usize,
    len: usize,
}

enum Format {
    Pcap(Pcap),
    Pcapng(Pcapng),
}

/// Reads a capture: pcap (microseconds, nanoseconds, modified; both byte orders) or pcapng, packed with gzip or zstd or not.
pub struct Reader {
    window: Window,
    progress: Progress,
    format: Format,
    interfaces: Vec<Interface>,
    frame: u64,
    last: Option<Found>,
    done: bool,
}

impl Reader {
    /// Opens a file; `-` is standard input.
    ///
    /// # Errors
    /// [`CaptureError::Open`] if it can't be opened; else as [`Reader::from_reader`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CaptureError> {
        let (source, progress) = source::open(path.as_ref())?;
        Self::new(source, progress)
    }

    /// Reads a capture from any reader.
    ///
    /// # Errors
    /// If it is no capture, of a kind that is not read, or ends within its header.
    pub fn from_reader(source: impl Read + Send + 'static) -> Result<Self, CaptureError> {
        let (source, progress) = source::counted(source, None)?;
        Self::new(source, progress)
    }

    fn new(source: Box<dyn Read + Send>, progress: Progress) -> Result<Self, CaptureError> {
        let mut window = Window::new(source);
        let magic = window.peek::<4>().map_err(|e| error_at(&window, e, 1))?;
        let mut interfaces = Vec::new();
        let format = match magic {
            Some(magic) if Pcap::is(magic) => {
                let pcap = Pcap::open(&mut window)?;
                interfaces.push(Interface {
                    name: String::new(),
                    link: pcap.link,
                    snaplen: pcap.snaplen,
                    dropped: None,
                    skipped: 0,
                });
                Format::Pcap(pcap)
            }
            Some(pcapng::SECTION) => Format::Pcapng(Pcapng::new()),
            _ => return Err(CaptureError::NotACapture(looks_like(window.available()))),
        };
        Ok(Self {
            window,
            progress,
            format,
            interfaces,
            frame: 0,
            last: None,
            done: false,
        })
    }

    /// The next packet; `None` at the end. Packets of interfaces whose link type is not read are passed over and counted
    /// ([`Reader::warnings`]).
    ///
    /// # Errors
    /// If the capture is cut or damaged, or reading fails: after that there are no more packets. At the end of a capture
    /// none of whose packets could be read because of their link type: [`CaptureError::Link`].
    #[expect(
        clippy::should_implement_trait,
        reason = "it lends, which an Iterator can't"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<Option<PacketRef<'_>>, CaptureError> {
        if self.done {
            return Ok(None);
        }
        let found = match &mut self.format {
            Format::Pcap(pcap) => {
                let found = pcap.next(&mut self.window, self.frame + 1);
                self.frame += u64::from(matches!(found, Ok(Some(_))));
                found
            }
            Format::Pcapng(pcapng) => {
                pcapng.next(&mut self.window, &mut self.interfaces, &mut self.frame)
            }
        };
        match found {
            Ok(Some(found)) => {
                self.last = Some(found);
                Ok(self.last())
            }
            Ok(None) => {
                (self.done, self.last) = (true, None);
                self.nothing_read().map_or(Ok(None), Err)
            }
            Err(e) => {
                (self.done, self.last) = (true, None);
                Err(e)
            }
        }
    }

    /// The packet read last, again: a borrow that leaves the reader's other questions free in between.
    #[inline]
    pub fn last(&self) -> Option<PacketRef<'_>> {
        let found = self.last?;
        Some(PacketRef {
            number: self.frame,
            time_ns: found.time_ns,
            interface: found.interface,
            link: found.link,
            wire_len: found.wire_len,
            data: self.window.consumed(found.behind, found.len),
        })
    }

    /// The error of a capture all of whose packets were passed over.
    fn nothing_read(&self) -> Option<CaptureError> {
        let skipped: u64 = self.interfaces.iter().map(|i| i.skipped).sum();
        let first = self.interfaces.iter().find(|i| i.skipped != 0)?;
        (skipped == self.frame).then_some(CaptureError::Link(first.link))
    }

    /// The interfaces known so far; in pcapng more may come.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Number of the frame read last.
    pub const fn frames(&self) -> u64 {
        self.frame
    }

    /// Bytes read of the file, packed as it may be; read ahead of the packets by at most a buffer.
    pub fn bytes_read(&self) -> u64 {
        self.progress.read()
    }

    /// Bytes of the file; `None` for standard input, pipes and other readers.
    pub const fn total_bytes(&self) -> Option<u64> {
        self.progress.total
    }

    /// Packets that the capturing system says it lost; `None`: the capture doesn't say.
    pub fn dropped(&self) -> Option<u64> {
        self.interfaces
            .iter()
            .filter_map(|i| i.dropped)
            .reduce(u64::saturating_add)
    }

    /// What a reader of the report should know of the capture so far, in words.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (index, interface) in self.interfaces.iter().enumerate() {
            let name = Named(index, interface);
            if interface.skipped != 0 {
                warnings.push(format!(
                    "{} packets of {name} were passed over: packets of {} are not read",
                    interface.skipped, interface.link
                ));
            }
            if let Some(dropped @ 1..) = interface.dropped {
                warnings.push(format!(
                    "the capturing system lost {dropped} packets of {name}: gaps may be its own"
                ));
            }
            if warnings.len() >= MAX_WARNINGS {
                warnings.push("more interfaces have warnings".into());
                break;
            }
        }
        if let Format::Pcapng(Pcapng {
            timeless: timeless @ 1..,
            ..
        }) = self.format
        {
            warnings.push(format!(
                "{timeless} packets have no time (simple packet blocks): the time of the packet before is taken"
            ));
        }
        warnings
    }
}

/// Warnings about interfaces at most.
const MAX_WARNINGS: usize = 16;

/// An interface as it is spoken of.
struct Named<'a>(usize, &'a Interface);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1.name.as_str() {
            "" => write!(f, "interface {}", self.0),
            name => write!(f, "interface {} ({})", self.0, name.escape_debug()),
        }
    }
}

/// Names what a file that is no capture seems to be.
fn looks_like(start: &[u8]) -> String {
    match start.get(..4.min(start.len())).unwrap_or_default() {
        [] => "it is empty".into(),
        [_] | [_, _] | [_, _, _] => "it has less than four bytes".into(),
        b"\xfd7zX" => "it is packed with xz".into(),
        b"BZh0" | b"BZh1" | b"BZh2" | b"BZh3" | b"BZh4" | b"BZh5" | b"BZh6" | b"BZh7" | b"BZh8"
        | b"BZh9" => "it is packed with bzip2".into(),
        b"PK\x03\x04" => "it is a zip archive".into(),
        b"snoo" => "it is a snoop file".into(),
        [a, b, c, d] => format!("it starts with {a:02x} {b:02x} {c:02x} {d:02x}"),
        _ => "it starts with nothing known".into(),
    }
}

/// The error of a failed read: a packed file that ends early or is broken ends the capture there.
fn error_at(window: &Window, source: io::Error, frame: u64) -> CaptureError {
    let offset = window.offset();
    match source.kind() {
        io::ErrorKind::UnexpectedEof => CaptureError::Cut { frame, offset },
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => CaptureError::Damaged {
            frame,
            offset,
            what: format!("unpacking failed: {source}"),
        },
        _ => CaptureError::Io { offset, source },
    }
}
