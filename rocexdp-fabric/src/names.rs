//! Names of nodes, and ranges of them: `h3`, `h[0-7]`, `h[0-3,8]`, `leaf[00-15]`, or a list of such.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};

/// Names that one text stands for, at most this many.
const MOST: usize = 1 << 20;
/// Longest name.
const LONGEST: usize = 32;

/// One or several names, in the order written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Names(pub Vec<String>);

impl Names {
    /// Expands one text.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut names = vec![String::new()];
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('[') {
            let (ranges, after) = after
                .split_once(']')
                .ok_or_else(|| format!("{text:?}: a [ without a ]"))?;
            let numbers = numbers(ranges).map_err(|why| format!("{text:?}: {why}"))?;
            if names.len().saturating_mul(numbers.len()) > MOST {
                return Err(format!("{text:?} stands for more than {MOST} names"));
            }
            names = names
                .iter()
                .flat_map(|name| numbers.iter().map(move |n| format!("{name}{before}{n}")))
                .collect();
            rest = after;
        }
        for name in &mut names {
            name.push_str(rest);
            check(name)?;
        }
        Ok(Self(names))
    }
}

fn check(name: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > LONGEST || !name.chars().all(fits) || name.starts_with('-') {
        return Err(format!(
            "{name:?} is no name: 1 to {LONGEST} letters, digits, - _ . and no - in front"
        ));
    }
    Ok(())
}

/// `0-3,8` as the texts of its numbers; leading zeros are kept.
fn numbers(ranges: &str) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for range in ranges.split(',') {
        let range = range.trim();
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            text.parse::<u32>()
                .ok()
                .filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
                .ok_or_else(|| format!("[{ranges}] is no range: write it as in [0-7] or [0-3,8]"))
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to {
            return Err(format!("the range {range} runs backwards"));
        }
        if (to - from) as usize >= MOST {
            return Err(format!("the range {range} has more than {MOST} numbers"));
        }
        let width = if first.starts_with('0') {
            first.len()
        } else {
            0
        };
        all.extend((from..=to).map(|n| format!("{n:0width$}")));
    }
    Ok(all)
}

struct Written;

impl<'de> Visitor<'de> for Written {
    type Value = Names;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name, a range as in \"h[0-7]\", or a list of those")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Names, E> {
        Names::parse(text).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Names, A::Error> {
        let mut names = Names::default();
        while let Some(text) = list.next_element::<String>()? {
            let more = Names::parse(&text).map_err(de::Error::custom)?;
            names.0.extend(more.0);
        }
        if names.0.is_empty() {
            return Err(de::Error::custom("an empty list of names"));
        }
        Ok(names)
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> String {
        Names::parse(text).map_or_else(|why| why, |names| names.0.join(" "))
    }

    #[test]
    fn ranges_expand_in_order() {
        assert_eq!(expanded("h3"), "h3");
        assert_eq!(expanded("h[0-2,7]"), "h0 h1 h2 h7");
        assert_eq!(expanded("leaf[08-10]"), "leaf08 leaf09 leaf10");
        assert_eq!(expanded("r[0-1]h[0-1]x"), "r0h0x r0h1x r1h0x r1h1x");
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for bad in [
            "",
            "h[0-",
            "h[]",
            "h[3-1]",
            "h[a]",
            "h[-1]",
            "h[0-99999999]",
            "a b",
            "-x",
            "h[0-1]é",
        ] {
            assert!(Names::parse(bad).is_err(), "{bad}: {}", expanded(bad));
        }
    }
}
