//! Families of series, and their text in the Prometheus exposition format 0.0.4.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet, prometheus_text},
    metrics::{MetricType, exemplar::Exemplar},
    registry::Registry,
};

/// Content type of the text.
pub use prometheus_client::encoding::prometheus_text::CONTENT_TYPE;

/// Label names and values of a series.
pub type Labels = Vec<(&'static str, String)>;

/// The value of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum Sample {
    /// A counter.
    Count(u64),
    /// A counter of seconds.
    Seconds(f64),
    /// A gauge.
    Gauge(f64),
    /// A histogram: sum, number, and per bucket its upper bound (inclusive) and what fell into it alone.
    Histogram(f64, u64, Vec<(f64, u64)>),
}

impl Sample {
    const fn kind(&self) -> MetricType {
        match self {
            Self::Count(_) | Self::Seconds(_) => MetricType::Counter,
            Self::Gauge(_) => MetricType::Gauge,
            Self::Histogram(..) => MetricType::Histogram,
        }
    }
}

/// All series of one name; they have values of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Without the prefix `rocexdp_` and without `_total`.
    pub name: String,
    /// For people, in one line.
    pub help: String,
    /// Its series.
    pub series: Vec<(Labels, Sample)>,
}

/// Everything of one scrape.
#[derive(Clone, Debug, Default)]
pub struct Page {
    families: Vec<Family>,
}

impl Page {
    /// Adds a series; the first of a name brings the help.
    pub fn add(&mut self, name: &str, help: &str, labels: Labels, sample: Sample) {
        let family = match self.families.iter_mut().position(|f| f.name == name) {
            Some(at) => self.families.get_mut(at),
            None => {
                self.families.push(Family {
                    name: name.to_owned(),
                    help: help.to_owned(),
                    series: Vec::new(),
                });
                self.families.last_mut()
            }
        };
        if let Some(family) = family {
            family.series.push((labels, sample));
        }
    }

    /// A counter.
    pub fn count(&mut self, name: &str, help: &str, labels: Labels, value: u64) {
        self.add(name, help, labels, Sample::Count(value));
    }

    /// A gauge.
    pub fn gauge(&mut self, name: &str, help: &str, labels: Labels, value: f64) {
        self.add(name, help, labels, Sample::Gauge(value));
    }

    /// Number of series.
    #[must_use]
    pub fn series(&self) -> usize {
        self.families.iter().map(|f| f.series.len()).sum()
    }

    /// The text.
    ///
    /// # Errors
    /// A family has series of several kinds.
    pub fn encode(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("rocexdp");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        prometheus_text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for family in &self.families {
            let Some((_, first)) = family.series.first() else {
                continue;
            };
            let kind = first.kind();
            let mut metric = encoder.encode_descriptor(&family.name, &family.help, None, kind)?;
            for (labels, sample) in &family.series {
                let mut one = metric.encode_family(labels)?;
                match sample {
                    Sample::Count(n) => {
                        one.encode_counter(n, None::<&Exemplar<NoLabelSet, f64>>)?
                    }
                    Sample::Seconds(s) => {
                        one.encode_counter(s, None::<&Exemplar<NoLabelSet, f64>>)?
                    }
                    Sample::Gauge(value) => one.encode_gauge(value)?,
                    Sample::Histogram(sum, count, buckets) => {
                        one.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Labels from pairs.
#[must_use]
pub fn labels(pairs: &[(&'static str, &str)]) -> Labels {
    pairs
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_in_the_text_format() {
        let mut page = Page::default();
        page.count(
            "rx_bytes",
            "Bytes",
            labels(&[("iface", "a\"b\\c\nd")]),
            u64::MAX,
        );
        page.gauge(
            "up",
            "Whether it is read",
            labels(&[("iface", "eth0")]),
            1.0,
        );
        page.gauge("up", "not taken", labels(&[("iface", "eth1")]), 0.0);
        let histogram = Sample::Histogram(0.5, 3, vec![(0.001, 1), (0.1, 1)]);
        page.add("rtt_seconds", "Round trips", labels(&[]), histogram);
        assert_eq!(page.series(), 4);
        let text = page.encode().unwrap();
        for line in [
            "# HELP rocexdp_rx_bytes_total Bytes",
            "# TYPE rocexdp_rx_bytes_total counter",
            "rocexdp_rx_bytes_total{iface=\"a\\\"b\\\\c\\nd\"} 18446744073709551615",
            "# TYPE rocexdp_up gauge",
            "rocexdp_up{iface=\"eth1\"} 0",
            "# TYPE rocexdp_rtt_seconds histogram",
            "rocexdp_rtt_seconds_bucket{le=\"0.001\"} 1",
            "rocexdp_rtt_seconds_bucket{le=\"0.1\"} 2",
            "rocexdp_rtt_seconds_bucket{le=\"+Inf\"} 3",
            "rocexdp_rtt_seconds_count 3",
        ] {
            assert!(
                text.lines()
                    .any(|l| l == line || l.trim_end_matches(".0") == line),
                "{line} in\n{text}"
            );
        }
        assert_eq!(text.matches("# HELP rocexdp_up").count(), 1);
    }
}
