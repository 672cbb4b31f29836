//! What passes the guest's tap: recorded by tcpdump, judged by `rocexdp pcap`.
//!
//! The tap is behind the wire's faults for what goes to the guest, and before them for what comes from it. Must not: judge itself.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rocexdp::lab::Host;
use serde_json::Value;

use super::site::{NEAR_TAP, Site};
use crate::{
    check::{items, number},
    process::Running,
};

/// How long tcpdump may take to begin, and to end.
const LIMIT: Duration = Duration::from_secs(30);
/// KiB of the kernel's buffer: more than the largest case has bytes.
const BUFFER: &str = "131072";

/// A recording under way.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Running,
    file: PathBuf,
}

impl Capture {
    /// Records RoCEv2 packets into `file`.
    pub fn start(site: &Site, file: &Path) -> Self {
        let mut command = Command::new("tcpdump");
        command
            .args(["-n", "-i", NEAR_TAP, "-B", BUFFER, "-Z", "root"])
            // Without it, what is still in the kernel's buffer at the end is lost.
            .args(["--immediate-mode", "-w"])
            .arg(file)
            .args(["udp", "port", "4791"]);
        site.lab().spawn_in(Host::B, &mut command).unwrap();
        let tcpdump = Running::start(command, "tcpdump".to_owned());
        tcpdump.says(LIMIT, &["listening on"]);
        Self {
            tcpdump,
            file: file.to_owned(),
        }
    }

    /// Ends it, and has `rocexdp`, the binary, read it.
    pub fn finish(self, rocexdp: &Path) -> Report {
        let said = self.tcpdump.interrupt(LIMIT).ok().stderr;
        assert!(said.contains("0 packets dropped by kernel"), "{said}");
        let mut command = Command::new(rocexdp);
        command.args(["pcap", "--json"]).arg(&self.file);
        Report(
            Running::start(command, format!("rocexdp pcap {}", self.file.display()))
                .finish(LIMIT)
                .json(),
        )
    }
}

/// What `rocexdp pcap --json` says of a capture.
#[derive(Clone, Debug)]
pub struct Report(pub Value);

impl Report {
    /// RoCEv2 packets.
    pub fn packets(&self) -> u64 {
        number(&self.0, "/rocev2_packets")
    }

    /// Packets with a wrong ICRC.
    pub fn icrc_errors(&self) -> u64 {
        number(&self.0, "/icrc_errors")
    }

    /// The kinds of findings, each once, in order.
    pub fn findings(&self) -> Vec<String> {
        let kinds = items(&self.0, "findings").iter();
        let mut kinds: Vec<String> = kinds
            .map(|finding| finding["kind"].as_str().unwrap().to_owned())
            .collect();
        kinds.dedup();
        kinds
    }

    /// Findings in words.
    pub fn findings_text(&self) -> String {
        let texts = items(&self.0, "findings").iter();
        let texts: Vec<&str> = texts
            .map(|finding| finding["text"].as_str().unwrap())
            .collect();
        texts.join("; ")
    }

    /// NAKs for a PSN sequence error.
    pub fn sequence_naks(&self) -> u64 {
        let flows = items(&self.0, "flows").iter();
        flows.map(|flow| number(flow, "/naks/sequence")).sum()
    }

    /// Packets that an address sent again.
    pub fn retransmissions_from(&self, address: &str) -> u64 {
        let flows = items(&self.0, "flows").iter();
        flows
            .flat_map(|flow| items(flow, "directions"))
            .filter(|direction| direction["from"]["address"] == address)
            .map(|direction| number(direction, "/retransmissions/packets"))
            .sum()
    }
}
