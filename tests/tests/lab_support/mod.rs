//! Numbered RoCEv2-like packets between the lab's hosts by the kernel's UDP, and what arrives of them, byte for byte.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panic"
)]
#![allow(dead_code, reason = "each test file uses a part")]

use std::{
    net::{IpAddr, UdpSocket},
    os::fd::OwnedFd,
    process::Command,
    time::Duration,
};

use rocexdp::{
    lab::{HOST_INTERFACE, Host, Lab},
    net::Link,
    sys::netns::NetNs,
    xsk::{Xsk, XskConfig},
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

/// Sends numbered packets to UDP port 4791, as whole frames over AF_XDP: only so can they have tags.
pub struct Sender {
    socket: Xsk,
    from: Host,
    to: IpAddr,
    ecn: u8,
    tags: usize,
    /// Takes the packets, so that the kernel does not answer "port unreachable".
    _sink: UdpSocket,
}

impl Sender {
    pub fn new(lab: &Lab, from: Host, to: IpAddr) -> Self {
        let any: IpAddr = if to.is_ipv4() {
            [0; 4].into()
        } else {
            [0u16; 8].into()
        };
        let sink = lab
            .host(from.peer())
            .run(|| UdpSocket::bind((any, 4791)))
            .unwrap()
            .unwrap();
        let socket = lab
            .host(from)
            .run(|| {
                let link = Link::by_name(HOST_INTERFACE).unwrap();
                Xsk::open(&XskConfig::new(HOST_INTERFACE, link.index.0, 0)).unwrap()
            })
            .unwrap();
        Self {
            socket,
            from,
            to,
            ecn: 2,
            tags: 0,
            _sink: sink,
        }
    }

    /// ECN bits of what is sent from now on.
    pub fn ecn(mut self, ecn: u8) -> Self {
        self.ecn = ecn;
        self
    }

    /// Number of VLAN tags of what is sent from now on: two are 802.1ad with 802.1Q in it.
    pub fn tags(mut self, tags: usize) -> Self {
        self.tags = tags;
        self
    }

    fn frame(&self, number: u32, size: usize) -> Vec<u8> {
        let mut frame = Vec::new();
        frame.extend(self.from.peer().mac().0);
        frame.extend(self.from.mac().0);
        for tag in (0..self.tags).rev() {
            frame.extend(if tag == 1 {
                [0x88, 0xa8, 0, 9]
            } else {
                [0x81, 0, 0, 7]
            });
        }
        let udp_length = u16::try_from(size + 8).unwrap().to_be_bytes();
        match self.to {
            IpAddr::V4(to) => {
                frame.extend([8, 0]);
                let mut ip = vec![0x45, self.ecn];
                ip.extend(u16::try_from(size + 28).unwrap().to_be_bytes());
                ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
                ip.extend(self.from.ipv4().octets());
                ip.extend(to.octets());
                let sum = !ones_sum(&ip);
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                frame.extend(ip);
            }
            IpAddr::V6(to) => {
                frame.extend([0x86, 0xdd, 0x60, self.ecn << 4, 0, 0]);
                frame.extend(udp_length);
                frame.extend([17, 64]);
                frame.extend(self.from.ipv6().octets());
                frame.extend(to.octets());
            }
        }
        frame.extend([0xc0, 0, 0x12, 0xb7]);
        frame.extend(udp_length);
        frame.extend([0, 0]);
        frame.extend(payload(number, size));
        frame
    }

    /// Sends packets with these numbers and `size` bytes of UDP payload, slowly enough for a capture.
    pub fn send(&mut self, numbers: std::ops::Range<u32>, size: usize) {
        for n in numbers {
            let frame = self.frame(n, size);
            self.socket
                .transmit(frame.len(), |pieces| {
                    let mut rest = frame.as_slice();
                    for piece in pieces {
                        let (now, later) = rest.split_at(piece.len());
                        piece.copy_from_slice(now);
                        rest = later;
                    }
                })
                .unwrap();
            self.socket.flush().unwrap();
            if n % 32 == 31 {
                std::thread::sleep(Duration::from_micros(500));
            }
        }
        for _ in 0..1000 {
            self.socket.flush().unwrap();
            if self.socket.in_flight() == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("not everything was sent");
    }
}

fn ones_sum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    ((sum & 0xffff) + (sum >> 16)) as u16
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

    /// The packets to `address` in order of arrival, when none came for 300 ms.
    pub fn finish(self, address: IpAddr) -> Vec<Arrived> {
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
    // The kernel takes the outer tag out of the frame before it shows it, and leaves an inner one.
    let inner_tag = frame.get(12..14)? == [0x81, 0];
    let ip = frame.get(if inner_tag { 18 } else { 14 }..)?;
    let (udp, ce, ip_checksum_right, to_address) = match (ip.first()? >> 4, address) {
        (4, IpAddr::V4(v4)) => {
            let header = usize::from(ip[0] & 0xf) * 4;
            (
                &ip[header..],
                ip[1] & 3 == 3,
                ones_sum(&ip[..header]) == 0xffff,
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
