//! `rocexdp top --lab`: what the switches of a lab did since the last look, until a key or a signal ends it.
//!
//! Looks and draws in turn: asking the lab's keeper takes no longer than a key may wait.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use ratatui::{
    Frame,
    crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
    layout::{Constraint, Layout},
    widgets::Paragraph,
};

use super::{Screen, check_terminal, wait_for_keys};
use crate::{lab::keeper::SwitchedStatus, process::Cancel, view::lab::switched_since};

/// Shows what `look` finds, every `interval`.
///
/// # Errors
/// There is no terminal, the lab is gone, or a signal came.
pub fn run(
    look: impl Fn() -> anyhow::Result<SwitchedStatus>,
    interval: Duration,
    cancel: &Cancel,
) -> anyhow::Result<()> {
    check_terminal()?;
    let mut before = look()?;
    let mut screen = Screen::open()?;
    let mut next = Instant::now() + interval;
    let mut page = Page {
        text: String::from("looking ..."),
        first: 0,
    };
    let mut dirty = true;
    loop {
        cancel.check()?;
        if Instant::now() >= next {
            let after = look()?;
            let width = screen
                .terminal
                .size()
                .context("asking for the terminal's size")?
                .width;
            page.text = switched_since(&before, &after, Some(usize::from(width)));
            before = after;
            next = Instant::now() + interval;
            dirty = true;
        }
        if dirty {
            let drawn = screen.terminal.draw(|frame| page.draw(frame));
            drawn.context("drawing")?;
            dirty = false;
        }
        wait_for_keys()?;
        while event::poll(Duration::ZERO).context("waiting for keys")? {
            match event::read().context("reading keys")? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    let control_c = key.modifiers.contains(KeyModifiers::CONTROL)
                        && key.code == KeyCode::Char('c');
                    if control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                        return Ok(());
                    }
                    page.turn(key.code);
                    dirty = true;
                }
                _ => dirty = true,
            }
        }
    }
}

/// What is shown, from some line on: a fabric may have more ports than a terminal has lines.
struct Page {
    text: String,
    first: usize,
}

impl Page {
    fn turn(&mut self, key: KeyCode) {
        self.first = match key {
            KeyCode::Up | KeyCode::Char('k') => self.first.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.first.saturating_add(1),
            KeyCode::PageUp => self.first.saturating_sub(20),
            KeyCode::PageDown => self.first.saturating_add(20),
            KeyCode::Home => 0,
            KeyCode::End => usize::MAX,
            _ => self.first,
        };
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let [body, foot] =
            Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
        let lines = self.text.lines().count();
        self.first = self
            .first
            .min(lines.saturating_sub(usize::from(body.height)));
        let first = u16::try_from(self.first).unwrap_or(u16::MAX);
        frame.render_widget(Paragraph::new(self.text.as_str()).scroll((first, 0)), body);
        let last = (self.first + usize::from(body.height)).min(lines);
        let keys = if last - self.first < lines {
            format!(
                "lines {}-{last} of {lines}; arrows scroll; q ends",
                self.first + 1
            )
        } else {
            "q ends".to_owned()
        };
        frame.render_widget(Paragraph::new(keys), foot);
    }
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;

    fn shown(page: &mut Page) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(50, 4)).unwrap();
        terminal.draw(|frame| page.draw(frame)).unwrap();
        let cells = terminal.backend().buffer().content.chunks(50);
        let line = |cells: &[ratatui::buffer::Cell]| -> String {
            cells.iter().map(|cell| cell.symbol()).collect()
        };
        cells
            .map(|cells| line(cells).trim_end().to_owned())
            .collect()
    }

    #[test]
    fn what_does_not_fit_is_scrolled_and_says_so() {
        let mut page = Page {
            text: "1\n2\n3\n4\n5\n".to_owned(),
            first: 0,
        };
        let foot = |lines: &str| format!("lines {lines} of 5; arrows scroll; q ends");
        assert_eq!(shown(&mut page), ["1", "2", "3", &foot("1-3")]);
        page.turn(KeyCode::Down);
        assert_eq!(shown(&mut page), ["2", "3", "4", &foot("2-4")]);
        page.turn(KeyCode::End);
        assert_eq!(shown(&mut page), ["3", "4", "5", &foot("3-5")]);
        page.turn(KeyCode::Down);
        assert_eq!(shown(&mut page)[0], "3", "there is no more");
        page.turn(KeyCode::Up);
        assert_eq!(shown(&mut page)[0], "2");
        page.text = "1\n2\n".to_owned();
        assert_eq!(shown(&mut page), ["1", "2", "", "q ends"]);
    }
}
