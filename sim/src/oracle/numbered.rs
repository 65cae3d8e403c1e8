//! Rows that the servers number: a table whose key need not be unique has a second key column, which the tablet's
//! leader fills with the next number, whoever led before.
//!
//! So no insert finds its row present; no two rows of a tablet have the same number, and a row keeps its own; what was
//! acknowledged is there, and nothing is there twice.

use std::collections::BTreeMap;

use super::Finding;
use crate::history::{Stamp, TableNo};

const NAME: &str = "numbered";

/// The table of such rows, of one tablet.
pub const NUMBERED: TableNo = 202;

/// What the clients know of these rows, which nobody changes or deletes.
#[derive(Debug, Clone, Default)]
pub struct Account {
    /// By value, which no two rows have.
    rows: BTreeMap<i64, Known>,
}

#[derive(Debug, Clone)]
struct Known {
    key: i64,
    /// When it was inserted, if an answer said so.
    done: Option<Stamp>,
    /// Its number, once somebody has seen it.
    number: Option<i64>,
}

/// A row as a scan shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub key: i64,
    pub number: i64,
    pub value: i64,
}

impl Account {
    /// An insert is on its way; it may come at any later time.
    pub fn tried(&mut self, key: i64, value: i64) {
        self.rows.insert(value, Known { key, done: None, number: None });
    }

    /// Inserts so far.
    pub fn tries(&self) -> i64 {
        self.rows.len() as i64
    }

    pub fn done(&mut self, value: i64, at: Stamp) {
        self.rows.get_mut(&value).expect("it was tried").done = Some(at);
    }

    /// Compares a snapshot of the whole table with what is known, and learns the numbers.
    pub fn saw(&mut self, at: Stamp, rows: &[Row]) -> Vec<Finding> {
        let mut wrong = Vec::new();
        let (mut values, mut numbers) = (BTreeMap::new(), BTreeMap::new());
        for row in rows {
            if let Some(other) = numbers.insert(row.number, row) {
                wrong.push(format!("{row:?} has the number of {other:?}"));
            }
            if let Some(other) = values.insert(row.value, row) {
                wrong.push(format!("{row:?} is there once more: {other:?}"));
            }
            wrong.extend(self.learn(row));
        }
        for (value, known) in &self.rows {
            if known.done.is_some_and(|done| done < at) && !values.contains_key(value) {
                wrong.push(format!("value {value}, {known:?}, is gone"));
            }
        }
        wrong.iter().map(|what| Finding::new(NAME, format!("snapshot at {at}: {what}"))).collect()
    }

    fn learn(&mut self, row: &Row) -> Option<String> {
        match self.rows.get_mut(&row.value) {
            Some(known) if known.key != row.key => {
                Some(format!("{row:?} was inserted with key {}", known.key))
            }
            Some(known) => {
                let before = *known.number.get_or_insert(row.number);
                (before != row.number).then(|| format!("{row:?} had number {before}"))
            }
            None => Some(format!("nobody inserted {row:?}")),
        }
    }
}

/// No row has the number that an insert will get.
pub fn already_present(key: i64, value: i64) -> Finding {
    Finding::new(NAME, format!("an insert of key {key}, value {value} found its row present"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: i64, number: i64, value: i64) -> Row {
        Row { key, number, value }
    }

    /// Values 10 and 20 are acknowledged, 30 is not.
    fn account() -> Account {
        let mut account = Account::default();
        for (value, at) in [(10, Some(100)), (20, Some(200)), (30, None)] {
            account.tried(value / 10 % 2, value);
            at.into_iter().for_each(|at| account.done(value, at));
        }
        account
    }

    #[test]
    fn rows_have_numbers_of_their_own() {
        let rows = [row(1, 1, 10), row(0, 2, 20), row(1, 5, 30)];
        assert!(account().saw(300, &rows).is_empty());
        assert!(account().saw(300, &rows[..2]).is_empty(), "nobody knows of the last");
        assert!(account().saw(150, &rows[..1]).is_empty());
        let what = |rows: &[Row]| {
            account().saw(300, rows).into_iter().map(|finding| finding.message).collect::<Vec<_>>()
        };
        assert!(what(&[row(1, 1, 10), row(0, 1, 20)])[0].contains("has the number of"));
        assert!(what(&[row(1, 1, 10), row(0, 2, 20), row(0, 3, 20)])[0].contains("once more"));
        assert!(what(&[row(1, 1, 10)])[0].contains("is gone"));
        assert!(what(&[row(1, 1, 10), row(1, 2, 20)])[0].contains("was inserted with key 0"));
        assert!(what(&[row(1, 1, 10), row(0, 2, 20), row(0, 3, 40)])[0].contains("nobody inserted"));
    }

    #[test]
    fn a_row_keeps_its_number() {
        let mut account = account();
        assert!(account.saw(150, &[row(1, 1, 10)]).is_empty());
        let later = account.saw(300, &[row(1, 3, 10), row(0, 2, 20)]);
        assert!(later[0].message.contains("had number 1"), "{later:?}");
    }
}
