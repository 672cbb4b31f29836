//! One QP, its peer and a socket, for the tests of the verdict.

use rocexdp_common::{
    maps::{QpConfig, local_addr},
    opcode::rc,
    verdict::Outcome,
};

use super::{
    model::Model,
    packet::{A4, B4, Spec},
};

/// The QP of these tests.
pub const QPN: u32 = 0x80_0005;

/// The QP's configuration.
pub fn config() -> QpConfig {
    QpConfig {
        generation: 1,
        qpn: QPN,
        peer_qpn: 0x11,
        owner: 0,
        local_gid: B4.gid(),
        peer_gid: A4.gid(),
        resync: 0,
        resync_request_psn: 0,
        resync_response_psn: 0,
        transport: 0,
        path_mtu_log2: 10,
        address_flags: 0,
        selective_paths: 0,
    }
}

/// One RC QP at `B4`, its peer `A4`, a socket on queue 0.
pub fn model() -> Model {
    let mut m = Model::new(16, 2);
    m.add(config());
    m.addresses = vec![(B4.gid(), local_addr::EXCLUSIVE)];
    m.sockets = vec![0];
    m.now = 1000;
    m
}

/// A packet of it.
pub fn data(psn: u32) -> Spec {
    Spec::new(rc::SEND_ONLY, QPN, psn).payload(64)
}

/// Runs one packet.
#[track_caller]
pub fn expect(m: &mut Model, spec: &Spec, outcome: Outcome) {
    assert_eq!(m.run(&spec.build()[..]), outcome);
}
