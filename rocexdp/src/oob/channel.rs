//! The TCP connection beside the queue pairs: fixed-length messages, given up on a signal, when the peer leaves or is silent for too long.
//!
//! perftest and the pingpong examples read each message with one read(2) and fail on a part of it, so one message is one write here.
//! Must not: know what the messages mean.

use std::{
    io::{self, Read as _, Write as _},
    net::{
        IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs,
    },
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};

use crate::{control::exchange::unmapped, process::Cancel};

/// How often a wait looks whether a signal came.
const TICK: Duration = Duration::from_millis(20);
/// How long one address of a host may take to answer.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a message may take to leave: a few bytes fit into any socket's buffer.
const SEND: Duration = Duration::from_secs(10);

/// A TCP connection with the peer's program.
#[derive(Debug)]
pub struct Channel {
    stream: TcpStream,
    peer: SocketAddr,
    local: IpAddr,
    /// The protocol has the peer close it before the test: that says nothing.
    closes_early: bool,
    cancel: Arc<Cancel>,
}

/// Waits for one peer.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    cancel: Arc<Cancel>,
}

impl Listener {
    /// Listens on `port` of `address`, of all addresses unless given.
    ///
    /// # Errors
    /// The port is taken, or the address is not this host's.
    pub fn bind(address: Option<IpAddr>, port: u16, cancel: &Arc<Cancel>) -> anyhow::Result<Self> {
        let bound = match address {
            Some(address) => TcpListener::bind((address, port)),
            // IPv4 too, unless the host has no IPv6 at all.
            None => TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|error| {
                match error.kind() {
                    io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
                    _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
                }
            }),
        };
        let socket = bound.with_context(|| {
            let host = address.map_or_else(|| "any address".to_owned(), |a| a.to_string());
            format!("listening on TCP port {port} of {host} (-p chooses another port)")
        })?;
        socket
            .set_nonblocking(true)
            .context("making the TCP socket non-blocking")?;
        Ok(Self {
            socket,
            cancel: Arc::clone(cancel),
        })
    }

    /// The port, which the system chose if 0 was asked for.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.socket.local_addr().map_or(0, |address| address.port())
    }

    /// The first peer to come; no other one can.
    ///
    /// # Errors
    /// A signal came.
    pub fn accept(self) -> anyhow::Result<Channel> {
        loop {
            match self.socket.accept() {
                Ok((stream, peer)) => return Channel::new(stream, peer, self.cancel),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(TICK),
                // It went away again.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("waiting for a peer"),
            }
            self.cancel.check()?;
        }
    }
}

impl Channel {
    /// Connects to the first address of `host` that answers.
    ///
    /// # Errors
    /// None does: the text has the reason of the last one.
    pub fn connect(host: &str, port: u16, cancel: &Arc<Cancel>) -> anyhow::Result<Self> {
        let mut last = None;
        let addresses = (host, port)
            .to_socket_addrs()
            .with_context(|| format!("host {host}"))?;
        for address in addresses {
            cancel.check()?;
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => return Self::new(stream, address, Arc::clone(cancel)),
                Err(error) => last = Some((address, error)),
            }
        }
        Err(match last {
            Some((address, error)) => anyhow!(
                "connecting to {address}: {error} (start the other end's program first; its -p must be {port})"
            ),
            None => anyhow!("host {host} has no address"),
        })
    }

    fn new(stream: TcpStream, peer: SocketAddr, cancel: Arc<Cancel>) -> anyhow::Result<Self> {
        let set_up = || -> io::Result<IpAddr> {
            stream.set_nonblocking(false)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TICK))?;
            stream.set_write_timeout(Some(SEND))?;
            keep_alive(&stream)?;
            Ok(stream.local_addr()?.ip())
        };
        let local = unmapped(set_up().with_context(|| format!("the TCP connection with {peer}"))?);
        let peer = SocketAddr::new(unmapped(peer.ip()), peer.port());
        Ok(Self {
            stream,
            peer,
            local,
            closes_early: false,
            cancel,
        })
    }

    /// The peer's end of the connection.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Our address of the connection.
    #[must_use]
    pub fn local(&self) -> IpAddr {
        self.local
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// A signal came.
    pub fn check(&self) -> anyhow::Result<()> {
        self.cancel.check()
    }

    /// Sends one message; `what` names it in errors.
    ///
    /// # Errors
    /// The peer has gone.
    pub fn send(&mut self, what: &str, message: &[u8]) -> anyhow::Result<()> {
        self.stream
            .write_all(message)
            .with_context(|| format!("sending {what} to {}: has it given up?", self.peer))
    }

    /// Receives one message of exactly that length, waited for without end or for `patience`.
    ///
    /// # Errors
    /// The peer leaves or is silent; a signal comes.
    pub fn receive(
        &mut self,
        what: &str,
        message: &mut [u8],
        patience: Option<Duration>,
    ) -> anyhow::Result<()> {
        let begun = Instant::now();
        let (mut filled, all) = (0, message.len());
        while let Some(rest) = message.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.stream.read(rest) {
                Ok(0) => bail!(
                    "{} closed the connection while we waited for {what}: its own messages say why",
                    self.peer
                ),
                Ok(count) => filled += count,
                Err(error) if is_pause(&error) => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("{what} from {}", self.peer));
                }
            }
            self.cancel.check()?;
            if patience.is_some_and(|patience| begun.elapsed() > patience) {
                bail!(
                    "{} has sent {filled} of the {all} bytes of {what} within {} s: is it the same program, with the same options?",
                    self.peer,
                    begun.elapsed().as_secs()
                );
            }
        }
        Ok(())
    }

    /// From now on the peer may close its end, without having gone.
    pub fn may_close(&mut self) {
        self.closes_early = true;
    }

    /// Whether the peer has gone, as far as a closed end tells. What it sent before may still be received.
    #[must_use]
    pub fn peer_left(&self) -> bool {
        if self.closes_early {
            return false;
        }
        if self.stream.set_nonblocking(true).is_err() {
            return true;
        }
        let seen = self.stream.peek(&mut [0]);
        let left = match &seen {
            Ok(count) => *count == 0,
            Err(error) => !is_pause(error),
        };
        self.stream.set_nonblocking(false).is_err() || left
    }

    /// Says that nothing more comes, and waits until the peer has left, no longer than `limit`: so that its last packets are answered.
    pub fn part(&mut self, limit: Duration) {
        // The peer may have gone already; then there is nobody to wait for.
        let _ = self.stream.shutdown(Shutdown::Write);
        let until = Instant::now() + limit;
        let mut rest = [0; 64];
        while Instant::now() < until && self.cancel.check().is_ok() {
            match self.stream.read(&mut rest) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if is_pause(&error) => {}
                Err(_) => return,
            }
        }
    }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// A host that vanished says nothing; this notices within half a minute.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Channel, Channel) {
        let cancel = Arc::new(Cancel::default());
        let listener = Listener::bind(Some(Ipv4Addr::LOCALHOST.into()), 0, &cancel).unwrap();
        let port = listener.port();
        let client = Channel::connect("127.0.0.1", port, &cancel).unwrap();
        (client, listener.accept().unwrap())
    }

    #[test]
    fn a_message_comes_whole_or_not_at_all() {
        let (mut client, mut server) = pair();
        client.send("half", b"abc").unwrap();
        client.send("half", b"def").unwrap();
        let mut message = [0; 6];
        server.receive("a word", &mut message, None).unwrap();
        assert_eq!(&message, b"abcdef");
        client.send("a part", b"ab").unwrap();
        let patience = Some(Duration::from_millis(60));
        let error = server
            .receive("a word", &mut message, patience)
            .unwrap_err();
        assert!(
            error.to_string().contains("2 of the 6 bytes of a word"),
            "{error}"
        );
        assert!(!server.peer_left());
        drop(client);
        let error = server.receive("a word", &mut message, None).unwrap_err();
        assert!(
            error.to_string().contains("closed the connection"),
            "{error}"
        );
        assert!(server.peer_left());
    }

    #[test]
    fn parting_waits_for_the_peer() {
        let (mut client, mut server) = pair();
        let waits = thread::spawn(move || {
            client.part(Duration::from_secs(30));
            client.peer_left()
        });
        assert!(!waits.is_finished());
        server.part(Duration::from_millis(1));
        drop(server);
        assert!(waits.join().unwrap());
    }

    #[test]
    fn nobody_there_says_what_to_do() {
        let cancel = Arc::new(Cancel::default());
        let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let error = Channel::connect("127.0.0.1", port, &cancel).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("start the other end's program first"),
            "{error}"
        );
    }
}
