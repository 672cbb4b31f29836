//! Events over a control socket: for `rocexdp run` one request among others, for `rocexdp monitor` the only one.

use std::time::Duration;

use tokio::{
    net::UnixListener,
    task::{AbortHandle, JoinSet},
};

use super::{
    daemon::open_socket,
    local::{Client, Daemon, Reply, Request, default_path, monitor_path},
};
use crate::{
    events::{self, Event, Followed, Hub},
    live::Role,
    maps::OwnPrograms,
    out,
    process::Background,
};

/// Connections served at once; more wait.
const MAX_CLIENTS: usize = 64;
/// After a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often is looked whether the interface still has the same program.
const LOOK: Duration = Duration::from_millis(500);

/// What [`follow`] hears.
#[derive(Debug)]
pub enum Heard {
    /// Events of this interface come from now on.
    Listening(String),
    /// None come any more, or yet: nobody answers.
    Silent(String),
    /// An event.
    Event(Box<Event>),
    /// So many were left out, because whoever listens was too slow.
    Missed(String, u64),
}

/// A process is looked for so often.
const AGAIN: Duration = Duration::from_millis(200);
/// A process that has just attached its program may take so many looks until it answers.
const LOOKS: u32 = 25;
/// A follower hears nothing for as long as nothing happens.
pub const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// The process that has the events of an interface: its endpoint's, else its monitor's. `None`: there is none, or it has no control
/// socket.
///
/// # Errors
/// As [`Daemon::connect`].
pub async fn connect(iface: &str) -> anyhow::Result<Option<Daemon>> {
    for path in [default_path(iface)?, monitor_path(iface)?] {
        if let Some(daemon) = Daemon::connect(&path).await? {
            return Ok(Some(daemon));
        }
    }
    Ok(None)
}

/// Tells the events of an interface from `since_ns` (since 1970) on, whoever has them, each once; ends only by being dropped.
/// `tell` says false when it has no room.
pub async fn follow(iface: String, mut since_ns: u64, tell: impl Fn(Heard) -> bool) {
    let (mut looks, mut missed) = (0, 0);
    loop {
        if let Ok(Some(daemon)) = connect(&iface).await {
            if looks <= LOOKS {
                looks = 0;
            }
            let all = hear(daemon, &iface, &mut since_ns, &mut missed, &tell);
            // Whatever ended it, it is looked for again.
            let _ = all.await;
        }
        looks += 1;
        if looks == LOOKS {
            tell(Heard::Silent(iface.clone()));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn hear(
    mut daemon: Daemon,
    iface: &str,
    since_ns: &mut u64,
    missed: &mut u64,
    tell: &impl Fn(Heard) -> bool,
) -> anyhow::Result<()> {
    daemon.ask(Request::Events { follow: true }, None).await?;
    tell(Heard::Listening(iface.to_owned()));
    loop {
        match daemon.reply(FOREVER).await? {
            // After a second connection the kept ones come again.
            Reply::Event(event) if event.time_ns <= *since_ns => {}
            Reply::Event(event) => {
                let time_ns = event.time_ns;
                if *missed > 0 && tell(Heard::Missed(iface.to_owned(), *missed)) {
                    *missed = 0;
                }
                *missed += u64::from(!tell(Heard::Event(event)));
                *since_ns = time_ns.max(*since_ns);
            }
            Reply::Missed(more) => *missed += more,
            _ => return Ok(()),
        }
    }
}

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
    let mut live = follow;
    while live {
        let reply = tokio::select! {
            next = follower.next() => match next {
                Followed::Event(event) => Reply::Event(Box::new((*event).clone())),
                Followed::Missed(missed) => Reply::Missed(missed),
                Followed::End => {
                    live = false;
                    continue;
                }
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
async fn serve(listener: UnixListener, hub: Hub) {
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if clients.len() < MAX_CLIENTS => match accepted {
                Ok((socket, _)) => {
                    clients.spawn(answer(Client::new(socket), hub.clone()));
                }
                // No file descriptors, for instance: wait instead of spinning.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = clients.join_next() => {}
        }
    }
}

async fn answer(mut client: Client, hub: Hub) {
    let reply = match client.request().await {
        Ok((Request::Events { follow }, _)) => return stream(&mut client, &hub, follow).await,
        Ok(_) => Reply::Failed(
            "a monitor has events only: copies and status are `rocexdp run`'s".to_owned(),
        ),
        Err(error) => Reply::Failed(error.to_string()),
    };
    // The client may be gone.
    let _ = client.reply(&reply).await;
}

/// Keeps the events of monitors that this process holds, `own` being their programs, and answers for them on their control sockets. What fails is said on
/// standard error: a monitor without events is one all the same.
///
/// # Errors
/// As [`Background::start`].
pub fn of_monitors(ifaces: Vec<String>, own: &OwnPrograms) -> anyhow::Result<Background> {
    let own = own.clone();
    Background::start("events", async move {
        let mut tasks = JoinSet::new();
        for iface in ifaces {
            tasks.spawn(of_monitor(iface, own.clone()));
        }
        while tasks.join_next().await.is_some() {}
    })
}

async fn of_monitor(iface: String, own: OwnPrograms) {
    let hub = Hub::default();
    let open = async {
        let path = monitor_path(&iface)?;
        open_socket(&path, None).await
    };
    let _socket = match open.await {
        Ok((listener, file)) => {
            let server = tokio::task::spawn(serve(listener, hub.clone()));
            Some((Abort(server.abort_handle()), file))
        }
        Err(error) => {
            out::note(format_args!(
                "rocexdp: {iface}: `rocexdp events` gets no events: {}",
                out::chain(&error)
            ));
            None
        }
    };
    let mut now = None;
    let mut tasks = JoinSet::new();
    loop {
        // The interface may go and come back, and then has another program.
        let there = own.attachment(&iface, now);
        let program = there.ok().map(|attached| attached.program_id);
        if program != now {
            now = program;
            tasks.shutdown().await;
            if let Some(program) = program {
                let (name, to) = (iface.clone(), hub.clone());
                tasks.spawn(async move {
                    if let Err(error) = events::feed(name.clone(), program, to).await {
                        out::note(format_args!("rocexdp: {name}: {}", out::chain(&error)));
                    }
                });
                let storms =
                    events::watch_storms(iface.clone(), program, Role::Monitor, hub.clone());
                tasks.spawn(storms);
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Ends a task when it is dropped.
struct Abort(AbortHandle);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}
