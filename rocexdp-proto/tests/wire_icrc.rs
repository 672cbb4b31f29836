//! The invariant CRC against frames of hardware and software senders, and whole received frames of odd but valid form.
//!
//! Vectors: ConnectX-4 Lx (CNP) and RoCEv1 frames from secdev/scapy's `test/contrib/roce.uts`, Huawei hns from the
//! capture in oferby/proxy.

use rocexdp_proto::DropReason;
use rocexdp_proto::wire::{Head, Icrc, Packet};

const CX4LX_CNP: &str = "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b7002800008100ffff40000118000000000000000000000000000000000000000082fd002a";
const ROCEV1_WRITE_ONLY: &str = "7cfe90753cd87cfe90753cd889156020000000281b4000000000000000000000ffff0f00000200000000000000000000ffff0f0000020a70ffff0000010a80a788bc000055d4c0726000000047b3000000050000000001000000e3d856bb";
const ROCEV1_ACK: &str = "7cfe90753cd87cfe90753cd889156020000000141b4000000000000000000000ffff0f00000200000000000000000000ffff0f0000021140ffff0000010900a788c00000000525f0c038";
const HNS_SEND_ONLY_IMM: &str = "183d5ebf5192183d5ebf43710800450200c00000400040112cd0c0a84604c0a84606004512b700ac00000570ffff100000488000000000000001474554202f20485454502f312e310d0a557365722d4167656e743a20576765742f312e31392e3520286c696e75782d676e75290d0a4163636570743a202a2f2a0d0a4163636570742d456e636f64696e673a206964656e746974790d0a486f73743a206c6f63616c686f73743a383538350d0a436f6e6e656374696f6e3a204b6565702d416c6976650d0a0d0a00000072c340a7";
const HNS_ACK: &str = "183d5ebf4371183d5ebf51920800450200300000400040112d60c0a84606c0a84604004812b7001c00001140ffff000000450000000006000001259cc216";

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2)
        .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
        .collect()
}

/// Whether the frame parses, and its ICRC is right, in one piece and cut at every byte.
fn right(frame: &[u8]) -> Result<bool, DropReason> {
    let whole = |pieces: &[&[u8]]| {
        let head = Head::of(pieces);
        Packet::parse(&head, pieces).map(|p| p.icrc_is_right(&head))
    };
    let result = whole(&[frame]);
    for cut in 0..=frame.len() {
        let (a, b) = frame.split_at(cut);
        assert_eq!(whole(&[a, b]), result, "cut at {cut}");
    }
    assert_eq!(
        whole(&frame.chunks(1).collect::<Vec<_>>()),
        result,
        "byte by byte"
    );
    result
}

/// Puts the right ICRC at the end of a frame whose IP header is at `ip` and UDP header at `udp`.
fn seal(frame: &mut [u8], ip: usize, udp: usize) {
    let end = frame.len() - 4;
    let bth = udp + 8 + 12;
    let Some(mut crc) = Icrc::over_headers(&frame[ip..bth], udp - ip) else {
        return;
    };
    crc.update(&frame[bth..end]);
    let crc = crc.finish();
    frame[end..].copy_from_slice(&crc);
}

fn ipv4_checksum(frame: &mut [u8], ip: usize) {
    let len = usize::from(frame[ip] & 0xf) * 4;
    frame[ip + 10..ip + 12].fill(0);
    let sum: u32 = frame[ip..ip + len]
        .chunks(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    frame[ip + 10..ip + 12]
        .copy_from_slice(&(!(((sum & 0xffff) + (sum >> 16)) as u16)).to_be_bytes());
}

#[test]
fn every_rocev2_vector_is_right_and_any_changed_byte_is_not() {
    for (name, hex) in [
        ("CX-4 Lx CNP", CX4LX_CNP),
        ("hns SEND", HNS_SEND_ONLY_IMM),
        ("hns ACK", HNS_ACK),
    ] {
        let frame = bytes(hex);
        assert_eq!(right(&frame), Ok(true), "{name}");
        // From the BTH on everything is covered but byte 4 of the BTH.
        for at in 42..frame.len() {
            let mut changed = frame.clone();
            changed[at] ^= 0x10;
            let pieces: [&[u8]; 1] = [&changed];
            let head = Head::of(&pieces);
            if let Ok(p) = Packet::parse(&head, &pieces) {
                assert_eq!(p.icrc_is_right(&head), at == 46, "{name}: byte {at}");
            }
        }
    }
}

/// RoCEv1: a GRH where RoCEv2 has IPv6, and no UDP. The transport does not take it; the CRC's rules are the same.
#[test]
fn the_rocev1_vectors_are_right_too() {
    for hex in [ROCEV1_WRITE_ONLY, ROCEV1_ACK] {
        let frame = bytes(hex);
        let (body, icrc) = frame.split_at(frame.len() - 4);
        let mut masked = body[14..].to_vec();
        masked[..4].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff]);
        masked[7] = 0xff;
        masked[40 + 4] = 0xff;
        assert_eq!(Icrc::seeded(&masked).finish(), icrc);
    }
}

#[test]
fn what_routers_change_leaves_the_icrc_right() {
    let mut frame = bytes(HNS_SEND_ONLY_IMM);
    frame[15] = 0x8b; // TOS, with CE
    frame[22] = 3; // TTL
    ipv4_checksum(&mut frame, 14);
    frame[40..42].copy_from_slice(&[0x12, 0x34]); // UDP checksum
    frame[46] = 0xff; // FECN, BECN, reserved
    assert_eq!(right(&frame), Ok(true));
}

#[test]
fn tags_options_and_trailing_bytes_are_stepped_over() {
    let plain = bytes(HNS_SEND_ONLY_IMM);
    for tags in ["81000000", "81000064", "88a8006481000065"] {
        let mut frame = plain.clone();
        frame.splice(12..12, bytes(tags));
        assert_eq!(right(&frame), Ok(true), "{tags}");
    }
    let mut three = plain.clone();
    three.splice(12..12, bytes("88a80064810000658100000a"));
    assert_eq!(right(&three), Err(DropReason::VlanDepth));

    // Ethernet's minimum length or an FCS behind the packet.
    let mut longer = plain.clone();
    longer.extend_from_slice(&[0xaa; 7]);
    assert_eq!(right(&longer), Ok(true));

    // IPv4 options: two more words of header, covered as they are.
    let mut options = plain.clone();
    options.splice(34..34, [1, 1, 1, 1, 0x44, 4, 5, 0]);
    options[14] = 0x47;
    options[16..18].copy_from_slice(&(0xc0u16 + 8).to_be_bytes());
    ipv4_checksum(&mut options, 14);
    seal(&mut options, 14, 42);
    assert_eq!(right(&options), Ok(true));
}

/// The hns frame over IPv6, with these extension headers (type, bytes).
fn over_ipv6(extensions: &[(u8, usize)]) -> Vec<u8> {
    let plain = bytes(HNS_SEND_ONLY_IMM);
    let udp = &plain[34..];
    let mut frame = plain[..12].to_vec();
    frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0x20, 0, 1]);
    let len: usize = extensions.iter().map(|(_, n)| n).sum::<usize>() + udp.len();
    frame.extend_from_slice(&(len as u16).to_be_bytes());
    frame.push(extensions.first().map_or(17, |e| e.0));
    frame.push(64);
    frame.extend_from_slice(&[0xfd; 16]);
    frame.extend_from_slice(&[0xfe; 16]);
    for (i, (_, n)) in extensions.iter().enumerate() {
        let mut ext = vec![0; *n];
        ext[0] = extensions.get(i + 1).map_or(17, |e| e.0);
        ext[1] = (n / 8 - 1) as u8;
        frame.extend_from_slice(&ext);
    }
    frame.extend_from_slice(udp);
    let udp_at = frame.len() - udp.len();
    seal(&mut frame, 14, udp_at);
    frame
}

#[test]
fn ipv6_extension_headers_are_stepped_over_and_covered() {
    assert_eq!(right(&over_ipv6(&[])), Ok(true));
    for extensions in [&[(0, 8)][..], &[(0, 8), (43, 24), (60, 16)], &[(60, 8); 4]] {
        let frame = over_ipv6(extensions);
        assert_eq!(right(&frame), Ok(true), "{extensions:?}");
        let mut changed = frame.clone();
        changed[14 + 40 + 6] ^= 1;
        assert_eq!(right(&changed), Ok(false), "an extension header is covered");
    }
    assert_eq!(
        right(&over_ipv6(&[(60, 8); 5])),
        Err(DropReason::Ipv6Extension)
    );
    assert_eq!(
        right(&over_ipv6(&[(0, 512)])),
        Err(DropReason::Ipv6Extension),
        "headers longer than are looked at"
    );
    assert_eq!(right(&over_ipv6(&[(44, 8)])), Err(DropReason::Ipv6Fragment));
}

#[test]
fn lengths_that_disagree_are_refused() {
    let plain = bytes(HNS_ACK);
    let with = |at: usize, value: &[u8]| {
        let mut frame = plain.clone();
        frame[at..at + value.len()].copy_from_slice(value);
        ipv4_checksum(&mut frame, 14);
        right(&frame)
    };
    assert_eq!(
        with(16, &[0, 0x31]),
        Err(DropReason::Ipv4Length),
        "IP longer than the frame"
    );
    assert_eq!(
        with(16, &[0, 19]),
        Err(DropReason::Ipv4Length),
        "IP shorter than its header"
    );
    assert_eq!(
        with(38, &[0, 0x1b]),
        Err(DropReason::UdpLength),
        "UDP shorter than IP"
    );
    assert_eq!(
        with(38, &[0, 0x1d]),
        Err(DropReason::UdpLength),
        "UDP longer than IP"
    );
    assert_eq!(with(20, &[0x20, 0]), Err(DropReason::Ipv4Fragment));
    assert_eq!(with(20, &[0, 1]), Err(DropReason::Ipv4Fragment));
    assert_eq!(with(14, &[0x44]), Err(DropReason::Ipv4Malformed));
    assert_eq!(with(23, &[6]), Err(DropReason::NotUdp));
    assert_eq!(with(36, &[0x12, 0xb8]), Err(DropReason::NotRoce));
    assert_eq!(with(12, &[8, 6]), Err(DropReason::NotIp));
    assert_eq!(with(42, &[0x1f]), Err(DropReason::UnknownOpcode));
    assert_eq!(with(43, &[0x41]), Err(DropReason::BthVersion));
    let mut bad = plain.clone();
    bad[24] ^= 1;
    assert_eq!(right(&bad), Err(DropReason::Ipv4Checksum));

    // A READ response LAST with AETH only just fits; an opcode with RETH does not.
    assert_eq!(with(42, &[0x0f]).map(|_| ()), Ok(()));
    assert_eq!(with(42, &[0x0a]), Err(DropReason::ExtensionTruncated));
    assert_eq!(
        with(43, &[0x70]),
        Err(DropReason::ExtensionTruncated),
        "pad longer than the payload"
    );

    // Cut short anywhere: some reason, never a packet.
    for len in 0..plain.len() {
        assert!(right(&plain[..len]).is_err(), "{len} B");
    }
    let mut short = plain[..54].to_vec();
    short[16..18].copy_from_slice(&40u16.to_be_bytes());
    short[38..40].copy_from_slice(&20u16.to_be_bytes());
    ipv4_checksum(&mut short, 14);
    assert_eq!(right(&short), Err(DropReason::BthTruncated));
}

/// The processor decides at run time which code computes the CRC: with carry-less multiply, wide or narrow, or from tables.
/// All of them must be the same function, whatever the length and wherever the bytes are cut.
#[test]
fn the_icrc_is_the_same_without_carry_less_multiply() {
    let bytes: Vec<u8> = (0..5000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let seed = !0xdebb_20e3_u32;
    let tables = |bytes: &[u8]| {
        let mut crc = crc32fast::Hasher::internal_new_baseline(seed, 0);
        crc.update(bytes);
        crc.finalize().to_le_bytes()
    };
    let bitwise = |bytes: &[u8]| {
        let mut crc = !seed;
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
            }
        }
        (!crc).to_le_bytes()
    };
    for len in (0..600).chain([1023, 1024, 1025, 4095, 4096, 4097, 4999]) {
        let part = &bytes[..len];
        let expected = tables(part);
        assert_eq!(Icrc::seeded(part).finish(), expected, "{len} B");
        assert_eq!(bitwise(part), expected, "{len} B");
        for cut in [1, 12, 40, 127, 128, 300] {
            let (a, b) = part.split_at(len.min(cut));
            let mut crc = Icrc::seeded(a);
            crc.update(b);
            assert_eq!(crc.finish(), expected, "{len} B, cut at {cut}");
        }
    }
}
