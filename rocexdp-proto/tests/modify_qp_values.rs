//! Attributes of a QP: what is refused and how it is named, ranges of values, and what `query_qp` gives.

#[path = "common/modify.rs"]
mod modify;

use QpState::{Init as INIT, Reset as RESET, Rtr as RTR, Rts as RTS, Sqd as SQD};
use modify::*;
use rocexdp_proto::ids::{PathMtu, Psn, Qpn, gid_from_ipv4};
use rocexdp_proto::mem::Access;
use rocexdp_proto::verbs::{CompletionQueue, QpState};
use rocexdp_proto::wire::Path;
use rocexdp_proto::{
    CreateQp, Endpoint, EndpointConfig, MigrationState, ModifyQp, Transport, VerbsError,
};
use std::sync::Arc;

#[test]
fn what_is_missing_or_not_taken_is_named() {
    let mut bench = Bench::at(Transport::Rc, INIT);
    let m = ModifyQp {
        min_rnr_timer: None,
        dest_qpn: None,
        ..bench.least(RTR)
    };
    let e = bench.modify(m).unwrap_err();
    let text = e.to_string();
    assert!(
        text.contains("INIT") && text.contains("RTR") && text.contains("MIN_RNR_TIMER|DEST_QPN"),
        "{text}"
    );
    let m = ModifyQp {
        qkey: Some(1),
        ..bench.least(RTR)
    };
    let text = bench.modify(m).unwrap_err().to_string();
    assert!(
        text.contains("QKEY") && text.contains("QP 0x800001"),
        "{text}"
    );
    assert_eq!(bench.state(), INIT);
}

#[test]
fn values_out_of_range_are_refused_and_change_nothing() {
    let invalid = |bench: &mut Bench, m: ModifyQp| {
        let before = (bench.state(), bench.ep.query_qp(QPN).unwrap().0);
        let e = bench.modify(m);
        assert!(
            matches!(
                e,
                Err(VerbsError::InvalidAttr { qpn: QPN, .. } | VerbsError::Exceeds { .. })
            ),
            "{e:?}"
        );
        assert_eq!(
            (bench.state(), bench.ep.query_qp(QPN).unwrap().0),
            before,
            "nothing has changed"
        );
    };
    let mut b = Bench::new(Transport::Rc);
    let init = b.least(INIT);
    for m in [
        ModifyQp {
            port: Some(0),
            ..init
        },
        ModifyQp {
            port: Some(2),
            ..init
        },
        ModifyQp {
            pkey_index: Some(1),
            ..init
        },
        ModifyQp {
            access: Some(Access::ZERO_BASED),
            ..init
        },
    ] {
        invalid(&mut b, m);
    }
    b.go(INIT);
    let rtr = b.least(RTR);
    let v6 = Path {
        dst: [0xfd; 16],
        ..path()
    };
    for m in [
        ModifyQp {
            min_rnr_timer: Some(32),
            ..rtr
        },
        ModifyQp {
            max_dest_rd_atomic: Some(129),
            ..rtr
        },
        ModifyQp {
            dest_qpn: Some(Qpn::new(0)),
            ..rtr
        },
        ModifyQp {
            dest_qpn: Some(Qpn::new(1)),
            ..rtr
        },
        ModifyQp {
            dest_qpn: Some(Qpn::new(0xff_ffff)),
            ..rtr
        },
        ModifyQp {
            path: Some(v6),
            ..rtr
        },
        ModifyQp {
            path: Some(Path {
                vlan: Some(4096),
                ..path()
            }),
            ..rtr
        },
        ModifyQp {
            path: Some(Path { sl: 16, ..path() }),
            ..rtr
        },
        ModifyQp {
            path: Some(Path {
                flow_label: 1 << 20,
                ..path()
            }),
            ..rtr
        },
        ModifyQp {
            path: Some(Path {
                hop_limit: 0,
                ..path()
            }),
            ..rtr
        },
        ModifyQp {
            path: Some(Path {
                dscp: Some(64),
                ..path()
            }),
            ..rtr
        },
        ModifyQp {
            path: Some(Path {
                dst: gid_from_ipv4([224, 0, 0, 1]),
                ..path()
            }),
            ..rtr
        },
        ModifyQp {
            alt_path: Some(path()),
            ..rtr
        },
    ] {
        invalid(&mut b, m);
    }
    b.go(RTR);
    let rts = b.least(RTS);
    for m in [
        ModifyQp {
            timeout: Some(32),
            ..rts
        },
        ModifyQp {
            retry_cnt: Some(8),
            ..rts
        },
        ModifyQp {
            rnr_retry: Some(8),
            ..rts
        },
        ModifyQp {
            max_rd_atomic: Some(129),
            ..rts
        },
        ModifyQp {
            path_mig_state: Some(MigrationState::Rearm),
            ..rts
        },
        ModifyQp {
            path_mig_state: Some(MigrationState::Armed),
            ..rts
        },
        ModifyQp {
            cur_state: Some(RTS),
            ..rts
        },
    ] {
        invalid(&mut b, m);
    }
    b.go(RTS);
    b.modify(ModifyQp {
        cur_state: Some(RTS),
        ..ModifyQp::default()
    })
    .unwrap();
}

#[test]
fn the_ports_path_mtu_and_the_devices_depths_bound_a_qps() {
    let mut config = EndpointConfig::default();
    config.limits.max_path_mtu = PathMtu::Mtu1024;
    config.limits.max_rd_atomic = 2;
    config.limits.max_dest_rd_atomic = 3;
    let mut b = Bench::new(Transport::Rc);
    b.ep = Endpoint::new(config, 1);
    let cq = Arc::new(CompletionQueue::new(64));
    b.ep.create_qp(CreateQp::rc(QPN, &cq, &cq)).unwrap();
    b.go(INIT);
    let rtr = ModifyQp {
        max_dest_rd_atomic: Some(3),
        ..b.least(RTR)
    };
    for m in [
        ModifyQp {
            path_mtu: Some(PathMtu::Mtu2048),
            ..rtr
        },
        ModifyQp {
            max_dest_rd_atomic: Some(4),
            ..rtr
        },
    ] {
        assert!(matches!(b.modify(m), Err(VerbsError::Exceeds { .. })));
    }
    b.modify(rtr).unwrap();
    let rts = b.least(RTS);
    assert!(b.modify(rts).is_err(), "an initiator depth of 3");
    b.modify(ModifyQp {
        max_rd_atomic: Some(2),
        ..rts
    })
    .unwrap();
}

#[test]
fn a_query_gives_what_was_set_and_how_the_qp_was_made() {
    let mut b = Bench::at(Transport::Rc, RTS);
    let (attr, init) = b.ep.query_qp(QPN).unwrap();
    assert_eq!((attr.state, attr.sq_draining), (RTS, false));
    assert_eq!(
        (attr.access, attr.port, attr.pkey_index),
        (Access::REMOTE_READ, 1, 0)
    );
    assert_eq!(attr.path, Some(path()));
    assert_eq!(
        (attr.path_mtu, attr.dest_qpn),
        (PathMtu::Mtu1024, Some(Qpn::new(0x99)))
    );
    assert_eq!((attr.rq_psn, attr.sq_psn), (Psn::new(77), Psn::new(99)));
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (14, 7, 6));
    assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (3, 4));
    assert_eq!(attr.min_rnr_timer, 12);
    assert_eq!(
        (init.transport, init.max_send, init.max_recv),
        (Transport::Rc, 128, 128)
    );
    assert_eq!(
        (init.max_send_sge, init.max_recv_sge, init.max_inline),
        (16, 16, 256)
    );
    assert!(!init.signal_all && init.srq.is_none());

    let change = ModifyQp {
        access: Some(Access::REMOTE_WRITE),
        min_rnr_timer: Some(3),
        ..ModifyQp::default()
    };
    b.modify(change).unwrap();
    b.go(SQD);
    let elsewhere = Path {
        dst: gid_from_ipv4([10, 0, 0, 3]),
        sl: 6,
        ..path()
    };
    let change = ModifyQp {
        path: Some(elsewhere),
        timeout: Some(9),
        retry_cnt: Some(1),
        rnr_retry: Some(2),
        max_rd_atomic: Some(5),
        max_dest_rd_atomic: Some(6),
        ..ModifyQp::default()
    };
    b.modify(change).unwrap();
    b.go(RTS);
    let (attr, _) = b.ep.query_qp(QPN).unwrap();
    assert_eq!((attr.access, attr.min_rnr_timer), (Access::REMOTE_WRITE, 3));
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (9, 1, 2));
    assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (5, 6));
    assert_eq!(attr.path, Some(elsewhere));
    b.go(RESET);
    let (attr, _) = b.ep.query_qp(QPN).unwrap();
    assert_eq!((attr.state, attr.path, attr.timeout), (RESET, None, 0));
    assert_eq!(
        b.ep.query_qp(Qpn::new(5)).unwrap_err(),
        VerbsError::UnknownQp(Qpn::new(5))
    );
}
