//! QP 1, the general services interface: a UD QP at all of the host's addresses, with a Q_Key of its own; and the counters that tell
//! the wire's packets from those that never were on one.

mod common;
#[path = "common/softroce.rs"]
mod softroce;

use std::sync::Arc;

use common::pattern;
use rocexdp_proto::ids::{Gid, PathMtu, Psn, Qpn, WrId};
use rocexdp_proto::mem::Access;
use rocexdp_proto::rng::Rng;
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{
    AddressHandle, CompletionQueue, Datagram, GSI_QKEY, GSI_QPN, RecvWr, Segment, SendOp, SendWr,
    Status,
};
use rocexdp_proto::wire::{GRH_ROOM, Grh, Origin, Path, RxMeta};
use rocexdp_proto::{
    CreateQp, DropReason, Endpoint, EndpointConfig, QpHandle, QpTransition, UdAttr, VerbsError,
};
use rocexdp_sim::pair::Bytes;

const NOW: Timestamp = Timestamp::ZERO;
const MAD: usize = 256;

struct Gsi {
    ep: Endpoint,
    qp: QpHandle,
    cq: Arc<CompletionQueue>,
    inbox: Arc<Bytes>,
}

fn init(address: Gid) -> QpTransition {
    QpTransition::InitUd(UdAttr {
        address,
        qkey: GSI_QKEY,
        path_mtu: PathMtu::Mtu1024,
    })
}

impl Gsi {
    fn new() -> Self {
        let mut ep = Endpoint::new(EndpointConfig::default(), 1);
        let cq = Arc::new(CompletionQueue::new(64));
        let qp = ep.create_qp(CreateQp::ud(GSI_QPN, &cq, &cq)).unwrap();
        for to in [
            init([0; 16]),
            QpTransition::RtrUd,
            QpTransition::RtsUd {
                sq_psn: Psn::new(5),
            },
        ] {
            ep.modify_qp(NOW, GSI_QPN, to).unwrap();
        }
        let inbox = Bytes::filled(GRH_ROOM + MAD, 0xee);
        let gsi = Self { ep, qp, cq, inbox };
        for n in 0..8 {
            gsi.receive(n);
        }
        gsi
    }

    fn receive(&self, n: u64) {
        let place = Segment::new(self.inbox.clone(), 0, (GRH_ROOM + MAD) as u32);
        self.qp.rq.post(RecvWr::new(WrId(n), place)).unwrap();
    }

    /// The frame of a MAD on this way.
    fn mad(&mut self, path: Path, qkey: u32, bytes: &[u8]) -> Vec<u8> {
        let ah = Arc::new(AddressHandle::new(path).unwrap());
        let to = Datagram {
            ah,
            qpn: GSI_QPN,
            qkey,
        };
        let source = Bytes::of(bytes.to_vec());
        let all = Segment::new(source, 0, bytes.len() as u32);
        let wr = SendWr::new(WrId(9), SendOp::Send, all);
        self.qp.sq.post(wr.to(to)).unwrap();
        self.ep.work_posted(NOW, GSI_QPN);
        let packet = self.ep.poll_transmit(NOW).expect("a packet");
        let mut frame = vec![0; packet.len()];
        packet.write(&mut [&mut frame]).unwrap();
        assert!(self.ep.poll_transmit(NOW).is_none());
        let sent = self.cq.poll().expect("it has left");
        assert_eq!((sent.wr_id, sent.status), (WrId(9), Status::Success));
        frame
    }

    fn take(&mut self, frame: &[u8], origin: Origin) -> Result<(), DropReason> {
        let meta = RxMeta {
            origin,
            ..RxMeta::default()
        };
        self.ep.handle_frame(NOW, &meta, &[frame])
    }
}

#[test]
fn mads_come_and_go_at_every_address_of_the_host() {
    let (mut a, mut b) = (Gsi::new(), Gsi::new());
    for ipv6 in [false, true] {
        let path = softroce::path(0, ipv6);
        let sent = pattern(MAD, 3);
        let frame = a.mad(path, GSI_QKEY, &sent);
        b.take(&frame, Origin::Wire).unwrap();
        let done = b.cq.poll().unwrap();
        assert_eq!(
            (done.status, done.byte_len, done.src_qpn),
            (Status::Success, (GRH_ROOM + MAD) as u32, Some(GSI_QPN))
        );
        let got = b.inbox.copy();
        assert!(got[GRH_ROOM..] == sent);
        let grh = Grh::new(got[..GRH_ROOM].try_into().unwrap());
        assert_eq!((grh.src(), grh.dst()), (path.src, path.dst));
    }
    let stats = b.ep.qp_info(GSI_QPN).unwrap().stats;
    assert_eq!((stats.rx_accepted, stats.rx_looped), (2, 0));
}

#[test]
fn a_mad_with_another_q_key_is_dropped_by_that_name() {
    let (mut a, mut b) = (Gsi::new(), Gsi::new());
    let frame = a.mad(softroce::path(0, false), 0x1111_1111, &pattern(MAD, 3));
    assert_eq!(b.take(&frame, Origin::Wire), Err(DropReason::QKey));
    assert!(b.cq.is_empty());
}

#[test]
fn qp_1_is_ud_has_no_address_of_its_own_and_is_there_once() {
    let mut ep = Endpoint::new(EndpointConfig::default(), 1);
    let cq = Arc::new(CompletionQueue::new(4));
    let taken = Err(VerbsError::QpnTaken(GSI_QPN));
    let mut create = |create: CreateQp| ep.create_qp(create).map(|qp| qp.qpn);
    assert_eq!(create(CreateQp::rc(GSI_QPN, &cq, &cq)), taken);
    assert_eq!(create(CreateQp::uc(GSI_QPN, &cq, &cq)), taken);
    let zero = Qpn::new(0);
    assert_eq!(
        create(CreateQp::ud(zero, &cq, &cq)),
        Err(VerbsError::QpnTaken(zero))
    );
    assert_eq!(create(CreateQp::ud(GSI_QPN, &cq, &cq)), Ok(GSI_QPN));
    assert_eq!(create(CreateQp::ud(GSI_QPN, &cq, &cq)), taken);
    let other = Qpn::new(0x80_0001);
    assert_eq!(create(CreateQp::ud(other, &cq, &cq)), Ok(other));
    let ours = softroce::path(0, false).src;
    for (qpn, address) in [(GSI_QPN, ours), (other, [0; 16])] {
        let refused = ep.modify_qp(NOW, qpn, init(address));
        assert!(
            matches!(refused, Err(VerbsError::InvalidAttr { .. })),
            "{refused:?}"
        );
    }
}

#[test]
fn packets_that_were_never_on_the_wire_are_counted_apart() {
    let (mut a, mut b) = (Gsi::new(), Gsi::new());
    let path = softroce::path(0, false);
    let frame = a.mad(path, GSI_QKEY, &pattern(MAD, 1));
    b.take(&frame, Origin::Looped).unwrap();
    b.take(&frame, Origin::Wire).unwrap();
    let wrong = a.mad(path, 1, &pattern(MAD, 1));
    assert_eq!(b.take(&wrong, Origin::Looped), Err(DropReason::QKey));
    let stats = b.ep.qp_info(GSI_QPN).unwrap().stats;
    assert_eq!(
        (stats.rx_looped, stats.rx_accepted, stats.rx_dropped),
        (2, 2, 1)
    );
}

/// Whatever is done to a MAD's bytes, and whatever its length: no panic, nothing beside the place, and QP 1 works afterwards.
#[test]
fn hostile_mads_do_no_harm() {
    let (mut a, mut b) = (Gsi::new(), Gsi::new());
    let guard = Bytes::filled(64, 0x55);
    b.ep.register_memory(guard.clone(), 0x1000, Access::REMOTE_WRITE)
        .unwrap();
    let path = softroce::path(0, false);
    let mut rng = Rng::new(11);
    let mut taken = 0;
    for n in 0..20_000 {
        let len = [0, 1, 255, 256, 257, 1024][rng.below(6) as usize];
        let mut frame = a.mad(path, GSI_QKEY, &pattern(len, n));
        // What has a right ICRC must be taken or dropped for what it is.
        if rng.below(2) == 0 {
            let at = rng.below(frame.len() as u64) as usize;
            frame[at] ^= 1 << rng.below(8);
            frame.truncate(frame.len() - rng.below(3) as usize);
        }
        taken += u64::from(b.take(&frame, Origin::Wire).is_ok());
        while let Some(done) = b.cq.poll() {
            b.receive(done.wr_id.0);
        }
    }
    assert!(taken > 5_000, "{taken}");
    assert!(guard.copy().iter().all(|byte| *byte == 0x55));
    let sent = pattern(MAD, 77);
    let frame = a.mad(path, GSI_QKEY, &sent);
    b.take(&frame, Origin::Wire).unwrap();
    assert_eq!(b.cq.poll().unwrap().status, Status::Success);
    assert!(b.inbox.copy()[GRH_ROOM..] == sent);
}
