//! The filter and columns of a scan: a second implementation, from the documentation.

use std::cmp::Ordering;

use crate::rows::{Row, RowState};

/// The column of a predicate: 0 is the key, the others follow it.
pub type ColumnNo = u8;
/// The key column.
pub const KEY: ColumnNo = 0;
/// The column that holds numbers as text.
pub const TEXT: ColumnNo = 2;
/// The column of small numbers.
pub const SMALL: ColumnNo = 3;

/// A predicate on a cell. A comparison never holds for NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CellPredicate {
    Equal(i64),
    /// From the first up to but not the second.
    Between(i64, i64),
    Below(i64),
    AtLeast(i64),
    OneOf([i64; 3]),
    Null,
    NotNull,
}

/// Rows whose cell satisfies the predicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowFilter {
    pub column: ColumnNo,
    pub test: CellPredicate,
}

/// The filter and columns of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Projection {
    pub filter: Option<RowFilter>,
    /// Columns after the key that are shown, a bit each; the key always is.
    pub columns: u8,
}

/// Whole rows, all of them.
pub const WHOLE: Projection = Projection { filter: None, columns: u8::MAX };

/// From this number on, texts are kilobytes long.
pub const LARGE_VALUE_MIN: i64 = sim_plan::client_ops::LARGE_VALUE_MIN as i64;

/// Prefix of a third of the texts.
pub const BEGINNING: &str = "in the beginning, ";

/// Returns the text that encodes a number. A third of them share a prefix longer than the stored bounds of a page.
pub fn text(number: i64) -> String {
    let padding = if number < LARGE_VALUE_MIN { number.rem_euclid(61) } else { 4_096 + number % 8_192 };
    let padding = usize::try_from(padding).expect("a remainder is not negative");
    let beginning = if number.rem_euclid(3) == 0 { BEGINNING } else { "" };
    format!("{beginning}{number}:{}", "x".repeat(padding))
}

impl RowFilter {
    /// Returns true if a row with this key can pass, whatever its other cells are.
    pub fn may_hold(&self, key: i64) -> bool {
        self.column != KEY || self.holds(Some(key))
    }

    fn holds(&self, cell: Option<i64>) -> bool {
        let Some(cell) = cell else { return self.test == CellPredicate::Null };
        let order = |other: i64| compare(self.column, cell, other);
        match self.test {
            CellPredicate::Equal(value) => cell == value,
            CellPredicate::Between(from, to) => order(from).is_ge() && order(to).is_lt(),
            CellPredicate::Below(to) => order(to).is_lt(),
            CellPredicate::AtLeast(from) => order(from).is_ge(),
            CellPredicate::OneOf(values) => values.contains(&cell),
            CellPredicate::Null => false,
            CellPredicate::NotNull => true,
        }
    }
}

/// Compares cells; text is ordered as text.
fn compare(column: ColumnNo, a: i64, b: i64) -> Ordering {
    if column == TEXT { text(a).cmp(&text(b)) } else { a.cmp(&b) }
}

impl Projection {
    pub fn is_whole(&self) -> bool {
        *self == WHOLE
    }

    pub fn shows_column(&self, at: usize) -> bool {
        self.columns & (1 << at) != 0
    }

    /// Returns what the scan shows of a row in this state. Predicates on its key are assumed to hold:
    /// [`RowFilter::may_hold`].
    pub fn of(&self, state: &RowState) -> RowState {
        let row = state.as_ref()?;
        let passes = |filter: RowFilter| {
            filter.column == KEY || filter.holds(row.get(usize::from(filter.column) - 1).copied().flatten())
        };
        self.filter.is_none_or(passes).then(|| self.project(row))
    }

    fn project(&self, row: &Row) -> Row {
        let shown = row.iter().enumerate().filter(|(at, _)| self.shows_column(*at));
        shown.map(|(_, cell)| *cell).collect()
    }

    /// Returns true if a scan of a row in this state gives what was seen.
    pub fn gives(&self, state: &RowState, seen: &RowState) -> bool {
        if self.is_whole() { state == seen } else { self.of(state) == *seen }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(column: ColumnNo, test: CellPredicate, cell: Option<i64>) -> bool {
        let mut row = vec![Some(1); 3];
        row[usize::from(column) - 1] = cell;
        Projection { filter: Some(RowFilter { column, test }), ..WHOLE }.of(&Some(row)).is_some()
    }

    #[test]
    fn predicates_select_their_cells() {
        assert!(passes(1, CellPredicate::Equal(5), Some(5)) && !passes(1, CellPredicate::Equal(5), Some(6)));
        assert!(
            passes(1, CellPredicate::Between(5, 7), Some(5))
                && !passes(1, CellPredicate::Between(5, 7), Some(7))
        );
        assert!(passes(1, CellPredicate::Below(5), Some(4)) && !passes(1, CellPredicate::Below(5), Some(5)));
        assert!(
            passes(1, CellPredicate::AtLeast(5), Some(5)) && !passes(1, CellPredicate::AtLeast(5), Some(4))
        );
        assert!(
            passes(3, CellPredicate::OneOf([1, 2, 9]), Some(9))
                && !passes(3, CellPredicate::OneOf([1, 2, 9]), Some(3))
        );
        assert!(passes(3, CellPredicate::Null, None) && !passes(3, CellPredicate::Null, Some(0)));
        assert!(passes(3, CellPredicate::NotNull, Some(0)) && !passes(3, CellPredicate::NotNull, None));
        // NULL satisfies no comparison, and text has its own order.
        assert!(!passes(1, CellPredicate::Below(5), None) && !passes(1, CellPredicate::Equal(0), None));
        assert!(
            passes(TEXT, CellPredicate::Below(5), Some(10)) && !passes(1, CellPredicate::Below(5), Some(10))
        );
    }

    #[test]
    fn only_columns_that_were_asked_for_are_shown() {
        let row = Some(vec![Some(1), None, Some(3)]);
        let view = Projection { filter: None, columns: 0b101 };
        assert_eq!(view.of(&row), Some(vec![Some(1), Some(3)]));
        assert!(view.gives(&row, &Some(vec![Some(1), Some(3)])) && !view.gives(&row, &None));
        assert!(WHOLE.gives(&row, &row) && WHOLE.gives(&None, &None));
        let filter = RowFilter { column: KEY, test: CellPredicate::Equal(4) };
        assert!(filter.may_hold(4) && !filter.may_hold(5));
    }
}
