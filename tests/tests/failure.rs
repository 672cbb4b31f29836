//! What breaks in the middle: a peer or a daemon that dies, a path that goes dark, a link that changes. Nobody hangs, nothing
//! half-written stays, and what remains can be used again.

use std::{net::IpAddr, time::Duration};

use rocexdp::{lab::Host, net::Link};
use rocexdp_tests::{
    Rig, SourceFile, eventually,
    process::Running,
    rig::{COPY, SHORT, SLOW, SLOW_WIRE},
};

/// 4.096 us x 2^15 is the ACK timeout of copies; a requester may wait up to four times as long (IBTA), and tries eight times.
const RETRY_BUDGET: Duration = Duration::from_millis(8 * 4 * 134);

/// A slow copy that has got under way.
fn mid_copy(rig: &mut Rig, size: u64) -> (SourceFile, Running) {
    rig.start_sender(&SLOW);
    rig.start_receiver(&[]);
    rig.impair(SLOW_WIRE);
    let file = rig.file("file", size);
    let copy = rig.start_copy(&file, Host::B.ipv4().into(), "file");
    rig.wait_for_bytes(1 << 20);
    (file, copy)
}

/// The sending QP of the copy under way.
fn qpn(rig: &Rig) -> String {
    format!("{:#x}", rig.qps(Host::A)[0].config.qpn)
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_copy_to_a_peer_that_is_killed_fails_and_the_sender_lives_on() {
    let Some(mut rig) = Rig::up("tfk") else {
        return;
    };
    let (file, copy) = mid_copy(&mut rig, 64 << 20);
    let qpn = qpn(&rig);
    rig.kill(Host::B);
    let outcome = copy.finish(RETRY_BUDGET + Duration::from_secs(2));
    outcome.failed(1, &[&qpn, "10.77.0.2"]);
    assert_eq!(
        rig.inbox_names(),
        Vec::<String>::new(),
        "nothing of the file stays"
    );
    assert!(rig.daemon(Host::A).runs());
    eventually("the failed QP goes", SHORT, || {
        rig.qps(Host::A).is_empty().then_some(())
    });

    // The same daemon, the peer back.
    rig.impair("clean");
    rig.start_receiver(&[]);
    rig.copy_well(&file, "again");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_copy_over_a_path_that_goes_dark_fails_within_the_retry_budget() {
    let Some(mut rig) = Rig::up("tfd") else {
        return;
    };
    let (file, copy) = mid_copy(&mut rig, 64 << 20);
    let qpn = qpn(&rig);
    // TCP still passes: only the retries can tell.
    rig.impair("drop=100%");
    let dark = std::time::Instant::now();
    let outcome = copy.finish(RETRY_BUDGET + Duration::from_secs(2));
    let took = dark.elapsed();
    outcome.failed(1, &[&qpn, "10.77.0.2", "no longer answers"]);
    assert!(
        took >= Duration::from_millis(134),
        "it was tried again: {took:?}"
    );
    rig.daemon(Host::A).says(SHORT, &[&qpn, "ERR"]);
    eventually("both QPs go", SHORT, || {
        (rig.qps(Host::A).is_empty() && rig.qps(Host::B).is_empty()).then_some(())
    });
    assert_eq!(
        rig.inbox_names(),
        Vec::<String>::new(),
        "nothing of the file stays"
    );
    assert!(rig.daemon(Host::A).runs() && rig.daemon(Host::B).runs());

    rig.impair("clean");
    rig.copy_well(&file, "again");
    assert_eq!(rig.inbox_names(), ["again"]);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_copy_given_up_by_its_user_leaves_nothing() {
    let Some(mut rig) = Rig::up("tfu") else {
        return;
    };
    let (file, copy) = mid_copy(&mut rig, 64 << 20);
    let outcome = copy.terminate(SHORT);
    assert_eq!(outcome.code, Some(143), "{}", outcome.stderr);
    rig.daemon(Host::B).says(SHORT, &["not completed"]);
    eventually("both QPs go", SHORT, || {
        (rig.qps(Host::A).is_empty() && rig.qps(Host::B).is_empty()).then_some(())
    });
    assert_eq!(
        rig.inbox_names(),
        Vec::<String>::new(),
        "nothing of the file stays"
    );
    rig.impair("clean");
    rig.copy_well(&file, "again");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_interface_is_usable_after_a_daemon_is_killed() {
    let Some(mut rig) = Rig::up("tfi") else {
        return;
    };
    let (file, copy) = mid_copy(&mut rig, 64 << 20);
    assert_eq!(rig.link(Host::A).xdp.len(), 1);
    rig.kill(Host::A);
    // The command notices that its daemon is gone.
    copy.finish(SHORT).failed(1, &["copying"]);
    eventually("the kernel detaches the program", SHORT, || {
        rig.link(Host::A).xdp.is_empty().then_some(())
    });
    rig.impair("clean");
    rig.ping(Host::A, Host::B.ipv4().into(), 3, 1000);
    rig.tcp_transfer(Host::A, Host::B.ipv4().into(), 1 << 20);
    eventually("b gives the copy up", SHORT, || {
        rig.qps(Host::B).is_empty().then_some(())
    });
    assert_eq!(rig.inbox_names(), Vec::<String>::new());

    // Its socket file is still there: the next one takes it over.
    rig.start_sender(&[]);
    rig.copy_well(&file, "again");
    rig.stop(Host::A);
    assert!(
        rig.link(Host::A).xdp.is_empty(),
        "detached when it ends by itself"
    );
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn kernel_traffic_is_unharmed_beside_a_copy() {
    let Some(mut rig) = Rig::up("tft") else {
        return;
    };
    // A slow copy, so that all of it is beside the copy.
    let (file, mut copy) = mid_copy(&mut rig, 128 << 20);
    for to in Host::B.addresses() {
        rig.ping(Host::A, to, 5, 3000);
    }
    for from in [Host::A, Host::B] {
        rig.tcp_transfer(from, from.peer().ipv4().into(), 8 << 20);
    }
    assert!(copy.runs(), "the copy took too short a time");
    let report = copy.finish(COPY).json();
    rig.arrived(&file, "file", &report);

    // One as fast as it goes, with TCP against it.
    rig.impair("clean");
    rig.stop(Host::A);
    rig.start_sender(&[]);
    let copy = rig.start_copy(&file, Host::B.ipv4().into(), "again");
    rig.tcp_transfer(Host::A, Host::B.ipv4().into(), 64 << 20);
    let report = copy.finish(COPY).json();
    rig.arrived(&file, "again", &report);
    rig.books_hold(Host::A);
    rig.books_hold(Host::B);
    rig.assert_nothing_lost_unasked();
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn changes_of_mtu_address_and_link_are_said() {
    let Some(mut rig) = Rig::running("tfc") else {
        return;
    };
    let device = rig.lab().host_interface();
    rig.ip(Host::A, &format!("link set {device} mtu 1500"));
    let a = rig.daemon(Host::A);
    a.says(SHORT, &["MTU is now 1500", "path MTU 1024 only", &device]);
    rig.ip(Host::A, &format!("link set {device} mtu 4200"));
    let a = rig.daemon(Host::A);
    a.says(SHORT, &["MTU is now 4200", "enough for path MTU 4096"]);
    rig.ip(Host::A, &format!("addr add 10.77.0.9/24 dev {device}"));
    rig.daemon(Host::A).says(SHORT, &["10.77.0.9 was added"]);
    rig.ip(Host::A, &format!("addr del 10.77.0.9/24 dev {device}"));
    rig.ip(Host::A, &format!("addr del 10.77.0.1/24 dev {device}"));
    rig.daemon(Host::A).says(SHORT, &["10.77.0.1 was removed"]);
    let port = Host::B.port();
    let set_port = |state: &str| {
        let mut command = std::process::Command::new("ip");
        command.args(["link", "set", port, state]);
        rig.lab().wire().confine(&mut command).unwrap();
        assert!(command.status().unwrap().success());
    };
    set_port("down");
    let b = |rig: &mut Rig, parts: &[&str]| rig.daemon(Host::B).says(SHORT, parts);
    set_port("up");
    b(&mut rig, &["link is down", &device]);
    b(&mut rig, &["link is up", &device]);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_next_hop_that_no_longer_answers_is_named() {
    let Some(mut rig) = Rig::running("tfn") else {
        return;
    };
    let file = rig.file("file", 1 << 20);
    rig.copy_well(&file, "file");
    // The QP stays, and with it the interest in its next hop.
    let device = rig.lab().host_interface();
    rig.ip(Host::B, &format!("addr del 10.77.0.2/24 dev {device}"));
    rig.ip(Host::A, &format!("neigh flush dev {device}"));
    rig.daemon(Host::A)
        .says(SHORT, &["10.77.0.2", "does not answer", &device]);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_peer_that_does_not_exist_is_named_with_the_interface() {
    let Some(mut rig) = Rig::up("tfx") else {
        return;
    };
    rig.start_sender(&[]);
    let file = rig.file("file", 10);
    let device = rig.lab().host_interface();
    let nobody = IpAddr::from([10, 77, 0, 99]);
    let outcome = rig.start_copy(&file, nobody, "file").finish(SHORT);
    outcome.failed(1, &["10.77.0.99", &device]);
    // There, but nothing listens.
    let outcome = rig
        .start_copy(&file, Host::B.ipv4().into(), "file")
        .finish(SHORT);
    outcome.failed(1, &["10.77.0.2:47910", "refused"]);
    assert!(rig.daemon(Host::A).runs());
    let found = rig.lab().host(Host::A).run(|| Link::by_name(&device));
    assert!(found.unwrap().is_ok());
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn an_interface_that_goes_down_mid_copy_is_said_once_and_works_again() {
    let Some(mut rig) = Rig::up("tfd") else {
        return;
    };
    let (file, copy) = mid_copy(&mut rig, 64 << 20);
    rig.ip(Host::A, "link set eth0 down");
    rig.daemon(Host::A).says(SHORT, &["eth0", "link is down"]);
    copy.finish(RETRY_BUDGET + SHORT).failed(1, &["10.77.0.2"]);
    let said = rig.daemon(Host::A).stderr();
    assert!(said.lines().count() < 20, "said again and again: {said}");

    rig.impair("clean");
    rig.ip(Host::A, "link set eth0 up");
    rig.daemon(Host::A).says(SHORT, &["eth0", "link is up"]);
    rig.copy_well(&file, "again");
}
