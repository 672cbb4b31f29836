//! Any bytes as a frame: nothing panics, what is found lies inside the frame, the same frame in pieces says the same, and
//! the observer agrees with the endpoint's parser.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rocexdp_common::{
    bytes::Bytes,
    dissect::{Captured, Dissected, Kind, dissect, dissect_at, dissect_ip, extensions},
    icrc, mad,
    opcode::{self, extensions_len},
    parse::{NotParsed, parse},
};
use rocexdp_fuzz::Look;

fn look<B: Bytes + ?Sized>(look: &Look<'_>, frame: &B) -> Dissected {
    match look.from {
        0 => dissect(frame),
        1 => dissect_ip(frame),
        _ => dissect_at(frame, u32::from(look.at), look.ether_type),
    }
}

fuzz_target!(|data: &[u8]| {
    let Some(input) = Look::read(data) else {
        return;
    };
    let frame = input.frame;
    let captured = Captured {
        data: frame,
        wire_len: frame.len() as u32 + u32::from(input.missing),
    };
    let whole = look(&input, frame);
    let (a, b) = frame.split_at(frame.len() / 3);
    let pieces: [&[u8]; 2] = [a, b];
    assert_eq!(look(&input, &pieces[..]), whole, "in two pieces");

    let d = look(&input, &captured);
    if input.missing == 0 {
        assert_eq!(d, whole, "captured whole");
    }
    if let Some(p) = d.kind.packet() {
        let bth = p.udp_at + 8;
        assert!(p.ip_at < p.udp_at && bth + 12 + 4 <= p.end && p.end <= captured.wire_len);
        let ext = extensions(&captured, p);
        if let Some(ext) = ext {
            let set = p.bth.opcode.extensions().expect("a defined opcode");
            assert_eq!(ext.payload_at, bth + 12 + extensions_len(set) as u32);
            let behind = ext.payload_at + p.payload + u32::from(p.bth.pad) + 4;
            assert_eq!(behind, p.end, "payload, pad and ICRC fill the packet");
            assert!(ext.reth.is_none_or(|r| r.length == p.reth_length));
            assert_eq!(ext.aeth, p.aeth);
        }
        assert_eq!(
            opcode::name(p.bth.opcode) == opcode::UNKNOWN,
            p.operation.is_none()
        );
        if let Some(datagram) = mad::datagram(&captured, p) {
            assert!(datagram.data_at as usize + mad::DATA_LEN <= p.end as usize - 4);
            if let Some(cm) = datagram.cm {
                let (at, len) = cm.private_data();
                assert!(!cm.name().is_empty() && at + len == mad::DATA_LEN);
            }
        }
        if let Kind::RoceV2(p) = d.kind {
            icrc::check(&captured, &p);
        }
    }
    if input.from == 0 {
        let parsed = parse(frame);
        match (whole.kind, parsed) {
            (Kind::RoceV2(p), Ok(q)) => assert!(p == q && whole.tunnel.is_none()),
            (Kind::RoceV2(_), _) => assert!(whole.tunnel.is_some()),
            (_, Ok(_)) => panic!("{:?}, but the endpoint takes it", whole.kind),
            (Kind::Malformed(r) | Kind::Unfollowed(r), Err(NotParsed::Malformed(s))) => {
                assert_eq!(r, s);
            }
            (kind, Err(NotParsed::Malformed(r))) => panic!("{kind:?}, the endpoint: {r:?}"),
            (_, Err(NotParsed::Other)) => {}
        }
    }
});
