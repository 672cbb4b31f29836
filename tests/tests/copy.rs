//! Whole copies over a clean wire, from `rocexdp copy` to the file under its name: at each path MTU, over IPv4 and IPv6, with
//! a VLAN tag, of every awkward size. Each is held against numbers worked out here.

use std::net::IpAddr;

use rocexdp::lab::{Host, LabConfig};
use rocexdp_tests::{
    Rig, SourceFile,
    check::{items, number},
    rig::COPY,
};
use serde_json::Value;

/// Bytes of one WRITE of a copy.
const MESSAGE: u64 = 1 << 20;
const MTUS: [u64; 5] = [256, 512, 1024, 2048, 4096];

/// Packets that carry a file of `size` bytes, and their bytes on the wire, Ethernet header included.
fn on_the_wire(size: u64, path_mtu: u64, to: IpAddr, tagged: bool) -> (u64, u64) {
    let ip = if to.is_ipv4() { 20 } else { 40 };
    let (ethernet, udp, bth, reth, icrc) = (if tagged { 18 } else { 14 }, 8, 12, 16, 4);
    let messages = size.div_ceil(MESSAGE);
    let last = size - messages.saturating_sub(1) * MESSAGE;
    let packets = messages.saturating_sub(1) * MESSAGE.div_ceil(path_mtu) + last.div_ceil(path_mtu);
    let padded = size.next_multiple_of(4);
    let bytes = padded + packets * (ethernet + ip + udp + bth + icrc) + messages * reth;
    (packets, bytes)
}

/// Copies, and holds what b's XDP program counted of it against [`on_the_wire`].
fn copy_exactly(rig: &Rig, file: &SourceFile, to: IpAddr, path: &str, path_mtu: u64) -> Value {
    let report = rig.start_copy(file, to, path).finish(COPY).json();
    rig.arrived(file, path, &report);
    assert_eq!(number(&report, "/path_mtu"), path_mtu);
    let (packets, bytes) = on_the_wire(file.size, path_mtu, to, rig.lab().config().vlan.is_some());
    assert_eq!(number(&report, "/tx_packets"), packets);
    let qps = rig.qp_list(Host::B);
    let qp = items(&qps, "qps")
        .iter()
        .find(|qp| qp["qpn"] == report["peer_qpn"])
        .expect("b keeps the QP");
    assert_eq!(qp["local_gid"], to.to_string());
    assert_eq!(number(qp, "/path_mtu"), path_mtu);
    let counted = ["packets", "bytes"].map(|n| number(qp, &format!("/xdp/kinds/write/{n}")));
    assert_eq!(
        counted,
        [packets, bytes],
        "path MTU {path_mtu} to {to}: {qp:#}"
    );
    assert_eq!(number(qp, "/engine/rx_bytes"), file.size);
    report
}

/// One rig, the sender started anew for each path MTU.
fn copies_at_each_path_mtu(mut rig: Rig) {
    rig.start_receiver(&[]);
    for path_mtu in MTUS {
        rig.start_sender(&["--path-mtu", &path_mtu.to_string()]);
        for to in Host::B.addresses() {
            if to.is_ipv6() && !rig.lab().has_ipv6() {
                continue;
            }
            let name = format!("{path_mtu}-{}", if to.is_ipv4() { 4 } else { 6 });
            let file = rig.file(&name, 8 * MESSAGE + path_mtu / 2 + 1);
            copy_exactly(&rig, &file, to, &name, path_mtu);
        }
        rig.assert_clean();
        rig.stop(Host::A);
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_file_arrives_at_each_path_mtu_over_ipv4_and_ipv6_and_nothing_is_sent_twice() {
    let Some(rig) = Rig::up("tcm") else { return };
    copies_at_each_path_mtu(rig);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_file_arrives_at_each_path_mtu_in_tagged_frames() {
    let config = LabConfig {
        vlan: Some(7),
        ..LabConfig::named("tcv")
    };
    let Some(rig) = Rig::with(config) else { return };
    copies_at_each_path_mtu(rig);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn files_of_every_awkward_size_arrive() {
    let Some(rig) = Rig::running("tcs") else {
        return;
    };
    let to = Host::B.ipv4().into();
    let sizes = [
        0,
        1,
        3,
        4095,
        4096,
        4097,
        MESSAGE - 1,
        MESSAGE,
        MESSAGE + 1,
        16 * MESSAGE,
        17 * MESSAGE + 4099,
    ];
    for size in sizes {
        let name = format!("size {size}");
        copy_exactly(&rig, &rig.file(&name, size), to, &name, 4096);
    }
    assert_eq!(rig.inbox_names().len(), sizes.len());
    rig.assert_clean();
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn copies_at_the_same_time_do_not_mix() {
    let Some(rig) = Rig::running("tcp") else {
        return;
    };
    let files: Vec<_> = (0..4)
        .map(|n| rig.file(&format!("f{n}"), 8 * MESSAGE + n))
        .collect();
    let to = Host::B.ipv4().into();
    let copies: Vec<_> = files
        .iter()
        .enumerate()
        .map(|(n, file)| rig.start_copy(file, to, &format!("f{n}")))
        .collect();
    for (n, copy) in copies.into_iter().enumerate() {
        let report = copy.finish(COPY).json();
        rig.arrived(&files[n], &format!("f{n}"), &report);
    }
    for host in [Host::A, Host::B] {
        rig.books_hold(host);
        assert_eq!(items(&rig.qp_list(host), "qps").len(), files.len());
    }
    rig.assert_nothing_lost_unasked();
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_copy_needs_no_daemon_at_the_sender() {
    let Some(mut rig) = Rig::up("tcn") else {
        return;
    };
    rig.start_receiver(&[]);
    let file = rig.file("file", 8 * MESSAGE + 5);
    let mode = ["--path-mtu", "1024", "--token-file"];
    let token = rig.path("token");
    let options = [&mode[..], &[rocexdp_tests::rig::text(&token)]].concat();
    let copy = rig.start_copy_with(&file, Host::B.ipv4().into(), "file", &options);
    let outcome = copy.finish(COPY);
    assert!(
        outcome.stderr.contains("in driver mode"),
        "the mode in force is said: {}",
        outcome.stderr
    );
    let report = outcome.json();
    rig.arrived(&file, "file", &report);
    assert_eq!(number(&report, "/path_mtu"), 1024);
    assert_eq!(number(&report, "/retransmitted_packets"), 0);
    rig.books_hold(Host::B);
    assert!(rig.link(Host::A).xdp.is_empty(), "nothing stays attached");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_file_arrives_in_generic_mode() {
    let Some(mut rig) = Rig::up("tcg") else {
        return;
    };
    let ready = rig.start_receiver(&["--mode", "generic"]);
    assert!(ready.contains("mode=generic"), "{ready}");
    rig.start_sender(&["--mode", "generic"]);
    let file = rig.file("file", 8 * MESSAGE + 5);
    copy_exactly(&rig, &file, Host::B.ipv4().into(), "file", 4096);
    rig.books_hold(Host::A);
    rig.books_hold(Host::B);
}
