//! Memory windows: what may be bound, who reaches it, who withdraws it. Rules as drivers/infiniband/sw/rxe/rxe_mw.c.

mod common;

use std::sync::Arc;

use common::{LONG, outcomes, pattern, replace_qp};
use rocexdp_proto::ids::{Pd, Qpn, RKey, WrId};
use rocexdp_proto::mem::{Access, Region, RegionError, SgList, Window, WindowKind};
use rocexdp_proto::verbs::{CqeOpcode, RecvWr, Segment, SendOp, SendWr, Status};
use rocexdp_proto::{CreateQp, QpTransition, VerbsError};
use rocexdp_sim::pair::{Bytes, Pair, PairConfig, QPNS};

const VA: u64 = 0x10_0000;
const PD: Pd = Pd(0);
const BINDABLE: Access = Access::from_bits(1 | 16).unwrap();
const RW: Access = Access::from_bits(2 | 4).unwrap();

/// End 1 has a region of 256 bytes and a window, not bound.
struct Scene {
    pair: Pair,
    bytes: Arc<Bytes>,
    region: Arc<Region>,
    window: Arc<Window>,
    id: u64,
}

impl Scene {
    fn new(kind: WindowKind, access: Access) -> Self {
        let mut pair = Pair::new(&PairConfig::default());
        let bytes = Bytes::of(pattern(256, 3));
        let ep = &mut pair.ends[1].endpoint;
        let region = ep.register_region(PD, bytes.clone(), VA, access).unwrap();
        let window = ep.alloc_window(PD, kind).unwrap();
        Self {
            pair,
            bytes,
            region,
            window,
            id: 0,
        }
    }

    /// The bind of bytes 64..128.
    fn op(&self) -> SendOp {
        self.bind_of(self.window.next_rkey(), VA + 64, 64, RW)
    }

    fn bind_of(&self, rkey: RKey, va: u64, len: u64, access: Access) -> SendOp {
        SendOp::BindMw {
            window: self.window.rkey(),
            rkey,
            region: self.region.rkey(),
            va,
            len,
            access,
        }
    }

    /// A local operation of end 1, and how it ended.
    fn local(&mut self, op: SendOp) -> Status {
        self.id += 1;
        let id = self.id;
        self.pair
            .post_send(1, SendWr::new(WrId(id), op, SgList::empty()))
            .unwrap();
        assert!(self.pair.run(LONG));
        let done = outcomes(&mut self.pair, 1);
        let kind = match op {
            SendOp::BindMw { .. } => CqeOpcode::BindMw,
            _ => CqeOpcode::LocalInvalidate,
        };
        let [(got, opcode, status)] = done[..] else {
            panic!("{done:?}");
        };
        assert_eq!((got, opcode), (id, kind));
        status
    }

    fn bind(&mut self) {
        let op = self.op();
        assert_eq!(self.local(op), Status::Success);
        assert!(self.window.is_bound());
    }

    /// A bind that is refused: it fails its QP, and leaves window and region as they were.
    fn refused(&mut self, op: SendOp) {
        let before = (
            self.window.rkey(),
            self.window.is_bound(),
            self.region.windows(),
        );
        assert_eq!(self.local(op), Status::MwBindErr, "{op:?}");
        let after = (
            self.window.rkey(),
            self.window.is_bound(),
            self.region.windows(),
        );
        assert_eq!(before, after);
        self.again();
    }

    fn again(&mut self) {
        self.pair.reconnect(&PairConfig::default());
        self.pair.completions(0);
        self.pair.completions(1);
    }

    /// How a READ of 8 bytes by the peer ends.
    fn read(&mut self, rkey: RKey, va: u64) -> Status {
        let into = Bytes::filled(8, 0);
        let op = SendOp::Read { va, rkey };
        self.pair
            .post_send(
                0,
                SendWr::new(WrId(1), op, Segment::new(into.clone(), 0, 8)),
            )
            .unwrap();
        assert!(self.pair.run(LONG));
        let status = outcomes(&mut self.pair, 0)[0].2;
        if status == Status::Success {
            let all = self.bytes.copy();
            assert!(all.chunks(8).any(|c| c == into.copy()));
        } else {
            self.again();
        }
        status
    }

    fn write(&mut self, rkey: RKey, va: u64) -> Status {
        let before = self.bytes.copy();
        let op = SendOp::Write { va, rkey };
        self.pair
            .post_send(0, SendWr::new(WrId(1), op, SgList::inline(&[0x77; 8])))
            .unwrap();
        assert!(self.pair.run(LONG));
        let status = outcomes(&mut self.pair, 0)[0].2;
        assert_eq!(self.bytes.copy() != before, status == Status::Success);
        if status != Status::Success {
            self.again();
        }
        status
    }
}

#[test]
fn a_window_opens_its_part_of_a_region_that_is_closed_to_peers() {
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let mut s = Scene::new(kind, BINDABLE);
        let (region, unbound) = (s.region.rkey(), s.window.rkey());
        assert_eq!(s.read(region, VA + 64), Status::RemAccessErr);
        assert_eq!(s.read(unbound, VA + 64), Status::RemAccessErr);
        s.bind();
        let key = s.window.rkey();
        assert_ne!(key, unbound);
        assert_eq!(key.0 >> 8, unbound.0 >> 8);
        assert_eq!(s.read(key, VA + 64), Status::Success);
        assert_eq!(s.write(key, VA + 120), Status::Success);
        for outside in [VA + 56, VA + 63, VA + 121, VA + 128, 0] {
            assert_eq!(s.read(key, outside), Status::RemAccessErr, "{outside:x}");
        }
        assert_eq!(
            s.read(unbound, VA + 64),
            Status::RemAccessErr,
            "the old key"
        );
        assert_eq!(
            s.read(region, VA + 64),
            Status::RemAccessErr,
            "the region's key"
        );
    }
}

#[test]
fn a_window_gives_no_more_rights_than_it_was_bound_with() {
    let mut s = Scene::new(WindowKind::Type2, BINDABLE);
    let op = s.bind_of(s.window.next_rkey(), VA, 64, Access::REMOTE_READ);
    assert_eq!(s.local(op), Status::Success);
    let key = s.window.rkey();
    assert_eq!(s.read(key, VA), Status::Success);
    assert_eq!(s.write(key, VA), Status::RemAccessErr);
}

#[test]
fn a_region_of_one_qp_is_not_opened_to_another_by_a_window() {
    let other = Qpn::new(0x7_7777);
    for (kind, only, fits) in [
        (WindowKind::Type1, other, false),
        (WindowKind::Type1, QPNS[1], false),
        (WindowKind::Type2, other, false),
        (WindowKind::Type2, QPNS[1], true),
    ] {
        let mut s = Scene::new(kind, BINDABLE);
        let region = s.region.rkey();
        assert!(s.pair.ends[1].endpoint.bind_region(region, Some(only)));
        if fits {
            s.bind();
            let key = s.window.rkey();
            assert_eq!(s.read(key, VA + 64), Status::Success);
            continue;
        }
        let op = s.op();
        s.refused(op);
        // The restriction was why.
        assert!(s.pair.ends[1].endpoint.bind_region(region, None));
        s.bind();
    }
}

#[test]
fn a_region_with_windows_is_not_withdrawn_until_they_are() {
    let mut s = Scene::new(WindowKind::Type2, BINDABLE);
    s.bind();
    let key = s.region.rkey();
    let why = RegionError::WindowsBound(1);
    let ep = &mut s.pair.ends[1].endpoint;
    assert_eq!(
        ep.deregister_region(key),
        Err(VerbsError::Region { key, why })
    );
    assert!(s.region.is_live() && !ep.deregister_memory(key));
    let window = s.window.rkey();
    assert_eq!(s.read(window, VA + 64), Status::Success);
    assert_eq!(s.local(SendOp::LocalInvalidate(window)), Status::Success);
    assert_eq!((s.window.is_bound(), s.region.windows()), (false, 0));
    assert_eq!(s.read(window, VA + 64), Status::RemAccessErr);
    s.pair.ends[1].endpoint.deregister_region(key).unwrap();
}

#[test]
fn freeing_a_bound_window_withdraws_it() {
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let mut s = Scene::new(kind, BINDABLE);
        let unbound = s.window.rkey();
        s.bind();
        let key = s.window.rkey();
        let ep = &mut s.pair.ends[1].endpoint;
        assert_eq!(
            ep.dealloc_window(unbound),
            Err(VerbsError::UnknownKey(unbound))
        );
        ep.dealloc_window(key).unwrap();
        assert_eq!(ep.dealloc_window(key), Err(VerbsError::UnknownKey(key)));
        assert_eq!(s.region.windows(), 0);
        assert_eq!(s.read(key, VA + 64), Status::RemAccessErr);
        let op = s.op();
        assert_eq!(s.local(op), Status::MwBindErr);
    }
}

#[test]
fn type_1_is_bound_again_at_once_and_unbound_by_no_bytes() {
    let mut s = Scene::new(WindowKind::Type1, BINDABLE);
    s.bind();
    let first = s.window.rkey();
    let op = s.bind_of(s.window.next_rkey(), VA, 8, Access::REMOTE_READ);
    assert_eq!(s.local(op), Status::Success);
    assert_eq!(s.region.windows(), 1);
    let second = s.window.rkey();
    assert_eq!(s.read(first, VA + 64), Status::RemAccessErr);
    assert_eq!(s.read(second, VA), Status::Success);
    let op = s.bind_of(s.window.next_rkey(), 0, 0, Access::NONE);
    assert_eq!(s.local(op), Status::Success);
    assert_eq!((s.window.is_bound(), s.region.windows()), (false, 0));
    assert_eq!(s.read(second, VA), Status::RemAccessErr);
    let key = s.window.rkey();
    assert_eq!(s.read(key, VA), Status::RemAccessErr);
}

#[test]
fn type_1_is_not_invalidated_and_type_2_not_bound_twice() {
    let mut s = Scene::new(WindowKind::Type1, BINDABLE);
    s.bind();
    let key = s.window.rkey();
    assert_eq!(s.local(SendOp::LocalInvalidate(key)), Status::LocQpOpErr);
    s.again();
    assert_eq!(s.read(key, VA + 64), Status::Success);

    let mut s = Scene::new(WindowKind::Type2, BINDABLE);
    let unbound = s.window.rkey();
    assert_eq!(
        s.local(SendOp::LocalInvalidate(unbound)),
        Status::LocQpOpErr
    );
    s.again();
    s.bind();
    let op = s.op();
    s.refused(op);
    let none = s.bind_of(s.window.next_rkey(), VA, 0, RW);
    s.refused(none);
    let key = s.window.rkey();
    assert_eq!(s.local(SendOp::LocalInvalidate(key)), Status::Success);
    // The low 8 bits are the consumer's to choose, the same ones too.
    let op = s.bind_of(key, VA, 64, RW);
    assert_eq!(s.local(op), Status::Success);
    assert_eq!(s.read(key, VA), Status::Success);
}

#[test]
fn a_regions_key_is_not_invalidated() {
    let mut s = Scene::new(WindowKind::Type2, BINDABLE | RW);
    let key = s.region.rkey();
    assert_eq!(s.local(SendOp::LocalInvalidate(key)), Status::LocQpOpErr);
    s.again();
    assert_eq!(s.read(key, VA), Status::Success);
    assert_eq!(
        s.local(SendOp::LocalInvalidate(RKey(key.0 ^ 0x100))),
        Status::LocQpOpErr
    );
}

#[test]
fn binds_against_the_rules_are_refused() {
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let mut s = Scene::new(kind, BINDABLE);
        let next = s.window.next_rkey();
        let part = |s: &Scene, va, len| s.bind_of(next, va, len, RW);
        // Outside the region, or beyond 2^64.
        for (va, len) in [
            (VA - 1, 8),
            (VA + 249, 8),
            (VA, 257),
            (u64::MAX, 2),
            (VA, u64::MAX),
        ] {
            let op = part(&s, va, len);
            s.refused(op);
        }
        // Rights that no window has.
        for access in [Access::LOCAL_WRITE, Access::MW_BIND] {
            let op = s.bind_of(next, VA, 8, access);
            s.refused(op);
        }
        // Another window's key; no region's; not the window's key now.
        let (window, region) = (s.window.rkey(), s.region.rkey());
        let good = |window, rkey, region| SendOp::BindMw {
            window,
            rkey,
            region,
            va: VA,
            len: 8,
            access: RW,
        };
        s.refused(good(window, RKey(next.0 ^ 0x100), region));
        s.refused(good(window, next, RKey(region.0 ^ 1)));
        s.refused(good(next, next, region));
        s.refused(good(region, next, region));
        if kind == WindowKind::Type1 {
            s.refused(good(window, window, region));
            let zero = s.bind_of(next, VA, 8, RW | Access::ZERO_BASED);
            s.refused(zero);
        }
        assert_eq!(s.local(good(window, next, region)), Status::Success);
    }
}

#[test]
fn a_region_must_allow_windows_and_writes_through_them() {
    let cases = [
        (BINDABLE, RW, true),
        (Access::MW_BIND, Access::REMOTE_READ, true),
        (Access::MW_BIND, Access::REMOTE_WRITE, false),
        (Access::MW_BIND, Access::REMOTE_ATOMIC, false),
        (Access::LOCAL_WRITE | RW, Access::REMOTE_READ, false),
        (BINDABLE | Access::ZERO_BASED, Access::REMOTE_READ, false),
    ];
    for (region, window, allowed) in cases {
        let mut s = Scene::new(WindowKind::Type2, region);
        let op = s.bind_of(s.window.next_rkey(), s.region.va(), 64, window);
        let status = s.local(op);
        assert_eq!(status == Status::Success, allowed, "{region:?} {window:?}");
    }
}

#[test]
fn a_zero_based_window_counts_addresses_from_0() {
    let mut s = Scene::new(WindowKind::Type2, BINDABLE);
    let op = s.bind_of(s.window.next_rkey(), VA + 64, 64, RW | Access::ZERO_BASED);
    assert_eq!(s.local(op), Status::Success);
    let key = s.window.rkey();
    let before = s.bytes.copy();
    assert_eq!(s.write(key, 8), Status::Success);
    let after = s.bytes.copy();
    assert_eq!(after[72..80], [0x77; 8]);
    assert_eq!((&after[..72], &after[80..]), (&before[..72], &before[80..]));
    assert_eq!(s.read(key, 56), Status::Success);
    assert_eq!(s.read(key, 57), Status::RemAccessErr);
    assert_eq!(s.read(key, VA + 64), Status::RemAccessErr);
}

#[test]
fn domains_of_qp_window_and_region_are_one() {
    let config = PairConfig::default();
    // Which of them is in the other domain.
    for other in ["qp", "window", "region", "none"] {
        let mut s = Scene::new(WindowKind::Type1, BINDABLE);
        let ep = &mut s.pair.ends[1].endpoint;
        let pd = ep.alloc_pd().unwrap();
        match other {
            "qp" => replace_qp(&mut s.pair, &config, 1, |qp| CreateQp { pd, ..qp }),
            "window" => s.window = ep.alloc_window(pd, WindowKind::Type1).unwrap(),
            "region" => {
                s.region = ep
                    .register_region(pd, s.bytes.clone(), VA, BINDABLE)
                    .unwrap();
            }
            _ => {}
        }
        let op = s.op();
        if other == "none" {
            assert_eq!(s.local(op), Status::Success);
        } else {
            assert_eq!(s.local(op), Status::MwBindErr, "{other}");
        }
    }
}

#[test]
fn another_domains_qp_does_not_reach_a_bound_window() {
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let mut s = Scene::new(kind, BINDABLE);
        s.bind();
        let key = s.window.rkey();
        let pd = s.pair.ends[1].endpoint.alloc_pd().unwrap();
        replace_qp(&mut s.pair, &PairConfig::default(), 1, |qp| CreateQp {
            pd,
            ..qp
        });
        assert_eq!(s.read(key, VA + 64), Status::RemAccessErr);
        // Type 2 goes with its QP, type 1 is its domain's.
        assert_eq!(s.window.is_bound(), kind == WindowKind::Type1);
        replace_qp(&mut s.pair, &PairConfig::default(), 1, |qp| qp);
        let status = s.read(key, VA + 64);
        assert_eq!(status == Status::Success, kind == WindowKind::Type1);
    }
}

#[test]
fn a_type_2_window_is_reached_over_its_own_qp_only() {
    let mut s = Scene::new(WindowKind::Type2, BINDABLE);
    // Another QP of the same endpoint binds it: over the peer's QP it is out of reach.
    let cq = Arc::new(rocexdp_proto::verbs::CompletionQueue::new(8));
    let qpn = Qpn::new(0x77);
    let config = PairConfig::default();
    let now = s.pair.now();
    let ep = &mut s.pair.ends[1].endpoint;
    let qp = ep.create_qp(CreateQp::rc(qpn, &cq, &cq)).unwrap();
    for to in [
        QpTransition::Init { access: RW },
        QpTransition::Rtr(rocexdp_sim::pair::rtr(&config, 1)),
        QpTransition::Rts(rocexdp_sim::pair::rts(&config, 1)),
    ] {
        ep.modify_qp(now, qpn, to).unwrap();
    }
    let op = s.op();
    qp.sq
        .post(SendWr::new(WrId(1), op, SgList::empty()))
        .unwrap();
    let ep = &mut s.pair.ends[1].endpoint;
    ep.work_posted(now, qpn);
    assert!(s.pair.run(LONG));
    assert_eq!(cq.poll().unwrap().status, Status::Success);
    let key = s.window.rkey();
    assert_eq!(s.read(key, VA + 64), Status::RemAccessErr);
    // Nor may the other QP withdraw it.
    assert_eq!(s.local(SendOp::LocalInvalidate(key)), Status::LocQpOpErr);
    assert!(s.window.is_bound());
    s.pair.ends[1].endpoint.destroy_qp(qpn).unwrap();
    assert!(!s.window.is_bound() && s.region.windows() == 0);
}

#[test]
fn a_send_with_invalidate_withdraws_the_window_and_says_which() {
    let mut s = Scene::new(WindowKind::Type2, BINDABLE);
    s.bind();
    let key = s.window.rkey();
    let inbox = Bytes::filled(8, 0);
    s.pair
        .post_recv(1, RecvWr::new(WrId(5), Segment::new(inbox, 0, 8)))
        .unwrap();
    let op = SendOp::SendInvalidate(key);
    s.pair
        .post_send(0, SendWr::new(WrId(1), op, SgList::inline(&[1; 8])))
        .unwrap();
    assert!(s.pair.run(LONG));
    assert_eq!(
        outcomes(&mut s.pair, 0),
        [(1, CqeOpcode::Send, Status::Success)]
    );
    let got = s.pair.completions(1);
    assert_eq!(got.len(), 1);
    assert_eq!(
        (got[0].status, got[0].invalidated),
        (Status::Success, Some(key))
    );
    assert_eq!((s.window.is_bound(), s.region.windows()), (false, 0));
    assert_eq!(s.read(key, VA + 64), Status::RemAccessErr);
}

#[test]
fn a_window_known_to_two_endpoints_is_bound_and_freed_for_both() {
    let mut s = Scene::new(WindowKind::Type1, BINDABLE);
    let mut other = rocexdp_proto::Endpoint::new(rocexdp_proto::EndpointConfig::default(), 9);
    other.add_window(&s.window).unwrap();
    assert!(matches!(
        other.add_window(&s.window),
        Err(VerbsError::KeyTaken(_))
    ));
    s.bind();
    assert!(s.window.is_bound());
    other.dealloc_window(s.window.rkey()).unwrap();
    assert!(!s.window.is_bound());
    let (key, op) = (s.window.rkey(), s.op());
    assert_eq!(s.read(key, VA + 64), Status::RemAccessErr);
    assert_eq!(s.local(op), Status::MwBindErr);
    assert!(s.pair.ends[1].endpoint.qp_info(QPNS[1]).is_some());
}

#[test]
fn a_window_outlives_a_reset_of_its_qp_and_not_the_qp() {
    let mut s = Scene::new(WindowKind::Type2, BINDABLE);
    s.bind();
    let key = s.window.rkey();
    let now = s.pair.now();
    let ep = &mut s.pair.ends[1].endpoint;
    ep.modify_qp(now, QPNS[1], QpTransition::Reset).unwrap();
    assert!(s.window.is_bound());
    s.again();
    assert_eq!(s.read(key, VA + 64), Status::Success);
    assert_eq!(s.local(SendOp::LocalInvalidate(key)), Status::Success);
    s.bind();
    s.pair.ends[1].endpoint.destroy_qp(QPNS[1]).unwrap();
    assert_eq!((s.window.is_bound(), s.region.windows()), (false, 0));
}
