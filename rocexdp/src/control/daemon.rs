//! `rocexdp run`: one interface's node, its control socket, and the exchange with peers.
//!
//! Says on standard output `ready ...` when everything is open, and on standard error what happens meanwhile. Ends on
//! SIGINT, SIGTERM or SIGHUP with nothing left: the socket file is removed and the XDP program detached; after `kill -9` the
//! kernel detaches the program, and the next start removes the socket file.

use std::{
    io::Write,
    net::SocketAddr,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use rustix::fs::{Gid, Mode};
use tokio::{
    net::{TcpListener, UnixListener},
    sync::{broadcast::error::RecvError, watch},
    task::JoinSet,
};

use super::{
    config::RunOptions,
    copy::{
        CopyProgress,
        receive::{Failure, MAX_CONNECTIONS, Receiver},
        send::{self, CopyJob},
    },
    exchange,
    local::{self, Client, Reply, Request},
    settings,
    sockets::Sockets,
    token::Token,
};
use crate::{
    events::{self, Event, Hub},
    live::Role,
    node::{Node, NodeEvent},
    out::chain,
    process::Signals,
};

/// Connections to the control socket served at once; more wait.
const MAX_CLIENTS: usize = 64;
/// After a failed accept (no file descriptors), wait instead of spinning.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Runs until a signal comes.
///
/// # Errors
/// [`settings::UsageError`]; the node, the control socket or the TCP port can't be opened.
pub async fn run(options: RunOptions) -> anyhow::Result<()> {
    let config = settings::node_config(&options)?;
    let policy = settings::receive_policy(&options)?;
    let mut signals = Signals::new()?;
    let iface = config.iface.clone();

    let node = Arc::new(Node::open(config)?);
    eprintln!("rocexdp: {}", node.report());
    if policy.dir.is_some() && policy.token.is_none() {
        note(format_args!(
            "warning: no token: whoever reaches {} may send files",
            text(options.listen.map(|l| l.0))
        ));
    }
    let path = match &options.socket {
        Some(path) => path.clone(),
        None => local::default_path(&iface)?,
    };
    let (control, socket_file) = open_socket(&path, options.group.as_deref()).await?;
    let exchange = match options.listen {
        Some(listen) => Some(
            TcpListener::bind(listen.0)
                .await
                .with_context(|| format!("listening on {}", listen.0))?,
        ),
        None => None,
    };
    let listening = exchange
        .as_ref()
        .and_then(|listener| listener.local_addr().ok());

    let mut tasks = JoinSet::new();
    let hub = Hub::default();
    tasks.spawn(tell_events(iface.clone(), node.subscribe(), hub.clone()));
    let program = node.report().program_id;
    tasks.spawn(feed_events(iface.clone(), program, hub.clone()));
    tasks.spawn(events::watch_storms(
        iface,
        program,
        Role::Endpoint,
        hub.clone(),
    ));
    tasks.spawn(serve_clients(
        control,
        Arc::clone(&node),
        hub,
        settings::linger(&options),
    ));
    if let Some(exchange) = exchange {
        let receiver = Arc::new(Receiver::new(Arc::clone(&node), policy));
        tasks.spawn(serve_peers(exchange, receiver));
    }
    say_ready(&node, &path, listening);

    let (_, name) = signals.next().await;
    note(format_args!("{name}: ending"));
    // While we listen, nobody else takes the name: later it could be another's socket.
    drop(socket_file);
    tasks.shutdown().await;
    Ok(())
}

/// One line that a script can wait for.
fn say_ready(node: &Node, socket: &Path, listening: Option<SocketAddr>) {
    let report = node.report();
    let mut out = std::io::stdout().lock();
    // Nobody may be reading.
    let _ = writeln!(
        out,
        "ready iface={} mode={} program={} socket={} listen={}",
        report.iface,
        report.mode,
        report.program_id,
        socket.display(),
        text(listening)
    );
    let _ = out.flush();
}

fn text(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "none".to_owned(), |address| address.to_string())
}

fn note(text: impl std::fmt::Display) {
    eprintln!("rocexdp: {text}");
}

/// What the node tells: on standard error, and into the hub.
async fn tell_events(
    iface: String,
    mut events: tokio::sync::broadcast::Receiver<NodeEvent>,
    hub: Hub,
) {
    loop {
        match events.recv().await {
            Ok(event) => {
                note(&event);
                hub.tell(Event::of_node(&iface, &event));
            }
            Err(RecvError::Lagged(lost)) => note(format_args!("{lost} events were lost")),
            Err(RecvError::Closed) => return,
        }
    }
}

/// What the program tells, into the hub only: it can be a lot.
async fn feed_events(iface: String, program: u32, hub: Hub) {
    if let Err(error) = events::feed(iface, program, hub).await {
        note(format_args!(
            "events of packets can't be read: {}",
            chain(&error)
        ));
    }
}

/// Removes the socket file when the daemon ends. To be dropped before the listener.
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may have been removed by hand.
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(crate) async fn open_socket(
    path: &Path,
    group: Option<&str>,
) -> anyhow::Result<(UnixListener, SocketFile)> {
    let what = || format!("control socket {}", path.display());
    // Held until we listen. An operator's own place is the operator's to keep apart.
    let _held = if path.parent() == Some(Path::new(local::DIRECTORY)) {
        let held = Sockets::hold(Path::new(local::DIRECTORY))
            .await
            .with_context(what)?;
        held.remove_abandoned();
        Some(held)
    } else {
        None
    };
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            bail!(
                "{}: something else is there; remove it or use --socket",
                what()
            );
        }
        if local::Daemon::connect(path).await?.is_some() {
            bail!("{}: another rocexdp answers there", what());
        }
        std::fs::remove_file(path).with_context(what)?;
    }
    let group = group
        .map(|group| group_id(group).with_context(what))
        .transpose()?;
    // No one else may connect between bind and chmod. Nothing else makes files at this point.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = listener.with_context(what)?;
    let file = SocketFile(path.to_owned());
    if let Some(group) = group {
        rustix::fs::chown(path, None, Some(group)).with_context(what)?;
        rustix::fs::chmod(path, Mode::from_raw_mode(0o660)).with_context(what)?;
    }
    Ok((listener, file))
}

/// A group by number, or by its name in `/etc/group`.
fn group_id(name: &str) -> anyhow::Result<Gid> {
    if let Ok(number) = name.parse() {
        return Ok(Gid::from_raw(number));
    }
    let groups = std::fs::read_to_string("/etc/group").context("reading /etc/group")?;
    find_group(&groups, name)
        .map(Gid::from_raw)
        .with_context(|| format!("there is no group {name}"))
}

fn find_group(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let found = fields.next() == Some(name);
        fields.nth(1).filter(|_| found)?.parse().ok()
    })
}

async fn serve_clients(listener: UnixListener, node: Arc<Node>, hub: Hub, linger: Duration) {
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if clients.len() < MAX_CLIENTS => match accepted {
                Ok((stream, _)) => {
                    let (node, hub) = (Arc::clone(&node), hub.clone());
                    clients.spawn(serve_client(Client::new(stream), node, hub, linger));
                }
                Err(error) => {
                    note(format_args!("control socket: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = clients.join_next() => {}
        }
    }
}

async fn serve_client(mut client: Client, node: Arc<Node>, hub: Hub, linger: Duration) {
    let reply = match client.request().await {
        Err(error) => Reply::Failed(error.to_string()),
        Ok((Request::Status, _)) => match serde_json::to_value(node.report()) {
            Ok(report) => Reply::Status(report),
            Err(error) => Reply::Failed(error.to_string()),
        },
        Ok((Request::Events { follow }, _)) => {
            return super::events::stream(&mut client, &hub, follow).await;
        }
        Ok((Request::Copy { .. }, None)) => {
            Reply::Failed("no file came with the request".to_owned())
        }
        Ok((
            Request::Copy {
                to,
                path,
                token,
                selective_paths,
            },
            Some(file),
        )) => {
            let token = match token.as_deref().map(Token::from_text).transpose() {
                Ok(token) => token,
                Err(error) => {
                    let _ = client.reply(&Reply::Failed(chain(&error))).await;
                    return;
                }
            };
            match copy(
                &mut client,
                &node,
                CopyJob {
                    file,
                    to,
                    path,
                    token,
                    selective: settings::selective(selective_paths),
                    linger,
                },
            )
            .await
            {
                Some(reply) => reply,
                None => return,
            }
        }
    };
    // The client may be gone.
    let _ = client.reply(&reply).await;
}

/// Copies for a client. `None` when it left.
async fn copy(client: &mut Client, node: &Node, job: CopyJob) -> Option<Reply> {
    let to = job.to;
    let (tell, mut progress) = watch::channel(CopyProgress::default());
    let copying = send::copy(node, job, &tell);
    tokio::pin!(copying);
    loop {
        tokio::select! {
            biased;
            done = &mut copying => return Some(match done {
                Ok(report) => Reply::Done(Box::new(report)),
                Err(error) => {
                    let text = chain(&error);
                    note(format_args!("copy to {to}: {text}"));
                    Reply::Failed(text)
                }
            }),
            () = client.gone() => {
                note(format_args!("copy to {to}: given up by its user"));
                return None;
            }
            changed = progress.changed() => {
                // The copy holds the other end for as long as it runs.
                changed.ok()?;
                let now = *progress.borrow_and_update();
                client.reply(&Reply::Progress(now)).await.ok()?;
            }
        }
    }
}

async fn serve_peers(listener: TcpListener, receiver: Arc<Receiver>) {
    let mut peers = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if peers.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, peer)) => {
                    let peer = SocketAddr::new(exchange::unmapped(peer.ip()), peer.port());
                    let receiver = Arc::clone(&receiver);
                    peers.spawn(async move {
                        match receiver.serve(stream).await {
                            Ok(file) => note(format_args!(
                                "received {:?} from {peer}: {} bytes, SHA-256 {}",
                                file.path, file.bytes, file.sha256
                            )),
                            Err(failure @ Failure::Refused(..)) => note(format_args!("{peer}: {failure}")),
                            Err(Failure::Connection(error)) => {
                                note(format_args!("{peer}: copy not completed: {error}"));
                            }
                        }
                    });
                }
                Err(error) => {
                    note(format_args!("exchange: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = peers.join_next() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name_or_number() {
        let groups = "root:x:0:\nadm:x:4:syslog\nshort\nbad:x:many:\n";
        assert_eq!(find_group(groups, "adm"), Some(4));
        for none in ["none", "short", "bad", ""] {
            assert_eq!(find_group(groups, none), None, "{none}");
        }
        assert_eq!(group_id("1234").unwrap().as_raw(), 1234);
    }

    #[tokio::test]
    async fn the_socket_is_the_owners_alone_and_goes_with_the_daemon() {
        use std::os::unix::fs::MetadataExt;

        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("control.sock");
        let (listener, file) = open_socket(&path, None).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let error = open_socket(&path, None).await.err().unwrap().to_string();
        assert!(error.contains("another rocexdp"), "{error}");
        drop(listener);
        // Left by a daemon that was killed: taken over.
        let (_listener, second) = open_socket(&path, None).await.unwrap();
        drop(second);
        assert!(!path.exists());
        std::fs::write(&path, "mine").unwrap();
        let error = open_socket(&path, None).await.err().unwrap().to_string();
        assert!(error.contains("something else"), "{error}");
        drop(file);
    }
}
