//! Keys and columns, explained.

use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
    widgets::{Block, Clear, Paragraph},
};

use super::{events::wrap, theme::Theme};
use crate::view::live::METRICS;

const KEYS: [(&str, &str); 13] = [
    (
        "Up Down PgUp PgDn",
        "move; in the table Home follows the top, in the events End the newest",
    ),
    ("s S or > <", "sort by the next, the previous column"),
    ("r", "reverse the order"),
    (
        "/",
        "filter: 10.0.0.3, 0x11, !eth1, RTS, ce>1 (percent), cnp>100, p99>500 (us), rate>1G",
    ),
    ("Space", "pause: nothing moves, counting goes on"),
    ("Enter", "all about one QP, with curves of the last minutes"),
    (
        "h, then m",
        "heatmap of sources and destinations; other numbers",
    ),
    ("e", "events: pane, whole screen, none"),
    ("i", "hide what sent nothing in the interval"),
    ("+ -", "longer, shorter interval"),
    ("Esc", "back; clear the filter"),
    ("Ctrl-Z", "stop, and go on with fg"),
    ("q, Ctrl-C", "quit"),
];

/// Draws it above everything, from line `scroll` on, and returns how far it can be scrolled.
pub fn draw(frame: &mut Frame<'_>, area: Rect, scroll: usize, theme: Theme) -> usize {
    let width = area.width.min(110);
    let inner = usize::from(width).saturating_sub(4);
    let mut lines = Vec::new();
    let mut entry = |name: &str, text: &str| {
        let parts = wrap(text, inner.saturating_sub(20));
        for (at, part) in parts.into_iter().enumerate() {
            let name = if at == 0 { name } else { "" };
            lines.push(Line::from(vec![
                Span::styled(format!(" {name:<18} "), theme.key()),
                Span::raw(part),
            ]));
        }
    };
    for (keys, what) in KEYS {
        entry(keys, what);
    }
    entry("", "");
    for metric in METRICS {
        let name = format!("{} ({})", metric.name(), metric.key());
        entry(&name, metric.help());
    }
    entry(
        "*",
        "a QP of this host's endpoint (rocexdp run); without it, a flow seen in passing",
    );
    entry(
        "PAUSED",
        "priority that this port was asked to stop sending, and the share of the time; pause frames that the MAC takes are not seen",
    );
    entry(
        "n/a",
        "can't be known from here: Enter tells why. -: nothing to measure",
    );
    let height = (lines.len() as u16 + 2).min(area.height);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    let most = (lines.len() + 2).saturating_sub(usize::from(height));
    let scroll = scroll.min(most);
    let title = if most > 0 {
        " rocexdp top: Up and Down scroll, other keys close "
    } else {
        " rocexdp top: any key closes "
    };
    let block = Block::bordered().title(Span::styled(title, theme.heading()));
    frame.render_widget(Clear, place);
    let text = Paragraph::new(lines)
        .block(block)
        .scroll((u16::try_from(scroll).unwrap_or(0), 0));
    frame.render_widget(text, place);
    scroll
}
