//! Round-trip times as JSON.

use rocexdp_common::maps;
use serde::Serialize;

/// Round-trip times: `rocexdp_common::maps::Rtt`. Quantiles are upper bounds, exact to a factor of two.
#[derive(Clone, Debug, Serialize)]
pub struct Rtt {
    /// Times measured.
    pub samples: u64,
    /// Mean; null: nothing measured.
    pub mean_ns: Option<u64>,
    /// Half are at most this.
    pub p50_ns: Option<u64>,
    /// 99 % are at most this.
    pub p99_ns: Option<u64>,
    /// Longest.
    pub max_ns: Option<u64>,
    /// Entry `i`: times from `2^i` ns up to, not including, `2^(i+1)` ns. Up to the last that is not 0.
    pub log2_ns: Vec<u64>,
}

impl From<&maps::Rtt> for Rtt {
    fn from(rtt: &maps::Rtt) -> Self {
        let samples = rtt.count();
        let used = rtt.buckets.iter().rposition(|n| *n != 0);
        Self {
            samples,
            mean_ns: rtt.sum_ns.checked_div(samples),
            p50_ns: rtt.quantile(0.5),
            p99_ns: rtt.quantile(0.99),
            max_ns: (samples != 0).then_some(rtt.max_ns),
            log2_ns: rtt
                .buckets
                .iter()
                .take(used.map_or(0, |i| i + 1))
                .copied()
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_measured_is_null_not_zero() {
        let json = serde_json::to_value(Rtt::from(&maps::Rtt::ZERO)).unwrap();
        assert_eq!(json["samples"], 0);
        for key in ["mean_ns", "p50_ns", "p99_ns", "max_ns"] {
            assert!(json[key].is_null(), "{key}");
        }
        let mut rtt = maps::Rtt::ZERO;
        rtt.take(5);
        rtt.take(7);
        let json = serde_json::to_value(Rtt::from(&rtt)).unwrap();
        assert_eq!(json["mean_ns"], 6);
        assert_eq!(json["log2_ns"], serde_json::json!([0, 0, 2]));
    }
}
