//! Tables for people: aligned columns, the least important ones left out where the terminal is too narrow.
//!
//! Text in, text out: knows neither what the numbers mean nor where they come from.

/// Where a column's text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// Where its text stands.
    pub align: Align,
    /// 0 always stays; of the others the highest goes first when room is short.
    pub rank: u8,
}

impl Column {
    /// A column of text.
    #[must_use]
    pub const fn text(name: &'static str, rank: u8) -> Self {
        Self {
            name,
            align: Align::Left,
            rank,
        }
    }

    /// A column of numbers.
    #[must_use]
    pub const fn number(name: &'static str, rank: u8) -> Self {
        Self {
            name,
            align: Align::Right,
            rank,
        }
    }
}

/// Columns and rows.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// No rows yet.
    #[must_use]
    pub fn new(columns: &[Column]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row: a cell for each column. Missing cells are empty, surplus ones are ignored.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Heading and rows, each line ended, within `width` characters if that can be; `None` has no limit. Names the columns
    /// that were left out.
    #[must_use]
    pub fn render(&self, width: Option<usize>) -> String {
        let widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, c)| self.width_of(i, c))
            .collect();
        let mut shown: Vec<bool> = vec![true; self.columns.len()];
        let total = |shown: &[bool]| {
            let used = widths
                .iter()
                .zip(shown)
                .filter(|(_, shown)| **shown)
                .map(|(w, _)| w + 2);
            used.sum::<usize>().saturating_sub(2)
        };
        while let Some(limit) = width
            && total(&shown) > limit
        {
            let candidates = self
                .columns
                .iter()
                .enumerate()
                .filter(|(i, c)| c.rank > 0 && shown.get(*i) == Some(&true));
            let Some((last, _)) = candidates.max_by_key(|(i, c)| (c.rank, *i)) else {
                break;
            };
            if let Some(shown) = shown.get_mut(last) {
                *shown = false;
            }
        }
        let mut text = String::new();
        let heading: Vec<String> = self.columns.iter().map(|c| c.name.to_owned()).collect();
        for row in std::iter::once(&heading).chain(&self.rows) {
            let cells = self.columns.iter().zip(&widths).zip(&shown).enumerate();
            let line: Vec<String> = cells
                .filter(|(_, (_, shown))| **shown)
                .map(|(i, ((column, width), _))| {
                    pad(row.get(i).map_or("", String::as_str), *width, column.align)
                })
                .collect();
            text.push_str(line.join("  ").trim_end());
            text.push('\n');
        }
        let hidden = self
            .columns
            .iter()
            .zip(&shown)
            .filter(|(_, shown)| !**shown);
        let hidden: Vec<_> = hidden.map(|(column, _)| column.name).collect();
        if !hidden.is_empty() {
            text.push_str(&format!("(no room for: {})\n", hidden.join(", ")));
        }
        text
    }

    fn width_of(&self, index: usize, column: &Column) -> usize {
        let cells = self
            .rows
            .iter()
            .filter_map(|row| row.get(index))
            .map(|cell| cell.chars().count());
        cells.chain([column.name.len()]).max().unwrap_or(0)
    }
}

fn pad(text: &str, width: usize, align: Align) -> String {
    match align {
        Align::Left => format!("{text:<width$}"),
        Align::Right => format!("{text:>width$}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[
            Column::text("NAME", 0),
            Column::number("FIRST", 2),
            Column::number("SECOND", 1),
        ]);
        table.row(["a".to_owned(), "1".to_owned(), "22".to_owned()]);
        table.row(["longer".to_owned(), "333333".to_owned()]);
        table
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        assert_eq!(
            table().render(None),
            "NAME     FIRST  SECOND\n\
             a            1      22\n\
             longer  333333\n"
        );
    }

    #[test]
    fn the_highest_rank_goes_first_and_is_named() {
        assert_eq!(
            table().render(Some(21)),
            "NAME    SECOND\n\
             a           22\n\
             longer\n\
             (no room for: FIRST)\n"
        );
        assert_eq!(table().render(Some(22)), table().render(None));
        assert!(table().render(Some(1)).starts_with("NAME\na\nlonger\n"));
    }
}
