//! Drawing: heading, middle, events, keys. Every size is met: what has no room is left out, and below a least size a message
//! says so.

mod detail;
mod events;
mod heatmap;
mod help;
mod table;
mod theme;

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    text::{Line, Span},
    widgets::Paragraph,
};

use self::theme::Theme;
use super::app::{App, View};
use crate::{
    live::IfaceRates,
    view::{
        live::{pause, per_second},
        text,
    },
};

/// Least columns.
pub const LEAST_WIDTH: u16 = 50;
/// Least lines.
pub const LEAST_HEIGHT: u16 = 10;
/// Interfaces that have a line in the heading.
const MOST_HEADINGS: usize = 4;

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let area = frame.area();
    let theme = Theme::new(app.colour);
    if area.width < LEAST_WIDTH || area.height < LEAST_HEIGHT {
        let text = format!(
            "This terminal has {} x {} characters: rocexdp top needs at least {LEAST_WIDTH} x {LEAST_HEIGHT}. Make it larger, or \
             press q.",
            area.width, area.height
        );
        let wrap = ratatui::widgets::Wrap { trim: true };
        frame.render_widget(Paragraph::new(text).wrap(wrap), area);
        return;
    }
    let headings = app.shown.len().clamp(1, MOST_HEADINGS) as u16 + 1;
    // The table keeps at least five lines.
    let pane = match (app.view, app.events_pane) {
        (View::Table | View::Heat, true) if area.height >= headings + 1 + 6 + 4 => {
            let pane = (area.height / 4).clamp(4, 8);
            // What a short table leaves, up to half of the screen.
            let rows = u16::try_from(app.order.len()).unwrap_or(u16::MAX);
            let table = rows.saturating_add(headings + 3);
            let free = match app.view {
                View::Table => area.height.saturating_sub(table),
                _ => 0,
            };
            pane.max(free.min(area.height / 2))
        }
        _ => 0,
    };
    let [heading, middle, events, footer] = Layout::vertical([
        Constraint::Length(headings),
        Constraint::Min(3),
        Constraint::Length(pane),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_heading(frame, heading, app, theme);
    match app.view {
        View::Table => table::draw(frame, middle, app, theme),
        View::Detail => detail::draw(frame, middle, app, theme),
        View::Heat => heatmap::draw(frame, middle, app, theme),
        View::Events => events::draw_screen(frame, middle, app, theme),
    }
    if pane > 0 {
        events::draw_pane(frame, events, app, theme);
    }
    draw_footer(frame, footer, app, theme);
    if app.help {
        app.help_scroll = help::draw(frame, area, app.help_scroll, theme);
    }
}

fn draw_heading(frame: &mut Frame<'_>, area: Rect, app: &App, theme: Theme) {
    let shown = app.order.len();
    let count = if shown == app.lines {
        format!("  {shown} QPs and flows")
    } else {
        format!("  {shown} of {} QPs and flows", app.lines)
    };
    let mut first = vec![
        (0, Span::styled("rocexdp top", theme.heading())),
        (0, Span::raw(format!("  {} UTC", app.time))),
        (3, Span::raw(format!("  every {:.1?}", app.interval))),
        (2, Span::raw(count)),
    ];
    // What looking costs, for who asks whether to look more often.
    let cost = format!("  read in {:.0} ms", app.cost.as_secs_f64() * 1e3);
    first.push((4, Span::styled(cost, theme.dim())));
    if app.hide_idle {
        first.push((2, Span::styled("  idle hidden", theme.warn())));
    }
    if app.paused {
        let behind = format!("  PAUSED, {} intervals behind", app.skipped);
        first.push((1, Span::styled(behind, theme.bad())));
    }
    let mut lines = vec![fitting(first, area.width)];
    let most = if app.shown.len() > MOST_HEADINGS {
        MOST_HEADINGS - 1
    } else {
        MOST_HEADINGS
    };
    let shown = app.shown.iter().take(most);
    lines.extend(shown.map(|iface| fitting(interface(iface, theme), area.width)));
    if app.shown.is_empty() {
        lines.push(Line::styled("first look ...", theme.dim()));
    }
    if app.shown.len() > most {
        let more = app.shown.len() - most;
        lines.push(Line::styled(
            format!("and {more} more interfaces"),
            theme.dim(),
        ));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// Parts of a line that have room together: of those with the lowest number first; 0 may be cut by the edge.
fn fitting(parts: Vec<(u8, Span<'static>)>, width: u16) -> Line<'static> {
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|at| parts.get(*at).map(|(rank, _)| *rank));
    let mut left = usize::from(width);
    let mut kept = vec![false; parts.len()];
    for at in order {
        if let (Some((rank, span)), Some(kept)) = (parts.get(at), kept.get_mut(at)) {
            *kept = *rank == 0 || span.width() <= left;
            if *kept {
                left = left.saturating_sub(span.width());
            }
        }
    }
    let parts = parts.into_iter().zip(kept);
    parts
        .filter_map(|((_, span), kept)| kept.then_some(span))
        .collect()
}

/// What is amiss is the last to be left out, then what passes.
fn interface(iface: &IfaceRates, theme: Theme) -> Vec<(u8, Span<'static>)> {
    let name = (0, Span::styled(iface.iface.to_string(), theme.heading()));
    if let Some(error) = &iface.error {
        return vec![name, (0, Span::styled(format!("  {error}"), theme.bad()))];
    }
    let mut parts = vec![name];
    if let Some(source) = &iface.source {
        let mode = if source.mode == "n/a" {
            ""
        } else {
            &source.mode
        };
        let text = format!("  {} {} {mode}", source.role, source.hook);
        parts.push((3, Span::raw(text.trim_end().to_owned())));
    }
    let passes = format!(
        "  {} RoCEv2 of {} frames/s",
        per_second(iface.rocev2),
        per_second(iface.frames)
    );
    parts.push((2, Span::raw(passes)));
    let table = format!(
        "  flows {}/{}",
        text::count(iface.flow_table.live),
        text::count(u64::from(iface.flow_table.capacity))
    );
    parts.push((4, Span::raw(table)));
    let mut flag = |bad: bool, text: String| {
        let (rank, style) = if bad {
            (1, theme.warn())
        } else {
            (5, theme.dim())
        };
        parts.push((rank, Span::styled(text, style)));
    };
    if iface.flow_table.evicted > 0 {
        flag(
            iface.evictions > 0.0,
            format!("  evicted {}", text::count(iface.flow_table.evicted)),
        );
    }
    if iface.dropped > 0.0 {
        flag(true, format!("  dropped {}/s", per_second(iface.dropped)));
    }
    match pause(iface).as_str() {
        "-" => flag(false, "  no pause seen".to_owned()),
        paused => flag(true, format!("  paused {paused}")),
    }
    parts
}

fn draw_footer(frame: &mut Frame<'_>, area: Rect, app: &App, theme: Theme) {
    if app.typing {
        let mut spans = vec![
            Span::styled("/", theme.key()),
            Span::raw(app.filter_text.clone()),
            Span::styled(" ", theme.cursor()),
        ];
        let hint = match &app.filter_error {
            Some(error) => Span::styled(format!("  {error}"), theme.bad()),
            None => Span::styled("  words, !word, ce>1, cnp>100; Enter, Esc", theme.dim()),
        };
        spans.push(hint);
        frame.render_widget(Line::from(spans), area);
        return;
    }
    let keys: &[(&str, &str)] = match app.view {
        View::Table => &[
            ("q", "quit"),
            ("?", "help"),
            ("s", "sort"),
            ("r", "reverse"),
            ("/", "filter"),
            ("Space", "pause"),
            ("Enter", "detail"),
            ("h", "heatmap"),
            ("e", "events"),
            ("i", "idle"),
            ("+-", "interval"),
        ],
        View::Detail => &[
            ("Esc", "back"),
            ("Up/Down", "other QP"),
            ("Space", "pause"),
            ("?", "help"),
            ("q", "quit"),
        ],
        View::Heat => &[
            ("Esc", "back"),
            ("m", "other number"),
            ("/", "filter"),
            ("Space", "pause"),
            ("?", "help"),
            ("q", "quit"),
        ],
        View::Events => &[
            ("Esc", "back"),
            ("Up/Down", "scroll"),
            ("End", "newest"),
            ("e", "no events"),
            ("?", "help"),
            ("q", "quit"),
        ],
    };
    let mut spans = Vec::new();
    if !app.filter_text.is_empty() {
        spans.push(Span::styled(
            format!("/{}  ", app.filter_text),
            theme.warn(),
        ));
    }
    let mut used = Line::from(spans.clone()).width();
    for (key, what) in keys {
        used += key.len() + what.len() + 3;
        if used > usize::from(area.width) {
            break;
        }
        spans.push(Span::styled((*key).to_owned(), theme.key()));
        spans.push(Span::raw(format!(" {what}  ")));
    }
    frame.render_widget(Line::from(spans), area);
}
