//! Completion channels and completion queues: arming, solicited events, sharing, overflow, resizing.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{LONG, recv_wr};
use rocexdp_proto::ids::{CqNum, WrId};
use rocexdp_proto::mem::SgList;
use rocexdp_proto::verbs::{CompletionChannel, CompletionQueue, ResizeError, SendOp, SendWr};
use rocexdp_proto::{CreateQp, Event, QpTransition};
use rocexdp_sim::pair::{Bytes, Pair, PairConfig, QPNS};

/// A pair whose end 1 has one queue for sends and one for receives, on one channel.
fn on_channel(depth: u32) -> (Pair, [Arc<CompletionQueue>; 2], Arc<CompletionChannel>) {
    let config = PairConfig::default();
    let mut pair = Pair::new(&config);
    let channel = CompletionChannel::new();
    let cqs = [0, 1].map(|n| CompletionQueue::on_channel(depth, CqNum(n), &channel));
    let e = &mut pair.ends[1];
    e.endpoint.destroy_qp(QPNS[1]).unwrap();
    let create = CreateQp {
        max_send: config.depth,
        max_recv: config.depth,
        ..CreateQp::rc(QPNS[1], &cqs[0], &cqs[1])
    };
    e.qp = e.endpoint.create_qp(create).unwrap();
    pair.reconnect(&config);
    let inbox = Bytes::filled(64, 0);
    for n in 0..32 {
        pair.post_recv(1, recv_wr(n, &inbox, 64)).unwrap();
    }
    (pair, cqs, channel)
}

fn send(pair: &mut Pair, from: usize, solicited: bool) {
    let mut wr = SendWr::new(WrId(1), SendOp::Send, SgList::inline(&[7; 8]));
    wr.solicited = solicited;
    pair.post_send(from, wr).unwrap();
    assert!(pair.run(LONG));
}

fn numbers(channel: &CompletionChannel) -> Vec<u32> {
    core::iter::from_fn(|| channel.next_event())
        .map(|cq| cq.num().0)
        .collect()
}

#[test]
fn an_armed_queue_makes_one_event_for_the_next_completion() {
    let (mut pair, [_, receives], channel) = on_channel(64);
    send(&mut pair, 0, false);
    assert!(channel.is_empty(), "nobody has armed it");
    assert!(receives.request_notify(false));
    assert!(channel.is_empty(), "what is there already makes none");
    send(&mut pair, 0, false);
    send(&mut pair, 0, false);
    assert_eq!(numbers(&channel), [1], "one, for two completions");
    assert_eq!(receives.len(), 3);
    receives.request_notify(false);
    send(&mut pair, 0, false);
    assert_eq!(numbers(&channel), [1]);
}

#[test]
fn armed_for_solicited_events_only_those_and_errors_count() {
    let (mut pair, [_, receives], channel) = on_channel(64);
    receives.request_notify(true);
    send(&mut pair, 0, false);
    assert!(channel.is_empty());
    send(&mut pair, 0, true);
    assert_eq!(numbers(&channel), [1]);
    receives.request_notify(true);
    let now = pair.now();
    let ep = &mut pair.ends[1].endpoint;
    ep.modify_qp(now, QPNS[1], QpTransition::Err).unwrap();
    assert_eq!(numbers(&channel), [1], "flushed receives");
}

#[test]
fn armed_for_any_completion_it_stays_so() {
    let (mut pair, [_, receives], channel) = on_channel(64);
    receives.request_notify(false);
    receives.request_notify(true);
    send(&mut pair, 0, false);
    assert_eq!(numbers(&channel), [1]);
    receives.request_notify(true);
    receives.request_notify(false);
    send(&mut pair, 0, false);
    assert_eq!(numbers(&channel), [1]);
}

#[test]
fn queues_share_a_channel_and_each_event_calls_the_hook_once() {
    let (mut pair, cqs, channel) = on_channel(64);
    let inbox = Bytes::filled(64, 0);
    pair.post_recv(0, recv_wr(1, &inbox, 64)).unwrap();
    cqs[0].request_notify(false);
    cqs[1].request_notify(false);
    send(&mut pair, 0, false);
    // One event waits when the hook comes: it counts.
    let calls = Arc::new(AtomicU32::new(0));
    let seen = calls.clone();
    channel.set_hook(move || {
        seen.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    send(&mut pair, 1, false);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    assert_eq!(numbers(&channel), [1, 0]);
    assert!(cqs.iter().all(|cq| cq.channel().is_some()));
}

#[test]
fn events_of_a_queue_that_goes_are_dropped() {
    let channel = CompletionChannel::new();
    let (mut pair, [_, receives], shared) = on_channel(64);
    receives.request_notify(false);
    send(&mut pair, 0, false);
    assert_eq!((shared.forget(&receives), shared.len()), (1, 0));
    // A queue that is gone without a word is left out.
    let plain = CompletionQueue::new(4);
    assert!(!plain.request_notify(false), "it has no channel");
    assert!(channel.next_event().is_none());
}

#[test]
fn a_full_queue_is_reported_once_by_its_number_beside_the_qps_error() {
    let (mut pair, _, _) = on_channel(2);
    for _ in 0..3 {
        let wr = SendWr::new(WrId(1), SendOp::Send, SgList::inline(&[7; 8]));
        pair.post_send(0, wr).unwrap();
        assert!(pair.run(LONG));
    }
    let events = &pair.ends[1].events;
    let cq = CqNum(1);
    let overflows = events.iter().filter(|e| **e == Event::CqOverflow { cq });
    assert_eq!(overflows.count(), 1, "{events:?}");
    let failed = events.iter().any(|e| {
        let cause = rocexdp_proto::ErrorCause::CqOverflow;
        *e == Event::QpError {
            qpn: QPNS[1],
            cause,
        }
    });
    assert!(failed, "{events:?}");
}

#[test]
fn a_resized_queue_keeps_what_is_in_it_in_order() {
    let (mut pair, [_, receives], _) = on_channel(4);
    for _ in 0..3 {
        send(&mut pair, 0, false);
    }
    let held = ResizeError::Held { held: 3, asked: 2 };
    assert_eq!(receives.resize(2), Err(held));
    assert_eq!(receives.capacity(), 4);
    receives.resize(3).unwrap();
    receives.resize(32).unwrap();
    for _ in 0..20 {
        send(&mut pair, 0, false);
    }
    assert!(!receives.overflowed());
    let ids: Vec<u64> = core::iter::from_fn(|| receives.poll())
        .map(|c| c.wr_id.0)
        .collect();
    assert_eq!(ids, (0..23).collect::<Vec<_>>());
}

#[test]
#[allow(clippy::disallowed_methods)] // The queue is what threads meet at; the core itself has none.
fn no_event_is_lost_between_arming_and_polling() {
    // One thread completes, another arms, polls till empty and waits for the hook: it must see every completion.
    let (mut pair, [_, receives], channel) = on_channel(64);
    let (bell, bells) = std::sync::mpsc::channel();
    channel.set_hook(move || {
        let _ = bell.send(());
    });
    receives.request_notify(false);
    let (watched, events) = (receives.clone(), channel.clone());
    let poller = std::thread::spawn(move || {
        let mut seen = 0;
        while seen < 2000 {
            bells
                .recv_timeout(std::time::Duration::from_secs(20))
                .expect("an event for each completion that was not polled");
            assert_eq!(events.next_event().unwrap().num(), CqNum(1));
            watched.request_notify(false);
            seen += core::iter::from_fn(|| watched.poll()).count();
        }
        seen
    });
    let inbox = Bytes::filled(64, 0);
    let mut posted = 32;
    for _ in 0..2000 {
        while receives.len() > 60 && !poller.is_finished() {
            std::thread::yield_now();
        }
        send(&mut pair, 0, false);
        pair.completions(0);
        if posted < 2000 {
            pair.post_recv(1, recv_wr(posted, &inbox, 64)).unwrap();
            posted += 1;
        }
    }
    assert_eq!(poller.join().unwrap(), 2000);
}
