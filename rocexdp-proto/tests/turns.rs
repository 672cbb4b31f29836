//! A QP that has both requests of its own and READ responses to send.

mod common;

use common::{Craft, pattern};
use rocexdp_common::opcode::rc;
use rocexdp_proto::ids::{Pd, WrId};
use rocexdp_proto::mem::{Access, SgList, WindowKind};
use rocexdp_proto::verbs::{SendOp, SendWr};
use rocexdp_proto::wire::{RxMeta, TransmitKind};
use rocexdp_sim::pair::{Bytes, Pair, PairConfig};

/// The driver asks again only when something happens.
#[test]
fn a_local_operation_does_not_use_up_the_turn_of_a_read_response() {
    let config = PairConfig::default();
    let mut pair = Pair::new(&config);
    let bytes = Bytes::of(pattern(256, 1));
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::MW_BIND;
    let ep = &mut pair.ends[1].endpoint;
    let region = ep
        .register_region(Pd::default(), bytes, 0x1000, access)
        .unwrap();
    let window = ep.alloc_window(Pd::default(), WindowKind::Type2).unwrap();
    let bind = SendOp::BindMw {
        window: window.rkey(),
        rkey: window.next_rkey(),
        region: region.rkey(),
        va: 0x1000,
        len: 64,
        access: Access::REMOTE_READ,
    };
    let now = pair.now();
    let read = Craft::new(0, rc::READ_REQUEST, config.psn[0])
        .asking()
        .reth(0x1000, region.rkey().0, 256)
        .frame(&config, 0);
    let ep = &mut pair.ends[1].endpoint;
    ep.handle_frame(now, &RxMeta::default(), &[&read]).unwrap();
    pair.post_send(1, SendWr::new(WrId(1), bind, SgList::empty()))
        .unwrap();
    let sent = pair.ends[1].endpoint.poll_transmit(now);
    assert_eq!(sent.map(|t| t.kind()), Some(TransmitKind::Response));
    assert!(window.is_bound());
}
