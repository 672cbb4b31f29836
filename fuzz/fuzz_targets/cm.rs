//! Any MADs at a communication manager whose user does anything (`rocexdp-proto/tests/common/cm.rs` says what is checked): no panic,
//! little sent, little kept, no timer for ever.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../rocexdp-proto/tests/common/mod.rs"]
mod common;

use common::{choices::Given, cm::Target};

fuzz_target!(|data: &[u8]| {
    let mut given = Given(data);
    let mut target = Target::new();
    while !given.is_empty() {
        target.step(&mut given);
    }
    target.finish();
});
