//! Copies by selective repeat between two rocexdp ends, over XDP and a wire that harms: the bytes arrive, the counters add up, and what
//! go-back-N sends again is not sent again.

use rocexdp::lab::Host;
use rocexdp_tests::{Rig, check::number, rig::COPY};
use serde_json::Value;

const SIZE: u64 = (32 << 20) + 1234;

/// A copy of [`SIZE`] bytes that offers selective repeat over so many UDP ports; none: go-back-N.
fn copy(rig: &Rig, ports: Option<&str>) -> Value {
    let token = rig.path("token");
    let mut more = vec!["--token-file", token.to_str().unwrap()];
    if let Some(ports) = ports {
        more.extend(["--selective-repeat", ports]);
    }
    let name = format!("over-{}", ports.unwrap_or("none"));
    let file = rig.file(&name, SIZE);
    let running = rig.start_copy_with(&file, Host::B.ipv4().into(), &name, &more);
    let report = running.finish(COPY).json();
    rig.arrived(&file, &name, &report);
    report
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn loss_costs_selective_repeat_less_than_go_back_n_on_any_number_of_paths() {
    let Some(mut rig) = Rig::running("tsl") else {
        return;
    };
    rig.impair("drop=1%,seed=11");
    let all = copy(&rig, None);
    assert_eq!(number(&all, "/selective_paths"), 0);
    for ports in ["1", "4"] {
        let report = copy(&rig, Some(ports));
        assert_eq!(number(&report, "/selective_paths").to_string(), ports);
        let again = |report: &Value| number(report, "/retransmitted_packets");
        println!(
            "sent again: {} by go-back-N, {} by selective repeat over {ports} paths",
            again(&all),
            again(&report)
        );
        assert!(0 < again(&report) && again(&report) < again(&all) / 2);
    }
    for host in [Host::A, Host::B] {
        rig.books_hold(host);
    }
    rig.impair("clean");
    rig.assert_nothing_lost_unasked();
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn selective_repeat_survives_everything_at_once() {
    let Some(mut rig) = Rig::running("tse") else {
        return;
    };
    rig.impair("drop=0.5%,dup=0.5%,reorder=0.5%,corrupt=0.5%,seed=3");
    let report = copy(&rig, Some("4"));
    assert_eq!(number(&report, "/selective_paths"), 4);
    for host in [Host::A, Host::B] {
        rig.books_hold(host);
    }
    rig.impair("clean");
    rig.assert_nothing_lost_unasked();
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_receiver_that_refuses_selective_repeat_is_copied_to_by_go_back_n() {
    let Some(mut rig) = Rig::up("tsr") else {
        return;
    };
    rig.start_sender(&[]);
    rig.start_receiver(&["--no-selective"]);
    let report = copy(&rig, Some("4"));
    assert_eq!(number(&report, "/selective_paths"), 0);
    assert_eq!(number(&report, "/retransmitted_packets"), 0);
    rig.assert_clean();
}
