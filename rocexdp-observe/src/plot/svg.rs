//! The drawing as SVG text: panels under one another, no scripts, no fonts but the viewer's.

use std::fmt::Write;

use super::{Mark, Panel, Plot};

const WIDTH: f64 = 1180.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 72.0;
const HEAD: f64 = 52.0;
/// Heights: over a panel, of its PSNs, between, of its rates, below.
const TITLE: f64 = 40.0;
const PSNS: f64 = 210.0;
const BETWEEN: f64 = 14.0;
const RATES: f64 = 60.0;
const BELOW: f64 = 38.0;
const PANEL: f64 = TITLE + PSNS + BETWEEN + RATES + BELOW;

const GREY: &str = "#6b7280";
const CE: &str = "#d97706";
const CNP: &str = "#7c3aed";

/// Colour, size of the dot, name in the legend.
const fn style(mark: Mark) -> (&'static str, f64, &'static str) {
    match mark {
        Mark::Acknowledged => ("#86b98f", 2.0, "acknowledged"),
        Mark::Response => ("#0e8f8f", 2.2, "READ response"),
        Mark::Sent => ("#2563eb", 2.2, "sent"),
        Mark::ResponseAgain => ("#db2777", 3.4, "READ response again"),
        Mark::SentAgain => ("#dc2626", 3.4, "sent again"),
        Mark::Rnr => ("#d97706", 5.0, "RNR NAK"),
        Mark::Nak => ("#111827", 5.0, "NAK"),
    }
}

/// Makes text safe inside an SVG.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A place, and how the text lies there.
#[derive(Clone, Copy)]
struct At<'a> {
    x: f64,
    y: f64,
    anchor: &'a str,
    fill: &'a str,
}

fn text(out: &mut String, at: At<'_>, text: &str) {
    let At { x, y, anchor, fill } = at;
    let text = escape(text);
    _ = writeln!(
        out,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{fill}">{text}</text>"#
    );
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), stroke: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    _ = writeln!(
        out,
        r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{stroke}" stroke-width="1"/>"#
    );
}

/// Round steps: 1, 2 or 5 times a power of ten, so that a handful fit in `span`.
fn step(span: f64, most: f64) -> f64 {
    let rough = (span / most).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|n| n * power)
        .find(|&step| step >= rough)
        .unwrap_or(rough)
}

/// The unit of times on the axis, and nanoseconds in it.
fn unit(length_ns: u64) -> (&'static str, f64) {
    match length_ns {
        0..2_000 => ("ns", 1.0),
        2_000..2_000_000 => ("\u{b5}s", 1e3),
        2_000_000..2_000_000_000 => ("ms", 1e6),
        _ => ("s", 1e9),
    }
}

/// A number as short as it says the same.
fn short(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

pub(super) fn draw(plot: &Plot, title: &str) -> String {
    let height = HEAD + PANEL * plot.panels.len().max(1) as f64 + 8.0;
    let mut out = String::new();
    _ = writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="#ffffff"/>"##
    );
    let about = At {
        x: LEFT,
        y: 24.0,
        anchor: "start",
        fill: "#111827",
    };
    out.push_str("<g font-size=\"16\" font-weight=\"bold\">\n");
    text(&mut out, about, title);
    out.push_str("</g>\n");
    legend(&mut out, plot);
    if plot.panels.is_empty() {
        let at = At {
            y: 90.0,
            fill: GREY,
            ..about
        };
        text(&mut out, at, "no reliable or unreliable connection to draw");
    }
    for (index, panel) in plot.panels.iter().enumerate() {
        draw_panel(&mut out, plot, panel, HEAD + PANEL * index as f64);
    }
    out.push_str("</svg>\n");
    out
}

fn legend(out: &mut String, plot: &Plot) {
    let (mut x, y) = (LEFT, 42.0);
    for mark in Mark::ALL {
        if plot.panels.iter().all(|panel| panel.count(mark) == 0) {
            continue;
        }
        let (colour, _, name) = style(mark);
        _ = writeln!(
            out,
            r#"<circle cx="{x:.1}" cy="{:.1}" r="4" fill="{colour}"/>"#,
            y - 4.0
        );
        let at = At {
            x: x + 8.0,
            y,
            anchor: "start",
            fill: "#374151",
        };
        text(out, at, name);
        x += 30.0 + 7.0 * name.len() as f64;
    }
}

fn draw_panel(out: &mut String, plot: &Plot, panel: &Panel, top: f64) {
    let (right, length) = (WIDTH - RIGHT, plot.length_ns());
    let x = |time: u64| LEFT + (right - LEFT) * time as f64 / length as f64;
    let psn_top = top + TITLE;
    let psn_end = psn_top + PSNS;
    let rate_end = psn_end + BETWEEN + RATES;

    let mut at = At {
        x: LEFT,
        y: top + 18.0,
        anchor: "start",
        fill: "#111827",
    };
    out.push_str("<g font-weight=\"bold\">\n");
    text(out, at, &panel.track.title);
    out.push_str("</g>\n");
    (at.y, at.fill) = (top + 33.0, GREY);
    text(out, at, &counts(panel));

    for y in [psn_end, rate_end] {
        line(out, (LEFT, y), (right, y), "#9ca3af");
    }
    line(out, (LEFT, psn_top), (LEFT, rate_end), "#9ca3af");
    times(out, length, &x, (psn_top, rate_end));

    if let Some((least, most)) = panel.grid.range() {
        // Half a packet of room, so that a single PSN has a place.
        let span = (most - least) as f64 + 1.0;
        let y = |n: i64| psn_end - PSNS * ((n - least) as f64 + 0.5) / span;
        psns(out, panel, (least, most), &y);
        for mark in Mark::ALL {
            dots(out, panel, mark, &x, &y);
        }
    }
    rates(out, panel, &x, rate_end);
}

fn counts(panel: &Panel) -> String {
    let mut said: Vec<_> = Mark::ALL
        .into_iter()
        .filter(|&mark| panel.count(mark) != 0)
        .map(|mark| format!("{} {}", panel.count(mark), style(mark).2))
        .collect();
    if panel.track.requester_qpn.is_none() {
        said.push("answers not tied: the other QP's number is not known".to_owned());
    }
    said.join(", ")
}

/// Ticks of time, with faint lines.
fn times(out: &mut String, length: u64, x: &dyn Fn(u64) -> f64, (top, end): (f64, f64)) {
    let (name, unit) = unit(length);
    let step = step(length as f64 / unit, 10.0);
    let mut n = 0.0;
    while n * step * unit <= length as f64 {
        let place = x((n * step * unit) as u64);
        line(out, (place, top), (place, end), "#eef0f3");
        let at = At {
            x: place,
            y: end + 15.0,
            anchor: "middle",
            fill: GREY,
        };
        text(out, at, &format!("{} {name}", short(n * step)));
        n += 1.0;
    }
}

/// Ticks of PSNs: round steps from the first.
fn psns(out: &mut String, panel: &Panel, (least, most): (i64, i64), y: &dyn Fn(i64) -> f64) {
    let first = panel.first_psn.unwrap_or_default();
    let step = step((most - least) as f64, 5.0).max(1.0) as i64;
    let mut n = least.div_euclid(step) * step;
    while n <= most {
        if n >= least {
            let psn = first.add(n as u32).get();
            let place = y(n);
            line(out, (LEFT - 4.0, place), (LEFT, place), "#9ca3af");
            let at = At {
                x: LEFT - 8.0,
                y: place + 4.0,
                anchor: "end",
                fill: GREY,
            };
            text(out, at, &psn.to_string());
        }
        n += step;
    }
    let at = At {
        x: LEFT - 8.0,
        y: y(most) - 14.0,
        anchor: "end",
        fill: GREY,
    };
    text(out, at, "PSN");
}

/// All marks of a kind as one path of round dots.
fn dots(
    out: &mut String,
    panel: &Panel,
    mark: Mark,
    x: &dyn Fn(u64) -> f64,
    y: &dyn Fn(i64) -> f64,
) {
    let marks = panel.grid.marks(mark);
    if marks.is_empty() {
        return;
    }
    let (colour, size, _) = style(mark);
    let mut path = String::new();
    for (time, number) in marks {
        let (x, y) = (x(time), y(number));
        match mark {
            // A cross stands out from dots.
            Mark::Nak | Mark::Rnr => {
                _ = write!(path, "M{:.1} {:.1}l8 8m0 -8l-8 8", x - 4.0, y - 4.0);
            }
            _ => _ = write!(path, "M{x:.1} {y:.1}h0"),
        }
    }
    let width = if matches!(mark, Mark::Nak | Mark::Rnr) {
        1.8
    } else {
        size
    };
    _ = writeln!(
        out,
        r#"<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linecap="round"/>"#
    );
}

/// Share of packets with a CE mark (left axis) and CNPs per second (right axis).
fn rates(out: &mut String, panel: &Panel, x: &dyn Fn(u64) -> f64, end: f64) {
    let total = panel.totals();
    let mut at = At {
        x: LEFT + 6.0,
        y: end - RATES / 2.0,
        anchor: "start",
        fill: GREY,
    };
    if total.ce == 0 && total.cnp == 0 {
        let what = if panel.track.requester_qpn.is_some() {
            "no CE marks, no CNPs"
        } else {
            "no CE marks; CNPs not tied"
        };
        text(out, at, what);
        return;
    }
    let width = 1_u64 << panel.rate_shift;
    let column = |c: u64| (x(c * width), x((c + 1) * width).min(WIDTH - RIGHT));
    let share = |ce: u64, data: u64| ce as f64 / data.max(1) as f64;
    let top_share = panel
        .rates
        .values()
        .map(|r| share(r.ce, r.data))
        .fold(0.0, f64::max);
    let top_cnp = panel.rates.values().map(|r| r.cnp).max().unwrap_or(0);
    let mut area = String::new();
    let mut steps = String::new();
    for (&c, r) in &panel.rates {
        let (from, to) = column(c);
        if r.ce != 0 {
            let y = end - RATES * share(r.ce, r.data) / top_share;
            _ = write!(area, "M{from:.1} {end:.1}V{y:.1}H{to:.1}V{end:.1}Z");
        }
        if r.cnp != 0 {
            let y = end - RATES * r.cnp as f64 / top_cnp as f64;
            _ = write!(steps, "M{from:.1} {end:.1}V{y:.1}H{to:.1}V{end:.1}");
        }
    }
    _ = writeln!(out, r#"<path d="{area}" fill="{CE}" fill-opacity="0.45"/>"#);
    _ = writeln!(
        out,
        r#"<path d="{steps}" fill="none" stroke="{CNP}" stroke-width="1.3"/>"#
    );
    let seconds = width as f64 / 1e9;
    (at.x, at.y, at.anchor, at.fill) = (LEFT - 8.0, end - RATES + 9.0, "end", CE);
    if total.ce != 0 {
        text(out, at, &format!("CE {}%", short_rate(top_share * 100.0)));
    }
    (at.x, at.anchor, at.fill) = (WIDTH - RIGHT + 4.0, "start", CNP);
    if top_cnp != 0 {
        text(
            out,
            at,
            &format!("{} CNP/s", short_rate(top_cnp as f64 / seconds)),
        );
    }
    (at.x, at.y, at.anchor, at.fill) = (WIDTH - RIGHT, end + 29.0, "end", GREY);
    let said = format!(
        "{} of {} data packets CE, {} CNPs; columns of {}",
        total.ce,
        total.data,
        total.cnp,
        span(seconds)
    );
    text(out, at, &said);
}

fn span(seconds: f64) -> String {
    let (name, unit) = unit((seconds * 2e9) as u64);
    format!("{} {name}", short_rate(seconds * 1e9 / unit))
}

/// Three digits, thousands as k and M.
fn short_rate(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1}M", v / 1e6),
        v if v >= 1e4 => format!("{:.0}k", v / 1e3),
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 1.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_a_handful() {
        for span in [1e-9, 0.3, 1.0, 7.0, 12_345.0, 9e12] {
            let n = span / step(span, 10.0);
            assert!((3.9..=10.0).contains(&n), "{span}: {n}");
        }
        assert_eq!(short(0.25), "0.25");
        assert_eq!(short(3.0), "3");
        assert_eq!(short_rate(12_345.0), "12k");
        assert_eq!(span(0.004), "4.0 ms");
    }

    #[test]
    fn text_stays_text() {
        assert_eq!(escape("a<b>&\"\u{7}"), "a&lt;b&gt;&amp;&quot;\u{fffd}");
    }
}
