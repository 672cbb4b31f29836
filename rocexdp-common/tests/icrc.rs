//! XDP's ICRC against captures of hardware and against a bitwise one.

mod support;

use rocexdp_common::{
    icrc::{MAX_WORDS, check},
    opcode::rc,
    parse::parse,
};
use support::packet::{A6, B6, Spec, hex};

fn checked(frame: &[u8]) -> Option<bool> {
    check(frame, &parse(frame).unwrap())
}

const CX4LX_CNP: &str = "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b7002800008100ffff40000118000000000000000000000000000000000000000082fd002a";
const HNS_ACK: &str = "183d5ebf4371183d5ebf51920800450200300000400040112d60c0a84606c0a84604004812b7001c00001140ffff000000450000000006000001259cc216";

#[test]
fn captures_of_hardware() {
    assert_eq!(checked(&hex(CX4LX_CNP)), Some(true));
    assert_eq!(checked(&hex(HNS_ACK)), Some(true));
}

#[test]
fn every_bit_counts_but_those_that_routers_change() {
    for (name, spec) in [
        ("v4", Spec::cnp(0x118)),
        (
            "v4 options",
            Spec {
                options: vec![7; 12],
                ..Spec::cnp(0x118)
            },
        ),
        ("v6", Spec::cnp(0x118).from(A6).to(B6)),
        (
            "v6 extension",
            Spec {
                extensions: vec![(60, vec![1; 14])],
                ..Spec::cnp(0x118).from(A6).to(B6)
            },
        ),
    ] {
        let frame = spec.build();
        assert_eq!(checked(&frame), Some(true), "{name}");
        let packet = parse(&frame[..]).unwrap();
        let (ip, udp) = (spec.ip_at(), spec.udp_at());
        let v4 = frame[ip] >> 4 == 4;
        for bit in 8 * ip..8 * frame.len() {
            let mut f = frame.clone();
            f[bit / 8] ^= 0x80 >> (bit % 8);
            let at = bit / 8;
            let free = if v4 {
                [ip + 1, ip + 8, ip + 10, ip + 11].contains(&at)
            } else {
                (at == ip && bit % 8 >= 4) || [ip + 1, ip + 2, ip + 3, ip + 7].contains(&at)
            } || [udp + 6, udp + 7, udp + 12].contains(&at);
            // The packet is as parsed before the bit changed: only the CRC is under test.
            assert_eq!(
                check(&f[..], &packet),
                Some(free),
                "{name}, byte {at}, bit {}",
                bit % 8
            );
        }
    }
}

#[test]
fn padding_of_the_frame_is_not_covered() {
    assert_eq!(
        checked(
            &Spec {
                padding: 11,
                ..Spec::cnp(1)
            }
            .build()
        ),
        Some(true)
    );
}

#[test]
fn what_is_too_long_is_not_told() {
    let max = 4 * MAX_WORDS as usize;
    assert_eq!(
        checked(&Spec::new(rc::SEND_ONLY, 1, 1).payload(max).build()),
        Some(true)
    );
    assert_eq!(
        checked(&Spec::new(rc::SEND_ONLY, 1, 1).payload(max + 4).build()),
        None
    );
    let mut odd = Spec::new(rc::SEND_ONLY, 1, 1).payload(6);
    odd.bth.pad = 0;
    assert_eq!(checked(&odd.build()), None);
    for (len, expected) in [(max - 2, Some(true)), (max + 6, None)] {
        let spec = Spec {
            extensions: vec![(60, vec![0; len])],
            ..Spec::cnp(1).from(A6).to(B6)
        };
        assert_eq!(checked(&spec.build()), expected);
    }
}
