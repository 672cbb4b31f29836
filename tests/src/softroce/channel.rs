//! The guest's command channel: frames of `tests/softroce/guest/peerd.c` over the socket of a virtio-serial port.
//!
//! One command at a time on a channel. Must not: know what the command is.

use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

/// Time in which the guest must open a session.
const OPEN: Duration = Duration::from_secs(30);
/// How long one read of the socket waits.
const TICK: Duration = Duration::from_millis(200);
const HEAD: usize = 5;

/// What a command says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// On standard output.
    Out(Vec<u8>),
    /// On standard error.
    Err(Vec<u8>),
    /// Its exit code; 128 + N: ended by signal N.
    Exit(i32),
}

/// A session of a channel.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    got: Vec<u8>,
}

impl Channel {
    /// Opens a session: what still runs on the channel is killed.
    pub fn open(socket: &Path) -> Self {
        let until = Instant::now() + OPEN;
        loop {
            let stream = UnixStream::connect(socket)
                .unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
            stream.set_read_timeout(Some(TICK)).unwrap();
            let mut channel = Self {
                stream,
                got: Vec::new(),
            };
            if channel.greet() {
                return channel;
            }
            assert!(
                Instant::now() < until,
                "{}: the guest does not answer",
                socket.display()
            );
        }
    }

    /// Whether the guest answered; what an earlier session left is passed over.
    fn greet(&mut self) -> bool {
        let nonce = std::process::id().to_be_bytes();
        let hello = frame(b'N', &nonce);
        self.stream.write_all(&hello).unwrap();
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            if !self.fill() {
                continue;
            }
            let found = self.got.windows(hello.len()).position(|w| w == hello);
            if let Some(at) = found {
                self.got.drain(..at + hello.len());
                return true;
            }
        }
        false
    }

    /// Starts `sh -c command`.
    pub fn start(&mut self, command: &str) {
        self.send(b'X', command.as_bytes());
    }

    /// Gives it input.
    pub fn input(&mut self, bytes: &[u8]) {
        self.send(b'I', bytes);
    }

    /// Ends its input.
    pub fn end_input(&mut self) {
        self.send(b'E', &[]);
    }

    /// Sends a signal to its process group.
    pub fn signal(&mut self, number: u8) {
        self.send(b'K', &[number]);
    }

    /// What it says next; `None` at `until`.
    pub fn next(&mut self, until: Instant) -> Option<Said> {
        loop {
            if let Some(said) = self.parse() {
                return Some(said);
            }
            if Instant::now() >= until {
                return None;
            }
            self.fill();
        }
    }

    fn parse(&mut self) -> Option<Said> {
        let (head, rest) = self.got.split_first_chunk::<HEAD>()?;
        let [kind, length @ ..] = head;
        let length = u32::from_be_bytes(*length) as usize;
        let data = rest.get(..length)?.to_vec();
        let said = match kind {
            b'O' => Said::Out(data),
            b'D' => Said::Err(data),
            b'R' => Said::Exit(i32::from_be_bytes(data[..].try_into().unwrap())),
            other => panic!("the guest sent a frame of kind {other}"),
        };
        self.got.drain(..HEAD + length);
        Some(said)
    }

    /// Reads what is there; false if nothing came.
    fn fill(&mut self) -> bool {
        let mut block = [0; 65536];
        match self.stream.read(&mut block) {
            Ok(0) => panic!("the guest went away"),
            Ok(read) => {
                self.got.extend_from_slice(&block[..read]);
                true
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                false
            }
            Err(error) => panic!("the guest's channel: {error}"),
        }
    }

    fn send(&mut self, kind: u8, data: &[u8]) {
        self.stream.write_all(&frame(kind, data)).unwrap();
    }
}

fn frame(kind: u8, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap().to_be_bytes();
    [&[kind][..], &length, data].concat()
}
