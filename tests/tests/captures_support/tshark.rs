//! What tshark says of the frames of a file.

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Stdio},
};

/// What is compared: tshark's fields, in the order in which it prints them.
pub const FIELDS: &[&str] = &[
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.atomicacketh.origremdt",
    "infiniband.immdt",
    "infiniband.ieth",
    "infiniband.invariant.crc",
    "infiniband.grh.tclass",
    "infiniband.grh.flowlabel",
    "infiniband.grh.paylen",
    "infiniband.grh.hoplmt",
    "infiniband.grh.sgid",
    "infiniband.grh.dgid",
    "infiniband.mad.mgmtclass",
    "infiniband.mad.method",
    "infiniband.mad.transactionid",
    "infiniband.mad.attributeid",
    "infiniband.cm.req",
    "infiniband.cm.req.localqpn",
    "infiniband.cm.req.startpsn",
    "infiniband.cm.req.responderres",
    "infiniband.cm.req.initdepth",
    "infiniband.cm.req.retrcount",
    "infiniband.cm.req.rnrretrcount",
    "infiniband.cm.req.pppmtu",
    "infiniband.cm.req.pkey",
    "infiniband.cm.req.prim_localacktout",
    "infiniband.cm.req.prim_tfcclass",
    "infiniband.cm.req.prim_hoplim",
    "infiniband.cm.req.prim_flowlabel",
    "infiniband.cm.req.prim_pktrate",
    "infiniband.cm.req.serviceid.dport",
    "infiniband.cm.req.ip_cm.sport",
    "infiniband.cm.rep",
    "infiniband.cm.rep.remotecommid",
    "infiniband.cm.rep.localqpn",
    "infiniband.cm.rep.startpsn",
    "infiniband.cm.rep.respres",
    "infiniband.cm.rep.initdepth",
    "infiniband.cm.rep.tgtackdelay",
    "infiniband.cm.rep.rnrretrcount",
    "infiniband.cm.rtu.localcommid",
    "infiniband.cm.rtu.remotecommid",
    "infiniband.cm.rej.localcommid",
    "infiniband.cm.rej.remotecommid",
    "infiniband.cm.rej.msgrej",
    "infiniband.cm.rej.reason",
    "infiniband.cm.dreq.localcommid",
    "infiniband.cm.dreq.remotecommid",
    "infiniband.cm.req.remoteqpneecn",
    "infiniband.cm.drsp.localcommid",
    "infiniband.cm.drsp.remotecommid",
    "_ws.col.Info",
    "udp.srcport",
    "ip.ttl",
    "ip.dsfield",
    "ipv6.hlim",
    "ipv6.tclass",
    "ipv6.flow",
    "vlan.id",
    "vlan.priority",
    "ieee8021ad.id",
    "ieee8021ad.priority",
    "eth.src",
    "eth.dst",
    "vxlan.vni",
    "geneve.vni",
    "gre.proto",
    "gre.key",
    "erspan.version",
    "erspan.spanid",
    "macc.opcode",
    "macc.pause_time",
    "macc.cbfc.enbv",
    "macc.cbfc.pause_time.c0",
    "macc.cbfc.pause_time.c1",
    "macc.cbfc.pause_time.c2",
    "macc.cbfc.pause_time.c3",
    "macc.cbfc.pause_time.c4",
    "macc.cbfc.pause_time.c5",
    "macc.cbfc.pause_time.c6",
    "macc.cbfc.pause_time.c7",
];

/// A frame as one of both sees it: fields that it has, each with all its values in order.
pub type View = BTreeMap<&'static str, Vec<String>>;

/// Numbers as decimals, bytes as hexadecimal digits, whatever tshark's way to print them.
fn plain(value: &str) -> String {
    if let Some(hex) = value.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).map_or_else(|_| value.into(), |n| n.to_string());
    }
    match value {
        "True" => "1".into(),
        "False" => "0".into(),
        _ => value.into(),
    }
}

/// tshark's view of every frame of a file; `None`, and a line that says so, where there is no tshark.
pub fn tshark(file: &Path) -> Option<Vec<View>> {
    let mut command = Command::new("tshark");
    // These two guess at payloads and then call them malformed (README of the captures).
    command.args([
        "--disable-protocol",
        "rpcordma",
        "--disable-protocol",
        "infiniband.eoib",
    ]);
    command.args([
        "-n",
        "-T",
        "fields",
        "-E",
        "separator=|",
        "-E",
        "aggregator=;",
        "-r",
    ]);
    command.arg(file);
    for field in FIELDS {
        command.args(["-e", field]);
    }
    // Its configuration may turn protocols off.
    let home = tempfile::tempdir().expect("a directory");
    command.env("HOME", home.path()).stdin(Stdio::null());
    let output = match command.output() {
        Ok(output) => output,
        Err(e) => {
            println!("SKIP: tshark can't be started ({e}): install the package tshark");
            return None;
        }
    };
    assert!(
        output.status.success(),
        "tshark: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let view = |line: &str| {
        let values: Vec<_> = line.split('|').collect();
        assert_eq!(values.len(), FIELDS.len(), "{line}");
        let present = FIELDS.iter().zip(values).filter(|(_, v)| !v.is_empty());
        present
            .map(|(field, v)| (*field, v.split(';').map(plain).collect()))
            .collect()
    };
    Some(text.lines().map(view).collect())
}
