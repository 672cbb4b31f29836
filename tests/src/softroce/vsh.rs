//! The verbs shell of the guest (`tests/softroce/guest/vsh.c`): any request of libibverbs, by hand.
//!
//! Must not: decide what is right.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::guest::Task;

/// How long the shell may take for a command, beside the time that a `poll` waits itself.
const LIMIT: Duration = Duration::from_secs(60);

/// Byte `i` of the pattern that `fill` makes and `check` knows.
pub fn pattern(seed: u64, i: u64) -> u8 {
    (seed + i + (i >> 8) * 7 + (i >> 16) * 13) as u8
}

/// What the shell answered.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The last line, which begins with `ok` or `err`.
    pub line: String,
    /// Lines before it.
    pub details: Vec<String>,
    fields: HashMap<String, String>,
}

fn fields(line: &str) -> HashMap<String, String> {
    line.split_whitespace()
        .filter_map(|word| word.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl Answer {
    /// Whether it was done.
    pub fn is_ok(&self) -> bool {
        self.line.starts_with("ok")
    }

    /// A number of the last line.
    pub fn number(&self, key: &str) -> u64 {
        let found = self.fields.get(key).and_then(|text| number(text));
        found.unwrap_or_else(|| panic!("no {key}= in {}", self.line))
    }

    /// The completions that a `poll` found.
    pub fn completions(&self) -> Vec<Wc> {
        let lines = self.details.iter().filter(|line| line.starts_with("wc "));
        lines.map(|line| Wc(line.clone(), fields(line))).collect()
    }
}

/// A completion in the guest.
#[derive(Clone, Debug)]
pub struct Wc(String, HashMap<String, String>);

impl Wc {
    /// A number of it: `id`, `status`, `len`, `imm`, `inv`, `src`.
    pub fn get(&self, key: &str) -> Option<u64> {
        self.1.get(key).and_then(|text| number(text))
    }

    /// Kind of request.
    pub fn op(&self) -> &str {
        self.1.get("op").map_or("", String::as_str)
    }

    /// `enum ibv_wc_status`; 0: success.
    pub fn status(&self) -> u64 {
        self.get("status").unwrap()
    }

    /// As the shell wrote it.
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// A shell that runs. Dropped, it and all its objects are gone.
#[derive(Debug)]
pub struct Vsh {
    task: Task,
}

impl Vsh {
    /// Opens the device.
    pub(super) fn open(task: Task) -> Self {
        let mut vsh = Self { task };
        vsh.ask("dev rxe0");
        vsh
    }

    /// Runs a command, whatever comes of it.
    pub fn attempt(&mut self, command: &str) -> Answer {
        self.send(command);
        self.answer(LIMIT)
    }

    /// Runs a command that must do well.
    pub fn ask(&mut self, command: &str) -> Answer {
        let answer = self.attempt(command);
        assert!(
            answer.is_ok(),
            "guest: vsh: {command}: {}",
            [&answer.details.join("\n"), &answer.line]
                .map(String::as_str)
                .join("\n")
        );
        answer
    }

    /// Gives it a command and does not wait; [`Self::answer`] does.
    pub fn send(&mut self, command: &str) {
        self.task.input(&format!("{command}\n"));
    }

    /// The oldest command that it has not answered must have done well.
    pub fn ok(&mut self) -> Answer {
        let answer = self.answer(LIMIT);
        assert!(answer.is_ok(), "guest: vsh: {}", answer.line);
        answer
    }

    /// What it answers to the oldest command that it has not answered.
    pub fn answer(&mut self, limit: Duration) -> Answer {
        let until = Instant::now() + limit;
        let mut details = Vec::new();
        loop {
            let line = self
                .task
                .line(until.saturating_duration_since(Instant::now()));
            if line.starts_with("ok") || line.starts_with("err") {
                return Answer {
                    fields: fields(&line),
                    line,
                    details,
                };
            }
            details.push(line);
        }
    }

    /// Runs commands that must do well, without waiting between them.
    pub fn all(&mut self, commands: &[String]) {
        for command in commands {
            self.send(command);
        }
        for command in commands {
            let answer = self.answer(LIMIT);
            assert!(answer.is_ok(), "guest: vsh: {command}: {}", answer.line);
        }
    }

    /// Waits for completions, which must come.
    pub fn poll(&mut self, count: usize) -> Vec<Wc> {
        self.ask(&format!("poll {count} ms=30000")).completions()
    }
}
