//! The words of a file of the reference's, each with its line, and what numbers, rates and times look like there.
//!
//! ns-3 reads these files word by word; line ends mean nothing to it. `#` starts a comment here.

use std::fmt::Display;

use rocexdp_proto::time::Rate;
use rocexdp_sim::picos::Picos;

use super::clock;

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// The file's name as its reader was told.
    pub file: String,
    /// Line from 1; `None` where it is the whole file's.
    pub line: Option<u32>,
    /// What is wrong and what to do.
    pub reason: String,
}

impl Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.reason),
            None => write!(f, "{}: {}", self.file, self.reason),
        }
    }
}

impl std::error::Error for FileError {}

/// A word and its line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word<'a> {
    pub text: &'a str,
    pub line: u32,
}

/// The words of a file, in order.
pub(super) struct Words<'a> {
    file: &'a str,
    words: std::vec::IntoIter<Word<'a>>,
    /// Line of the latest word.
    line: u32,
}

impl<'a> Words<'a> {
    pub fn new(file: &'a str, text: &'a str) -> Self {
        let words: Vec<_> = (1..)
            .zip(text.lines())
            .flat_map(|(line, text)| {
                let text = text.split('#').next().unwrap_or_default();
                text.split_whitespace().map(move |text| Word { text, line })
            })
            .collect();
        Self {
            file,
            words: words.into_iter(),
            line: 1,
        }
    }

    /// The next word, if there is one.
    pub fn next(&mut self) -> Option<Word<'a>> {
        let word = self.words.next()?;
        self.line = word.line;
        Some(word)
    }

    /// An error at `line`.
    pub fn error(&self, line: u32, reason: impl Into<String>) -> FileError {
        FileError {
            file: self.file.to_owned(),
            line: Some(line),
            reason: reason.into(),
        }
    }

    /// An error where the latest word stands.
    pub fn error_here(&self, reason: impl Into<String>) -> FileError {
        self.error(self.line, reason)
    }

    /// The next word; `what` says what it should have been.
    pub fn word(&mut self, what: &str) -> Result<Word<'a>, FileError> {
        match self.next() {
            Some(word) => Ok(word),
            None => Err(self.error_here(format!("the file ends where {what} should stand"))),
        }
    }

    fn parsed<T>(
        &mut self,
        what: &str,
        takes: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, FileError> {
        let word = self.word(what)?;
        parse(word.text).ok_or_else(|| {
            self.error(
                word.line,
                format!("{what} can't be {:?}: it takes {takes}", word.text),
            )
        })
    }

    /// A whole number in `range`.
    pub fn whole(
        &mut self,
        what: &str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<u64, FileError> {
        let takes = format!("a whole number from {} to {}", range.start(), range.end());
        self.parsed(what, &takes, |t| {
            t.parse().ok().filter(|n| range.contains(n))
        })
    }

    /// A number in `range`.
    pub fn number(
        &mut self,
        what: &str,
        range: std::ops::RangeInclusive<f64>,
    ) -> Result<f64, FileError> {
        let takes = format!("a number from {} to {}", range.start(), range.end());
        self.parsed(what, &takes, |t| {
            t.parse().ok().filter(|n| range.contains(n))
        })
    }

    /// 0 or 1.
    pub fn flag(&mut self, what: &str) -> Result<bool, FileError> {
        Ok(self.whole(what, 0..=1)? == 1)
    }

    /// A rate above zero.
    pub fn rate(&mut self, what: &str) -> Result<Rate, FileError> {
        self.parsed(what, "a rate above zero, as in 25Gbps or 20Mb/s", |t| {
            rate(t).filter(|r| *r > Rate::ZERO)
        })
    }

    /// A time.
    pub fn time(&mut self, what: &str) -> Result<Picos, FileError> {
        self.parsed(what, "a time, as in 1000ns or 1us", time)
    }

    /// A time in seconds, as a number alone, in nanoseconds.
    pub fn seconds(&mut self, what: &str) -> Result<u64, FileError> {
        Ok(clock::nanos_of(self.number(what, 0.0..=1e6)?))
    }
}

/// A number in front and what is left, as C reads them.
fn split_unit(text: &str) -> Option<(f64, &str)> {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    Some((number.parse().ok()?, unit))
}

/// A rate as ns-3's `DataRate` reads it; alone, bits per second.
fn rate(text: &str) -> Option<Rate> {
    let (number, unit) = split_unit(text)?;
    let per_second = |s: &str| unit.strip_suffix(s).filter(|u| !u.is_empty());
    let factor = match per_second("ps").or(per_second("/s")).unwrap_or(unit) {
        "" | "b" => 1.0,
        "B" => 8.0,
        "k" | "K" | "kb" | "Kb" => 1e3,
        "kB" | "KB" => 8e3,
        "Kib" => 1024.0,
        "KiB" => 8.0 * 1024.0,
        "Mb" => 1e6,
        "MB" => 8e6,
        "Mib" => 1_048_576.0,
        "MiB" => 8.0 * 1_048_576.0,
        "Gb" => 1e9,
        "GB" => 8e9,
        "Gib" => 1_073_741_824.0,
        "GiB" => 8.0 * 1_073_741_824.0,
        _ => return None,
    };
    Some(Rate::from_bps((number * factor) as u64))
}

/// A time as ns-3's `Time` reads it; alone, seconds.
fn time(text: &str) -> Option<Picos> {
    let (number, unit) = split_unit(text)?;
    let seconds = match unit {
        "" | "s" => number,
        // Whole nanoseconds stay whole.
        "ns" => return Some(Picos::from_nanos(number as u64)),
        "us" => return Some(Picos::from_nanos((number * 1e3) as u64)),
        "ms" => return Some(Picos::from_nanos((number * 1e6) as u64)),
        _ => return None,
    };
    Some(Picos::from_nanos(clock::nanos_of(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_times_have_the_units_of_ns3() {
        assert_eq!(rate("100Gbps"), Some(Rate::from_gbps(100)));
        assert_eq!(rate("20Mb/s"), Some(Rate::from_mbps(20)));
        assert_eq!(rate("2.5Gb/s"), Some(Rate::from_mbps(2_500)));
        assert_eq!(rate("1MBps"), Some(Rate::from_mbps(8)));
        assert_eq!(rate("1000"), Some(Rate::from_bps(1_000)));
        for bad in ["", "fast", "10parsec", "-1Gbps", "1.2.3Gbps"] {
            assert_eq!(rate(bad), None, "{bad}");
        }
        assert_eq!(time("1000ns"), Some(Picos::from_nanos(1_000)));
        assert_eq!(time("1us"), Some(Picos::from_micros(1)));
        assert_eq!(time("0.5ms"), Some(Picos::from_micros(500)));
        assert_eq!(time("1h"), None);
    }

    #[test]
    fn words_know_their_lines() {
        let mut words = Words::new("f.txt", "a 1 # not this\n\n b x");
        assert_eq!(words.next().map(|w| (w.text, w.line)), Some(("a", 1)));
        assert_eq!(words.whole("n", 0..=9), Ok(1));
        assert_eq!(words.next().map(|w| (w.text, w.line)), Some(("b", 3)));
        let error = words.whole("n", 0..=9).unwrap_err();
        assert_eq!(
            error.to_string(),
            "f.txt:3: n can't be \"x\": it takes a whole number from 0 to 9"
        );
        let error = words.word("m").unwrap_err();
        assert_eq!(
            error.to_string(),
            "f.txt:3: the file ends where m should stand"
        );
    }
}
