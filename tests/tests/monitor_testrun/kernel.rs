//! The monitor's real programs in the kernel, run by `BPF_PROG_TEST_RUN`, attached to nothing; and what their maps hold.

use std::path::PathBuf;

use aya::{
    Ebpf, EbpfLoader, VerifierLogLevel,
    maps::{Array, HashMap, MapData, RingBuf},
    programs::{Program, TestRun as _, TestRunOptions},
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
            .verifier_log_level(VerifierLogLevel::STATS)
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

    /// Runs one frame, which must pass and come out unchanged. False: the kernel runs no TCX program on a frame whose IP
    /// header is cut (net/bpf/test_run.c).
    pub fn run(&self, frame: &[u8]) -> bool {
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
        let result = match result {
            Err(_) if self.program.len() > watch::XDP_FRAGS.len() && frame.len() < 14 + 40 => {
                return false;
            }
            result => result.expect("BPF_PROG_TEST_RUN"),
        };
        assert_eq!(result.return_value, pass, "{}", self.program);
        assert_eq!(out, frame, "the program must not write to the frame");
        true
    }
}

/// What one hook's maps hold, in the form of a model; each time is replaced by 1 if there is one.
impl Kernel {
    fn values<T: bytemuck::Pod, const N: usize>(&self, name: &str) -> Vec<T> {
        let map = self.ebpf.map(name).expect(name);
        let array: Array<&MapData, [u8; N]> = map.try_into().expect(name);
        array
            .iter()
            .map(|v| bytemuck::pod_read_unaligned(&v.expect(name)))
            .collect()
    }

    /// Switches the tap on, with this mode.
    pub fn tap(&mut self, mode: u32) {
        let map = self.ebpf.map_mut(tap::TAP_CONTROL).expect("TAP_CONTROL");
        let mut control: Array<_, [u8; 64]> = map.try_into().expect("an array");
        let value = tap::TapControl {
            mode,
            ..Default::default()
        };
        control
            .set(0, bytemuck::cast::<_, [u8; 64]>(value), 0)
            .expect("set");
    }

    /// Records of the tap: head and bytes.
    pub fn tapped(&mut self) -> Vec<(tap::TapHead, Vec<u8>)> {
        const HEAD: usize = size_of::<tap::TapHead>();
        let map = self.ebpf.map_mut(tap::TAP).expect("TAP");
        let mut ring: RingBuf<_> = map.try_into().expect("a ring buffer");
        let mut records = vec![];
        while let Some(item) = ring.next() {
            let head: tap::TapHead = bytemuck::pod_read_unaligned(&item[..HEAD]);
            records.push((head, item[HEAD..HEAD + head.captured as usize].to_vec()));
        }
        records
    }

    /// The tap's books: recorded, lost.
    pub fn tap_book(&self) -> (u64, u64) {
        self.values::<tap::TapBook, 64>(tap::TAP_BOOK)
            .iter()
            .fold((0, 0), |(r, l), b| (r + b.recorded, l + b.lost))
    }

    /// Events in the ring.
    pub fn events(&mut self) -> Vec<Event> {
        let map = self.ebpf.map_mut(maps::EVENTS).expect("EVENTS");
        let mut ring: RingBuf<_> = map.try_into().expect("a ring buffer");
        let mut events = vec![];
        while let Some(item) = ring.next() {
            events.push(bytemuck::pod_read_unaligned(&item));
        }
        events
    }

    /// The maps.
    pub fn maps(&self) -> Model {
        const QC: usize = size_of::<QueueCounters>();
        const LC: usize = size_of::<LinkControl>();
        let mut model = Model {
            egress: self.program == watch::TCX_EGRESS,
            ..Model::default()
        };
        // One entry was used, of one of the arrays: test runs are on queue 0 and one CPU at a time.
        let queues = self.values::<QueueCounters, QC>(maps::QUEUE_COUNTERS);
        let tcx = self.values::<QueueCounters, QC>(watch::TCX_COUNTERS);
        let is_xdp = self.program.starts_with(watch::XDP_PLAIN)
            && self.program != watch::TCX_INGRESS
            && self.program != watch::TCX_EGRESS;
        let (used, unused): (Vec<_>, Vec<_>) = if is_xdp { (queues, tcx) } else { (tcx, queues) };
        assert!(unused.iter().all(|c| c.frames == 0), "the other hook's");
        for (index, counters) in used.iter().enumerate() {
            if counters.frames == 0 {
                continue;
            }
            let of_egress = !is_xdp && index >= CPUS as usize;
            assert_eq!(of_egress, model.egress, "entry {index}");
            add(&mut model.counters, counters);
        }
        for link in self.values::<LinkControl, LC>(maps::LINK_CONTROL) {
            model.link.pfc_frames += link.pfc_frames;
            model.link.lldp += link.lldp;
            model.link.other_mac_control += link.other_mac_control;
            let all = model.link.pfc.iter_mut().chain([&mut model.link.global]);
            for (sum, one) in all.zip(link.pfc.iter().chain([&link.global])) {
                sum.pauses += one.pauses;
                sum.resumes += one.resumes;
                // When the last frame came and how long its quanta last: TCX has an entry for each CPU, and the test may
                // have moved from one to another.
                if one.since_ns > sum.since_ns {
                    (sum.since_ns, sum.until_ns) = (one.since_ns, one.until_ns);
                }
            }
        }
        for pause in model.link.pfc.iter_mut().chain([&mut model.link.global]) {
            pause.until_ns -= pause.since_ns;
            pause.since_ns = 0;
        }
        let flows: HashMap<_, [u8; size_of::<FlowKey>()], [u8; size_of::<FlowState>()]> = self
            .ebpf
            .map(maps::FLOWS)
            .expect("FLOWS")
            .try_into()
            .expect("a hash");
        for entry in flows.iter() {
            let (key, value) = entry.expect("a flow");
            model.flows.push((
                bytemuck::pod_read_unaligned(&key),
                bytemuck::pod_read_unaligned(&value),
            ));
        }
        let pending: HashMap<_, [u8; size_of::<PendingKey>()], [u8; size_of::<Pending>()]> = self
            .ebpf
            .map(watch::PENDING)
            .expect("PENDING")
            .try_into()
            .expect("a hash");
        for entry in pending.iter() {
            let (key, value) = entry.expect("a request");
            model
                .pending
                .insert(key, bytemuck::pod_read_unaligned(&value));
        }
        model
    }
}

fn add(sum: &mut QueueCounters, one: &QueueCounters) {
    for (a, b) in [
        (&mut sum.frames, one.frames),
        (&mut sum.rocev2, one.rocev2),
        (&mut sum.passed_rocev2, one.passed_rocev2),
        (&mut sum.passed_other, one.passed_other),
        (&mut sum.flow_inserts, one.flow_inserts),
        (
            &mut sum.dropped,
            one.dropped + one.redirected + one.consumed,
        ),
    ] {
        *a += b;
    }
    for (a, b) in sum.reasons.iter_mut().zip(one.reasons) {
        *a += b;
    }
}

/// What of a model does not depend on the clock, in a form that compares.
#[derive(Debug, PartialEq)]
pub struct Still {
    counters: [u64; 6],
    reasons: Vec<u64>,
    flows: Vec<(FlowKey, FlowState)>,
    link: LinkControl,
    pending: Vec<([u8; 40], u32, bool)>,
}

/// Takes the clock out. Of a round trip remains that there was one.
pub fn still(model: &Model) -> Still {
    let c = &model.counters;
    let mut flows = model.flows.clone();
    for (_, flow) in &mut flows {
        let of = &mut flow.counters;
        for time in [
            &mut of.first_seen_ns,
            &mut of.last_seen_ns,
            &mut of.last_ce_ns,
            &mut of.last_cnp_ns,
        ] {
            *time = (*time).min(1);
        }
        let trips = flow.rtt.count();
        flow.rtt = maps::Rtt::ZERO;
        flow.rtt.buckets[0] = trips;
    }
    flows.sort_by_key(|(key, _)| (key.src, key.dst, key.dest_qpn));
    let mut link = model.link;
    for pause in link.pfc.iter_mut().chain([&mut link.global]) {
        if pause.since_ns != 0 {
            pause.until_ns -= pause.since_ns;
        }
        (pause.since_ns, pause.paused_ns) = (0, 0);
    }
    let mut pending: Vec<_> = model
        .pending
        .iter()
        .map(|(key, value)| (*key, value.dest_qpn, value.time_ns == 0))
        .collect();
    pending.sort_unstable();
    Still {
        counters: [
            c.frames,
            c.rocev2,
            c.passed_rocev2,
            c.passed_other,
            c.flow_inserts,
            c.dropped,
        ],
        reasons: c.reasons.to_vec(),
        flows,
        link,
        pending,
    }
}
