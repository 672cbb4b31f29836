//! A bridge between a lab's host and its wire: a place where both directions of real traffic pass, and no endpoint is.

use std::{path::Path, process::Command};

use rocexdp::{
    lab::{HOST_INTERFACE, Host, Lab},
    sys::netns::NetNs,
};

use crate::{process::Running, rig::SHORT};

/// The bridge's port towards the host.
pub const NEAR: &str = "near";
/// The bridge's port towards the wire.
pub const FAR: &str = "far";

/// The namespace of the bridge; removed on drop.
#[derive(Debug)]
pub struct Hop {
    name: String,
    ns: NetNs,
}

impl Hop {
    /// Puts a bridge between `host` and the wire. The host keeps its addresses, on another interface of the same name.
    /// To be called before anything runs on the host.
    pub fn insert(lab: &Lab, host: Host) -> Self {
        let name = format!("{}-hop", lab.config().name);
        let hop = Self {
            ns: NetNs::create(&name).unwrap(),
            name,
        };
        let side = format!(
            "{}-{}",
            lab.config().name,
            if host == Host::A { "a" } else { "b" }
        );
        let mtu = lab.config().mtu;
        let end = HOST_INTERFACE;
        let addresses = output(&format!("-n {side} -o address show dev {end}"));
        let mac = output(&format!("-n {side} -o link show dev {end}"));
        let mac = after(&mac, "link/ether").to_owned();
        ip(&format!("-n {side} link set {end} down"));
        ip(&format!(
            "-n {side} link set {end} name {FAR} netns {}",
            hop.name
        ));
        ip(&format!(
            "-n {side} link add {end} mtu {mtu} address {mac} type veth peer name {NEAR} mtu {mtu} netns {}",
            hop.name
        ));
        for line in [
            format!("link set {FAR} address 02:00:00:00:ff:01"),
            "link add hub type bridge".to_owned(),
            format!("link set {FAR} master hub"),
            format!("link set {NEAR} master hub"),
            format!("link set hub mtu {mtu} up"),
            format!("link set {FAR} up"),
            format!("link set {NEAR} up"),
        ] {
            ip(&format!("-n {} {line}", hop.name));
        }
        hop.ns.run(|| offloads(&[NEAR, FAR])).unwrap();
        lab.host(host).run(|| offloads(&[end])).unwrap();
        ip(&format!("-n {side} link set {end} up"));
        for line in addresses.lines() {
            let mut words = line
                .split_whitespace()
                .skip_while(|w| !w.starts_with("inet"));
            let (Some(_), Some(address)) = (words.next(), words.next()) else {
                continue;
            };
            if address.starts_with("fe80") {
                continue;
            }
            let nodad = if address.contains(':') { "nodad" } else { "" };
            ip(&format!(
                "-n {side} address add {address} dev {end} {nodad}"
            ));
        }
        hop
    }

    /// The namespace of [`NEAR`] and [`FAR`].
    pub fn ns(&self) -> &NetNs {
        &self.ns
    }

    /// Records RoCEv2 packets at [`NEAR`]. `None`, said as `SKIP`, where there is no tcpdump.
    pub fn tcpdump(&self, file: &Path) -> Option<Running> {
        if Command::new("tcpdump").arg("--version").output().is_err() {
            println!("SKIP: no tcpdump (apt-get install tcpdump)");
            return None;
        }
        let mut command = Command::new("tcpdump");
        command
            .args(["-n", "-i", NEAR, "-B", "65536", "-s", "128", "-Z", "root"])
            // Without it, what is still in the kernel's buffer at the end is lost.
            .args(["--time-stamp-precision", "nano", "--immediate-mode", "-w"])
            .arg(file)
            .args(["udp", "port", "4791"]);
        self.ns.confine(&mut command).unwrap();
        let running = Running::start(command, "tcpdump".to_owned());
        running.says(SHORT, &["listening on"]);
        Some(running)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Hop {
    fn drop(&mut self) {
        // The links first: a process may live on in the namespace.
        for port in [NEAR, FAR] {
            let _ = Command::new("ip")
                .args(["-n", &self.name, "link", "del", port])
                .output();
        }
        let _ = NetNs::delete(&self.name);
    }
}

fn offloads(interfaces: &[&str]) {
    use rocexdp::sys::ethtool::{Offload, set_offload};
    for interface in interfaces {
        for (offload, on) in [
            (Offload::TxChecksum, false),
            (Offload::Vlan, false),
            // On veth this also lets frames be redirected to the other end.
            (Offload::Gro, true),
        ] {
            set_offload(interface, offload, on)
                .unwrap_or_else(|e| panic!("{interface}: {offload:?}: {e}"));
        }
    }
}

/// The word after `what`.
fn after<'a>(text: &'a str, what: &str) -> &'a str {
    text.split_whitespace()
        .skip_while(|word| *word != what)
        .nth(1)
        .unwrap_or_else(|| panic!("no {what} in {text}"))
}

/// Runs `ip LINE`, which must do well.
pub fn ip(line: &str) {
    output(line);
}

/// What `ip LINE` prints.
pub fn output(line: &str) -> String {
    let output = Command::new("ip")
        .args(line.split_whitespace())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "ip {line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
