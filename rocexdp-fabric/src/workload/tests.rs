//! Flows of patterns and traffic: as many, as large and as often as asked for, and the same for a seed.

use std::collections::BTreeSet;

use super::*;
use crate::{Source, scenario::Study};

fn flows(hosts: u32, entry: &str, seed: u64) -> Vec<Flow> {
    let text = format!(
        "run.duration = '10ms'\nfabric = {{ defaults.link.rate = '100G', generate = {{ kind = 'incast', senders = {} }} }}\n{entry}",
        hosts - 1
    );
    let study = Study::read(Source::new("s", &text), &mut |_| Err(String::new())).unwrap();
    let workload = &study.scenarios[0].workload;
    let flows = workload.flows(seed);
    let expected = workload.expected();
    assert!(
        (flows.len() as f64 / expected - 1.0).abs() < 0.1,
        "{} of {expected}",
        flows.len()
    );
    flows
}

#[test]
fn a_permutation_sends_and_receives_once() {
    let flows = flows(32, "[[pattern]]\nkind = 'permutation'\nbytes = '1MB'", 3);
    let from: BTreeSet<_> = flows.iter().map(|flow| flow.from).collect();
    let to: BTreeSet<_> = flows.iter().map(|flow| flow.to).collect();
    assert_eq!((flows.len(), from.len(), to.len()), (32, 32, 32));
    assert!(flows.iter().all(|flow| flow.from != flow.to));
}

#[test]
fn an_incast_has_one_receiver_each_time() {
    let entry =
        "[[pattern]]\nkind = 'incast'\nsenders = 8\nbytes = '64KB'\nevery = '1ms'\njitter = '10us'";
    let all = flows(16, entry, 5);
    assert_eq!(all.len(), 80);
    let mut receivers = BTreeSet::new();
    for round in all.chunks(8) {
        assert!(
            round
                .iter()
                .all(|flow| flow.to == round[0].to && flow.from != flow.to)
        );
        receivers.insert(round[0].to);
    }
    assert!(receivers.len() > 1, "the receiver is drawn anew");
    assert_eq!(all, flows(16, entry, 5));
    assert_ne!(all, flows(16, entry, 6));
}

#[test]
fn all_to_all_is_every_pair() {
    assert_eq!(
        flows(5, "[[pattern]]\nkind = 'all-to-all'\nbytes = 9", 1).len(),
        20
    );
}

#[test]
fn traffic_has_its_load_and_random_gaps() {
    let load = 0.5;
    let all = flows(64, "[[traffic]]\nsizes = 'websearch'\nload = 0.5", 1);
    let bytes: u64 = all.iter().filter_map(|flow| flow.bytes).sum();
    let offered = bytes as f64 * 8.0 / 0.010 / 64.0 / 100e9;
    assert!((offered / load - 1.0).abs() < 0.1, "{offered}");
    // Gaps of a Poisson process have a deviation as large as their mean.
    let gaps: Vec<f64> = all
        .windows(2)
        .map(|pair| (pair[1].start - pair[0].start).0 as f64)
        .collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let square = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    assert!(
        (square.sqrt() / mean - 1.0).abs() < 0.15,
        "{} of {mean}",
        square.sqrt()
    );
}
