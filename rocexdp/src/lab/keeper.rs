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

use super::{
    Error, Impairment, Lab, LabConfig, LinkDrops, PortCounters, SwitchedConfig, SwitchedLab,
    links::remove_namespaces,
    switched::{self, Records, status::NetworkStatus},
    topology,
};
use crate::sys::netns::NetNs;

const DIRECTORY: &str = "/run/rocexdp";
/// A request or an answer is one line of less than this.
const MAX_LINE: u64 = 4 << 20;
/// Making a lab takes well under a second; a loaded machine is given time.
const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Request {
    Status,
    /// The impairments of what host a and host b send, as text.
    Impair([String; 2]),
    /// Records of what is sent into this link follow the answer, until the asker goes.
    Capture(String),
    Down,
}

/// A lab to make.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Two hosts and a wire.
    Wire(LabConfig),
    /// Hosts and switches.
    Switched(SwitchedConfig),
}

impl Order {
    fn name(&self) -> &str {
        match self {
            Self::Wire(config) => &config.name,
            Self::Switched(config) => &config.name,
        }
    }

    /// That nothing of it exists, and that it makes sense.
    fn check(&self) -> Result<(), Error> {
        match self {
            Self::Wire(config) => {
                config.check()?;
                topology::check_free(&config.name)
            }
            Self::Switched(config) => switched::check_free(config),
        }
    }
}

/// A kept lab of either kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Status {
    /// Hosts and switches.
    Switched(Box<SwitchedStatus>),
    /// Two hosts and a wire.
    Wire(Box<LabStatus>),
}

/// A kept lab with switches at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SwitchedStatus {
    /// The lab's name.
    pub name: String,
    /// The file that its fabric was read from.
    pub file: String,
    /// The keeper's process id.
    pub keeper: u32,
    /// Its network.
    pub network: NetworkStatus,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Status(Status),
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
pub fn up(program: &Path, arguments: &[&str], order: &Order) -> Result<Status, Error> {
    // Before the log of a keeper that is there is touched.
    order.check()?;
    // A lab of the other kind has other namespaces.
    if UnixStream::connect(socket_path(order.name())).is_ok() {
        return Err(Error::Exists(order.name().to_owned()));
    }
    fs::create_dir_all(DIRECTORY).map_err(Error::step("making the keeper's directory"))?;
    let log = log_path(order.name());
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
    let text = serde_json::to_string(order).map_err(|error| Error::Config(error.to_string()))?;
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
        Ok(Answer::Done) => look(order.name()),
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

/// How a kept lab is, whichever its kind.
///
/// # Errors
/// [`Error::Missing`], or the keeper does not answer.
pub fn look(lab: &str) -> Result<Status, Error> {
    match ask(lab, &Request::Status)? {
        Answer::Status(status) => Ok(status),
        answer => Err(unexpected(answer)),
    }
}

/// How a kept lab of two hosts and a wire is.
///
/// # Errors
/// As [`look`]'s, or it is of the other kind.
pub fn status(lab: &str) -> Result<LabStatus, Error> {
    match look(lab)? {
        Status::Wire(status) => Ok(*status),
        Status::Switched(_) => Err(Error::Keeper(format!("lab {lab} has switches, not a wire"))),
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
    let mut expected = topology::namespaces(lab).to_vec();
    expected.extend(listed(lab));
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
            found = remove_namespaces(expected).map_err(Error::step("removing the lab"))?;
            for left in [socket, log_path(lab), list_path(lab)] {
                let _ = fs::remove_file(left);
            }
        }
        Err(error) => return Err(error),
    }
    Ok(found)
}

/// The namespaces of a lab with switches, for when its keeper is killed.
fn list_path(lab: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("lab-{lab}.namespaces"))
}

/// What stands in the list of a lab with switches; only names that are this lab's.
fn listed(lab: &str) -> Vec<String> {
    let text = fs::read_to_string(list_path(lab)).unwrap_or_default();
    let own = format!("{lab}-");
    text.lines()
        .filter(|name| name.starts_with(&own))
        .map(str::to_owned)
        .collect()
}

fn unexpected(answer: Answer) -> Error {
    match answer {
        Answer::Error(text) => Error::Keeper(text),
        _ => Error::Keeper("the lab's keeper is of another version".to_owned()),
    }
}

/// A nanosecond pcap of what is sent into a link of a lab with switches, both ways, from now on; its reader ends it by going.
///
/// # Errors
/// [`Error::Missing`], or the keeper's own error.
pub fn capture(lab: &str, link: &str) -> Result<BufReader<UnixStream>, Error> {
    let (answer, rest) = talk(lab, &Request::Capture(link.to_owned()))?;
    match answer {
        Answer::Done => Ok(rest),
        answer => Err(unexpected(answer)),
    }
}

fn ask(lab: &str, request: &Request) -> Result<Answer, Error> {
    talk(lab, request).map(|(answer, _)| answer)
}

/// Asks, and gives the answer and what comes behind it.
fn talk(lab: &str, request: &Request) -> Result<(Answer, BufReader<UnixStream>), Error> {
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
    let mut reader = BufReader::new(stream);
    io::Read::take(&mut reader, MAX_LINE)
        .read_line(&mut line)
        .map_err(&talking)?;
    let answer = serde_json::from_str(&line)
        .map_err(|_| Error::Keeper("the lab's keeper gave no answer".to_owned()))?;
    // So that who reads on can look at something else in between.
    let soon = Some(Duration::from_millis(200));
    reader.get_ref().set_read_timeout(soon).map_err(&talking)?;
    Ok((answer, reader))
}

/// A lab that is kept.
enum Kept {
    Wire(Box<Lab>),
    Switched(Box<SwitchedLab>),
}

impl Kept {
    fn up(order: Order) -> Result<Self, Error> {
        match order {
            Order::Wire(config) => Lab::up(config).map(|lab| Self::Wire(Box::new(lab))),
            Order::Switched(config) => {
                let making = Error::step("listing the lab's namespaces");
                let list = list_path(&config.name);
                let names = switched::namespaces(&config)?.join("\n");
                fs::create_dir_all(DIRECTORY).map_err(&making)?;
                fs::write(&list, names).map_err(&making)?;
                let lab = SwitchedLab::up(config);
                if lab.is_err() {
                    let _ = fs::remove_file(list);
                }
                lab.map(|lab| Self::Switched(Box::new(lab)))
            }
        }
    }

    fn status(&self) -> Result<Status, Error> {
        match self {
            Self::Wire(lab) => lab_status(lab).map(|status| Status::Wire(Box::new(status))),
            Self::Switched(lab) => Ok(Status::Switched(Box::new(SwitchedStatus {
                name: lab.config().name.clone(),
                file: lab.config().file.clone(),
                keeper: std::process::id(),
                network: lab.status()?,
            }))),
        }
    }

    fn impair(&mut self, [a, b]: [&str; 2]) -> Result<(), String> {
        match self {
            Self::Wire(lab) => set_impairments(lab, a, b),
            Self::Switched(lab) => Err(format!(
                "lab {} has switches: faults of its links are in {} (faults = {{ drop = \"1%\" }})",
                lab.config().name,
                lab.config().file
            )),
        }
    }

    fn capture(&self, link: &str) -> Result<Records, String> {
        match self {
            Self::Wire(lab) => Err(format!(
                "lab {0} has no switches: capture at its hosts (rocexdp lab exec --name {0} a -- tcpdump)",
                lab.config().name
            )),
            Self::Switched(lab) => lab.capture(link).map_err(|error| error.to_string()),
        }
    }

    fn down(self) -> Result<(), Error> {
        match self {
            Self::Wire(lab) => lab.down(),
            Self::Switched(lab) => lab.down(),
        }
    }
}

/// The keeper process: reads an [`Order`] as JSON from standard input, makes the lab, says so on standard output, and
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
    let Started {
        runtime,
        name,
        mut lab,
        listener,
    } = outcome?;
    let result = runtime.block_on(serve(&mut lab, &listener));
    let removed = lab.down();
    let _ = fs::remove_file(socket_path(&name));
    if removed.is_ok() {
        let _ = fs::remove_file(log_path(&name));
        let _ = fs::remove_file(list_path(&name));
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

struct Started {
    runtime: tokio::runtime::Runtime,
    name: String,
    lab: Kept,
    listener: UnixListener,
}

fn start() -> Result<Started, Error> {
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(io::stdin(), MAX_LINE), &mut text)
        .map_err(Error::step("reading the lab's configuration"))?;
    let order: Order =
        serde_json::from_str(&text).map_err(|error| Error::Config(error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::step("starting the keeper's runtime"))?;
    let name = order.name().to_owned();
    let path = socket_path(&name);
    let lab = Kept::up(order)?;
    let binding = Error::step("binding the keeper's socket");
    fs::create_dir_all(DIRECTORY).map_err(&binding)?;
    // The namespaces were ours to make, so a socket here belongs to no one alive.
    let _ = fs::remove_file(&path);
    let listener = {
        let _in_runtime = runtime.enter();
        UnixListener::bind(&path).map_err(&binding)?
    };
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(&binding)?;
    Ok(Started {
        runtime,
        name,
        lab,
        listener,
    })
}

/// Answers until told to remove the lab: then returns whom to tell when that is done.
async fn serve(lab: &mut Kept, listener: &UnixListener) -> io::Result<Option<AsyncStream>> {
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
async fn answer(lab: &mut Kept, mut stream: AsyncStream) -> io::Result<Option<AsyncStream>> {
    let mut line = String::new();
    tokio::io::BufReader::new((&mut stream).take(MAX_LINE))
        .read_line(&mut line)
        .await?;
    let answer = match serde_json::from_str(&line) {
        Ok(Request::Down) => return Ok(Some(stream)),
        Ok(Request::Status) => match lab.status() {
            Ok(status) => Answer::Status(status),
            Err(error) => Answer::Error(error.to_string()),
        },
        Ok(Request::Impair([a, b])) => match lab.impair([&a, &b]) {
            Ok(()) => Answer::Done,
            Err(text) => Answer::Error(text),
        },
        Ok(Request::Capture(link)) => match lab.capture(&link) {
            Ok(records) => {
                let text = serde_json::to_string(&Answer::Done).map_err(io::Error::other)?;
                stream.write_all(format!("{text}\n").as_bytes()).await?;
                let reader = stream.into_std()?;
                reader.set_nonblocking(false)?;
                // Ends with its reader, or with the lab.
                std::thread::Builder::new()
                    .name("lab-capture".to_owned())
                    .spawn(move || records.write_to(reader))?;
                return Ok(None);
            }
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
