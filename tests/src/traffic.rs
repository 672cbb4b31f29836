//! Traffic of the kernel between the lab's hosts.

use std::{
    io::{Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    process::Command,
    time::Duration,
};

use rocexdp::lab::Host;

use crate::rig::Rig;

const LIMIT: Duration = Duration::from_secs(60);

impl Rig {
    /// `count` pings of `size` bytes, 50 ms apart; every one must be answered.
    pub fn ping(&self, from: Host, to: IpAddr, count: u32, size: u32) {
        let mut command = Command::new("ping");
        command.args(["-q", "-i", "0.05", "-W", "10", "-c", &count.to_string()]);
        command.args(["-s", &size.to_string(), &to.to_string()]);
        self.lab().spawn_in(from, &mut command).unwrap();
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains(" 0% packet loss"),
            "{said}"
        );
    }

    /// `ip ARGUMENTS` on a host.
    pub fn ip(&self, host: Host, arguments: &str) {
        let mut command = Command::new("ip");
        command.args(arguments.split_whitespace());
        self.lab().spawn_in(host, &mut command).unwrap();
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "ip {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// `bytes` from one host to the other by the kernel's TCP; they must arrive unchanged.
    pub fn tcp_transfer(&self, from: Host, to: IpAddr, bytes: usize) {
        let on = |host: Host| self.lab().host(host);
        let listener = on(from.peer())
            .run(|| TcpListener::bind((to, 0)))
            .unwrap()
            .unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut sender = on(from)
            .run(|| TcpStream::connect_timeout(&SocketAddr::new(to, port), LIMIT))
            .unwrap()
            .unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        sender.set_write_timeout(Some(LIMIT)).unwrap();
        receiver.set_read_timeout(Some(LIMIT)).unwrap();
        let pattern = |at: usize| (at.wrapping_mul(2_654_435_761) >> 13) as u8;
        let sent: Vec<u8> = (0..bytes).map(pattern).collect();
        let mut received = Vec::with_capacity(bytes);
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                sender
                    .write_all(&sent)
                    .and_then(|()| sender.shutdown(Shutdown::Write))
            });
            receiver.read_to_end(&mut received).unwrap();
            sending.join().unwrap().unwrap();
        });
        assert!(
            received == sent,
            "TCP's bytes changed on the way: {} of {bytes}",
            received.len()
        );
    }
}
