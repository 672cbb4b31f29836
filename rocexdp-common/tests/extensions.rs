//! Extension headers of all opcodes, in packets of RoCEv2 and RoCEv1.

mod support;

use rocexdp_common::{
    dissect::{dissect, extensions},
    headers::{Grh, Syndrome},
    opcode::{Opcode, Operation, Position},
    parse::{Packet, parse},
};
use support::encap::{of_opcode, rocev1};

#[test]
fn every_opcode_has_its_headers_where_the_table_says_in_both_versions() {
    let be = |b: &[u8]| b.iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
    let mut defined = 0;
    for code in 0..=255 {
        let spec = of_opcode(Opcode(code));
        for (frame, v1) in [(spec.build(), false), (rocev1(&spec, Grh::NEXT_BTH), true)] {
            let d = dissect(&frame[..]);
            let p = *d.kind.packet().unwrap_or_else(|| panic!("{code:#x}"));
            assert_eq!(p.bth, spec.bth);
            let Some(ext) = extensions(&frame[..], &p) else {
                assert_eq!(p.operation, None);
                assert_eq!(Opcode(code).extensions(), None, "{code:#x}");
                continue;
            };
            defined += u32::from(v1);
            // What IBTA's table says of each opcode, written out here once more.
            let (service, low) = (code >> 5, code & 0x1f);
            let mut h = &spec.headers[..];
            let mut take = |n: usize| {
                let (head, tail) = h.split_at(n);
                h = tail;
                be(head)
            };
            let response = matches!(low, 0x0d..=0x12);
            // Selective repeat, in the manufacturer range: RC's headers behind one of its own, RETH in every WRITE.
            let (selective, service) = (service == 6, if service == 6 { 0 } else { service });
            if selective && low != 0x11 {
                let sreth = ext.sreth.unwrap();
                assert_eq!(u64::from(sreth.serial), take(4));
                assert_eq!(u64::from(sreth.path), take(1));
                assert_eq!(u64::from(sreth.index), take(3));
            }
            let every_write = selective && matches!(low, 0x07..=0x09);
            if service == 2 {
                assert_eq!(
                    u64::from(ext.rdeth.unwrap().ee_context),
                    take(4) & 0xff_ffff
                );
            }
            if service == 3 || (service == 2 && !response) {
                let deth = ext.deth.unwrap();
                assert_eq!(u64::from(deth.qkey), take(4));
                assert_eq!(u64::from(deth.src_qpn.get()), take(4) & 0xff_ffff);
            }
            if service == 5 && !response {
                assert_eq!(u64::from(ext.xrceth.unwrap().xrcsrq), take(4) & 0xff_ffff);
            }
            if service == 0 && low == 0x1c {
                take(4);
                assert!(ext.feth.is_some());
            }
            if service != 4 && (every_write || matches!(low, 0x06 | 0x0a..=0x0c | 0x1c | 0x1d)) {
                let reth = ext.reth.unwrap();
                assert_eq!(
                    (reth.va, u64::from(reth.rkey), u64::from(reth.length)),
                    (take(8), take(4), take(4))
                );
                assert_eq!(p.reth_length, reth.length);
            }
            if service != 4 && matches!(low, 0x13 | 0x14) {
                let a = ext.atomic.unwrap();
                assert_eq!(
                    (a.va, u64::from(a.rkey), a.swap_or_add, a.compare),
                    (take(8), take(4), take(8), take(8))
                );
            }
            if service != 4 && matches!(low, 0x0d | 0x0f..=0x12) {
                let aeth = ext.aeth.unwrap();
                let word = take(4);
                assert_eq!(aeth.syndrome, Syndrome::from_byte((word >> 24) as u8));
                assert_eq!(u64::from(aeth.msn), word & 0xff_ffff);
                assert_eq!(p.aeth, Some(aeth));
            }
            if service != 4 && low == 0x12 {
                assert_eq!(ext.atomic_ack, Some(take(8)));
            }
            if service != 4 && matches!(low, 0x03 | 0x05 | 0x09 | 0x0b) {
                assert_eq!(ext.imm.map(u64::from), Some(take(4)));
            }
            if service != 4 && matches!(low, 0x16 | 0x17) {
                assert_eq!(ext.ieth.map(u64::from), Some(take(4)));
            }
            if selective && low == 0x11 {
                let sack = ext.sack.unwrap();
                assert_eq!(u64::from(sack.path) | u64::from(sack.answers) << 7, take(1));
                assert_eq!(u64::from(sack.mark), take(3));
                assert_eq!(u64::from(sack.highest), take(4));
                assert_eq!(sack.below, [(); 4].map(|()| take(8)));
            }
            assert!(h.is_empty(), "{code:#x}: {ext:?}");
            let present = [
                ext.rdeth.is_some(),
                ext.deth.is_some(),
                ext.xrceth.is_some(),
                ext.feth.is_some(),
                ext.reth.is_some(),
                ext.atomic.is_some(),
                ext.aeth.is_some(),
                ext.atomic_ack.is_some(),
                ext.imm.is_some(),
                ext.ieth.is_some(),
                ext.sreth.is_some(),
                ext.sack.is_some(),
            ];
            let sizes = [4, 8, 4, 4, 16, 28, 4, 8, 4, 4, 8, 40];
            let sum: usize = present
                .iter()
                .zip(sizes)
                .filter(|(p, _)| **p)
                .map(|(_, n)| n)
                .sum();
            assert_eq!(sum, spec.headers.len(), "{code:#x}: no header too many");
            assert_eq!(
                ext.payload_at as usize,
                p.udp_at as usize + 20 + spec.headers.len()
            );
        }
    }
    // RC 25 (FLUSH, ATOMIC WRITE and both SENDs with invalidate among them), UC 12, RD 22, UD 2, XRC 23, CNP, RC again as
    // selective repeat.
    assert_eq!(defined, 25 + 12 + 22 + 2 + 23 + 1 + 25);
}

#[test]
fn operations_of_the_newer_opcodes() {
    for (code, operation) in [
        (0x1c, Operation::Flush),
        (0x1d, Operation::AtomicWrite),
        (0x55, Operation::Resync),
        (0x81, Operation::Cnp),
    ] {
        let frame = of_opcode(Opcode(code)).build();
        let p: Packet = parse(&frame[..]).unwrap();
        assert_eq!(p.operation, Some((operation, Position::Only)));
    }
}
