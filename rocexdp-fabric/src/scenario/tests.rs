//! Scenarios that are built as written, and each kind of mistake with its line.

use rocexdp_proto::time::Rate;
use rocexdp_sim::{picos::Picos, topology::HostId};

use super::*;

const FABRIC: &str = "defaults.link.rate = '100Gb/s'\n[generate]\nkind = 'incast'\nsenders = 4\n";

fn files(name: &str) -> Result<String, String> {
    match name {
        "f.toml" => Ok(FABRIC.to_owned()),
        "bad.toml" => Ok("\n\n[generate]\nkind = 'ring'".to_owned()),
        "flows.csv" => Ok("from,to,bytes,start\nh0,h4,1MB,0\n# x\nh1,h4,10KB,5us\n".to_owned()),
        "bad.csv" => Ok("h0,h4,1MB,0\nh0,h9,1MB,0\n".to_owned()),
        _ => Err("no such file".to_owned()),
    }
}

fn read(text: &str) -> Result<Study, Error> {
    Study::read(Source::new("s.toml", text), &mut files)
}

const HEAD: &str = "fabric = 'f.toml'\nrun.duration = '1ms'\n";

#[test]
fn seeds_and_sweeps_multiply() {
    let study = read(
        "
name = 'x'
fabric = 'f.toml'
[run]
duration = '2ms'
seeds = ['1-3', 7]
[transport]
mtu = 1024
congestion = { preset = 'paper', parameters = { rpg_ai_rate = 5 } }
[[flow]]
from = 'h[0-3]'
to = 'h4'
[sweep]
\"transport.congestion.parameters.rpg_ai_rate\" = [5, 20]
\"fabric.defaults.switch.ecn\" = [[{ kmin = '5KB', kmax = '200KB', pmax = '1%' }], []]
\"transport.mtu\" = [1024, 4096]
",
    )
    .unwrap();
    assert_eq!((study.scenarios.len(), study.runs().len()), (8, 32));
    assert_eq!(study.scenarios[0].seeds, [1, 2, 3, 7]);
    let last = &study.scenarios[7];
    assert_eq!(last.transport.mtu, 4096);
    assert_eq!(last.transport.dcqcn.rp.rpg_ai_rate, Rate::from_mbps(20));
    assert_eq!(
        last.fabric.topology.switches[0].config.ports[0].ecn[3],
        None
    );
    let first = &study.scenarios[0];
    assert_eq!(
        first.fabric.topology.switches[0].config.ports[0].ecn[3]
            .unwrap()
            .kmin,
        5000
    );
    assert_eq!(
        first.parameters[2],
        ("transport.mtu".to_owned(), "1024".to_owned())
    );
    let flows = last.workload.flows(1);
    assert_eq!(
        (flows.len(), flows[0].bytes, flows[3].to),
        (4, None, HostId(4))
    );
}

#[test]
fn fabrics_can_be_compared() {
    let study = read(
        "fabric = 'f.toml'\nflows_file = 'flows.csv'\n[sweep]\nfabric = ['f.toml', { defaults.link.rate = '10G', generate.kind = 'incast', generate.senders = 4 }]\n",
    )
    .unwrap();
    let rates: Vec<_> = study
        .scenarios
        .iter()
        .map(|s| s.fabric.topology.links[0].rate)
        .collect();
    assert_eq!(rates, [Rate::from_gbps(100), Rate::from_gbps(10)]);
    let flows = study.scenarios[0].workload.flows(1);
    assert_eq!(
        (flows[1].bytes, flows[1].start),
        (Some(10_000), Picos::from_micros(5))
    );
}

#[test]
fn changes_of_the_scenario_come_last() {
    let study = read(&format!(
        "{HEAD}[[set.link]]\nends = ['h0', 's0']\nrate = '10G'\n[[flow]]\nfrom = 'h0'\nto = 'h1'"
    ))
    .unwrap();
    assert_eq!(
        study.scenarios[0].fabric.topology.links[0].rate,
        Rate::from_gbps(10)
    );
}

/// Text, file, line, part of the reason.
const MISTAKES: &[(&str, &str, usize, &str)] = &[
    ("x = 1\nfabric = 'f.toml'", "s.toml", 1, "unknown field"),
    ("run.duration = '1ms'", "s.toml", 0, "no fabric"),
    ("fabric = 'none.toml'", "s.toml", 1, "no such file"),
    ("fabric = 'bad.toml'", "bad.toml", 4, "no generator"),
    ("fabric = 'f.toml'", "s.toml", 0, "nobody sends"),
    (
        "fabric = 'f.toml'\nflows_file = 'bad.csv'",
        "bad.csv",
        2,
        "no host is called \"h9\"",
    ),
    (
        "fabric = 'f.toml'\n[[flow]]\nfrom = 'h0'\nto = 'h1'",
        "s.toml",
        3,
        "never ends: give run.duration",
    ),
    (
        "fabric = 'f.toml'\n[[pattern]]\nkind = 'permutation'",
        "s.toml",
        2,
        "never ends",
    ),
    (
        "fabric = 'f.toml'\n[[pattern]]\nkind = 'permutation'\nbytes = 5\nevery = '1us'",
        "s.toml",
        5,
        "never ends",
    ),
    (
        "fabric = 'f.toml'\n[[traffic]]\nsizes = 'websearch'\nload = 0.5",
        "s.toml",
        2,
        "never ends",
    ),
    ("fabric = 'f.toml'\nversion = 9", "s.toml", 2, "reads 1"),
    (
        "fabric = 'f.toml'\n[sweep]\n\"run.seeds\" = [1]",
        "s.toml",
        3,
        "can't be swept",
    ),
    (
        "fabric = 'f.toml'\n[sweep]\nx = 1",
        "s.toml",
        3,
        "is a list of values",
    ),
    (
        "fabric = 'f.toml'\n[sweep]\n\"flow.3.bytes\" = [1]\n[[flow]]\nfrom = 'h0'\nto = 'h1'",
        "s.toml",
        3,
        "has no number 3",
    ),
    (
        "fabric = 'f.toml'\nrun.duration = '1ms'\n[sweep]\n\"fabric.generate.senders\" = [4,\n0]\n[[flow]]\nfrom = 'h0'\nto = 'h1'",
        "s.toml",
        5,
        "senders is 1 to",
    ),
];

/// The same after [`HEAD`], in `s.toml`, lines counted after it.
const MISTAKES_HEADED: &[(&str, usize, &str)] = &[
    ("[[flow]]\nfrom = 'h0'\nto = 'h0'", 3, "send to itself"),
    (
        "[[flow]]\nfrom = 'h0'\nto = 'h7'",
        3,
        "no host is called \"h7\"",
    ),
    (
        "[[flow]]\nfrom = 'h0'\nto = 's0'",
        3,
        "no host is called \"s0\"",
    ),
    (
        "[[flow]]\nfrom = 'h[0-2]'\nto = 'h[3-4]'",
        3,
        "3 senders and 2 receivers",
    ),
    (
        "[[flow]]\nfrom = 'h0'\nto = 'h1'\nbytes = 0",
        4,
        "1 byte or more",
    ),
    (
        "[[flow]]\nfrom = 'h0'\nto = 'h1'\nclass = 'x'",
        4,
        "no class is called",
    ),
    ("[[flow]]\nfrom = 'h0'\nto = 'h1'\nnic = 1", 4, "has 1 NICs"),
    ("[[pattern]]\nkind = 'ring'", 2, "no pattern is called"),
    (
        "[[pattern]]\nkind = 'incast'\nsenders = 5",
        3,
        "senders is 1 to 4",
    ),
    (
        "[[pattern]]\nkind = 'permutation'\nhosts = ['h0', 'h0']",
        3,
        "named twice",
    ),
    (
        "[[traffic]]\nsizes = 'x'\nload = 0.5",
        2,
        "there are websearch, fb_hadoop",
    ),
    (
        "[[traffic]]\nsizes = [[0, 0], [5, 50]]\nload = 0.5",
        2,
        "from 0 to 100",
    ),
    (
        "[[traffic]]\nsizes = 'websearch'\nload = 0",
        3,
        "above zero",
    ),
    ("[[traffic]]\nsizes = 'websearch'\nload = 2", 3, "a share"),
    ("[transport]\nhost = 'tcp'", 2, "there are rc"),
    ("[transport]\nmtu = 1500", 2, "256, 512"),
    ("[transport]\nwindow = 0", 2, "window is 1 to"),
    ("[transport]\npaths = 2", 2, "need selective_repeat"),
    (
        "[transport]\nhost = 'reference'\nwindow = 5",
        3,
        "means nothing for reference",
    ),
    (
        "[transport.congestion]\ncontrol = 'hpcc'",
        2,
        "no rate control is called \"hpcc\"",
    ),
    (
        "[transport.congestion]\ncontrol = 'fixed'",
        2,
        "needs a rate",
    ),
    ("[transport.congestion]\npreset = 'x'", 2, "no DCQCN preset"),
    (
        "[transport.congestion.parameters]\nrpg_gd = 9",
        2,
        "rpg_gd can't be",
    ),
    (
        "[transport.congestion.parameters]\nx = 9",
        2,
        "no DCQCN parameter is called",
    ),
    (
        "[transport.congestion.parameters]\nrpg_min_rate = 200000",
        2,
        "above the line rate",
    ),
    ("[[class]]\nname = 'a'\ndscp = 64", 3, "no DSCP"),
    (
        "[[class]]\nname = 'a'\ndscp = 1\nweight = 0",
        4,
        "would never send",
    ),
    (
        "[[class]]\nname = 'a'\ndscp = 1\nweight = 65536",
        4,
        "at most 65535",
    ),
    (
        "[[class]]\nname = 'a'\ndscp = 1\n[[class]]\nname = 'b'\ndscp = 2\nweight = 3",
        6,
        "the classes a and b have one priority, 0",
    ),
    (
        "[set]\nlink = [{ ends = ['h0', 's0'], mtu = 2000 }]",
        0,
        "the MTU of the link h0-s0 is 2000",
    ),
    ("[run]\nseeds = '5-1'", 2, "no seeds"),
];

#[test]
fn each_mistake_is_refused_with_its_line() {
    let before = HEAD.lines().count();
    for (text, line, reason) in MISTAKES_HEADED {
        let head = if text.starts_with("[run]") {
            "fabric = 'f.toml'\n"
        } else {
            HEAD
        };
        let before = before.min(head.lines().count());
        let text = format!("{head}{text}");
        let error = read(&text).expect_err(&text);
        assert!(error.reason.contains(reason), "{text}\n{error}");
        let line = if *line == 0 { 0 } else { before + line };
        assert_eq!(
            (error.file.as_str(), error.line.unwrap_or(0)),
            ("s.toml", line),
            "{text}\n{error}"
        );
    }
    for (text, file, line, reason) in MISTAKES {
        let error = read(text).expect_err(text);
        assert!(error.reason.contains(reason), "{text}\n{error}");
        assert_eq!(
            (error.file.as_str(), error.line.unwrap_or(0)),
            (*file, *line),
            "{text}\n{error}"
        );
    }
}
