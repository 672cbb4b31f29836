//! Unmodified programs of the guest, perftest's and libibverbs' examples, against `rocexdp perf` and `rocexdp pingpong`, in both roles.
//!
//! They run before rocexdp's own device is opened, which would have the interface. Must not: know requests.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use rocexdp::lab::{HOST_INTERFACE, Host};
use rocexdp_tests::{
    Outcome, Running, rig,
    softroce::{Capture, Report, Site},
};
use serde_json::Value;

use crate::{
    run::{Family, Name, OF_TIMER, Role, only_peers_timer, said, sent_again},
    table::{Row, Table},
};

/// A program that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);
/// How often a case is run in which rxe's own timer ran out.
const RUNS: u32 = 3;
/// As perftest and the examples have it, in hexadecimal as `/proc/net/tcp` has it.
const PORT: &str = "4853";

/// A program of the guest and the command that stands in for it.
#[derive(Clone, Debug)]
struct Case {
    /// The guest's program.
    program: &'static str,
    /// Its options, and ours, which are the same.
    options: &'static str,
    /// Ours.
    command: &'static str,
    /// Messages, for the guest's output.
    messages: u32,
    family: Family,
    path_mtu: u16,
}

/// As many messages as say that they all arrive.
const FEW: &str = "-n 60";

impl Case {
    fn perf(program: &'static str, command: &'static str, options: &'static str) -> Self {
        Self {
            program,
            options,
            command,
            messages: 60,
            family: Family::V4,
            path_mtu: 1024,
        }
    }

    fn over(&self, family: Family, path_mtu: u16) -> Self {
        Self {
            family,
            path_mtu,
            ..self.clone()
        }
    }

    fn is_perftest(&self) -> bool {
        self.program.starts_with("ib_")
    }

    /// The guest's command line.
    fn theirs(&self) -> String {
        // The GIDs of rxe: 0 link-local, 1 IPv4, 2 IPv6.
        let gid = match self.family {
            Family::V4 => 1,
            Family::V6 => 2,
        };
        let more = if self.is_perftest() {
            // A timer that does not run out by itself: see `only_peers_timer`.
            format!("-x {gid} -F -u 20")
        } else {
            format!("-g {gid}")
        };
        let Self {
            program,
            options,
            path_mtu,
            ..
        } = self;
        let mtu = if *program == "ibv_ud_pingpong" {
            // It has no such option.
            String::new()
        } else {
            format!(" -m {path_mtu}")
        };
        format!("{program} -d rxe0 {more}{mtu} {FEW} {options}")
    }

    fn ours(&self, host: Option<Host>) -> Vec<String> {
        let mut line: Vec<String> = self
            .command
            .split_whitespace()
            .chain(self.options.split_whitespace())
            .chain(FEW.split_whitespace())
            .map(str::to_owned)
            .collect();
        line.extend([
            "--json".to_owned(),
            "-m".to_owned(),
            self.path_mtu.to_string(),
        ]);
        line.extend(["-d".to_owned(), HOST_INTERFACE.to_owned()]);
        if self.is_perftest() {
            // As the guest has it: an emulated processor may stand still for a second.
            line.extend(["-u".to_owned(), "20".to_owned()]);
        }
        if let Some(host) = host {
            if self.family == Family::V6 {
                line.push("--ipv6".to_owned());
            }
            // TCP is IPv4 whatever the GIDs are: perftest knows no other.
            line.push(host.ipv4().to_string());
        }
        line
    }

    fn name(&self, role: Role) -> Name {
        let options = if self.options.is_empty() {
            String::new()
        } else {
            format!(" {}", self.options)
        };
        Name {
            what: format!("`{}{options}`", self.program),
            role,
            family: self.family,
            path_mtu: self.path_mtu,
        }
    }
}

/// Runs all cases.
pub fn cases(site: &Site, full: bool) -> Table {
    let place = tempfile::tempdir().unwrap();
    let mut programs = Programs {
        site,
        rocexdp: rig::product().expect("the rocexdp binary"),
        file: place.path().join("case.pcap"),
        table: Table::default(),
    };
    let mut all = vec![
        Case::perf("ib_send_bw", "perf send-bw", "-s 9000"),
        Case::perf("ib_write_bw", "perf write-bw", "-s 9000"),
        Case::perf("ib_read_bw", "perf read-bw", "-s 9000"),
        Case::perf("ib_atomic_bw", "perf atomic-bw", ""),
        Case::perf("ib_send_lat", "perf send-lat", ""),
        Case::perf("ib_write_lat", "perf write-lat", ""),
        Case::perf("ib_read_lat", "perf read-lat", ""),
        Case::perf("ib_atomic_lat", "perf atomic-lat", ""),
        Case::perf("ib_send_bw", "perf send-bw", "-s 9000 -b -q 2"),
        Case::perf("ib_write_bw", "perf write-bw", "-s 9000 -b -q 2"),
        Case::perf("ib_send_lat", "perf send-lat", "-c UC -s 33"),
        Case::perf("ibv_rc_pingpong", "pingpong --service rc", "-c"),
        Case::perf("ibv_uc_pingpong", "pingpong --service uc", "-c"),
        Case::perf("ibv_srq_pingpong", "pingpong --service srq", "-c"),
        Case::perf("ib_send_bw", "perf send-bw", "-c UD -s 1024"),
        Case::perf("ib_send_lat", "perf send-lat", "-c UD -s 33"),
        Case::perf("ibv_ud_pingpong", "pingpong --service ud", "-c"),
    ];
    if full {
        let more: Vec<Case> = all
            .iter()
            .flat_map(|case| [case.over(Family::V4, 4096), case.over(Family::V6, 1024)])
            .collect();
        all.extend(more);
    }
    for case in &all {
        for role in [Role::Client, Role::Server] {
            programs.case(case, role);
        }
    }
    programs.table
}

struct Programs<'a> {
    site: &'a Site,
    rocexdp: PathBuf,
    file: PathBuf,
    table: Table,
}

impl Programs<'_> {
    fn case(&mut self, case: &Case, role: Role) {
        let name = case.name(role);
        if let Ok(only) = std::env::var("ROCEXDP_INTEROP_ONLY")
            && !only.split('|').any(|part| name.to_string().contains(part))
        {
            return;
        }
        let started = Instant::now();
        let done = catch_unwind(AssertUnwindSafe(|| self.recorded(case, role)));
        let (result, packets) = match &done {
            Ok(report) => ("ok".to_owned(), report.packets()),
            Err(why) => (said(why.as_ref()), 0),
        };
        let took = started.elapsed().as_secs_f64();
        println!("interop: {name}: {result}: {packets} packets, {took:.2} s");
        self.table.add(Row {
            kernel: self.site.guest().kernel(),
            name,
            result,
            sent_again: "0",
        });
    }

    fn recorded(&self, case: &Case, role: Role) -> Report {
        for again in (0..RUNS).rev() {
            let capture = Capture::start(self.site, &self.file);
            let ends = match role {
                Role::Client => self.as_client(case),
                _ => self.as_server(case),
            };
            let report = capture.finish(&self.rocexdp);
            if again > 0 && only_peers_timer(&report) {
                println!(
                    "interop: {}: rxe's timer ran out: once more",
                    case.name(role)
                );
                continue;
            }
            judge(case, ends, &report);
            return report;
        }
        unreachable!("the last run is judged")
    }

    fn start(&self, case: &Case, host: Option<Host>) -> Running {
        let line = case.ours(host);
        let mut command = Command::new(Path::new(&self.rocexdp));
        command.args(&line);
        self.site.lab().spawn_in(Host::A, &mut command).unwrap();
        Running::start(command, format!("rocexdp {}", line.join(" ")))
    }

    /// The guest waits, we connect.
    fn as_client(&self, case: &Case) -> [Outcome; 2] {
        let guest = self.site.guest();
        let server = guest.start(&case.theirs());
        // What it prints comes only when it ends.
        let listens = format!("cat /proc/net/tcp /proc/net/tcp6 | grep -q ':{PORT} .* 0A '");
        guest
            .run(&format!("until {listens}; do sleep 0.05; done"))
            .ok();
        let ours = self.start(case, Some(Host::B)).finish(LIMIT);
        [ours, server.finish(LIMIT)]
    }

    /// We wait, the guest connects.
    fn as_server(&self, case: &Case) -> [Outcome; 2] {
        let ours = self.start(case, None);
        ours.says(LIMIT, &["waits for a client"]);
        let line = format!("{} {}", case.theirs(), Host::A.ipv4());
        let theirs = self.site.guest().run(&line);
        [ours.finish(LIMIT), theirs]
    }
}

/// Both must have done all of it, and nothing went wrong on the wire.
fn judge(case: &Case, [ours, theirs]: [Outcome; 2], report: &Report) {
    let theirs = theirs.ok();
    let ours = ours.json();
    let said = &theirs.stdout;
    if case.is_perftest() {
        assert_eq!(ours["path_mtu"], case.path_mtu, "{ours}");
        let rows = ours["results"].as_array().unwrap();
        // Who is only read from has no result of its own.
        for row in rows {
            positive(row, &["gigabits_per_second", "median_us"]);
        }
        let there = said.lines().any(|line| is_result(line, case.messages));
        assert!(there || !rows.is_empty(), "no result at either end: {said}");
    } else {
        assert_eq!(ours["invalid_pages"], 0, "{ours}");
        positive(&ours, &["megabits_per_second"]);
        assert!(said.contains("usec/iter"), "{said}");
        assert!(!said.contains("invalid data"), "{said}");
    }
    assert!(report.packets() > 0, "the capture has no packet");
    assert_eq!(report.icrc_errors(), 0);
    // A stream of requests with few answers is not always tied to them: that says nothing of the wire.
    let mut may = vec!["one_direction"];
    if !case.is_perftest() {
        // The examples' timer is what it is, and the guest may stand still for longer.
        may.extend(OF_TIMER);
    }
    for kind in report.findings() {
        let text = report.findings_text();
        assert!(may.contains(&kind.as_str()), "finding {kind}: {text}");
    }
    if case.is_perftest() {
        assert_eq!(sent_again(&[Host::A, Host::B], report), 0, "sent again");
    }
}

/// A line of perftest's table: bytes, iterations (of all queue pairs), and numbers that are none of 0.
fn is_result(line: &str, messages: u32) -> bool {
    let numbers: Vec<f64> = line
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    let [_bytes, iterations, rest @ ..] = numbers.as_slice() else {
        return false;
    };
    *iterations >= f64::from(messages) && rest.iter().any(|number| *number > 0.0)
}

fn positive(row: &Value, either: &[&str]) {
    let value = either.iter().find_map(|name| row[*name].as_f64());
    assert!(value.is_some_and(|value| value > 0.0), "{either:?}: {row}");
}
