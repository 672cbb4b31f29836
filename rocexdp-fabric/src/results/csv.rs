//! Results as CSV (RFC 4180), a file of each kind for all runs: each line begins with the run's place and seed.
//!
//! Columns are only ever added at the end.

use std::fmt::Write;

use super::{Report, Run};

/// A file's name and its text.
pub type File = (&'static str, String);

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

fn option<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// All files.
#[must_use]
pub fn files(report: &Report) -> Vec<File> {
    vec![
        ("runs.csv", runs(report)),
        ("flows.csv", each(report, FLOWS, flows)),
        ("queues.csv", each(report, QUEUES, queues)),
        ("links.csv", each(report, LINKS, links)),
        ("flow_series.csv", each(report, FLOW_SERIES, flow_series)),
        ("port_series.csv", each(report, PORT_SERIES, port_series)),
    ]
}

const FLOWS: &str = "flow,from,to,class,bytes,delivered,start_s,end_s,fct_s,ideal_s,slowdown,goodput_bps,retransmissions,cnps,cuts,error";
const QUEUES: &str = "switch,port,to,priority,packets,bytes,marked,dropped,mean_bytes,max_bytes,pauses_sent,pauses_received,paused_s,pausing_s";
const LINKS: &str = "link,from,to,rate_bps,packets,bytes,utilisation,lost_fault,lost_down,corrupted,duplicated,reordered,pause_frames";
const FLOW_SERIES: &str = "time_s,flow,bps";
const PORT_SERIES: &str = "time_s,port,queue_bytes,packets,marked,paused_share,pausing_share";

fn each(report: &Report, columns: &str, lines: fn(&Run, &str, &mut String)) -> String {
    let mut out = format!("run,seed,{columns}\n");
    for (n, run) in report.runs.iter().enumerate() {
        lines(run, &format!("{n},{}", run.seed), &mut out);
    }
    out
}

fn runs(report: &Report) -> String {
    // All runs of a study have the same swept keys.
    let keys: Vec<&String> = report
        .runs
        .first()
        .map(|run| run.parameters.keys().collect())
        .unwrap_or_default();
    let mut out = String::from("run,seed");
    for key in &keys {
        _ = write!(out, ",{}", quoted(key));
    }
    out.push_str(",mode,host,control,ended,simulated_s,flows,finished,failed,bytes,goodput_bps,packets,packet_hops,marked,cnps,retransmissions,pauses,paused_s,dropped,jain,slowdown_mean,slowdown_p50,slowdown_p99,deadlocks\n");
    for (n, run) in report.runs.iter().enumerate() {
        _ = write!(out, "{n},{}", run.seed);
        for key in &keys {
            _ = write!(
                out,
                ",{}",
                quoted(run.parameters.get(*key).map_or("", String::as_str))
            );
        }
        let t = &run.totals;
        let ended = serde_json::to_value(run.ended).ok();
        let slowdown = run.slowdown.as_ref().map(|slowdown| &slowdown.all);
        _ = writeln!(
            out,
            ",{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            run.mode,
            run.host,
            run.control,
            ended.as_ref().and_then(|word| word.as_str()).unwrap_or(""),
            run.simulated_s,
            t.flows,
            t.finished,
            t.failed,
            t.bytes,
            t.goodput_bps,
            t.packets,
            t.packet_hops,
            t.marked,
            t.cnps,
            t.retransmissions,
            t.pauses,
            t.paused_s,
            t.dropped,
            option(run.jain),
            option(slowdown.map(|all| all.mean)),
            option(slowdown.map(|all| all.p50)),
            option(slowdown.map(|all| all.p99)),
            run.deadlocks.len(),
        );
    }
    out
}

fn flows(run: &Run, key: &str, out: &mut String) {
    for (n, flow) in run.flows.iter().enumerate() {
        _ = writeln!(
            out,
            "{key},{n},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            flow.from,
            flow.to,
            quoted(&flow.class),
            option(flow.bytes),
            flow.delivered,
            flow.start_s,
            option(flow.end_s),
            option(flow.fct_s),
            option(flow.ideal_s),
            option(flow.slowdown),
            flow.goodput_bps,
            option(flow.retransmissions),
            option(flow.cnps),
            option(flow.cuts),
            quoted(flow.error.as_deref().unwrap_or("")),
        );
    }
}

fn queues(run: &Run, key: &str, out: &mut String) {
    for q in &run.queues {
        _ = writeln!(
            out,
            "{key},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            q.switch,
            q.port,
            q.to,
            q.priority,
            q.packets,
            q.bytes,
            q.marked,
            q.dropped,
            q.mean_bytes,
            q.max_bytes,
            q.pauses_sent,
            q.pauses_received,
            q.paused_s,
            q.pausing_s
        );
    }
}

fn links(run: &Run, key: &str, out: &mut String) {
    for l in &run.links {
        _ = writeln!(
            out,
            "{key},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            l.name,
            l.from,
            l.to,
            l.rate_bps,
            l.packets,
            l.bytes,
            l.utilisation,
            l.lost_fault,
            l.lost_down,
            l.corrupted,
            l.duplicated,
            l.reordered,
            l.pause_frames
        );
    }
}

fn flow_series(run: &Run, key: &str, out: &mut String) {
    let series = &run.series;
    let step = super::series::seconds(series.step);
    for flow in &series.flows {
        for (n, bytes) in flow.bytes.iter().enumerate() {
            let bps = f64::from(*bytes) * 8.0 / step;
            _ = writeln!(out, "{key},{},{},{bps}", series.time_s(n), flow.flow);
        }
    }
}

fn port_series(run: &Run, key: &str, out: &mut String) {
    let series = &run.series;
    for port in &series.ports {
        for n in 0..series.steps {
            let at = |values: &[f32]| values.get(n).copied().unwrap_or(0.0);
            _ = writeln!(
                out,
                "{key},{},{},{},{},{},{},{}",
                series.time_s(n),
                port.name,
                at(&port.queue),
                at(&port.packets),
                at(&port.marked),
                at(&port.paused),
                at(&port.pausing)
            );
        }
    }
}
