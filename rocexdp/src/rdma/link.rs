//! What ends a queue pair's connection and notices its end: a TCP connection beside it, or the communication manager's.
//!
//! Must not: connect, touch packets.

use std::{io::ErrorKind, sync::Weak, time::Duration};

use tokio::{io::AsyncReadExt as _, net::TcpStream, sync::watch, task::JoinHandle};

use crate::node::RawQp;

/// How a connection has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closed {
    /// The peer ended it: it disconnected, dropped its queue pair, or its program has ended, killed or not.
    ByPeer,
    /// This end did.
    ByUs,
    /// The peer's host is silent, or this device's engine has ended.
    Lost,
}

/// The TCP connection beside a queue pair, which tells that the peer has gone; and tells the peer, when dropped.
#[derive(Debug)]
pub(super) struct Link {
    closed: watch::Receiver<Option<Closed>>,
    /// Asks the task to end the connection; of one over TCP nobody listens.
    leave: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    /// Of a connection that was made over `stream`.
    pub(super) fn watch(stream: TcpStream, qp: Weak<RawQp>) -> Self {
        // A host that vanished says nothing; without these it would be noticed by the next request only.
        let _ = keep_alive(&stream);
        let (tell, closed) = watch::channel(None);
        let task = tokio::spawn(async move {
            let mut stream = stream;
            // The peer has nothing to say: whatever comes is the end.
            let how = match stream.read(&mut [0]).await {
                Err(error) if error.kind() != ErrorKind::ConnectionReset => Closed::Lost,
                _ => Closed::ByPeer,
            };
            if let Some(qp) = qp.upgrade() {
                qp.fail();
            }
            tell.send_replace(Some(how));
        });
        let (leave, _) = watch::channel(false);
        Self {
            closed,
            leave,
            task,
        }
    }

    /// Of a connection of the communication manager.
    pub(super) fn over_cm(conn: crate::cm::Conn, qp: Weak<RawQp>) -> Self {
        let (tell, closed) = watch::channel(None);
        let (leave, wish) = watch::channel(false);
        let task = tokio::spawn(async move {
            let how = super::cm::watch(conn, qp, wish).await;
            tell.send_replace(Some(how));
        });
        Self {
            closed,
            leave,
            task,
        }
    }

    /// Ends the connection, and waits for the peer to have heard of it, where the exchange has such a thing.
    pub(super) async fn leave(&self) {
        if self.leave.receiver_count() > 0 {
            self.leave.send_replace(true);
            self.closed().await;
        }
    }

    /// Until it has ended.
    pub(super) async fn closed(&self) -> Closed {
        let mut closed = self.closed.clone();
        let how = closed.wait_for(Option::is_some).await;
        // Without a word the task has ended with its runtime.
        how.ok().and_then(|how| *how).unwrap_or(Closed::Lost)
    }
}

fn keep_alive(stream: &TcpStream) -> rustix::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    sockopt::set_socket_keepalive(stream, true)
}
