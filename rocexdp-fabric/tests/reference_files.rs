//! The reference's files are read as its simulator reads them, and what can't be run is refused with file, line and reason.

use rocexdp_fabric::reference::files::NodeId;
use rocexdp_fabric::reference::{Case, Config, FileError};
use rocexdp_proto::time::Rate;

const CONFIG: &str = include_str!("data/reference/mlx100_2to1/config.txt");
const TOPOLOGY: &str = include_str!("data/reference/mlx100_2to1/topology.txt");
const FLOWS: &str = include_str!("data/reference/mlx100_2to1/flow.txt");

fn case(config: &str, topology: &str, flows: &str) -> Result<Case, FileError> {
    let config = Config::read("config.txt", config)?;
    Case::new(
        "mlx100_2to1",
        config,
        ("topology.txt", topology),
        ("flow.txt", flows),
    )
}

/// The configuration with one line changed, by its key; an empty `line` takes it out.
fn with(key: &str, line: &str) -> String {
    let mut found = false;
    let lines = CONFIG.lines().map(|l| {
        if l.split(' ').next() == Some(key) {
            found = true;
            line
        } else {
            l
        }
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    assert!(found, "{key}");
    text
}

#[test]
fn a_case_is_what_its_files_say() -> Result<(), FileError> {
    let case = case(CONFIG, TOPOLOGY, FLOWS)?;
    assert_eq!((case.nodes.count, case.nodes.links.len()), (4, 3));
    assert!(case.nodes.is_switch(NodeId(3)));
    let [first, second] = case.flows[..] else {
        panic!("two flows")
    };
    assert_eq!((first.source, first.destination), (NodeId(0), NodeId(2)));
    assert_eq!((first.size, first.start), (4_000_000_000, 2_000_000_000));
    assert_eq!((first.source_port, second.source_port), (10_000, 10_000));
    let path = case.paths[&(NodeId(0), NodeId(2))];
    // Two links of 1 us there and back, 1000 B at 100 Gb/s on each.
    assert_eq!(
        (path.base_rtt, path.bottleneck),
        (4_160, Rate::from_gbps(100))
    );
    assert_eq!(path.bdp(), 52_000);
    // late/mlx100_leave/fct.txt.
    assert_eq!(path.ideal_fct(250_000_000, 1_000), 20_964_160);
    let rp = case.rp_params();
    assert_eq!(rp.rpg_time_reset.as_micros(), 300);
    assert_eq!(rp.ewma_gain, Some(1.0 / 256.0));
    Ok(())
}

#[test]
fn switches_are_set_up_as_the_reference_does() -> Result<(), FileError> {
    let case = case(CONFIG, TOPOLOGY, FLOWS)?;
    let numbering = case.numbering();
    let topology = case.topology(&numbering);
    let config = &topology.switches[0].config;
    assert_eq!(config.ports.len(), 3);
    assert_eq!(config.buffer, 32 * 1024 * 1024);
    let port = &config.ports[0];
    // Three times what 1 us at 100 Gb/s holds.
    assert_eq!((port.headroom, port.alpha), (37_500, Some(0.125)));
    let ecn = port.ecn[3].expect("data is marked");
    assert_eq!((ecn.kmin, ecn.kmax, ecn.pmax), (400_000, 1_600_000, 0.2));
    assert_eq!(port.ecn[0], None);
    let lossless = config.pfc.as_ref().expect("PFC is on").priorities;
    assert_eq!(lossless.map(u8::from), [0, 0, 0, 1, 0, 0, 0, 0]);
    Ok(())
}

#[test]
fn a_fast_port_may_take_more_of_the_buffer() -> Result<(), FileError> {
    let config = with("KMAX_MAP", "KMAX_MAP 2 100000000000 1600 25000000000 400 #")
        .replace(
            "KMIN_MAP 1 100000000000 400",
            "KMIN_MAP 2 100000000000 400 25000000000 100",
        )
        .replace(
            "PMAX_MAP 1 100000000000 0.2",
            "PMAX_MAP 2 100000000000 0.2 25000000000 0.2",
        );
    let topology = "4 2 3\n2 3\n0 2 25Gbps 1us 0\n1 3 25Gbps 1us 0\n2 3 100Gbps 1us 0";
    let flows = "1\n0 1 3 100 1000 2.0";
    let case = case(&config, topology, flows)?;
    let topology = case.topology(&case.numbering());
    let alphas = topology.switches[0].config.ports.iter().map(|p| p.alpha);
    // Twice 25 and twice that are 100: two shifts less.
    assert_eq!(alphas.collect::<Vec<_>>(), [Some(0.125), Some(0.5)]);
    assert_eq!(
        case.paths[&(NodeId(0), NodeId(1))].bottleneck,
        Rate::from_gbps(25)
    );
    Ok(())
}

#[test]
fn what_is_not_here_is_refused_by_name() {
    let refused = |text: &str| case(text, TOPOLOGY, FLOWS).unwrap_err().to_string();
    for (mode, name) in [(3, "HPCC"), (7, "TIMELY"), (8, "DCTCP"), (10, "HPCC-PINT")] {
        let message = refused(&with("CC_MODE", &format!("CC_MODE {mode}")));
        assert!(
            message.starts_with(&format!("config.txt:11: CC_MODE {mode} ({name})")),
            "{message}"
        );
    }
    for (key, line, expected) in [
        ("CC_MODE", "CC_MODE 99", "unknown to the reference too"),
        (
            "INT_MULTI",
            "INT_MULTY 4",
            "config.txt:32: INT_MULTY is no key",
        ),
        ("INT_MULTI", "BYTE_COUNTER 4", "ns3-rdma"),
        ("INT_MULTI", "ENABLE_IRN 1", "ConWeave"),
        ("L2_BACK_TO_ZERO", "L2_BACK_TO_ZERO 1", "go-back-N"),
        ("L2_ACK_INTERVAL", "L2_ACK_INTERVAL 0", "no flow would end"),
        ("LINK_DOWN", "LINK_DOWN 5 0 1", "LINK_DOWN"),
        ("RP_TIMER", "", "config.txt: RP_TIMER is missing"),
        ("FLOW_FILE", "", "config.txt: FLOW_FILE is missing"),
        (
            "EWMA_GAIN",
            "EWMA_GAIN 2",
            "config.txt:16: EWMA_GAIN can't be \"2\"",
        ),
        ("RATE_AI", "RATE_AI fast", "as in 25Gbps"),
        (
            "KMIN_MAP",
            "KMIN_MAP 1 100000000000 1601",
            "KMIN_MAP has 1601 KB for 100000000000 b/s, above KMAX_MAP's 1600 KB",
        ),
        (
            "KMAX_MAP",
            "KMAX_MAP 1 25000000000 1600",
            "KMAX_MAP has no value for 100000000000 b/s, the rate of the link on line 3 of topology.txt",
        ),
        ("BUFFER_SIZE", "BUFFER_SIZE 0", "BUFFER_SIZE can't be"),
        ("MIN_RATE", "MIN_RATE 200Gbps", "above the line rate"),
        (
            "SIMULATOR_STOP_TIME",
            "SIMULATOR_STOP_TIME 1.0",
            "MON_START",
        ),
        ("MON_END", "MON_END 1000", "is not after MON_START"),
    ] {
        let message = refused(&with(key, line));
        assert!(message.contains(expected), "{line}: {message}");
    }
}

#[test]
fn a_bad_topology_is_refused_with_its_line() {
    for (topology, expected) in [
        (
            "",
            "topology.txt:1: the file ends where the number of nodes should stand",
        ),
        ("2 1 1\n2\n", "topology.txt:2: a switch can't be \"2\""),
        (
            "3 1 1\n2\n0 0 1Gbps 1us 0",
            "topology.txt:3: a link joins node 0 to itself",
        ),
        (
            "3 1 1\n2\n0 2 0Gbps 1us 0",
            "topology.txt:3: a link's rate can't be \"0Gbps\"",
        ),
        (
            "3 1 1\n2\n0 2 1Gbps soon 0",
            "topology.txt:3: a link's delay",
        ),
        (
            "3 1 2\n2\n0 2 1Gbps 1us 0\n2 0 1Gbps 1us 0",
            "topology.txt:4: nodes 2 and 0 are joined already, on line 3",
        ),
        (
            "3 1 1\n2\n0 2 1Gbps 1us 0",
            "topology.txt: node 1 has no link",
        ),
        (
            "4 2 3\n2 3\n0 2 1Gbps 1us 0\n1 2 1Gbps 1us 0\n0 3 1Gbps 1us 0",
            "topology.txt:5: host 0 has a second link",
        ),
        (
            "4 2 2\n2 3\n0 2 1Gbps 1us 0\n1 3 1Gbps 1us 0",
            "topology.txt: not connected: no links lead from node 0 to node 1",
        ),
        (
            "4 1 2\n3\n0 3 1Gbps 1us 0\n1 3 1Gbps 1us 0\n2 3 1Gbps 1us 0",
            "topology.txt:5: \"2\" stands after the last of 2 links",
        ),
    ] {
        let message = case(CONFIG, topology, FLOWS).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{topology:?}: {message}");
    }
}

#[test]
fn a_bad_flow_list_is_refused_with_its_line() {
    for (flows, expected) in [
        (
            "1\n0 3 3 100 1000 2.0",
            "flow.txt:2: a flow's destination is node 3, a switch",
        ),
        (
            "1\n0 0 3 100 1000 2.0",
            "flow.txt:2: host 0 sends to itself",
        ),
        (
            "1\n0 9 3 100 1000 2.0",
            "flow.txt:2: a flow's destination can't be \"9\"",
        ),
        (
            "1\n0 1 0 100 1000 2.0",
            "flow.txt:2: a flow's priority can't be \"0\"",
        ),
        (
            "1\n0 1 3 100 0 2.0",
            "flow.txt:2: a flow's size can't be \"0\"",
        ),
        (
            "1\n0 1 3 100 5000000000 2.0",
            "flow.txt:2: a flow's size can't be \"5000000000\"",
        ),
        (
            "2\n0 1 3 100 1000 2.0\n0 1 3 100 1000 1.0",
            "flow.txt:3: a flow starts before the one above it",
        ),
        (
            "2\n0 1 3 100 1000 2.0",
            "flow.txt:2: the file ends where a flow's source should stand",
        ),
        (
            "1\n0 1 3 100 1000 2.0\n0 1 3",
            "flow.txt:3: \"0\" stands after the last of 1 flows",
        ),
    ] {
        let message = case(CONFIG, TOPOLOGY, flows).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{flows:?}: {message}");
    }
}
