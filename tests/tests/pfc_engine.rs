//! PFC at an endpoint: real pause frames stop what is of their priority and nothing else, cost no retry, and end when they say
//! so; and an endpoint that can't keep up sends them, if it may.

use std::time::Duration;

use rocexdp::{
    engine::PfcConfig,
    lab::Host,
    maps::MapsView,
    node::{Node, NodeConfig},
};
use rocexdp_common::maps::{QpEngine, QueueEngine};
use rocexdp_proto::{QpState, time::Rate};
use rocexdp_tests::{
    Rig,
    check::{items, number},
    eventually,
    pause::{IFACE, Pair, Share, ask},
};

const SOON: Duration = Duration::from_secs(20);

/// An endpoint at end a of a link of 100 Mb/s, so that a frame pauses for a third of a second: it comes in time on a busy machine.
fn endpoint(pair: &Pair, pfc: PfcConfig) -> Node {
    let mut config = NodeConfig::new(IFACE);
    config.endpoint.line_rate = Some(Rate::from_mbps(100));
    config.pfc = pfc;
    pair.a.run(|| Node::open(config)).unwrap().unwrap()
}

fn maps(pair: &Pair) -> MapsView {
    pair.a
        .run(|| MapsView::of_interface(IFACE))
        .unwrap()
        .unwrap()
}

fn engine(maps: &MapsView) -> QpEngine {
    maps.qps().first().expect("a QP").engine
}

fn queue(maps: &MapsView) -> QueueEngine {
    maps.queue_counters().first().expect("a queue").1
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_paused_priority_sends_nothing_and_loses_no_retry_until_it_may_go_on() {
    let Some(pair) = Pair::up("h") else { return };
    let node = endpoint(&pair, PfcConfig::default());
    let maps = maps(&pair);
    let pauser = pair.pause(1 << 0, Share::All);
    eventually("it is paused", SOON, || {
        (queue(&maps).pauses_honoured > 0).then_some(())
    });
    // 67 ms and 7 retries: the connection would be given up after half a second.
    let qp = ask(&node, 14);
    let paused = || queue(&maps).paused_ns;
    eventually("it was paused for two seconds", SOON, || {
        assert_eq!(engine(&maps).tx_packets, 0, "a packet in a pause");
        (paused() > 2_000_000_000).then_some(())
    });
    let before = engine(&maps);
    assert_eq!(
        (before.state, before.local_ack_timeout_err),
        (QpState::Rts as u32, 0)
    );
    // The last frame says 0 quanta: long before the third of a second has passed, and whatever is asleep, it goes on.
    drop(pauser);
    eventually("it goes on", SOON, || {
        (engine(&maps).tx_packets > 0).then_some(())
    });
    eventually("nobody answers", SOON, || {
        (engine(&maps).state == QpState::Err as u32).then_some(())
    });
    drop(qp);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_pause_of_another_priority_or_one_that_is_not_honoured_stops_nothing() {
    for (name, priorities, honour) in [("o", 0xfe, true), ("n", 0x01, false)] {
        let Some(pair) = Pair::up(name) else { return };
        let pfc = PfcConfig {
            honour,
            ..PfcConfig::default()
        };
        let node = endpoint(&pair, pfc);
        let maps = maps(&pair);
        let _pauser = pair.pause(priorities, Share::All);
        let _qp = ask(&node, 14);
        eventually("it sends", SOON, || {
            (engine(&maps).tx_packets > 0).then_some(())
        });
        if honour {
            eventually("they are honoured all the same", SOON, || {
                (queue(&maps).pauses_honoured > 0).then_some(())
            });
        } else {
            assert_eq!(queue(&maps).pauses_honoured, 0);
        }
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_receiver_that_runs_out_of_room_pauses_the_sender() {
    let Some(mut rig) = Rig::up("tps") else {
        return;
    };
    // 128 packets may be on their way to a ring of 64.
    rig.start_sender(&["--line-rate", "10G"]);
    rig.start_receiver(&["--line-rate", "10G", "--rx-ring", "64", "--send-pfc", "0"]);
    let file = rig.file("file", 64 << 20);
    rig.copy_well(&file, "file");
    let of = |host: Host, field: &str| {
        let counters = rig.counters(host);
        let queues = items(&counters, "queues").to_vec();
        let at = format!("/engine/{field}");
        queues.iter().map(|q| number(q, &at)).sum::<u64>()
    };
    let sent = of(Host::B, "pfc_sent");
    let honoured = of(Host::A, "pauses_honoured");
    println!("{sent} pause frames sent, {honoured} pauses honoured");
    assert!(sent >= 2, "{sent}");
    assert!(honoured > 0 && honoured <= sent, "{honoured} of {sent}");
    assert_eq!(of(Host::A, "pfc_sent"), 0);
}
