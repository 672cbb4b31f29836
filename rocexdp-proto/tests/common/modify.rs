//! What the tests of `modify_qp` share: the kernel's table as it stands there (`qp_state_table`,
//! drivers/infiniband/core/verbs.c), and a QP that is brought to any state.
#![allow(dead_code)] // Each test binary uses its own part.

use QpState::{
    Err as ERR, Init as INIT, Reset as RESET, Rtr as RTR, Rts as RTS, Sqd as SQD, Sqe as SQE,
};
use rocexdp_proto::ids::{PathMtu, Psn, Qpn, gid_from_ipv4};
use rocexdp_proto::mem::Access;
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{CompletionQueue, QpState};
use rocexdp_proto::wire::Path;
use rocexdp_proto::{
    AttrMask, CreateQp, Endpoint, EndpointConfig, MigrationState, ModifyQp, QpHandle, Transport,
    VerbsError,
};
use std::sync::Arc;

pub const QPN: Qpn = Qpn::new(0x80_0001);
pub const NOW: Timestamp = Timestamp::from_nanos(0);
pub const SERVICES: [(Transport, &str); 3] = [
    (Transport::Rc, "RC"),
    (Transport::Uc, "UC"),
    (Transport::Ud, "UD"),
];

/// From, to, service: what is required, what is optional. A pair without a line for a service and without `valid` is none.
pub const KERNEL: &[(QpState, QpState, &str, &str, &str)] = &[
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

pub fn kernel(from: QpState, to: QpState, service: &str) -> Option<(&'static str, &'static str)> {
    let row = KERNEL
        .iter()
        .find(|r| r.0 == from && r.1 == to && r.2.split(' ').any(|s| s == service))?;
    Some((row.3, row.4))
}

pub fn path() -> Path {
    Path {
        src_mac: [2; 6],
        dst_mac: [4; 6],
        vlan: None,
        sl: 0,
        src: gid_from_ipv4([10, 0, 0, 1]),
        dst: gid_from_ipv4([10, 0, 0, 2]),
        hop_limit: 64,
        dscp: None,
        flow_label: 0,
    }
}

/// Sets an attribute to a value that is in range.
pub fn set(m: &mut ModifyQp, attr: &str, from: QpState) {
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

pub fn with<'a>(from: QpState, to: QpState, attrs: impl IntoIterator<Item = &'a str>) -> ModifyQp {
    let mut m = ModifyQp::to(to);
    for attr in attrs {
        set(&mut m, attr, from);
    }
    m
}

pub fn words(list: &str) -> Vec<&str> {
    list.split_whitespace().collect()
}

/// Names of all attributes but the state.
pub fn names() -> Vec<&'static str> {
    let names = AttrMask::ALL.iter().map(|(_, name)| *name);
    names.filter(|n| *n != "STATE").collect()
}

pub fn one(name: &str) -> AttrMask {
    AttrMask::ALL.iter().find(|(_, n)| *n == name).unwrap().0
}

pub struct Bench {
    pub ep: Endpoint,
    pub service: Transport,
    #[allow(dead_code)]
    pub qp: QpHandle,
}

impl Bench {
    pub fn new(service: Transport) -> Self {
        let mut ep = Endpoint::new(EndpointConfig::default(), 1);
        let cq = Arc::new(CompletionQueue::new(64));
        let create = CreateQp {
            transport: service,
            ..CreateQp::rc(QPN, &cq, &cq)
        };
        let qp = ep.create_qp(create).unwrap();
        Self { ep, service, qp }
    }

    pub fn modify(&mut self, m: ModifyQp) -> Result<(), VerbsError> {
        self.ep.modify_qp(NOW, QPN, m)
    }

    pub fn state(&self) -> QpState {
        self.ep.qp_info(QPN).unwrap().state
    }

    pub fn name(&self) -> &'static str {
        SERVICES.iter().find(|(s, _)| *s == self.service).unwrap().1
    }

    /// A change with what it requires.
    pub fn least(&self, to: QpState) -> ModifyQp {
        let from = self.state();
        let (required, _) = kernel(from, to, self.name()).unwrap();
        let mut m = with(from, to, words(required));
        if self.service == Transport::Ud && (from, to) == (RESET, INIT) {
            m.address = Some(path().src);
        }
        m
    }

    pub fn go(&mut self, to: QpState) {
        let m = self.least(to);
        self.modify(m).unwrap();
        assert_eq!(self.state(), to);
    }

    /// To a state from RESET, by the shortest way. SQE can't be asked for.
    pub fn at(service: Transport, state: QpState) -> Self {
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
