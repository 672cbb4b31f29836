//! What is refused, and that the one who asked is told why: copies that the receiver does not want, and interfaces that rocexdp
//! can't run on. Exit code 1: refused or failed; 2: options that can't be meant.

use std::os::unix::fs::symlink;

use rocexdp::{
    lab::{Host, LabConfig},
    net::Link,
};
use rocexdp_tests::{
    Rig,
    rig::{SHORT, text},
};

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_path_outside_the_receive_directory_is_refused() {
    let Some(mut rig) = Rig::running("trp") else {
        return;
    };
    let outside = rig.path("outside");
    std::fs::create_dir(&outside).unwrap();
    symlink(&outside, rig.inbox().join("link")).unwrap();
    symlink(outside.join("target"), rig.inbox().join("file-link")).unwrap();
    std::fs::create_dir(rig.inbox().join("sub")).unwrap();
    let file = rig.file("file", 1000);
    let absolute = outside.join("file");
    for (path, why) in [
        ("../outside/file", "leads out"),
        ("sub/../../outside/file", "leads out"),
        (text(&absolute), "is absolute"),
        ("link/file", "symbolic link"),
        ("file-link", "symbolic link"),
        ("sub", "no regular file"),
        ("nowhere/file", "no directory"),
    ] {
        let outcome = rig.copy(&file, path).failed(1, &["refused", why]);
        assert!(outcome.stdout.is_empty(), "{}", outcome.stdout);
        rig.daemon(Host::B).says(SHORT, &["refused", why]);
    }
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    let mut names = rig.inbox_names();
    names.sort();
    assert_eq!(names, ["file-link", "link", "sub"]);
    assert_eq!(
        std::fs::read_dir(rig.inbox().join("sub")).unwrap().count(),
        0
    );
    // What is allowed still goes.
    rig.copy_well(&file, "sub/file");
    rig.assert_clean();
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn an_existing_file_is_replaced_only_if_that_was_allowed() {
    let Some(mut rig) = Rig::running("tro") else {
        return;
    };
    std::fs::write(rig.inbox().join("file"), "before").unwrap();
    let file = rig.file("file", 100_000);
    rig.copy(&file, "file").failed(1, &["refused", "exists"]);
    assert_eq!(
        std::fs::read_to_string(rig.inbox().join("file")).unwrap(),
        "before"
    );
    rig.stop(Host::B);
    rig.start_receiver(&["--allow-overwrite"]);
    rig.copy_well(&file, "file");
    assert_eq!(rig.inbox_names(), ["file"]);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_wrong_or_missing_token_is_refused() {
    let Some(mut rig) = Rig::running("trt") else {
        return;
    };
    rig.write_token("wrong", "another token of these tests");
    rig.write_token("short", "short");
    let file = rig.file("file", 1000);
    let copy = |more: &[&str]| {
        let to = Host::B.ipv4().into();
        rig.start_copy_with(&file, to, "file", more).finish(SHORT)
    };
    let [wrong, short] = ["wrong", "short"].map(|name| rig.path(name));
    copy(&["--token-file", text(&wrong)]).failed(1, &["refused", "wrong token"]);
    copy(&[]).failed(1, &["asks for a token", "--token-file"]);
    copy(&["--token-file", text(&short)]).failed(1, &["token file", "at least 8 bytes"]);
    assert_eq!(rig.inbox_names(), Vec::<String>::new());
    let said = rig.daemon(Host::B).says(SHORT, &["wrong token"]);
    assert!(
        !said.contains("of these tests"),
        "a token is never written: {said}"
    );
    rig.copy_well(&file, "file");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_file_larger_than_allowed_is_refused() {
    let Some(mut rig) = Rig::up("trs") else {
        return;
    };
    rig.start_sender(&[]);
    rig.start_receiver(&["--max-size", "64K"]);
    let large = rig.file("large", 65_537);
    rig.copy(&large, "large")
        .failed(1, &["refused", "65537", "65536", "--max-size"]);
    assert_eq!(rig.inbox_names(), Vec::<String>::new());
    rig.copy_well(&rig.file("just", 65_536), "just");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn nothing_is_received_unless_asked_for() {
    let Some(mut rig) = Rig::up("trn") else {
        return;
    };
    rig.start_sender(&[]);
    rig.start(Host::B, &["--listen", "10.77.0.2"]);
    let file = rig.file("file", 1000);
    rig.copy(&file, "file")
        .failed(1, &["refused", "--receive-dir"]);
    rig.stop(Host::B);
    // And not by half a wish.
    let (dir, token) = (rig.inbox(), rig.path("token"));
    let receive = ["--receive-dir", text(&dir)];
    let run = |more: &[&str]| rig.launch(Host::B, more).finish(SHORT);
    run(&[&receive[..], &["--token-file", text(&token)]].concat()).failed(2, &["--listen"]);
    run(&[&receive[..], &["--listen", "10.77.0.2"]].concat()).failed(2, &["--token-file"]);
    run(&["--no-such-option"]).failed(2, &["--no-such-option"]);
    assert!(rig.link(Host::B).xdp.is_empty());
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn an_interface_that_is_missing_down_or_without_address_is_refused() {
    let Some(rig) = Rig::up("tri") else { return };
    let run = |iface: &str| rig.run(Host::A, &["run", "--iface", iface]);
    run("nosuch0").failed(1, &["nosuch0", "no such interface"]);
    let device = rocexdp::lab::HOST_INTERFACE;
    rig.ip(Host::A, &format!("link set {device} down"));
    run(device).failed(1, &[device, "is down", "ip link set"]);
    rig.ip(Host::A, &format!("link set {device} up"));
    rig.ip(Host::A, &format!("addr flush dev {device}"));
    run(device).failed(1, &[device, "has no IP address", "ip address add"]);
    run("lo").failed(1, &["lo", "no Ethernet device"]);
    assert!(rig.link(Host::A).xdp.is_empty());
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn another_xdp_program_is_left_alone_and_named() {
    let Some(mut rig) = Rig::up("tra") else {
        return;
    };
    let ready = rig.start_sender(&[]);
    assert!(ready.contains("mode=driver"), "{ready}");
    rig.daemon(Host::A)
        .says(SHORT, &["in driver mode", "AF_XDP"]);
    let refused = |rig: &Rig, iface: &str, host: Option<Host>, found: &Link| {
        let [xdp] = found.xdp.as_slice() else {
            panic!("{:?}", found.xdp)
        };
        let name = xdp.name.as_deref().unwrap();
        let namespace = match host {
            Some(host) => rig.lab().host(host).label(),
            None => rig.lab().wire().label(),
        };
        let id = format!("id {}", xdp.id);
        let outcome = rig.run(Host::B, &["--netns", namespace, "run", "--iface", iface]);
        outcome.failed(1, &[iface, "another XDP program", name, &id, "driver mode"]);
    };
    // Our own, of the daemon that runs.
    let ours = rig.link(Host::A);
    refused(&rig, rocexdp::lab::HOST_INTERFACE, Some(Host::A), &ours);
    assert_eq!(rig.link(Host::A).xdp, ours.xdp, "it stays");
    // A stranger's.
    let port = Host::A.port();
    let wire = || {
        rig.lab()
            .wire()
            .run(|| Link::by_name(port))
            .unwrap()
            .unwrap()
    };
    let strange = wire();
    refused(&rig, port, None, &strange);
    assert_eq!(wire().xdp, strange.xdp, "it stays");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_path_mtu_that_the_interface_can_not_carry_is_refused() {
    let config = LabConfig {
        mtu: 1500,
        ..LabConfig::named("trm")
    };
    let Some(mut rig) = Rig::with(config) else {
        return;
    };
    let run = |more: &[&str]| rig.launch(Host::A, more).finish(SHORT);
    run(&["--path-mtu", "4096"]).failed(
        1,
        &[
            "MTU 1500 can't carry path MTU 4096",
            "needs 4180",
            "ip link set",
        ],
    );
    run(&["--path-mtu", "1500"]).failed(2, &["--path-mtu 1500", "256, 512, 1024"]);
    // Without a wish: the largest that it carries, on both sides.
    rig.start_sender(&[]);
    rig.start_receiver(&[]);
    let report = rig.copy_well(&rig.file("file", 100_000), "file");
    assert_eq!(report["path_mtu"], 1024);
    rig.assert_clean();
}
