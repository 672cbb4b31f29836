//! Source against destination: a row for each host that sends, a column for each that receives.

use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
    widgets::Paragraph,
};

use super::{
    super::{
        app::App,
        heat::{Heat, Matrix},
    },
    theme::Theme,
};
use crate::view::live::{bits, per_second, share};

/// Columns of a cell.
const CELL: usize = 7;

/// Draws as many hosts as have room, the hottest first.
pub fn draw(frame: &mut Frame<'_>, area: Rect, app: &App, theme: Theme) {
    let rows = (0..app.order.len()).filter_map(|place| Some(app.row(place)?.1));
    let matrix = Matrix::new(rows, app.heat);
    let mut lines = vec![Line::from(vec![
        Span::styled("heatmap: ", theme.heading()),
        Span::raw(app.heat.name()),
    ])];
    if matrix.sources.is_empty() {
        lines.push(Line::styled("no RoCEv2 traffic seen so far", theme.dim()));
        frame.render_widget(Paragraph::new(lines), area);
        return;
    }
    let margin = matrix
        .sources
        .iter()
        .map(|host| host.to_string().len())
        .max()
        .unwrap_or(0)
        .min(usize::from(area.width) / 3);
    // Whole addresses above the cells where they have room, else their ends.
    let room = usize::from(area.width).saturating_sub(margin + 1);
    let longest = matrix
        .targets
        .iter()
        .map(|host| host.to_string().len() + 1)
        .max()
        .unwrap_or(0);
    let width = if longest.max(CELL) * matrix.targets.len() <= room {
        longest.max(CELL)
    } else {
        CELL
    };
    let across = (room / width).max(1);
    let width = width - 1;
    let down = usize::from(area.height).saturating_sub(5).max(1);
    let targets: Vec<_> = matrix.targets.iter().take(across).collect();
    let corner: String = "from \\ to".chars().take(margin).collect();
    let mut head = vec![Span::raw(format!("{corner:<margin$} "))];
    head.extend(targets.iter().map(|host| {
        let name = tail(&host.to_string(), width);
        Span::styled(format!("{name:>width$} "), theme.heading())
    }));
    lines.push(Line::from(head));
    for source in matrix.sources.iter().take(down) {
        let mut spans = vec![Span::styled(
            format!("{:<margin$} ", tail(&source.to_string(), margin)),
            theme.heading(),
        )];
        for target in &targets {
            spans.push(cell(&matrix, app.heat, (*source, **target), width, theme));
            spans.push(Span::raw(" "));
        }
        lines.push(Line::from(spans));
    }
    let hidden = |all: usize, shown: usize, what: &str| {
        (all > shown).then(|| format!("{} more {what} have no room", all - shown))
    };
    let notes = [
        hidden(matrix.sources.len(), down, "sources"),
        hidden(matrix.targets.len(), across, "destinations"),
    ];
    for note in notes.into_iter().flatten() {
        lines.push(Line::styled(note, theme.dim()));
    }
    let mut legend = vec![Span::styled(format!("{:>margin$} ", "scale"), theme.dim())];
    for step in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let number = number(app.heat, scale(app.heat, matrix.most) * step);
        legend.push(Span::styled(
            format!("{number:>width$}", width = CELL - 1),
            theme.heat(step),
        ));
        legend.push(Span::raw(" "));
    }
    legend.push(Span::styled(
        " .: nothing goes there; n/a: not seen from here",
        theme.dim(),
    ));
    lines.push(Line::from(legend));
    frame.render_widget(Paragraph::new(lines), area);
}

/// The hottest colour: shares are of 100 % where they are high, else of what is there.
fn scale(heat: Heat, most: f64) -> f64 {
    match heat {
        Heat::Ce => most.max(0.01),
        _ => most.max(1.0),
    }
}

fn number(heat: Heat, value: f64) -> String {
    match heat {
        Heat::Ce => share(value),
        Heat::Rate => bits(value),
        Heat::Cnp | Heat::Resent => per_second(value),
    }
}

fn cell(
    matrix: &Matrix,
    heat: Heat,
    (source, target): (std::net::IpAddr, std::net::IpAddr),
    width: usize,
    theme: Theme,
) -> Span<'static> {
    match matrix.cell(source, target) {
        None => Span::styled(format!("{:>width$}", "."), theme.dim()),
        Some(None) => Span::styled(format!("{:>width$}", "n/a"), theme.dim()),
        Some(Some(value)) => {
            let style = theme.heat(value / scale(heat, matrix.most));
            Span::styled(format!("{:>width$}", number(heat, value)), style)
        }
    }
}

/// The end of an address: what tells hosts of one network apart.
fn tail(address: &str, width: usize) -> String {
    let length = address.chars().count();
    if length <= width {
        return address.to_owned();
    }
    let end: String = address
        .chars()
        .skip(length - width.saturating_sub(1))
        .collect();
    format!("…{end}")
}
