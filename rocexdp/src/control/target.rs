//! `PEER:PATH` of the command line: where a file is copied to.
//!
//! `host:path`, `host:port:path`, `[v6]:path`, `[v6%interface]:port:path`, where host is an IPv4 address or a name. What
//! stands behind the first colon is a port if it is a number and another colon follows; `./7:x` is the file `7:x`.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs},
    str::FromStr,
};

use super::exchange::{DEFAULT_PORT, is_link_local};

/// A peer and a path there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The peer.
    pub host: Host,
    /// TCP port of the exchange.
    pub port: u16,
    /// Path below the peer's receive directory; may be empty or end in `/`: see [`Target::path_for`].
    pub path: String,
}

/// A peer as named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// IPv4 address.
    V4(Ipv4Addr),
    /// IPv6 address, with the interface of a link-local one.
    V6(Ipv6Addr, Option<String>),
    /// A name to look up.
    Name(String),
}

/// Why a text is no [`Target`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetError(String);

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (expected HOST:PATH, HOST:PORT:PATH, [IPv6]:PATH or [IPv6]:PORT:PATH)",
            self.0
        )
    }
}

impl std::error::Error for TargetError {}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let bad = |why: String| Err(TargetError(why));
        let (host, rest) = if let Some(inner) = text.strip_prefix('[') {
            let Some((address, rest)) = inner.split_once(']') else {
                return bad("the bracket of the IPv6 address is not closed".to_owned());
            };
            let (address, zone) = match address.split_once('%') {
                Some((address, zone)) if !zone.is_empty() => (address, Some(zone.to_owned())),
                Some(_) => return bad("no interface behind %".to_owned()),
                None => (address, None),
            };
            let Ok(v6) = address.parse() else {
                return bad(format!("{address:?} is no IPv6 address"));
            };
            let Some(rest) = rest.strip_prefix(':') else {
                return bad("no path behind the address".to_owned());
            };
            (Host::V6(v6, zone), rest)
        } else {
            let Some((host, rest)) = text.split_once(':') else {
                return bad(format!("{text:?} has no colon"));
            };
            let host = match host.parse() {
                Ok(v4) => Host::V4(v4),
                Err(_) if is_name(host) => Host::Name(host.to_owned()),
                Err(_) => return bad(format!("{host:?} is neither an address nor a name")),
            };
            if text.parse::<Ipv6Addr>().is_ok() || rest.starts_with(':') {
                return bad("an IPv6 address needs brackets".to_owned());
            }
            (host, rest)
        };
        let (port, path) = match rest.split_once(':') {
            Some((number, path))
                if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) =>
            {
                match number.parse() {
                    Ok(port) if port != 0 => (port, path),
                    _ => return bad(format!("{number} is no TCP port")),
                }
            }
            _ => (DEFAULT_PORT, rest),
        };
        Ok(Self {
            host,
            port,
            path: path.to_owned(),
        })
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 253
        && !text.starts_with('-')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
        // A name that ends in a number is an IPv4 address mistyped.
        && !text.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()))
}

impl Target {
    /// The socket address. Looks the name up, and the number of the interface that a link-local address needs by
    /// `index_of`, with `iface` as the interface when the address names none. Blocks.
    ///
    /// # Errors
    /// The name is unknown, or a link-local address has no interface: a text that says which.
    pub fn resolve(
        &self,
        iface: Option<&str>,
        index_of: impl FnOnce(&str) -> anyhow::Result<u32>,
    ) -> anyhow::Result<SocketAddr> {
        match &self.host {
            Host::V4(v4) => Ok(SocketAddr::new(IpAddr::V4(*v4), self.port)),
            Host::V6(v6, zone) => {
                let scope = match zone.as_deref().or(iface.filter(|_| is_link_local(*v6))) {
                    Some(name) => index_of(name)?,
                    None if is_link_local(*v6) => anyhow::bail!(
                        "{v6} is a link-local address: say on which interface, as [{v6}%eth1] or with --iface"
                    ),
                    None => 0,
                };
                Ok(SocketAddrV6::new(*v6, self.port, 0, scope).into())
            }
            Host::Name(name) => (name.as_str(), self.port)
                .to_socket_addrs()
                .map_err(|error| anyhow::anyhow!("peer {name}: {error}"))?
                .next()
                .ok_or_else(|| anyhow::anyhow!("peer {name} has no address")),
        }
    }

    /// The path for a file of this name: when the target's path names a directory (ends in `/`, or is empty), the file
    /// keeps its name in it.
    #[must_use]
    pub fn path_for(&self, file_name: &str) -> String {
        if self.path.is_empty() || self.path.ends_with('/') {
            format!("{}{file_name}", self.path)
        } else {
            self.path.clone()
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::V4(v4) => write!(f, "{v4}")?,
            Host::V6(v6, None) => write!(f, "[{v6}]")?,
            Host::V6(v6, Some(zone)) => write!(f, "[{v6}%{zone}]")?,
            Host::Name(name) => f.write_str(name)?,
        }
        write!(f, ":{}:{}", self.port, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Target {
        text.parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn addresses_ports_and_paths_are_told_apart() {
        let plain = parse("10.0.0.2:dir/file");
        assert_eq!(
            (plain.port, plain.path.as_str()),
            (DEFAULT_PORT, "dir/file")
        );
        let port = parse("10.0.0.2:5000:file:with:colons");
        assert_eq!((port.port, port.path.as_str()), (5000, "file:with:colons"));
        let v6 = parse("[fd00::2]:5000:file");
        assert_eq!(
            (v6.host, v6.port),
            (Host::V6("fd00::2".parse().unwrap(), None), 5000)
        );
        let local = parse("[fe80::2%eth1]:file");
        assert_eq!(
            local.host,
            Host::V6("fe80::2".parse().unwrap(), Some("eth1".to_owned()))
        );
        assert_eq!(
            parse("store-1.lan:x").host,
            Host::Name("store-1.lan".to_owned())
        );
        assert_eq!(parse("10.0.0.2:./7:x").path, "./7:x");
        assert_eq!(parse("10.0.0.2:7").path, "7");
        for text in [
            "10.0.0.2:1:f",
            "[fe80::2%eth1]:1:f",
            "[fd00::2]:1:f",
            "h:1:f",
        ] {
            assert_eq!(parse(text).to_string(), text);
        }
    }

    #[test]
    fn what_is_no_target_is_refused() {
        for bad in [
            "",
            "file",
            "fd00::2:file",
            "::1",
            "[fd00::2",
            "[fd00::2]",
            "[fd00::2]file",
            "[10.0.0.2]:f",
            "[fe80::2%]:f",
            "10.0.0.300:f",
            "10.0.0:f",
            ":f",
            "-x:f",
            "a b:f",
            "10.0.0.2:0:f",
            "10.0.0.2:70000:f",
        ] {
            assert!(bad.parse::<Target>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_directory_keeps_the_files_name() {
        assert_eq!(parse("10.0.0.2:").path_for("f"), "f");
        assert_eq!(parse("10.0.0.2:d/").path_for("f"), "d/f");
        assert_eq!(parse("10.0.0.2:d").path_for("f"), "d");
    }

    #[test]
    fn a_link_local_address_needs_an_interface() {
        let bare = parse("[fe80::2]:f");
        assert!(
            bare.resolve(None, |_| Ok(3))
                .unwrap_err()
                .to_string()
                .contains("link-local")
        );
        let index = |name: &str| {
            if name == "eth1" {
                Ok(3)
            } else {
                anyhow::bail!("{name}?")
            }
        };
        assert_eq!(
            bare.resolve(Some("eth1"), index).unwrap().to_string(),
            "[fe80::2%3]:47910"
        );
        let global = parse("[fd00::2]:f");
        assert_eq!(
            global.resolve(Some("eth1"), index).unwrap().to_string(),
            "[fd00::2]:47910"
        );
    }
}
