//! Any bytes as a program of verbs on two connected ends and as the fate of each frame between them
//! (`rocexdp-proto/tests/common/program.rs` says what is checked): every request completes once, in order, and all in the end.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../rocexdp-proto/tests/common/mod.rs"]
mod common;

use common::{choices::Given, program::Program};

fuzz_target!(|data: &[u8]| {
    let mut given = Given(data);
    let mut program = Program::new(&mut given);
    while !given.is_empty() {
        program.step(&mut given);
    }
    program.finish();
});
