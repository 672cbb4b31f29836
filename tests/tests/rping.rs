//! `rocexdp rping` between the two hosts of a lab: connection management of rocexdp with itself, on a clean wire and a bad one.

use std::time::Duration;

use rocexdp::lab::Host;
use rocexdp_tests::{eventually, rig::Rig};

/// How long a device takes to open, and pings to pass.
const LIMIT: Duration = Duration::from_secs(120);

/// A server on host b that waits.
fn serve(rig: &Rig, more: &[&str]) -> rocexdp_tests::Running {
    let interface = rig.lab().host_interface();
    let line = [&["rping", "-s", "-i", &interface], more].concat();
    let server = rig.spawn(Host::B, &line);
    server.says(LIMIT, &["rping waits for clients"]);
    server
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn pings_come_back_by_ipv4_and_ipv6_and_a_closed_port_is_named() {
    let Some(rig) = Rig::up("rping") else {
        return;
    };
    let server = serve(&rig, &["-P", "-C", "5"]);
    for address in Host::B.addresses() {
        let address = address.to_string();
        let line = [
            "rping", "-c", "-a", &address, "-C", "5", "-S", "65536", "-V",
        ];
        let said = rig.run(Host::A, &line).ok().stdout;
        assert!(said.starts_with("5 pings of 65536 B"), "{said}");
    }
    let line = ["rping", "-c", "-a", "10.77.0.2", "-p", "7999", "-C", "1"];
    rig.run(Host::A, &line).failed(
        1,
        &["10.77.0.2:7999 refused the connection: invalid service ID (reason 8)"],
    );
    let served = eventually("both are served", LIMIT, || {
        let said = server.stdout();
        (said.matches("5 pings of 65536 B").count() == 2).then_some(said)
    });
    assert!(served.contains("10.77.0.1:"), "{served}");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_bad_wire_loses_messages_of_the_exchange_and_connections_come_about() {
    let Some(mut rig) = Rig::up("rpinglost") else {
        return;
    };
    rig.impair("drop=10%,dup=5%");
    let _server = serve(&rig, &["-P", "-C", "3"]);
    for _ in 0..6 {
        let line = ["rping", "-c", "-a", "10.77.0.2", "-C", "3", "-V"];
        let said = rig.run(Host::A, &line).ok().stdout;
        assert!(said.starts_with("3 pings of 64 B"), "{said}");
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_server_that_is_killed_ends_its_client_within_bounded_time() {
    let Some(rig) = Rig::up("rpingkill") else {
        return;
    };
    let mut server = serve(&rig, &[]);
    let client = rig.spawn(Host::A, &["rping", "-c", "-a", "10.77.0.2", "-v"]);
    eventually("pings come back", LIMIT, || {
        client.stdout().contains("rdma-ping-3").then_some(())
    });
    server.kill();
    let said = client.finish(LIMIT).failed(1, &[]);
    assert!(
        said.stderr.contains("failed: ") || said.stderr.contains("no news"),
        "{said:?}"
    );
}
