//! The real Prometheus scrapes a lab with traffic: what is served has no complaint of promtool's, and every query of the dashboard
//! in dashboards/ returns data.
//!
//! Debian's package `prometheus` brings both programs. Without them the test is skipped, but not in CI.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rocexdp::lab::Host;
use rocexdp_tests::{
    Rig, Running, eventually,
    http::{encoded, get, series},
    rig::{SLOW, text},
};
use serde_json::Value;

const AT: &str = "127.0.0.1:9478";
const PROMETHEUS: &str = "127.0.0.1:9490";
const HARDWARE: &str = "127.0.0.1:9479";

fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.exists());
    if found.is_none() {
        assert!(
            std::env::var_os("CI").is_none(),
            "no {name} in CI: .ci/run must install it"
        );
        println!("SKIP: no {name}: install the package prometheus");
    }
    found
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// `promtool check metrics`: its complaints, of which there must be none.
fn check_metrics(promtool: &Path, text: &str) {
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success() && said.is_empty(), "{said}");
}

/// Serves counters of RDMA hardware, which no lab has, as rocexdp names them: for the dashboard's row about it.
struct Hardware(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Hardware {
    fn start(rig: &Rig) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&end);
        let listener = rig
            .lab()
            .host(Host::A)
            .run(|| TcpListener::bind(HARDWARE))
            .unwrap()
            .unwrap();
        listener.set_nonblocking(true).unwrap();
        let thread = std::thread::spawn(move || {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                let Ok((mut stream, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                };
                stream.set_nonblocking(false).unwrap();
                stream
                    .set_read_timeout(Some(Duration::from_secs(1)))
                    .unwrap();
                let _ = stream.read(&mut [0; 4096]);
                n += 10;
                let names = [
                    "np_cnp_sent",
                    "rp_cnp_handled",
                    "np_ecn_marked_roce_packets",
                    "out_of_sequence",
                    "packet_seq_err",
                    "local_ack_timeout_err",
                    "rnr_nak_retry_err",
                    "port_rcv_data_bytes",
                    "port_xmit_data_bytes",
                ];
                let body: String = names
                    .iter()
                    .map(|name| format!("rocexdp_rdma_{name}_total{{iface=\"hw0\",device=\"mlx5_0\",port=\"1\"}} {n}\n"))
                    .collect();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all((head + &body).as_bytes());
            }
        });
        Self(end, Some(thread))
    }
}

impl Drop for Hardware {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

fn prometheus(rig: &Rig, program: &Path) -> Running {
    let place = rig.path("prometheus");
    std::fs::create_dir(&place).unwrap();
    let config = place.join("prometheus.yml");
    let targets = format!("[\"{AT}\", \"{}:9478\", \"{HARDWARE}\"]", Host::B.ipv4());
    std::fs::write(
        &config,
        format!("global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\nscrape_configs:\n  - job_name: rocexdp\n    static_configs:\n      - targets: {targets}\n"),
    )
    .unwrap();
    let mut command = Command::new(program);
    command
        .arg(format!("--config.file={}", text(&config)))
        .arg(format!("--storage.tsdb.path={}", text(&place.join("data"))))
        .arg(format!("--web.listen-address={PROMETHEUS}"));
    rig.lab().spawn_in(Host::A, &mut command).unwrap();
    Running::start(command, "prometheus".to_owned())
}

/// The result of an instant query.
fn query(rig: &Rig, expression: &str) -> Vec<Value> {
    let path = format!("/api/v1/query?query={}", encoded(expression));
    let (status, body) = get(rig.lab().host(Host::A), address(PROMETHEUS), &path);
    assert_eq!(status, 200, "{expression}: {body}");
    let answer: Value =
        serde_json::from_str(&body).unwrap_or_else(|e| panic!("{expression}: {e}: {body}"));
    answer["data"]["result"].as_array().unwrap().clone()
}

/// Every expression of a dashboard with its panel's title, as Grafana would send it for all interfaces.
fn expressions() -> Vec<(String, String)> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dashboards/rocexdp.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert!(
        variables
            .iter()
            .any(|v| v["name"] == "iface" && v["definition"] == "label_values(rocexdp_up, iface)")
    );
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let expression = expression
                .replace("$iface", ".+")
                .replace("$__rate_interval", "10s");
            assert!(!expression.contains('$'), "{expression}");
            found.push((panel["title"].as_str().unwrap().to_owned(), expression));
        }
    }
    found
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn prometheus_scrapes_promtool_is_content_and_the_dashboard_has_data() {
    let (Some(program), Some(promtool)) = (tool("prometheus"), tool("promtool")) else {
        return;
    };
    let Some(mut rig) = Rig::up("tmq") else {
        return;
    };
    rig.start_sender(&["--metrics", AT, SLOW[0], SLOW[1], "--line-rate", "200M"]);
    rig.start_receiver(&["--metrics", "0.0.0.0:9478"]);
    let hardware = Hardware::start(&rig);
    let mut server = prometheus(&rig, &program);
    eventually("Prometheus is up", Duration::from_secs(60), || {
        assert!(server.runs(), "{}", server.stderr());
        let there = rig
            .lab()
            .host(Host::A)
            .run(|| TcpStream::connect(PROMETHEUS))
            .unwrap();
        there.ok()?;
        let (status, _) = get(rig.lab().host(Host::A), address(PROMETHEUS), "/-/ready");
        (status == 200).then_some(())
    });
    rig.impair("ce=2%,drop=0.2%,delay=1ms,seed=9");
    let file = rig.file("file", 256 << 20);
    let copy = rig.start_copy(&file, Host::B.ipv4().into(), "file");
    rig.wait_for_bytes(4 << 20);
    eventually("all targets are scraped", Duration::from_secs(60), || {
        (query(&rig, "sum(up) == 3").len() == 1).then_some(())
    });
    // A rate needs two scrapes within its range.
    std::thread::sleep(Duration::from_secs(5));
    let mut empty = Vec::new();
    let all = expressions();
    assert!(all.len() > 50, "{} expressions", all.len());
    for (panel, expression) in &all {
        let result = query(&rig, expression);
        let numbers = |v: &Value| v["value"][1].as_str().is_some_and(|n| n != "NaN");
        if !result.iter().any(numbers) {
            empty.push(format!("{panel}: {expression}"));
        }
    }
    assert!(empty.is_empty(), "no data for\n{}", empty.join("\n"));
    assert_eq!(query(&rig, "count(count by (iface) (rocexdp_up))").len(), 1);
    // The rate of all is the rate of the QPs and the others; asked in one query, for one moment, of series that were there all the
    // time.
    let whole = "sum(rate(rocexdp_rx_packets_total[4s]))";
    let parts = "sum(rate(rocexdp_qp_rx_packets_total[4s]))";
    let value = |expression: &str| {
        let result = query(&rig, expression);
        let number = result.first().and_then(|r| r["value"][1].as_str());
        number.unwrap().parse::<f64>().unwrap()
    };
    assert!(value(whole) > 100.0);
    let apart = value(&format!("abs({whole} / {parts} - 1)"));
    assert!(apart < 1e-6, "{apart}");
    for host in [Host::A, Host::B] {
        let (status, body) = get(rig.lab().host(host), address(AT), "/metrics");
        assert_eq!(status, 200);
        check_metrics(&promtool, &body);
        println!(
            "{host}: {} series, {} bytes",
            series(&body).len(),
            body.len()
        );
    }
    drop(copy);
    // An interface goes: the scrape goes on, and says so.
    rig.ip(Host::A, "link delete eth0");
    eventually(
        "the interface is down in Prometheus",
        Duration::from_secs(30),
        || (query(&rig, "rocexdp_up{instance=\"127.0.0.1:9478\"} == 0").len() == 1).then_some(()),
    );
    assert_eq!(query(&rig, "up{instance=\"127.0.0.1:9478\"} == 1").len(), 1);
    drop((server, hardware));
}
