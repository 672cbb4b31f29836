//! What is drawn and what keys do, on a terminal of the test's own.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};
use rocexdp_common::ids::gid_from_ipv4;

use super::{
    app::{Action, App, Update, View},
    draw,
};
use crate::live::{
    Direction, End, FlowTable, IfaceRates, Row, RowKey, RttSummary, Source, news::Level,
};

fn end(last: u8, qpn: u32) -> End {
    End {
        gid: gid_from_ipv4([10, 0, 0, last]),
        qpn: Some(qpn),
    }
}

fn direction(bits: f64) -> Direction {
    Direction {
        packets: Ok(bits / 8000.0),
        bits: Ok(bits),
        ce: Ok(0.0),
        ce_share: Ok(0.0),
        cnp: Ok(0.0),
        gaps: Ok(0.0),
        missing: Ok(0.0),
        resent: Ok(0.0),
        naks: Ok(0.0),
        rnr: Ok(0.0),
        rtt: Err("one direction seen"),
        nak_codes: [0; 5],
        total_packets: bits as u64,
        total_bytes: bits as u64,
    }
}

fn row(n: u32, bits: f64, ce: f64) -> Row {
    let mut forth = direction(bits);
    forth.ce_share = Ok(ce);
    forth.rtt = Ok(RttSummary {
        samples: 5,
        mean_ns: 3000,
        p50_ns: 4095,
        p99_ns: 8191,
        max_ns: 8191,
    });
    Row {
        key: RowKey {
            iface: Arc::from("eth0"),
            local: false,
            a: end(2 + (n % 7) as u8, n),
            b: end(12 + (n % 5) as u8, 0x100 + n),
        },
        forth,
        back: direction(bits / 100.0),
        state: None,
        dcqcn: Err("not a QP of this host's engine"),
        outstanding: None,
        path_mtu: 1024,
        last_seen_ns: 1,
    }
}

fn update(rows: Vec<Row>) -> Update {
    Update {
        rates: vec![IfaceRates {
            iface: Arc::from("eth0"),
            source: Some(Source {
                role: crate::live::Role::Monitor,
                hook: "XDP",
                mode: "driver".to_owned(),
                program_id: 7,
            }),
            error: None,
            seconds: 1.0,
            frames: 1000.0,
            rocev2: 900.0,
            reasons: Vec::new(),
            dropped: 0.0,
            evictions: 0.0,
            flow_table: FlowTable {
                capacity: 8192,
                live: 6,
                inserts: 6,
                evicted: 0,
            },
            events_lost: 0.0,
            pauses: Vec::new(),
            rows,
            nic: Vec::new(),
            blind_spots: vec!["eth0: nothing is seen of hardware".to_owned()],
        }],
        told: Vec::new(),
        news: Vec::new(),
        time: SystemTime::UNIX_EPOCH + Duration::from_secs(45_296),
        cost: Duration::ZERO,
    }
}

fn app(rows: Vec<Row>) -> App {
    let mut app = App::new(Duration::from_secs(1), true);
    app.take(update(rows));
    app
}

fn screen(app: &mut App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw::draw(frame, app)).unwrap();
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for y in 0..height {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn press(app: &mut App, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            key => KeyCode::Char(key),
        };
        app.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
}

/// Destination QPNs from top to bottom.
fn order(app: &App) -> Vec<u32> {
    (0..app.order.len())
        .map(|place| app.row(place).unwrap().1.key.a.qpn.unwrap())
        .collect()
}

fn three() -> Vec<Row> {
    vec![row(1, 2e9, 0.0), row(2, 9e9, 0.12), row(3, 5e6, 0.5)]
}

#[test]
fn the_table_shows_heading_lines_and_keys() {
    let text = screen(&mut app(three()), 120, 20);
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("rocexdp top  12:34:56 UTC  every 1.0s  3 QPs and flows"),
        "{text}"
    );
    assert!(
        lines[1]
            .starts_with("eth0  monitor XDP driver  900 RoCEv2 of 1.00k frames/s  flows 6/8.19k"),
        "{text}"
    );
    assert!(
        lines[2].starts_with("SOURCE/QP") && lines[2].contains("bit/s▼"),
        "{text}"
    );
    assert!(
        lines[3].starts_with("10.0.0.4/0x000002  10.0.0.14/0x000102"),
        "{text}"
    );
    assert!(
        lines[3].contains("9.00G") && lines[3].contains(" 12 ") && lines[3].contains("8.2us"),
        "{text}"
    );
    assert!(lines[19].starts_with("q quit"), "{text}");
}

#[test]
fn lines_are_sorted_by_the_chosen_column_and_the_cursor_stays_with_its_line() {
    let mut app = app(three());
    assert_eq!(order(&app), [2, 1, 3]);
    press(&mut app, "jj"); // on QP 3
    press(&mut app, "sss"); // rate, back, packets, CE
    assert_eq!(order(&app), [3, 2, 1]);
    assert_eq!(app.cursor, 0);
    press(&mut app, "r");
    assert_eq!(order(&app), [1, 2, 3]);
    assert_eq!(app.cursor, 2);
    press(&mut app, "S");
    assert!(screen(&mut app, 120, 20).contains("PKT/s▲"));
}

#[test]
fn filters_are_words_and_comparisons_and_mistakes_are_said() {
    let mut app = app(three());
    press(&mut app, "/ce>5\n");
    assert_eq!(order(&app), [2, 3]);
    assert!(screen(&mut app, 100, 20).contains("2 of 3 QPs and flows"));
    press(&mut app, "/ !0x000003\n");
    assert_eq!(order(&app), [2]);
    press(&mut app, "\u{1b}");
    assert_eq!(order(&app).len(), 3);
    press(&mut app, "/p99>5 rate<1G\n");
    assert_eq!(order(&app), [3]);
    press(&mut app, "\u{1b}/nonsense>1");
    let text = screen(&mut app, 120, 20);
    assert!(text.contains("\"nonsense\" is no column"), "{text}");
    press(&mut app, "\u{1b}/zzz\n");
    assert!(screen(&mut app, 100, 20).contains("nothing passes the filter"));
}

#[test]
fn paused_nothing_moves_and_counting_goes_on() {
    let mut app = app(three());
    press(&mut app, " ");
    app.take(update(vec![row(9, 1e9, 0.0)]));
    assert_eq!(order(&app), [2, 1, 3]);
    assert!(screen(&mut app, 120, 20).contains("PAUSED, 1 intervals behind"));
    press(&mut app, " ");
    app.take(update(vec![row(9, 1e9, 0.0)]));
    assert_eq!(order(&app), [9]);
}

#[test]
fn the_detail_gives_reasons_and_curves_and_says_when_its_qp_is_gone() {
    let mut app = app(three());
    for _ in 0..50 {
        app.take(update(three()));
    }
    press(&mut app, "j\n");
    assert_eq!(app.view, View::Detail);
    for (width, height) in [(130, 40), (90, 24)] {
        let text = screen(&mut app, width, height);
        for part in [
            "10.0.0.3/0x000001",
            "RTT p99 <=",
            "n/a (1): one direction seen",
            "now 2.00G",
            "█",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    app.take(update(vec![row(2, 9e9, 0.0)]));
    assert!(screen(&mut app, 100, 30).contains("This QP is gone"));
    press(&mut app, "\u{1b}");
    assert_eq!(app.view, View::Table);
}

#[test]
fn the_heatmap_shows_who_congests_whom() {
    let mut app = app(three());
    press(&mut app, "h");
    let text = screen(&mut app, 120, 30);
    let hot = text
        .lines()
        .find(|line| line.starts_with("10.0.0.5"))
        .unwrap();
    assert!(hot.contains(" 50 "), "{text}");
    press(&mut app, "mmm");
    let text = screen(&mut app, 120, 30);
    assert!(
        text.contains("bit/s that the source sends") && text.contains("9.00G"),
        "{text}"
    );
}

/// So many events, a second apart.
fn say(app: &mut App, events: std::ops::Range<u64>) {
    for n in events {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(n);
        app.say(time, Level::Warning, format!("event {n}."));
    }
}

#[test]
fn an_event_longer_than_the_pane_is_begun_there() {
    // A short table would leave the pane more room.
    let mut app = app((0..30).map(|n| row(n, 1e9, 0.0)).collect());
    assert!(screen(&mut app, 50, 17).contains("nothing so far"));
    say(&mut app, 0..1);
    let long = "eth0: nak (packet_seq_err) received: ".to_owned() + &"fd00::1234:5678 ".repeat(10);
    app.say(SystemTime::UNIX_EPOCH, Level::Error, long);
    let text = screen(&mut app, 50, 17);
    let at = text
        .lines()
        .position(|line| line.starts_with("00:00:00  eth0: nak (packet_seq_err) received:"))
        .unwrap_or_else(|| panic!("{text}"));
    let pane: Vec<&str> = text.lines().skip(at - 1).take(4).collect();
    assert!(pane[0].contains(" 1 error  1 warning "), "{text}");
    assert!(pane[1..].iter().all(|line| line.chars().count() <= 50));
    assert!(
        pane[3].starts_with("          fd00::") && pane[3].ends_with('…'),
        "{text}"
    );
    // With room for both, the older one is above.
    let text = screen(&mut app, 200, 24);
    let line = |part: &str| text.lines().position(|line| line.contains(part)).unwrap();
    assert!(line("event 0.") < line("eth0: nak"), "{text}");
    app.take(update(three()));
    let text = screen(&mut app, 50, 24);
    let pane = text.lines().position(|line| line.contains(" events "));
    assert_eq!(pane, Some(24 - 1 - 12), "{text}");
}

#[test]
fn the_screen_of_events_is_scrolled_and_what_is_read_stays() {
    let mut app = app(three());
    say(&mut app, 0..40);
    press(&mut app, "e");
    let shown = |app: &mut App| {
        let text = screen(app, 60, 14);
        let lines = text.lines().filter(|line| line.contains("event "));
        let numbers: Vec<u64> = lines
            .map(|line| {
                line.split(&[' ', '.'][..])
                    .rev()
                    .nth(1)
                    .unwrap()
                    .parse()
                    .unwrap()
            })
            .collect();
        numbers
    };
    assert_eq!(shown(&mut app), (30..40).collect::<Vec<_>>());
    press(&mut app, "kk");
    assert_eq!(shown(&mut app), (28..38).collect::<Vec<_>>());
    assert!(screen(&mut app, 60, 14).contains(" 2 newer below "));
    say(&mut app, 40..45);
    assert_eq!(shown(&mut app), (28..38).collect::<Vec<_>>());
    app.key(KeyEvent::new(KeyCode::PageUp, KeyModifiers::NONE));
    assert_eq!(shown(&mut app), (18..28).collect::<Vec<_>>());
    // The first event is as far as it goes, and one step down is seen at once.
    press(&mut app, "gkkk");
    assert_eq!(shown(&mut app), (0..10).collect::<Vec<_>>());
    press(&mut app, "j");
    assert_eq!(shown(&mut app), (1..11).collect::<Vec<_>>());
    press(&mut app, "G");
    assert_eq!(shown(&mut app), (35..45).collect::<Vec<_>>());
    // More than are kept came meanwhile.
    press(&mut app, "k");
    say(&mut app, 45..2000);
    assert_eq!(shown(&mut app), (1500..1510).collect::<Vec<_>>());
    // The table's cursor did not move.
    press(&mut app, "\u{1b}");
    assert_eq!((app.view, app.cursor), (View::Table, 0));
}

#[test]
fn every_size_is_drawn_in_every_view_and_too_small_a_one_says_so() {
    let mut app = app((0..40).map(|n| row(n, 1e9, 0.01)).collect());
    for keys in ["", "\n", "\u{1b}h", "hee", "e?"] {
        press(&mut app, keys);
        for width in [1, 2, 9, 20, 49, 50, 61, 80, 103, 200, 300] {
            for height in [1, 2, 5, 9, 10, 11, 17, 24, 60] {
                let text = screen(&mut app, width, height);
                if width < 50 || height < 10 {
                    assert!(
                        text.trim_start().starts_with("This") || width < 9,
                        "{width}x{height}: {text}"
                    );
                }
            }
        }
    }
    assert!(app.help);
    press(&mut app, "jjj");
    screen(&mut app, 60, 12);
    assert_eq!(app.help_scroll, 3);
    press(&mut app, "x");
    assert!(!app.help);
}

#[test]
fn quitting_stopping_and_intervals_are_the_callers() {
    let mut app = app(three());
    let mut act = |code, modifiers| app.key(KeyEvent::new(code, modifiers));
    assert_eq!(act(KeyCode::Char('q'), KeyModifiers::NONE), Action::Quit);
    assert_eq!(act(KeyCode::Char('c'), KeyModifiers::CONTROL), Action::Quit);
    assert_eq!(
        act(KeyCode::Char('z'), KeyModifiers::CONTROL),
        Action::Suspend
    );
    let slower = Action::Interval(Duration::from_secs(2));
    assert_eq!(act(KeyCode::Char('+'), KeyModifiers::NONE), slower);
    // While a filter is typed, q is a letter.
    act(KeyCode::Char('/'), KeyModifiers::NONE);
    assert_eq!(act(KeyCode::Char('q'), KeyModifiers::NONE), Action::Draw);
}

/// 8192 flows and 1000 QPs: what a key and an interval cost. The bound is for a debug build on a busy machine.
#[test]
fn nine_thousand_lines_stay_responsive() {
    let rows: Vec<Row> = (0..9192)
        .map(|n| row(n, f64::from(n) * 1e5, 0.01))
        .collect();
    let mut app = app(rows.clone());
    let mut times = Vec::new();
    let mut measure = |what: &str, work: &mut dyn FnMut()| {
        let begun = Instant::now();
        work();
        times.push((what.to_owned(), begun.elapsed()));
    };
    measure("an interval taken", &mut || app.take(update(rows.clone())));
    measure("the table drawn", &mut || drop(screen(&mut app, 160, 50)));
    measure("sorted by another column", &mut || press(&mut app, "s"));
    measure("filtered by a word", &mut || press(&mut app, "/10.0.0.3"));
    measure("the heatmap drawn", &mut || {
        press(&mut app, "\u{1b}h");
        screen(&mut app, 160, 50);
    });
    println!("{times:?}");
    for (what, time) in times {
        assert!(time < Duration::from_millis(1500), "{what}: {time:?}");
    }
}
