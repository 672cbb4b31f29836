//! The process that keeps a lab up for `rocexdp lab up`, and its clients.
//!
//! The keeper owns the [`Lab`]: the wire's program goes with it. It answers a Unix socket, one JSON line for a request and
//! one for the answer, and removes the lab when told so or on SIGTERM or SIGINT. When it is killed the program and its
//! links vanish, and [`down`] still removes what is left.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream as AsyncStream},
    signal::unix::{SignalKind, signal},
};

use super::{Error, Impairment, Lab, LabConfig, LinkDrops, PortCounters, topology};
use crate::sys::netns::NetNs;

const DIRECTORY: &str = "/run/rocexdp";
/// A request or an answer is one line of less than this.
const MAX_LINE: u64 = 64 * 1024;
/// Making a lab takes well under a second; a loaded machine is given time.
const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Request {
    Status,
    /// The impairments of what host a and host b send, as text.
    Impair([String; 2]),
    Down,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Status(Box<LabStatus>),
    Done,
    Error(String),
}

/// A kept lab at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabStatus {
    /// What it looks like.
    pub config: LabConfig,
    /// The keeper's process id.
    pub keeper: u32,
    /// The hosts' interface that has the addresses.
    pub interface: String,
    /// Whether the hosts have IPv6 addresses.
    pub ipv6: bool,
    /// `xdp`, or `userspace` where frames are held.
    pub wire: String,
    /// The impairments of what host a and host b send.
    pub impairments: [String; 2],
    /// What happened to the frames that host a and host b sent.
    pub counters: [PortCounters; 2],
    /// Frames that the links lost.
    pub drops: Vec<LinkDrops>,
}

/// The socket of a lab's keeper.
pub fn socket_path(lab: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("lab-{lab}.sock"))
}

/// What a keeper has to say while it runs: nothing, unless something is wrong.
fn log_path(lab: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("lab-{lab}.log"))
}

/// Starts a keeper as a process of its own, by `program` (this executable) with `arguments` (the hidden subcommand that
/// calls [`keeper_main`]), and waits until its lab is up.
///
/// # Errors
/// The keeper's own error, or that it can't be started.
pub fn up(program: &Path, arguments: &[&str], config: &LabConfig) -> Result<LabStatus, Error> {
    config.check()?;
    // Before the log of a keeper that is there is touched.
    topology::check_free(&config.name)?;
    fs::create_dir_all(DIRECTORY).map_err(Error::step("making the keeper's directory"))?;
    let log = log_path(&config.name);
    let errors = fs::File::create(&log).map_err(Error::step("making the keeper's log"))?;
    let mut keeper = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Not the caller's: whoever reads that to its end would wait for the keeper.
        .stderr(errors)
        // Signals of the terminal (Ctrl-C) are not for the keeper.
        .process_group(0)
        .current_dir("/")
        .spawn()
        .map_err(Error::step("starting the lab's keeper"))?;
    let text = serde_json::to_string(config).map_err(|error| Error::Config(error.to_string()))?;
    if let Some(mut input) = keeper.stdin.take() {
        input
            .write_all(text.as_bytes())
            .map_err(Error::step("telling the keeper what to make"))?;
    }
    let mut line = String::new();
    if let Some(output) = keeper.stdout.take() {
        BufReader::new(io::Read::take(output, MAX_LINE))
            .read_line(&mut line)
            .map_err(Error::step("waiting for the lab's keeper"))?;
    }
    match serde_json::from_str(&line) {
        Ok(Answer::Done) => status(&config.name),
        Ok(Answer::Error(text)) => {
            let _ = keeper.wait();
            let _ = fs::remove_file(&log);
            Err(Error::Keeper(text))
        }
        _ => {
            let ended = keeper
                .wait()
                .map_err(Error::step("waiting for the lab's keeper"))?;
            Err(Error::Keeper(format!(
                "the lab's keeper ended ({ended}): see {}",
                log.display()
            )))
        }
    }
}

/// How a kept lab is.
///
/// # Errors
/// [`Error::Missing`], or the keeper does not answer.
pub fn status(lab: &str) -> Result<LabStatus, Error> {
    match ask(lab, &Request::Status)? {
        Answer::Status(status) => Ok(*status),
        answer => Err(unexpected(answer)),
    }
}

/// Sets the impairments of what host a and host b send. Packets are numbered from 0 again.
///
/// # Errors
/// [`Error::Missing`], or the keeper's own error.
pub fn impair(lab: &str, impairments: [Impairment; 2]) -> Result<(), Error> {
    match ask(
        lab,
        &Request::Impair(impairments.map(|impairment| impairment.to_string())),
    )? {
        Answer::Done => Ok(()),
        answer => Err(unexpected(answer)),
    }
}

/// Removes a lab, whether its keeper is alive or was killed. Returns the namespaces removed.
///
/// # Errors
/// [`Error::Missing`] when there was nothing, or what could not be removed.
pub fn down(lab: &str) -> Result<Vec<String>, Error> {
    let expected = topology::namespaces(lab);
    let all = NetNs::names(lab).map_err(Error::step("listing namespaces"))?;
    let mut found: Vec<_> = all
        .into_iter()
        .filter(|name| expected.contains(name))
        .collect();
    let socket = socket_path(lab);
    match ask(lab, &Request::Down) {
        Ok(Answer::Done) => {}
        Ok(answer) => return Err(unexpected(answer)),
        // Killed, or a lab held by a test or the demo.
        Err(Error::Missing(_)) if found.is_empty() && !socket.exists() => {
            return Err(Error::Missing(lab.to_owned()));
        }
        Err(Error::Missing(_)) => {
            found = topology::remove(lab).map_err(Error::step("removing the lab"))?;
            let _ = fs::remove_file(&socket);
            let _ = fs::remove_file(log_path(lab));
        }
        Err(error) => return Err(error),
    }
    Ok(found)
}

fn unexpected(answer: Answer) -> Error {
    match answer {
        Answer::Error(text) => Error::Keeper(text),
        _ => Error::Keeper("the lab's keeper is of another version".to_owned()),
    }
}

fn ask(lab: &str, request: &Request) -> Result<Answer, Error> {
    let talking = Error::step("talking to the lab's keeper");
    let stream = match UnixStream::connect(socket_path(lab)) {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Err(Error::Missing(lab.to_owned()));
        }
        Err(error) => return Err(talking(error)),
    };
    stream.set_read_timeout(Some(TIMEOUT)).map_err(&talking)?;
    let mut text =
        serde_json::to_string(request).map_err(|error| Error::Config(error.to_string()))?;
    text.push('\n');
    (&stream).write_all(text.as_bytes()).map_err(&talking)?;
    let mut line = String::new();
    BufReader::new(io::Read::take(&stream, MAX_LINE))
        .read_line(&mut line)
        .map_err(&talking)?;
    serde_json::from_str(&line)
        .map_err(|_| Error::Keeper("the lab's keeper gave no answer".to_owned()))
}

/// The keeper process: reads a [`LabConfig`] as JSON from standard input, makes the lab, says so on standard output, and
/// keeps it until told to remove it.
///
/// # Errors
/// What went wrong, which the one who started it has been told already.
pub fn keeper_main() -> Result<(), Error> {
    let outcome = start();
    let answer = match &outcome {
        Ok(_) => Answer::Done,
        Err(error) => Answer::Error(error.to_string()),
    };
    let text = serde_json::to_string(&answer).unwrap_or_default();
    // Nobody may be listening any more: the lab stays up all the same.
    let _ = writeln!(io::stdout(), "{text}");
    let (runtime, mut lab, listener, path) = outcome?;
    let result = runtime.block_on(serve(&mut lab, &listener));
    let log = log_path(&lab.config().name);
    let removed = lab.down();
    let _ = fs::remove_file(path);
    if removed.is_ok() {
        let _ = fs::remove_file(log);
    }
    // Answered only now: whoever asked sees nothing left.
    if let Ok(Some(mut asker)) = result {
        let answer = match &removed {
            Ok(()) => Answer::Done,
            Err(error) => Answer::Error(error.to_string()),
        };
        let _ = runtime.block_on(send(&mut asker, &answer));
    }
    removed
}

type Started = (tokio::runtime::Runtime, Lab, UnixListener, PathBuf);

fn start() -> Result<Started, Error> {
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(io::stdin(), MAX_LINE), &mut text)
        .map_err(Error::step("reading the lab's configuration"))?;
    let config: LabConfig =
        serde_json::from_str(&text).map_err(|error| Error::Config(error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::step("starting the keeper's runtime"))?;
    let path = socket_path(&config.name);
    let lab = Lab::up(config)?;
    let binding = Error::step("binding the keeper's socket");
    fs::create_dir_all(DIRECTORY).map_err(&binding)?;
    // The namespaces were ours to make, so a socket here belongs to no one alive.
    let _ = fs::remove_file(&path);
    let listener = {
        let _in_runtime = runtime.enter();
        UnixListener::bind(&path).map_err(&binding)?
    };
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(&binding)?;
    Ok((runtime, lab, listener, path))
}

/// Answers until told to remove the lab: then returns whom to tell when that is done.
async fn serve(lab: &mut Lab, listener: &UnixListener) -> io::Result<Option<AsyncStream>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted?.0,
            _ = terminate.recv() => return Ok(None),
            _ = interrupt.recv() => return Ok(None),
        };
        // One client at a time, and none may keep the others waiting.
        let served = tokio::time::timeout(Duration::from_secs(5), answer(lab, stream)).await;
        if let Ok(Ok(Some(asker))) = served {
            return Ok(Some(asker));
        }
    }
}

/// Serves one request. Returns the stream when it was to remove the lab.
async fn answer(lab: &mut Lab, mut stream: AsyncStream) -> io::Result<Option<AsyncStream>> {
    let mut line = String::new();
    tokio::io::BufReader::new((&mut stream).take(MAX_LINE))
        .read_line(&mut line)
        .await?;
    let answer = match serde_json::from_str(&line) {
        Ok(Request::Down) => return Ok(Some(stream)),
        Ok(Request::Status) => match lab_status(lab) {
            Ok(status) => Answer::Status(Box::new(status)),
            Err(error) => Answer::Error(error.to_string()),
        },
        Ok(Request::Impair([a, b])) => match set_impairments(lab, &a, &b) {
            Ok(()) => Answer::Done,
            Err(text) => Answer::Error(text),
        },
        Err(error) => Answer::Error(format!("the keeper does not understand: {error}")),
    };
    send(&mut stream, &answer).await?;
    Ok(None)
}

async fn send(stream: &mut AsyncStream, answer: &Answer) -> io::Result<()> {
    let mut text = serde_json::to_string(answer).map_err(io::Error::other)?;
    text.push('\n');
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

fn set_impairments(lab: &mut Lab, a: &str, b: &str) -> Result<(), String> {
    let parse = |text: &str| {
        text.parse::<Impairment>()
            .map_err(|error| error.to_string())
    };
    let faults = [parse(a)?.0, parse(b)?.0];
    lab.impair_each(faults).map_err(|error| error.to_string())
}

fn lab_status(lab: &Lab) -> Result<LabStatus, Error> {
    Ok(LabStatus {
        config: lab.config().clone(),
        keeper: std::process::id(),
        interface: lab.host_interface(),
        ipv6: lab.has_ipv6(),
        wire: if lab.is_relayed() { "userspace" } else { "xdp" }.to_owned(),
        impairments: lab.faults().map(|faults| Impairment(faults).to_string()),
        counters: lab.counters()?,
        drops: lab.link_drops()?,
    })
}
