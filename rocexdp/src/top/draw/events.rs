//! The events pane: what began and what ended, the newest last.

use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
    widgets::{Block, Borders, Paragraph},
};

use super::{super::app::App, theme::Theme};

/// Draws the last events that have room.
pub fn draw(frame: &mut Frame<'_>, area: Rect, app: &App, theme: Theme) {
    let block = Block::new()
        .borders(Borders::TOP)
        .border_style(theme.dim())
        .title(Span::styled(" events ", theme.heading()));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let room = usize::from(inner.height);
    let width = usize::from(inner.width);
    // Long lines are continued: from the newest on, as many as have room.
    let mut lines: Vec<Line<'static>> = Vec::new();
    for event in app.events.iter().rev() {
        let style = theme.level(event.level);
        let mut parts = wrap(&event.text, width.saturating_sub(10)).into_iter();
        let mut wrapped = vec![Line::from(vec![
            Span::styled(format!("{}  ", event.time), theme.dim()),
            Span::styled(parts.next().unwrap_or_default(), style),
        ])];
        wrapped
            .extend(parts.map(|part| Line::from(Span::styled(format!("{:10}{part}", ""), style))));
        if lines.len() + wrapped.len() > room {
            break;
        }
        lines.extend(wrapped.into_iter().rev());
    }
    if lines.is_empty() {
        lines.push(Line::styled("nothing so far", theme.dim()));
    }
    lines.reverse();
    frame.render_widget(Paragraph::new(lines), inner);
}

/// Lines of at most `width` characters, broken at spaces where that can be.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(10);
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let used = line.chars().count();
            let needed = word.len() + usize::from(used > 0);
            if used + needed <= width {
                if used > 0 {
                    line.push(' ');
                }
                line.extend(word);
                break;
            }
            if used > 0 {
                lines.push(std::mem::take(&mut line));
            } else {
                let rest = word.split_off(width.min(word.len()));
                lines.push(word.into_iter().collect());
                word = rest;
            }
        }
    }
    if !line.is_empty() || lines.is_empty() {
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn lines_break_at_spaces_and_long_words_where_they_must() {
        assert_eq!(wrap("one two three", 10), ["one two", "three"]);
        assert_eq!(wrap("abcdefghijklm no", 10), ["abcdefghij", "klm no"]);
        assert_eq!(wrap("", 10), [""]);
    }
}
