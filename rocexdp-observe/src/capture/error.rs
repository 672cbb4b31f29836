//! What can be wrong with a capture, in words that say what to do.

use std::{io, path::PathBuf};

use super::LinkType;

/// Why no more packets come. What was read before stays right.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file can't be opened.
    #[error("can't open {}: {source}", path.display())]
    Open {
        /// Its name.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Reading failed.
    #[error("reading failed at byte {offset}: {source}")]
    Io {
        /// Bytes of the (unpacked) capture read before.
        offset: u64,
        /// What the system says.
        source: io::Error,
    },
    /// Neither pcap nor pcapng.
    #[error("no capture: {0}; pcap and pcapng are read, as they are or packed with gzip or zstd")]
    NotACapture(String),
    /// A kind of capture that is not read.
    #[error("{0}")]
    Unsupported(String),
    /// Packets whose start is not known.
    #[error(
        "packets of {0} are not read: Ethernet, raw IP and Linux cooked captures are{hint}",
        hint = link_hint(*.0)
    )]
    Link(LinkType),
    /// The capture ends within a packet.
    #[error("the capture is cut in frame {frame}, at byte {offset}: {frames} were read", frames = frames_before(*.frame))]
    Cut {
        /// Number of the frame that is missing or cut, from 1.
        frame: u64,
        /// Where its record starts, in bytes of the (unpacked) capture.
        offset: u64,
    },
    /// The capture contradicts itself: what follows can't be found.
    #[error("the capture is damaged at byte {offset}, in or before frame {frame}: {what}; {frames} were read", frames = frames_before(*.frame))]
    Damaged {
        /// Number of the frame that would have come, from 1.
        frame: u64,
        /// Where the damaged record starts, in bytes of the (unpacked) capture.
        offset: u64,
        /// What is wrong.
        what: String,
    },
}

impl CaptureError {
    /// Whether it ends a capture that was good so far, so that what was read before is worth a report.
    pub const fn is_partial(&self) -> bool {
        matches!(
            self,
            Self::Cut { .. } | Self::Damaged { .. } | Self::Io { .. }
        )
    }
}

fn frames_before(frame: u64) -> String {
    match frame.saturating_sub(1) {
        0 => "no frames before it".into(),
        1 => "1 frame before it".into(),
        n => format!("{n} frames before it"),
    }
}

fn link_hint(link: LinkType) -> &'static str {
    match link {
        LinkType::Other(247 | 197) => {
            " (InfiniBand's own packets are not RoCE: capture on an Ethernet port)"
        }
        LinkType::Other(0 | 108) => " (capture on the interface itself, not on the loopback)",
        _ => "",
    }
}
