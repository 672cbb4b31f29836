//! The virtual machine: its image, its boot, commands in it, its end.
//!
//! Must not: know verbs.

use std::{
    cell::RefCell,
    fmt::Write as _,
    io::{BufRead, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    rc::Rc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    channel::{Channel, Said},
    vsh::Vsh,
};
use crate::process::Outcome;

/// Channels of a guest: as many commands can run at once.
const CHANNELS: usize = 8;
/// How long a command may take that is run to its end.
const LIMIT: Duration = Duration::from_secs(120);
/// `build-image.sh` says by this exit code that the machine lacks something.
const LACKS: i32 = 77;
/// Its name, of which the directory of its sockets is named.
const NAME: &str = "guest";

/// A kernel that the guest can have: those of Debian 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// 6.1, Debian 12's.
    V6_1,
    /// 6.12, from Debian 12's backported kernels.
    V6_12,
}

impl Kernel {
    /// All of them.
    pub const EACH: [Self; 2] = [Self::V6_1, Self::V6_12];

    /// The one that `ROCEXDP_INTEROP_KERNEL` names.
    pub fn asked_for() -> Option<Self> {
        let name = std::env::var("ROCEXDP_INTEROP_KERNEL").ok()?;
        let found = Self::EACH.into_iter().find(|kernel| kernel.name() == name);
        Some(found.unwrap_or_else(|| {
            panic!("ROCEXDP_INTEROP_KERNEL={name}: there are 6.1 and 6.12");
        }))
    }

    /// As the scripts name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
        }
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("softroce")
        .join(name)
}

/// A guest that runs. Dropped, it is ended.
#[derive(Debug)]
pub struct Guest {
    kernel: Kernel,
    /// Sockets and logs.
    place: TempDir,
    /// Channels that no command has.
    free: Rc<RefCell<Vec<usize>>>,
    /// Kernel and packages in it.
    versions: String,
}

impl Guest {
    /// Boots one with its network interface on `tap` in a namespace.
    ///
    /// # Errors
    /// What this machine lacks: a program, a package.
    pub fn boot(kernel: Kernel, netns: &str, nic: &str) -> Result<Self, String> {
        Self::boot_with(kernel, netns, nic, &[])
    }

    /// The same with `more` options of `run-peer.sh`.
    ///
    /// # Errors
    /// As [`Self::boot`].
    pub fn boot_with(
        kernel: Kernel,
        netns: &str,
        nic: &str,
        more: &[&str],
    ) -> Result<Self, String> {
        let built = Command::new(script("build-image.sh"))
            .args(["--kernel", kernel.name()])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&built.stderr).trim().to_owned();
        match built.status.code() {
            Some(0) => {}
            Some(LACKS) => return Err(said),
            _ => panic!("building the guest's image: {said}"),
        }
        let mut guest = Self {
            kernel,
            // Short: a socket's path has at most 107 bytes.
            place: TempDir::with_prefix_in("rxi", "/tmp").unwrap(),
            free: Rc::new(RefCell::new((0..CHANNELS).rev().collect())),
            versions: String::new(),
        };
        let booted = Command::new(script("run-peer.sh"))
            .arg(NAME)
            .args(["--kernel", kernel.name(), "--netns", netns, "--nic", nic])
            .args(["--timeout", "300"])
            .args(more)
            .env("SOFTROCE_RUN", guest.place.path())
            .output()
            .unwrap();
        assert!(
            booted.status.success(),
            "booting the guest: {}",
            String::from_utf8_lossy(&booted.stderr)
        );
        guest.versions = guest.run("cat /etc/versions").ok().stdout;
        Ok(guest)
    }

    /// Its kernel.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Kernel and packages in it, one a line.
    pub fn versions(&self) -> &str {
        &self.versions
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.place.path().join(NAME).join(name)
    }

    /// Starts a command in the background; its end ends with the [`Task`].
    pub fn start(&self, command: &str) -> Task {
        let number = self.free.borrow_mut().pop();
        let number = number.expect("the guest runs at most 8 commands at once");
        let mut channel = Channel::open(&self.socket(&format!("cmd{number}.sock")));
        channel.start(command);
        Task {
            free: Rc::clone(&self.free),
            number,
            channel,
            what: format!("guest: {command}"),
            started: Instant::now(),
            stdout: Vec::new(),
            stderr: Vec::new(),
            code: None,
        }
    }

    /// Runs a command to its end.
    pub fn run(&self, command: &str) -> Outcome {
        let mut task = self.start(command);
        task.channel.end_input();
        task.finish(LIMIT)
    }

    /// A verbs shell on the device `rxe0`.
    pub fn vsh(&self) -> Vsh {
        Vsh::open(self.start("exec vsh"))
    }

    /// Stops its processors: it does nothing any more, and does not know.
    pub fn pause(&self) {
        self.qmp("stop");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.qmp("cont");
    }

    /// A command of QEMU's machine protocol.
    fn qmp(&self, command: &str) {
        let stream = UnixStream::connect(self.socket("qmp.sock")).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let mut lines = BufReader::new(&stream).lines();
        lines.next().unwrap().unwrap();
        for command in ["qmp_capabilities", command] {
            let mut text = json!({ "execute": command }).to_string();
            text.push('\n');
            (&stream).write_all(text.as_bytes()).unwrap();
            // Events may come between.
            let answer = lines
                .by_ref()
                .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap())
                .find(|answer| answer.get("event").is_none())
                .unwrap();
            assert!(answer.get("return").is_some(), "{command}: {answer}");
        }
    }

    /// Ends it as a power cut does.
    pub fn kill(&self) {
        let _ = Command::new(script("stop-peer.sh"))
            .arg(NAME)
            .env("SOFTROCE_RUN", self.place.path())
            .output();
    }

    /// What its kernel has said, for a failure.
    pub fn console(&self) -> String {
        std::fs::read_to_string(self.socket("console.log")).unwrap_or_default()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let mut last = String::new();
            let console = self.console();
            let lines: Vec<&str> = console.lines().collect();
            for line in lines.iter().rev().take(20).rev() {
                let _ = writeln!(last, "{line}");
            }
            eprintln!("-- the guest's console:\n{last}");
        }
    }
}

/// A command that runs in the guest. Dropped, it is killed.
#[derive(Debug)]
pub struct Task {
    free: Rc<RefCell<Vec<usize>>>,
    number: usize,
    channel: Channel,
    what: String,
    started: Instant,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    code: Option<i32>,
}

impl Task {
    /// Gives it input.
    pub fn input(&mut self, text: &str) {
        self.channel.input(text.as_bytes());
    }

    /// Sends a signal to it and what it started.
    pub fn signal(&mut self, number: u8) {
        self.channel.signal(number);
    }

    /// Takes what it has said meanwhile; true if something came before `until`.
    fn listen(&mut self, until: Instant) -> bool {
        match self.channel.next(until) {
            Some(Said::Out(bytes)) => self.stdout.extend(bytes),
            Some(Said::Err(bytes)) => self.stderr.extend(bytes),
            Some(Said::Exit(code)) => self.code = Some(code),
            None => return false,
        }
        true
    }

    /// Takes the next line of its standard output.
    pub(super) fn line(&mut self, limit: Duration) -> String {
        let until = Instant::now() + limit;
        loop {
            if let Some(end) = self.stdout.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.stdout.drain(..=end).collect();
                return String::from_utf8_lossy(&line).trim_end().to_owned();
            }
            assert!(
                self.code.is_none() && self.listen(until),
                "{}: says nothing more within {limit:?}: {}",
                self.what,
                String::from_utf8_lossy(&self.stderr)
            );
        }
    }

    /// Waits until it has said `part`, on either output.
    pub fn says(&mut self, limit: Duration, part: &str) {
        let until = Instant::now() + limit;
        loop {
            let said = [&self.stdout, &self.stderr].map(|text| String::from_utf8_lossy(text));
            if said.iter().any(|text| text.contains(part)) {
                return;
            }
            let said = said.join("");
            assert!(
                self.code.is_none() && self.listen(until),
                "{}: {part:?} is not said within {limit:?}: {said}",
                self.what
            );
        }
    }

    /// Waits for its end; still running at the limit is a failure.
    pub fn finish(mut self, limit: Duration) -> Outcome {
        let until = Instant::now() + limit;
        while self.code.is_none() {
            if !self.listen(until) {
                panic!(
                    "{} did not end within {limit:?}: {}{}",
                    self.what,
                    String::from_utf8_lossy(&self.stdout),
                    String::from_utf8_lossy(&self.stderr)
                );
            }
        }
        Outcome {
            what: self.what.clone(),
            // A shell's way to say that a signal ended it.
            code: self.code.filter(|code| *code < 128),
            stdout: String::from_utf8_lossy(&self.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&self.stderr).into_owned(),
            elapsed: self.started.elapsed(),
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // The guest kills what runs when the session closes.
        self.free.borrow_mut().push(self.number);
    }
}
