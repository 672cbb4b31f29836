//! Extension headers that are right, or have something arbitrary about them, and frames that were damaged. Must not: know in what
//! state the receiver is.

use rocexdp_common::headers::{Aeth, AtomicEth, Feth, FlushRange, Reth, Syndrome};
use rocexdp_common::opcode::ext;
use rocexdp_proto::mem::MemoryRegion;
use rocexdp_proto::wire::Icrc;

use super::choices::Choices;

/// What is arbitrary about a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Odd {
    Nothing,
    Opcode,
    Psn,
    Payload,
    /// Address, key, or syndrome.
    Place,
    Length,
    Flags,
}

/// The extension headers of this set, in their order on the wire.
pub fn extensions(
    c: &mut impl Choices,
    regions: &[MemoryRegion; 3],
    set: u16,
    odd: Odd,
    total: u32,
    qkey: u32,
) -> Vec<u8> {
    let (mut grant, mut length) = (0, total);
    if odd == Odd::Place {
        grant = c.of(&[0, 1, 2]);
    }
    let region = &regions[grant];
    let (mut rkey, mut va) = (region.rkey.0, region.va);
    match (odd, c.below(8)) {
        (Odd::Place, 0) => rkey = c.below(1 << 32) as u32,
        (Odd::Place, 1) => va = c.word(),
        (Odd::Place, 2) => va -= 4,
        (Odd::Place, 3) => va += region.len - 8,
        (Odd::Place, 4) => va += 4,
        _ => {}
    }
    if odd == Odd::Length {
        let len = region.len as u32;
        length = c.of(&[len, 256, 1024, 0, len + 1, 0x8000_0000, u32::MAX, 1]);
    }
    let mut out = Vec::new();
    let mut push = |bit: u16, bytes: &[u8]| {
        if set & bit != 0 {
            out.extend_from_slice(bytes);
        }
    };
    let any: Vec<u8> = (0..40).map(|_| c.below(256) as u8).collect();
    push(ext::SRETH, &any[..8]);
    push(ext::RDETH, &any[..4]);
    let mut deth = [0; 8];
    deth.copy_from_slice(&any[..8]);
    if odd != Odd::Place {
        deth[..4].copy_from_slice(&qkey.to_be_bytes());
    }
    push(ext::DETH, &deth);
    push(ext::XRCETH, &any[..4]);
    let mut bytes = [0; Feth::LEN];
    Feth {
        global_visibility: odd != Odd::Place || any[0] & 1 != 0,
        persistence: odd == Odd::Place && any[0] & 2 != 0,
        placement_reserved: 0,
        selectivity: match odd {
            Odd::Place => c.of(&[FlushRange::Range, FlushRange::Reserved(2)]),
            _ => c.of(&[FlushRange::Range, FlushRange::Region]),
        },
    }
    .emit(&mut bytes);
    push(ext::FETH, &bytes);
    let mut bytes = [0; 16];
    Reth { va, rkey, length }.emit(&mut bytes);
    push(ext::RETH, &bytes);
    let mut bytes = [0; AtomicEth::LEN];
    AtomicEth {
        va,
        rkey,
        swap_or_add: 0xcccc_cccc_cccc_cccc,
        compare: 0x3030_3030_3030_3030,
    }
    .emit(&mut bytes);
    push(ext::ATOMIC, &bytes);
    let syndrome = match c.below(if odd == Odd::Place { 3 } else { 24 }) {
        0 => Syndrome::NakSequence,
        1 => Syndrome::RnrNak(c.below(32) as u8),
        2 => c.of(&[
            Syndrome::NakInvalidRequest,
            Syndrome::NakRemoteAccess,
            Syndrome::NakRemoteOperational,
            Syndrome::NakInvalidRd,
            Syndrome::Reserved(0x47),
        ]),
        _ => Syndrome::Ack(0x1f),
    };
    let mut bytes = [0; Aeth::LEN];
    let msn = c.below(16) as u32;
    Aeth { syndrome, msn }.emit(&mut bytes);
    push(ext::AETH, &bytes);
    push(ext::SACK, &any);
    push(ext::ATOMIC_ACK, &any[..8]);
    push(ext::IMM, &any[..4]);
    // A window's key, where there is one: no region can be invalidated.
    let withdrawn = if odd == Odd::Place {
        rkey
    } else {
        regions[1].rkey.0
    };
    push(ext::IETH, &withdrawn.to_be_bytes());
    out
}

/// Changes or cuts off bytes, at will.
pub fn damage(frame: &mut Vec<u8>, c: &mut impl Choices) {
    for _ in 0..1 + c.below(3) {
        let at = c.below(frame.len().min(256) as u64) as usize;
        frame[at] = c.below(256) as u8;
    }
    if c.once_in(4) {
        frame.truncate(c.below(frame.len().min(256) as u64) as usize);
    }
}

/// Changes bytes of the transport's headers, and makes the ICRC right again. Of a frame over IPv4 without options or tags.
pub fn mutate(frame: &mut [u8], c: &mut impl Choices) {
    let end = (frame.len() - 4).min(BTH + 12 + 48);
    for _ in 0..1 + c.below(2) {
        let at = if c.once_in(4) {
            // Opcode, pad, AckReq, and the low byte of the PSN.
            BTH + c.of(&[0, 1, 8, 11])
        } else {
            (BTH + 12 + c.below(48) as usize).min(end - 1)
        };
        frame[at] = match c.below(4) {
            0 => frame[at].wrapping_add(1),
            1 => frame[at].wrapping_sub(1),
            2 => frame[at] ^ 1 << c.below(8),
            _ => c.below(256) as u8,
        };
    }
    seal(frame);
}

/// Comes from, or goes to, another address, with all checksums right: the halves of one are exchanged.
pub fn elsewhere(frame: &mut [u8], c: &mut impl Choices) {
    let at = c.of(&[26, 30]);
    let (front, back) = frame[at..at + 4].split_at_mut(2);
    front.swap_with_slice(back);
    seal(frame);
}

/// Offset of the BTH behind Ethernet, IPv4 and UDP.
const BTH: usize = 14 + 20 + 8;

fn seal(frame: &mut [u8]) {
    let end = frame.len() - 4;
    let mut crc = Icrc::over_headers(&frame[14..BTH + 12], 20).expect("IPv4 and the BTH");
    crc.update(&frame[BTH + 12..end]);
    frame[end..].copy_from_slice(&crc.finish());
}
