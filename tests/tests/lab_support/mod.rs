//! Numbered RoCEv2-like packets between the lab's hosts by the kernel's UDP, and what arrives of them, byte for byte.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panic"
)]
#![allow(dead_code, reason = "each test file uses a part")]

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::OwnedFd,
    process::Command,
    time::Duration,
};

use rocexdp::{
    lab::{Host, Lab},
    sys::netns::NetNs,
};
use rustix::net::{AddressFamily, RecvFlags, SocketType, eth, sockopt};

/// A lab name of this test's own.
pub fn name(test: &str) -> String {
    format!("{test}{}", std::process::id())
}

/// One ping with `size` bytes, not fragmented, must be answered.
pub fn ping(lab: &Lab, from: Host, to: IpAddr, size: usize) {
    let mut command = Command::new("ping");
    command.args([
        "-c",
        "1",
        "-W",
        "5",
        "-M",
        "do",
        "-s",
        &size.to_string(),
        &to.to_string(),
    ]);
    lab.spawn_in(from, &mut command).unwrap();
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "ping {to}: {}",
        String::from_utf8_lossy(&output.stdout)
    );
}

/// The payload of packet `number`: a number in what would be BTH and payload, thrice so that it survives one changed byte.
fn payload(number: u32, size: usize) -> Vec<u8> {
    let mut bytes = vec![0x5a; size];
    for copy in 0..3 {
        bytes[12 + 4 * copy..16 + 4 * copy].copy_from_slice(&number.to_be_bytes());
    }
    bytes
}

fn number(payload: &[u8]) -> u32 {
    let copy =
        |at: usize| u32::from_be_bytes(payload[12 + 4 * at..16 + 4 * at].try_into().unwrap());
    if copy(0) == copy(1) || copy(0) == copy(2) {
        copy(0)
    } else {
        copy(1)
    }
}

/// Sends numbered packets to UDP port 4791.
pub struct Sender {
    socket: UdpSocket,
    to: SocketAddr,
    /// Takes the packets, so that the kernel does not answer "port unreachable".
    _sink: UdpSocket,
}

impl Sender {
    pub fn new(lab: &Lab, from: Host, to: IpAddr) -> Self {
        let to = SocketAddr::new(to, 4791);
        let any: IpAddr = if to.is_ipv4() {
            [0; 4].into()
        } else {
            [0u16; 8].into()
        };
        let bind = |host, port| {
            lab.host(host)
                .run(|| UdpSocket::bind((any, port)))
                .unwrap()
                .unwrap()
        };
        let mut sender = Self {
            socket: bind(from, 0),
            to,
            _sink: bind(from.peer(), 4791),
        };
        sender.set_ecn(2);
        sender
    }

    /// ECN bits of what is sent from now on.
    pub fn set_ecn(&mut self, ecn: u8) {
        if self.to.is_ipv4() {
            sockopt::set_ip_tos(&self.socket, ecn).unwrap();
        } else {
            sockopt::set_ipv6_tclass(&self.socket, u32::from(ecn)).unwrap();
        }
    }

    /// Sends packets with these numbers and `size` bytes of UDP payload, slowly enough for a capture.
    pub fn send(&self, numbers: std::ops::Range<u32>, size: usize) {
        for n in numbers {
            self.socket.send_to(&payload(n, size), self.to).unwrap();
            if n % 32 == 31 {
                std::thread::sleep(Duration::from_micros(500));
            }
        }
    }
}

/// A packet that arrived.
pub struct Arrived {
    pub number: u32,
    pub ce: bool,
    /// Bytes of the UDP payload that are not as they were sent.
    pub changed_bytes: usize,
    /// True for IPv6, which has none.
    pub ip_checksum_right: bool,
}

/// A packet socket on all interfaces of a host.
pub struct Capture {
    socket: OwnedFd,
}

impl Capture {
    pub fn start(host: &NetNs) -> Self {
        let socket = host
            .run(|| rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, Some(eth::ALL)))
            .unwrap()
            .unwrap();
        sockopt::set_socket_recv_buffer_size_force(&socket, 256 << 20).unwrap();
        sockopt::set_socket_timeout(
            &socket,
            sockopt::Timeout::Recv,
            Some(Duration::from_millis(300)),
        )
        .unwrap();
        Self { socket }
    }

    /// The packets to `address` in order of arrival, when none came for 300 ms. Each is seen by `devices` devices: a
    /// tagged packet by the parent and, if the tag was right, by the VLAN device.
    pub fn finish(self, address: IpAddr, devices: usize) -> Vec<Arrived> {
        let all = self.drain(address);
        assert!(all.chunks(devices).all(|same| {
            same.len() == devices && same.iter().all(|copy| copy.number == same[0].number)
        }));
        all.into_iter().step_by(devices).collect()
    }

    fn drain(self, address: IpAddr) -> Vec<Arrived> {
        let mut arrived = Vec::new();
        let mut buffer = vec![0u8; 16_384];
        for _ in 0..1_000_000 {
            match rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _)) => arrived.extend(parse(&buffer[..length], address)),
                Err(rustix::io::Errno::AGAIN) => return arrived,
                Err(error) => panic!("capture: {error}"),
            }
        }
        panic!("the capture does not end");
    }
}

fn parse(frame: &[u8], address: IpAddr) -> Option<Arrived> {
    // The kernel takes a tag out of the frame before it shows it.
    let ip = frame.get(14..)?;
    let (udp, ce, ip_checksum_right, to_address) = match (ip.first()? >> 4, address) {
        (4, IpAddr::V4(v4)) => {
            let header = usize::from(ip[0] & 0xf) * 4;
            let mut sum: u32 = ip[..header]
                .chunks(2)
                .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
                .sum();
            sum = (sum & 0xffff) + (sum >> 16);
            (
                &ip[header..],
                ip[1] & 3 == 3,
                sum == 0xffff,
                ip[16..20] == v4.octets() && ip[9] == 17,
            )
        }
        (6, IpAddr::V6(v6)) => (
            &ip[40..],
            ip[1] & 0x30 == 0x30,
            true,
            ip[24..40] == v6.octets() && ip[6] == 17,
        ),
        _ => return None,
    };
    if !to_address || udp.get(2..4)? != 4791u16.to_be_bytes() {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
    let bytes = &udp[8..length];
    let number = number(bytes);
    let changed_bytes = bytes
        .iter()
        .zip(payload(number, bytes.len()))
        .filter(|(a, b)| **a != *b)
        .count();
    Some(Arrived {
        number,
        ce,
        changed_bytes,
        ip_checksum_right,
    })
}
