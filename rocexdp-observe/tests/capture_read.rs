//! Every kind of capture is read, and the same packets come out of each; what is cut or damaged is said, with its place.

use std::io::{Cursor, Read, Write};

use rocexdp_common::{dissect::Kind, reason::Reason};
use rocexdp_observe::capture::{CaptureError, LinkType, PcapngWriter, Reader};

/// What is compared: number, time, interface, length on the wire, bytes.
type Row = (u64, i64, u32, u32, Vec<u8>);

fn open(bytes: Vec<u8>) -> Result<Reader, CaptureError> {
    Reader::from_reader(Cursor::new(bytes))
}

/// All packets, and the error that ended them.
fn read(bytes: Vec<u8>) -> (Vec<Row>, Option<CaptureError>) {
    let mut rows = Vec::new();
    let mut reader = match open(bytes) {
        Ok(reader) => reader,
        Err(e) => return (rows, Some(e)),
    };
    loop {
        match reader.next() {
            Ok(Some(p)) => rows.push((
                p.number,
                p.time_ns,
                p.interface,
                p.wire_len,
                p.data.to_vec(),
            )),
            Ok(None) => return (rows, None),
            Err(e) => {
                assert!(reader.next().unwrap().is_none(), "nothing after an error");
                return (rows, Some(e));
            }
        }
    }
}

/// A word in the order asked for.
fn word(big: bool, value: u32) -> [u8; 4] {
    if big {
        value.to_be_bytes()
    } else {
        value.to_le_bytes()
    }
}

fn half(big: bool, value: u16) -> [u8; 2] {
    if big {
        value.to_be_bytes()
    } else {
        value.to_le_bytes()
    }
}

const SECONDS: u32 = 1_700_000_000;
const PACKETS: [(u32, u32, &[u8]); 3] = [
    (1, 60, &[0xaa; 60]),
    (2, 100, &[0xbb; 61]),
    (999_999, 0, &[]),
];

/// The packets above as a classic capture; `unit` is the number of fractions in a microsecond.
fn pcap(big: bool, magic: u32, unit: u32, modified: bool) -> Vec<u8> {
    let mut out = word(big, magic).to_vec();
    out.extend(half(big, 2));
    out.extend(half(big, 4));
    for value in [0, 0, 65535, 1] {
        out.extend(word(big, value));
    }
    for (micros, wire, data) in PACKETS {
        for value in [SECONDS, micros * unit, data.len() as u32, wire] {
            out.extend(word(big, value));
        }
        if modified {
            out.extend([0x55; 8]);
        }
        out.extend(data);
    }
    out
}

fn expected() -> Vec<Row> {
    PACKETS
        .iter()
        .zip(1..)
        .map(|(&(micros, wire, data), number)| {
            let time = i64::from(SECONDS) * 1_000_000_000 + i64::from(micros) * 1000;
            (number, time, 0, wire, data.to_vec())
        })
        .collect()
}

/// A block: type, length around, body padded.
fn block(big: bool, block_type: u32, body: &[u8]) -> Vec<u8> {
    let length = body.len().next_multiple_of(4) as u32 + 12;
    let mut out = [word(big, block_type), word(big, length)].concat();
    out.extend(body);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend(word(big, length));
    out
}

fn section(big: bool) -> Vec<u8> {
    let body = [
        &word(big, 0x1a2b_3c4d)[..],
        &half(big, 1),
        &half(big, 0),
        &[0xff; 8],
    ]
    .concat();
    block(big, 0x0a0d_0d0a, &body)
}

fn option(big: bool, code: u16, value: &[u8]) -> Vec<u8> {
    let mut out = [half(big, code), half(big, value.len() as u16)].concat();
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

fn interface(big: bool, link: u16, snaplen: u32, options: &[Vec<u8>]) -> Vec<u8> {
    let mut body = [&half(big, link)[..], &[0, 0], &word(big, snaplen)].concat();
    body.extend(options.concat());
    block(big, 1, &body)
}

/// An Enhanced Packet Block.
fn enhanced(big: bool, index: u32, ticks: u64, wire: u32, data: &[u8], options: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    for value in [
        index,
        (ticks >> 32) as u32,
        ticks as u32,
        data.len() as u32,
        wire,
    ] {
        body.extend(word(big, value));
    }
    body.extend(data);
    body.resize(body.len().next_multiple_of(4), 0);
    body.extend(options);
    block(big, 6, &body)
}

#[test]
fn classic_captures_of_all_kinds_hold_the_same_packets() {
    for big in [false, true] {
        for (magic, unit, modified) in [
            (0xa1b2_c3d4, 1, false),
            (0xa1b2_3c4d, 1000, false),
            (0xa1b2_cd34, 1, true),
        ] {
            let (rows, error) = read(pcap(big, magic, unit, modified));
            assert!(error.is_none(), "{error:?}");
            let mut expected = expected();
            // A packet of nothing captured, and nothing said of its length.
            expected[2].3 = 0;
            assert_eq!(rows, expected, "{big} {magic:x}");
        }
    }
}

#[test]
fn packed_captures_are_unpacked_also_when_they_come_in_single_bytes() {
    /// Gives one byte at a time, as a slow pipe may.
    struct Drip(Cursor<Vec<u8>>);
    impl Read for Drip {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let one = buffer.len().min(1);
            self.0.read(&mut buffer[..one])
        }
    }
    let plain = pcap(false, 0xa1b2_c3d4, 1, false);
    let (first, second) = plain.split_at(70);
    let gzip = |part: &[u8]| {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(part).unwrap();
        packer.finish().unwrap()
    };
    let zstd = |part: &[u8]| zstd::encode_all(part, 1).unwrap();
    for packed in [
        plain.clone(),
        gzip(&plain),
        // As `cat a.gz b.gz` makes it.
        [gzip(first), gzip(second)].concat(),
        zstd(&plain),
        [zstd(first), zstd(second)].concat(),
    ] {
        let (rows, error) = read(packed.clone());
        assert!(error.is_none(), "{error:?}");
        assert_eq!(rows, expected());
        let mut reader = Reader::from_reader(Drip(Cursor::new(packed.clone()))).unwrap();
        let mut n = 0;
        while let Some(p) = reader.next().unwrap() {
            assert_eq!(p.data, expected()[n].4);
            n += 1;
        }
        assert_eq!(n, 3);
        assert_eq!(reader.bytes_read(), packed.len() as u64);
    }
    // A packed file that ends early is a cut, not an error of reading.
    for packed in [gzip(&plain), zstd(&plain)] {
        let (_, error) = read(packed[..packed.len() - 9].to_vec());
        assert!(matches!(error, Some(CaptureError::Cut { .. })), "{error:?}");
    }
    let mut broken = gzip(&plain);
    broken[12] ^= 0xff;
    broken[20] ^= 0x55;
    let (_, error) = read(broken);
    assert!(
        matches!(
            error,
            Some(CaptureError::Damaged { .. } | CaptureError::NotACapture(_))
        ),
        "{error:?}"
    );
}

#[test]
fn a_section_after_the_other_with_interfaces_and_byte_order_of_its_own() {
    let mut out = Vec::new();
    for big in [false, true] {
        out.extend(section(big));
        // Milliseconds, with an hour to add.
        let options = [
            option(big, 2, b"mlx5_0"),
            option(big, 9, &[3]),
            option(
                big,
                14,
                &if big {
                    3600_i64.to_be_bytes()
                } else {
                    3600_i64.to_le_bytes()
                },
            ),
        ];
        out.extend(interface(big, 1, 0, &options));
        out.extend(interface(big, 101, 8, &[option(big, 9, &[0x80 | 10])]));
        // Name resolution, a custom block, decryption secrets and an unknown type are passed over.
        for block_type in [4, 0xbad, 10, 0x7777_7777] {
            out.extend(block(big, block_type, &[1; 23]));
        }
        out.extend(enhanced(big, 0, 5_000, 99, &[1, 2, 3], &[]));
        out.extend(enhanced(big, 1, 7 << 10, 4, &[4; 4], &[]));
        // The obsolete packet block: interface in 16 bits, 3 packets lost.
        let mut old = [half(big, 1), half(big, 3)].concat();
        for value in [0, 8 << 10, 2, 2] {
            old.extend(word(big, value));
        }
        old.extend([9, 9, 0, 0]);
        out.extend(block(big, 2, &old));
        // Of the first interface, with no time.
        let simple = [&word(big, 6)[..], &[6; 6]].concat();
        out.extend(block(big, 3, &simple));
    }
    let mut reader = open(out).unwrap();
    let mut rows = Vec::new();
    while let Some(p) = reader.next().unwrap() {
        rows.push((p.number, p.time_ns, p.interface, p.link, p.data.to_vec()));
    }
    let of_section = |first: u64, interface: u32| {
        let (ether, ip) = (LinkType::Ethernet, LinkType::Ip);
        [
            (first, 3_605_000_000_000, interface, ether, vec![1, 2, 3]),
            (first + 1, 7_000_000_000, interface + 1, ip, vec![4; 4]),
            (first + 2, 8_000_000_000, interface + 1, ip, vec![9; 2]),
            (first + 3, 8_000_000_000, interface, ether, vec![6; 6]),
        ]
    };
    let expected = [of_section(1, 0), of_section(5, 2)].concat();
    assert_eq!(rows, expected);
    assert_eq!(reader.interfaces()[0].name, "mlx5_0");
    assert_eq!(reader.interfaces()[3].dropped, Some(3));
    assert_eq!(reader.dropped(), Some(6));
    let warnings = reader.warnings().join("\n");
    assert!(
        warnings.contains("lost 3 packets of interface 1"),
        "{warnings}"
    );
    assert!(warnings.contains("2 packets have no time"), "{warnings}");
}

#[test]
fn a_simple_packet_is_as_long_as_the_snapshot_length() {
    let mut out = section(false);
    out.extend(interface(false, 1, 5, &[]));
    let simple = [&word(false, 900)[..], &[6; 5]].concat();
    out.extend(block(false, 3, &simple));
    let (rows, error) = read(out);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(rows, [(1, 0, 0, 900, vec![6; 5])]);
}

#[test]
fn losses_of_the_capturing_system_are_kept() {
    let mut out = section(false);
    out.extend(interface(false, 1, 0, &[]));
    let lost = [
        option(false, 1, b"a comment"),
        option(false, 4, &7_u64.to_le_bytes()),
    ]
    .concat();
    out.extend(enhanced(false, 0, 1, 1, &[1], &lost));
    let (mut reader, mut with_total) = (open(out.clone()).unwrap(), out);
    reader.next().unwrap();
    assert_eq!(reader.dropped(), Some(7));
    // Interface statistics: interface, time, then totals.
    let mut body = vec![0; 12];
    body.extend(option(false, 5, &40_u64.to_le_bytes()));
    body.extend(option(false, 7, &2_u64.to_le_bytes()));
    with_total.extend(block(false, 5, &body));
    let mut reader = open(with_total).unwrap();
    while reader.next().unwrap().is_some() {}
    assert_eq!(reader.dropped(), Some(42));
    let mut silent = open(pcap(false, 0xa1b2_c3d4, 1, false)).unwrap();
    while silent.next().unwrap().is_some() {}
    assert_eq!(silent.dropped(), None);
}

#[test]
fn packets_of_other_links_are_passed_over_or_the_capture_is_refused() {
    let mut out = section(false);
    out.extend(interface(false, 127, 0, &[option(false, 2, b"wlan0")]));
    let only_wlan = [out.clone(), enhanced(false, 0, 1, 1, &[1], &[])].concat();
    let (rows, error) = read(only_wlan.clone());
    assert!(rows.is_empty());
    assert!(
        error
            .unwrap()
            .to_string()
            .contains("IEEE 802.11 (link type 127)")
    );

    let both = [
        only_wlan,
        interface(false, 113, 0, &[]),
        enhanced(
            false,
            1,
            1,
            99,
            &[[0; 14].as_slice(), &[8, 0, 0x45]].concat(),
            &[],
        ),
    ]
    .concat();
    let mut reader = open(both).unwrap();
    let p = reader.next().unwrap().unwrap();
    // Numbered as Wireshark does, the packet passed over included.
    assert_eq!((p.number, p.interface), (2, 1));
    assert_eq!(p.dissect().kind, Kind::Unfollowed(Reason::NotCaptured));
    assert!(reader.next().unwrap().is_none());
    assert!(reader.warnings()[0].contains("interface 0 (wlan0)"));

    let mut infiniband = pcap(false, 0xa1b2_c3d4, 1, false);
    infiniband[20] = 247;
    let (_, error) = read(infiniband);
    assert!(error.unwrap().to_string().contains("InfiniBand"));
}

#[test]
fn a_capture_cut_anywhere_gives_what_came_before_and_the_place() {
    let classic = pcap(false, 0xa1b2_c3d4, 1, false);
    let ends = [24, 100, 177, 193];
    for cut in 4..classic.len() {
        let (rows, error) = read(classic[..cut].to_vec());
        let whole = ends.iter().filter(|&&end| end <= cut).count();
        assert_eq!(rows, expected()[..whole.saturating_sub(1)], "cut at {cut}");
        match error {
            None => assert!(ends.contains(&cut), "cut at {cut}"),
            Some(CaptureError::Cut { frame, offset }) => {
                assert!(!ends.contains(&cut));
                assert_eq!(frame, whole.max(1) as u64);
                let start = whole.checked_sub(1).map_or(0, |i| ends[i]);
                assert_eq!(offset, start as u64);
            }
            Some(other) => panic!("cut at {cut}: {other}"),
        }
    }

    let mut blocks = section(false);
    blocks.extend(interface(false, 1, 0, &[]));
    let packets_at = blocks.len();
    blocks.extend(block(false, 4, &[0; 300]));
    for i in 0..3 {
        blocks.extend(enhanced(false, 0, i, 9, &[1; 9], &[]));
    }
    for cut in 4..blocks.len() {
        let (rows, error) = read(blocks[..cut].to_vec());
        assert!(rows.len() <= 3);
        match error {
            None => assert!(cut >= 28 && cut % 4 == 0, "cut at {cut}"),
            Some(CaptureError::Cut { frame, offset }) => {
                assert_eq!(frame, rows.len() as u64 + 1);
                assert!((offset as usize) < cut);
                assert!(cut < packets_at || offset as usize >= packets_at);
            }
            Some(other) => panic!("cut at {cut}: {other}"),
        }
    }
}

#[test]
fn lengths_that_cannot_be_are_refused_without_storing_them() {
    let mut out = pcap(false, 0xa1b2_c3d4, 1, false);
    out[24 + 8..24 + 12].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    let (rows, error) = read(out);
    assert!(rows.is_empty());
    assert!(
        matches!(
            error,
            Some(CaptureError::Damaged {
                frame: 1,
                offset: 24,
                ..
            })
        ),
        "{error:?}"
    );

    let head = [section(false), interface(false, 1, 0, &[])].concat();
    let packet = enhanced(false, 0, 1, 4, &[1; 4], &[]);
    for (at, value) in [
        (4, 0_u32),        // a block that would never end
        (4, 8),            // shorter than its own frame
        (4, 38),           // no multiple of four
        (4, 0x8000_0000),  // larger than is kept
        (8, 1),            // an interface that isn't there
        (20, 0xffff_fffc), // longer than its block
        (20, 9),           // runs into the block's end
    ] {
        let mut bad = packet.clone();
        bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let (rows, error) = read([head.clone(), bad].concat());
        assert!(rows.is_empty());
        assert!(
            matches!(error, Some(CaptureError::Damaged { frame: 1, .. })),
            "{at} {value}: {error:?}"
        );
    }
    // A block that is passed over may be of any length; then it is a cut.
    let mut long = block(false, 0xbad, &[0; 16]);
    long[4..8].copy_from_slice(&0xffff_fff0_u32.to_le_bytes());
    let (_, error) = read([head, long].concat());
    assert!(matches!(error, Some(CaptureError::Cut { .. })), "{error:?}");
}

#[test]
fn what_is_no_capture_is_named() {
    for (bytes, text) in [
        (&b""[..], "empty"),
        (b"ab", "less than four"),
        (b"\x7fELF....", "7f 45 4c 46"),
        (b"\xfd7zXZ\0", "xz"),
        (b"BZh9....", "bzip2"),
    ] {
        let error = open(bytes.to_vec()).err().unwrap();
        assert!(matches!(error, CaptureError::NotACapture(_)));
        assert!(error.to_string().contains(text), "{error}");
    }
    let error = Reader::open("does-not-exist.pcap").err().unwrap();
    assert!(error.to_string().contains("does-not-exist.pcap"));
    let error = Reader::open(env!("CARGO_MANIFEST_DIR")).err().unwrap();
    assert!(error.to_string().contains("directory"), "{error}");
    let mut version = pcap(false, 0xa1b2_c3d4, 1, false);
    version[4] = 3;
    let error = open(version).err().unwrap();
    assert!(error.to_string().contains("version 3"), "{error}");
}

#[test]
fn what_is_written_is_read_back() {
    let mut writer = PcapngWriter::new(Vec::new(), "of the whole").unwrap();
    let wire = writer.interface("mlx5_0", LinkType::Ethernet, 128).unwrap();
    let cooked = writer.interface("", LinkType::Sll2, 0).unwrap();
    let time = 1_700_000_000_123_456_789;
    writer
        .packet(wire, time, 1100, &[7; 61], ["one", "two \u{e9}"])
        .unwrap();
    writer.packet(cooked, time + 1, 20, &[8; 20], None).unwrap();
    assert!(writer.packet(2, 0, 1, &[0], None).is_err());
    let out = writer.finish().unwrap();
    let mut reader = open(out.clone()).unwrap();
    let p = reader.next().unwrap().unwrap();
    assert_eq!(
        (p.time_ns, p.wire_len, p.data),
        (time, 1100, [7; 61].as_slice())
    );
    assert!(p.is_truncated());
    let p = reader.next().unwrap().unwrap();
    assert_eq!(
        (p.time_ns, p.interface, p.link),
        (time + 1, cooked, LinkType::Sll2)
    );
    assert!(reader.next().unwrap().is_none());
    assert_eq!(reader.interfaces()[0].name, "mlx5_0");
    assert_eq!(reader.interfaces()[0].snaplen, 128);
    let text = String::from_utf8_lossy(&out);
    assert!(text.contains("of the whole") && text.contains("two \u{e9}"));
}

#[test]
fn any_bytes_end_in_a_result() {
    // A walk of mutations over both formats: what is asserted is that it ends, with bounded packets.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut blocks = section(true);
    blocks.extend(interface(true, 1, 64, &[option(true, 9, &[9])]));
    for i in 0..4 {
        blocks.extend(enhanced(
            true,
            0,
            i,
            64,
            &[1; 64],
            &option(true, 1, b"hello"),
        ));
    }
    for seed in [pcap(true, 0xa1b2_c3d4, 1, false), blocks] {
        let mut ended_well = 0;
        for _ in 0..5_000 {
            let mut bytes = seed.clone();
            for _ in 0..random() % 4 {
                let at = random() as usize % bytes.len();
                bytes[at] = random() as u8;
            }
            bytes.truncate(bytes.len() - random() as usize % 9);
            let (rows, error) = read(bytes);
            assert!(rows.len() < 50);
            ended_well += u32::from(error.is_none());
        }
        assert!(ended_well > 100);
    }
}
