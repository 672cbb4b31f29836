//! All about one line: both directions number by number, reasons where there is none, and curves of the last minutes.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span},
    widgets::{Paragraph, Sparkline},
};

use super::{
    super::{
        app::App,
        history::{CURVES, Curve},
    },
    events::wrap,
    theme::Theme,
};
use crate::{
    live::{Direction, IfaceRates, NO_ROUND_TRIP, Row, RttValue, Value},
    view::{
        live::{bits, ends, nanoseconds, pause, per_second, share},
        text,
    },
};

/// Least columns of the numbers where curves stand beside them.
const NUMBERS: u16 = 40;
/// Least columns of a curve.
const CURVE_WIDTH: u16 = 28;
/// Lines of the numbers without what explains them.
const NUMBERS_LINES: u16 = 20;
/// Lines of a curve with its title.
const CURVE_LEAST: u16 = 2;

/// A number's text and style, or why there is none.
type Shown = (String, Style, Option<&'static str>);

/// Draws the selected line.
pub fn draw(frame: &mut Frame<'_>, area: Rect, app: &App, theme: Theme) {
    let Some((iface, row)) = app.selection() else {
        let text = "This QP is gone, or hidden by the filter: Esc goes back.";
        frame.render_widget(Line::styled(text, theme.warn()), area);
        return;
    };
    let (numbers, curves) = if area.width >= NUMBERS + 2 + CURVE_WIDTH {
        let width = NUMBERS.max((area.width / 2).min(58));
        let [numbers, _, curves] = Layout::horizontal([
            Constraint::Length(width),
            Constraint::Length(2),
            Constraint::Min(CURVE_WIDTH),
        ])
        .areas(area);
        (numbers, curves)
    } else {
        // Reasons and blind spots make room for two curves.
        let lines = lines(iface, row, usize::from(area.width), theme).len() as u16;
        let most = area.height.saturating_sub(6).max(NUMBERS_LINES);
        let [numbers, curves] =
            Layout::vertical([Constraint::Length(lines.min(most)), Constraint::Min(0)]).areas(area);
        (numbers, curves)
    };
    let text = lines(iface, row, usize::from(numbers.width), theme);
    frame.render_widget(Paragraph::new(text), numbers);
    draw_curves(frame, curves, app, row, theme);
}

fn lines(iface: &IfaceRates, row: &Row, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let (_, _, there, back) = row.oriented();
    let [from, to] = ends(row);
    let mut lines = vec![Line::from(vec![
        Span::styled(from, theme.heading()),
        Span::raw("  ->  "),
        Span::styled(to, theme.heading()),
    ])];
    let state = row.state.map_or("flow seen in passing", text::state);
    let mtu = match row.path_mtu {
        0 => "n/a".to_owned(),
        mtu => mtu.to_string(),
    };
    let mut facts = format!("{}: {state}, path MTU {mtu}", iface.iface);
    if let Some(outstanding) = row.outstanding {
        facts.push_str(&format!(", {outstanding} requests outstanding"));
    }
    lines.push(Line::raw(facts));
    let dcqcn = match row.dcqcn {
        Ok(rate) => format!("{}bit/s", bits(rate)),
        Err(reason) => reason.to_owned(),
    };
    lines.push(Line::raw(format!(
        "DCQCN: {dcqcn}.  Port paused: {}",
        pause(iface)
    )));
    let mut reasons: Vec<&'static str> = Vec::new();
    let head = format!("{:<14}{:>12}{:>12}", "", "there", "back");
    lines.push(Line::styled(head, theme.heading()));
    let mut line = |name: &str, pick: &dyn Fn(&Direction) -> Shown| {
        let mut spans = vec![Span::raw(format!("{name:<14}"))];
        for direction in [there, back] {
            let (text, style, reason) = pick(direction);
            let mut text = text;
            if let Some(reason) = reason {
                let at = reasons.iter().position(|r| *r == reason);
                let number = at.unwrap_or_else(|| {
                    reasons.push(reason);
                    reasons.len() - 1
                });
                text = format!("n/a ({})", number + 1);
            }
            spans.push(Span::styled(format!("{text:>12}"), style));
        }
        lines.push(Line::from(spans));
    };
    let plain = Style::new();
    let value = |value: Value, show: fn(f64) -> String, bad: Style| match value {
        Ok(v) if v > 0.0 => (show(v), bad, None),
        Ok(v) => (show(v), theme.dim(), None),
        Err(reason) => (String::new(), theme.dim(), Some(reason)),
    };
    line("bit/s", &|d| value(d.bits, bits, plain));
    line("packets/s", &|d| value(d.packets, per_second, plain));
    line("CE %", &|d| value(d.ce_share, share, theme.warn()));
    line("CE marks/s", &|d| value(d.ce, per_second, theme.warn()));
    line("CNP/s", &|d| value(d.cnp, per_second, theme.warn()));
    line("gaps/s", &|d| value(d.gaps, per_second, theme.warn()));
    line("missing/s", &|d| value(d.missing, per_second, theme.warn()));
    line("sent again/s", &|d| {
        value(d.resent, per_second, theme.warn())
    });
    line("NAK/s", &|d| value(d.naks, per_second, theme.bad()));
    line("RNR NAK/s", &|d| value(d.rnr, per_second, theme.warn()));
    let rtt = |rtt: RttValue, pick: fn(&crate::live::RttSummary) -> u64| match rtt {
        Ok(summary) => (nanoseconds(pick(&summary) as f64), plain, None),
        Err(NO_ROUND_TRIP) => ("-".to_owned(), theme.dim(), None),
        Err(reason) => (String::new(), theme.dim(), Some(reason)),
    };
    line("RTT mean", &|d| rtt(d.rtt, |r| r.mean_ns));
    line("RTT p50 <=", &|d| rtt(d.rtt, |r| r.p50_ns));
    line("RTT p99 <=", &|d| rtt(d.rtt, |r| r.p99_ns));
    line("RTT max <=", &|d| rtt(d.rtt, |r| r.max_ns));
    line("packets ever", &|d| {
        (text::count(d.total_packets), plain, None)
    });
    line("bytes ever", &|d| (text::bytes(d.total_bytes), plain, None));
    for (number, reason) in reasons.iter().enumerate() {
        let text = format!("n/a ({}): {reason}", number + 1);
        lines.extend(
            wrap(&text, width)
                .into_iter()
                .map(|l| Line::styled(l, theme.dim())),
        );
    }
    for spot in &iface.blind_spots {
        let text = format!("not seen: {spot}");
        lines.extend(
            wrap(&text, width)
                .into_iter()
                .map(|l| Line::styled(l, theme.dim())),
        );
    }
    lines
}

fn draw_curves(frame: &mut Frame<'_>, area: Rect, app: &App, row: &Row, theme: Theme) {
    let fit = (area.height / CURVE_LEAST).min(CURVES.len() as u16);
    if fit == 0 || area.width < 20 {
        return;
    }
    let places = Layout::vertical(vec![Constraint::Fill(1); usize::from(fit)]).split(area);
    let skip = if app.paused { app.skipped } else { 0 };
    let width = usize::from(area.width);
    for (curve, place) in CURVES.iter().zip(places.iter()) {
        let values = app.histories.curve(&row.key, *curve, width, skip);
        let known = || values.iter().copied().filter(|v| v.is_finite());
        let (name, show): (&str, fn(f64) -> String) = match curve {
            Curve::Rate => ("bit/s there", bits),
            Curve::Back => ("bit/s back", bits),
            Curve::Ce => ("CE %", share),
            Curve::Cnp => ("CNP/s", per_second),
            Curve::Resent => ("sent again/s", per_second),
            Curve::Rtt => ("RTT p99", nanoseconds),
        };
        let most = known().fold(0.0_f32, f32::max);
        let now = values
            .last()
            .filter(|v| v.is_finite())
            .map_or_else(|| "n/a".to_owned(), |v| show(f64::from(*v)));
        let span = app.interval.as_secs_f64() * values.len() as f64;
        let title = if known().next().is_none() {
            format!("{name}  n/a")
        } else {
            format!(
                "{name}  now {now}  most {}  over {span:.0} s",
                show(f64::from(most))
            )
        };
        let [title_place, plot] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(*place);
        frame.render_widget(Line::styled(title, theme.heading()), title_place);
        let scale = 1000.0 / most.max(f32::MIN_POSITIVE);
        let mut bars: Vec<Option<u64>> = vec![None; width.saturating_sub(values.len())];
        bars.extend(
            values
                .iter()
                .map(|v| v.is_finite().then_some((v * scale).round() as u64)),
        );
        let spark = Sparkline::default()
            .data(bars)
            .max(1000)
            .absent_value_symbol(" ")
            .style(theme.curve());
        frame.render_widget(spark, plot);
    }
}
