//! A TOML text with its name, and errors that say where in it.
//!
//! Must not: open files; the caller reads them and gives names for messages.

use std::{fmt, ops::Range};

use serde::de::DeserializeOwned;
use toml::{Spanned, de::DeTable};

/// Why a text is refused: file, line, reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// Name of the text, as its reader gave it.
    pub file: String,
    /// Line, from 1; `None` where no line is at fault.
    pub line: Option<usize>,
    /// What is wrong and what to do.
    pub reason: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.reason),
            None => write!(f, "{}: {}", self.file, self.reason),
        }
    }
}

impl std::error::Error for Error {}

/// A text and its name.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Name in messages: the file's path.
    pub name: &'a str,
    /// The TOML.
    pub text: &'a str,
}

impl<'a> Source<'a> {
    /// An error at a place.
    #[must_use]
    pub fn error(&self, at: Range<usize>, reason: impl fmt::Display) -> Error {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        Error {
            file: self.name.to_owned(),
            line: Some(before.bytes().filter(|byte| *byte == b'\n').count() + 1),
            reason: reason.to_string(),
        }
    }

    /// An error of the whole text.
    #[must_use]
    pub fn error_anywhere(&self, reason: impl fmt::Display) -> Error {
        Error {
            file: self.name.to_owned(),
            line: None,
            reason: reason.to_string(),
        }
    }

    /// An error at a value, if it has a place.
    #[must_use]
    pub fn error_at<T>(&self, value: Option<&Spanned<T>>, reason: impl fmt::Display) -> Error {
        match value {
            Some(value) => self.error(value.span(), reason),
            None => self.error_anywhere(reason),
        }
    }

    /// The text as a tree whose values know their places.
    ///
    /// # Errors
    /// No TOML.
    pub fn tree(&self) -> Result<Spanned<DeTable<'a>>, Error> {
        DeTable::parse(self.text).map_err(|error| self.refused(&error))
    }

    /// A tree of this text as a structure.
    ///
    /// # Errors
    /// Keys that are unknown or missing, values of another type.
    pub fn read<T: DeserializeOwned>(&self, tree: Spanned<DeTable<'_>>) -> Result<T, Error> {
        T::deserialize(toml::de::Deserializer::from(tree)).map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &toml::de::Error) -> Error {
        // Several lines of expectations are one to a reader.
        let reason = error.message().lines().collect::<Vec<_>>().join("; ");
        match error.span() {
            Some(span) => self.error(span, reason),
            None => self.error_anywhere(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_file_and_line() {
        let source = Source {
            name: "x.toml",
            text: "a = 1\nb = 2\nc = =\n",
        };
        assert_eq!(source.error(6..7, "no").to_string(), "x.toml:2: no");
        assert_eq!(source.error_anywhere("no").to_string(), "x.toml: no");
        let error = source.tree().unwrap_err();
        assert_eq!(error.line, Some(3), "{error}");
    }
}
