//! Marks on a grid that never gets finer than a picture can show, whatever is put on it.

use std::collections::HashSet;

use super::Mark;

/// Columns and rows at most; between half of them and all are used.
const COLUMNS: u64 = 2048;
const ROWS: u64 = 512;

/// A set of marks at (time, PSN number); the step of either axis doubles when there are too many.
pub(super) struct Grid {
    cells: HashSet<(u32, i32, Mark)>,
    column_shift: u32,
    row_shift: u32,
    least: i64,
    most: i64,
}

impl Grid {
    pub(super) fn new() -> Self {
        Self {
            cells: HashSet::new(),
            column_shift: 0,
            row_shift: 0,
            least: i64::MAX,
            most: i64::MIN,
        }
    }

    pub(super) fn put(&mut self, time: u64, number: i64, mark: Mark) {
        self.least = self.least.min(number);
        self.most = self.most.max(number);
        let (mut columns, mut rows) = (0, 0);
        while time >> (self.column_shift + columns) >= COLUMNS {
            columns += 1;
        }
        let row = |n: i64, more: u32| n >> (self.row_shift + more);
        while row(self.most, rows).abs_diff(row(self.least, rows)) >= ROWS {
            rows += 1;
        }
        if columns + rows != 0 {
            self.cells = self
                .cells
                .drain()
                .map(|(column, row, mark)| (column >> columns, row >> rows, mark))
                .collect();
            self.column_shift += columns;
            self.row_shift += rows;
        }
        let column = (time >> self.column_shift) as u32;
        let row = (number >> self.row_shift) as i32;
        self.cells.insert((column, row, mark));
    }

    /// The least and the largest number; `None`: nothing was put.
    pub(super) fn range(&self) -> Option<(i64, i64)> {
        (self.least <= self.most).then_some((self.least, self.most))
    }

    /// The marks of a kind as (time, number), in order.
    pub(super) fn marks(&self, kind: Mark) -> Vec<(u64, i64)> {
        let mut marks: Vec<_> = self
            .cells
            .iter()
            .filter(|cell| cell.2 == kind)
            .map(|&(column, row, _)| {
                (
                    u64::from(column) << self.column_shift,
                    i64::from(row) << self.row_shift,
                )
            })
            .collect();
        marks.sort_unstable();
        marks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_capture_takes_no_more_room_than_a_short_one() {
        let mut grid = Grid::new();
        for i in 0..400_000_u64 {
            grid.put(i * 1000, i as i64 - 1000, Mark::Sent);
        }
        let marks = grid.marks(Mark::Sent);
        assert!(
            marks.len() <= (COLUMNS + ROWS) as usize * 2,
            "{}",
            marks.len()
        );
        assert!(marks.len() >= 1000);
        assert_eq!(grid.range(), Some((-1000, 398_999)));
        // Each still lies within a step of the line.
        let (column, row) = (1_i64 << grid.column_shift, 1_i64 << grid.row_shift);
        for (time, number) in marks {
            let line = time as i64 / 1000 - 1000;
            assert!((line - number).abs() <= row + column / 1000 + 1);
        }
        assert!(grid.marks(Mark::Nak).is_empty());
    }
}
