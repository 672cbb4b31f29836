//! The examples of crate rocexdp, run as their documentation says, on both hosts of a lab.

use std::{path::PathBuf, process::Command, time::Duration};

use rocexdp::lab::{Host, Lab, LabConfig};
use rocexdp_tests::{Running, eventually, rig};

/// How long an example has to load its program and do its work.
const LIMIT: Duration = Duration::from_secs(90);

/// An example beside the binary under test, where cargo puts it.
fn example(name: &str) -> Option<PathBuf> {
    let binary = rig::product()?;
    let path = binary.with_file_name("examples").join(name);
    if !path.exists() {
        println!(
            "SKIP: no example {}: build it by cargo build -p rocexdp --examples",
            path.display()
        );
        return None;
    }
    Some(path)
}

/// A lab, and the example's serving end on host b.
struct Stage {
    server: Running,
    lab: Lab,
    example: PathBuf,
}

impl Stage {
    fn up(name: &str, config: LabConfig) -> Option<Self> {
        let example = example(name)?;
        let config = LabConfig {
            name: format!("{}{}", config.name, std::process::id()),
            ..config
        };
        let lab = Lab::up(config).unwrap();
        let address = format!("{}:7100", Host::B.ipv4());
        let server = spawn(&lab, &example, Host::B, &["serve", &address]);
        let stage = Self {
            server,
            lab,
            example,
        };
        eventually("the server listens", LIMIT, || {
            stage.server.stdout().contains("ready").then_some(())
        });
        Some(stage)
    }

    /// The other end, run to its end on host a.
    fn client(&self, arguments: &[&str]) -> String {
        let client = spawn(&self.lab, &self.example, Host::A, arguments);
        client.finish(LIMIT).ok().stdout
    }
}

fn spawn(lab: &Lab, example: &PathBuf, host: Host, arguments: &[&str]) -> Running {
    let mut command = Command::new(example);
    command
        .args(["--iface", &lab.host_interface()])
        .args(arguments);
    lab.spawn_in(host, &mut command).unwrap();
    Running::start(command, format!("{host}: {}", arguments.join(" ")))
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn ping_pong_measures_every_round_trip_and_sends_nothing_twice() {
    let Some(mut stage) = Stage::up("pingpong", LabConfig::named("ex-pingpong")) else {
        return;
    };
    for size in ["1", "64", "5000", "1048576"] {
        let said = stage.client(&["ping", "10.77.0.2:7100", "--count", "50", "--size", size]);
        println!("{said}");
        assert!(
            said.starts_with(&format!("50 round trips of {size} B")),
            "{said}"
        );
        for part in ["min", "50 %", "99.9 %", "max", ", 0 of them again"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    // Each client's end closed the server's queue pair, which said so.
    eventually("the server has seen four clients go", LIMIT, || {
        (stage
            .server
            .stderr()
            .matches("150 messages sent back")
            .count()
            == 4)
            .then_some(())
    });
    assert!(stage.server.runs());
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn ping_pong_goes_on_over_a_bad_wire() {
    let Some(mut stage) = Stage::up("pingpong", LabConfig::named("ex-pingbad")) else {
        return;
    };
    let faults = "drop=2%,dup=2%,seed=5"
        .parse::<rocexdp::lab::Impairment>()
        .unwrap();
    stage.lab.impair(faults.0).unwrap();
    let said = stage.client(&[
        "ping",
        "10.77.0.2:7100",
        "--count",
        "200",
        "--size",
        "20000",
    ]);
    println!("{said}");
    assert!(said.starts_with("200 round trips of 20000 B"), "{said}");
    assert!(
        !said.contains(", 0 of them again"),
        "the wire dropped nothing: {said}"
    );
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_key_value_store_keeps_what_was_put_and_gets_are_whole_while_puts_go_on() {
    let Some(stage) = Stage::up("kv", LabConfig::named("ex-kv")) else {
        return;
    };
    let server = "10.77.0.2:7100";
    stage.client(&["put", server, "colour", "blue"]);
    stage.client(&["put", server, "shape", "round"]);
    stage.client(&["put", server, "colour", "green"]);
    assert_eq!(stage.client(&["get", server, "colour"]), "green\n");
    assert_eq!(stage.client(&["get", server, "shape"]), "round\n");
    let missing = spawn(
        &stage.lab,
        &stage.example,
        Host::A,
        &["get", server, "size"],
    );
    missing
        .finish(LIMIT)
        .failed(1, &["there is no key \"size\""]);
    let said = stage.client(&["stress", server, "--gets", "5000"]);
    println!("{said}");
    assert!(said.starts_with("5000 GETs by READ"), "{said}");
    // The server was told of PUTs only: each of the GETs' connections says so.
    eventually("the server has seen all clients go", LIMIT, || {
        let said = stage.server.stderr();
        (said.matches("PUTs by SEND").count() == 8).then_some(())
    });
    let said = stage.server.stderr();
    assert_eq!(said.matches(": 0 PUTs by SEND").count(), 4, "{said}");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn gets_are_whole_over_a_bad_wire_too() {
    let Some(mut stage) = Stage::up("kv", LabConfig::named("ex-kvbad")) else {
        return;
    };
    let faults = "drop=2%,dup=2%,corrupt=1%,seed=9".parse::<rocexdp::lab::Impairment>();
    stage.lab.impair(faults.unwrap().0).unwrap();
    let said = stage.client(&["stress", "10.77.0.2:7100", "--gets", "500"]);
    println!("{said}");
    assert!(said.starts_with("500 GETs by READ"), "{said}");
}
