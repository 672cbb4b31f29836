//! rocexdp inside the guest, beside Soft-RoCE: the same kernel, the same emulated processor, each over a veth pair of its own.
//!
//! Soft-RoCE of these kernels receives in the first namespace only, so both its ends are there (`tests/softroce/guest/veth-pair`);
//! rocexdp's are in the namespaces `a` and `b`. The binary reaches the guest through a shared directory, and runs there because the guest's
//! libraries are those of Debian 12: a machine with a newer C library has to build it on that. Must not: judge what is measured.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rocexdp::{lab::Host, sys::netns::NetNs};
use tempfile::TempDir;

use super::guest::{Guest, Kernel, Task};

/// The interface of rocexdp in both namespaces.
pub const INTERFACE: &str = "eth0";
/// Where the guest sees what it is given.
pub const SHARED: &str = "/mnt";
/// The TCP port of perftest, in hexadecimal as `/proc/net/tcp` has it.
const PERFTEST_PORT: &str = "4853";
/// Time for what takes a moment.
const LIMIT: Duration = Duration::from_secs(60);

/// The address of rocexdp's end.
pub const fn address(host: Host) -> &'static str {
    match host {
        Host::A => "10.79.0.1",
        Host::B => "10.79.0.2",
    }
}

/// The address of Soft-RoCE's end.
pub const fn rxe_address(host: Host) -> &'static str {
    match host {
        Host::A => "10.78.0.1",
        Host::B => "10.78.0.2",
    }
}

const fn namespace(host: Host) -> &'static str {
    match host {
        Host::A => "a",
        Host::B => "b",
    }
}

/// A guest with rocexdp in it.
#[derive(Debug)]
pub struct Inside {
    // Dropped first: its tap is in the namespace.
    guest: Guest,
    _tap: Tap,
    _shared: TempDir,
}

/// The namespace on this machine that has the guest's tap, which nothing goes through.
#[derive(Debug)]
struct Tap(String);

impl Drop for Tap {
    fn drop(&mut self) {
        let _ = NetNs::delete(&self.0);
    }
}

impl Inside {
    /// Boots it with `rocexdp`, a binary, and all of `files` shared, and joins two ends each of Soft-RoCE and rocexdp by veth pairs of this
    /// MTU. `None`, said as `SKIP`, where it can't be.
    pub fn up(
        test: &str,
        kernel: Kernel,
        mtu: u32,
        rocexdp: &Path,
        files: &[PathBuf],
    ) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: not root");
            return None;
        }
        let shared = tempfile::tempdir().unwrap();
        // Without what a debugger reads it is a tenth.
        let stripped = Command::new("strip")
            .arg("-o")
            .arg(shared.path().join("rocexdp"))
            .arg(rocexdp)
            .status();
        if !stripped.is_ok_and(|status| status.success()) {
            std::fs::copy(rocexdp, shared.path().join("rocexdp")).unwrap();
        }
        for file in files {
            std::fs::copy(file, shared.path().join(file.file_name().unwrap())).unwrap();
        }
        let name = format!("{test}{}", std::process::id());
        NetNs::create(&name).unwrap();
        let tap = Tap(name);
        let nic = "tap0,rxe=0";
        // The processor's own clock. Without this word the kernel takes an emulated timer for it, each look at which is a system call and a
        // way out of the emulation: rocexdp reads the clock in every turn of its engine, rxe in none.
        let clock = ["--append", "tsc=reliable"];
        let share = ["--share", shared.path().to_str().unwrap()];
        match Guest::boot_with(kernel, &tap.0, nic, &[clock, share].concat()) {
            Ok(guest) => {
                let inside = Self {
                    guest,
                    _tap: tap,
                    _shared: shared,
                };
                inside.join(mtu);
                Some(inside)
            }
            Err(lacks) => {
                println!("SKIP: no Soft-RoCE peer: {lacks}");
                None
            }
        }
    }

    /// Makes both veth pairs.
    fn join(&self, mtu: u32) {
        self.guest.run(&format!("veth-pair {mtu}")).ok();
        let mut script =
            "set -e; mkdir -p /var/run/netns; ip link add xa type veth peer name xb".to_owned();
        for (host, end) in [(Host::A, "xa"), (Host::B, "xb")] {
            let (ns, address) = (namespace(host), address(host));
            script += &format!(
                "; ip netns add {ns}; ip link set {end} netns {ns} name {INTERFACE}
                ip netns exec {ns} sh -c 'echo 0 > /proc/sys/net/ipv6/conf/{INTERFACE}/accept_dad
                    ethtool -K {INTERFACE} tx off rx off gso off gro off tso off >/dev/null 2>&1'
                ip -n {ns} link set lo up; ip -n {ns} link set {INTERFACE} mtu {mtu} up
                ip -n {ns} address add {address}/24 dev {INTERFACE}"
            );
        }
        script += &format!("; cp {SHARED}/rocexdp /bin/rocexdp; rocexdp --version");
        self.guest.run(&script).ok();
    }

    /// The guest.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// Starts `rocexdp ARGUMENTS` at one end.
    pub fn start(&self, host: Host, arguments: &str) -> Task {
        let ns = namespace(host);
        let line = format!("exec ip netns exec {ns} rocexdp {arguments}");
        self.guest.start(&line)
    }

    /// Runs `rocexdp perf TEST` at both ends; returns what each says as JSON, that of the client first.
    pub fn perf(&self, test: &str, limit: Duration) -> [serde_json::Value; 2] {
        let line = format!("perf {test} -d {INTERFACE} --json");
        let mut server = self.start(Host::B, &line);
        server.says(limit, "waits for a client");
        let client = self.start(Host::A, &format!("{line} {}", address(Host::B)));
        let client = client.finish(limit).json();
        [client, server.finish(limit).json()]
    }

    /// Runs a program of perftest at both of Soft-RoCE's ends; returns what the client says.
    pub fn perftest(&self, line: &str, limit: Duration) -> String {
        let listens = format!("grep -q ':{PERFTEST_PORT} .* 0A ' /proc/net/tcp /proc/net/tcp6");
        let wait = |how: &str| {
            let line = format!("{how} {listens}; do sleep 0.02; done");
            self.guest.start(&line).finish(LIMIT).ok();
        };
        // That of the run before may still be about to end.
        wait("while");
        let server = self.guest.start(&format!("exec {line} -d rxe-b -x 1 -F"));
        // What it prints comes only when it ends.
        wait("until");
        let to = rxe_address(Host::B);
        let client = self
            .guest
            .start(&format!("exec {line} -d rxe-a -x 1 -F {to}"));
        let said = client.finish(limit).ok().stdout;
        // The server of a READ test has been seen to wait for ever after its client's end: it has measured nothing and is ended.
        drop(server);
        said
    }
}
