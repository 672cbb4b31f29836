//! A lab with rocexdp on its hosts: `a` sends, `b` receives.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rocexdp::{
    control::local,
    lab::{Host, Impairment, Lab, LabConfig, LinkDrops},
    maps::{MapsView, QpView},
    net::Link,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    check,
    files::{self, SourceFile},
    hop::Hop,
    process::{Outcome, Running, eventually},
};

/// How long `rocexdp run` has to come up: the verifier reads the program meanwhile.
const START: Duration = Duration::from_secs(60);
/// How long a copy may take: what needs longer hangs.
pub const COPY: Duration = Duration::from_secs(120);
/// How long a command that moves no data may take.
pub const SHORT: Duration = Duration::from_secs(30);
/// What a sender is started with to make copies last: with [`SLOW_WIRE`], 16 packets in 2 ms.
pub const SLOW: [&str; 2] = ["--window", "16"];
/// See [`SLOW`].
pub const SLOW_WIRE: &str = "delay=1ms";

/// The program, for a test that may run it. `None`, said as `SKIP`, where that can't be.
pub fn product() -> Option<PathBuf> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: not root");
        return None;
    }
    let found = binary();
    if found.is_none() {
        println!("SKIP: no rocexdp binary: build it, or name it in ROCEXDP_BIN");
    }
    found
}

/// The lab, its daemons and a directory for files. Dropped, nothing is left.
#[derive(Debug)]
pub struct Rig {
    daemons: [Option<Running>; 2],
    lab: Lab,
    /// What the links had dropped before the test's own traffic.
    dropped_before: u64,
    place: TempDir,
    binary: PathBuf,
}

impl Rig {
    /// The default lab, no daemon yet. `test` makes the lab's name. `None`, said as `SKIP`, where it can't be.
    pub fn up(test: &str) -> Option<Self> {
        Self::with(LabConfig::named(test))
    }

    /// A lab like this; its name gets the process's number.
    pub fn with(mut config: LabConfig) -> Option<Self> {
        let binary = product()?;
        config.name = format!("{}{}", config.name, std::process::id());
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("in")).unwrap();
        let rig = Self {
            daemons: [None, None],
            lab: Lab::up(config).unwrap(),
            dropped_before: 0,
            place,
            binary,
        };
        rig.write_token("token", "a token of these tests");
        Some(rig)
    }

    /// As [`Rig::up`], with a daemon on both hosts.
    pub fn running(test: &str) -> Option<Self> {
        let mut rig = Self::up(test)?;
        rig.start_sender(&[]);
        rig.start_receiver(&[]);
        Some(rig)
    }

    /// Starts `rocexdp run` on a host and waits until it is ready. Returns the `ready` line.
    pub fn start(&mut self, host: Host, arguments: &[&str]) -> String {
        let mut daemon = self.launch(host, arguments);
        let ready = eventually("rocexdp run is ready", START, || {
            // Looked at first: what it said before it ended is then read below.
            let runs = daemon.runs();
            let said = daemon.stdout();
            let ready = said.lines().find(|line| line.starts_with("ready "));
            assert!(runs, "rocexdp run on {host} ended");
            ready.map(str::to_owned)
        });
        self.daemons[host.index()] = Some(daemon);
        ready
    }

    /// Starts `rocexdp run` on a host and does not wait.
    pub fn launch(&self, host: Host, arguments: &[&str]) -> Running {
        let interface = self.lab.host_interface();
        let mut line = vec!["run", "--iface", &interface];
        let vlan = self.lab.config().vlan.map(|id| id.to_string());
        if let Some(id) = &vlan
            && interface == rocexdp::lab::HOST_INTERFACE
        {
            // This kernel has no VLAN devices: rocexdp adds the tags by itself.
            line.extend(["--vlan", id]);
        }
        line.extend(arguments);
        self.spawn(host, &line)
    }

    /// The daemon on a, which keeps the QPs of finished copies for their counters.
    pub fn start_sender(&mut self, more: &[&str]) -> String {
        let mut line = vec!["--linger", "10min"];
        line.extend(more);
        self.start(Host::A, &line)
    }

    /// The daemon on b, which receives on all addresses.
    pub fn start_receiver(&mut self, more: &[&str]) -> String {
        let (dir, token) = (self.inbox(), self.path("token"));
        let mut line = vec!["--linger", "10min", "--listen", "[::]"];
        line.extend(["--receive-dir", text(&dir), "--token-file", text(&token)]);
        line.extend(more);
        self.start(Host::B, &line)
    }

    /// A host's daemon.
    pub fn daemon(&mut self, host: Host) -> &mut Running {
        self.daemons[host.index()].as_mut().expect("a daemon")
    }

    /// `kill -9`.
    pub fn kill(&mut self, host: Host) {
        self.daemon(host).kill();
        self.daemons[host.index()] = None;
    }

    /// Ends a daemon as a user does; it must end well.
    pub fn stop(&mut self, host: Host) {
        let daemon = self.daemons[host.index()].take().expect("a daemon");
        daemon.terminate(SHORT).ok();
    }

    /// The lab.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Puts a bridge between a host and the wire, before anything runs on the host. What the kernel itself sends while the links
    /// are down for that (MLD reports) is dropped by them, and not the test's loss.
    pub fn insert_hop(&mut self, host: Host) -> Hop {
        let hop = Hop::insert(&self.lab, host);
        self.dropped_before = self.link_drops().iter().map(LinkDrops::total).sum();
        hop
    }

    fn link_drops(&self) -> Vec<LinkDrops> {
        self.lab.link_drops().unwrap()
    }

    /// The same faults in both directions.
    pub fn impair(&mut self, faults: &str) {
        self.impair_each([faults; 2]);
    }

    /// Faults for what a sends, and for what b sends.
    pub fn impair_each(&mut self, faults: [&str; 2]) {
        let faults = faults.map(|text| text.parse::<Impairment>().unwrap().0);
        self.lab.impair_each(faults).unwrap();
    }

    /// A path in the test's own directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// b's receive directory.
    pub fn inbox(&self) -> PathBuf {
        self.path("in")
    }

    /// The names in b's receive directory.
    pub fn inbox_names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.inbox()).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    /// Makes a token file.
    pub fn write_token(&self, name: &str, token: &str) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(self.path(name), format!("{token}\n")).unwrap();
        std::fs::set_permissions(self.path(name), PermissionsExt::from_mode(0o600)).unwrap();
    }

    /// Makes a file to copy.
    pub fn file(&self, name: &str, size: u64) -> SourceFile {
        SourceFile::create(self.path(name), size)
    }

    /// Starts `rocexdp ARGUMENTS` on a host.
    pub fn spawn(&self, host: Host, arguments: &[&str]) -> Running {
        let mut command = Command::new(&self.binary);
        command.args(arguments);
        self.lab.spawn_in(host, &mut command).unwrap();
        Running::start(command, format!("{host}: rocexdp {}", arguments.join(" ")))
    }

    /// Runs `rocexdp ARGUMENTS` on a host to its end.
    pub fn run(&self, host: Host, arguments: &[&str]) -> Outcome {
        self.spawn(host, arguments).finish(SHORT)
    }

    /// Starts a copy from a to `path` at an address of b, with the right token.
    pub fn start_copy(&self, file: &SourceFile, to: IpAddr, path: &str) -> Running {
        self.start_copy_with(file, to, path, &["--token-file", text(&self.path("token"))])
    }

    /// Starts a copy with options of its own.
    pub fn start_copy_with(
        &self,
        file: &SourceFile,
        to: IpAddr,
        path: &str,
        more: &[&str],
    ) -> Running {
        let target = match to {
            IpAddr::V4(to) => format!("{to}:{path}"),
            IpAddr::V6(to) => format!("[{to}]:{path}"),
        };
        let mut line = vec!["copy", text(&file.path), &target, "--json"];
        line.extend(more);
        self.spawn(Host::A, &line)
    }

    /// Copies over IPv4. The copy may fail.
    pub fn copy(&self, file: &SourceFile, path: &str) -> Outcome {
        self.start_copy(file, Host::B.ipv4().into(), path)
            .finish(COPY)
    }

    /// Copies over IPv4, and compares the digests. Returns the copy's report.
    pub fn copy_well(&self, file: &SourceFile, path: &str) -> Value {
        let report = self.copy(file, path).json();
        self.arrived(file, path, &report);
        report
    }

    /// The file must be there, with the source's bytes, and the report must say so.
    pub fn arrived(&self, file: &SourceFile, path: &str, report: &Value) {
        assert_eq!(
            files::digest(&self.inbox().join(path)),
            file.digest,
            "{path}"
        );
        assert_eq!(report["sha256"], file.digest.as_str());
        assert_eq!(report["bytes"], file.size);
    }

    /// `rocexdp qp list --json`.
    pub fn qp_list(&self, host: Host) -> Value {
        self.run(host, &["qp", "list", "--json"]).json()
    }

    /// `rocexdp counters --json`.
    pub fn counters(&self, host: Host) -> Value {
        self.run(host, &["counters", "--json"]).json()
    }

    /// A host's maps.
    pub fn maps(&self, host: Host) -> MapsView {
        let interface = self.lab.host_interface();
        let maps = self
            .lab
            .host(host)
            .run(|| MapsView::of_interface(&interface));
        maps.unwrap().unwrap()
    }

    /// A host's QPs, straight from the maps.
    pub fn qps(&self, host: Host) -> Vec<QpView> {
        self.maps(host).qps()
    }

    /// A host's interface with its XDP programs.
    pub fn link(&self, host: Host) -> Link {
        let device = rocexdp::lab::HOST_INTERFACE;
        self.lab
            .host(host)
            .run(|| Link::by_name(device))
            .unwrap()
            .unwrap()
    }

    /// Waits until b has taken at least `bytes` of a copy that is under way.
    pub fn wait_for_bytes(&self, bytes: u64) {
        let maps = self.maps(Host::B);
        eventually("the copy gets under way", SHORT, || {
            let most = maps.qps().iter().map(|qp| qp.engine.rx_bytes).max();
            most.filter(|most| *most >= bytes)
        });
    }

    /// No frame was lost but by the faults asked for: on the links, on the wire, at a device's transmit function.
    pub fn assert_nothing_lost_unasked(&self) {
        let drops = self.link_drops();
        let dropped: u64 = drops.iter().map(LinkDrops::total).sum();
        assert_eq!(dropped, self.dropped_before, "{drops:?}");
        for port in self.lab.counters().unwrap() {
            assert_eq!(port.failed, 0, "{port:?}");
        }
        for host in [Host::A, Host::B] {
            if self.daemons[host.index()].is_some() {
                check::nothing_lost_at_the_sockets(&self.counters(host));
            }
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let interface = self.lab.host_interface();
        for host in [Host::A, Host::B] {
            // Killed, it leaves its control socket behind; so does one that a test killed.
            self.daemons[host.index()] = None;
            let path = self.lab.host(host).run(|| local::default_path(&interface));
            if let Ok(Ok(path)) = path {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// A path as text: those of the tests are.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The binary under test: `ROCEXDP_BIN`, as `cargo xtask test` sets it, or what lies beside the test program.
fn binary() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("ROCEXDP_BIN") {
        return Some(named.into());
    }
    let target = std::env::current_exe().ok()?;
    let target = target.ancestors().nth(3)?;
    ["release", "optimised", "debug"]
        .map(|profile| target.join(profile).join("rocexdp"))
        .into_iter()
        .find(|path| path.exists())
}
