//! The events: a pane of the newest below the table, or the whole screen, where they can be scrolled.

use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
    widgets::{Block, Borders, Paragraph},
};

use super::{
    super::app::{App, Event},
    theme::Theme,
};
use crate::live::news::Level;

/// Characters before an event's text: the time and two spaces.
const MARGIN: usize = 10;

/// The pane: the newest events that have room.
pub fn draw_pane(frame: &mut Frame<'_>, area: Rect, app: &App, theme: Theme) {
    let block = block(title(app), theme);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let (lines, _) = newest(app.events.iter().rev(), inner, theme);
    frame.render_widget(Paragraph::new(lines), inner);
}

/// The whole screen, from [`App::events_back`] on, which is kept within bounds.
pub fn draw_screen(frame: &mut Frame<'_>, area: Rect, app: &mut App, theme: Theme) {
    let inner = block(String::new(), theme).inner(area);
    // So far back that the oldest event is at the top, and no farther.
    let mut room = usize::from(inner.height);
    let fits = |event: &&Event| {
        let left = room.checked_sub(parts(event, inner.width).len());
        room = left.unwrap_or(room);
        left.is_some()
    };
    let first_page = app.events.iter().take_while(fits).count().max(1);
    app.events_back = app
        .events_back
        .min(app.events.len().saturating_sub(first_page));
    let (lines, shown) = newest(app.events.iter().rev().skip(app.events_back), inner, theme);
    app.events_page = shown.max(1);
    let mut title = title(app);
    if app.events_back > 0 {
        title.push_str(&format!(" {} newer below ", app.events_back));
    }
    frame.render_widget(block(title, theme), area);
    frame.render_widget(Paragraph::new(lines), inner);
}

/// The line above, with a title.
fn block(title: String, theme: Theme) -> Block<'static> {
    Block::new()
        .borders(Borders::TOP)
        .border_style(theme.dim())
        .title(Span::styled(title, theme.heading()))
}

/// How many there are, and how many of them matter.
fn title(app: &App) -> String {
    let of = |level| app.events.iter().filter(|e| e.level == level).count();
    let mut title = " events ".to_owned();
    for (count, one, many) in [
        (of(Level::Error), "error", "errors"),
        (of(Level::Warning), "warning", "warnings"),
    ] {
        if count > 0 {
            title.push_str(&format!(
                " {count} {} ",
                if count == 1 { one } else { many }
            ));
        }
    }
    title
}

/// Lines of the events that have room, the newest last, and how many events these are. Long ones are continued; of one that is
/// longer than all room the beginning is shown.
fn newest<'a>(
    events: impl Iterator<Item = &'a Event>,
    inner: Rect,
    theme: Theme,
) -> (Vec<Line<'static>>, usize) {
    let room = usize::from(inner.height);
    let (mut lines, mut shown): (Vec<Line<'static>>, usize) = (Vec::new(), 0);
    for event in events {
        let mut parts = parts(event, inner.width);
        if lines.len() + parts.len() > room {
            if shown > 0 || room == 0 {
                break;
            }
            parts.truncate(room);
            if let Some(last) = parts.last_mut() {
                *last = cut(last, usize::from(inner.width).saturating_sub(MARGIN));
            }
        }
        shown += 1;
        let style = theme.level(event.level);
        for (at, part) in parts.into_iter().enumerate().rev() {
            let before = if at == 0 {
                Span::styled(format!("{:MARGIN$}", event.time), theme.dim())
            } else {
                Span::raw(" ".repeat(MARGIN))
            };
            lines.push(Line::from(vec![before, Span::styled(part, style)]));
        }
    }
    if shown == 0 {
        lines.push(Line::styled("nothing so far", theme.dim()));
    }
    lines.reverse();
    (lines, shown)
}

fn parts(event: &Event, width: u16) -> Vec<String> {
    wrap(&event.text, usize::from(width).saturating_sub(MARGIN))
}

/// The beginning of a text that goes on, with a mark that it does.
fn cut(text: &str, width: usize) -> String {
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
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
