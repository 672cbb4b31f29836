//! Runs the reference's experiments and holds the results against the published rows.
use std::path::Path;

use rocexdp_fabric::reference::{Case, Config, Settings, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("DIR")?;
    let seeds: u64 = args.next().map_or(Ok(1), |s| s.parse())?;
    let path = Path::new(&dir);
    let (config_path, name) = if path.is_dir() {
        (path.join("config.txt"), path.file_name().unwrap().to_string_lossy().into_owned())
    } else {
        let n = path.file_name().unwrap().to_string_lossy().into_owned();
        (path.to_owned(), n.trim_end_matches("_config.txt").to_owned())
    };
    let base = config_path.parent().unwrap().to_owned();
    let config = Config::read(&config_path.to_string_lossy(), &std::fs::read_to_string(&config_path)?)?;
    let t = base.join(&config.topology_file);
    let f = base.join(&config.flow_file);
    let case = Case::new(&name, config, (&t.to_string_lossy(), &std::fs::read_to_string(&t)?), (&f.to_string_lossy(), &std::fs::read_to_string(&f)?))?;
    for seed in 1..=seeds {
        let start = std::time::Instant::now();
        let out = run(&case, Settings { seed, keep: if std::env::var_os("SERIES").is_some() { (1_000_000, 200_000) } else { (0, 0) } }, |_| true)?;
        let s = out.summary.clone().rounded();
        println!("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}", s.case, s.param_set, s.n, s.link_gbps, s.window_ms, s.util, s.jain_window, s.jain_1ms_mean, s.jain_1ms_min, s.q_mean_bytes, s.q_p50, s.q_p95, s.q_p99, s.q_max_window, s.q_max_all, s.q_std, s.mark_frac, s.marks_per_s, s.cnp_per_s, s.cuts_per_flow_per_ms, s.alpha_mean, s.pfc_pauses, s.drops, s.goodput_min_gbps, s.goodput_max_gbps, s.goodput_sum_gbps);
        eprintln!("{:?} {:?} hops {} {}/{}", start.elapsed(), out.pauses, out.packet_hops, out.done.len(), out.flows);
        for r in out.fct_rows() {
            let r = r.rounded();
            println!("{},{},{},{},{},{},{},{},{},{}", r.workload, r.variant, r.size_bin, r.n, r.avg_slowdown, r.p50, r.p95, r.p99, r.p99_9, r.avg_fct_us);
        }
        for x in &out.series {
            println!("queue,{},{},{},{}", x.at / 1000, x.queue, x.marked, x.sent_packets);
            for (i, f) in x.flows.iter().enumerate() {
                println!("flow,{},{i},{},{},{},{},{}", x.at / 1000, f.rate as f64 / 1e9, f.alpha, f.received, f.cnps, f.cuts);
            }
        }
        if std::env::var_os("DUMP").is_some() {
            for d in &out.done {
                println!("done,{},{},{},{}", d.flow, d.size, d.fct, d.ideal);
            }
        }
    }
    Ok(())
}
