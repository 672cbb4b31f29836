//! Where metrics are served, as an option's text.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

/// The port unless one is given.
pub const DEFAULT_PORT: u16 = 47_911;

/// An address to serve metrics on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsAddr(pub SocketAddr);

impl FromStr for MetricsAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(text);
        if let Ok(address) = text.parse::<SocketAddr>() {
            Ok(Self(address))
        } else if let Ok(address) = bare.parse::<IpAddr>() {
            Ok(Self(SocketAddr::new(address, DEFAULT_PORT)))
        } else {
            Err(format!(
                "\"{text}\" is no address: use 127.0.0.1:{DEFAULT_PORT}, [::1]:{DEFAULT_PORT}, or 0.0.0.0 for all addresses"
            ))
        }
    }
}

impl fmt::Display for MetricsAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_needs_no_port_and_nothing_else_is_taken() {
        let parse = |text: &str| text.parse::<MetricsAddr>().map(|a| a.to_string());
        assert_eq!(parse("127.0.0.1:9100").unwrap(), "127.0.0.1:9100");
        assert_eq!(parse("127.0.0.1").unwrap(), "127.0.0.1:47911");
        assert_eq!(parse("[::1]").unwrap(), "[::1]:47911");
        assert_eq!(parse("::").unwrap(), "[::]:47911");
        for bad in [
            "",
            "localhost",
            ":9100",
            "127.0.0.1:",
            "127.0.0.1:99999",
            "eth0",
        ] {
            assert!(parse(bad).unwrap_err().contains("no address"), "{bad}");
        }
    }
}
