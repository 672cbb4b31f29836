//! The attributes of a QP, and the table of which a change of state needs and allows.
//!
//! Follows `qp_state_table` and `ib_modify_qp_is_ok` (drivers/infiniband/core/verbs.c), RC, UC and UD columns. What the table
//! allows and is not to be had here (automatic path migration) is refused by name.
//!
//! Must not: carry a change out, or know the ranges of values (the endpoint does).

use core::fmt;

use rocexdp_common::opcode::Transport;

use super::attr::{QpTransition, RtrAttr, RtsAttr, SelectiveRepeat, UdAttr};
use crate::ids::{Gid, PathMtu, Psn, Qpn};
use crate::mem::Access;
use crate::verbs::QpState;
use crate::wire::Path;

/// State of automatic path migration (`enum ib_mig_state`). Only the first is to be had.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MigrationState {
    /// The path in use is the primary one, and there is no other.
    #[default]
    Migrated,
    /// To be armed.
    Rearm,
    /// Armed.
    Armed,
}

/// A change of a QP's attributes (`ibv_modify_qp(3)`): those that are set. [`QpTransition`] makes the usual ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ModifyQp {
    /// The state to go to; `None`: it stays.
    pub state: Option<QpState>,
    /// The state that the caller takes the QP to be in: refused if it is in another.
    pub cur_state: Option<QpState>,
    /// RTS to SQD: whether [`crate::Event::SqDrained`] is to come.
    pub en_sqd_async_notify: Option<bool>,
    /// What the peer may do with this QP, besides what its regions allow.
    pub access: Option<Access>,
    /// Index of the partition key: 0, the only one.
    pub pkey_index: Option<u16>,
    /// Port: 1, the only one.
    pub port: Option<u8>,
    /// UD: the Q_Key.
    pub qkey: Option<u32>,
    /// The way to the peer (the address vector).
    pub path: Option<Path>,
    /// Largest payload of a packet.
    pub path_mtu: Option<PathMtu>,
    /// ACK timeout 4.096 us x 2^timeout, 1..=31; 0: none.
    pub timeout: Option<u8>,
    /// Times a request is sent again for want of an acknowledgement, 0..=7.
    pub retry_cnt: Option<u8>,
    /// Times a request is sent again after an RNR NAK, 0..=7; 7: for ever.
    pub rnr_retry: Option<u8>,
    /// PSN of the peer's first request.
    pub rq_psn: Option<Psn>,
    /// Initiator depth.
    pub max_rd_atomic: Option<u8>,
    /// An alternate path: refused.
    pub alt_path: Option<Path>,
    /// What an RNR NAK asks the peer to wait: code 0..=31.
    pub min_rnr_timer: Option<u8>,
    /// PSN of our first request.
    pub sq_psn: Option<Psn>,
    /// Responder resources.
    pub max_dest_rd_atomic: Option<u8>,
    /// State of path migration: anything but [`MigrationState::Migrated`] is refused.
    pub path_mig_state: Option<MigrationState>,
    /// The peer's QP.
    pub dest_qpn: Option<Qpn>,
    /// UD, RESET to INIT: the QP's own address. Not an attribute of the standard's, where the port has the addresses; a UD QP
    /// here has one of them.
    pub address: Option<Gid>,
    /// RC, INIT to RTR: what the peer agreed to. Not an attribute of the standard's, nor kept for a query.
    pub selective: Option<SelectiveRepeat>,
    /// Made of a [`QpTransition`], which says more than some services take: that is left out instead of refused.
    pub usual: bool,
}

/// A set of attributes: bits of `enum ib_qp_attr_mask`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AttrMask(u32);

impl AttrMask {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// [`ModifyQp::state`].
    pub const STATE: Self = Self(1);
    /// [`ModifyQp::cur_state`].
    pub const CUR_STATE: Self = Self(1 << 1);
    /// [`ModifyQp::en_sqd_async_notify`].
    pub const EN_SQD_ASYNC_NOTIFY: Self = Self(1 << 2);
    /// [`ModifyQp::access`].
    pub const ACCESS_FLAGS: Self = Self(1 << 3);
    /// [`ModifyQp::pkey_index`].
    pub const PKEY_INDEX: Self = Self(1 << 4);
    /// [`ModifyQp::port`].
    pub const PORT: Self = Self(1 << 5);
    /// [`ModifyQp::qkey`].
    pub const QKEY: Self = Self(1 << 6);
    /// [`ModifyQp::path`].
    pub const AV: Self = Self(1 << 7);
    /// [`ModifyQp::path_mtu`].
    pub const PATH_MTU: Self = Self(1 << 8);
    /// [`ModifyQp::timeout`].
    pub const TIMEOUT: Self = Self(1 << 9);
    /// [`ModifyQp::retry_cnt`].
    pub const RETRY_CNT: Self = Self(1 << 10);
    /// [`ModifyQp::rnr_retry`].
    pub const RNR_RETRY: Self = Self(1 << 11);
    /// [`ModifyQp::rq_psn`].
    pub const RQ_PSN: Self = Self(1 << 12);
    /// [`ModifyQp::max_rd_atomic`].
    pub const MAX_QP_RD_ATOMIC: Self = Self(1 << 13);
    /// [`ModifyQp::alt_path`].
    pub const ALT_PATH: Self = Self(1 << 14);
    /// [`ModifyQp::min_rnr_timer`].
    pub const MIN_RNR_TIMER: Self = Self(1 << 15);
    /// [`ModifyQp::sq_psn`].
    pub const SQ_PSN: Self = Self(1 << 16);
    /// [`ModifyQp::max_dest_rd_atomic`].
    pub const MAX_DEST_RD_ATOMIC: Self = Self(1 << 17);
    /// [`ModifyQp::path_mig_state`].
    pub const PATH_MIG_STATE: Self = Self(1 << 18);
    /// [`ModifyQp::dest_qpn`].
    pub const DEST_QPN: Self = Self(1 << 20);

    /// Each attribute and its name in `enum ib_qp_attr_mask`, without `IB_QP_`.
    pub const ALL: [(Self, &'static str); 20] = [
        (Self::STATE, "STATE"),
        (Self::CUR_STATE, "CUR_STATE"),
        (Self::EN_SQD_ASYNC_NOTIFY, "EN_SQD_ASYNC_NOTIFY"),
        (Self::ACCESS_FLAGS, "ACCESS_FLAGS"),
        (Self::PKEY_INDEX, "PKEY_INDEX"),
        (Self::PORT, "PORT"),
        (Self::QKEY, "QKEY"),
        (Self::AV, "AV"),
        (Self::PATH_MTU, "PATH_MTU"),
        (Self::TIMEOUT, "TIMEOUT"),
        (Self::RETRY_CNT, "RETRY_CNT"),
        (Self::RNR_RETRY, "RNR_RETRY"),
        (Self::RQ_PSN, "RQ_PSN"),
        (Self::MAX_QP_RD_ATOMIC, "MAX_QP_RD_ATOMIC"),
        (Self::ALT_PATH, "ALT_PATH"),
        (Self::MIN_RNR_TIMER, "MIN_RNR_TIMER"),
        (Self::SQ_PSN, "SQ_PSN"),
        (Self::MAX_DEST_RD_ATOMIC, "MAX_DEST_RD_ATOMIC"),
        (Self::PATH_MIG_STATE, "PATH_MIG_STATE"),
        (Self::DEST_QPN, "DEST_QPN"),
    ];

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `other` is in `self`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    const fn of(list: &[Self]) -> Self {
        let mut bits = 0;
        let mut rest = list;
        while let [first, tail @ ..] = rest {
            bits |= first.0;
            rest = tail;
        }
        Self(bits)
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// The names, as `PORT|QKEY`.
impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (bit, name) in Self::ALL {
            if self.contains(bit) {
                write!(f, "{between}{name}")?;
                between = "|";
            }
        }
        Ok(())
    }
}

impl fmt::Debug for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Why the table refuses a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModifyError {
    /// No QP goes from there to there.
    Transition {
        /// To where.
        to: QpState,
    },
    /// The change needs attributes that are not set.
    Missing(AttrMask),
    /// The change does not take attributes that are set.
    Forbidden(AttrMask),
}

/// Continues "QP n: INIT to RTR ...".
impl fmt::Display for ModifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transition { to } => write!(f, "can't go to {to} from its state"),
            Self::Missing(attrs) => write!(f, "needs {attrs} too"),
            Self::Forbidden(attrs) => write!(f, "does not take {attrs}: leave it out"),
        }
    }
}

impl core::error::Error for ModifyError {}

/// Attributes that a change needs, and those that it takes besides; `None` if there is no such change.
fn table(from: QpState, to: QpState, service: Transport) -> Option<(AttrMask, AttrMask)> {
    use AttrMask as A;
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use Transport::{Rc, Uc, Ud};
    const BEGIN: AttrMask = A::of(&[A::PKEY_INDEX, A::PORT]);
    const PEER: AttrMask = A::of(&[A::AV, A::PATH_MTU, A::DEST_QPN, A::RQ_PSN]);
    const MIGRATION: AttrMask = A::of(&[A::ALT_PATH, A::PATH_MIG_STATE]);
    let of = A::of;
    // What the QP serves, and by what it is known.
    let own = match service {
        Ud => A::QKEY,
        _ => A::ACCESS_FLAGS,
    };
    let running = match service {
        Ud => of(&[A::CUR_STATE, A::QKEY]),
        Uc => of(&[A::CUR_STATE, A::ACCESS_FLAGS, MIGRATION]),
        _ => of(&[A::CUR_STATE, A::ACCESS_FLAGS, A::MIN_RNR_TIMER, MIGRATION]),
    };
    let (needed, besides) = match (from, to) {
        (_, Reset) => (A::NONE, A::NONE),
        (Init | Rtr | Rts | Sqd | Sqe | Err, Err) => (A::NONE, A::NONE),
        (Reset, Init) => (of(&[BEGIN, own]), A::NONE),
        (Init, Init) => (A::NONE, of(&[BEGIN, own])),
        (Init, Rtr) => match service {
            Ud => (A::NONE, of(&[A::PKEY_INDEX, A::QKEY])),
            _ => {
                let more = match service {
                    Rc => of(&[A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER]),
                    _ => A::NONE,
                };
                (
                    of(&[PEER, more]),
                    of(&[A::ALT_PATH, A::ACCESS_FLAGS, A::PKEY_INDEX]),
                )
            }
        },
        (Rtr, Rts) => {
            let more = match service {
                Rc => of(&[A::TIMEOUT, A::RETRY_CNT, A::RNR_RETRY, A::MAX_QP_RD_ATOMIC]),
                _ => A::NONE,
            };
            (of(&[A::SQ_PSN, more]), running)
        }
        (Rts | Sqd, Rts) => (A::NONE, running),
        (Rts, Sqd) => (A::NONE, A::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => {
            let besides = match service {
                Ud => of(&[A::PKEY_INDEX, A::QKEY]),
                Uc => of(&[A::AV, A::ACCESS_FLAGS, A::PKEY_INDEX, MIGRATION]),
                _ => of(&[
                    A::PORT,
                    A::AV,
                    A::TIMEOUT,
                    A::RETRY_CNT,
                    A::RNR_RETRY,
                    A::MAX_QP_RD_ATOMIC,
                    A::MAX_DEST_RD_ATOMIC,
                    A::ACCESS_FLAGS,
                    A::PKEY_INDEX,
                    A::MIN_RNR_TIMER,
                    MIGRATION,
                ]),
            };
            (A::NONE, besides)
        }
        (Sqe, Rts) => match service {
            // RC never comes there.
            Rc => (A::NONE, A::NONE),
            _ => (A::NONE, of(&[A::CUR_STATE, own])),
        },
        _ => return None,
    };
    Some((needed, besides))
}

impl ModifyQp {
    /// Only a change of state.
    #[must_use]
    pub fn to(state: QpState) -> Self {
        Self {
            state: Some(state),
            ..Self::default()
        }
    }

    /// The attributes that are set. [`ModifyQp::address`] is none of the standard's.
    #[must_use]
    pub fn mask(&self) -> AttrMask {
        let set = [
            (self.state.is_some(), AttrMask::STATE),
            (self.cur_state.is_some(), AttrMask::CUR_STATE),
            (
                self.en_sqd_async_notify.is_some(),
                AttrMask::EN_SQD_ASYNC_NOTIFY,
            ),
            (self.access.is_some(), AttrMask::ACCESS_FLAGS),
            (self.pkey_index.is_some(), AttrMask::PKEY_INDEX),
            (self.port.is_some(), AttrMask::PORT),
            (self.qkey.is_some(), AttrMask::QKEY),
            (self.path.is_some(), AttrMask::AV),
            (self.path_mtu.is_some(), AttrMask::PATH_MTU),
            (self.timeout.is_some(), AttrMask::TIMEOUT),
            (self.retry_cnt.is_some(), AttrMask::RETRY_CNT),
            (self.rnr_retry.is_some(), AttrMask::RNR_RETRY),
            (self.rq_psn.is_some(), AttrMask::RQ_PSN),
            (self.max_rd_atomic.is_some(), AttrMask::MAX_QP_RD_ATOMIC),
            (self.alt_path.is_some(), AttrMask::ALT_PATH),
            (self.min_rnr_timer.is_some(), AttrMask::MIN_RNR_TIMER),
            (self.sq_psn.is_some(), AttrMask::SQ_PSN),
            (
                self.max_dest_rd_atomic.is_some(),
                AttrMask::MAX_DEST_RD_ATOMIC,
            ),
            (self.path_mig_state.is_some(), AttrMask::PATH_MIG_STATE),
            (self.dest_qpn.is_some(), AttrMask::DEST_QPN),
        ];
        set.into_iter()
            .filter(|(is, _)| *is)
            .fold(AttrMask::NONE, |m, (_, bit)| AttrMask(m.0 | bit.0))
    }

    /// Whether a QP of this service may be changed so in state `from` (`ib_modify_qp_is_ok`). Gives the state to go to.
    ///
    /// # Errors
    /// There is no such change of state, or attributes that it needs are missing, or it does not take some.
    pub fn check(&self, from: QpState, service: Transport) -> Result<QpState, ModifyError> {
        let to = self.state.unwrap_or(from);
        let (needed, besides) = table(from, to, service).ok_or(ModifyError::Transition { to })?;
        let mask = self.mask();
        let missing = needed.without(mask);
        if missing != AttrMask::NONE {
            return Err(ModifyError::Missing(missing));
        }
        let allowed = AttrMask(needed.0 | besides.0 | AttrMask::STATE.0);
        let forbidden = mask.without(allowed);
        let refused = forbidden.without(self.spare(from, to, service));
        if refused != AttrMask::NONE {
            return Err(ModifyError::Forbidden(refused));
        }
        Ok(to)
    }

    /// What a [`QpTransition`] says in vain: of RC to UC, the port's path MTU to UD, and everything to a QP that only recovers.
    fn spare(&self, from: QpState, to: QpState, service: Transport) -> AttrMask {
        const RELIABLE: AttrMask = AttrMask::of(&[
            AttrMask::MIN_RNR_TIMER,
            AttrMask::MAX_DEST_RD_ATOMIC,
            AttrMask::TIMEOUT,
            AttrMask::RETRY_CNT,
            AttrMask::RNR_RETRY,
            AttrMask::MAX_QP_RD_ATOMIC,
        ]);
        if !self.usual {
            return AttrMask::NONE;
        }
        let service = match (service, to) {
            (Transport::Uc, _) => RELIABLE,
            (Transport::Ud, QpState::Init) => AttrMask::PATH_MTU,
            _ => AttrMask::NONE,
        };
        let recovers = match from {
            QpState::Sqe => AttrMask::SQ_PSN,
            _ => AttrMask::NONE,
        };
        AttrMask::of(&[service, recovers])
    }
}

/// The usual changes. Attributes that the QP's service does not have are left out.
impl From<QpTransition> for ModifyQp {
    fn from(transition: QpTransition) -> Self {
        let usual = |state| Self {
            usual: true,
            ..Self::to(state)
        };
        match transition {
            QpTransition::Init { access } => Self {
                access: Some(access),
                pkey_index: Some(0),
                port: Some(1),
                ..usual(QpState::Init)
            },
            QpTransition::InitUd(UdAttr {
                address,
                qkey,
                path_mtu,
            }) => Self {
                qkey: Some(qkey),
                pkey_index: Some(0),
                port: Some(1),
                address: Some(address),
                path_mtu: Some(path_mtu),
                ..usual(QpState::Init)
            },
            QpTransition::Rtr(RtrAttr {
                dest_qpn,
                path_mtu,
                rq_psn,
                min_rnr_timer,
                max_dest_rd_atomic,
                path,
                selective,
            }) => Self {
                dest_qpn: Some(dest_qpn),
                path_mtu: Some(path_mtu),
                rq_psn: Some(rq_psn),
                min_rnr_timer: Some(min_rnr_timer),
                max_dest_rd_atomic: Some(max_dest_rd_atomic),
                path: Some(path),
                selective,
                ..usual(QpState::Rtr)
            },
            QpTransition::RtrUd => usual(QpState::Rtr),
            QpTransition::Rts(RtsAttr {
                sq_psn,
                timeout,
                retry_cnt,
                rnr_retry,
                max_rd_atomic,
            }) => Self {
                sq_psn: Some(sq_psn),
                timeout: Some(timeout),
                retry_cnt: Some(retry_cnt),
                rnr_retry: Some(rnr_retry),
                max_rd_atomic: Some(max_rd_atomic),
                ..usual(QpState::Rts)
            },
            QpTransition::RtsUd { sq_psn } => Self {
                sq_psn: Some(sq_psn),
                ..usual(QpState::Rts)
            },
            QpTransition::Err => usual(QpState::Err),
            QpTransition::Reset => usual(QpState::Reset),
        }
    }
}
