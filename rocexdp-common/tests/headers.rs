//! Each header is read as it was written, every bit of it that is not reserved, and names of opcodes.

mod support;

use rocexdp_common::{
    headers::{
        Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, FlushRange, Grh, Ieth, ImmDt, Rdeth, Reth,
        SACK_BITS, Sack, Sreth, Xrceth,
    },
    opcode::{Opcode, UNKNOWN, name},
};
use support::packet::{Random, hex};

/// Random bytes, and each single bit: what is read and written again must be the same but for `reserved` bits, and these
/// must come out as 0.
fn round_trip<const N: usize, H: PartialEq + std::fmt::Debug>(
    what: &str,
    parse: fn(&[u8; N]) -> H,
    emit: fn(&H, &mut [u8; N]),
    reserved: [u8; N],
) {
    let mut random = Random(5);
    let singles = (0..8 * N).map(|bit| {
        let mut b = [0; N];
        b[bit / 8] = 1 << (bit % 8);
        b
    });
    let randoms = (0..1000).map(|_| [(); N].map(|()| random.next() as u8));
    for bytes in singles.chain(randoms.collect::<Vec<_>>()) {
        let header = parse(&bytes);
        let mut out = [0xa5; N];
        emit(&header, &mut out);
        let mut expected = bytes;
        for (b, r) in expected.iter_mut().zip(reserved) {
            *b &= !r;
        }
        assert_eq!(out, expected, "{what}: {header:?}");
        assert_eq!(parse(&out), header, "{what}");
    }
}

#[test]
fn every_header_is_read_as_it_was_written() {
    let mut bth = [0; 12];
    (bth[4], bth[8]) = (0x3f, 0x7f);
    round_trip("BTH", Bth::parse, Bth::emit, bth);
    round_trip("RDETH", Rdeth::parse, Rdeth::emit, [0xff, 0, 0, 0]);
    round_trip("DETH", Deth::parse, Deth::emit, [0, 0, 0, 0, 0xff, 0, 0, 0]);
    round_trip("XRCETH", Xrceth::parse, Xrceth::emit, [0xff, 0, 0, 0]);
    round_trip("FETH", Feth::parse, Feth::emit, [0xff, 0xff, 0xff, 0xc0]);
    round_trip("RETH", Reth::parse, Reth::emit, [0; 16]);
    round_trip("AtomicETH", AtomicEth::parse, AtomicEth::emit, [0; 28]);
    round_trip("AETH", Aeth::parse, Aeth::emit, [0; 4]);
    round_trip(
        "AtomicAckETH",
        AtomicAckEth::parse,
        AtomicAckEth::emit,
        [0; 8],
    );
    round_trip("ImmDt", ImmDt::parse, ImmDt::emit, [0; 4]);
    round_trip("IETH", Ieth::parse, Ieth::emit, [0; 4]);
    round_trip("GRH", Grh::parse, Grh::emit, [0; 40]);
    round_trip("SRETH", Sreth::parse, Sreth::emit, [0; 8]);
    round_trip("SACK", Sack::parse, Sack::emit, [0; 40]);
}

#[test]
fn a_sack_names_the_serials_below_its_highest_also_at_the_wrap() {
    let mut sack = Sack {
        path: 0,
        answers: false,
        mark: 0,
        highest: 100,
        below: [1, 0, 0, 1 << 63],
    };
    for highest in [100, 3, u32::MAX] {
        sack.highest = highest;
        let has: Vec<u32> = (0..=SACK_BITS + 1)
            .filter(|n| sack.has(highest.wrapping_sub(*n)))
            .collect();
        assert_eq!(has, [0, 1, 256]);
        assert!(!sack.has(highest.wrapping_add(1)));
    }
}

#[test]
fn selective_repeats_opcodes_are_those_of_rc() {
    for code in 0..=255 {
        let opcode = Opcode(code);
        if opcode.is_selective() {
            assert_eq!(opcode.decode(), opcode.standard().decode());
            assert_eq!(opcode.standard().selective(), opcode);
            assert_eq!(opcode.is_response(), opcode.standard().is_response());
        } else {
            assert_eq!(opcode.standard(), opcode);
            assert_eq!(opcode.selective() != opcode, code < 0x20);
            assert_eq!(opcode.service(), opcode.transport());
        }
    }
}

#[test]
fn fields_stand_where_the_kernel_has_them() {
    // A FLUSH of a whole region to persistence: FETH_PLT_PERSISTENT 2, FETH_SEL_MR 1 << 4.
    let feth = Feth::parse(&[0, 0, 0, 0x12]);
    assert!(!feth.global_visibility && feth.persistence);
    assert_eq!(feth.selectivity, FlushRange::Region);
    // The first compare-and-swap of tests/captures/rc-atomic.pcap.
    let bytes: [u8; 28] = hex("000055c6559fa00000000a37a1a2a3a4a5a6a7a81122334455667788")
        .try_into()
        .unwrap();
    assert_eq!(
        AtomicEth::parse(&bytes),
        AtomicEth {
            va: 0x55c6_559f_a000,
            rkey: 0xa37,
            swap_or_add: 0xa1a2_a3a4_a5a6_a7a8,
            compare: 0x1122_3344_5566_7788,
        }
    );
    // The DETH of a MAD between two Soft-RoCE hosts; the GRH of a ConnectX (tests/captures/icrc-vectors.json).
    let deth = Deth::parse(&hex("8001000000000001").try_into().unwrap());
    assert_eq!((deth.qkey, deth.src_qpn.get()), (0x8001_0000, 1));
    let grh: [u8; 40] =
        hex("6020000000281b4000000000000000000000ffff0f00000200000000000000000000ffff0f000002")
            .try_into()
            .unwrap();
    let grh = Grh::parse(&grh);
    assert_eq!((grh.version, grh.traffic_class, grh.flow_label), (6, 2, 0));
    assert_eq!(
        (grh.payload_length, grh.next_header, grh.hop_limit),
        (40, Grh::NEXT_BTH, 64)
    );
}

#[test]
fn every_defined_opcode_has_a_name_of_its_own() {
    let mut names = Vec::new();
    for code in 0..=255 {
        let opcode = Opcode(code);
        let name = name(opcode);
        assert_eq!(name == UNKNOWN, opcode.decode().is_none(), "{code:#x}");
        if name != UNKNOWN {
            assert!(!names.contains(&name), "{name} twice");
            names.push(name);
        }
    }
    assert_eq!(names.len(), 110);
    for (code, text) in [
        (0x00, "RC Send First"),
        (0x11, "RC Acknowledge"),
        (0x17, "RC Send Only Invalidate"),
        (0x1c, "RC Flush"),
        (0x1d, "RC Atomic Write"),
        (0x2b, "UC RDMA Write Only Immediate"),
        (0x55, "RD Resync"),
        (0x64, "UD Send Only"),
        (0x81, "CNP"),
        (0xac, "XRC RDMA Read Request"),
        (0xc6, "rocexdp SR RDMA Write First"),
        (0xd1, "rocexdp SR Acknowledge"),
        (0xdc, "rocexdp SR Flush"),
        (0xd5, UNKNOWN),
        (0xe0, UNKNOWN),
        (0xff, UNKNOWN),
    ] {
        assert_eq!(name(Opcode(code)), text);
    }
}
