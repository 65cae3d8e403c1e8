//! What of a row a scan shows: rows that pass a condition, some of their columns. Said once more, from the
//! documentation, not from the engine.

use std::cmp::Ordering;

use crate::history::Row;
use crate::oracle::row::State;

/// Which column a condition is about: 0 is the key, the others follow it.
pub type Column = u8;
/// The key's.
pub const KEY: Column = 0;
/// The column that holds numbers as text.
pub const TEXT: Column = 2;
/// The column of small numbers.
pub const SMALL: Column = 3;

/// A condition on a cell. A comparison never holds for NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Test {
    Equal(i64),
    /// From the first up to but not the second.
    Between(i64, i64),
    Below(i64),
    AtLeast(i64),
    OneOf([i64; 3]),
    Null,
    NotNull,
}

/// Rows whose cell passes the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Filter {
    pub column: Column,
    pub test: Test,
}

/// What a scan shows of each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct View {
    pub filter: Option<Filter>,
    /// Columns after the key that are shown, a bit each; the key always is.
    pub columns: u8,
}

/// Whole rows, all of them.
pub const WHOLE: View = View { filter: None, columns: u8::MAX };

/// From this number on, texts are kilobytes long.
pub const HEAVY: i64 = crate::plan::ops::HEAVY as i64;

/// How a third of the texts begin.
pub const BEGINNING: &str = "in the beginning, ";

/// The text that stands for a number. A third of them begin alike, for longer than what is kept of a page's bounds.
pub fn text(number: i64) -> String {
    let padding = if number < HEAVY { number.rem_euclid(61) } else { 4_096 + number % 8_192 };
    let padding = usize::try_from(padding).expect("a remainder is not negative");
    let beginning = if number.rem_euclid(3) == 0 { BEGINNING } else { "" };
    format!("{beginning}{number}:{}", "x".repeat(padding))
}

impl Filter {
    /// Whether a row with this key can pass, whatever its other cells are.
    pub fn may_hold(&self, key: i64) -> bool {
        self.column != KEY || self.holds(Some(key))
    }

    fn holds(&self, cell: Option<i64>) -> bool {
        let Some(cell) = cell else { return self.test == Test::Null };
        let order = |other: i64| compare(self.column, cell, other);
        match self.test {
            Test::Equal(value) => cell == value,
            Test::Between(from, to) => order(from).is_ge() && order(to).is_lt(),
            Test::Below(to) => order(to).is_lt(),
            Test::AtLeast(from) => order(from).is_ge(),
            Test::OneOf(values) => values.contains(&cell),
            Test::Null => false,
            Test::NotNull => true,
        }
    }
}

/// Text is ordered as text.
fn compare(column: Column, a: i64, b: i64) -> Ordering {
    if column == TEXT { text(a).cmp(&text(b)) } else { a.cmp(&b) }
}

impl View {
    pub fn is_whole(&self) -> bool {
        *self == WHOLE
    }

    pub fn shows_column(&self, at: usize) -> bool {
        self.columns & (1 << at) != 0
    }

    /// What the scan gives of a row in this state. Conditions on its key hold: [`Filter::may_hold`].
    pub fn of(&self, state: &State) -> State {
        let row = state.as_ref()?;
        let passes = |filter: Filter| {
            filter.column == KEY || filter.holds(row.get(usize::from(filter.column) - 1).copied().flatten())
        };
        self.filter.is_none_or(passes).then(|| self.project(row))
    }

    fn project(&self, row: &Row) -> Row {
        let shown = row.iter().enumerate().filter(|(at, _)| self.shows_column(*at));
        shown.map(|(_, cell)| *cell).collect()
    }

    /// Whether a scan of a row in this state gives what was seen.
    pub fn gives(&self, state: &State, seen: &State) -> bool {
        if self.is_whole() { state == seen } else { self.of(state) == *seen }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(column: Column, test: Test, cell: Option<i64>) -> bool {
        let mut row = vec![Some(1); 3];
        row[usize::from(column) - 1] = cell;
        View { filter: Some(Filter { column, test }), ..WHOLE }.of(&Some(row)).is_some()
    }

    #[test]
    fn conditions_hold_for_what_they_say() {
        assert!(passes(1, Test::Equal(5), Some(5)) && !passes(1, Test::Equal(5), Some(6)));
        assert!(passes(1, Test::Between(5, 7), Some(5)) && !passes(1, Test::Between(5, 7), Some(7)));
        assert!(passes(1, Test::Below(5), Some(4)) && !passes(1, Test::Below(5), Some(5)));
        assert!(passes(1, Test::AtLeast(5), Some(5)) && !passes(1, Test::AtLeast(5), Some(4)));
        assert!(passes(3, Test::OneOf([1, 2, 9]), Some(9)) && !passes(3, Test::OneOf([1, 2, 9]), Some(3)));
        assert!(passes(3, Test::Null, None) && !passes(3, Test::Null, Some(0)));
        assert!(passes(3, Test::NotNull, Some(0)) && !passes(3, Test::NotNull, None));
        // Nothing is known of NULL, and text has an order of its own.
        assert!(!passes(1, Test::Below(5), None) && !passes(1, Test::Equal(0), None));
        assert!(passes(TEXT, Test::Below(5), Some(10)) && !passes(1, Test::Below(5), Some(10)));
    }

    #[test]
    fn only_columns_that_were_asked_for_are_shown() {
        let row = Some(vec![Some(1), None, Some(3)]);
        let view = View { filter: None, columns: 0b101 };
        assert_eq!(view.of(&row), Some(vec![Some(1), Some(3)]));
        assert!(view.gives(&row, &Some(vec![Some(1), Some(3)])) && !view.gives(&row, &None));
        assert!(WHOLE.gives(&row, &row) && WHOLE.gives(&None, &None));
        let filter = Filter { column: KEY, test: Test::Equal(4) };
        assert!(filter.may_hold(4) && !filter.may_hold(5));
    }
}
