//! Frames of the kernel's Soft-RoCE, as captured: each is taken apart, and each ICRC is right. What our responder makes of them
//! is in `captures_responder.rs`.

mod common;

use common::pcap::{captures, frames};
use rocexdp_proto::wire::{Head, Packet};

#[test]
#[allow(clippy::disallowed_methods)] // Reads the captures; the core does not.
fn every_soft_roce_frame_is_taken_apart_and_its_icrc_is_right() {
    let entries = std::fs::read_dir(captures()).unwrap();
    let (mut files, mut packets) = (0, 0);
    for path in entries
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "pcap"))
    {
        let file = std::fs::read(&path).unwrap();
        for (n, frame) in frames(&file).into_iter().enumerate() {
            let name = format!("{}, frame {}", path.file_name().unwrap().display(), n + 1);
            let pieces: [&[u8]; 2] = [&frame[..frame.len() / 2], &frame[frame.len() / 2..]];
            let head = Head::of(&pieces);
            // ARP, neighbour discovery and TCP are in some captures.
            let Ok(packet) = Packet::parse(&head, &pieces) else {
                assert!(
                    !frame.windows(2).take(60).any(|w| w == [0x12, 0xb7]),
                    "{name}: a RoCEv2 frame was refused"
                );
                continue;
            };
            assert!(packet.icrc_is_right(&head), "{name}");
            packets += 1;
        }
        files += 1;
    }
    assert!(
        files > 50 && packets > 900,
        "{files} files, {packets} packets"
    );
}
