//! DCQCN against the maps: marks on the wire become CNPs at the receiver, these cuts at the sender, and without marks there is
//! none. The steps themselves are held against the algorithm's numbers in rocexdp-proto.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use rocexdp::{
    lab::Host,
    maps::{MapsView, QpView},
};
use rocexdp_tests::{
    Rig,
    check::{items, number},
    eventually,
    rig::{COPY, SHORT},
};

/// Looks at the one QP of a host every millisecond while `work` runs.
fn sampled<T>(rig: &Rig, host: Host, work: impl FnOnce() -> T) -> (T, Vec<QpView>) {
    let maps: MapsView = rig.maps(host);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut samples = Vec::new();
            while !done.load(Ordering::Acquire) && samples.len() < 100_000 {
                samples.extend(maps.qps());
                std::thread::sleep(Duration::from_millis(1));
            }
            samples
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, Ordering::Release);
        let samples = looking.join().unwrap();
        match result {
            Ok(result) => (result, samples),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn marks_become_cnps_and_these_cut_the_rate_which_recovers() {
    let Some(mut rig) = Rig::running("tgm") else {
        return;
    };
    rig.impair_each(["ce=5%,seed=2", "clean"]);
    let file = rig.file("file", 96 << 20);
    let (report, samples) = sampled(&rig, Host::A, || rig.copy_well(&file, "file"));
    let rates: Vec<u64> = samples.iter().map(|qp| qp.engine.rate).collect();
    let paced: Vec<u64> = rates.iter().copied().filter(|rate| *rate != 0).collect();
    let highest = *paced.iter().max().expect("the QP was paced");
    println!(
        "{} samples, {} paced, at most {highest} bit/s, {} s",
        rates.len(),
        paced.len(),
        report["transfer_seconds"]
    );
    // How deep it went is the engine's number: between two samples a rate may be cut and be back.
    let lowest = number(&report, "/min_rate");
    assert!(0 < lowest && lowest < highest, "{lowest} of {highest}");
    assert_eq!(number(&report, "/retransmitted_packets"), 0);

    for host in [Host::A, Host::B] {
        rig.books_hold(host);
    }
    let [a, b] = [Host::A, Host::B].map(|host| rig.qp_list(host)["qps"][0].clone());
    let marked = rig.lab().counters().unwrap()[0].marked;
    assert!(marked > 0);
    assert_eq!(number(&b, "/xdp/ecn/ce"), marked, "XDP saw every mark");
    assert_eq!(number(&b, "/xdp/np_ecn_marked_roce_packets"), marked);
    let sent = number(&b, "/engine/np_cnp_sent");
    assert!(sent > 0 && sent <= marked, "{sent} CNPs for {marked} marks");
    assert_eq!(number(&a, "/xdp/kinds/cnp/packets"), sent, "none was lost");
    assert_eq!(number(&a, "/engine/rp_cnp_handled"), sent);
    assert_eq!(number(&a, "/xdp/cnp_bad_icrc"), 0);
    let counters = rig.counters(Host::A);
    let consumed = items(&counters, "queues").iter();
    let consumed: u64 = consumed.map(|queue| number(queue, "/xdp/consumed")).sum();
    assert_eq!(consumed, sent, "CNPs end in XDP");
    assert!(number(&a, "/engine/rate_cuts") > 0);
    assert!(
        number(&a, "/engine/rate_cuts") <= sent,
        "no cut without a CNP"
    );
    assert!(number(&a, "/engine/rate_increases") > 0);
    assert_eq!(number(&a, "/engine/min_rate"), lowest);
    // The one that sent the marked data notifies nobody.
    assert_eq!(number(&a, "/engine/np_cnp_sent"), 0);
    assert_eq!(number(&b, "/engine/rp_cnp_handled"), 0);
    assert!(b["engine"]["rate"].is_null());
    rig.assert_nothing_lost_unasked();
}

const CEILING: u64 = 1_000_000_000;

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_rate_that_was_cut_rises_once_the_marks_end() {
    let Some(mut rig) = Rig::up("tgr") else {
        return;
    };
    // Cuts by half, and 100 Mb/s back each 10 ms: slow enough to be looked at, by a busy machine too.
    let cc = "--line-rate 1G --cc dce_tcp_rtt=1000 --cc rpg_time_reset=10000 --cc rpg_byte_reset=0 --cc rpg_ai_rate=100";
    rig.start_sender(&cc.split(' ').collect::<Vec<_>>());
    rig.start_receiver(&[]);
    rig.impair_each(["ce=20%,seed=2", "clean"]);
    let file = rig.file("file", 96 << 20);
    let copy = rig.start_copy(&file, Host::B.ipv4().into(), "file");
    let maps = rig.maps(Host::A);
    let engine = || maps.qps().first().map(|qp| qp.engine);
    // In one look: between two the rate may have recovered.
    let cut = eventually("the rate is cut", SHORT, || {
        engine()
            .filter(|engine| engine.rate_cuts >= 5 && engine.rate > 0 && engine.rate < CEILING / 4)
    });
    rig.impair("clean");
    let since = Instant::now();
    let high = eventually("the rate rises to its ceiling", SHORT, || {
        engine().filter(|engine| engine.rate >= CEILING / 100 * 99)
    });
    println!(
        "from {} to {} bit/s in {:?}, {} cuts",
        high.min_rate,
        high.rate,
        since.elapsed(),
        high.rate_cuts
    );
    assert!(high.rate_increases > cut.rate_increases && high.min_rate <= cut.rate);
    let report = copy.finish(COPY).json();
    rig.arrived(&file, "file", &report);
    let end = engine().expect("the QP is kept");
    assert_eq!(end.rate_cuts, high.rate_cuts, "no mark, no cut");
    assert_eq!(end.min_rate, high.min_rate);
    assert!(end.rate >= high.rate && end.rate <= CEILING, "{end:?}");
    assert!(
        end.alpha < cut.alpha || end.alpha == 0,
        "alpha decays: {end:?}"
    );
    // It was paced all the time, and not far below what the pacer allowed at the end.
    let took = report["transfer_seconds"].as_f64().unwrap();
    let least = file.size as f64 * 8.0 / CEILING as f64;
    println!("{took:.3} s, at the ceiling {least:.3} s");
    assert!(took >= 0.9 * least);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn without_marks_the_rate_is_never_cut() {
    let Some(rig) = Rig::running("tgn") else {
        return;
    };
    let file = rig.file("file", 64 << 20);
    let (report, samples) = sampled(&rig, Host::A, || rig.copy_well(&file, "file"));
    assert!(samples.len() > 10, "{} samples", samples.len());
    for qp in &samples {
        let engine = &qp.engine;
        assert_eq!(
            (engine.rate, engine.rate_cuts, engine.rp_cnp_handled),
            (0, 0, 0),
            "{engine:?}"
        );
    }
    assert!(report["min_rate"].is_null());
    rig.assert_clean();
    for host in [Host::A, Host::B] {
        let qp = &rig.qp_list(host)["qps"][0];
        for name in [
            "np_cnp_sent",
            "rp_cnp_handled",
            "rate_cuts",
            "rate_increases",
        ] {
            assert_eq!(number(qp, &format!("/engine/{name}")), 0, "{host}: {name}");
        }
        assert_eq!(number(qp, "/xdp/ecn/ce"), 0);
        assert_eq!(number(qp, "/xdp/kinds/cnp/packets"), 0);
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_receiver_told_to_send_no_cnps_sends_none() {
    let Some(mut rig) = Rig::up("tgx") else {
        return;
    };
    rig.start_sender(&[]);
    rig.start_receiver(&["--no-cnp"]);
    rig.impair_each(["ce=50%,seed=2", "clean"]);
    let file = rig.file("file", 8 << 20);
    let report = rig.copy_well(&file, "file");
    assert!(report["min_rate"].is_null());
    let [a, b] = [Host::A, Host::B].map(|host| rig.qp_list(host)["qps"][0].clone());
    assert!(number(&b, "/xdp/ecn/ce") > 0);
    assert_eq!(number(&b, "/engine/np_cnp_sent"), 0);
    assert_eq!(number(&a, "/engine/rate_cuts"), 0);
}
