//! The table of lines: as many columns as have room, the most telling ones kept longest.

use ratatui::{
    Frame,
    layout::{Constraint, Rect},
    style::Style,
    text::{Line, Span},
    widgets::{Cell, Row as TableRow, Table},
};

use super::{super::app::App, theme::Theme};
use crate::{
    live::{IfaceRates, Row},
    view::{
        live::{METRICS, Metric, ends, pause},
        text,
    },
};

/// The numbers in the order in which they get room.
const BY_WORTH: [Metric; 13] = [
    Metric::Rate,
    Metric::Ce,
    Metric::Cnp,
    Metric::RttP99,
    Metric::Gaps,
    Metric::Resent,
    Metric::Back,
    Metric::Packets,
    Metric::Nak,
    Metric::RttP50,
    Metric::Dcqcn,
    Metric::Rnr,
    Metric::RttMax,
];
/// Columns of an end that is shortened.
const END_LEAST: usize = 17;
const PAUSE_WIDTH: usize = 8;
const STATE_WIDTH: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Iface,
    Source,
    Target,
    Number(Metric),
    Pause,
    State,
}

fn width(metric: Metric) -> usize {
    // A mark behind the heading tells that lines are sorted by it.
    let least = if metric == Metric::Dcqcn { 7 } else { 6 };
    (metric.name().len() + 1).max(least)
}

/// Which columns, and how wide.
fn columns(room: usize, ifaces: usize, ends: usize, sort: Metric) -> Vec<(Column, usize)> {
    let mut left = room;
    let mut shown = vec![sort];
    let iface = if ifaces > 0 { ifaces + 1 } else { 0 };
    // Numbers that are always there: the first four, and the one that lines are sorted by.
    let must: usize = BY_WORTH.iter().take(4).map(|m| width(*m) + 1).sum();
    let share = |numbers: usize| (room.saturating_sub(numbers + iface) / 2).saturating_sub(1);
    let ends = ends
        .min(share(must).max(END_LEAST))
        .min(share(width(sort) + 1));
    left = left.saturating_sub(iface + 2 * (ends + 1) + width(sort) + 1);
    for metric in BY_WORTH {
        if shown.contains(&metric) {
            continue;
        }
        if width(metric) + 1 > left {
            break;
        }
        left -= width(metric) + 1;
        shown.push(metric);
    }
    let all = shown.len() == BY_WORTH.len();
    let mut out = Vec::new();
    if ifaces > 0 {
        out.push((Column::Iface, ifaces));
    }
    out.push((Column::Source, ends));
    out.push((Column::Target, ends));
    for metric in METRICS {
        if shown.contains(&metric) {
            out.push((Column::Number(metric), width(metric)));
        }
    }
    if all && left > PAUSE_WIDTH {
        left -= PAUSE_WIDTH + 1;
        out.push((Column::Pause, PAUSE_WIDTH));
        if left > STATE_WIDTH {
            out.push((Column::State, STATE_WIDTH));
        }
    }
    out
}

/// Draws the page that the cursor is on.
pub fn draw(frame: &mut Frame<'_>, area: Rect, app: &mut App, theme: Theme) {
    let page = usize::from(area.height.saturating_sub(1)).max(1);
    app.page = page;
    // The cursor stays on the page.
    app.offset = app
        .offset
        .min(app.cursor)
        .max((app.cursor + 1).saturating_sub(page))
        .min(app.order.len().saturating_sub(page));
    let places = app.offset..(app.offset + page).min(app.order.len());
    let visible: Vec<_> = places.filter_map(|place| app.row(place)).collect();
    let widest = visible
        .iter()
        .flat_map(|(_, row)| ends(row))
        .map(|end| end.len())
        .max()
        .unwrap_or(END_LEAST)
        .max("DESTINATION".len());
    let ifaces = match app.shown.len() {
        0 | 1 => 0,
        _ => app
            .shown
            .iter()
            .map(|i| i.iface.len())
            .max()
            .unwrap_or(0)
            .max(5),
    };
    let columns = columns(usize::from(area.width), ifaces, widest, app.sort);
    let header = TableRow::new(
        columns
            .iter()
            .map(|(column, width)| heading(*column, *width, app, theme)),
    );
    let rows = visible.iter().enumerate().map(|(at, (iface, row))| {
        let at_cursor = app.offset + at == app.cursor;
        let cells = columns.iter().map(|(column, width)| {
            // Reversed, each cell's own colour would be a block.
            let theme = (!at_cursor).then_some(theme);
            cell(*column, *width, iface, row, theme)
        });
        let style = if at_cursor {
            theme.cursor()
        } else if row.active() {
            Style::new()
        } else {
            theme.dim()
        };
        TableRow::new(cells).style(style)
    });
    let widths = columns
        .iter()
        .map(|(_, width)| Constraint::Length(*width as u16));
    let table = Table::new(rows, widths).header(header).column_spacing(1);
    frame.render_widget(table, area);
    if visible.is_empty() && area.height > 2 {
        let text = if app.lines > 0 {
            "nothing passes the filter (Esc clears it)"
        } else if app.shown.iter().all(|i| i.error.is_some()) {
            "no interface can be read"
        } else {
            "no RoCEv2 traffic seen so far"
        };
        let below = Rect {
            y: area.y + 2,
            height: 1,
            ..area
        };
        frame.render_widget(Line::styled(text, theme.dim()), below);
    }
}

fn heading(column: Column, width: usize, app: &App, theme: Theme) -> Cell<'static> {
    let name = match column {
        Column::Iface => "IFACE",
        Column::Source => "SOURCE/QP",
        Column::Target => "DESTINATION/QP",
        Column::Number(metric) => {
            let (mark, style) = match (metric == app.sort, app.ascending) {
                (false, _) => ("", theme.heading()),
                (true, false) => ("▼", theme.sorted()),
                (true, true) => ("▲", theme.sorted()),
            };
            let name = format!("{}{mark}", metric.name());
            let pad = width.saturating_sub(name.chars().count());
            return Cell::new(Line::from(vec![
                Span::raw(" ".repeat(pad)),
                Span::styled(name, style),
            ]));
        }
        Column::Pause => "PAUSED",
        Column::State => "STATE",
    };
    Cell::new(Span::styled(name, theme.heading()))
}

/// `theme` is for cells of a style of their own; `None`: none has one.
fn cell(
    column: Column,
    width: usize,
    iface: &IfaceRates,
    row: &Row,
    theme: Option<Theme>,
) -> Cell<'static> {
    let [from, to] = ends(row);
    let styled = |pick: &dyn Fn(Theme) -> Style| theme.map_or_else(Style::new, pick);
    match column {
        Column::Iface => Cell::new(iface.iface.to_string()),
        Column::Source => Cell::new(shortened(&from, width)),
        Column::Target => Cell::new(shortened(&to, width)),
        Column::Number(metric) => {
            let text = metric.cell(row);
            let style = styled(&|theme| style(metric, row, theme));
            Cell::new(Span::styled(format!("{text:>width$}"), style))
        }
        Column::Pause => {
            let text = pause(iface);
            let style = styled(&|theme| {
                if text == "-" {
                    theme.dim()
                } else {
                    theme.warn()
                }
            });
            Cell::new(Span::styled(text, style))
        }
        Column::State => match row.state {
            Some(state) => Cell::new(text::state(state)),
            None => Cell::new(Span::styled("flow", styled(&|theme| theme.dim()))),
        },
    }
}

/// An end within `width`: of a long address the middle goes, since both ends tell hosts apart.
fn shortened(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let (address, qpn) = text.split_once('/').unwrap_or((text, ""));
    let room = width.saturating_sub(qpn.len() + 2);
    let head: String = address.chars().take(room / 2).collect();
    let tail = room - room / 2;
    let tail: String = address
        .chars()
        .skip(address.chars().count().saturating_sub(tail))
        .collect();
    format!("{head}…{tail}/{qpn}")
}

fn style(metric: Metric, row: &Row, theme: Theme) -> Style {
    let Ok(value) = metric.value(row) else {
        return theme.dim();
    };
    match metric {
        _ if value <= 0.0 => theme.dim(),
        Metric::Ce if value >= 0.1 => theme.bad(),
        Metric::Ce | Metric::Cnp | Metric::Gaps | Metric::Resent | Metric::Rnr => theme.warn(),
        Metric::Nak => theme.bad(),
        _ => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(columns: &[(Column, usize)]) -> Vec<&'static str> {
        let numbers = columns.iter().filter_map(|(column, _)| match column {
            Column::Number(metric) => Some(metric.key()),
            _ => None,
        });
        numbers.collect()
    }

    #[test]
    fn columns_fit_and_the_sorted_one_is_always_there() {
        for room in 50..260 {
            for sort in METRICS {
                for (ifaces, ends) in [(0, 17), (8, 17), (0, 46)] {
                    let columns = columns(room, ifaces, ends, sort);
                    let total: usize = columns.iter().map(|(_, w)| w + 1).sum::<usize>() - 1;
                    assert!(
                        total <= room,
                        "{room} {sort:?} {ifaces} {ends}: {columns:?}"
                    );
                    assert!(names(&columns).contains(&sort.key()));
                }
            }
        }
    }

    #[test]
    fn a_wide_terminal_has_all_and_a_usual_one_what_matters_most() {
        let names_at = |room| names(&columns(room, 0, 17, Metric::Rate));
        assert_eq!(names_at(80), ["rate", "ce", "cnp", "gaps", "p99"]);
        assert_eq!(names_at(120).len(), 10);
        let wide = columns(170, 0, 17, Metric::Rate);
        assert_eq!(names(&wide).len(), 13);
        assert_eq!(wide.last().map(|(c, _)| *c), Some(Column::State));
    }

    #[test]
    fn a_long_address_keeps_both_ends_and_its_qp() {
        let text = shortened("2001:db8:1:2:3:4:5:6789/0x000011", 24);
        assert_eq!(text.chars().count(), 24);
        assert!(
            text.starts_with("2001:db") && text.ends_with(":6789/0x000011"),
            "{text}"
        );
    }
}
