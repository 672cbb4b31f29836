//! Any MADs at a communication manager: no panic, little sent, little kept, nothing for ever.

mod common;

use std::collections::BTreeMap;

use common::cm::Target;
use rocexdp_proto::cm::Ignored;
use rocexdp_proto::rng::Rng;

#[test]
fn any_mad_at_any_time_is_survived() {
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let mut target = Target::new();
        for _ in 0..64 {
            target.step(&mut rng);
        }
        for (name, n) in target.finish() {
            *seen.entry(name).or_default() += n;
        }
    }
    println!("{seen:?}");
    // A test that reaches nothing shows nothing.
    let events = [
        "taken",
        "request",
        "reply",
        "established",
        "refused",
        "unreachable",
        "disconnected",
        "wanted",
    ];
    for name in Ignored::ALL.iter().map(|why| why.name()).chain(events) {
        let n = seen.get(name).copied().unwrap_or(0);
        assert!(n >= 20, "{name}: only {n}");
    }
}
