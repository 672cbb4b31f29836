//! Rate controllers at the endpoint: how much is on the way with a window, how fast a fixed rate is, and that a window which
//! shrinks below what was sent never leaves the QP waiting for an answer that nobody asked for.

mod common;

use common::{LONG, pattern, send_wr, stats, target, write_op};
use rocexdp_common::fault::{Faults, Share};
use rocexdp_common::opcode::rc;
use rocexdp_proto::RateControl;
use rocexdp_proto::ids::PathMtu;
use rocexdp_proto::time::{Rate, Timestamp};
use rocexdp_sim::pair::{Bytes, Pair, PairConfig, QPNS};

const LINE: Rate = Rate::from_gbps(10);
const SIZE: usize = 4 << 20;
/// One way.
const DELAY: u64 = 20_000;

fn config(control: &str, ce: Share) -> PairConfig {
    let faults = Faults {
        seed: 4,
        delay_ns: DELAY,
        ..Faults::default()
    };
    let mut config = PairConfig {
        faults: [Faults { ce, ..faults }, faults],
        link_rate: Some(LINE),
        path_mtu: PathMtu::Mtu1024,
        timeout: 14,
        ..PairConfig::default()
    };
    for end in &mut config.endpoint {
        end.line_rate = Some(LINE);
        end.rate_control = control.parse::<RateControl>().unwrap();
        end.ecn_from_frames = true;
        end.max_inflight_packets = 1024;
    }
    config
}

/// Writes [`SIZE`] bytes. Gives most packets on the way, and the goodput.
fn run(config: &PairConfig) -> (Pair, u32, Rate) {
    let mut pair = Pair::new(config);
    let (bytes, region) = target(&mut pair, SIZE);
    let wr = send_wr(1, write_op(&region), &Bytes::of(pattern(SIZE, 1)), SIZE);
    pair.post_send(0, wr).unwrap();
    pair.capture();
    let mut most = 0;
    let done = pair.run_while(Timestamp::ZERO + LONG, |p| {
        let info = p.ends[0].endpoint.qp_info(QPNS[0]).unwrap();
        most = most.max(info.send_psn.diff(info.unacked_psn) as u32);
        p.ends[0].cq.is_empty()
    });
    assert!(!done, "it has completed");
    assert!(bytes.copy() == pattern(SIZE, 1));
    let rate = Rate::measured(SIZE as u64, pair.now().saturating_since(Timestamp::ZERO));
    (pair, most, rate.unwrap())
}

#[test]
fn a_window_of_one_bandwidth_delay_product_bounds_what_is_on_the_way_and_keeps_the_link_busy() {
    // 32 us x 10 Gb/s: 40 000 B, so 40 packets of 1024 B; the way takes more.
    let (_, most, rate) = run(&config("dcqcn-window=32us", Share::NEVER));
    assert_eq!(most, 40);
    assert!(rate < Rate::from_mbps(8_000), "{rate}");
    let (pair, most, rate) = run(&config("dcqcn-window=44us", Share::NEVER));
    assert!(most <= 54, "{most}");
    // The acknowledgement of every sixth packet costs a little.
    assert!(rate > Rate::from_mbps(8_300), "{rate}");
    assert_eq!(stats(&pair, 0).retransmitted_packets, 0);
    let (_, free, rate) = run(&config("dcqcn", Share::NEVER));
    assert!(free > 54 && rate > Rate::from_mbps(9_000), "{free} {rate}");
}

#[test]
fn the_window_shrinks_with_the_rate_and_nothing_hangs() {
    for control in ["dcqcn-window=44us", "dcqcn-window=44us,constant"] {
        let (pair, most, _) = run(&config(control, Share::ratio(2, 100)));
        let s = stats(&pair, 0);
        assert!(s.rate_cuts > 5 && most <= 54, "{} {most}", s.rate_cuts);
        assert_eq!(
            (s.local_ack_timeout_err, s.retransmitted_packets),
            (0, 0),
            "slow is not lost"
        );
    }
}

#[test]
fn a_fixed_rate_is_kept_whatever_the_network_says() {
    let (mut pair, _, rate) = run(&config("fixed=2G", Share::ratio(5, 100)));
    let s = stats(&pair, 0);
    assert!(s.rp_cnp_handled > 5, "{}", s.rp_cnp_handled);
    assert_eq!((s.rate_cuts, s.rate), (0, 2_000_000_000));
    let wire = rate.as_bps() as f64 * 1082.0 / 1024.0;
    assert!((0.97..=1.0).contains(&(wire / 2e9)), "{rate}");
    // Evenly: none closer than its length at that rate.
    let times: Vec<u64> = pair
        .sent
        .drain(..)
        .filter(|s| s.end == 0 && s.bth.opcode == rc::WRITE_MIDDLE)
        .map(|s| s.at.as_nanos())
        .collect();
    let least = times.windows(2).skip(20).map(|w| w[1] - w[0]).min();
    assert!(least >= Some(4_200), "{least:?}");
}

/// "A gap never makes a CNP": loss and congestion are separate signals.
#[test]
fn a_gap_never_makes_a_cnp_and_never_cuts_a_rate() {
    for selective in [None, Some(rocexdp_proto::SelectiveRepeat { paths: 1 })] {
        let mut config = config("dcqcn", Share::NEVER);
        config.selective = selective;
        for end in 0..2 {
            config.faults[end].drop = Share::ratio(2, 100);
            config.faults[end].reorder = Share::ratio(1, 100);
            config.faults[end].delay_ns = 2_000;
        }
        config.timeout = 8;
        let (pair, ..) = run(&config);
        let [a, b] = [0, 1].map(|end| stats(&pair, end));
        assert!(a.retransmitted_packets > 20, "{}", a.retransmitted_packets);
        assert!(b.out_of_sequence > 20, "{}", b.out_of_sequence);
        assert_eq!((b.np_cnp_sent, a.np_cnp_sent), (0, 0));
        assert_eq!((a.rp_cnp_handled, a.rate_cuts, a.rate), (0, 0, 0));
        assert!(
            pair.sent
                .iter()
                .all(|s| s.bth.opcode != rocexdp_common::opcode::CNP)
        );
    }
}
