//! `rocexdp top --lab`: what the switches of a lab did since the last look, until a key or a signal ends it.
//!
//! Looks and draws in turn: asking the lab's keeper takes no longer than a key may wait.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use ratatui::{
    crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
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
    let mut text = String::from("looking ... q ends");
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
            text = switched_since(&before, &after, Some(usize::from(width)));
            text.push_str("q ends");
            before = after;
            next = Instant::now() + interval;
            dirty = true;
        }
        if dirty {
            let draw = |frame: &mut ratatui::Frame<'_>| {
                frame.render_widget(Paragraph::new(text.as_str()), frame.area());
            };
            screen.terminal.draw(draw).context("drawing")?;
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
                }
                _ => dirty = true,
            }
        }
    }
}
