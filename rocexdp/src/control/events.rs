//! Events over a control socket: for `rocexdp run` one request among others, for `rocexdp monitor` the only one.

use tokio::{net::UnixListener, task::JoinSet};

use super::local::{Client, Reply, Request};
use crate::events::{Followed, Hub};

/// Connections served at once; more wait.
const MAX_CLIENTS: usize = 64;

/// Answers one client: the events kept, and then, if it follows, each new one until it leaves.
pub async fn stream(client: &mut Client, hub: &Hub, follow: bool) {
    let (kept, mut follower) = hub.follow();
    for event in kept {
        if client
            .reply(&Reply::Event(Box::new((*event).clone())))
            .await
            .is_err()
        {
            return;
        }
    }
    while follow {
        let reply = tokio::select! {
            next = follower.next() => match next {
                Followed::Event(event) => Reply::Event(Box::new((*event).clone())),
                Followed::Missed(missed) => Reply::Missed(missed),
                Followed::End => break,
            },
            () = client.gone() => return,
        };
        if client.reply(&reply).await.is_err() {
            return;
        }
    }
    // The client may be gone.
    let _ = client.reply(&Reply::End).await;
}

/// Answers whoever connects, until it is dropped.
pub async fn serve(listener: UnixListener, hub: Hub) {
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if clients.len() < MAX_CLIENTS => {
                let Ok((socket, _)) = accepted else {
                    // No file descriptors, for instance: wait instead of spinning.
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    continue;
                };
                let hub = hub.clone();
                clients.spawn(async move {
                    let mut client = Client::new(socket);
                    let reply = match client.request().await {
                        Ok((Request::Events { follow }, _)) => return stream(&mut client, &hub, follow).await,
                        Ok(_) => Reply::Failed("a monitor has events only: copies and status are `rocexdp run`'s".to_owned()),
                        Err(error) => Reply::Failed(error.to_string()),
                    };
                    let _ = client.reply(&reply).await;
                });
            }
            Some(_) = clients.join_next() => {}
        }
    }
}
