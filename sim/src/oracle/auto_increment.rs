//! Auto-increment values: a table whose key need not be unique has a second key column, which the tablet's leader fills
//! with the next value, across leader changes.
//!
//! So no insert finds its row present, no two rows of a tablet have the same value, a row keeps its value,
//! acknowledged rows are there, and no row is there twice.

use std::collections::BTreeMap;

use super::Violation;
use crate::history::{HybridStamp, TableNo};

const NAME: &str = "auto-increment";

/// The table of such rows, of one tablet.
pub const NUMBERED: TableNo = 202;

/// The clients' knowledge of these rows, which no client changes or deletes.
#[derive(Debug, Clone, Default)]
pub struct AutoIncrementModel {
    /// Rows by value, which no two rows share.
    rows: BTreeMap<i64, Known>,
}

#[derive(Debug, Clone)]
struct Known {
    key: i64,
    /// Timestamp of the insert, once acknowledged.
    done: Option<HybridStamp>,
    /// The auto-increment value, once a scan showed it.
    number: Option<i64>,
}

/// A row as a scan shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutoIncrementRow {
    pub key: i64,
    pub number: i64,
    pub value: i64,
}

impl AutoIncrementModel {
    /// Records that an insert was sent; it may take effect at any later time.
    pub fn sent(&mut self, key: i64, value: i64) {
        self.rows.insert(value, Known { key, done: None, number: None });
    }

    /// Returns the number of inserts so far.
    pub fn insert_count(&self) -> i64 {
        self.rows.len() as i64
    }

    pub fn done(&mut self, value: i64, at: HybridStamp) {
        self.rows.get_mut(&value).expect("it was sent").done = Some(at);
    }

    /// Compares a snapshot of the whole table with the model, and learns the values.
    pub fn check_snapshot(&mut self, at: HybridStamp, rows: &[AutoIncrementRow]) -> Vec<Violation> {
        let mut wrong = Vec::new();
        let (mut values, mut numbers) = (BTreeMap::new(), BTreeMap::new());
        for row in rows {
            if let Some(other) = numbers.insert(row.number, row) {
                wrong.push(format!("{row:?} has the auto-increment value of {other:?}"));
            }
            if let Some(other) = values.insert(row.value, row) {
                wrong.push(format!("{row:?} is there twice: {other:?}"));
            }
            wrong.extend(self.learn(row));
        }
        for (value, known) in &self.rows {
            if known.done.is_some_and(|done| done < at) && !values.contains_key(value) {
                wrong.push(format!("value {value}, {known:?}, is missing"));
            }
        }
        wrong.iter().map(|what| Violation::new(NAME, format!("snapshot at {at}: {what}"))).collect()
    }

    fn learn(&mut self, row: &AutoIncrementRow) -> Option<String> {
        match self.rows.get_mut(&row.value) {
            Some(known) if known.key != row.key => {
                Some(format!("{row:?} was inserted with key {}", known.key))
            }
            Some(known) => {
                let before = *known.number.get_or_insert(row.number);
                (before != row.number).then(|| format!("{row:?} had auto-increment value {before}"))
            }
            None => Some(format!("never inserted: {row:?}")),
        }
    }
}

/// Reports an insert that found its row present: no row has the value that it will get.
pub fn already_present(key: i64, value: i64) -> Violation {
    Violation::new(NAME, format!("an insert of key {key}, value {value} found its row present"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: i64, number: i64, value: i64) -> AutoIncrementRow {
        AutoIncrementRow { key, number, value }
    }

    /// Values 10 and 20 are acknowledged, 30 is not.
    fn model() -> AutoIncrementModel {
        let mut model = AutoIncrementModel::default();
        for (value, at) in [(10, Some(100)), (20, Some(200)), (30, None)] {
            model.sent(value / 10 % 2, value);
            at.into_iter().for_each(|at| model.done(value, at));
        }
        model
    }

    #[test]
    fn rows_have_distinct_values() {
        let rows = [row(1, 1, 10), row(0, 2, 20), row(1, 5, 30)];
        assert!(model().check_snapshot(300, &rows).is_empty());
        assert!(model().check_snapshot(300, &rows[..2]).is_empty(), "the outcome of the last is unknown");
        assert!(model().check_snapshot(150, &rows[..1]).is_empty());
        let what = |rows: &[AutoIncrementRow]| {
            model()
                .check_snapshot(300, rows)
                .into_iter()
                .map(|violation| violation.message)
                .collect::<Vec<_>>()
        };
        assert!(what(&[row(1, 1, 10), row(0, 1, 20)])[0].contains("has the auto-increment value of"));
        assert!(what(&[row(1, 1, 10), row(0, 2, 20), row(0, 3, 20)])[0].contains("twice"));
        assert!(what(&[row(1, 1, 10)])[0].contains("is missing"));
        assert!(what(&[row(1, 1, 10), row(1, 2, 20)])[0].contains("was inserted with key 0"));
        assert!(what(&[row(1, 1, 10), row(0, 2, 20), row(0, 3, 40)])[0].contains("never inserted"));
    }

    #[test]
    fn a_row_keeps_its_value() {
        let mut model = model();
        assert!(model.check_snapshot(150, &[row(1, 1, 10)]).is_empty());
        let later = model.check_snapshot(300, &[row(1, 3, 10), row(0, 2, 20)]);
        assert!(later[0].message.contains("had auto-increment value 1"), "{later:?}");
    }
}
