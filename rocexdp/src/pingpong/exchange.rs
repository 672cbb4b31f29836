//! What `ibv_rc_pingpong`, `ibv_uc_pingpong`, `ibv_ud_pingpong` and `ibv_srq_pingpong` say over TCP (rdma-core, `libibverbs/examples`,
//! `pp_client_exch_dest` and `pp_server_exch_dest`).
//!
//! A line of 52 bytes per queue pair, `LID:QPN:PSN:GID` in hexadecimal and a NUL, the client's first; the server connects its queue pairs
//! before it answers; the client says `done`, and both close. `ibv_srq_pingpong` sends lines for 256 queue pairs, whatever it has.

use std::time::Duration;

use anyhow::{anyhow, bail};
use rocexdp_proto::ids::PathMtu;

use crate::{
    control::exchange::{CheckedQp, PeerQp},
    oob::{channel::Channel, place},
};

/// Bytes of a line.
const LINE: usize = 52;
/// Lines of `ibv_srq_pingpong` (its `MAX_QP`).
pub const SRQ_LINES: usize = 256;
/// How long the peer may take for its part of the exchange.
const PATIENCE: Duration = Duration::from_secs(30);

/// One queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Line {
    /// Number.
    pub qpn: u32,
    /// PSN of its first request.
    pub psn: u32,
    /// Its address; 0 if the peer was not told to use one.
    pub gid: [u8; 16],
}

impl Line {
    fn to_bytes(self) -> Vec<u8> {
        use std::fmt::Write as _;
        // The LID, which RoCE has none of.
        let mut text = format!("0000:{:06x}:{:06x}:", self.qpn, self.psn);
        for byte in self.gid {
            // A String takes everything.
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\0');
        text.into_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
        let text = str::from_utf8(text).map_err(|_| "it is no text".to_owned())?;
        let fields: Vec<&str> = text.split(':').collect();
        let [_lid, qpn, psn, gid] = fields.as_slice() else {
            return Err(format!("it has {} fields, not 4", fields.len()));
        };
        let number = |name: &str, field: &str| {
            u32::from_str_radix(field, 16)
                .ok()
                .filter(|value| value >> 24 == 0)
                .ok_or_else(|| format!("its {name} {field:?} is no hexadecimal number of 24 bits"))
        };
        let gid = u128::from_str_radix(gid, 16)
            .ok()
            .filter(|_| gid.len() == 32)
            .ok_or_else(|| format!("its GID {gid:?} is not 32 hexadecimal digits"))?;
        Ok(Self {
            qpn: number("QP number", qpn)?,
            psn: number("PSN", psn)?,
            gid: gid.to_be_bytes(),
        })
    }

    /// The queue pair, if the peer can have it.
    ///
    /// # Errors
    /// A text that names what is wrong.
    pub fn check(&self, path_mtu: PathMtu) -> anyhow::Result<CheckedQp> {
        if self.gid == [0; 16] {
            bail!(
                "the peer has told no GID: give it -g with the index of a RoCE v2 address (ibv_devinfo -v lists them)"
            );
        }
        let qp = PeerQp {
            qpn: self.qpn,
            psn: self.psn,
            gid: place::address(self.gid),
            path_mtu: path_mtu.bytes(),
            selective_repeat: 0,
        };
        qp.check()
            .map_err(|why| anyhow!("the peer's queue pair: {why}"))
    }
}

/// Sends lines.
///
/// # Errors
/// The peer has gone.
pub fn write(channel: &mut Channel, lines: &[Line]) -> anyhow::Result<()> {
    for line in lines {
        channel.send("an address line", &line.to_bytes())?;
    }
    Ok(())
}

/// Receives `count` lines.
///
/// # Errors
/// They are none; the peer leaves.
pub fn read(channel: &mut Channel, count: usize) -> anyhow::Result<Vec<Line>> {
    let mut bytes = [0; LINE];
    (0..count)
        .map(|_| {
            channel.receive("an address line", &mut bytes, Some(PATIENCE))?;
            Line::from_bytes(&bytes).map_err(|why| {
                let text = String::from_utf8_lossy(&bytes);
                let shown: String = text.chars().filter(|c| !c.is_control()).collect();
                anyhow!("the peer's address line {shown:?}: {why} (is it the same program?)")
            })
        })
        .collect()
}

const DONE: &[u8; 5] = b"done\0";

/// The client has the server's lines.
///
/// # Errors
/// The peer has gone.
pub fn write_done(channel: &mut Channel) -> anyhow::Result<()> {
    channel.send("done", DONE)?;
    channel.may_close();
    Ok(())
}

/// Waits until the client has our lines.
///
/// # Errors
/// The peer leaves, or says something else.
pub fn read_done(channel: &mut Channel) -> anyhow::Result<()> {
    let mut bytes = [0; DONE.len()];
    channel.receive("\"done\"", &mut bytes, Some(PATIENCE))?;
    channel.may_close();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_the_examples() {
        let line = Line {
            qpn: 0x1234,
            psn: 0xabc,
            gid: place::gid("10.77.0.1".parse().unwrap()),
        };
        let bytes = line.to_bytes();
        assert_eq!(
            bytes,
            b"0000:001234:000abc:00000000000000000000ffff0a4d0001\0"
        );
        assert_eq!(bytes.len(), LINE);
        assert_eq!(Line::from_bytes(&bytes), Ok(line));
        let checked = line.check(PathMtu::Mtu1024).unwrap();
        assert_eq!(checked.gid.to_string(), "10.77.0.1");
    }

    #[test]
    fn what_is_no_line_says_what_is_wrong() {
        for (text, part) in [
            ("", "fields"),
            ("0000:1000000:000000:0", "GID"),
            (
                "0000:1000000:000000:00000000000000000000ffff0a4d0001",
                "QP number",
            ),
            ("0000:001234:-00abc:00000000000000000000ffff0a4d0001", "PSN"),
            (
                "0000:001234:000abc:+0000000000000000000ffff0a4d0001x",
                "GID",
            ),
        ] {
            let why = Line::from_bytes(text.as_bytes()).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
        assert!(Line::from_bytes(&[0xff; LINE]).is_err());
        let unset = Line {
            qpn: 17,
            ..Line::default()
        };
        let error = unset.check(PathMtu::Mtu1024).unwrap_err().to_string();
        assert!(error.contains("-g"), "{error}");
    }
}
