//! Fabrics that are built as written, and each kind of mistake with its line.

use rocexdp_proto::time::Rate;
use rocexdp_sim::{
    picos::Picos,
    switch::{MarkOn, PfcThreshold, Scheduler},
    topology::{Node, SwitchId},
};

use super::*;

fn read(text: &str) -> Result<Fabric, Error> {
    Fabric::read(Source::new("f.toml", text))
}

const LINKED: &str = "
[defaults.link]
rate = '100Gb/s'
[[host]]
name = 'h[0-1]'
[[switch]]
name = 's0'
[[link]]
ends = ['h[0-1]', 's0']
";

#[test]
fn an_incast_is_a_star() {
    let fabric = read(
        "name = 'eight'\ndefaults.link = { rate = '100Gb/s', delay = '1us' }\ngenerate = { kind = 'incast', senders = 8 }",
    )
    .unwrap();
    assert_eq!((fabric.name.as_str(), fabric.hosts.len()), ("eight", 9));
    assert_eq!(fabric.warnings, []);
    let link = &fabric.topology.links[3];
    assert_eq!(
        (link.rate, link.delay),
        (Rate::from_gbps(100), Picos::from_micros(1))
    );
    assert_eq!(link.ends[1], Node::Switch(SwitchId(0)));
    let switch = &fabric.topology.switches[0].config;
    assert_eq!(switch.ports.len(), 9);
    let ecn = switch.ports[0].ecn[3].unwrap();
    assert_eq!((ecn.kmin, ecn.kmax), (400_000, 1_600_000));
    assert_eq!(switch.ports[0].ecn[6], None);
    assert!(switch.pfc.as_ref().unwrap().priorities[3]);
    // 2 us at 12.5 B/ns, two frames of 4222 bytes, 60 quanta for the peer (in whole nanoseconds), the pause frame.
    assert_eq!(switch.ports[0].headroom, 25_000 + 8444 + 3838 + 64);
    let nic = fabric.hosts[8].nics[0];
    assert_eq!(
        (nic.ipv4.to_string(), nic.ipv6.to_string()),
        ("10.78.0.9".into(), "fd78::9".into())
    );
    assert_eq!(fabric.dscp_to_priority[26], 3);
    assert_eq!(fabric.dscp_to_priority[48], 6);
    assert_eq!(fabric.link("s0-h3"), fabric.link("h3-s0"));
}

#[test]
fn generators_make_what_they_say() {
    for (rule, hosts, switches, links) in [
        ("kind = 'pair'", 2, 0, 1),
        ("kind = 'pair', switches = 3", 2, 3, 4),
        (
            "kind = 'dumbbell', pairs = 4, trunk_rate = '25Gb/s'",
            8,
            2,
            9,
        ),
        (
            "kind = 'leaf-spine', leaves = 4, hosts_per_leaf = 8, spines = 2, trunk_rate = '400G'",
            32,
            6,
            40,
        ),
    ] {
        let fabric = read(&format!(
            "defaults.link.rate = '100G'\ngenerate = {{ {rule} }}"
        ))
        .unwrap();
        let topology = &fabric.topology;
        let made = (
            topology.hosts.len(),
            topology.switches.len(),
            topology.links.len(),
        );
        assert_eq!(made, (hosts, switches, links), "{rule}");
    }
}

#[test]
fn lists_changes_and_rules_add_up() {
    let fabric = read(
        "
[defaults.link]
rate = '25Gb/s'
[defaults.switch]
buffer = '16MiB'
scheduler = 'weighted'
weights = [1, 1, 1, 60, 40, 1, 0, 0]
strict = [6, 7]
ecn = [
  { kmin = '100KB', kmax = '400KB', pmax = 0.2, per = '25Gb/s' },
  { kmin = '5KB', kmax = '200KB', pmax = '1%', to = 'h1', priorities = [3] },
]
pfc = { threshold = '200KB', quanta = 0 }
[[host]]
name = 'h[0-1]'
nics = 2
[[switch]]
name = 's[0-1]'
ports = 3
[[switch]]
name = 'mid'
mark_on = 'enqueue'
pfc.enabled = false
[[link]]
ends = ['h[0-1]', 's[0-1]']
mesh = true
[[link]]
ends = ['s[0-1]', 'mid']
rate = '100Gb/s'
[[set.link]]
ends = ['s0', 'h0']
faults = { drop = '50%' }
faults_forward.corrupt = 1.0
flap = { from = '1ms', until = '3ms', every = '1ms', down = '10us' }
[qos.dscp_to_priority]
10 = 5
",
    )
    .unwrap();
    assert_eq!(fabric.hosts[1].nics.len(), 2);
    let link = &fabric.topology.links[fabric.link("h0-s0").unwrap().0 as usize];
    assert_eq!(link.faults[0].drop.bits(), 1 << 31);
    // Named the other way round: forward is from s0, the link's second end.
    assert_eq!(
        (link.faults[1].drop.bits(), link.faults[1].corrupt.bits()),
        (0, u32::MAX)
    );
    assert_eq!(link.down.len(), 2);
    let s0 = &fabric.topology.switches[0].config;
    assert!(matches!(
        s0.ports[0].scheduler,
        Scheduler::Weighted {
            weights: [1, 1, 1, 60, ..],
            ..
        }
    ));
    assert_eq!(s0.ports[2].ecn[3].unwrap().kmax, 1_600_000, "100G port");
    assert_eq!(s0.ports[1].ecn[3].unwrap().kmax, 200_000, "port to h1");
    assert_eq!(
        s0.ports[1].ecn[2].unwrap().kmax,
        400_000,
        "another priority of it"
    );
    let pfc = s0.pfc.as_ref().unwrap();
    assert_eq!(
        (pfc.threshold, pfc.quanta),
        (PfcThreshold::Static(200_000), None)
    );
    let mid = &fabric.topology.switches[2].config;
    assert!(mid.pfc.is_none() && mid.mark_on == MarkOn::Enqueue && mid.buffer == 16 << 20);
    assert_eq!(fabric.dscp_to_priority[10], 5);
}

#[test]
fn each_direction_of_each_link_has_faults_of_its_own() {
    let fabric = read(LINKED).unwrap();
    let (one, two) = (fabric.seeded(1), fabric.seeded(2));
    let seeds = |topology: &Topology| {
        topology
            .links
            .iter()
            .map(|link| link.faults[0].seed)
            .collect::<Vec<_>>()
    };
    assert_ne!(seeds(&one)[0], seeds(&one)[1]);
    assert_ne!(seeds(&one), seeds(&two));
}

/// Text, line, part of the reason.
const MISTAKES: &[(&str, usize, &str)] = &[
    ("version = 2", 1, "this program reads 1"),
    ("x = 1", 1, "unknown field `x`"),
    ("name = 'a'\nname = 'b'", 2, "duplicate key"),
    (
        "generate = { kind = 'ring' }",
        1,
        "no generator is called \"ring\"; there are pair",
    ),
    (
        "\n[generate]\nkind = 'pair'\nspines = 2",
        4,
        "spines means nothing",
    ),
    ("[generate]\nkind = 'incast'", 1, "needs senders"),
    (
        "[generate]\nkind = 'incast'\nsenders = 0",
        3,
        "senders is 1 to",
    ),
    ("[generate]\nkind = 'pair'", 1, "has no rate"),
    (
        "[defaults.link]\nrate = '0Gb/s'\n[generate]\nkind = 'pair'",
        2,
        "is zero",
    ),
    ("[defaults.link]\nrate = '10Gbit'\n", 2, "is not a rate"),
    ("[defaults.link]\ndelay = 5\n", 2, "a time with its unit"),
    (
        "[defaults.link]\nmtu = 500\nrate = '1G'\n[generate]\nkind = 'pair'",
        2,
        "mtu is 1280 to 10000",
    ),
    (
        "[[host]]\nname = 'h0'\n[[host]]\nname = 'h[0-3]'",
        4,
        "two nodes are called \"h0\"",
    ),
    ("[[host]]\nname = 'h[3-1]'", 2, "runs backwards"),
    ("[[host]]\nname = 'h0'", 0, "two hosts at least"),
    (
        "[[host]]\nname = 'h[0-1]'\n[[link]]\nends = ['h0', 'x']",
        4,
        "no node is called \"x\"",
    ),
    (
        "[[host]]\nname = 'h[0-1]'\n[[link]]\nends = ['h0']",
        4,
        "two ends, not 1",
    ),
    (
        "[[host]]\nname = 'h[0-4]'\n[[link]]\nends = ['h[0-1]', 'h[2-4]']",
        3,
        "one by one",
    ),
];

/// The same, after [`LINKED`], whose lines are added to the number.
const MISTAKES_LINKED: &[(&str, usize, &str)] = &[
    ("[[host]]\nname = 'h2'", 2, "h2 has no link"),
    (
        "[[host]]\nname = 'h2'\n[[link]]\nends = ['h2', 's0']\ncount = 256",
        2,
        "the host h2 has 256 NICs by its links: 255 at most",
    ),
    (
        "[[switch]]\nname = 's1'",
        2,
        "not connected: no links (through switches) lead from h0 to s1",
    ),
    (
        "[[host]]\nname = 'x[0-1]'\n[[link]]\nends = ['x0', 'x1']",
        2,
        "lead from h0 to x0, x1",
    ),
    ("[[link]]\nends = ['h0', 'h0']", 1, "to itself"),
    (
        "[[set.switch]]\nname = 's0'\nports = 3",
        3,
        "has 2 ports by its links, not 3",
    ),
    ("[[set.switch]]\nname = 'h0'", 2, "no switch is called"),
    ("[[set.link]]\nends = ['h0', 'h1']", 1, "no link joins"),
    (
        "[defaults.switch]\necn = [\n{ kmin = '2KB', kmax = '1KB', pmax = 1.0 }]",
        3,
        "out of order: kmin",
    ),
    (
        "[defaults.switch]\necn = [\n{ kmin = '2KB', kmax = '1GB', pmax = 1.0 }]",
        3,
        "above the buffer",
    ),
    (
        "[defaults.switch]\necn = [\n{ kmin = '2KB', kmax = '3KB', pmax = 1.5 }]",
        3,
        "invalid value",
    ),
    (
        "[defaults.switch]\npfc.threshold = '1KB'",
        2,
        "out of order: a queue is paused",
    ),
    ("[defaults.switch]\npfc.alpha = 0", 2, "alpha is above 0"),
    (
        "[defaults.switch]\npfc = { alpha = 1.0, threshold = '1MB' }",
        2,
        "not both",
    ),
    (
        "[defaults.switch]\npfc.priorities = [8]",
        2,
        "8 is no priority",
    ),
    ("[defaults.switch]\nbuffer = '10KB'", 2, "headroom"),
    (
        "[defaults.switch]\nscheduler = 'fifo'",
        2,
        "there are strict",
    ),
    (
        "[defaults.switch]\nscheduler = 'weighted'",
        2,
        "needs weights",
    ),
    (
        "[defaults.switch]\nscheduler = 'weighted'\nweights = [1, 2]",
        3,
        "are eight",
    ),
    (
        "[defaults.switch]\nscheduler = 'weighted'\nweights = [1,1,0,1,1,1,1,1]",
        3,
        "priority 2 has weight 0",
    ),
    ("[defaults.switch]\nmark_on = 'x'", 2, "there are dequeue"),
    (
        "[[set.link]]\nends = ['h0', 's0']\ndown = [{ from = '2ms', until = '1ms' }]",
        3,
        "from is below until",
    ),
    (
        "[[set.link]]\nends = ['h0', 's0']\ndown = [{ from = '1ms', until = '3ms' },\n{ from = '2ms', until = '4ms' }]",
        4,
        "overlap",
    ),
    (
        "[[set.link]]\nends = ['h0', 's0']\nflap = { from = '2s', until = '1s', every = '1ms', down = '1us' }",
        3,
        "from is below until",
    ),
    (
        "[defaults.switch]\nstrict = [6]",
        2,
        "strict names priorities before the others",
    ),
    (
        "[[switch]]\nname = 's1'\n[[host]]\nname = 'x'\n[[link]]\nends = ['h0', 's1']\n[[link]]\nends = ['x', 's1']",
        4,
        "lead from h1 to x, and hosts forward nothing",
    ),
    (
        "[[set.link]]\nends = ['h0', 's0']\nflap = { from = 0, until = '1s', every = '1ns', down = '1ps' }",
        3,
        "times down",
    ),
    (
        "[[set.link]]\nends = ['h0', 's0']\nfaults.drop = '200%'",
        3,
        "is no share",
    ),
    ("[qos.dscp_to_priority]\n64 = 1", 2, "is no DSCP"),
    ("[qos.dscp_to_priority]\n1 = 9", 2, "is no priority"),
    ("[addresses]\nipv4 = '10.0.0.1'", 2, "the network of a /16"),
];

#[test]
fn each_mistake_is_refused_with_its_line() {
    let before = LINKED.lines().count();
    let linked = MISTAKES_LINKED
        .iter()
        .map(|(text, line, reason)| (format!("{LINKED}{text}"), before + line, reason));
    let alone = MISTAKES
        .iter()
        .map(|(text, line, reason)| ((*text).to_owned(), *line, reason));
    for (text, line, reason) in alone.chain(linked) {
        let error = read(&text).expect_err(&text);
        assert!(error.reason.contains(reason), "{text}\n{error}");
        assert_eq!(error.line.unwrap_or(0), line, "{text}\n{error}");
    }
}

#[test]
fn flow_control_before_marking_is_a_warning() {
    // The reference's 8:1 case with 1 MB: 5271 pauses without DCQCN, 4836 with it.
    let fabric = read(
        "defaults.link.rate = '100Gb/s'\n\ndefaults.switch.buffer = '1MB'\ngenerate = { kind = 'incast', senders = 8 }",
    )
    .unwrap();
    let [warning] = &fabric.warnings[..] else {
        panic!("{:?}", fabric.warnings)
    };
    assert!(
        warning.reason.contains("before marking begins at 400000"),
        "{warning}"
    );
    assert_eq!(warning.line, Some(3));
}
