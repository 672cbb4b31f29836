//! Words for the numbers in messages of the communication manager.

/// Why a REJ refuses (`enum ib_cm_rej_reason` of include/rdma/ib_cm.h), in words.
pub const fn rej_reason_name(reason: u16) -> &'static str {
    match reason {
        1 => "no QP",
        2 => "no EE context",
        3 => "no resources",
        4 => "timeout",
        5 => "unsupported request",
        6 => "invalid communication ID",
        7 => "invalid communication instance",
        8 => "invalid service ID",
        9 => "invalid transport type",
        10 => "stale connection",
        11 => "RDC does not exist",
        12 => "invalid GID",
        13 => "invalid LID",
        14 => "invalid SL",
        15 => "invalid traffic class",
        16 => "invalid hop limit",
        17 => "invalid packet rate",
        18 => "invalid alternate GID",
        19 => "invalid alternate LID",
        20 => "invalid alternate SL",
        21 => "invalid alternate traffic class",
        22 => "invalid alternate hop limit",
        23 => "invalid alternate packet rate",
        24 => "port and CM redirection",
        25 => "port redirection",
        26 => "invalid path MTU",
        27 => "insufficient responder resources",
        28 => "consumer defined",
        29 => "invalid RNR retry count",
        30 => "duplicate local communication ID",
        31 => "invalid class version",
        32 => "invalid flow label",
        33 => "invalid alternate flow label",
        35 => "vendor option not supported",
        _ => "reserved reason",
    }
}

/// What a SIDR_REP says (`enum ib_cm_sidr_status` of include/rdma/ib_cm.h), in words.
pub const fn sidr_status_name(status: u8) -> &'static str {
    match status {
        0 => "success",
        1 => "unsupported",
        2 => "rejected",
        3 => "no QP",
        4 => "redirected",
        5 => "unsupported version",
        _ => "reserved status",
    }
}
