//! `rocexdp events`: what is rare is told once it happens, with its packet; a flood is held back and counted.

use std::{net::UdpSocket, time::Duration};

use rocexdp::lab::Host;
use rocexdp_common::maps::EVENTS_PER_WINDOW;
use rocexdp_tests::{Rig, process::eventually, rig::SHORT};
use serde_json::Value;

/// The events that a host's daemon has, oldest first.
fn events(rig: &Rig, host: Host) -> Vec<Value> {
    let outcome = rig.run(host, &["events", "--json"]).ok();
    outcome
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn of_kind<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|e| e["kind"] == kind).collect()
}

/// Sends UDP packets to RoCEv2's port of b, from a's own stack.
fn send(rig: &Rig, packet: &[u8], times: usize) {
    let b = Host::B.ipv4();
    rig.lab()
        .host(Host::A)
        .run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for _ in 0..times {
                socket.send_to(packet, (b, 4791)).unwrap();
            }
        })
        .unwrap();
}

/// A SEND ONLY to QP 0x800123, PSN 0x456, with room for an ICRC.
fn stray() -> Vec<u8> {
    let mut packet = vec![4, 0, 0xff, 0xff, 0, 0x80, 1, 0x23, 0, 0, 4, 0x56];
    packet.resize(40, 0);
    packet
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn naks_and_refused_packets_are_told_with_their_packet() {
    let Some(mut rig) = Rig::running("tev") else {
        return;
    };
    assert_eq!(events(&rig, Host::B).len(), 0, "nothing has happened");
    send(&rig, &stray(), 1);
    send(&rig, &[0; 5], 1);
    let file = rig.file("file", 4 << 20);
    rig.impair_each(["drop=1%,seed=5", "clean"]);
    rig.copy_well(&file, "file");

    let b = eventually("b tells of the strangers", SHORT, || {
        let b = events(&rig, Host::B);
        (of_kind(&b, "unknown_qpn").len() == 1 && of_kind(&b, "malformed").len() == 1).then_some(b)
    });
    let stranger = of_kind(&b, "unknown_qpn")[0];
    assert_eq!(stranger["origin"], "packet");
    assert_eq!(stranger["dest_qpn"], 0x80_0123);
    assert_eq!(stranger["psn"], 0x456);
    assert_eq!(stranger["src"], Host::A.ipv4().to_string());
    assert_eq!(stranger["opcode"], "RC Send Only");
    assert_eq!(of_kind(&b, "malformed")[0]["reason"], "bth_truncated");
    let cut = of_kind(&b, "malformed")[0];
    assert!(cut["src"].is_string() && cut["psn"].is_null(), "{cut:#}");

    // The sender's side sees the NAKs that its losses brought.
    let seen: u64 = rig.qps(Host::A).iter().map(|qp| qp.counters.naks[0]).sum();
    assert!(seen > 0);
    let books = rig.maps(Host::A).all_counters();
    let held_back: u64 = books.iter().map(|c| c.events.suppressed).sum();
    // The ring is looked at twenty times a second.
    let a = eventually("each NAK is told, or was held back", SHORT, || {
        let a = events(&rig, Host::A);
        (of_kind(&a, "nak").len() as u64 + held_back >= seen).then_some(a)
    });
    let naks = of_kind(&a, "nak");
    assert_eq!(naks.len() as u64 + held_back, seen);
    assert_eq!(naks[0]["reason"], "packet_seq_err");
    assert_eq!(naks[0]["opcode"], "RC Acknowledge");
    // Only those asked for, in words.
    let words = rig.run(Host::B, &["events", "--kind", "malformed"]).ok();
    assert_eq!(words.stdout.lines().count(), 1, "{}", words.stdout);
    assert!(words.stdout.contains("bth_truncated"), "{}", words.stdout);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_flood_is_held_back_and_counted_and_a_follower_hears_of_it() {
    let Some(mut rig) = Rig::up("tef") else {
        return;
    };
    rig.start_receiver(&[]);
    let follower = rig.spawn(Host::B, &["events", "--follow", "--json"]);
    const FLOOD: usize = 5000;
    send(&rig, &stray(), FLOOD);
    let loss = eventually("the follower hears of the loss", SHORT, || {
        follower
            .stdout()
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find(|e| e["kind"] == "events_lost")
    });
    assert_eq!(loss["origin"], "events");
    let books = rig.maps(Host::B).all_counters();
    let (sent, held, lost) = books.iter().fold((0, 0, 0), |(s, h, l), c| {
        (
            s + c.events.sent,
            h + c.events.suppressed,
            l + c.events.lost,
        )
    });
    let seen: u64 = books.iter().map(|c| c.dropped).sum();
    assert_eq!(sent + held + lost, seen, "each is in the books");
    assert!(
        held > 0 && sent >= u64::from(EVENTS_PER_WINDOW),
        "{sent} {held}"
    );
    let want = sent.min(1024 - 1);
    let told = eventually("all that was sent is told", SHORT, || {
        let told = of_kind(&events(&rig, Host::B), "unknown_qpn").len() as u64;
        (told >= want).then_some(told)
    });
    assert_eq!(told, want);
    let outcome = follower.interrupt(SHORT);
    assert_eq!(outcome.code, Some(130), "{}", outcome.stderr);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn exhausted_retries_are_an_event() {
    let Some(mut rig) = Rig::running("ter") else {
        return;
    };
    let file = rig.file("file", 64 << 20);
    rig.impair("delay=1ms");
    let copy = rig.start_copy(&file, Host::B.ipv4().into(), "file");
    eventually("the copy is under way", SHORT, || {
        rig.qps(Host::A)
            .iter()
            .any(|qp| qp.engine.tx_packets > 100)
            .then_some(())
    });
    rig.impair("drop=100%");
    let event = eventually("the retries are exhausted", Duration::from_secs(20), || {
        of_kind(&events(&rig, Host::A), "retry_exceeded")
            .first()
            .map(|e| (*e).clone())
    });
    assert_eq!(event["origin"], "engine");
    assert!(event["qpn"].as_u64().unwrap() & 0x80_0000 != 0);
    assert_ne!(copy.finish(SHORT).code, Some(0));
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn without_a_daemon_it_is_said_what_to_start() {
    let Some(rig) = Rig::up("ten") else { return };
    let iface = rig.lab().host_interface();
    rig.run(Host::A, &["events", "--iface", &iface])
        .failed(1, &[&iface, "rocexdp run", "rocexdp monitor"]);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_monitors_events_are_had_in_the_same_way() {
    let Some(rig) = Rig::up("tem") else { return };
    let iface = rig.lab().host_interface();
    let monitor = rig.spawn(Host::B, &["monitor", "--iface", &iface, "--json"]);
    eventually("the monitor reports", SHORT, || {
        (!monitor.stdout().is_empty()).then_some(())
    });
    send(&rig, &[0; 5], 1);
    let cut = eventually("it tells of the packet", SHORT, || {
        let all = events(&rig, Host::B);
        of_kind(&all, "malformed").first().map(|e| (*e).clone())
    });
    assert_eq!(cut["reason"], "bth_truncated");
    assert_eq!(cut["iface"], iface);
    assert_eq!(monitor.interrupt(SHORT).code, Some(0));
    rig.run(Host::B, &["events", "--iface", &iface])
        .failed(1, &["rocexdp monitor"]);
}
