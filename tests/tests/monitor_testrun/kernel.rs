//! The monitor's real programs in the kernel, run by `BPF_PROG_TEST_RUN`, attached to nothing; and what their maps hold.

use std::path::PathBuf;

use aya::{
    Ebpf, EbpfLoader, VerifierLogLevel,
    maps::{Array, HashMap, MapData, RingBuf},
    programs::{Program, SchedClassifier, TestRun as _, TestRunOptions, Xdp},
};
use rocexdp_common::{
    maps::{self, Event, FlowKey, FlowState, LinkControl, Pending, PendingKey, QueueCounters},
    watch::{self, tap},
};

use crate::model::{CPUS, Model, QUANTUM_PS, QUEUES};

fn object() -> Vec<u8> {
    let dir = std::env::var_os("ROCEXDP_BPF_DIR").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/bpf"),
        PathBuf::from,
    );
    let path = dir.join("monitor");
    std::fs::read(&path)
        .unwrap_or_else(|e| panic!("{}: {e}: run `cargo xtask build`", path.display()))
}

/// A loaded program and its maps.
pub struct Kernel {
    ebpf: Ebpf,
    program: &'static str,
}

impl Kernel {
    /// Loads one of [`watch::PROGRAMS`].
    pub fn load(program: &'static str) -> Self {
        let mut ebpf = EbpfLoader::new()
            .verifier_log_level(if std::env::var_os("VERBOSE").is_some() { VerifierLogLevel::VERBOSE } else { VerifierLogLevel::STATS })
            .override_global(maps::GLOBAL_QUEUES, &QUEUES, true)
            .override_global(watch::GLOBAL_CPUS, &CPUS, true)
            .override_global(maps::GLOBAL_QUANTUM_PS, &QUANTUM_PS, true)
            .map_max_entries(maps::FLOWS, 4096)
            .map_max_entries(watch::PENDING, 65536)
            .map_max_entries(maps::QUEUE_COUNTERS, QUEUES + 1)
            .map_max_entries(watch::TCX_COUNTERS, 2 * CPUS)
            .map_max_entries(maps::LINK_CONTROL, QUEUES + 1 + CPUS)
            .map_max_entries(tap::TAP, 1 << 16)
            .load(&object())
            .expect("the object");
        match ebpf.program_mut(program).expect(program) {
            Program::Xdp(p) => p.load(),
            Program::SchedClassifier(p) => p.load(),
            _ => panic!("{program} is of another kind"),
        }
        .expect("the verifier accepts it");
        Self { ebpf, program }
    }

    /// Instructions that the verifier walked.
    pub fn verified(&self) -> u32 {
        match self.ebpf.program(self.program).expect("loaded") {
            Program::Xdp(p) => p.info(),
            Program::SchedClassifier(p) => p.info(),
            _ => unreachable!("checked on load"),
        }
        .expect("program info")
        .verified_instruction_count()
        .expect("kernel 5.16")
    }

    /// Runs one frame; it must pass and come out unchanged.
    pub fn run(&self, frame: &[u8]) {
        let mut out = vec![0; frame.len()];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..Default::default()
        };
        let (result, pass) = match self.ebpf.program(self.program).expect("loaded") {
            Program::Xdp(p) => (p.test_run(options), 2),
            Program::SchedClassifier(p) => (p.test_run(options), u32::MAX),
            _ => unreachable!("checked on load"),
        };
        let result = result.expect("BPF_PROG_TEST_RUN");
        assert_eq!(result.return_value, pass, "{}", self.program);
        assert_eq!(out, frame, "the program must not write to the frame");
    }
}
