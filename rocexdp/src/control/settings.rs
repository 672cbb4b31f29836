//! What the options mean: from text to what the node and the receiver are opened with.
//!
//! What can't be meant is a [`UsageError`] that names the option; it comes before anything is opened.

use std::{fmt, sync::Arc, time::Duration};

use anyhow::Context;
use rocexdp_proto::{
    ClassService, MAX_PATHS, Marking, SelectiveRepeat, dcqcn::Params, ids::PathMtu,
};

use super::{
    config::{Assignment, RunOptions},
    confine::ReceiveDir,
    copy::receive::ReceivePolicy,
    token::Token,
    units::ByteSize,
};
use crate::engine::PfcConfig;
use crate::node::{NodeConfig, RingConfig};

/// Largest file received unless said otherwise.
const DEFAULT_MAX_SIZE: ByteSize = ByteSize(64 << 30);

/// Options that can't be meant. The program ends with exit code 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(pub String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

fn usage<T>(text: impl Into<String>) -> Result<T, UsageError> {
    Err(UsageError(text.into()))
}

/// The node's configuration.
///
/// # Errors
/// [`UsageError`]: no interface, or a value that can't be.
pub fn node_config(options: &RunOptions) -> Result<NodeConfig, UsageError> {
    let Some(iface) = &options.iface else {
        return usage("no interface: say which with --iface (see: ip link)");
    };
    let mut config = NodeConfig::new(iface);
    if let Some(mode) = options.mode {
        config.attach = mode;
    }
    if let Some(wish) = options.zero_copy {
        config.zero_copy = wish.0;
    }
    if let Some(bytes) = options.path_mtu {
        let Some(mtu) = PathMtu::from_bytes(bytes) else {
            return usage(format!(
                "--path-mtu {bytes}: must be 256, 512, 1024, 2048 or 4096"
            ));
        };
        config.path_mtu = Some(mtu);
    }
    config.addresses.clone_from(&options.address);
    match options.vlan {
        Some(vlan @ 1..=4094) => config.vlan = Some(vlan),
        Some(vlan) => return usage(format!("--vlan {vlan}: must be 1 to 4094")),
        None => {}
    }
    config.shared_addresses = options.shared_addresses;
    config.log_refusals = options.log_refusals;
    if let Some(slots) = options.slots {
        if !slots.is_power_of_two() || !(64..=65536).contains(&slots) {
            return usage(format!(
                "--slots {slots}: must be a power of two from 64 to 65536"
            ));
        }
        config.slots = slots;
    }
    let ring = |name: &str, given: Option<u32>, default: u32| match given {
        Some(entries) if !entries.is_power_of_two() || !(64..=65536).contains(&entries) => usage(
            format!("--{name} {entries}: must be a power of two from 64 to 65536"),
        ),
        given => Ok(given.unwrap_or(default)),
    };
    config.rings = RingConfig {
        rx: ring("rx-ring", options.rx_ring, config.rings.rx)?,
        tx: ring("tx-ring", options.tx_ring, config.rings.tx)?,
    };
    if let Some(poll) = options.poll {
        config.poll = poll;
    }
    transport(options, &mut config)?;
    classes(options, &mut config)?;
    Ok(config)
}

fn transport(options: &RunOptions, config: &mut NodeConfig) -> Result<(), UsageError> {
    let endpoint = &mut config.endpoint;
    endpoint.line_rate = options.line_rate;
    if options.port_rate.is_some_and(|rate| rate.as_bps() == 0) {
        return usage(
            "--port-rate 0: a port that may send nothing; leave the option away for one without a limit",
        );
    }
    endpoint.port_rate = options.port_rate;
    if let Some(wish) = options.icrc {
        endpoint.icrc = wish.0;
    }
    endpoint.cnp_enabled = !options.no_cnp;
    match options.dscp {
        Some(dscp @ 0..=63) => endpoint.data_dscp = dscp,
        Some(dscp) => return usage(format!("--dscp {dscp}: must be 0 to 63")),
        None => {}
    }
    match options.window {
        Some(packets @ 1..=65536) => endpoint.max_inflight_packets = packets,
        Some(packets) => return usage(format!("--window {packets}: must be 1 to 65536 packets")),
        None => {}
    }
    let floor = options.adaptive_timeout.map(|span| span.0);
    if floor.is_some_and(|floor| floor.is_zero()) {
        return usage("--adaptive-timeout 0: the least timeout must be longer than 0, as in 1ms");
    }
    endpoint.adaptive_timeout_floor = floor;
    let mut params = Params {
        rp: endpoint.rp.clone(),
        np: endpoint.np.clone(),
    };
    for assignment in &options.cc {
        params
            .set(&assignment.name, &assignment.value)
            .map_err(|error| UsageError(format!("--cc {}: {error}", assignment.name)))?;
    }
    params
        .validate(endpoint.line_rate)
        .map_err(|error| UsageError(format!("--cc: {error}")))?;
    if let Some(control) = options.rate_control {
        control
            .validate(endpoint.line_rate)
            .map_err(|error| UsageError(format!("--rate-control {control}: {error}")))?;
        endpoint.rate_control = control;
    }
    endpoint.rp = params.rp;
    endpoint.np = params.np;
    Ok(())
}

/// Traffic classes and pauses.
fn classes(options: &RunOptions, config: &mut NodeConfig) -> Result<(), UsageError> {
    match options.pcp {
        Some(pcp @ 0..=7) => config.pcp = pcp,
        Some(pcp) => return usage(format!("--pcp {pcp}: must be 0 to 7")),
        None => {}
    }
    let data_pcp = config.pcp;
    let classes = &mut config.endpoint.classes;
    if let Some(trust) = options.trust {
        classes.trust = trust.0;
    }
    classes.answers = options.ack_dscp.map(|marking| Marking {
        dscp: marking.dscp,
        pcp: marking.pcp.unwrap_or(data_pcp),
    });
    for Assignment { name, value } in &options.dscp_priority {
        let dscp = name.parse::<usize>().ok();
        let place = dscp.and_then(|dscp| classes.priority_of_dscp.get_mut(dscp));
        let priority = value.parse::<u8>().ok().filter(|p| *p < 8);
        let (Some(place), Some(priority)) = (place, priority) else {
            return usage(format!(
                "--dscp-priority {name}={value}: must be a DSCP of 0 to 63 and a priority of 0 to 7, as in 26=3"
            ));
        };
        *place = priority;
    }
    for Assignment { name, value } in &options.class {
        let priority = name.parse::<usize>().ok();
        let place = priority.and_then(|p| classes.service.get_mut(p));
        let service = match value.as_str() {
            "strict" => Some(ClassService::Strict),
            weight => weight.parse().ok().map(ClassService::Weighted),
        };
        let (Some(place), Some(service)) = (place, service) else {
            return usage(format!(
                "--class {name}={value}: must be a priority of 0 to 7 and \"strict\" or a weight of 1 to 65535, as in 3=50"
            ));
        };
        *place = service;
    }
    config.pfc = PfcConfig {
        honour: !options.no_pfc,
        send: options.send_pfc.map_or(0, |priorities| priorities.0),
    };
    Ok(())
}

/// Whether the options about receiving go together.
///
/// # Errors
/// [`UsageError`]: receiving without an address, or with neither a token nor the word that none is wanted.
pub fn check_receiving(options: &RunOptions) -> Result<(), UsageError> {
    let receiving = options.receive_dir.is_some();
    if receiving && options.listen.is_none() {
        return usage(
            "--receive-dir needs --listen ADDRESS: say on which address peers may connect",
        );
    }
    if options.no_token && options.token_file.is_some() {
        return usage("--no-token and --token-file exclude each other");
    }
    if receiving && options.token_file.is_none() && !options.no_token {
        return usage(
            "--receive-dir needs --token-file FILE, or --no-token to receive from anyone who reaches the address",
        );
    }
    if !receiving && (options.max_size.is_some() || options.allow_overwrite) {
        return usage("--max-size and --allow-overwrite need --receive-dir");
    }
    Ok(())
}

/// What peers may do: opens the receive directory and reads the token.
///
/// # Errors
/// As [`check_receiving`]; the directory can't be opened, the token can't be read.
pub fn receive_policy(options: &RunOptions) -> anyhow::Result<ReceivePolicy> {
    check_receiving(options)?;
    let dir = match &options.receive_dir {
        Some(path) => Some(
            ReceiveDir::open(path)
                .map(Arc::new)
                .with_context(|| format!("receive directory {}", path.display()))?,
        ),
        None => None,
    };
    let token = options
        .token_file
        .as_deref()
        .map(Token::from_file)
        .transpose()?;
    Ok(ReceivePolicy {
        dir,
        token,
        max_size: options.max_size.unwrap_or(DEFAULT_MAX_SIZE).0,
        overwrite: options.allow_overwrite,
        selective: !options.no_selective,
        linger: linger(options),
    })
}

/// Selective repeat over so many paths; 0: none.
#[must_use]
pub fn selective(paths: u8) -> Option<SelectiveRepeat> {
    let paths = paths.min(MAX_PATHS);
    (paths > 0).then_some(SelectiveRepeat { paths })
}

/// How long QPs of finished copies stay.
#[must_use]
pub fn linger(options: &RunOptions) -> Duration {
    options.linger.map_or(Duration::ZERO, |span| span.0)
}

#[cfg(test)]
mod tests {
    use rocexdp_proto::RateControl;

    use super::*;

    fn options(text: &str) -> RunOptions {
        toml::from_str(text).unwrap()
    }

    fn refused(text: &str) -> String {
        let options = options(text);
        let node = node_config(&options).map(|_| ());
        node.and_then(|()| check_receiving(&options)).unwrap_err().0
    }

    #[test]
    fn values_out_of_range_name_their_option() {
        for (text, part) in [
            ("", "--iface"),
            ("path-mtu = 1500", "--path-mtu 1500"),
            ("vlan = 4095", "--vlan 4095"),
            ("vlan = 0", "--vlan 0"),
            ("port-rate = \"0\"", "--port-rate 0"),
            ("slots = 1000", "--slots 1000"),
            ("rx-ring = 100", "--rx-ring 100"),
            ("tx-ring = 131072", "--tx-ring 131072"),
            ("dscp = 64", "--dscp 64"),
            ("window = 0", "--window 0"),
            ("pcp = 8", "--pcp 8"),
            ("[dscp-priority]\n64 = 1", "--dscp-priority 64=1"),
            ("[dscp-priority]\n26 = 8", "--dscp-priority 26=8"),
            ("[class]\n8 = 1", "--class 8=1"),
            ("[class]\n3 = 0", "--class 3=0"),
            ("[class]\n3 = \"fast\"", "--class 3=fast"),
            ("adaptive-timeout = \"0s\"", "--adaptive-timeout 0"),
            (
                "rate-control = \"dcqcn-window=20us\"",
                "dcqcn-window needs the line rate: give it (--line-rate)",
            ),
            ("[cc]\nrpg_hai = 5", "--cc rpg_hai"),
            ("[cc]\nrpg_gd = \"many\"", "--cc rpg_gd"),
        ] {
            let text = if text.is_empty() {
                text.to_owned()
            } else {
                format!("iface = \"x\"\n{text}")
            };
            let error = refused(&text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn receiving_needs_an_address_and_a_word_about_the_token() {
        let base = "iface = \"x\"\nreceive-dir = \"/srv/in\"\n";
        assert!(refused(base).contains("--listen"));
        let listening = format!("{base}listen = \"10.0.0.1\"\n");
        assert!(refused(&listening).contains("--token-file"));
        let both = format!("{listening}token-file = \"t\"\nno-token = true\n");
        assert!(refused(&both).contains("exclude"));
        assert!(check_receiving(&options(&format!("{listening}no-token = true\n"))).is_ok());
        assert!(refused("iface = \"x\"\nallow-overwrite = true\n").contains("--receive-dir"));
    }

    #[test]
    fn classes_and_pauses_reach_the_endpoint_and_the_engine() {
        let config = node_config(&options(
            "iface = \"x\"\npcp = 3\nack-dscp = \"46,5\"\nsend-pfc = \"3,4\"\nno-pfc = true\n[dscp-priority]\n26 = 3\n[class]\n3 = 50\n6 = \"strict\"\n",
        ))
        .unwrap();
        let classes = &config.endpoint.classes;
        assert_eq!(classes.priority_of_dscp[26], 3);
        assert_eq!(classes.service[6], ClassService::Strict);
        assert_eq!(
            classes.service[3],
            ClassService::Weighted(50.try_into().unwrap())
        );
        assert_eq!(classes.answers, Some(Marking { dscp: 46, pcp: 5 }));
        assert_eq!(config.pcp, 3);
        let pfc = PfcConfig {
            honour: false,
            send: 0b1_1000,
        };
        assert_eq!(config.pfc, pfc);
        for bad in [
            "ack-dscp = \"64\"",
            "send-pfc = \"8\"",
            "send-pfc = \"\"",
            "trust = \"port\"",
        ] {
            assert!(toml::from_str::<RunOptions>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn dcqcn_parameters_reach_the_endpoint() {
        let config = node_config(&options(
            "iface = \"x\"\nline-rate = \"25G\"\n[cc]\nmin_time_between_cnps = 8\nrpg_threshold = 3\n",
        ))
        .unwrap();
        assert_eq!(config.endpoint.rp.rpg_threshold, 3);
        assert_eq!(config.endpoint.rate_control, RateControl::Dcqcn);
        assert_eq!(
            config.endpoint.np.min_time_between_cnps,
            Duration::from_micros(8)
        );
        assert_eq!(config.endpoint.line_rate.unwrap().as_bps(), 25_000_000_000);
    }
}
