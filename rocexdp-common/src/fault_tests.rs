//! Shares, independence and repetition of the decisions; marks and corruption on real headers.

use super::*;

fn checksum(header: &[u8]) -> u16 {
    let mut sum: u32 = header
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

struct Buffer([u8; 160], usize);

fn ipv4(tags: usize, options: usize, tos: u8) -> Buffer {
    let mut frame = [0u8; 160];
    let mut at = 12;
    for tag in 0..tags {
        frame[at..at + 4].copy_from_slice(&[if tag + 1 < tags { 0x88 } else { 0x81 }, 0, 0, 100]);
        if tag + 1 < tags {
            frame[at + 1] = 0xa8;
        }
        at += 4;
    }
    frame[at..at + 2].copy_from_slice(&[8, 0]);
    let ip = at + 2;
    frame[ip] = 0x45 + options as u8;
    frame[ip + 1] = tos;
    frame[ip + 2..ip + 4].copy_from_slice(&(60u16 + 4 * options as u16).to_be_bytes());
    frame[ip + 8..ip + 10].copy_from_slice(&[64, 17]);
    frame[ip + 12..ip + 20].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
    let header = 20 + 4 * options;
    let sum = checksum(&frame[ip..ip + header]);
    frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    let udp = ip + header;
    frame[udp..udp + 8].copy_from_slice(&[0xc0, 0, 0x12, 0xb7, 0, 40, 0, 0]);
    Buffer(frame, udp + 40)
}

#[test]
fn a_share_is_met_and_the_saturated_one_always() {
    let faults = Faults {
        seed: 7,
        drop: Share::ratio(1, 100),
        ce: Share::ratio(5, 100),
        ..Faults::default()
    };
    let total = 200_000u64;
    let (mut dropped, mut marked) = (0u64, 0u64);
    for packet in 0..total {
        let decision = decide(&faults, 1, packet);
        dropped += u64::from(decision.drop);
        marked += u64::from(decision.mark);
    }
    // Six standard deviations: 6 * sqrt(n p (1 - p)).
    assert!(dropped.abs_diff(2000) < 270, "{dropped}");
    assert!(marked.abs_diff(9900) < 590, "{marked}");
    let all = Faults {
        drop: Share::ALWAYS,
        ..Faults::default()
    };
    assert!((0..1000).all(|packet| decide(&all, 0, packet).drop));
    assert_eq!(Share::ratio(3, 2), Share::ALWAYS);
    assert_eq!(Share::ratio(1, 2).bits(), 1 << 31);
    assert_eq!(Share::ratio(1, 0), Share::NEVER);
}

#[test]
fn decisions_depend_on_seed_port_and_number_only() {
    let faults = |seed| Faults {
        seed,
        drop: Share::ratio(1, 4),
        corrupt: Share::ratio(1, 4),
        reorder: Share::ratio(1, 4),
        duplicate: Share::ratio(1, 4),
        ..Faults::default()
    };
    let run =
        |seed, port| core::array::from_fn::<_, 512, _>(|n| decide(&faults(seed), port, n as u64));
    assert_eq!(run(1, 0), run(1, 0));
    assert_ne!(run(1, 0), run(2, 0));
    assert_ne!(run(1, 0), run(1, 1));
    // The two ports' streams are not shifted copies of each other, nor are neighbouring seeds'.
    for shift in 0..64 {
        let same = (0..256)
            .filter(|n| run(1, 0)[*n].drop == run(1, 1)[n + shift].drop)
            .count();
        assert!(same < 220, "shift {shift}: {same}");
    }
}

#[test]
fn raising_one_share_only_adds_hits_and_moves_no_other_fault() {
    let low = Faults {
        seed: 3,
        corrupt: Share::ratio(1, 50),
        ce: Share::ratio(1, 10),
        ..Faults::default()
    };
    let high = Faults {
        corrupt: Share::ratio(1, 5),
        ..low
    };
    for packet in 0..5000 {
        let (a, b) = (decide(&low, 0, packet), decide(&high, 0, packet));
        assert!(!a.corrupt || b.corrupt);
        assert_eq!(a.mark, b.mark);
    }
}

#[test]
fn a_marked_ipv4_header_keeps_a_valid_checksum() {
    for tags in 0..=2 {
        for options in [0, 1, 10] {
            for tos in [1u8, 2, 0xc1, 0xc2, 0xfe, 0xfd] {
                let Buffer(mut frame, length) = ipv4(tags, options, tos);
                let covered = find(&frame[..length]).expect("RoCEv2");
                let mark = covered.mark().expect("ECN-capable");
                let sum_at = mark.ipv4_checksum_at.expect("IPv4");
                let sum = mark.checksum([frame[sum_at], frame[sum_at + 1]]);
                frame[mark.at] = mark.value;
                frame[sum_at..sum_at + 2].copy_from_slice(&sum);
                assert_eq!(frame[covered.ip + 1] & 3, 3);
                assert_eq!(frame[covered.ip + 1] >> 2, tos >> 2);
                assert_eq!(
                    checksum(&frame[covered.ip..covered.ip + 20 + 4 * options]),
                    0
                );
                assert_eq!(
                    find(&frame[..length]).and_then(|covered| covered.mark()),
                    None,
                    "marked once"
                );
            }
        }
    }
    let Buffer(frame, length) = ipv4(0, 0, 0xc0);
    assert_eq!(
        find(&frame[..length]).and_then(|covered| covered.mark()),
        None,
        "not ECN-capable"
    );
}

#[test]
fn an_ipv6_mark_sets_only_the_ecn_bits() {
    let mut frame = [0u8; 160];
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    frame[14..16].copy_from_slice(&[0x6a, 0x6f]); // class 0xa6: DSCP 41, ECT(0); flow label starts with 0xf
    frame[20] = 60;
    frame[54..56].copy_from_slice(&[17, 1]); // destination options, 16 bytes
    let udp = 14 + 40 + 16;
    frame[udp..udp + 8].copy_from_slice(&[0xc0, 0, 0x12, 0xb7, 0, 44, 0, 0]);
    let covered = find(&frame[..udp + 44]).expect("RoCEv2");
    assert_eq!((covered.bth, covered.length), (udp + 8, 32));
    let mark = covered.mark().expect("ECN-capable");
    assert_eq!(
        (mark.at, mark.value, mark.ipv4_checksum_at),
        (15, 0x7f, None)
    );
}

#[test]
fn corruption_changes_a_byte_that_the_icrc_covers() {
    let Buffer(frame, length) = ipv4(1, 0, 2);
    let covered = find(&frame[..length]).expect("RoCEv2");
    let mut seen = [0u32; 160];
    for packet in 0..20_000 {
        let faults = Faults {
            seed: 9,
            corrupt: Share::ALWAYS,
            ..Faults::default()
        };
        let (at, mask) = covered.corruption(decide(&faults, 0, packet).entropy);
        assert_ne!(mask, 0);
        seen[at] += 1;
    }
    for (at, count) in seen.iter().enumerate() {
        let inside = at >= covered.bth && at < length - 4 && at != covered.bth + 4;
        assert_eq!(*count > 0, inside, "byte {at} hit {count} times");
    }
}

#[test]
fn what_is_not_a_whole_roce_packet_is_left_alone() {
    let Buffer(good, length) = ipv4(0, 0, 2);
    assert!(find(&good[..length]).is_some());
    let change = |at: usize, value: u8| {
        let mut frame = good;
        frame[at] = value;
        find(&frame[..length])
    };
    assert_eq!(change(13, 6), None, "ARP");
    assert_eq!(change(14 + 9, 6), None, "TCP");
    assert_eq!(change(14 + 6, 0x20), None, "first fragment");
    assert_eq!(change(14 + 7, 1), None, "later fragment");
    assert!(change(14 + 6, 0x40).is_some(), "don't fragment");
    assert_eq!(change(14 + 20 + 3, 0xb8), None, "port 4792");
    assert_eq!(change(14 + 20 + 5, 23), None, "no room for an ICRC");
    assert_eq!(change(14, 0x44), None, "IHL 4");
    for cut in 0..14 + 20 + 6 {
        assert_eq!(find(&good[..cut]), None, "cut at {cut}");
    }
}
