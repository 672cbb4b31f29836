//! `rocexdp top` in a real terminal (tmux), with real traffic: what it shows is what the maps hold, keys do what they say, and the
//! terminal is given back on every way out.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use rocexdp::lab::Host;
use rocexdp_tests::{
    Rig,
    process::eventually,
    rig::{SHORT, SLOW},
};

/// How long something may take to be drawn: loading a monitor's programs takes some seconds.
const DRAWN: Duration = Duration::from_secs(60);

/// A terminal of its own server; dropped, it is gone with all that runs in it.
struct Tmux {
    server: String,
}

impl Tmux {
    /// Runs a shell in a new terminal. `None`, said as `SKIP`, where there is no tmux.
    fn open(name: &str, width: u32, height: u32) -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            println!("SKIP: no tmux (apt-get install tmux)");
            return None;
        }
        let tmux = Self {
            server: format!("rocexdp-{name}{}", std::process::id()),
        };
        let size = [
            "-x".to_owned(),
            width.to_string(),
            "-y".to_owned(),
            height.to_string(),
        ];
        let mut line = vec!["-f", "/dev/null", "new-session", "-d", "-s", "t"];
        line.extend(size.iter().map(String::as_str));
        line.push("env PS1='$ ' TERM=screen-256color sh");
        tmux.ask(&line);
        Some(tmux)
    }

    fn ask(&self, line: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-L", &self.server])
            .args(line)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "tmux {line:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn keys(&self, keys: &[&str]) {
        for key in keys {
            let mut line = vec!["send-keys", "-t", "t"];
            line.push(key);
            self.ask(&line);
            // Escape and a key at once would be Alt and the key.
            std::thread::sleep(Duration::from_millis(120));
        }
    }

    fn text(&self) -> String {
        self.ask(&["capture-pane", "-p", "-t", "t"])
    }

    /// Waits until the screen is as wanted, and returns it.
    fn shows(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + DRAWN;
        loop {
            let text = self.text();
            if wanted(&text) {
                return text;
            }
            assert!(Instant::now() < until, "{what} is not shown:\n{text}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn has(&self, parts: &[&str]) -> String {
        self.shows(&parts.join(" and "), |text| {
            parts.iter().all(|part| text.contains(part))
        })
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux")
            .args(["-L", &self.server, "kill-server"])
            .output();
    }
}

/// The product's path, which a shell in the terminal needs.
fn product() -> String {
    let path = rocexdp_tests::rig::product().expect("looked for before");
    path.to_str().unwrap().to_owned()
}

fn namespace(rig: &Rig, host: Host) -> String {
    rig.lab().host(host).label().to_owned()
}

/// A number as `top` writes it.
fn unscaled(text: &str) -> f64 {
    let (number, factor) = match text.chars().last() {
        Some('k') => (&text[..text.len() - 1], 1e3),
        Some('M') => (&text[..text.len() - 1], 1e6),
        Some('G') => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    number
        .parse::<f64>()
        .unwrap_or_else(|_| panic!("{text} is no number"))
        * factor
}

/// The cells of the lines below the heading, by column.
fn cells<'a>(screen: &'a str, column: &str) -> Vec<(&'a str, &'a str)> {
    let lines: Vec<&str> = screen.lines().collect();
    let head = lines
        .iter()
        .position(|line| line.starts_with("SOURCE/QP"))
        .expect("a heading");
    // Columns have no spaces in their cells, but round trips have in their names.
    let names = lines[head]
        .replace("RTT p", "RTT_p")
        .replace("CE %", "CE_%");
    let at = names
        .split_whitespace()
        .position(|name| name.trim_end_matches(['▼', '▲']) == column)
        .unwrap_or_else(|| panic!("no column {column}: {names}"));
    lines[head + 1..]
        .iter()
        .take_while(|line| line.contains('/') && !line.contains("events"))
        .map(|line| {
            let cells: Vec<&str> = line.split_whitespace().collect();
            (cells[0], cells[at])
        })
        .collect()
}

/// Events as the pane has them, each with its continued lines.
fn events(screen: &str) -> Vec<String> {
    let lines = screen
        .lines()
        .skip_while(|line| !line.starts_with(" events "));
    let mut events: Vec<String> = Vec::new();
    for line in lines.skip(1) {
        let rest = line.get(10..).unwrap_or_default();
        match line.as_bytes() {
            [_, _, b':', _, _, b':', ..] => events.push(rest.to_owned()),
            [b' ', ..] => {
                if let Some(last) = events.last_mut() {
                    last.push(' ');
                    last.push_str(rest);
                }
            }
            _ => {}
        }
    }
    events
}

/// Sends host a a packet for a QP that is not there, and one too short for a BTH.
fn strangers() {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let mut stray = vec![4, 0, 0xff, 0xff, 0, 0x80, 1, 0x23, 0, 0, 4, 0x56];
    stray.resize(40, 0);
    for packet in [&stray[..], &[0; 5]] {
        socket.send_to(packet, (Host::A.ipv4(), 4791)).unwrap();
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn top_shows_what_the_maps_hold_sorted_and_filtered_and_gives_the_terminal_back() {
    let Some(mut rig) = Rig::up("tpt") else {
        return;
    };
    let Some(tmux) = Tmux::open("tpt", 120, 40) else {
        return;
    };
    rig.start_sender(&SLOW);
    rig.start_receiver(&[]);
    rig.impair("delay=1ms,ce=10%,seed=5");
    let file = rig.file("file", 400 << 20);
    let first = rig.start_copy(&file, Host::B.ipv4().into(), "one");
    let second = rig.start_copy(&file, Host::B.ipv4().into(), "two");
    rig.wait_for_bytes(1 << 20);

    let line = format!(
        "{} --netns {} top --interval 500ms; echo ended=$?",
        product(),
        namespace(&rig, Host::B)
    );
    tmux.keys(&[&line, "Enter"]);
    tmux.has(&[
        "rocexdp top",
        "endpoint XDP driver",
        "10.77.0.1/0x",
        "events",
    ]);
    // Two lines with traffic, and marks as the wire makes them.
    let seen = |text: &str| {
        text.contains("SOURCE/QP")
            && cells(text, "bit/s")
                .iter()
                .filter(|(_, v)| unscaled(v) > 1e5)
                .count()
                == 2
    };
    let screen = tmux.shows("two copies", seen);
    let marks: Vec<f64> = cells(&screen, "CE_%")
        .iter()
        .map(|(_, v)| unscaled(v))
        .collect();
    assert!(
        marks.iter().all(|ce| (3.0..25.0).contains(ce)),
        "about 10 % of marks: {screen}"
    );
    let rates: Vec<f64> = cells(&screen, "bit/s")
        .iter()
        .map(|(_, v)| unscaled(v))
        .collect();
    assert!(
        rates.is_sorted_by(|a, b| a >= b),
        "the fastest first: {screen}"
    );

    // The same numbers as the maps', in order of magnitude.
    let bytes = |rig: &Rig| -> u64 {
        let of =
            |qp: &rocexdp::maps::QpView| qp.counters.kinds.iter().map(|k| k.bytes).sum::<u64>();
        rig.qps(Host::B).iter().map(of).sum()
    };
    let (begun, before) = (Instant::now(), bytes(&rig));
    std::thread::sleep(Duration::from_secs(2));
    let screen = tmux.text();
    let true_rate = (bytes(&rig) - before) as f64 * 8.0 / begun.elapsed().as_secs_f64();
    let shown: f64 = cells(&screen, "bit/s")
        .iter()
        .map(|(_, v)| unscaled(v))
        .sum();
    assert!(
        (0.3..3.0).contains(&(shown / true_rate)),
        "shown {shown:.0} bit/s, the maps say {true_rate:.0}: {screen}"
    );

    // Congestion is told, and the detail names its QP, reasons and curves.
    tmux.has(&["CE ", "CNP/s"]);
    tmux.keys(&["Enter"]);
    tmux.has(&[
        "bit/s there",
        "RTT p99 <=",
        "n/a (1)",
        "sent from here",
        "path MTU 4096",
    ]);
    tmux.keys(&["Escape", "h"]);
    tmux.has(&["heatmap", "10.77.0.2", "scale"]);
    tmux.keys(&["h"]);

    // A filter leaves one of the two; Esc brings it back.
    let qpn = cells(&tmux.has(&["SOURCE/QP"]), "bit/s")[1]
        .0
        .split('/')
        .nth(1)
        .unwrap()
        .to_owned();
    tmux.keys(&["/", &qpn, "Enter"]);
    let screen = tmux.has(&["1 of 2 QPs"]);
    assert_eq!(cells(&screen, "bit/s").len(), 1, "{screen}");
    tmux.keys(&["Escape", "s"]);
    tmux.has(&["2 QPs and flows", "BACK▼"]);

    // Paused, the clock stands; too small a terminal says so and recovers.
    tmux.keys(&["Space"]);
    let clock = |text: &str| {
        text.lines()
            .next()
            .unwrap_or("")
            .chars()
            .take(22)
            .collect::<String>()
    };
    let before = clock(&tmux.has(&["PAUSED"]));
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(clock(&tmux.has(&["intervals behind"])), before);
    tmux.keys(&["Space"]);
    tmux.ask(&["resize-window", "-t", "t", "-x", "40", "-y", "8"]);
    tmux.has(&["needs at least"]);
    tmux.ask(&["resize-window", "-t", "t", "-x", "100", "-y", "30"]);
    tmux.has(&["SOURCE/QP", "q quit"]);

    // What is lost from here on, the other host is told by NAKs.
    rig.impair("drop=2%,seed=5");

    // The end: the shell's own screen is back, echo and cursor too.
    tmux.keys(&["q"]);
    tmux.has(&["ended=0"]);
    tmux.keys(&["echo back", "Enter"]);
    tmux.shows("a shell that echoes", |text| {
        text.matches("back").count() == 2
    });
    assert!(!tmux.text().contains("SOURCE/QP"), "{}", tmux.text());

    // There each NAK is an event, told with its packet.
    let line = format!(
        "{} --netns {} top --interval 500ms; echo over=$?",
        product(),
        namespace(&rig, Host::A)
    );
    tmux.keys(&["clear", "Enter", &line, "Enter"]);
    tmux.has(&["rocexdp top", "endpoint XDP driver"]);
    // What is rare is told beside NAKs that go on and on, which keep to a line for each of the two QPs.
    rig.lab().host(Host::B).run(strangers).unwrap();
    let seen = tmux.shows("two strangers and two lines of NAKs", |text| {
        let naks = events(text)
            .iter()
            .filter(|event| event.contains("nak (packet_seq_err)"))
            .count();
        let all = events(text).concat();
        let strangers = ["unknown_qpn (", "QP 0x800123", "malformed (bth_truncated)"];
        naks == 2 && all.contains("such since") && strangers.iter().all(|part| all.contains(part))
    });
    println!("{seen}");
    for (width, height) in [("80", "24"), ("50", "17"), ("200", "50"), ("120", "40")] {
        tmux.ask(&["resize-window", "-t", "t", "-x", width, "-y", height]);
        let screen = tmux.shows("a pane of events", |text| {
            text.lines().next().is_some_and(|line| line.contains("QPs"))
                && text.lines().count() == height.parse::<usize>().unwrap()
                && events(text)
                    .iter()
                    .any(|e| e.contains("nak (packet_seq_err)"))
        });
        println!("{screen}");
        let pane = screen
            .lines()
            .skip_while(|line| !line.starts_with(" events "));
        assert!(
            pane.clone().next().unwrap().contains(" warnings "),
            "{screen}"
        );
        assert!(
            screen
                .lines()
                .all(|line| line.chars().count() <= width.parse().unwrap())
        );
    }
    tmux.keys(&["e"]);
    tmux.has(&[
        "nak (packet_seq_err)",
        "10.77.0.2 -> 10.77.0.1 QP 0x",
        "Esc back",
    ]);
    tmux.ask(&["resize-window", "-t", "t", "-x", "60", "-y", "12"]);
    // On the larger screen there would be nothing to scroll.
    tmux.shows("the small screen", |text| {
        text.lines()
            .nth(11)
            .is_some_and(|line| line.starts_with("Esc back"))
    });
    tmux.shows("the oldest", |text| {
        let there = text.contains("reading the maps of the endpoint");
        if !there {
            // A key that comes with a new size may wait for the next one.
            tmux.keys(&["Home"]);
        }
        there && text.contains("newer below")
    });
    tmux.keys(&["End"]);
    tmux.shows("the newest again", |text| !text.contains("newer below"));
    tmux.keys(&["Escape"]);
    tmux.has(&["SOURCE/QP"]);
    tmux.keys(&["q"]);
    tmux.has(&["over=0"]);
    drop((first, second));
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_signal_gives_the_terminal_back_and_a_monitor_started_by_top_goes_with_it() {
    let Some(rig) = Rig::up("tps") else {
        return;
    };
    let Some(tmux) = Tmux::open("tps", 100, 30) else {
        return;
    };
    let space = namespace(&rig, Host::A);
    let line = format!(
        "{} --netns {space} top --iface eth0; echo ended=$?",
        product()
    );
    let programs = || rig.link(Host::A).xdp.len();
    assert_eq!(programs(), 0);
    tmux.keys(&[&line, "Enter"]);
    tmux.has(&["rocexdp top", "monitor XDP", "no RoCEv2 traffic"]);
    assert_eq!(programs(), 1);
    let shell = tmux.ask(&["list-panes", "-t", "t", "-F", "#{pane_pid}"]);
    let children = Command::new("pgrep")
        .args(["-P", shell.trim()])
        .output()
        .unwrap();
    let pid = String::from_utf8(children.stdout)
        .unwrap()
        .trim()
        .to_owned();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    tmux.has(&["ended=143", "ended by signal 15"]);
    tmux.keys(&["echo back", "Enter"]);
    tmux.shows("a shell that echoes", |text| {
        text.matches("back").count() == 2
    });
    eventually("the monitor is detached", SHORT, || {
        (programs() == 0).then_some(())
    });

    // A terminal that is gone ends it too.
    tmux.keys(&["clear", "Enter", &line, "Enter"]);
    tmux.has(&["rocexdp top", "monitor XDP"]);
    assert_eq!(programs(), 1);
    drop(tmux);
    eventually("top ends with its terminal", SHORT, || {
        (programs() == 0).then_some(())
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn without_a_terminal_top_names_what_to_use_instead() {
    let Some(rig) = Rig::up("tpn") else {
        return;
    };
    rig.run(Host::A, &["top", "--iface", "eth0"])
        .failed(1, &["needs a terminal", "monitor --json"]);
    assert!(rig.link(Host::A).xdp.is_empty());
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn monitor_keeps_within_its_terminal() {
    let Some(mut rig) = Rig::running("tpm") else {
        return;
    };
    let Some(tmux) = Tmux::open("tpm", 80, 14) else {
        return;
    };
    rig.impair("ce=20%,drop=1%,seed=8");
    let file = rig.file("file", 400 << 20);
    let copies: Vec<_> = (0..4)
        .map(|n| rig.start_copy(&file, Host::B.ipv4().into(), &format!("f{n}")))
        .collect();
    rig.wait_for_bytes(1 << 20);
    let line = format!(
        "{} --netns {} monitor --interval 300ms",
        product(),
        namespace(&rig, Host::B)
    );
    tmux.keys(&[&line, "Enter"]);
    // Heading first, table, news: nothing has scrolled away.
    let screen = tmux.shows("a whole screen", |text| {
        text.contains("eth0: ")
            && text
                .lines()
                .nth(1)
                .is_some_and(|l| l.starts_with("SOURCE/QP"))
            && text.contains(" -> QP ")
    });
    assert!(screen.contains("no room for: "), "{screen}");
    tmux.keys(&["C-c"]);
    tmux.has(&["Summary", "GAPS"]);
    drop(copies);
}
