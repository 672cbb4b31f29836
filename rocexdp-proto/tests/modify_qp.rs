//! Changes of a QP's state and attributes: every pair of states and every service against the kernel's table, written down
//! here as it stands there (`qp_state_table`, drivers/infiniband/core/verbs.c), ranges of values, and what `query_qp` gives.

use std::collections::BTreeMap;
use std::sync::Arc;

use rocexdp_proto::ids::{PathMtu, Psn, Qpn, gid_from_ipv4};
use rocexdp_proto::mem::Access;
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{CompletionQueue, QpState};
use rocexdp_proto::wire::Path;
use rocexdp_proto::{
    AttrMask, CreateQp, Endpoint, EndpointConfig, MigrationState, ModifyError, ModifyQp, QpHandle,
    Transport, VerbsError,
};

use QpState::{
    Err as ERR, Init as INIT, Reset as RESET, Rtr as RTR, Rts as RTS, Sqd as SQD, Sqe as SQE,
};

const QPN: Qpn = Qpn::new(0x80_0001);
const NOW: Timestamp = Timestamp::from_nanos(0);
const SERVICES: [(Transport, &str); 3] = [
    (Transport::Rc, "RC"),
    (Transport::Uc, "UC"),
    (Transport::Ud, "UD"),
];

/// From, to, service: what is required, what is optional. A pair without a line for a service and without `valid` is none.
const KERNEL: &[(QpState, QpState, &str, &str, &str)] = &[
    (RESET, RESET, "RC UC UD", "", ""),
    (RESET, INIT, "UD", "PKEY_INDEX PORT QKEY", ""),
    (RESET, INIT, "UC RC", "PKEY_INDEX PORT ACCESS_FLAGS", ""),
    (INIT, RESET, "RC UC UD", "", ""),
    (INIT, ERR, "RC UC UD", "", ""),
    (INIT, INIT, "UD", "", "PKEY_INDEX PORT QKEY"),
    (INIT, INIT, "UC RC", "", "PKEY_INDEX PORT ACCESS_FLAGS"),
    (INIT, RTR, "UD", "", "PKEY_INDEX QKEY"),
    (
        INIT,
        RTR,
        "UC",
        "AV PATH_MTU DEST_QPN RQ_PSN",
        "ALT_PATH ACCESS_FLAGS PKEY_INDEX",
    ),
    (
        INIT,
        RTR,
        "RC",
        "AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER",
        "ALT_PATH ACCESS_FLAGS PKEY_INDEX",
    ),
    (RTR, RESET, "RC UC UD", "", ""),
    (RTR, ERR, "RC UC UD", "", ""),
    (RTR, RTS, "UD", "SQ_PSN", "CUR_STATE QKEY"),
    (
        RTR,
        RTS,
        "UC",
        "SQ_PSN",
        "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE",
    ),
    (
        RTR,
        RTS,
        "RC",
        "TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC",
        "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE",
    ),
    (RTS, RESET, "RC UC UD", "", ""),
    (RTS, ERR, "RC UC UD", "", ""),
    (RTS, RTS, "UD", "", "CUR_STATE QKEY"),
    (
        RTS,
        RTS,
        "UC",
        "",
        "CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE",
    ),
    (
        RTS,
        RTS,
        "RC",
        "",
        "CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER",
    ),
    (RTS, SQD, "RC UC UD", "", "EN_SQD_ASYNC_NOTIFY"),
    (SQD, RESET, "RC UC UD", "", ""),
    (SQD, ERR, "RC UC UD", "", ""),
    (SQD, RTS, "UD", "", "CUR_STATE QKEY"),
    (
        SQD,
        RTS,
        "UC",
        "",
        "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE",
    ),
    (
        SQD,
        RTS,
        "RC",
        "",
        "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE",
    ),
    (SQD, SQD, "UD", "", "PKEY_INDEX QKEY"),
    (
        SQD,
        SQD,
        "UC",
        "",
        "AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE",
    ),
    (
        SQD,
        SQD,
        "RC",
        "",
        "PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX \
         MIN_RNR_TIMER PATH_MIG_STATE",
    ),
    (SQE, RESET, "RC UC UD", "", ""),
    (SQE, ERR, "RC UC UD", "", ""),
    (SQE, RTS, "UD", "", "CUR_STATE QKEY"),
    (SQE, RTS, "UC", "", "CUR_STATE ACCESS_FLAGS"),
    (SQE, RTS, "RC", "", ""),
    (ERR, RESET, "RC UC UD", "", ""),
    (ERR, ERR, "RC UC UD", "", ""),
];

fn kernel(from: QpState, to: QpState, service: &str) -> Option<(&'static str, &'static str)> {
    let row = KERNEL
        .iter()
        .find(|r| r.0 == from && r.1 == to && r.2.split(' ').any(|s| s == service))?;
    Some((row.3, row.4))
}

fn path() -> Path {
    Path {
        src_mac: [2; 6],
        dst_mac: [4; 6],
        vlan: None,
        src: gid_from_ipv4([10, 0, 0, 1]),
        dst: gid_from_ipv4([10, 0, 0, 2]),
        hop_limit: 64,
        flow_label: 0,
    }
}

/// Sets an attribute to a value that is in range.
fn set(m: &mut ModifyQp, attr: &str, from: QpState) {
    match attr {
        "CUR_STATE" => m.cur_state = Some(from),
        "EN_SQD_ASYNC_NOTIFY" => m.en_sqd_async_notify = Some(true),
        "ACCESS_FLAGS" => m.access = Some(Access::REMOTE_READ),
        "PKEY_INDEX" => m.pkey_index = Some(0),
        "PORT" => m.port = Some(1),
        "QKEY" => m.qkey = Some(0x1111_1111),
        "AV" => m.path = Some(path()),
        "PATH_MTU" => m.path_mtu = Some(PathMtu::Mtu1024),
        "TIMEOUT" => m.timeout = Some(14),
        "RETRY_CNT" => m.retry_cnt = Some(7),
        "RNR_RETRY" => m.rnr_retry = Some(6),
        "RQ_PSN" => m.rq_psn = Some(Psn::new(77)),
        "MAX_QP_RD_ATOMIC" => m.max_rd_atomic = Some(3),
        "ALT_PATH" => m.alt_path = Some(path()),
        "MIN_RNR_TIMER" => m.min_rnr_timer = Some(12),
        "SQ_PSN" => m.sq_psn = Some(Psn::new(99)),
        "MAX_DEST_RD_ATOMIC" => m.max_dest_rd_atomic = Some(4),
        "PATH_MIG_STATE" => m.path_mig_state = Some(MigrationState::Migrated),
        "DEST_QPN" => m.dest_qpn = Some(Qpn::new(0x99)),
        _ => panic!("{attr}"),
    }
}

fn with<'a>(from: QpState, to: QpState, attrs: impl IntoIterator<Item = &'a str>) -> ModifyQp {
    let mut m = ModifyQp::to(to);
    for attr in attrs {
        set(&mut m, attr, from);
    }
    m
}

fn words(list: &str) -> Vec<&str> {
    list.split_whitespace().collect()
}

/// Names of all attributes but the state.
fn names() -> Vec<&'static str> {
    let names = AttrMask::ALL.iter().map(|(_, name)| *name);
    names.filter(|n| *n != "STATE").collect()
}

fn one(name: &str) -> AttrMask {
    AttrMask::ALL.iter().find(|(_, n)| *n == name).unwrap().0
}

#[test]
fn every_change_of_state_takes_the_attributes_of_the_kernels_table() {
    let mut kinds: BTreeMap<&str, u32> = BTreeMap::new();
    for (service, name) in SERVICES {
        for from in QpState::ALL {
            for to in QpState::ALL {
                let what = format!("{name} {from} -> {to}");
                let Some((required, optional)) = kernel(from, to, name) else {
                    let all = with(from, to, names());
                    for m in [ModifyQp::to(to), all] {
                        assert_eq!(
                            m.check(from, service),
                            Err(ModifyError::Transition { to }),
                            "{what}"
                        );
                    }
                    *kinds.entry("no transition").or_default() += 1;
                    continue;
                };
                let (required, optional) = (words(required), words(optional));
                let least = with(from, to, required.iter().copied());
                assert_eq!(least.check(from, service), Ok(to), "{what}");
                let most = with(from, to, required.iter().chain(&optional).copied());
                assert_eq!(most.check(from, service), Ok(to), "{what}: all optional");
                *kinds.entry("transition").or_default() += 1;
                for attr in names() {
                    let required_too = required.contains(&attr);
                    if required_too {
                        let without = required.iter().copied().filter(|a| *a != attr);
                        assert_eq!(
                            with(from, to, without).check(from, service),
                            Err(ModifyError::Missing(one(attr))),
                            "{what} without {attr}"
                        );
                        *kinds.entry("required").or_default() += 1;
                    } else {
                        let more = with(from, to, required.iter().copied().chain([attr]));
                        let expected = if optional.contains(&attr) {
                            *kinds.entry("optional").or_default() += 1;
                            Ok(to)
                        } else {
                            *kinds.entry("forbidden").or_default() += 1;
                            Err(ModifyError::Forbidden(one(attr)))
                        };
                        assert_eq!(more.check(from, service), expected, "{what} with {attr}");
                    }
                }
                if from == to {
                    let stays = ModifyQp {
                        state: None,
                        ..most
                    };
                    assert_eq!(
                        stays.check(from, service),
                        Ok(from),
                        "{what}: no state named"
                    );
                }
            }
        }
    }
    // 22 of the 49 pairs are changes, for each service.
    assert_eq!(kinds["transition"], 3 * 22);
    assert_eq!(kinds["no transition"], 3 * 27);
    assert!(kinds["required"] > 20 && kinds["optional"] > 60 && kinds["forbidden"] > 500);
}

#[test]
fn masks_have_the_numbers_of_ib_qp_attr_mask() {
    let numbers: Vec<u32> = AttrMask::ALL.iter().map(|(m, _)| m.bits()).collect();
    let expected: Vec<u32> = (0..=20).filter(|n| *n != 19).map(|n| 1 << n).collect();
    assert_eq!(numbers, expected);
    let mask = with(INIT, RTR, ["PORT", "QKEY"]).mask();
    assert_eq!(mask.to_string(), "STATE|PORT|QKEY");
}

struct Bench {
    ep: Endpoint,
    service: Transport,
    #[allow(dead_code)]
    qp: QpHandle,
}

impl Bench {
    fn new(service: Transport) -> Self {
        let mut ep = Endpoint::new(EndpointConfig::default(), 1);
        let cq = Arc::new(CompletionQueue::new(64));
        let create = CreateQp {
            transport: service,
            ..CreateQp::rc(QPN, &cq, &cq)
        };
        let qp = ep.create_qp(create).unwrap();
        Self { ep, service, qp }
    }

    fn modify(&mut self, m: ModifyQp) -> Result<(), VerbsError> {
        self.ep.modify_qp(NOW, QPN, m)
    }

    fn state(&self) -> QpState {
        self.ep.qp_info(QPN).unwrap().state
    }

    fn name(&self) -> &'static str {
        SERVICES.iter().find(|(s, _)| *s == self.service).unwrap().1
    }

    /// A change with what it requires.
    fn least(&self, to: QpState) -> ModifyQp {
        let from = self.state();
        let (required, _) = kernel(from, to, self.name()).unwrap();
        let mut m = with(from, to, words(required));
        if self.service == Transport::Ud && (from, to) == (RESET, INIT) {
            m.address = Some(path().src);
        }
        m
    }

    fn go(&mut self, to: QpState) {
        let m = self.least(to);
        self.modify(m).unwrap();
        assert_eq!(self.state(), to);
    }

    /// To a state from RESET, by the shortest way. SQE can't be asked for.
    fn at(service: Transport, state: QpState) -> Self {
        let mut bench = Self::new(service);
        let way: &[QpState] = match state {
            RESET => &[],
            INIT => &[INIT],
            RTR => &[INIT, RTR],
            RTS => &[INIT, RTR, RTS],
            SQD => &[INIT, RTR, RTS, SQD],
            ERR => &[INIT, ERR],
            SQE => panic!("only by a failed request"),
        };
        for to in way {
            bench.go(*to);
        }
        bench
    }
}

#[test]
fn an_endpoints_qp_goes_where_the_table_lets_it_and_nowhere_else() {
    for (service, name) in SERVICES {
        for from in QpState::ALL {
            if from == SQE {
                continue;
            }
            for to in QpState::ALL {
                let mut bench = Bench::at(service, from);
                if kernel(from, to, name).is_some() {
                    bench.go(to);
                    continue;
                }
                let refused = VerbsError::InvalidTransition { qpn: QPN, from, to };
                assert_eq!(bench.modify(ModifyQp::to(to)), Err(refused), "{name}");
                assert_eq!(bench.state(), from, "{name}: nothing has changed");
            }
        }
    }
}

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
            matches!(e, Err(VerbsError::InvalidAttr { qpn: QPN, .. })),
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
        assert!(matches!(b.modify(m), Err(VerbsError::InvalidAttr { .. })));
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
