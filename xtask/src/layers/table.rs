//! The rules that `cargo xtask layers` checks, as data: this is the file to edit when a crate or module is added.
//!
//! A module's row names what it uses directly; what those use it may use too. A module without a row is an error, so that a new
//! one is given its place on purpose.

/// What one crate may contain and use.
pub struct Crate {
    /// Package name.
    pub name: &'static str,
    /// Its directory in the workspace.
    pub dir: &'static str,
    /// Crates of this workspace it may depend on.
    pub uses: &'static [&'static str],
    /// Other crates it may depend on; `None` for any. (Of tests and build scripts, nothing is asked.)
    pub external: Option<&'static [&'static str]>,
    /// Top-level modules, from the bottom up, with what each uses; `None` where there is no order to keep.
    pub modules: Option<&'static [(&'static str, &'static [&'static str])]>,
    /// Sibling modules that never name one another.
    pub apart: &'static [&'static str],
    /// A module whose code must contain no identifier with this text in it (the package's own name aside).
    pub unaware: Option<(&'static str, &'static str)>,
    /// Paths below `dir` where `unsafe` may stand, as prefixes.
    pub unsafe_in: &'static [&'static str],
}

/// All crates; those that `cargo metadata` lists and this doesn't are an error.
pub const CRATES: &[Crate] = &[
    Crate {
        name: "rocexdp-common",
        dir: "rocexdp-common",
        uses: &[],
        external: Some(&["bytemuck", "network-types"]),
        modules: None,
        apart: &[],
        unaware: None,
        unsafe_in: &[],
    },
    Crate {
        name: "rocexdp-ebpf",
        dir: "rocexdp-ebpf",
        uses: &["rocexdp-common"],
        external: Some(&["aya-ebpf", "aya-log-ebpf"]),
        modules: None,
        apart: &[],
        unaware: None,
        unsafe_in: &["src/"],
    },
    Crate {
        name: "rocexdp-fabric",
        dir: "rocexdp-fabric",
        uses: &["rocexdp-common", "rocexdp-proto", "rocexdp-sim"],
        external: None,
        modules: None,
        apart: &[],
        unaware: None,
        unsafe_in: &[],
    },
    Crate {
        name: "rocexdp-fuzz",
        dir: "fuzz",
        uses: &[
            "rocexdp-common",
            "rocexdp-observe",
            "rocexdp-proto",
            "rocexdp-sim",
        ],
        external: Some(&["libfuzzer-sys"]),
        modules: None,
        apart: &[],
        unaware: None,
        unsafe_in: &[],
    },
    Crate {
        name: "rocexdp-observe",
        dir: "rocexdp-observe",
        uses: &["rocexdp-common"],
        external: None,
        modules: None,
        apart: &[],
        unaware: None,
        unsafe_in: &[],
    },
    Crate {
        name: "rocexdp-proto",
        dir: "rocexdp-proto",
        uses: &["rocexdp-common"],
        // No clock, thread, socket, file or randomness comes in through any of these.
        external: Some(&["crc32fast", "crossbeam-queue", "thiserror"]),
        modules: Some(&[
            ("mutant", &[]),
            ("ids", &[]),
            ("time", &[]),
            ("rng", &[]),
            ("drop", &["ids"]),
            ("hash", &["ids"]),
            ("timer", &["ids", "time"]),
            ("dcqcn", &["ids", "time"]),
            ("rate", &["dcqcn"]),
            ("cm", &["ids", "time", "rng"]),
            ("mem", &["ids", "rng", "hash"]),
            // `wire` copies payload out of and into `mem::Memory`, in one pass with the ICRC.
            ("wire", &["ids", "time", "rng", "drop", "mem"]),
            ("verbs", &["wire", "mem"]),
            ("qp", &["mem", "verbs", "rate", "timer"]),
            ("endpoint", &["qp"]),
            ("drive", &["endpoint"]),
        ]),
        apart: &["requester", "completer", "responder"],
        unaware: None,
        // The counting allocators of "no packet allocates" and of the benchmark, whose memory has no lock.
        unsafe_in: &["tests/alloc", "benches/proto/ground.rs"],
    },
    Crate {
        name: "rocexdp-sim",
        dir: "rocexdp-sim",
        uses: &["rocexdp-common", "rocexdp-proto"],
        external: Some(&[]),
        modules: None,
        apart: &[],
        unaware: None,
        unsafe_in: &[],
    },
    Crate {
        name: "rocexdp",
        dir: "rocexdp",
        uses: &[
            "rocexdp-common",
            "rocexdp-fabric",
            "rocexdp-observe",
            "rocexdp-proto",
            "rocexdp-sim",
        ],
        external: None,
        modules: Some(&[
            ("out", &[]),
            ("process", &[]),
            ("sys", &[]),
            ("xsk", &[]),
            ("mem", &[]),
            ("net", &["sys"]),
            ("maps", &["net"]),
            ("loader", &["maps", "net", "sys"]),
            ("monitor", &["loader", "maps", "net", "out", "sys"]),
            ("record", &["monitor", "sys"]),
            ("nic", &["net", "sys"]),
            ("live", &["maps", "net", "nic", "out", "sys"]),
            ("pfc", &["live", "maps", "net", "nic", "sys"]),
            ("engine", &["xsk", "maps", "mem"]),
            ("node", &["engine", "loader", "net"]),
            ("events", &["live", "loader", "maps", "node", "pfc", "sys"]),
            (
                "control",
                &["events", "live", "maps", "node", "out", "process"],
            ),
            // What applications use.
            ("cm", &["loader", "node"]),
            ("rdma", &["cm", "control", "mem", "node"]),
            // Other tools' out-of-band protocols, and the tests that speak them.
            ("oob", &["control", "net", "out", "process", "rdma"]),
            ("perf", &["control", "mem", "oob", "out", "process", "rdma"]),
            ("rping", &["control", "mem", "oob", "out", "rdma"]),
            (
                "pingpong",
                &["control", "mem", "oob", "out", "process", "rdma"],
            ),
            ("lab", &["loader", "net", "sys", "xsk", "out", "process"]),
            ("view", &["control", "lab", "live"]),
            ("metrics", &["control", "live", "nic", "out", "pfc", "view"]),
            (
                "top",
                &["control", "events", "lab", "live", "out", "process", "view"],
            ),
            ("demo", &["control", "lab", "view"]),
            ("bench", &["control", "lab", "view"]),
            (
                "cli",
                &[
                    "control", "lab", "view", "demo", "bench", "live", "metrics", "monitor",
                    "perf", "pingpong", "record", "rping", "top",
                ],
            ),
        ]),
        apart: &[],
        unaware: Some(("xsk", "roce")),
        unsafe_in: &[
            "src/xsk/",
            // Application memory as raw memory; BPF maps as memory; system calls that rustix has no safe form of.
            "src/mem",
            "src/maps",
            "src/sys",
            // Test bed: raw bpf(2) and socket calls below the AF_XDP layer.
            "tests/xsk_support/",
        ],
    },
    Crate {
        name: "rocexdp-tests",
        dir: "tests",
        uses: &[
            "rocexdp",
            "rocexdp-common",
            "rocexdp-fabric",
            "rocexdp-proto",
            "rocexdp-sim",
        ],
        external: None,
        modules: None,
        apart: &[],
        unaware: None,
        // The counting allocator of "no packet allocates"; borrowed memory, as applications register it.
        unsafe_in: &["tests/alloc", "tests/rdma/lifetimes.rs"],
    },
    Crate {
        name: "xtask",
        dir: "xtask",
        uses: &[],
        external: None,
        modules: None,
        apart: &[],
        unaware: None,
        unsafe_in: &[],
    },
];

/// A file of more lines is an error.
pub const LINES_MOST: usize = 600;
/// A file of more lines is a warning.
pub const LINES_WARN: usize = 500;
