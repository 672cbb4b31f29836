//! A TOML text with its name, and errors that say where in it.
//!
//! Must not: open files; the caller reads them and gives names for messages.

use std::{fmt, ops::Range};

use serde::de::DeserializeOwned;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

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

/// A text and its name; or two, where a scenario names its fabric's file: places in the second come after the first's end.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    name: &'a str,
    text: &'a str,
    second: Option<(&'a str, &'a str)>,
}

impl<'a> Source<'a> {
    /// A text, and its name in messages: the file's path.
    #[must_use]
    pub const fn new(name: &'a str, text: &'a str) -> Self {
        Self {
            name,
            text,
            second: None,
        }
    }

    /// The same with a second text.
    #[must_use]
    pub const fn with(self, name: &'a str, text: &'a str) -> Self {
        Self {
            second: Some((name, text)),
            ..self
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'a str {
        self.name
    }

    /// An error at a place.
    #[must_use]
    pub fn error(&self, at: Range<usize>, reason: impl fmt::Display) -> Error {
        let (name, text, start) = match (self.second, at.start.checked_sub(self.text.len() + 1)) {
            (Some((name, text)), Some(start)) => (name, text, start),
            _ => (self.name, self.text, at.start),
        };
        let before = text.get(..start).unwrap_or(text);
        Error {
            file: name.to_owned(),
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

    /// The second text as a tree, with places as [`Source::error`] takes them.
    ///
    /// # Errors
    /// There is none, or it is no TOML.
    pub fn second_tree(&self) -> Result<Spanned<DeTable<'a>>, Error> {
        let (name, text) = self.second.unwrap_or_default();
        let tree = Source::new(name, text).tree()?;
        let (span, by) = (tree.span(), self.text.len() + 1);
        let table = shifted(tree.into_inner(), by);
        Ok(Spanned::new(span.start + by..span.end + by, table))
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

/// A table with all places moved.
fn shifted(table: DeTable<'_>, by: usize) -> DeTable<'_> {
    let entries = table.into_iter();
    entries
        .map(|(key, value)| {
            let at = key.span();
            let key = Spanned::new(at.start + by..at.end + by, key.into_inner());
            (key, shifted_value(value, by))
        })
        .collect()
}

fn shifted_value(value: Spanned<DeValue<'_>>, by: usize) -> Spanned<DeValue<'_>> {
    let at = value.span();
    let moved = match value.into_inner() {
        DeValue::Table(table) => DeValue::Table(shifted(table, by)),
        DeValue::Array(mut array) => {
            for value in array.iter_mut() {
                let inner = std::mem::replace(value, Spanned::new(0..0, DeValue::Boolean(false)));
                *value = shifted_value(inner, by);
            }
            DeValue::Array(array)
        }
        other => other,
    };
    Spanned::new(at.start + by..at.end + by, moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_file_and_line() {
        let source = Source::new("x.toml", "a = 1\nb = 2\nc = =\n");
        assert_eq!(source.error(6..7, "no").to_string(), "x.toml:2: no");
        assert_eq!(source.error_anywhere("no").to_string(), "x.toml: no");
        let error = source.tree().unwrap_err();
        assert_eq!(error.line, Some(3), "{error}");
    }

    #[test]
    fn places_of_a_second_text_are_told_apart() {
        let source = Source::new("a.toml", "a = 1\n").with("b.toml", "\nb = [\n{ c = 2 }]\n");
        let tree = source.second_tree().unwrap();
        let b = tree.get_ref().get("b").unwrap();
        let c = b.get_ref().as_array().unwrap().first().unwrap();
        assert_eq!(source.error(b.span(), "no").to_string(), "b.toml:2: no");
        assert_eq!(source.error(c.span(), "no").to_string(), "b.toml:3: no");
        assert_eq!(source.error(0..1, "no").to_string(), "a.toml:1: no");
        let source = source.with("b.toml", "x");
        assert_eq!(source.second_tree().unwrap_err().file, "b.toml");
    }
}
