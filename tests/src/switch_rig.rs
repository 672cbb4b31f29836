//! A lab with switches, `rocexdp run` on its hosts, and what its switch has in its books. Dropped, nothing is left.
//!
//! Must not: judge.

use std::{path::PathBuf, process::Command, time::Duration};

use rocexdp::lab::{
    keeper::{self, Status, SwitchedStatus},
    switched::status::{NetworkStatus, PriorityStatus},
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    process::{Outcome, Running, eventually},
    rig::{SHORT, product},
};

/// How long `rocexdp run` has to come up: the verifier reads the program meanwhile.
const START: Duration = Duration::from_secs(60);
/// How long a busy machine may take for some seconds of the lab's time.
pub const LONG: Duration = Duration::from_secs(240);
/// DSCP of data: priority 3, the lossless one.
pub const DSCP: &str = "26";
/// Its priority.
pub const DATA: u8 = 3;

/// The links of a lab, and what fits them.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    /// Of each link, in Mb/s.
    pub mbps: u32,
    /// Of `rocexdp run`.
    pub path_mtu: &'static str,
}

/// What the slowest build on the busiest machine keeps up with.
pub const SLOW: Lane = Lane {
    mbps: 100,
    path_mtu: "1024",
};
/// For an optimised build.
pub const FAST: Lane = Lane {
    mbps: 1000,
    path_mtu: "4096",
};

impl Lane {
    /// Of a link, bit/s.
    #[must_use]
    pub fn rate(&self) -> f64 {
        f64::from(self.mbps) * 1e6
    }

    /// Where marking begins, and where all is marked, in bytes: a queue that takes 4.8 ms to drain, and four times that.
    #[must_use]
    pub fn thresholds(&self) -> [f64; 2] {
        [600.0, 2400.0].map(|bytes| bytes * f64::from(self.mbps))
    }

    /// N hosts and a receiver at one switch.
    #[must_use]
    pub fn incast(&self, senders: u32) -> String {
        let [kmin, kmax] = self.thresholds();
        format!(
            r#"
[defaults.link]
rate = "{}Mb/s"
delay = "50us"
mtu = 4200
[defaults.switch]
buffer = "{}kB"
ecn = [{{ kmin = {kmin}, kmax = {kmax}, pmax = "20%" }}]
pfc = {{ priorities = [{DATA}], alpha = 0.125 }}
[generate]
kind = "incast"
senders = {senders}
"#,
            self.mbps,
            40 * self.mbps,
        )
    }

    /// DCQCN by ConnectX's rules at the pace of such a lab: a full queue takes 20 ms to drain, not 100 us.
    #[must_use]
    pub fn dcqcn(&self) -> [String; 8] {
        let step = self.mbps / 100;
        [
            "min_time_between_cnps=1000".to_owned(),
            "dce_tcp_rtt=1000".to_owned(),
            "rate_reduce_monitor_period=4000".to_owned(),
            "rpg_time_reset=20000".to_owned(),
            "rpg_byte_reset=0".to_owned(),
            format!("rpg_ai_rate={step}"),
            format!("rpg_hai_rate={step}"),
            "rpg_min_rate=1".to_owned(),
        ]
    }
}

/// A lab, its daemons and a directory.
#[derive(Debug)]
pub struct SwitchRig {
    daemons: Vec<Running>,
    name: String,
    place: TempDir,
    binary: PathBuf,
}

impl SwitchRig {
    /// A lab of this topology; `test` makes its name. `None`, said as `SKIP`, where it can't be.
    #[must_use]
    pub fn up(test: &str, topology: &str) -> Option<Self> {
        Self::with(test, topology, &[])
    }

    /// The same, with these options of `rocexdp lab up` besides.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn with(test: &str, topology: &str, options: &[&str]) -> Option<Self> {
        let binary = product()?;
        let rig = Self {
            daemons: Vec::new(),
            name: format!("{test}{}", std::process::id()),
            // Some tests fill it faster than a disk takes it.
            place: tempfile::tempdir_in("/dev/shm").unwrap(),
            binary,
        };
        let file = rig.path("topology.toml");
        std::fs::write(&file, topology).unwrap();
        let up = ["lab", "up", "--name", &rig.name, "--topology"];
        rig.run(&[&up[..], &[file.to_str().unwrap()], options].concat())
            .ok();
        Some(rig)
    }

    /// Its name, which its namespaces begin with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A file's place.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Starts a command of the program.
    pub fn spawn(&self, line: &[&str]) -> Running {
        let mut command = Command::new(&self.binary);
        command.args(line);
        Running::start(command, format!("rocexdp {}", line.join(" ")))
    }

    /// As [`Self::spawn`], before all else that this machine does, as the lab's switches run: an end system does not share its
    /// processors with compilers, and niceness counts within a session only (`sched_autogroup_enabled`).
    fn spawn_first(&self, line: &[&str]) -> Running {
        let mut command = Command::new("chrt");
        command.args(["--rr", "1"]).arg(&self.binary).args(line);
        Running::start(command, format!("rocexdp {}", line.join(" ")))
    }

    /// Runs one to its end.
    pub fn run(&self, line: &[&str]) -> Outcome {
        self.spawn(line).finish(SHORT)
    }

    /// Runs a command on a host of the lab.
    pub fn exec(&self, host: &str, line: &[&str]) -> Outcome {
        let start = ["lab", "exec", "--name", &self.name, host, "--"];
        self.spawn(&[&start, line].concat()).finish(SHORT)
    }

    /// How the lab is.
    pub fn status(&self) -> SwitchedStatus {
        match keeper::look(&self.name).unwrap() {
            Status::Switched(status) => *status,
            Status::Wire(_) => panic!("a lab with a wire"),
        }
    }

    /// Its network.
    pub fn network(&self) -> NetworkStatus {
        self.status().network
    }

    /// A host's namespace.
    #[must_use]
    pub fn namespace(&self, host: u32) -> String {
        format!("{}-h{host}", self.name)
    }

    /// `rocexdp run` on all hosts of an incast, with these options besides; the last one receives.
    ///
    /// # Panics
    /// If one ends instead.
    pub fn start_hosts(&mut self, lane: &Lane, senders: u32, options: &[&str]) {
        let inbox = self.path("in");
        std::fs::create_dir(&inbox).unwrap();
        let (rate, dcqcn) = (format!("{}M", lane.mbps), lane.dcqcn());
        for host in 0..=senders {
            let netns = self.namespace(host);
            let mut line = vec![
                "run", "--netns", &netns, "--iface", "eth0", "--linger", "10min",
            ];
            line.extend(["--line-rate", &rate, "--dscp", DSCP, "--poll", "sleep"]);
            // What a busy machine adds to a round trip must not fill it.
            line.extend(["--path-mtu", lane.path_mtu, "--window", "512"]);
            dcqcn.iter().for_each(|set| line.extend(["--cc", set]));
            line.extend(options);
            if host == senders {
                line.extend(["--listen", "0.0.0.0", "--no-token"]);
                line.extend(["--receive-dir", inbox.to_str().unwrap()]);
            }
            let daemon = self.spawn_first(&line);
            self.daemons.push(daemon);
        }
        for daemon in &mut self.daemons {
            eventually("rocexdp run is ready", START, || {
                assert!(daemon.runs(), "rocexdp run ended: {}", daemon.stderr());
                daemon.stdout().contains("ready ").then_some(())
            });
        }
    }

    /// Starts to copy a file from a host to the last of an incast.
    pub fn copy(&self, host: u32, senders: u32, file: &std::path::Path) -> Running {
        let netns = self.namespace(host);
        let to = format!("10.78.0.{}:from{host}", senders + 1);
        let start = ["copy", "--json", "--netns", &netns, "--iface", "eth0"];
        self.spawn(&[&start[..], &[file.to_str().unwrap(), &to]].concat())
    }

    /// The QPs of a host, as `qp list` tells them.
    pub fn qps(&self, host: u32) -> Value {
        let netns = self.namespace(host);
        self.run(&["qp", "list", "--json", "--netns", &netns, "--iface", "eth0"])
            .json()
    }
}

impl Drop for SwitchRig {
    fn drop(&mut self) {
        self.daemons.clear();
        let _ = keeper::down(&self.name);
    }
}

/// The priority of the data at a port of the one switch.
#[must_use]
pub fn data(network: &NetworkStatus, port: u32) -> PriorityStatus {
    let priorities = &network.switches[0].ports[port as usize].priorities;
    priorities
        .iter()
        .find(|p| p.priority == DATA)
        .copied()
        .unwrap_or_default()
}

/// Bit/s that came in by each of the first ports between two looks.
#[must_use]
pub fn rates(from: &NetworkStatus, to: &NetworkStatus, senders: u32) -> Vec<f64> {
    let time = to.time - from.time;
    (0..senders)
        .map(|port| (data(to, port).rx_bytes - data(from, port).rx_bytes) as f64 * 8.0 / time)
        .collect()
}

/// Jain's index of fairness.
#[must_use]
pub fn jain(rates: &[f64]) -> f64 {
    let (sum, squares) = (
        rates.iter().sum::<f64>(),
        rates.iter().map(|r| r * r).sum::<f64>(),
    );
    sum * sum / (rates.len() as f64 * squares)
}
