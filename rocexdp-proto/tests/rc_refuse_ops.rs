//! READs, atomics, FLUSHes, ATOMIC WRITEs and invalidations that the responder refuses: which NAK each gets, that the memory is
//! as it was, and what the receiving side is told. SENDs and WRITEs are in `rc_refuse.rs`.

mod common;

use std::sync::Arc;

use common::responder::{FIRST, LEN, Responder, VA};
use common::{Craft, LONG, outcomes, recv_wr, send_wr, stats};
use rocexdp_common::headers::{Feth, FlushRange, Syndrome};
use rocexdp_common::opcode::{Opcode, rc};
use rocexdp_proto::ids::{PathMtu, Pd, Qpn, RKey, WrId};
use rocexdp_proto::mem::{Access, Atomic, Memory, MemoryFault, Region, Window, WindowKind};
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{CompletionQueue, Cqe, CqeOpcode, SendOp, SendWr, SgList, Status};
use rocexdp_proto::{
    AsyncError, CreateQp, DropReason, Endpoint, Event, QpHandle, QpState, QpTransition, RtrAttr,
    RtsAttr,
};
use rocexdp_sim::pair::{Bytes, PairConfig, QPNS, path};

const INVALID: Syndrome = Syndrome::NakInvalidRequest;
const ACCESS: Syndrome = Syndrome::NakRemoteAccess;
const OPERATIONAL: Syndrome = Syndrome::NakRemoteOperational;

fn all_rights() -> Access {
    Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::FLUSH_GLOBAL
        | Access::FLUSH_PERSISTENT
}

fn to_visibility(selectivity: FlushRange) -> Feth {
    Feth {
        global_visibility: true,
        persistence: false,
        placement_reserved: 0,
        selectivity,
    }
}

fn to_persistence() -> Feth {
    Feth {
        global_visibility: false,
        persistence: true,
        ..to_visibility(FlushRange::Range)
    }
}

/// A request of one packet, to this address by this key.
type Make = fn(u64, u32) -> Craft;

fn packet(opcode: Opcode) -> Craft {
    Craft::new(0, opcode, FIRST)
}

/// One of each operation with the right that it needs, and which byte of the region it reaches last.
const OPERATIONS: [(&str, Access, Make); 6] = [
    ("READ", Access::REMOTE_READ, |va, key| {
        packet(rc::READ_REQUEST).reth(va, key, 8)
    }),
    ("COMPARE_SWAP", Access::REMOTE_ATOMIC, |va, key| {
        packet(rc::COMPARE_SWAP).atomic(va, key, 1, 2)
    }),
    ("FETCH_ADD", Access::REMOTE_ATOMIC, |va, key| {
        packet(rc::FETCH_ADD).atomic(va, key, 1, 0)
    }),
    ("ATOMIC WRITE", Access::REMOTE_WRITE, |va, key| {
        packet(rc::ATOMIC_WRITE).reth(va, key, 8).payload(&[1; 8])
    }),
    ("FLUSH to visibility", Access::FLUSH_GLOBAL, |va, key| {
        packet(rc::FLUSH)
            .feth(to_visibility(FlushRange::Range))
            .reth(va, key, 8)
    }),
    (
        "FLUSH to persistence",
        Access::FLUSH_PERSISTENT,
        |va, key| packet(rc::FLUSH).feth(to_persistence()).reth(va, key, 8),
    ),
];

/// The packet gets this NAK, the QP goes to ERR with the event that belongs to it, and the memory is as it was.
fn refused(what: &str, syndrome: Syndrome, mut r: Responder, packet: &Craft) {
    let before = r.bytes.copy();
    let answers = r.feed(core::slice::from_ref(packet));
    assert_eq!(answers.len(), 1, "{what}");
    assert_eq!(
        (answers[0].opcode, answers[0].psn, answers[0].aeth),
        (rc::ACKNOWLEDGE, FIRST, Some((syndrome, 0))),
        "{what}"
    );
    let info = r.pair.ends[1].endpoint.qp_info(QPNS[1]).unwrap();
    assert_eq!(
        (info.state, info.expected_psn),
        (QpState::Err, FIRST),
        "{what}"
    );
    let event = match syndrome {
        INVALID => AsyncError::InvalidRequest,
        ACCESS => AsyncError::Access,
        _ => AsyncError::Fatal,
    };
    let [Event::QpError { cause, .. }] = r.pair.ends[1].events[..] else {
        panic!("{what}: {:?}", r.pair.ends[1].events);
    };
    assert_eq!(cause.async_error(), Some(event), "{what}");
    assert_eq!(r.bytes.copy(), before, "{what}");
}

/// A responder whose QP allows this.
fn serving(access: Access) -> Responder {
    Responder::new(PairConfig {
        path_mtu: PathMtu::Mtu256,
        access,
        ..PairConfig::default()
    })
}

/// The rights of [`all_rights`] but for these.
fn without(right: Access) -> Access {
    Access::from_bits(all_rights().bits() & !right.bits()).unwrap()
}

#[test]
fn what_the_qp_does_not_serve_is_an_invalid_request() {
    for (what, right, make) in OPERATIONS {
        let r = serving(without(right));
        let packet = make(VA, r.rkey.0);
        refused(what, INVALID, r, &packet);
        // With this right alone of the QP's it is served (that to persistence, below, fails for another reason).
        let mut r = serving(right);
        let packet = make(VA, r.rkey.0);
        let answers = r.feed(&[packet]);
        assert_ne!(answers[0].aeth.map(|(s, _)| s), Some(INVALID), "{what}");
    }
}

#[test]
fn what_the_region_does_not_allow_is_a_remote_access_error() {
    for (what, right, make) in OPERATIONS {
        let mut r = serving(all_rights());
        let rights = without(right);
        let rights = if rights.contains(Access::LOCAL_WRITE) {
            rights
        } else {
            Access::NONE
        };
        let end = &mut r.pair.ends[1].endpoint;
        let region = end.register_memory(r.bytes.clone(), VA, rights).unwrap();
        let packet = make(VA, region.rkey.0);
        refused(what, ACCESS, r, &packet);
    }
}

#[test]
fn a_key_that_is_none_or_a_range_outside_the_region_is_a_remote_access_error() {
    let end = VA + LEN as u64;
    for (what, _, make) in OPERATIONS {
        for (where_, va, wrong) in [
            ("no such key", VA, 1),
            ("before the region", VA - 8, 0),
            ("beyond the region", end, 0),
            ("beyond 2^64", u64::MAX - 7, 0),
        ] {
            let r = serving(all_rights());
            let packet = make(va, r.rkey.0 ^ wrong);
            refused(&format!("{what}, {where_}"), ACCESS, r, &packet);
        }
    }
    // A READ and a FLUSH that reach one byte too far.
    let r = serving(all_rights());
    let read = packet(rc::READ_REQUEST).reth(end - 8, r.rkey.0, 9);
    refused("READ", ACCESS, r, &read);
    let r = serving(all_rights());
    let read = packet(rc::READ_REQUEST).reth(VA, r.rkey.0, 1 << 31);
    refused("READ of 2^31 bytes", ACCESS, r, &read);
    let r = serving(all_rights());
    let flush = packet(rc::FLUSH)
        .feth(to_visibility(FlushRange::Range))
        .reth(VA + 1, r.rkey.0, LEN as u32);
    refused("FLUSH", ACCESS, r, &flush);
    // The last bytes are in.
    for (what, _, make) in OPERATIONS.into_iter().take(5) {
        let mut r = serving(all_rights());
        let packet = make(end - 8, r.rkey.0);
        let aeth = r.feed(&[packet])[0].aeth;
        assert_eq!(aeth, Some((Syndrome::Ack(0x1f), 1)), "{what}");
    }
}

#[test]
fn a_key_of_another_qp_or_protection_domain_is_a_remote_access_error() {
    for (what, _, make) in OPERATIONS {
        let mut r = serving(all_rights());
        let other = Qpn::new(QPNS[1].get() + 1);
        let end = &mut r.pair.ends[1].endpoint;
        assert!(end.bind_region(r.rkey, Some(other)));
        let packet = make(VA, r.rkey.0);
        refused(&format!("{what}, another QP's"), ACCESS, r, &packet);

        let mut r = serving(all_rights());
        let end = &mut r.pair.ends[1].endpoint;
        let pd = end.alloc_pd().unwrap();
        let region = end
            .register_region(pd, r.bytes.clone(), VA, all_rights())
            .unwrap();
        let packet = make(VA, region.rkey().0);
        refused(&format!("{what}, another domain's"), ACCESS, r, &packet);
    }
}

#[test]
fn misaligned_atomics_are_invalid_requests() {
    for (what, _, make) in OPERATIONS.into_iter().skip(1).take(3) {
        for off in 1..8 {
            let r = serving(all_rights());
            let packet = make(VA + off, r.rkey.0);
            refused(&format!("{what} at {off}"), INVALID, r, &packet);
        }
    }
}

#[test]
fn an_atomic_write_of_other_than_8_bytes_is_an_invalid_request() {
    for (announced, sent) in [
        (8, 0),
        (8, 4),
        (8, 7),
        (8, 9),
        (8, 16),
        (0, 8),
        (7, 8),
        (16, 16),
    ] {
        let r = serving(all_rights());
        let packet = packet(rc::ATOMIC_WRITE)
            .reth(VA, r.rkey.0, announced)
            .payload(&vec![9; sent]);
        refused(
            &format!("{sent} bytes, {announced} announced"),
            INVALID,
            r,
            &packet,
        );
    }
}

#[test]
fn a_request_with_a_payload_where_there_is_none_is_invalid() {
    for (what, _, make) in OPERATIONS {
        if what == "ATOMIC WRITE" {
            continue;
        }
        let r = serving(all_rights());
        let packet = make(VA, r.rkey.0).payload(&[1; 4]);
        refused(what, INVALID, r, &packet);
        let r = serving(all_rights());
        let mut packet = make(VA, r.rkey.0);
        packet.bth.pad = 2;
        refused(&format!("{what} with pad"), INVALID, r, &packet);
    }
}

#[test]
fn a_length_over_2_to_the_31_is_an_invalid_request() {
    let r = serving(all_rights());
    let read = packet(rc::READ_REQUEST).reth(VA, r.rkey.0, 0x8000_0001);
    refused("READ", INVALID, r, &read);
    let r = serving(all_rights());
    let flush = packet(rc::FLUSH)
        .feth(to_visibility(FlushRange::Range))
        .reth(VA, r.rkey.0, 0x8000_0001);
    refused("FLUSH", INVALID, r, &flush);
}

#[test]
fn a_flush_that_selects_nothing_is_an_invalid_request() {
    let nothing = Feth {
        global_visibility: false,
        ..to_visibility(FlushRange::Range)
    };
    for feth in [
        nothing,
        to_visibility(FlushRange::Reserved(2)),
        to_visibility(FlushRange::Reserved(3)),
    ] {
        let r = serving(all_rights());
        let flush = packet(rc::FLUSH).feth(feth).reth(VA, r.rkey.0, 8);
        refused(&format!("{feth:?}"), INVALID, r, &flush);
    }
}

/// Memory of a host does not last; and an atomic on memory that the host has not aligned can't be done.
#[test]
fn what_the_memory_cannot_do_is_a_remote_operational_error() {
    /// Memory on an odd address of the host.
    struct Odd(Arc<Bytes>);
    impl Memory for Odd {
        fn len(&self) -> u64 {
            self.0.len() - 1
        }
        fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
            self.0.read(offset + 1, dst)
        }
        fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryFault> {
            self.0.write(offset + 1, src)
        }
        fn atomic(&self, offset: u64, op: Atomic) -> Result<u64, MemoryFault> {
            self.0.atomic(offset + 1, op)
        }
    }
    for (what, _, make) in OPERATIONS.into_iter().skip(1) {
        if what == "FLUSH to visibility" {
            continue;
        }
        let mut r = serving(all_rights());
        let end = &mut r.pair.ends[1].endpoint;
        let odd = Arc::new(Odd(r.bytes.clone()));
        let region = end.register_memory(odd, VA, all_rights()).unwrap();
        let packet = make(VA, region.rkey.0);
        refused(what, OPERATIONAL, r, &packet);
    }
}

#[test]
fn a_flush_reaches_the_range_or_the_whole_region_and_as_it_asks() {
    use std::sync::Mutex;
    /// Memory that notes what it is flushed by.
    struct Noting(Mutex<Vec<(u64, u64, bool)>>);
    impl Memory for Noting {
        fn len(&self) -> u64 {
            1000
        }
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), MemoryFault> {
            Ok(())
        }
        fn write(&self, _: u64, _: &[u8]) -> Result<(), MemoryFault> {
            Ok(())
        }
        fn atomic(&self, _: u64, _: Atomic) -> Result<u64, MemoryFault> {
            Err(MemoryFault)
        }
        fn flush(&self, offset: u64, len: u64, persistent: bool) -> Result<(), MemoryFault> {
            self.0.lock().unwrap().push((offset, len, persistent));
            Ok(())
        }
    }
    let memory = Arc::new(Noting(Mutex::default()));
    let mut r = serving(all_rights());
    let end = &mut r.pair.ends[1].endpoint;
    let key = end
        .register_memory(memory.clone(), VA, all_rights())
        .unwrap()
        .rkey
        .0;
    let both = Feth {
        persistence: true,
        ..to_visibility(FlushRange::Region)
    };
    for (n, (feth, va, len)) in [
        (to_visibility(FlushRange::Range), VA + 16, 100),
        (to_persistence(), VA, 1000),
        // Address and length are not looked at.
        (to_visibility(FlushRange::Region), 0, 0),
        (both, u64::MAX, 0xffff),
        (to_visibility(FlushRange::Range), VA + 1000, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let flush = Craft::new(0, rc::FLUSH, FIRST.add(n as u32))
            .feth(feth)
            .reth(va, key, len);
        assert_eq!(r.answers(&[flush]), [(rc::READ_RESPONSE_ONLY, n as i32)]);
    }
    assert_eq!(
        *memory.0.lock().unwrap(),
        [
            (16, 100, false),
            (0, 1000, true),
            (0, 1000, false),
            (0, 1000, true),
            (1000, 0, false)
        ]
    );
}

#[test]
fn opcodes_that_are_undefined_or_of_another_service_change_nothing() {
    for (opcode, reason) in [
        // RESYNC is RD's.
        (Opcode(0x15), DropReason::UnknownOpcode),
        (Opcode(0x18), DropReason::UnknownOpcode),
        (Opcode(0x1f), DropReason::UnknownOpcode),
        (Opcode(0x24), DropReason::TransportMismatch),
        (Opcode(0x64), DropReason::TransportMismatch),
    ] {
        let mut r = serving(all_rights());
        let mut craft = packet(opcode);
        craft.extensions = vec![0; 32];
        assert_eq!(r.feed(&[craft]), [], "{opcode:?}");
        let end = &r.pair.ends[1].endpoint;
        assert_eq!(end.counters().drops[reason.index()], 1, "{opcode:?}");
        let info = end.qp_info(QPNS[1]).unwrap();
        assert_eq!((info.state, info.expected_psn), (QpState::Rts, FIRST));
    }
}

/// Another QP, in RTS, of the same domain.
fn another_qp(end: &mut Endpoint, config: &PairConfig) -> QpHandle {
    let cq = Arc::new(CompletionQueue::new(4));
    let qp = end.create_qp(CreateQp::rc(Qpn::new(77), &cq, &cq)).unwrap();
    let rtr = RtrAttr {
        dest_qpn: Qpn::new(78),
        path_mtu: config.path_mtu,
        rq_psn: FIRST,
        min_rnr_timer: 1,
        max_dest_rd_atomic: 1,
        selective: None,
        path: path(config, 1),
    };
    let rts = RtsAttr {
        sq_psn: FIRST,
        timeout: 8,
        retry_cnt: 1,
        rnr_retry: 1,
        max_rd_atomic: 1,
    };
    let access = config.access;
    for to in [
        QpTransition::Init { access },
        QpTransition::Rtr(rtr),
        QpTransition::Rts(rts),
    ] {
        end.modify_qp(Timestamp::ZERO, qp.qpn, to).unwrap();
    }
    qp
}

/// A QP of end 1, its own or another, binds a type 2 window to the first 64 bytes of the region; gives its key.
fn window(r: &mut Responder, own: bool) -> RKey {
    let end = &mut r.pair.ends[1].endpoint;
    let rights = all_rights() | Access::MW_BIND;
    let region = Region::new(RKey(0x77), Pd::default(), r.bytes.clone(), VA, rights).unwrap();
    end.add_region(&region).unwrap();
    let window = Window::new(RKey(0x1234_5600), Pd::default(), WindowKind::Type2).unwrap();
    end.add_window(&window).unwrap();
    let rkey = window.next_rkey();
    let bind = SendOp::BindMw {
        window: window.rkey(),
        rkey,
        region: region.rkey(),
        va: VA,
        len: 64,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
    };
    let wr = SendWr::new(WrId(9), bind, SgList::empty());
    if own {
        r.pair.post_send(1, wr).unwrap();
        assert!(r.pair.run(LONG));
        let bound = [(9, CqeOpcode::BindMw, Status::Success)];
        assert_eq!(outcomes(&mut r.pair, 1), bound);
    } else {
        let other = another_qp(&mut r.pair.ends[1].endpoint, &r.config);
        other.sq.post(wr).unwrap();
        let end = &mut r.pair.ends[1].endpoint;
        end.work_posted(Timestamp::ZERO, other.qpn);
        assert!(end.poll_transmit(Timestamp::ZERO).is_none());
    }
    assert!(window.is_bound());
    rkey
}

#[test]
fn a_send_with_invalidate_withdraws_the_window_behind_its_message_and_says_so() {
    let mut r = Responder::small();
    let key = window(&mut r, true);
    let inbox = Bytes::filled(512, 0);
    r.pair.post_recv(1, recv_wr(1, &inbox, 512)).unwrap();
    let write = |n| {
        Craft::new(0, rc::WRITE_ONLY, FIRST.add(n))
            .reth(VA, key.0, 4)
            .payload(&[5; 4])
            .asking()
    };
    let first = r.packet(1, rc::SEND_FIRST).payload(&[3; 256]);
    let last = r
        .packet(2, rc::SEND_LAST_INVALIDATE)
        .invalidate(key.0)
        .payload(&[4; 10])
        .asking();
    assert_eq!(r.answers(&[write(0), first]), [(rc::ACKNOWLEDGE, 1)]);
    assert_eq!(r.answers(&[last]), [(rc::ACKNOWLEDGE, 2)]);
    let done = r.pair.completions(1);
    let [
        Cqe {
            status: Status::Success,
            byte_len: 266,
            invalidated,
            imm: None,
            ..
        },
    ] = done[..]
    else {
        panic!("{done:?}");
    };
    assert_eq!(invalidated, Some(key));
    // It is withdrawn.
    let answers = r.feed(&[write(3)]);
    assert_eq!(answers[0].aeth, Some((ACCESS, 2)));
}

#[test]
fn an_invalidation_of_a_key_that_cannot_be_is_a_remote_access_error() {
    for what in ["no window", "a region", "another QP's window"] {
        let mut r = Responder::small();
        let key = match what {
            "no window" => 0x1234_5678,
            "a region" => r.rkey.0,
            _ => window(&mut r, false).0,
        };
        let inbox = Bytes::filled(64, 0);
        for id in [1, 2] {
            r.pair.post_recv(1, recv_wr(id, &inbox, 64)).unwrap();
        }
        let send = packet(rc::SEND_ONLY_INVALIDATE)
            .invalidate(key)
            .payload(&[3; 8]);
        let answers = r.feed(&[send]);
        assert_eq!(answers[0].aeth, Some((ACCESS, 0)), "{what}");
        let ended = [
            (1, CqeOpcode::Recv, Status::RemInvReqErr),
            (2, CqeOpcode::Recv, Status::WrFlushErr),
        ];
        assert_eq!(outcomes(&mut r.pair, 1), ended, "{what}");
    }
}

#[test]
fn memory_of_a_receive_request_that_faults_fails_at_both_ends() {
    let mut r = Responder::small();
    let inbox = Bytes::filled(64, 0);
    for id in [5, 6] {
        r.pair.post_recv(1, recv_wr(id, &inbox, 64)).unwrap();
    }
    inbox.take_away();
    let send = send_wr(1, SendOp::Send, &Bytes::filled(64, 7), 64);
    r.pair.post_send(0, send).unwrap();
    assert!(r.pair.run(LONG));
    assert_eq!(
        outcomes(&mut r.pair, 0),
        [(1, CqeOpcode::Send, Status::RemOpErr)]
    );
    let ended = [
        (5, CqeOpcode::Recv, Status::LocProtErr),
        (6, CqeOpcode::Recv, Status::WrFlushErr),
    ];
    assert_eq!(outcomes(&mut r.pair, 1), ended);
}

/// Hardware of others: any credit count, MigReq or not, AckReq on a FIRST, any source port (capture of a hns device).
#[test]
fn what_senders_differ_in_is_taken() {
    let mut r = Responder::small();
    let inbox = Bytes::filled(512, 0);
    r.pair.post_recv(1, recv_wr(1, &inbox, 512)).unwrap();
    let mut first = r.packet(0, rc::SEND_FIRST).payload(&[1; 256]).asking();
    first.bth.mig_req = true;
    first.bth.fecn = true;
    let last = r.packet(1, rc::SEND_LAST).payload(&[1; 4]).asking();
    assert_eq!(r.answers(&[first]), [(rc::ACKNOWLEDGE, 0)]);
    assert_eq!(r.answers(&[last]), [(rc::ACKNOWLEDGE, 1)]);
    assert_eq!(stats(&r.pair, 1).rx_accepted, 2);
}
