//! Processes that a test starts: what they say is collected, they end within a bound, and never outlive the test.

use std::{
    io::Read,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::Value;

/// Time between two looks at something awaited.
const TICK: Duration = Duration::from_millis(5);

/// Waits until `probe` finds what it looks for.
pub fn eventually<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + limit;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(Instant::now() < until, "not within {limit:?}: {what}");
        thread::sleep(TICK);
    }
}

/// How a process ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The command line, for messages.
    pub what: String,
    /// Exit code; `None`: ended by a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// How long it ran.
    pub elapsed: Duration,
}

impl Outcome {
    /// It must have succeeded.
    pub fn ok(self) -> Self {
        assert_eq!(
            self.code,
            Some(0),
            "{}: {}{}",
            self.what,
            self.stdout,
            self.stderr
        );
        self
    }

    /// What it printed, as JSON, after success.
    pub fn json(self) -> Value {
        let Self {
            what,
            stdout,
            stderr,
            ..
        } = self.ok();
        serde_json::from_str(&stdout)
            .unwrap_or_else(|error| panic!("{what}: {error}: {stdout}{stderr}"))
    }

    /// It must have failed with this exit code and said all of these.
    pub fn failed(self, code: i32, parts: &[&str]) -> Self {
        let said = &self.stderr;
        assert_eq!(
            self.code,
            Some(code),
            "{}: {}{said}",
            self.what,
            self.stdout
        );
        for part in parts {
            assert!(
                said.contains(part),
                "{}: {part:?} is not said: {said}",
                self.what
            );
        }
        self
    }
}

/// A process that runs.
#[derive(Debug)]
pub struct Running {
    child: Child,
    what: String,
    started: Instant,
    stdout: Collected,
    stderr: Collected,
}

impl Running {
    /// Starts `command`; `what` is for messages.
    pub fn start(mut command: Command, what: String) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let stdout = Collected::start(child.stdout.take().unwrap());
        let stderr = Collected::start(child.stderr.take().unwrap());
        Self {
            child,
            what,
            started: Instant::now(),
            stdout,
            stderr,
        }
    }

    /// Waits for its end; still running at the limit is a failure.
    pub fn finish(mut self, limit: Duration) -> Outcome {
        let status = self.wait(limit);
        Outcome {
            what: std::mem::take(&mut self.what),
            code: status.code(),
            elapsed: self.started.elapsed(),
            stdout: self.stdout.finish(),
            stderr: self.stderr.finish(),
        }
    }

    fn wait(&mut self, limit: Duration) -> ExitStatus {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() >= until {
                self.kill();
                panic!(
                    "{} did not end within {limit:?}: {}{}",
                    self.what,
                    self.stdout.text(),
                    self.stderr.text()
                );
            }
            thread::sleep(TICK);
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end by SIGTERM, and says how it did.
    pub fn terminate(self, limit: Duration) -> Outcome {
        self.signal("-TERM", limit)
    }

    /// Asks it to end as Ctrl-C does, and says how it did.
    pub fn interrupt(self, limit: Duration) -> Outcome {
        self.signal("-INT", limit)
    }

    fn signal(self, signal: &str, limit: Duration) -> Outcome {
        let pid = self.pid().to_string();
        let asked = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(asked.success(), "{}: can't be asked to end", self.what);
        self.finish(limit)
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// What it has written to standard output so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// What it has written to standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Waits until a line of standard error contains all of `parts`.
    pub fn says(&self, limit: Duration, parts: &[&str]) -> String {
        let until = Instant::now() + limit;
        loop {
            let said = self.stderr();
            let line = said
                .lines()
                .find(|line| parts.iter().all(|part| line.contains(part)));
            if let Some(line) = line {
                return line.to_owned();
            }
            assert!(
                Instant::now() < until,
                "{}: {parts:?} is not said: {said}",
                self.what
            );
            thread::sleep(TICK);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            let said = self.stderr();
            eprintln!("-- {}:\n{said}", self.what);
        }
    }
}

/// What comes out of a pipe, read by a thread that ends with the pipe.
#[derive(Debug)]
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Collected {
    fn start(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let theirs = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut block = [0; 4096];
            while let Ok(read @ 1..) = pipe.read(&mut block) {
                theirs.lock().unwrap().extend_from_slice(&block[..read]);
            }
        });
        Self {
            bytes,
            reader: Some(reader),
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }

    fn finish(&mut self) -> String {
        self.reader.take().unwrap().join().unwrap();
        self.text()
    }
}
