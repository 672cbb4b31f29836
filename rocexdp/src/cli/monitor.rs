//! `rocexdp monitor`: a table or a JSON line for each interval, and a summary at the end.

use std::{
    collections::VecDeque,
    thread,
    time::{Duration, Instant, SystemTime},
};

use super::{
    UsageError,
    watched::{Watch, Watched, tell},
};
use crate::{
    control::units::Span,
    live::{
        IfaceRates, IfaceSnapshot, Snapshot,
        news::{News, Newsroom},
        rates,
    },
    metrics::{Listener, MetricsAddr, Serving, check_top},
    out,
    process::{Cancel, on_own_thread},
    view::{live::clock, model::Interval, monitor, text},
};

/// How often a signal is looked for.
const TICK: Duration = Duration::from_millis(20);
/// Lines of news that stay below the table on a terminal.
const NEWS_LINES: usize = 8;

/// Lines of a terminal that does not tell.
const DEFAULT_HEIGHT: usize = 24;

/// Options of `rocexdp monitor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    watch: Watch,
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: Span,
    /// End after this many intervals [default: at Ctrl-C]
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print a JSON object on a line for each interval (docs/monitor-json.md)
    #[arg(long)]
    json: bool,
    /// Show this many QPs and flows, those with most traffic
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// Serve metrics for Prometheus on this address; the port is 47911 unless given. --top QPs have series of their own
    #[arg(long, value_name = "ADDR[:PORT]")]
    metrics: Option<MetricsAddr>,
}

/// Watches until a signal, or as often as asked.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    if args.interval.0 < Duration::from_millis(10) {
        return Err(UsageError("--interval: at least 10ms".to_owned()).into());
    }
    // First of all, so that nothing is attached when the address is taken.
    let listener = match args.metrics {
        Some(address) => {
            check_top("--top", args.top)?;
            Some(Listener::bind(address)?)
        }
        None => None,
    };
    on_own_thread(move |cancel| {
        let mut watched = args.watch.open()?;
        let first = watched.look();
        Watched::check(&first)?;
        tell(&watched, &first);
        let ifaces = first.ifaces.iter().map(|at| at.iface.clone()).collect();
        let _metrics = listener
            .map(|listener| {
                Serving::of_programs(listener, args.top, ifaces, watched.programs())?
                    .in_background()
            })
            .transpose()?;
        watch(&args, &mut watched, first, &cancel)
    })
}

fn watch(
    args: &Args,
    watched: &mut Watched,
    first: Snapshot,
    cancel: &Cancel,
) -> anyhow::Result<()> {
    let mut whole = Whole::new(&first);
    let mut newsroom = Newsroom::default();
    let mut recent = VecDeque::new();
    let mut before = first;
    let mut next = Instant::now();
    let mut shown = 0;
    while args.count.is_none_or(|count| shown < count) {
        next = (next + args.interval.0).max(Instant::now());
        if !sleep_until(next, cancel) {
            break;
        }
        let after = watched.look();
        let rates = rates(&before, &after);
        let news = newsroom.take(&rates);
        whole.take(&after);
        if args.json {
            out::json_line(&Interval::new(
                "interval", &rates, &news, after.time, args.top,
            ))?;
        } else {
            print(args, &rates, &news, &mut recent, after.time)?;
        }
        before = after;
        shown += 1;
    }
    let (rates, time) = whole.rates();
    if args.json {
        return out::json_line(&Interval::new("summary", &rates, &[], time, args.top));
    }
    let text = monitor::summary(&rates, args.top, text::terminal_width());
    out::write(format!("\nSummary\n{text}").as_bytes())
}

/// `false`: a signal came.
fn sleep_until(next: Instant, cancel: &Cancel) -> bool {
    loop {
        if cancel.check().is_err() {
            return false;
        }
        let left = next.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(TICK));
    }
}

fn print(
    args: &Args,
    rates: &[IfaceRates],
    news: &[News],
    recent: &mut VecDeque<String>,
    time: SystemTime,
) -> anyhow::Result<()> {
    let width = text::terminal_width();
    let clock = clock(time);
    let mut lines = monitor::news(news, &clock);
    let (mut clear, mut top) = ("", args.top);
    if let Some(width) = width {
        // On a terminal: home, and clear to the end; what was new stays for a while.
        clear = "\x1b[H\x1b[J";
        recent.extend(lines.lines().map(str::to_owned));
        let height = terminal_height().unwrap_or(DEFAULT_HEIGHT);
        let news_most = NEWS_LINES.min(height / 3);
        let used = |recent: &VecDeque<String>| -> usize {
            let rows = |line: &String| line.chars().count().div_ceil(width.max(1)).max(1);
            recent.iter().map(rows).sum()
        };
        while used(recent) > news_most {
            recent.pop_front();
        }
        // Beside the lines there are headings, what has no room, how many more there are, an empty line and the cursor's.
        let beside = 5 + rates.iter().map(|i| heading_lines(i, width)).sum::<usize>();
        top = top.min(height.saturating_sub(beside + used(recent))).max(1);
        lines = recent.iter().map(|line| format!("{line}\n")).collect();
        if !lines.is_empty() {
            lines.insert(0, '\n');
        }
    }
    let table = monitor::interval(rates, &clock, top, width);
    out::write(format!("{clear}{table}{lines}").as_bytes())
}

/// Lines that an interface's heading takes on a terminal.
fn heading_lines(iface: &IfaceRates, width: usize) -> usize {
    const CLOCK: usize = "12:34:56 ".len();
    let lines = |text: &str| (text.chars().count() + CLOCK).div_ceil(width.max(1));
    monitor::heading(iface).lines().map(lines).sum()
}

/// Lines of the terminal that standard output is.
fn terminal_height() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_row > 0).then_some(usize::from(size.ws_row))
}

/// The first and the last of each interface, for the summary: of the program that was there last.
struct Whole {
    first: Vec<IfaceSnapshot>,
    last: Vec<IfaceSnapshot>,
    time: SystemTime,
}

impl Whole {
    fn new(first: &Snapshot) -> Self {
        Self {
            first: first.ifaces.clone(),
            last: first.ifaces.clone(),
            time: first.time,
        }
    }

    fn take(&mut self, now: &Snapshot) {
        self.time = now.time;
        for ((first, last), now) in self.first.iter_mut().zip(&mut self.last).zip(&now.ifaces) {
            if now.source.is_none() {
                continue;
            }
            if first.source != now.source {
                *first = now.clone();
            }
            *last = now.clone();
        }
    }

    fn rates(self) -> (Vec<IfaceRates>, SystemTime) {
        let of = |ifaces| Snapshot {
            time_ns: 0,
            time: self.time,
            ifaces,
        };
        (rates(&of(self.first), &of(self.last)), self.time)
    }
}
