//! Colours. Without them (`NO_COLOR`) weight and reverse video tell the same.

use ratatui::style::{Color, Modifier, Style};

use crate::live::news::Level;

/// The styles in use.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    colour: bool,
}

impl Theme {
    /// With or without colours.
    #[must_use]
    pub const fn new(colour: bool) -> Self {
        Self { colour }
    }

    fn fg(self, colour: Color) -> Style {
        if self.colour {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }

    /// Headings.
    #[must_use]
    pub fn heading(self) -> Style {
        self.fg(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// The column that lines are sorted by.
    #[must_use]
    pub fn sorted(self) -> Style {
        self.fg(Color::Yellow)
            .add_modifier(Modifier::BOLD | Modifier::UNDERLINED)
    }

    /// What matters less.
    #[must_use]
    pub fn dim(self) -> Style {
        if self.colour {
            self.fg(Color::DarkGray)
        } else {
            Style::new().add_modifier(Modifier::DIM)
        }
    }

    /// Something is amiss.
    #[must_use]
    pub fn warn(self) -> Style {
        self.fg(Color::Yellow)
    }

    /// Something is wrong.
    #[must_use]
    pub fn bad(self) -> Style {
        self.fg(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// The line under the cursor.
    #[must_use]
    pub fn cursor(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// A curve.
    #[must_use]
    pub fn curve(self) -> Style {
        self.fg(Color::Green)
    }

    /// A key in the footer.
    #[must_use]
    pub fn key(self) -> Style {
        self.fg(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// A line of the events pane.
    #[must_use]
    pub fn level(self, level: Level) -> Style {
        match level {
            Level::Info => Style::new(),
            Level::Warning => self.warn(),
            Level::Error => self.bad(),
        }
    }

    /// A cell of the heatmap: `share` of the hottest, 0 to 1.
    #[must_use]
    pub fn heat(self, share: f64) -> Style {
        if !self.colour {
            return if share >= 0.5 {
                Style::new().add_modifier(Modifier::REVERSED)
            } else {
                Style::new()
            };
        }
        // The 6x6x6 cube of terminals with 256 colours: green to yellow to red.
        const STEPS: [u8; 8] = [22, 28, 64, 100, 136, 166, 160, 196];
        let step = (share.clamp(0.0, 1.0) * (STEPS.len() - 1) as f64).round() as usize;
        let colour = STEPS.get(step).copied().unwrap_or(22);
        Style::new()
            .bg(Color::Indexed(colour))
            .fg(Color::Indexed(231))
    }
}
