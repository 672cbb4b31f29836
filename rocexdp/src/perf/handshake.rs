//! perftest's out-of-band protocol over TCP, as version 4.5 (Debian 12's 4.5+0.17, which calls itself 6.06) speaks it.
//!
//! Every exchange is the same: the client writes a message, the server reads it and writes its own of the same length. The messages, from
//! perftest's `src/perftest_communication.c`:
//!
//! | message | bytes | function |
//! |---|---|---|
//! | version, NUL-padded text | 16 | `exchange_versions` |
//! | cycle buffer (page size), big endian | 4 | `check_sys_data` |
//! | cache line, big endian | 4 | `check_sys_data` |
//! | path MTU as a digit of `enum ibv_mtu`, NUL | 2 | `check_mtu` |
//! | address line (`KEY_PRINT_FMT_GID`), NUL | 108 | `ctx_hand_shake`; sent again it is a barrier |
//! | size, iterations, peak, average, message rate, big endian | 8 each | `xchg_bw_reports` |
//! | `done`, NUL, both ways at once | 5 | `ctx_close_connection` |
//!
//! Nothing of it is authenticated: as with perftest itself, a test belongs on a network whose hosts are trusted. What comes is checked
//! before use all the same.

use std::time::Duration;

use anyhow::{anyhow, bail};
use rocexdp_proto::ids::PathMtu;

use crate::{
    control::exchange::{CheckedQp, PeerQp},
    oob::{channel::Channel, place},
};

/// How the version of perftest that we speak calls itself.
pub const VERSION: &str = "6.06";
/// Older ones speak otherwise (`check_version_compatibility`).
const OLDEST: f64 = 5.70;
/// Buffers are cycled through a page (`cycle_buffer`) in steps of cache lines.
pub const CYCLE_BUFFER: u32 = 4096;
/// See [`CYCLE_BUFFER`].
pub const CACHE_LINE: u32 = 64;
/// What a peer may give for them.
const CYCLE_BUFFER_MOST: u32 = 1 << 20;
/// See [`CYCLE_BUFFER_MOST`].
const CACHE_LINE_MOST: u32 = 4096;
/// How long the peer may take to set up: it fills its memory with random bytes, which an emulated processor is slow at.
const SET_UP: Duration = Duration::from_secs(120);
/// Bytes of an [`AddressLine`].
const LINE: usize = 108;

/// Who speaks first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Writes first.
    Client,
    /// Reads first.
    Server,
}

/// What both ends agreed on before any queue pair.
#[derive(Clone, Debug)]
pub struct Basics {
    /// The peer's version.
    pub version: String,
    /// The larger of both, B.
    pub cycle_buffer: u32,
    /// The larger of both, B.
    pub cache_line: u32,
    /// The smaller of both.
    pub path_mtu: PathMtu,
}

/// One queue pair of one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressLine {
    /// READs and atomics that it can have unanswered, in both directions.
    pub out_reads: u32,
    /// Number.
    pub qpn: u32,
    /// PSN of its first request.
    pub psn: u32,
    /// Key of its memory.
    pub rkey: u32,
    /// Where the peer's part of that memory begins.
    pub va: u64,
    /// Its address.
    pub gid: [u8; 16],
}

impl AddressLine {
    fn to_bytes(self) -> Vec<u8> {
        use std::fmt::Write as _;
        let Self {
            out_reads,
            qpn,
            psn,
            rkey,
            va,
            gid,
        } = self;
        // The LID, which RoCE has none of, and at the end the number of an XRC SRQ.
        let mut text = format!("0000:{out_reads:04x}:{qpn:06x}:{psn:06x}:{rkey:08x}:{va:016x}:");
        for byte in gid {
            // A String takes everything.
            let _ = write!(text, "{byte:02x}:");
        }
        text.push_str("00000000:\0");
        text.into_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
        let text = str::from_utf8(text).map_err(|_| "it is no text".to_owned())?;
        let mut fields = text.split(':');
        let mut number = |name: &str, bits: u32| {
            let field = fields
                .next()
                .ok_or_else(|| format!("it ends before its {name}"))?;
            u64::from_str_radix(field, 16)
                .ok()
                .filter(|value| bits == 64 || value >> bits == 0)
                .ok_or_else(|| {
                    format!("its {name} {field:?} is no hexadecimal number of {bits} bits")
                })
        };
        let _lid = number("LID", 16)?;
        let mut line = Self {
            out_reads: number("number of outstanding READs", 16)? as u32,
            qpn: number("QP number", 24)? as u32,
            psn: number("PSN", 24)? as u32,
            rkey: number("rkey", 32)? as u32,
            va: number("address", 64)?,
            gid: [0; 16],
        };
        for byte in &mut line.gid {
            *byte = number("GID", 8)? as u8;
        }
        let _srqn = number("SRQ number", 32)?;
        Ok(line)
    }

    /// The queue pair, if the peer can have it.
    ///
    /// # Errors
    /// A text that names what is wrong.
    pub fn check(&self, path_mtu: PathMtu) -> anyhow::Result<CheckedQp> {
        let qp = PeerQp {
            qpn: self.qpn,
            psn: self.psn,
            gid: place::address(self.gid),
            path_mtu: path_mtu.bytes(),
            selective_repeat: 0,
        };
        qp.check().map_err(|why| {
            anyhow!(
                "the peer's queue pair: {why} (does it use the GID index of a RoCEv2 address, -x?)"
            )
        })
    }
}

/// An end's result of a bandwidth test (`struct bw_report_data`), in the units that it prints: MiB/s, or Gb/s if asked to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BandwidthReport {
    /// Bytes of a message.
    pub size: u64,
    /// Messages of all queue pairs.
    pub iterations: u64,
    /// 0 where it was not asked for.
    pub peak: f64,
    /// From the first post to the last completion.
    pub average: f64,
    /// Million messages per second.
    pub message_rate: f64,
}

impl BandwidthReport {
    /// The same, if the peer can have measured it.
    ///
    /// # Errors
    /// A number is none.
    pub fn check(self) -> anyhow::Result<Self> {
        let numbers = [self.peak, self.average, self.message_rate];
        if numbers.iter().any(|n| !n.is_finite() || *n < 0.0) {
            bail!("the peer's result {self:?} is none");
        }
        Ok(self)
    }
}

/// The protocol on a channel.
#[derive(Debug)]
pub struct Wire {
    /// The channel.
    pub channel: Channel,
    /// Who we are on it.
    pub role: Role,
}

impl Wire {
    fn exchange(
        &mut self,
        what: &str,
        ours: &[u8],
        theirs: &mut [u8],
        patience: Option<Duration>,
    ) -> anyhow::Result<()> {
        if self.role == Role::Client {
            self.channel.send(what, ours)?;
        }
        self.channel.receive(what, theirs, patience)?;
        if self.role == Role::Server {
            self.channel.send(what, ours)?;
        }
        Ok(())
    }

    fn number(&mut self, what: &str, ours: u32, most: u32) -> anyhow::Result<u32> {
        let mut theirs = [0; 4];
        self.exchange(what, &ours.to_be_bytes(), &mut theirs, Some(SET_UP))?;
        let theirs = u32::from_be_bytes(theirs);
        if theirs > most {
            bail!("the peer's {what} of {theirs} B is more than {most} B: is it perftest 4.5?");
        }
        Ok(theirs.max(ours))
    }

    /// The first exchanges: versions, sizes, path MTU.
    ///
    /// # Errors
    /// The peer is too old, speaks something else, or leaves.
    pub fn basics(&mut self, path_mtu: PathMtu) -> anyhow::Result<Basics> {
        let mut ours = [0; 16];
        for (to, from) in ours.iter_mut().zip(VERSION.bytes()) {
            *to = from;
        }
        let mut theirs = [0; 16];
        self.exchange("its version", &ours, &mut theirs, Some(SET_UP))?;
        let version = version(theirs)?;
        let cycle_buffer = self.number("cycle buffer", CYCLE_BUFFER, CYCLE_BUFFER_MOST)?;
        let cache_line = self.number("cache line", CACHE_LINE, CACHE_LINE_MOST)?;
        if cycle_buffer % cache_line != 0 {
            bail!(
                "the peer's cycle buffer of {cycle_buffer} B is no multiple of the cache line of {cache_line} B"
            );
        }
        let ours = [b'0' + path_mtu as u8, 0];
        let mut theirs = [0; 2];
        self.exchange("its path MTU", &ours, &mut theirs, Some(SET_UP))?;
        let theirs = PathMtu::ALL
            .into_iter()
            .find(|mtu| theirs == [b'0' + *mtu as u8, 0])
            .ok_or_else(|| anyhow!("the peer's path MTU {theirs:?} is no digit from 1 to 5"))?;
        Ok(Basics {
            version,
            cycle_buffer,
            cache_line,
            path_mtu: path_mtu.min(theirs),
        })
    }

    /// The server's half of the first exchange: the client's line, which decides on the address to answer with.
    ///
    /// # Errors
    /// It is none; the peer leaves.
    pub fn first_line(&mut self) -> anyhow::Result<AddressLine> {
        self.read_line(Some(SET_UP))
    }

    fn read_line(&mut self, patience: Option<Duration>) -> anyhow::Result<AddressLine> {
        let mut bytes = [0; LINE];
        let what = "an address line with a GID";
        self.channel.receive(what, &mut bytes, patience)?;
        AddressLine::from_bytes(&bytes).map_err(|why| {
            let text = String::from_utf8_lossy(&bytes);
            let shown: String = text.chars().filter(|c| !c.is_control()).collect();
            anyhow!("the peer's address line {shown:?}: {why}")
        })
    }

    /// Sends an address line.
    ///
    /// # Errors
    /// The peer has left.
    pub fn write_line(&mut self, line: AddressLine) -> anyhow::Result<()> {
        self.channel.send("an address line", &line.to_bytes())
    }

    /// Exchanges address lines, while the peer sets up.
    ///
    /// # Errors
    /// As [`Self::first_line`].
    pub fn lines(&mut self, ours: AddressLine) -> anyhow::Result<AddressLine> {
        self.lines_within(ours, Some(SET_UP))
    }

    /// Waits until the peer is here too, however long its part of the test takes.
    ///
    /// # Errors
    /// As [`Self::first_line`].
    pub fn barrier(&mut self, ours: AddressLine) -> anyhow::Result<()> {
        self.lines_within(ours, None).map(drop)
    }

    fn lines_within(
        &mut self,
        ours: AddressLine,
        patience: Option<Duration>,
    ) -> anyhow::Result<AddressLine> {
        if self.role == Role::Client {
            self.write_line(ours)?;
        }
        let theirs = self.read_line(patience)?;
        if self.role == Role::Server {
            self.write_line(ours)?;
        }
        Ok(theirs)
    }

    /// Exchanges results, one number after another. An end that has measured nothing sends what it has: perftest's server what was in its
    /// memory.
    ///
    /// # Errors
    /// The peer leaves.
    pub fn reports(&mut self, ours: BandwidthReport) -> anyhow::Result<BandwidthReport> {
        let numbers = [
            ours.size,
            ours.iterations,
            ours.peak.to_bits(),
            ours.average.to_bits(),
            ours.message_rate.to_bits(),
        ];
        let mut theirs = [0; 5];
        for (ours, theirs) in numbers.into_iter().zip(&mut theirs) {
            let mut bytes = [0; 8];
            self.exchange("its result", &ours.to_be_bytes(), &mut bytes, None)?;
            *theirs = u64::from_be_bytes(bytes);
        }
        let [size, iterations, peak, average, message_rate] = theirs;
        Ok(BandwidthReport {
            size,
            iterations,
            peak: f64::from_bits(peak),
            average: f64::from_bits(average),
            message_rate: f64::from_bits(message_rate),
        })
    }

    /// The end of the test: a last barrier, `done`, and both leave.
    ///
    /// # Errors
    /// The peer left before the barrier.
    pub fn close(&mut self, ours: AddressLine) -> anyhow::Result<()> {
        self.barrier(ours)?;
        // Neither end looks at it, and the peer may have closed already.
        let _ = self.channel.send("done", b"done\0");
        self.part();
        Ok(())
    }

    /// Leaves together with the peer, so that its last packets are still answered.
    pub fn part(&mut self) {
        self.channel.part(Duration::from_secs(3));
    }
}

fn version(bytes: [u8; 16]) -> anyhow::Result<String> {
    let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    // As atof(3) does: the number at the beginning.
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let shown: String = text.chars().filter(|c| !c.is_control()).collect();
    match text.get(..digits).and_then(|number| number.parse().ok()) {
        Some(number) if number >= OLDEST => Ok(shown),
        Some::<f64>(_) => bail!(
            "the peer is perftest {shown}: 5.70 is the oldest that this exchange works with (install perftest 4.5 or newer there)"
        ),
        None => bail!(
            "the peer's version {shown:?} is none of perftest's: is it perftest, or rocexdp perf, that listens there?"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, sync::Arc, thread};

    use super::*;
    use crate::{oob::channel::Listener, process::Cancel};

    const OURS: AddressLine = AddressLine {
        out_reads: 16,
        qpn: 0x80_0001,
        psn: 0x12_3456,
        rkey: 0xdead_beef,
        va: 0x1_0000,
        gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1],
    };

    #[test]
    fn an_address_line_is_perftests() {
        let bytes = OURS.to_bytes();
        let text = "0000:0010:800001:123456:deadbeef:0000000000010000:\
                    00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:01:00000000:\0";
        assert_eq!(bytes, text.as_bytes());
        assert_eq!(bytes.len(), LINE);
        assert_eq!(AddressLine::from_bytes(&bytes), Ok(OURS));
    }

    #[test]
    fn what_is_no_address_line_says_what_is_wrong() {
        let good = String::from_utf8(OURS.to_bytes()).unwrap();
        for (from, to, part) in [
            ("800001", "1800001", "QP number"),
            ("deadbeef", "deadbeeg", "rkey"),
            ("0a:4d", "0a:14d", "GID"),
            (":00000000:", "", "SRQ number"),
            ("0010", "", "outstanding READs"),
        ] {
            let why = AddressLine::from_bytes(good.replace(from, to).as_bytes()).unwrap_err();
            assert!(why.contains(part), "{part}: {why}");
        }
        assert!(AddressLine::from_bytes(b"").is_err());
        assert!(AddressLine::from_bytes(&[0xff; LINE]).is_err());
    }

    #[test]
    fn a_queue_pair_that_no_peer_has_is_refused() {
        assert!(OURS.check(PathMtu::Mtu1024).is_ok());
        let cases: [(AddressLine, &str); 2] = [
            (AddressLine { qpn: 1, ..OURS }, "QP number"),
            (
                AddressLine {
                    gid: [0; 16],
                    ..OURS
                },
                "GID",
            ),
        ];
        for (line, part) in cases {
            let error = line.check(PathMtu::Mtu1024).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let of = |text: &str| {
            let mut bytes = [0; 16];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            version(bytes).map_err(|e| e.to_string())
        };
        for good in ["6.06", "5.70", "6.29", "10.0-x"] {
            assert_eq!(of(good), Ok(good.to_owned()));
        }
        assert!(of("5.60").unwrap_err().contains("5.70"));
        for bad in ["", "SSH-2.0", "."] {
            assert!(of(bad).unwrap_err().contains("none of perftest's"), "{bad}");
        }
    }

    fn wires() -> (Wire, Wire) {
        let cancel = Arc::new(Cancel::default());
        let listener = Listener::bind(Some(Ipv4Addr::LOCALHOST.into()), 0, &cancel).unwrap();
        let port = listener.port();
        let client = Channel::connect("127.0.0.1", port, &cancel).unwrap();
        let wire = |channel, role| Wire { channel, role };
        (
            wire(client, Role::Client),
            wire(listener.accept().unwrap(), Role::Server),
        )
    }

    #[test]
    fn both_ends_agree() {
        let (mut client, mut server) = wires();
        let theirs = AddressLine { qpn: 17, ..OURS };
        let report = BandwidthReport {
            size: 65536,
            iterations: 5000,
            peak: 0.0,
            average: 123.5,
            message_rate: 0.25,
        };
        let other = BandwidthReport {
            average: 7.0,
            ..report
        };
        let there = thread::spawn(move || {
            let basics = server.basics(PathMtu::Mtu1024).unwrap();
            assert_eq!(basics.path_mtu, PathMtu::Mtu1024);
            assert_eq!(server.lines(theirs).unwrap(), OURS);
            assert_eq!(server.reports(other).unwrap(), report);
            server.close(theirs).unwrap();
        });
        let basics = client.basics(PathMtu::Mtu4096).unwrap();
        assert_eq!(basics.path_mtu, PathMtu::Mtu1024);
        assert_eq!((basics.cycle_buffer, basics.cache_line), (4096, 64));
        assert_eq!(basics.version, VERSION);
        assert_eq!(client.lines(OURS).unwrap(), theirs);
        assert_eq!(client.reports(report).unwrap(), other);
        client.close(OURS).unwrap();
        there.join().unwrap();
    }

    #[test]
    fn a_result_that_is_no_number_is_refused() {
        let report = |average| BandwidthReport {
            size: 1,
            iterations: 1,
            peak: 0.0,
            average,
            message_rate: 1.0,
        };
        assert!(report(1.0).check().is_ok());
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            let error = report(bad).check().unwrap_err();
            assert!(error.to_string().contains("result"), "{error}");
        }
    }
}
