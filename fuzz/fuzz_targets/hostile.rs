//! Any bytes as packets at an endpoint in the middle of transfers (`rocexdp-proto/tests/common/victim.rs` says what is
//! checked): no panic, no byte changed that nobody granted, no state changed by a packet that fails its checks, little sent.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../rocexdp-proto/tests/common/mod.rs"]
mod common;

use common::{choices::Given, victim::Victim};

fuzz_target!(|data: &[u8]| {
    let mut given = Given(data);
    let mut victim = Victim::new(&mut given);
    // An end of the bytes ends it: behind it each choice is the first.
    while !given.is_empty() && victim.step(&mut given) {}
    victim.finish();
});
