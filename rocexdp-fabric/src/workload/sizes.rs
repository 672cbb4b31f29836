//! Distributions of flow sizes, as cumulative shares with straight lines between their points.
//!
//! The published ones are those that the HPCC paper (Li et al., SIGCOMM 2019) used, with the points of its repository
//! (alibaba-edu/High-Precision-Congestion-Control, `traffic_gen/WebSearch_distribution.txt` and `FbHdp_distribution.txt`):
//! WebSearch after Alizadeh et al., "Data Center TCP", SIGCOMM 2010; FB_Hadoop after Roy et al., "Inside the Social Network's
//! (Datacenter) Network", SIGCOMM 2015. Sizes are drawn as its `custom_rand.py` does: a uniform percentile, interpolated.

use rocexdp_proto::rng::Rng;

use super::random::unit;

/// Bytes and percent.
pub const WEB_SEARCH: &[(f64, f64)] = &[
    (0.0, 0.0),
    (10_000.0, 15.0),
    (20_000.0, 20.0),
    (30_000.0, 30.0),
    (50_000.0, 40.0),
    (80_000.0, 53.0),
    (200_000.0, 60.0),
    (1_000_000.0, 70.0),
    (2_000_000.0, 80.0),
    (5_000_000.0, 90.0),
    (10_000_000.0, 97.0),
    (30_000_000.0, 100.0),
];

/// Bytes and percent.
pub const FB_HADOOP: &[(f64, f64)] = &[
    (0.0, 0.0),
    (100.0, 1.0),
    (200.0, 2.0),
    (300.0, 5.0),
    (350.0, 15.0),
    (400.0, 20.0),
    (500.0, 30.0),
    (600.0, 40.0),
    (700.0, 50.0),
    (1_000.0, 60.0),
    (2_000.0, 67.0),
    (7_000.0, 70.0),
    (30_000.0, 72.0),
    (50_000.0, 82.0),
    (80_000.0, 87.0),
    (120_000.0, 90.0),
    (300_000.0, 95.0),
    (1_000_000.0, 97.5),
    (2_000_000.0, 99.0),
    (10_000_000.0, 100.0),
];

/// Published distributions by name.
pub const PUBLISHED: &[(&str, &[(f64, f64)])] =
    &[("websearch", WEB_SEARCH), ("fb_hadoop", FB_HADOOP)];

/// A distribution.
#[derive(Clone, PartialEq, Debug)]
pub struct Distribution(Vec<(f64, f64)>);

impl Distribution {
    /// A published one.
    ///
    /// # Errors
    /// Lists what there is.
    pub fn named(name: &str) -> Result<Self, String> {
        match PUBLISHED.iter().find(|known| known.0 == name) {
            Some((_, points)) => Ok(Self(points.to_vec())),
            None => {
                let known: Vec<_> = PUBLISHED.iter().map(|known| known.0).collect();
                Err(format!(
                    "no distribution of sizes is called {name:?}: there are {}, or give a list of [bytes, percent]",
                    known.join(", ")
                ))
            }
        }
    }

    /// One's own: bytes and percent, from 0 % to 100 %, both rising.
    ///
    /// # Errors
    /// Says which point is wrong.
    pub fn listed(points: Vec<(f64, f64)>) -> Result<Self, String> {
        let ends = (
            points.first().map(|first| first.1),
            points.last().map(|last| last.1),
        );
        if ends != (Some(0.0), Some(100.0)) {
            return Err("a distribution goes from 0 to 100 percent".to_owned());
        }
        for pair in points.windows(2) {
            if let [before, after] = pair
                && !(after.0 > before.0 && after.1 > before.1 && before.0 >= 0.0 && after.0 < 1e15)
            {
                return Err(format!(
                    "[{}, {}] is not beyond the point before it",
                    after.0, after.1
                ));
            }
        }
        Ok(Self(points))
    }

    /// Mean size in bytes.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let pieces = self.0.windows(2).map(|pair| match pair {
            [a, b] => (a.0 + b.0) / 2.0 * (b.1 - a.1) / 100.0,
            _ => 0.0,
        });
        pieces.sum()
    }

    /// A size, at least 1 byte.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let percent = unit(rng) * 100.0;
        let size = self.0.windows(2).find_map(|pair| match pair {
            [a, b] if percent <= b.1 => Some(a.0 + (b.0 - a.0) / (b.1 - a.1) * (percent - a.1)),
            _ => None,
        });
        (size.unwrap_or(1.0) as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_distribution() {
        for (name, points) in PUBLISHED {
            let sizes = Distribution::named(name).unwrap();
            assert_eq!(Distribution::listed(points.to_vec()).as_ref(), Ok(&sizes));
            let mut rng = Rng::new(7);
            let drawn: Vec<_> = (0..200_000).map(|_| sizes.draw(&mut rng)).collect();
            let mean = drawn.iter().sum::<u64>() as f64 / drawn.len() as f64;
            assert!(
                (mean / sizes.mean() - 1.0).abs() < 0.02,
                "{name}: {mean} of {}",
                sizes.mean()
            );
            for (bytes, percent) in &points[1..] {
                let below = drawn.iter().filter(|size| **size as f64 <= *bytes).count();
                let share = below as f64 / drawn.len() as f64 * 100.0;
                assert!(
                    (share - percent).abs() < 0.5,
                    "{name} {bytes}: {share} % of {percent} %"
                );
            }
        }
        // As the reference's traffic_gen prints it for WebSearch.
        assert!((Distribution(WEB_SEARCH.to_vec()).mean() - 1_711_250.0).abs() < 1.0);
    }

    #[test]
    fn a_distribution_rises_to_all() {
        for bad in [
            vec![],
            vec![(0.0, 0.0), (5.0, 90.0)],
            vec![(0.0, 0.0), (5.0, 50.0), (4.0, 100.0)],
        ] {
            assert!(Distribution::listed(bad).is_err());
        }
    }
}
