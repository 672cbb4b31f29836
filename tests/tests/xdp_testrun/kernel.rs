//! The real XDP program in the kernel, run by `BPF_PROG_TEST_RUN`, with its maps read and written as userspace does.
//!
//! The program is loaded from the object that the product embeds, but attached to nothing. A veth in a namespace of its
//! own gives it receive queues and a place for AF_XDP sockets.

use std::{
    os::fd::AsFd as _,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use aya::{
    Ebpf, EbpfLoader, VerifierLogLevel,
    maps::{Array, HashMap, MapData, RingBuf, XskMap},
    programs::{TestRun as _, TestRunOptions, Xdp},
};
use rocexdp::{
    sys::netns::NetNs,
    xsk::{Xsk, XskConfig, ZeroCopy},
};
use rocexdp_common::{
    maps::{
        self, DirtyLine, Event, EventBook, FlowKey, FlowState, LinkControl, QpConfig, QpCounters,
        QueueCounters, Tracker,
    },
    verdict::Action,
};

use crate::support::model::Model;

/// Receive queues of the veth.
pub const QUEUES: u32 = 3;
/// Queues that the program is told of: one less, so that a queue beyond can be tried.
pub const TOLD: u32 = 2;
/// A pause quantum at 10 Gb/s.
pub const QUANTUM_PS: u32 = 51_200;
/// QP slots.
pub const SLOTS: u32 = 128;

/// A namespace with a veth; removed on drop.
pub struct Stage {
    name: String,
    pub ns: NetNs,
}

impl Stage {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rocexdp-testrun-{}-{number}", std::process::id());
        let ns = NetNs::create(&name).expect("a namespace (root?)");
        let stage = Self { name, ns };
        let n = QUEUES.to_string();
        stage.ip(&[
            "link",
            "add",
            "t0",
            "numrxqueues",
            &n,
            "numtxqueues",
            &n,
            "type",
            "veth",
            "peer",
            "name",
            "t1",
            "numrxqueues",
            &n,
            "numtxqueues",
            &n,
        ]);
        stage.ip(&["link", "set", "t0", "up"]);
        stage.ip(&["link", "set", "t1", "up"]);
        stage
    }

    fn ip(&self, args: &[&str]) {
        let mut ip = Command::new("ip");
        ip.args(args);
        self.ns.confine(&mut ip).expect("a handle of the namespace");
        assert!(ip.status().expect("ip runs").success(), "ip {args:?}");
    }

    /// Runs a test inside.
    pub fn run(work: impl FnOnce() + Send) {
        let stage = Self::new();
        stage.ns.run(work).expect("the test in its namespace");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Err(e) = NetNs::delete(&self.name) {
            eprintln!("namespace {} stays behind: {e}", self.name);
        }
    }
}

fn object() -> Vec<u8> {
    let dir = std::env::var_os("ROCEXDP_BPF_DIR").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/bpf"),
        PathBuf::from,
    );
    let path = dir.join("rocexdp");
    std::fs::read(&path)
        .unwrap_or_else(|e| panic!("{}: {e}: run `cargo xtask build`", path.display()))
}

/// A loaded program and its maps.
pub struct Kernel {
    ebpf: Ebpf,
    program: &'static str,
    ifindex: u32,
    pub queue: u32,
    sockets: Vec<Xsk>,
}

impl Kernel {
    /// Loads; to be called inside a [`Stage`].
    pub fn load(program: &'static str) -> Self {
        Self::load_logging(program, false)
    }

    /// Loads with refusals logged, or not.
    pub fn load_logging(program: &'static str, refusals: bool) -> Self {
        let mut ebpf = EbpfLoader::new()
            .verifier_log_level(VerifierLogLevel::STATS)
            .override_global(maps::GLOBAL_QUEUES, &TOLD, true)
            .override_global(maps::GLOBAL_SLOT_MASK, &(SLOTS - 1), true)
            .override_global(maps::GLOBAL_LOG_REFUSALS, &u8::from(refusals), true)
            .map_max_entries(maps::QP_CONFIG, SLOTS)
            .map_max_entries(maps::QP_COUNTERS, SLOTS * TOLD)
            .map_max_entries(maps::QP_ENGINE, SLOTS)
            .map_max_entries(maps::QUEUE_COUNTERS, TOLD + 1)
            .map_max_entries(maps::QUEUE_ENGINE, TOLD)
            .map_max_entries(maps::DIRTY, SLOTS.div_ceil(64))
            .map_max_entries(maps::DIRTY_INDEX, SLOTS.div_ceil(4096))
            .map_max_entries(maps::FLOWS, 4096)
            .map_max_entries(maps::LINK_CONTROL, TOLD + 1)
            .override_global(maps::GLOBAL_QUANTUM_PS, &QUANTUM_PS, true)
            .map_max_entries(maps::XSKS, 4 * TOLD)
            .load(&object())
            .expect("the object");
        let xdp: &mut Xdp = ebpf
            .program_mut(program)
            .expect(program)
            .try_into()
            .expect("an XDP program");
        xdp.load().expect("the verifier accepts it");
        let ifindex = std::fs::read_to_string("/proc/thread-self/net/dev_snmp6/t0")
            .ok()
            .and_then(|s| s.lines().next()?.split_whitespace().nth(1)?.parse().ok())
            .expect("index of t0");
        Self {
            ebpf,
            program,
            ifindex,
            queue: 0,
            sockets: vec![],
        }
    }

    fn xdp(&self) -> &Xdp {
        self.ebpf
            .program(self.program)
            .expect("loaded")
            .try_into()
            .expect("an XDP program")
    }

    /// Instructions that the verifier walked.
    pub fn verified(&self) -> u32 {
        self.xdp()
            .info()
            .expect("program info")
            .verified_instruction_count()
            .expect("kernel 5.16")
    }

    /// Runs one frame as if it had come in on the queue; the frame must come out unchanged.
    pub fn run(&self, frame: &[u8]) -> Action {
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
        let words = [0, frame.len() as u32, 0, self.ifindex, self.queue, 0];
        let mut out = vec![0; frame.len()];
        let result = self.xdp().test_run(TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in: Some(bytemuck::cast_slice(&words)),
            ..Default::default()
        });
        let result = result.expect("BPF_PROG_TEST_RUN");
        assert_eq!(out, frame, "the program must not write to the frame");
        match result.return_value {
            1 => Action::Drop,
            2 => Action::Pass,
            4 => Action::Redirect,
            other => panic!("XDP action {other}"),
        }
    }

    /// Opens a socket on the program's queue and puts it into an entry of `XSKS`.
    pub fn open_socket(&mut self, entry: u32) {
        let config = XskConfig {
            zero_copy: ZeroCopy::Never,
            frames_rx: 64,
            frames_tx: 64,
            rx_size: 64,
            tx_size: 64,
            fill_size: 64,
            comp_size: 64,
            tx_budget: 64,
            ..XskConfig::new("t0", self.ifindex, self.sockets.len() as u32)
        };
        let socket = Xsk::open(&config).expect("an AF_XDP socket");
        let map = self.ebpf.map_mut(maps::XSKS).expect(maps::XSKS);
        let mut map: XskMap<_> = map.try_into().expect("an XSKMAP");
        map.set(entry, socket.as_fd(), 0).expect("an entry");
        self.sockets.push(socket);
    }

    /// Records in aya-log's ring, and whether each tells of a refusal.
    pub fn log(&mut self) -> Vec<bool> {
        let map = self.ebpf.map_mut("AYA_LOGS").expect("AYA_LOGS");
        let mut ring: RingBuf<_> = map.try_into().expect("a ring buffer");
        let mut records = vec![];
        while let Some(record) = ring.next() {
            records.push(record.windows(7).any(|w| w == b"refused"));
        }
        records
    }

    /// What stands in `EVENTS`, in order.
    pub fn events(&mut self) -> Vec<Event> {
        let map = self.ebpf.map_mut(maps::EVENTS).expect(maps::EVENTS);
        let mut ring: RingBuf<_> = map.try_into().expect("a ring buffer");
        let mut events = vec![];
        while let Some(record) = ring.next() {
            events.push(bytemuck::pod_read_unaligned(&record));
        }
        events
    }

    fn array<const N: usize>(&self, name: &str) -> Array<&MapData, [u8; N]> {
        self.ebpf.map(name).expect(name).try_into().expect(name)
    }

    fn values<T: bytemuck::Pod, const N: usize>(&self, name: &str) -> Vec<T> {
        assert_eq!(N, size_of::<T>());
        self.array::<N>(name)
            .iter()
            .map(|v| bytemuck::pod_read_unaligned(&v.expect(name)))
            .collect()
    }

    /// Writes all configuration of a model into the maps.
    pub fn configure(&mut self, model: &Model) {
        let map = self.ebpf.map_mut(maps::QP_CONFIG).expect(maps::QP_CONFIG);
        let mut configs: Array<_, [u8; size_of::<QpConfig>()]> = map.try_into().expect("an array");
        for (slot, config) in (0..).zip(&model.configs) {
            configs
                .set(
                    slot,
                    bytemuck::cast::<QpConfig, [u8; size_of::<QpConfig>()]>(*config),
                    0,
                )
                .expect("set");
        }
        let map = self
            .ebpf
            .map_mut(maps::LOCAL_ADDRS)
            .expect(maps::LOCAL_ADDRS);
        let mut addresses: HashMap<_, [u8; 16], u32> = map.try_into().expect("a hash");
        for (gid, flags) in &model.addresses {
            addresses.insert(gid, flags, 0).expect("insert");
        }
    }

    /// What every map holds, in the form of a model, with each time replaced by 1 if there is one.
    pub fn maps(&self) -> Model {
        let mut m = Model::new(0, TOLD as usize);
        m.configs = self.values::<QpConfig, { size_of::<QpConfig>() }>(maps::QP_CONFIG);
        m.counters = self.values::<QpCounters, { size_of::<QpCounters>() }>(maps::QP_COUNTERS);
        m.queue_counters =
            self.values::<QueueCounters, { size_of::<QueueCounters>() }>(maps::QUEUE_COUNTERS);
        m.link_control =
            self.values::<LinkControl, { size_of::<LinkControl>() }>(maps::LINK_CONTROL);
        let dirty = self.values::<DirtyLine, 64>(maps::DIRTY);
        m.dirty = dirty.iter().flat_map(|line| line.0).collect();
        let flows: HashMap<_, [u8; size_of::<FlowKey>()], [u8; size_of::<FlowState>()]> = self
            .ebpf
            .map(maps::FLOWS)
            .expect(maps::FLOWS)
            .try_into()
            .expect("a hash");
        for entry in flows.iter() {
            let (key, value) = entry.expect("a flow");
            m.flows.push((
                bytemuck::pod_read_unaligned(&key),
                bytemuck::pod_read_unaligned(&value),
            ));
        }
        let index = self.values::<DirtyLine, 64>(maps::DIRTY_INDEX);
        for (byte, line) in index[0].0.iter().zip(dirty.iter()) {
            assert_eq!(
                *byte,
                line.0.iter().copied().max().unwrap_or(0),
                "DIRTY_INDEX says which lines"
            );
        }
        m
    }
}

/// The newest time in a model, and the model with each time that is one replaced by 1.
fn strip_times(m: &mut Model) -> u64 {
    let mut newest = 0;
    let flows = m.flows.iter_mut().map(|(_, flow)| &mut flow.counters);
    for c in m.counters.iter_mut().chain(flows) {
        for time in [
            &mut c.first_seen_ns,
            &mut c.last_seen_ns,
            &mut c.last_ce_ns,
            &mut c.last_cnp_ns,
        ] {
            newest = newest.max(*time);
            *time = (*time).min(1);
        }
    }
    for queue in &mut m.queue_counters {
        queue.tick = 0;
        queue.tick_ns = 0;
        // How many of them the rate limit lets through is a matter of time.
        queue.events = EventBook {
            sent: queue.events.sent + queue.events.suppressed + queue.events.lost,
            ..EventBook::default()
        };
    }
    for priority in m
        .link_control
        .iter_mut()
        .flat_map(|link| link.pfc.iter_mut().chain([&mut link.global]))
    {
        // How long it was asked to pause must be the same; when, and how much of it has gone by, can't be.
        priority.until_ns -= priority.since_ns;
        priority.since_ns = priority.since_ns.min(1);
        priority.paused_ns = 0;
    }
    m.flows
        .sort_by_key(|(key, _)| (key.src, key.dst, key.dest_qpn));
    newest
}

/// Compares all maps with what the model says they hold.
#[track_caller]
pub fn assert_same(kernel: &Kernel, model: &Model) {
    let mut real = kernel.maps();
    let mut model = model.clone();
    strip_times(&mut real);
    strip_times(&mut model);
    assert_eq!(real.queue_counters, model.queue_counters);
    for (index, (real, model)) in real.counters.iter().zip(&model.counters).enumerate() {
        assert_eq!(real, model, "QP_COUNTERS entry {index}");
    }
    assert_eq!(real.counters.len(), model.counters.len());
    assert_eq!(real.flows, model.flows);
    assert_eq!(real.dirty, model.dirty);
    assert_eq!(real.link_control, model.link_control);
    assert_eq!(
        real.configs, model.configs,
        "the program does not write configuration"
    );
}

/// The newest time that the maps hold.
pub fn newest_time(kernel: &Kernel) -> u64 {
    strip_times(&mut kernel.maps())
}

/// Shorthand for a tracker's figures.
pub fn figures(t: &Tracker) -> [u64; 5] {
    [
        u64::from(t.expected_psn),
        t.out_of_sequence,
        t.gaps,
        t.missing,
        t.duplicates,
    ]
}
