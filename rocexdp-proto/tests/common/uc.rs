//! What the tests of UC share.

use rocexdp_proto::Transport;
use rocexdp_proto::ids::PathMtu;
use rocexdp_sim::pair::{Pair, PairConfig};

use super::LONG;

/// A pair of UC QPs, of the smallest path MTU.
pub fn config() -> PairConfig {
    PairConfig {
        transport: Transport::Uc,
        path_mtu: PathMtu::Mtu256,
        ..PairConfig::default()
    }
}

/// End 1 has nothing to say, ever.
pub fn silent(pair: &mut Pair) {
    assert!(pair.run(LONG));
    assert!(
        pair.sent.iter().all(|s| s.end == 0),
        "{:?}",
        pair.sent.last()
    );
}
