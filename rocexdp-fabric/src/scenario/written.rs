//! Values that may be written in several ways: seeds, size distributions.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};

use super::schema::{Seeds, Sizes};

/// Seeds of one scenario at most.
const MOST_SEEDS: usize = 10_000;

fn range<E: de::Error>(text: &str) -> Result<Vec<u64>, E> {
    let bad = || {
        E::custom(format!(
            "{text:?} are no seeds: write a number, or a range as in \"1-5\""
        ))
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let first: u64 = first.trim().parse().map_err(|_| bad())?;
    let last: u64 = last.trim().parse().map_err(|_| bad())?;
    if last < first || last - first >= MOST_SEEDS as u64 {
        return Err(bad());
    }
    Ok((first..=last).collect())
}

struct SeedsWritten;

impl<'de> Visitor<'de> for SeedsWritten {
    type Value = Seeds;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a seed, a range of seeds as in \"1-5\", or a list of those")
    }

    fn visit_i64<E: de::Error>(self, seed: i64) -> Result<Seeds, E> {
        let seed = u64::try_from(seed).map_err(|_| E::custom("a seed is not negative"))?;
        Ok(Seeds(vec![seed]))
    }

    fn visit_u64<E: de::Error>(self, seed: u64) -> Result<Seeds, E> {
        Ok(Seeds(vec![seed]))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Seeds, E> {
        range(text).map(Seeds)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Seeds, A::Error> {
        let mut all = Vec::new();
        while let Some(more) = list.next_element::<Seeds>()? {
            all.extend(more.0);
            if all.len() > MOST_SEEDS {
                return Err(de::Error::custom(format!("more than {MOST_SEEDS} seeds")));
            }
        }
        if all.is_empty() {
            return Err(de::Error::custom("an empty list of seeds"));
        }
        Ok(Seeds(all))
    }
}

impl<'de> Deserialize<'de> for Seeds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SeedsWritten)
    }
}

struct SizesWritten;

impl<'de> Visitor<'de> for SizesWritten {
    type Value = Sizes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a distribution, or a list of [bytes, percent]")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Sizes, E> {
        Ok(Sizes::Named(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Sizes, A::Error> {
        let mut all = Vec::new();
        while let Some(point) = list.next_element::<(f64, f64)>()? {
            all.push(point);
        }
        Ok(Sizes::Listed(all))
    }
}

impl<'de> Deserialize<'de> for Sizes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizesWritten)
    }
}
