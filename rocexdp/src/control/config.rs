//! What `rocexdp run` is told, by options and by a TOML file.
//!
//! One struct is both the options and the file's keys, so that their names can't differ. An option on the command line goes
//! before the file; an unknown key is an error that names it. What the values mean is [`super::settings`]'s matter.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::Context;
use rocexdp_proto::{IcrcMode, RateControl, Trust, time::Rate};
use serde::{Deserialize, Deserializer, de};

use super::{
    address::MetricsAddr,
    exchange::DEFAULT_PORT,
    settings::UsageError,
    units::{ByteSize, Span, from_text},
};
use crate::{engine::PollPolicy, loader::AttachWish, xsk::ZeroCopy};

/// The options of `rocexdp run`, and the keys of its configuration file.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct RunOptions {
    /// Interface
    #[arg(long, value_name = "IF")]
    pub iface: Option<String>,
    /// TCP address of the exchange with peers; the port is 47910 unless given. Needed for receiving
    #[arg(long, value_name = "ADDR[:PORT]")]
    #[serde(deserialize_with = "from_text")]
    pub listen: Option<Listen>,
    /// Receive files into this directory, and nowhere else. Without it nothing is received
    #[arg(long, value_name = "DIR")]
    pub receive_dir: Option<PathBuf>,
    /// File whose first line is the token that peers must have
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Receive from anyone who reaches the address
    #[arg(long)]
    pub no_token: bool,
    /// Largest file received: 500M, 2G [default: 64G]
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "from_text")]
    pub max_size: Option<ByteSize>,
    /// Let a received file replace an existing one
    #[arg(long)]
    pub allow_overwrite: bool,
    /// Receive by go-back-N only, also from peers that can repeat selectively
    #[arg(long)]
    pub no_selective: bool,
    /// Control socket (default: /run/rocexdp/IF@NAMESPACE.sock)
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Group that may use the control socket [default: the owner only]
    #[arg(long, value_name = "NAME|GID")]
    pub group: Option<String>,
    /// Keep the QP of a finished copy for this long, so that its counters can be looked at [default: 0s]
    #[arg(long, value_name = "TIME")]
    #[serde(deserialize_with = "from_text")]
    pub linger: Option<Span>,

    /// Attach the XDP program in the driver, in generic mode, or as it goes [default: auto]
    #[arg(long, value_name = "auto|driver|generic")]
    #[serde(deserialize_with = "from_text")]
    pub mode: Option<AttachWish>,
    /// Let the driver use the packet memory itself [default: try]
    #[arg(long, value_name = "try|require|never")]
    #[serde(deserialize_with = "from_text")]
    pub zero_copy: Option<ZeroCopyWish>,
    /// Largest path MTU to use: 256, 512, 1024, 2048 or 4096 [default: what the interface carries]
    #[arg(long, value_name = "BYTES")]
    pub path_mtu: Option<u32>,
    /// Answer for this address only; may be repeated [default: all of the interface]
    #[arg(long, value_name = "ADDRESS")]
    pub address: Vec<IpAddr>,
    /// VLAN id of the frames, when the interface is not itself a VLAN device
    #[arg(long, value_name = "ID")]
    pub vlan: Option<u16>,
    /// Another RoCE stack uses the addresses too: pass packets for QPs that are not ours to the kernel
    #[arg(long)]
    pub shared_addresses: bool,
    /// Print each packet that XDP refuses, for debugging; the counters by reason are there without it
    #[arg(long)]
    pub log_refusals: bool,
    /// Places for QPs in the BPF maps, a power of two [default: 1024]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// Entries of each receive ring, a power of two [default: 4096]
    #[arg(long, value_name = "N")]
    pub rx_ring: Option<u32>,
    /// Entries of each send ring, a power of two [default: 2048]
    #[arg(long, value_name = "N")]
    pub tx_ring: Option<u32>,
    /// When workers sleep: never, after a short while, at once [default: adaptive]
    #[arg(long, value_name = "busy|adaptive|sleep")]
    #[serde(deserialize_with = "from_text")]
    pub poll: Option<PollPolicy>,
    /// Rate of the link, for DCQCN, where the device does not know it: 10G, 25G
    #[arg(long, value_name = "RATE")]
    #[serde(deserialize_with = "from_text")]
    pub line_rate: Option<Rate>,
    /// Send no more than this in all (each of several queues its equal share), where the link would lose or keep what is too much:
    /// virtual links, rented machines
    #[arg(long, value_name = "RATE")]
    #[serde(deserialize_with = "from_text")]
    pub port_rate: Option<Rate>,
    /// What decides how fast a QP sends: fixed, fixed=RATE, dcqcn, dcqcn-window=RTT, dcqcn-window=RTT,constant [default: dcqcn]
    #[arg(long, value_name = "NAME[=VALUE]")]
    #[serde(deserialize_with = "from_text")]
    pub rate_control: Option<RateControl>,
    /// A DCQCN parameter by its ConnectX name; may be repeated. In the file: the table "cc"
    #[arg(long, value_name = "NAME=VALUE")]
    #[serde(deserialize_with = "assignments")]
    pub cc: Vec<Assignment>,
    /// What happens to packets with a wrong ICRC; ignore is for peers that send none [default: check]
    #[arg(long, value_name = "check|ignore")]
    #[serde(deserialize_with = "from_text")]
    pub icrc: Option<IcrcWish>,
    /// Send no CNPs (some versions of Soft-RoCE mishandle them)
    #[arg(long)]
    pub no_cnp: bool,
    /// DSCP of data and acknowledgements, 0 to 63 [default: 0]
    #[arg(long, value_name = "DSCP")]
    pub dscp: Option<u8>,
    /// Priority of QPs' packets in VLAN tags, 0 to 7 [default: 0]
    #[arg(long, value_name = "PCP")]
    pub pcp: Option<u8>,
    /// DSCP of acknowledgements and other answers without data, and their priority in VLAN tags [default: those of the data]
    #[arg(long, value_name = "DSCP[,PCP]")]
    #[serde(deserialize_with = "from_text")]
    pub ack_dscp: Option<AnswerMarking>,
    /// What says which priority a QP has: its DSCP or its PCP [default: dscp]
    #[arg(long, value_name = "dscp|pcp")]
    #[serde(deserialize_with = "from_text")]
    pub trust: Option<TrustWish>,
    /// Priority of a DSCP; may be repeated. In the file: the table "dscp-priority" [default: DSCP / 8]
    #[arg(long, value_name = "DSCP=PRIORITY")]
    #[serde(deserialize_with = "assignments")]
    pub dscp_priority: Vec<Assignment>,
    /// How a priority is served: strict, or by its weight among the others; may be repeated. In the file: the table
    /// "class" [default: weight 1 each]
    #[arg(long, value_name = "PRIORITY=strict|WEIGHT")]
    #[serde(deserialize_with = "assignments")]
    pub class: Vec<Assignment>,
    /// Ignore pause frames
    #[arg(long)]
    pub no_pfc: bool,
    /// Send pause frames of these priorities when packets come faster than they are taken; not where the NIC does
    #[arg(long, value_name = "PRIORITY,...")]
    #[serde(deserialize_with = "from_text")]
    pub send_pfc: Option<Priorities>,
    /// Packets that a QP may have unacknowledged [default: 128]
    #[arg(long, value_name = "PACKETS")]
    pub window: Option<u32>,
    /// Let the ACK timeout follow the measured round trips, down to this: 1ms, 20ms [default: the connection's own stays]
    #[arg(long, value_name = "LEAST")]
    #[serde(deserialize_with = "from_text")]
    pub adaptive_timeout: Option<Span>,

    /// Serve metrics for Prometheus on this address; the port is 47911 unless given
    #[arg(long, value_name = "ADDR[:PORT]")]
    #[serde(deserialize_with = "from_text")]
    pub metrics: Option<MetricsAddr>,
    /// QPs with metrics of their own, the busiest; the others are counted together [default: 20]
    #[arg(long, value_name = "N")]
    pub metrics_top: Option<usize>,
}

impl RunOptions {
    /// The configuration file's.
    ///
    /// # Errors
    /// The file can't be read; it is no TOML; a key is unknown, or a value is none.
    pub fn from_file(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("configuration file {}", path.display()))?;
        toml::from_str(&text).map_err(|error| {
            UsageError(format!("configuration file {}: {error}", path.display())).into()
        })
    }

    /// These, and for what they do not say those of `file`.
    #[must_use]
    pub fn over(self, file: Self) -> Self {
        let list = |own: Vec<IpAddr>, other| if own.is_empty() { other } else { own };
        // The command line's assignments come later, so they win name by name.
        let both = |file: Vec<Assignment>, own| file.into_iter().chain(own).collect();
        let cc = both(file.cc, self.cc);
        Self {
            iface: self.iface.or(file.iface),
            listen: self.listen.or(file.listen),
            receive_dir: self.receive_dir.or(file.receive_dir),
            token_file: self.token_file.or(file.token_file),
            no_token: self.no_token || file.no_token,
            max_size: self.max_size.or(file.max_size),
            allow_overwrite: self.allow_overwrite || file.allow_overwrite,
            no_selective: self.no_selective || file.no_selective,
            socket: self.socket.or(file.socket),
            group: self.group.or(file.group),
            linger: self.linger.or(file.linger),
            mode: self.mode.or(file.mode),
            zero_copy: self.zero_copy.or(file.zero_copy),
            path_mtu: self.path_mtu.or(file.path_mtu),
            address: list(self.address, file.address),
            vlan: self.vlan.or(file.vlan),
            shared_addresses: self.shared_addresses || file.shared_addresses,
            log_refusals: self.log_refusals || file.log_refusals,
            slots: self.slots.or(file.slots),
            rx_ring: self.rx_ring.or(file.rx_ring),
            tx_ring: self.tx_ring.or(file.tx_ring),
            poll: self.poll.or(file.poll),
            line_rate: self.line_rate.or(file.line_rate),
            port_rate: self.port_rate.or(file.port_rate),
            rate_control: self.rate_control.or(file.rate_control),
            cc,
            icrc: self.icrc.or(file.icrc),
            no_cnp: self.no_cnp || file.no_cnp,
            dscp: self.dscp.or(file.dscp),
            pcp: self.pcp.or(file.pcp),
            ack_dscp: self.ack_dscp.or(file.ack_dscp),
            trust: self.trust.or(file.trust),
            dscp_priority: both(file.dscp_priority, self.dscp_priority),
            class: both(file.class, self.class),
            no_pfc: self.no_pfc || file.no_pfc,
            send_pfc: self.send_pfc.or(file.send_pfc),
            window: self.window.or(file.window),
            adaptive_timeout: self.adaptive_timeout.or(file.adaptive_timeout),
            metrics: self.metrics.or(file.metrics),
            metrics_top: self.metrics_top.or(file.metrics_top),
        }
    }
}

/// Where the exchange listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen(pub SocketAddr);

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bare = text
            .strip_prefix('[')
            .and_then(|t| t.strip_suffix(']'))
            .unwrap_or(text);
        let address = text.parse().or_else(|_| {
            bare.parse()
                .map(|ip: IpAddr| SocketAddr::new(ip, DEFAULT_PORT))
        });
        address.map(Self).map_err(|_| {
            format!("{text:?} is no address to listen on, such as 10.0.0.2, 10.0.0.2:47910 or [fd00::2]:47910")
        })
    }
}

/// `NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Before the first `=`.
    pub name: String,
    /// Behind it.
    pub value: String,
}

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => Ok(Self {
                name: name.trim().to_owned(),
                value: value.trim().to_owned(),
            }),
            _ => Err(format!("{text:?} is not of the form NAME=VALUE")),
        }
    }
}

/// A table of names and values.
fn assignments<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Assignment>, D::Error> {
    toml::Table::deserialize(deserializer)?
        .into_iter()
        .map(|(name, value)| {
            let value = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Float(number) => number.to_string(),
                toml::Value::Boolean(flag) => flag.to_string(),
                _ => {
                    let text = format!("cc.{name} must be a text, a number or a boolean");
                    return Err(de::Error::custom(text));
                }
            };
            Ok(Assignment { name, value })
        })
        .collect()
}

/// [`ZeroCopy`] as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroCopyWish(pub ZeroCopy);

impl FromStr for ZeroCopyWish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "try" => Ok(Self(ZeroCopy::Try)),
            "require" => Ok(Self(ZeroCopy::Require)),
            "never" => Ok(Self(ZeroCopy::Never)),
            _ => Err(unknown(text, "try, require or never")),
        }
    }
}

/// [`Trust`] as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustWish(pub Trust);

impl FromStr for TrustWish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "dscp" => Ok(Self(Trust::Dscp)),
            "pcp" => Ok(Self(Trust::Pcp)),
            _ => Err(unknown(text, "dscp or pcp")),
        }
    }
}

/// How answers without data are marked; without a PCP that of the data stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerMarking {
    /// DSCP.
    pub dscp: u8,
    /// Priority in VLAN tags.
    pub pcp: Option<u8>,
}

impl FromStr for AnswerMarking {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (dscp, pcp) = match text.split_once(',') {
            Some((dscp, pcp)) => (dscp, Some(pcp)),
            None => (text, None),
        };
        let number = |text: &str, most: u8| text.trim().parse().ok().filter(|n| *n <= most);
        let pcp = pcp.map(|pcp| number(pcp, 7).ok_or(()));
        match (number(dscp, 63), pcp.transpose()) {
            (Some(dscp), Ok(pcp)) => Ok(Self { dscp, pcp }),
            _ => Err(format!(
                "{text:?} is no DSCP of 0 to 63, or one and a priority of 0 to 7, as in 46 or 46,5"
            )),
        }
    }
}

/// A set of priorities, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priorities(pub u8);

impl FromStr for Priorities {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bit = |n: &str| n.trim().parse::<u8>().ok().filter(|n| *n < 8);
        text.split(',')
            .try_fold(0, |bits, n| bit(n).map(|n| bits | 1 << n))
            .map(Self)
            .ok_or_else(|| format!("{text:?} is no list of priorities of 0 to 7, as in 3 or 3,4"))
    }
}

/// [`IcrcMode`] as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcrcWish(pub IcrcMode);

impl FromStr for IcrcWish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "check" => Ok(Self(IcrcMode::Check)),
            "ignore" => Ok(Self(IcrcMode::Ignore)),
            _ => Err(unknown(text, "check or ignore")),
        }
    }
}

fn unknown(text: &str, known: impl fmt::Display) -> String {
    format!("{text:?} is unknown: use {known}")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: RunOptions,
    }

    fn line(text: &str) -> RunOptions {
        Line::try_parse_from(text.split_whitespace())
            .unwrap()
            .options
    }

    fn file(text: &str) -> RunOptions {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn the_command_line_goes_before_the_file() {
        let merged = line("run --iface eth1 --path-mtu 1024 --cc rpg_hai_rate=50 --address 10.0.0.1").over(file(
            "iface = \"eth0\"\nmax-size = \"1G\"\nlisten = \"10.0.0.2\"\naddress = [\"10.0.0.9\"]\nno-token = true\n\
             path-mtu = 4096\nlinger = 2\n[cc]\nrpg_hai_rate = 10\nclamp_tgt_rate = true\n",
        ));
        assert_eq!(merged.iface.as_deref(), Some("eth1"));
        assert_eq!(merged.path_mtu, Some(1024));
        assert_eq!(merged.max_size, Some(ByteSize(1 << 30)));
        assert_eq!(merged.listen.unwrap().0.to_string(), "10.0.0.2:47910");
        assert_eq!(merged.address, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(merged.linger.unwrap().0.as_secs(), 2);
        assert!(merged.no_token);
        // The last assignment of a name is in force.
        let last = merged
            .cc
            .iter()
            .rfind(|a| a.name == "rpg_hai_rate")
            .unwrap();
        assert_eq!(last.value, "50");
        assert!(
            merged
                .cc
                .iter()
                .any(|a| a.name == "clamp_tgt_rate" && a.value == "true")
        );
    }

    #[test]
    fn an_unknown_key_is_named() {
        let error = toml::from_str::<RunOptions>("iface = \"eth0\"\nrecieve-dir = \"/x\"\n");
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("recieve-dir") && error.contains("receive-dir"),
            "{error}"
        );
    }

    #[test]
    fn a_bad_value_is_named() {
        for (text, part) in [
            ("max-size = \"big\"", "is no size"),
            ("listen = \"somewhere\"", "no address to listen on"),
            ("mode = \"native\"", "native"),
            ("icrc = \"off\"", "check or ignore"),
            ("path-mtu = \"x\"", "path-mtu"),
            ("[cc]\nrpg_gd = [1]", "cc.rpg_gd"),
        ] {
            let error = toml::from_str::<RunOptions>(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn every_option_is_a_key_of_the_file() {
        use clap::CommandFactory;

        for arg in Line::command().get_arguments() {
            let Some(name) = arg.get_long() else { continue };
            // A value of a wrong type is an error about the value, not about the key.
            let error = toml::from_str::<RunOptions>(&format!("{name} = [[1]]"));
            let error = error.unwrap_err().to_string();
            assert!(!error.contains("unknown field"), "{name}: {error}");
        }
    }

    #[test]
    fn an_address_to_listen_on_may_leave_the_port_out() {
        for (text, address) in [
            ("10.0.0.2", "10.0.0.2:47910"),
            ("10.0.0.2:1", "10.0.0.2:1"),
            ("fd00::2", "[fd00::2]:47910"),
            ("[fd00::2]", "[fd00::2]:47910"),
            ("[fd00::2]:1", "[fd00::2]:1"),
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().0.to_string(), address);
        }
        for bad in ["", "10.0.0", "10.0.0.2:", "10.0.0.2:99999", "host:1"] {
            assert!(bad.parse::<Listen>().is_err(), "{bad:?}");
        }
    }
}
