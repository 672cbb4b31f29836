//! What was recorded over time, in at most [`MOST`] steps: when a run gets longer, two steps become one.
//!
//! So memory is bounded by what is recorded, not by how long a run lasts, and a run need not know its end.

use rocexdp_sim::picos::Picos;

/// Steps at most.
pub const MOST: usize = 1024;
/// Flows recorded at most.
pub const MOST_FLOWS: usize = 64;

/// Series of one run. All have as many values as there are steps.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Series {
    /// Length of a step.
    pub step: Picos,
    /// Of the flows that were recorded.
    pub flows: Vec<FlowSeries>,
    /// Of switch ports that carried something.
    pub ports: Vec<PortSeries>,
    /// Of directions of links that carried something.
    pub links: Vec<LinkSeries>,
    /// Steps so far.
    pub steps: usize,
}

/// A flow over time.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FlowSeries {
    /// Its place among the run's flows.
    pub flow: usize,
    /// Payload bytes delivered in each step.
    pub bytes: Vec<f32>,
}

/// A switch port over time, all priorities together.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PortSeries {
    /// The switch and who is at the port, as in `s0>h4`.
    pub name: String,
    /// Kmin and Kmax of the default class's queue.
    pub thresholds: Option<(u64, u64)>,
    /// Mean bytes in its queues in each step.
    pub queue: Vec<f32>,
    /// Packets sent.
    pub packets: Vec<f32>,
    /// Packets marked.
    pub marked: Vec<f32>,
    /// Share of the step for which it was paused by its peer, the most of any priority.
    pub paused: Vec<f32>,
    /// Share of the step for which its peer was told to pause, the most of any priority.
    pub pausing: Vec<f32>,
}

/// A direction of a link over time.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LinkSeries {
    /// As in `h0>s0`.
    pub name: String,
    /// Share of each step spent sending.
    pub busy: Vec<f32>,
}

impl Series {
    /// Makes one step of two.
    pub fn halve(&mut self) {
        self.step = self.step + self.step;
        self.steps /= 2;
        let sum = |a: f32, b: f32| a + b;
        let mean = |a: f32, b: f32| (a + b) / 2.0;
        for flow in &mut self.flows {
            pairs(&mut flow.bytes, sum);
        }
        for port in &mut self.ports {
            pairs(&mut port.packets, sum);
            pairs(&mut port.marked, sum);
            for values in [&mut port.queue, &mut port.paused, &mut port.pausing] {
                pairs(values, mean);
            }
        }
        for link in &mut self.links {
            pairs(&mut link.busy, mean);
        }
    }

    /// When a step begins, in seconds.
    #[must_use]
    pub fn time_s(&self, step: usize) -> f64 {
        seconds(self.step) * step as f64
    }
}

fn pairs(values: &mut Vec<f32>, join: impl Fn(f32, f32) -> f32) {
    for n in 0..values.len() / 2 {
        values[n] = join(values[2 * n], values[2 * n + 1]);
    }
    values.truncate(values.len() / 2);
}

/// Seconds of a simulated time.
#[must_use]
pub fn seconds(time: Picos) -> f64 {
    time.0 as f64 / 1e12
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_steps_become_one() {
        let mut series = Series {
            step: Picos(10),
            steps: 4,
            flows: vec![FlowSeries {
                flow: 0,
                bytes: vec![1.0, 2.0, 3.0, 4.0],
            }],
            ports: vec![PortSeries {
                queue: vec![1.0, 3.0, 5.0, 7.0],
                marked: vec![1.0; 4],
                ..PortSeries::default()
            }],
            links: Vec::new(),
        };
        series.halve();
        assert_eq!((series.step, series.steps), (Picos(20), 2));
        assert_eq!(series.flows[0].bytes, [3.0, 7.0]);
        assert_eq!(series.ports[0].queue, [2.0, 6.0]);
        assert_eq!(series.ports[0].marked, [2.0, 2.0]);
    }
}
