//! What `top` shows and what keys do to it. No terminal, no clock, no maps: intervals and keys come in, `draw` looks.

use std::{
    collections::VecDeque,
    time::{Duration, SystemTime},
};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{
    filter::Filter,
    heard::Told,
    heat::{HEATS, Heat},
    history::Histories,
};
use crate::{
    live::{
        IfaceRates, Row, RowKey,
        news::{Level, News},
    },
    view::live::{METRICS, Metric, clock},
};

/// Events kept.
const MOST_EVENTS: usize = 500;
/// Characters of a filter.
const MOST_FILTER: usize = 200;

/// One interval, ready to be shown.
#[derive(Clone, Debug)]
pub struct Update {
    /// What changed.
    pub rates: Vec<IfaceRates>,
    /// Events that came in it.
    pub told: Vec<Told>,
    /// What the counters tell, in words.
    pub news: Vec<News>,
    /// When it ended.
    pub time: SystemTime,
    /// How long reading and comparing took.
    pub cost: Duration,
}

/// Something that happened, for the events pane.
#[derive(Clone, Debug)]
pub struct Event {
    /// When, UTC: `12:34:56`.
    pub time: String,
    /// How much it matters.
    pub level: Level,
    /// In words.
    pub text: String,
    /// Number of a line that may go on, see [`Told`].
    id: Option<u64>,
}

/// What fills the middle of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// All lines.
    Table,
    /// The selected line.
    Detail,
    /// Source against destination.
    Heat,
    /// Events only.
    Events,
}

/// What the caller must do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Draw.
    Draw,
    /// End.
    Quit,
    /// Stop, as shells expect of Ctrl-Z.
    Suspend,
    /// Look at this interval from now on.
    Interval(Duration),
}

/// The state.
#[derive(Debug)]
pub struct App {
    /// The interval shown.
    pub shown: Vec<IfaceRates>,
    /// Lines in order: (interface, line).
    pub order: Vec<(usize, usize)>,
    /// Lines before the filter.
    pub lines: usize,
    /// Column that lines are sorted by.
    pub sort: Metric,
    /// Smallest first.
    pub ascending: bool,
    /// What is shown.
    pub filter: Filter,
    /// The filter as typed.
    pub filter_text: String,
    /// Why what is typed is no filter.
    pub filter_error: Option<String>,
    /// Whether a filter is being typed.
    pub typing: bool,
    /// Lines without a packet in the interval are left out.
    pub hide_idle: bool,
    /// Nothing moves.
    pub paused: bool,
    /// Intervals that came since.
    pub skipped: usize,
    /// Place of the cursor in `order`.
    pub cursor: usize,
    /// First line shown; kept by `draw`.
    pub offset: usize,
    /// Lines on a page; kept by `draw`.
    pub page: usize,
    /// What fills the middle.
    pub view: View,
    /// Whether help lies above it.
    pub help: bool,
    /// First line of it; kept within bounds by `draw`.
    pub help_scroll: usize,
    /// Whether the events pane is shown below the table.
    pub events_pane: bool,
    /// What the heatmap tells.
    pub heat: Heat,
    /// The newest last.
    pub events: VecDeque<Event>,
    /// Events newer than the last one on the whole screen of them; kept within bounds by `draw`.
    pub events_back: usize,
    /// Events on that screen; kept by `draw`.
    pub events_page: usize,
    /// The last minutes.
    pub histories: Histories,
    /// Time between two looks.
    pub interval: Duration,
    /// How long the last look took.
    pub cost: Duration,
    /// When the interval shown ended, UTC.
    pub time: String,
    /// Whether to use colours.
    pub colour: bool,
    selected: Option<RowKey>,
}

impl App {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(interval: Duration, colour: bool) -> Self {
        Self {
            shown: Vec::new(),
            order: Vec::new(),
            lines: 0,
            sort: Metric::Rate,
            ascending: false,
            filter: Filter::default(),
            filter_text: String::new(),
            filter_error: None,
            typing: false,
            hide_idle: false,
            paused: false,
            skipped: 0,
            cursor: 0,
            offset: 0,
            page: 1,
            view: View::Table,
            help: false,
            help_scroll: 0,
            events_pane: true,
            heat: Heat::Ce,
            events: VecDeque::new(),
            events_back: 0,
            events_page: 1,
            histories: Histories::default(),
            interval,
            cost: Duration::ZERO,
            time: String::new(),
            colour,
            selected: None,
        }
    }

    /// Adds a line to the events pane.
    pub fn say(&mut self, time: SystemTime, level: Level, text: String) {
        self.add(time, level, text, None);
    }

    /// Adds a line that may go on: what stood there of it goes.
    fn replace(&mut self, told: Told) {
        let old = self.events.iter().rposition(|e| e.id == Some(told.id));
        if let Some(at) = old {
            let newer = self.events.len() - at - 1;
            self.events.remove(at);
            // It goes from among the newer ones, and comes back as one of them.
            if newer < self.events_back {
                self.events_back -= 1;
                self.add(told.time, told.level, told.text, Some(told.id));
                self.events_back = self.events_back.max(1);
                return;
            }
        }
        self.add(told.time, told.level, told.text, Some(told.id));
    }

    fn add(&mut self, time: SystemTime, level: Level, text: String, id: Option<u64>) {
        if self.events.len() >= MOST_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(Event {
            time: clock(time),
            level,
            text,
            id,
        });
        // What is being read stays where it is.
        if self.events_back > 0 {
            self.events_back += 1;
        }
    }

    /// Takes an interval.
    pub fn take(&mut self, update: Update) {
        for told in update.told {
            self.replace(told);
        }
        for news in update.news {
            self.say(update.time, news.level, news.text);
        }
        self.histories
            .take(update.rates.iter().flat_map(|iface| &iface.rows));
        self.cost = update.cost;
        if self.paused {
            self.skipped += 1;
            return;
        }
        self.time = clock(update.time);
        self.shown = update.rates;
        self.arrange();
    }

    /// A line by its place.
    #[must_use]
    pub fn row(&self, place: usize) -> Option<(&IfaceRates, &Row)> {
        let (iface, row) = self.order.get(place)?;
        let iface = self.shown.get(*iface)?;
        Some((iface, iface.rows.get(*row)?))
    }

    /// Filters and sorts anew; the cursor stays with its line.
    fn arrange(&mut self) {
        let mut order: Vec<(usize, usize, f64)> = Vec::new();
        self.lines = 0;
        for (i, iface) in self.shown.iter().enumerate() {
            self.lines += iface.rows.len();
            for (r, row) in iface.rows.iter().enumerate() {
                if (!self.hide_idle || row.active()) && self.filter.passes(row) {
                    // What is unknown goes last, whichever way.
                    let last = if self.ascending { f64::INFINITY } else { -1.0 };
                    order.push((i, r, self.sort.value(row).unwrap_or(last)));
                }
            }
        }
        let row = |at: &(usize, usize, f64)| self.shown.get(at.0)?.rows.get(at.1);
        let by_key = |a: &(usize, usize, f64), b: &(usize, usize, f64)| {
            row(a).map(|r| &r.key).cmp(&row(b).map(|r| &r.key))
        };
        // Lines with equal numbers: busy ones first, then in an order that stays.
        let traffic = |at: &(usize, usize, f64)| {
            row(at).map_or(0, |r| r.forth.total_bytes + r.back.total_bytes)
        };
        let ascending = self.ascending;
        order.sort_by(|a, b| {
            let values = if ascending {
                a.2.total_cmp(&b.2)
            } else {
                b.2.total_cmp(&a.2)
            };
            values
                .then_with(|| traffic(b).cmp(&traffic(a)))
                .then_with(|| by_key(a, b))
        });
        self.order = order.into_iter().map(|(i, r, _)| (i, r)).collect();
        if let Some(selected) = &self.selected {
            let place = self.order.iter().position(|(i, r)| {
                let row = self.shown.get(*i).and_then(|iface| iface.rows.get(*r));
                row.is_some_and(|row| row.key == *selected)
            });
            match place {
                Some(place) => self.cursor = place,
                None if self.view == View::Detail => {}
                None => self.selected = None,
            }
        }
        self.cursor = self.cursor.min(self.order.len().saturating_sub(1));
    }

    /// The line of the detail: `None` when it is gone, or hidden by the filter.
    #[must_use]
    pub fn selection(&self) -> Option<(&IfaceRates, &Row)> {
        let (iface, row) = self.row(self.cursor)?;
        match &self.selected {
            Some(key) if row.key != *key => None,
            _ => Some((iface, row)),
        }
    }

    fn go(&mut self, place: usize) {
        self.cursor = place.min(self.order.len().saturating_sub(1));
        self.selected = self.row(self.cursor).map(|(_, row)| row.key.clone());
    }

    fn sort_by(&mut self, step: isize) {
        let at = METRICS.iter().position(|m| *m == self.sort).unwrap_or(0);
        let count = METRICS.len();
        let next = (at as isize + step).rem_euclid(count as isize) as usize;
        self.sort = METRICS.get(next).copied().unwrap_or(Metric::Rate);
        self.arrange();
    }

    /// A key was pressed.
    pub fn key(&mut self, key: KeyEvent) -> Action {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Action::Quit,
            KeyCode::Char('z') if control => return Action::Suspend,
            _ if self.typing => {
                self.type_filter(key);
                return Action::Draw;
            }
            KeyCode::Char('q') => return Action::Quit,
            _ => {}
        }
        if self.help {
            match key.code {
                KeyCode::Down | KeyCode::Char('j') => self.help_scroll += 1,
                KeyCode::PageDown => self.help_scroll += 10,
                KeyCode::Up | KeyCode::Char('k') => {
                    self.help_scroll = self.help_scroll.saturating_sub(1);
                }
                KeyCode::PageUp => self.help_scroll = self.help_scroll.saturating_sub(10),
                _ => self.help = false,
            }
            return Action::Draw;
        }
        match key.code {
            KeyCode::Char('?') => (self.help, self.help_scroll) = (true, 0),
            KeyCode::Char(' ') => self.pause(),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('s' | '>') => self.sort_by(1),
            KeyCode::Char('S' | '<') => self.sort_by(-1),
            KeyCode::Char('r') => {
                self.ascending = !self.ascending;
                self.arrange();
            }
            KeyCode::Char('i') => {
                self.hide_idle = !self.hide_idle;
                self.arrange();
            }
            KeyCode::Char('e') => self.turn_events(),
            KeyCode::Char('h') => self.turn(View::Heat),
            KeyCode::Char('m') => {
                let at = HEATS.iter().position(|h| *h == self.heat).unwrap_or(0);
                let next = HEATS.get((at + 1) % HEATS.len());
                self.heat = next.copied().unwrap_or(Heat::Ce);
            }
            KeyCode::Char('+') => return self.set_interval(self.interval * 2),
            KeyCode::Char('-') => return self.set_interval(self.interval / 2),
            KeyCode::Enter if self.view == View::Table && !self.order.is_empty() => {
                self.go(self.cursor);
                self.view = View::Detail;
            }
            KeyCode::Esc => self.back(),
            code => self.navigate(code),
        }
        Action::Draw
    }

    fn navigate(&mut self, code: KeyCode) {
        if self.view == View::Events {
            self.scroll_events(code);
            return;
        }
        let page = self.page.max(1);
        match code {
            KeyCode::Down | KeyCode::Char('j') => self.go(self.cursor.saturating_add(1)),
            KeyCode::Up | KeyCode::Char('k') => self.go(self.cursor.saturating_sub(1)),
            KeyCode::PageDown => self.go(self.cursor.saturating_add(page)),
            KeyCode::PageUp => self.go(self.cursor.saturating_sub(page)),
            KeyCode::Home | KeyCode::Char('g') => {
                // At the top the cursor stays at the top, whoever is there.
                self.cursor = 0;
                self.selected = None;
            }
            KeyCode::End | KeyCode::Char('G') => self.go(usize::MAX),
            _ => {}
        }
    }

    /// Through the events; `draw` knows where they end.
    fn scroll_events(&mut self, code: KeyCode) {
        let back = self.events_back;
        self.events_back = match code {
            KeyCode::Up | KeyCode::Char('k') => back.saturating_add(1),
            KeyCode::Down | KeyCode::Char('j') => back.saturating_sub(1),
            KeyCode::PageUp => back.saturating_add(self.events_page),
            KeyCode::PageDown => back.saturating_sub(self.events_page),
            KeyCode::Home | KeyCode::Char('g') => self.events.len(),
            KeyCode::End | KeyCode::Char('G') => 0,
            _ => back,
        };
    }

    /// One step back: out of a view, then out of the filter.
    fn back(&mut self) {
        if self.view != View::Table {
            self.view = View::Table;
        } else if !self.filter_text.is_empty() {
            self.filter_text.clear();
            self.apply_filter();
        }
    }

    fn turn(&mut self, view: View) {
        self.view = if self.view == view { View::Table } else { view };
    }

    /// Pane, whole screen, none.
    fn turn_events(&mut self) {
        match (self.view, self.events_pane) {
            (View::Events, _) => {
                self.view = View::Table;
                self.events_pane = false;
            }
            (_, true) => (self.view, self.events_back) = (View::Events, 0),
            (_, false) => self.events_pane = true,
        }
    }

    fn pause(&mut self) {
        self.paused = !self.paused;
        self.skipped = 0;
    }

    fn set_interval(&mut self, interval: Duration) -> Action {
        self.interval = interval.clamp(Duration::from_millis(100), Duration::from_secs(60));
        Action::Interval(self.interval)
    }

    fn type_filter(&mut self, key: KeyEvent) {
        match key.code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter_text.clear();
            }
            KeyCode::Backspace => {
                self.filter_text.pop();
            }
            KeyCode::Char('u') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                self.filter_text.clear();
            }
            KeyCode::Char(c) if self.filter_text.len() < MOST_FILTER => self.filter_text.push(c),
            _ => {}
        }
        self.apply_filter();
    }

    fn apply_filter(&mut self) {
        match Filter::parse(&self.filter_text) {
            Ok(filter) => {
                self.filter = filter;
                self.filter_error = None;
            }
            // The last good one stays while a comparison is being typed.
            Err(error) => self.filter_error = Some(error),
        }
        self.arrange();
    }
}
