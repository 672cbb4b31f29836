//! Captures: what is sent into a link, as a nanosecond pcap has it.
//!
//! Payload that hosts do not keep is not in a capture either: a record then holds fewer bytes than the packet has, as with a short
//! snap length. Format: <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-04.html> (magic 0xa1b23c4d, Ethernet).
//!
//! Must not: open a file.

use super::link::{Item, PAUSE_FRAME, PauseFrame};
use super::{Host, Network, Packet};
use crate::picos::Picos;
use crate::switch::Queued;
use crate::topology::LinkId;

/// A frame that is about to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Tapped<'a> {
    /// When its first bit leaves.
    pub at: Picos,
    /// The link.
    pub link: LinkId,
    /// The end that sends, 0 or 1.
    pub end: usize,
    /// The frame, as far as it is kept.
    pub frame: &'a [u8],
    /// Bytes that it has, without what Ethernet adds.
    pub len: u32,
}

/// Who is told.
pub type Tap = Box<dyn FnMut(&Tapped<'_>) + Send>;

/// A tap and the frame that is shown to it.
pub(super) struct Taps {
    tap: Tap,
    frame: Vec<u8>,
}

impl<H: Host> Network<H> {
    /// From now on `tap` is shown what [`Network::tap`] asked for.
    pub fn set_tap(&mut self, tap: Tap) {
        self.taps = Some(Taps {
            tap,
            frame: Vec::new(),
        });
    }

    /// Whether what is sent into an end of a link, 0 or 1, is shown. Links that are not cost nothing.
    ///
    /// # Panics
    /// If there is no such link or end.
    pub fn tap(&mut self, link: LinkId, end: usize, shown: bool) {
        assert!(end < 2, "a link has two ends");
        self.directions[2 * link.0 as usize + end].tapped = shown;
    }

    #[cold]
    pub(super) fn show(&mut self, d: usize, item: &Item<H::Packet>) {
        let Some(Taps { tap, frame }) = &mut self.taps else {
            return;
        };
        frame.clear();
        let len = match item {
            Item::Packet(packet) => {
                packet.write_frame(frame);
                packet.wire_len()
            }
            Item::Pause(pause) => {
                pause.write_frame(frame);
                PAUSE_FRAME
            }
        };
        tap(&Tapped {
            at: self.now,
            link: LinkId(d as u32 / 2),
            end: d % 2,
            frame,
            len,
        });
    }
}

impl PauseFrame {
    /// The frame as it is on the wire, without FCS (IEEE 802.1Qbb; opcode 0x0101). The sender has no address, and a pause
    /// without an end is shown with the longest there is.
    fn write_frame(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 0]);
        out.extend_from_slice(&[0x88, 0x08, 0x01, 0x01, 0, self.classes]);
        for (priority, quanta) in self.quanta.iter().enumerate() {
            let endless = self.endless & 1 << priority != 0;
            out.extend_from_slice(&if endless { u16::MAX } else { *quanta }.to_be_bytes());
        }
        out.resize(PAUSE_FRAME as usize, 0);
    }
}

/// What a nanosecond pcap of Ethernet frames starts with.
#[must_use]
pub fn pcap_header() -> [u8; 24] {
    let mut header = [0; 24];
    header[..4].copy_from_slice(&0xa1b2_3c4d_u32.to_le_bytes());
    header[4..6].copy_from_slice(&2_u16.to_le_bytes());
    header[6..8].copy_from_slice(&4_u16.to_le_bytes());
    header[16..20].copy_from_slice(&65_535_u32.to_le_bytes());
    header[20..].copy_from_slice(&1_u32.to_le_bytes());
    header
}

impl Tapped<'_> {
    /// What stands before the frame in a pcap.
    #[must_use]
    pub fn pcap_record(&self) -> [u8; 16] {
        const NS: u64 = 1_000_000_000;
        let ns = self.at.as_nanos();
        let words = [
            (ns / NS) as u32,
            (ns % NS) as u32,
            self.frame.len() as u32,
            self.len,
        ];
        let mut record = [0; 16];
        for (bytes, word) in record.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        record
    }
}
