//! The AF_XDP layer on a real kernel: a veth pair, native XDP, two sockets. Needs root.

mod xsk_support;

use std::time::{Duration, Instant};

use rocexdp::xsk::{Mode, TxError, Xsk, XskConfig, ZeroCopy, baseline};
use xsk_support::{RECEIVER, SENDER, ifindex, in_lab, link_counter, open};

const PATIENCE: Duration = Duration::from_secs(5);

/// A frame of `len` bytes, every one of which depends on `number`.
fn frame(number: usize, len: usize) -> Vec<u8> {
    let mut state = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    let mut bytes: Vec<u8> = (0..len).map(|_| next()).collect();
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    bytes
}

/// Waits until a frame may be sent, sends it.
fn send(sender: &mut Xsk, frame: &[u8]) {
    let start = Instant::now();
    loop {
        let put = sender.transmit(frame.len(), |pieces| {
            let mut rest = frame;
            for piece in pieces {
                let (now, later) = rest.split_at(piece.len());
                piece.copy_from_slice(now);
                rest = later;
            }
        });
        sender.flush().unwrap();
        match put {
            Ok(()) => return,
            Err(TxError::Full) => assert!(start.elapsed() < PATIENCE, "never any room"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Flushes until everything has left.
fn drain(sender: &mut Xsk) {
    let start = Instant::now();
    while sender.in_flight() > 0 {
        assert!(
            start.elapsed() < PATIENCE,
            "{} chunks never came back",
            sender.in_flight()
        );
        sender.flush().unwrap();
    }
}

/// Receives until `count` packets are there or nothing comes for a while: (piece lengths, bytes) of each.
fn receive(receiver: &mut Xsk, count: usize) -> Vec<(Vec<usize>, Vec<u8>)> {
    let mut packets = Vec::new();
    let mut last = Instant::now();
    while packets.len() < count && last.elapsed() < Duration::from_millis(200) {
        let got = receiver.receive(64, |pieces| {
            packets.push((
                pieces.iter().map(|piece| piece.len()).collect(),
                pieces.concat(),
            ));
        });
        if got > 0 {
            last = Instant::now();
        }
    }
    packets
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn frames_of_every_size_arrive_intact_in_as_many_pieces_as_chunks_demand() {
    for chunk in [2048_u32, 4096] {
        in_lab(9100, &[], move |lab| {
            let (mut sender, mut receiver) = lab.pair(|config| config.chunk_size = chunk);
            assert_eq!((sender.mode(), receiver.mode()), (Mode::Copy, Mode::Copy));
            assert!(
                receiver.zero_copy_refused().is_some(),
                "veth has no zero-copy"
            );
            let usable = chunk as usize - 256;
            for (number, len) in [
                60, 64, 1500, 1792, 1793, 2048, 2110, 3840, 3841, 4096, 4097, 4170, 8192, 9000,
            ]
            .into_iter()
            .enumerate()
            {
                let sent = frame(number, len);
                send(&mut sender, &sent);
                let packets = receive(&mut receiver, 1);
                assert_eq!(
                    packets.len(),
                    1,
                    "chunk {chunk} length {len}: {}",
                    receiver.statistics().unwrap()
                );
                let (pieces, bytes) = &packets[0];
                assert!(*bytes == sent, "chunk {chunk} length {len}: bytes differ");
                let expected: Vec<usize> = sent.chunks(usable).map(<[u8]>::len).collect();
                assert_eq!(*pieces, expected, "chunk {chunk} length {len}");
            }
            drain(&mut sender);
            assert_eq!(receiver.statistics().unwrap().rx_lost(), 0);
            assert_eq!(sender.statistics().unwrap().tx_invalid_descs, 0);
        });
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn without_multi_buffer_a_long_frame_is_counted_and_a_short_one_arrives() {
    in_lab(4200, &[], |lab| {
        let mut sender = open(SENDER, |_| {});
        let mut receiver = open(RECEIVER, |config| config.multi_buffer = false);
        lab.steer_to(&receiver);
        send(&mut sender, &frame(0, 4170));
        send(&mut sender, &frame(1, 1500));
        let packets = receive(&mut receiver, 2);
        assert_eq!(packets.len(), 1);
        assert!(packets[0].1 == frame(1, 1500));
        assert_eq!(receiver.statistics().unwrap().rx_dropped, 1);
        assert_eq!(receiver.tx_max_len(), 4096);
    });
}

/// Sends `count` frames while nobody receives, then holds the books: sent = received + counted drops.
fn overrun(len: usize, count: usize, adapt: fn(&mut XskConfig), full_ring: bool) {
    in_lab(4200, &["pfifo"], move |lab| {
        let mut sender = open(SENDER, |_| {});
        let mut receiver = open(RECEIVER, adapt);
        lab.steer_to(&receiver);
        for number in 0..count {
            send(&mut sender, &frame(number, len));
        }
        drain(&mut sender);
        // The last packets may still be on their way through the peer's receive handler.
        std::thread::sleep(Duration::from_millis(50));
        let packets = receive(&mut receiver, count);
        let statistics = receiver.statistics().unwrap();
        let context = format!(
            "received {}; {statistics}; {:?}",
            packets.len(),
            sender.counters()
        );
        assert!(packets.len() < count, "nothing overran: {context}");
        assert_eq!(
            packets.len() as u64 + statistics.rx_lost(),
            count as u64,
            "{context}"
        );
        assert_eq!(statistics.rx_ring_full.unwrap() > 0, full_ring, "{context}");
        assert_eq!(statistics.rx_dropped > 0, !full_ring, "{context}");
        assert_eq!(link_counter(SENDER, "tx", "dropped"), 0, "{context}");
        // What arrived is a prefix, in order, whole.
        for (number, (_, bytes)) in packets.iter().enumerate() {
            assert!(*bytes == frame(number, len), "packet {number}: {context}");
        }
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_full_rx_ring_is_counted_packet_by_packet() {
    overrun(1500, 300, |config| config.rx_size = 64, true);
    overrun(4170, 300, |config| config.rx_size = 64, true);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn an_empty_fill_ring_is_counted_packet_by_packet() {
    overrun(1500, 300, |config| config.frames_rx = 65, false);
    overrun(4170, 300, |config| config.frames_rx = 65, false);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn back_pressure_delays_and_never_loses() {
    for len in [60, 1500, 4170] {
        in_lab(4200, &["pfifo"], move |lab| {
            // The receiver holds them all, so that only the sending side can lose any.
            const COUNT: usize = 8_000;
            let mut sender = open(SENDER, |config| {
                config.tx_size = 64;
                config.tx_budget = 64;
                config.frames_tx = 48;
            });
            let mut receiver = open(RECEIVER, |config| {
                config.rx_size = 16_384;
                config.fill_size = 16_384;
                config.frames_rx = 16_384;
            });
            lab.steer_to(&receiver);
            let received = std::thread::scope(|scope| {
                let receiving = scope.spawn(|| receive(&mut receiver, COUNT));
                let mut refused = 0;
                for number in 0..COUNT {
                    let bytes = frame(number, len);
                    // Without flushing until the ring refuses: each round runs into its end.
                    while let Err(error) = sender.transmit(len, |pieces| {
                        let mut rest = &bytes[..];
                        for piece in pieces {
                            let (now, later) = rest.split_at(piece.len());
                            piece.copy_from_slice(now);
                            rest = later;
                        }
                    }) {
                        assert_eq!(error, TxError::Full);
                        refused += 1;
                        assert!(refused < 10_000_000);
                        sender.flush().unwrap();
                    }
                }
                drain(&mut sender);
                assert!(refused >= COUNT / 64, "the ring never filled");
                receiving.join().unwrap()
            });
            let context = format!(
                "{}; {:?}",
                receiver.statistics().unwrap(),
                sender.counters()
            );
            assert_eq!(received.len(), COUNT, "{len} B: {context}");
            for (number, (_, bytes)) in received.iter().enumerate() {
                assert!(
                    *bytes == frame(number, len),
                    "{len} B: packet {number} differs; {context}"
                );
            }
            assert_eq!(sender.counters().tx_device_drops, 0, "{context}");
            assert_eq!(sender.counters().tx_packets, COUNT as u64);
            assert_eq!(sender.counters().tx_bad_completion, 0);
        });
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn packets_that_the_device_drops_are_counted_one_by_one() {
    in_lab(1500, &[], |lab| {
        let (mut sender, mut receiver) = lab.pair(|_| {});
        // Longer than the link carries, between two that fit: neither hurts the other.
        for (number, len) in [60, 4170, 1500, 2000, 100].into_iter().enumerate() {
            send(&mut sender, &frame(number, len));
        }
        drain(&mut sender);
        let lengths: Vec<usize> = receive(&mut receiver, 5)
            .iter()
            .map(|(_, bytes)| bytes.len())
            .collect();
        assert_eq!(lengths, [60, 1500, 100]);
        assert_eq!(sender.counters().tx_device_drops, 2);
        // No carrier: everything is dropped, in one flush, and no chunk is lost by it.
        let status = std::process::Command::new("ip")
            .args(["link", "set", RECEIVER, "down"])
            .status()
            .unwrap();
        assert!(status.success());
        for _ in 0..100 {
            sender.transmit(4170, |_| {}).unwrap();
        }
        sender.flush().unwrap();
        assert_eq!(sender.in_flight(), 0);
        assert_eq!(sender.counters().tx_device_drops, 102);
        assert_eq!(link_counter(SENDER, "tx", "dropped"), 102);
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn waiting_ends_when_a_packet_comes_and_when_the_time_is_up() {
    in_lab(1500, &[], |lab| {
        let (mut sender, mut receiver) = lab.pair(|_| {});
        assert!(!receiver.wait(Duration::from_millis(20)).unwrap());
        send(&mut sender, &frame(0, 100));
        assert!(receiver.wait(PATIENCE).unwrap());
        assert_eq!(receive(&mut receiver, 1).len(), 1);
        assert!(!receiver.wait(Duration::ZERO).unwrap());
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_socket_that_cannot_be_opened_says_why_and_what_to_do() {
    in_lab(1500, &[], |_| {
        let good = XskConfig::new(RECEIVER, ifindex(RECEIVER), 0);
        let refused = |change: &dyn Fn(&mut XskConfig)| {
            let mut config = good.clone();
            change(&mut config);
            let text = Xsk::open(&config).err().expect("opened").to_string();
            assert!(
                text.contains(&format!("{RECEIVER} queue {}", config.queue)),
                "{text}"
            );
            text
        };
        let held = Xsk::open(&good).unwrap();
        assert!(refused(&|_| {}).contains("another AF_XDP socket"));
        drop(held);
        // The queue is free again as soon as the kernel has torn the old one down: open waits for that.
        drop(Xsk::open(&good).unwrap());
        assert!(refused(&|config| config.queue = 7).contains("the queue does not exist"));
        assert!(refused(&|config| config.ifindex = 9999).contains("network namespace"));
        assert!(
            refused(&|config| config.zero_copy = ZeroCopy::Require)
                .contains("do not require zero-copy")
        );
        assert!(refused(&|config| config.chunk_size = 3000).contains("neither 2048 nor 4096"));
        assert!(refused(&|config| config.headroom = 3840).contains("headroom 3840"));
        assert!(refused(&|config| config.rx_size = 1000).contains("rx_size 1000"));
        assert!(refused(&|config| config.frames_tx = 0).contains("frames_tx 0"));
        assert!(refused(&|config| config.tx_budget = 4096).contains("tx_budget 4096"));
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn an_interface_that_goes_away_is_an_error_not_silence() {
    in_lab(1500, &[], |lab| {
        let (mut sender, receiver) = lab.pair(|_| {});
        let status = std::process::Command::new("ip")
            .args(["link", "set", SENDER, "down"])
            .status()
            .unwrap();
        assert!(status.success());
        sender.transmit(60, |pieces| pieces[0].fill(0)).unwrap();
        assert_eq!(
            sender.flush().unwrap_err().raw_os_error(),
            Some(libc::ENETDOWN)
        );
        assert_eq!(
            sender.wait(Duration::ZERO).unwrap_err().raw_os_error(),
            Some(libc::ENETDOWN)
        );
        assert!(
            receiver.wait(Duration::from_millis(10)).is_ok(),
            "its own end is up"
        );
        let status = std::process::Command::new("ip")
            .args(["link", "del", SENDER])
            .status()
            .unwrap();
        assert!(status.success());
        assert_eq!(
            sender.flush().unwrap_err().raw_os_error(),
            Some(libc::ENXIO)
        );
        assert_eq!(
            receiver
                .wait(Duration::from_millis(10))
                .unwrap_err()
                .raw_os_error(),
            Some(libc::ENXIO)
        );
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_baseline_counts_what_arrives() {
    for len in [64, 1086, 2110, 4170] {
        in_lab(4200, &["pfifo"], move |lab| {
            let (mut sender, mut receiver) = lab.pair(|_| {});
            let header = &frame(0, 64)[..14];
            let result = baseline::run(
                &mut sender,
                &mut receiver,
                header,
                len,
                Duration::from_millis(500),
            )
            .unwrap();
            println!(
                "{len:5} B: {:9.0} frames/s {:6.2} Gb/s; {:?}; {}",
                result.frames_per_second(),
                result.gigabits_per_second(),
                sender.counters(),
                receiver.statistics().unwrap()
            );
            assert!(result.received > 1000);
            assert_eq!(result.bytes, result.received * len as u64);
            let lost = receiver.statistics().unwrap().rx_lost()
                + sender.counters().tx_device_drops
                + sender.in_flight() as u64;
            assert!(result.received + lost >= result.sent);
            assert!(result.received <= result.sent);
        });
    }
}
