//! Columns and ranges that one client alone alters: what it knows of them, and how a read can contradict that.

use std::collections::BTreeMap;

/// The owned schema of one client in one table.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnedSchema {
    pub columns: Vec<OwnColumn>,
    /// Number of columns added so far: no name is used twice.
    pub added: u32,
    /// True if every write of a row was acknowledged, by key. Other rows may show anything.
    pub rows: BTreeMap<i64, bool>,
    pub ranges: BTreeMap<u8, OwnRange>,
}

#[derive(Debug, Clone)]
pub(super) struct OwnColumn {
    pub name: String,
    pub default: Option<i64>,
    /// Written values by key.
    pub cells: BTreeMap<i64, Option<i64>>,
}

/// A range that exists or not; a range of unknown state is `Lost`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OwnRange {
    Absent,
    /// The range with these rows: `None` for an unknown value.
    Present(BTreeMap<i64, Option<i64>>),
    Lost,
}

impl OwnColumn {
    /// Returns the value that a row must show.
    pub(super) fn expected(&self, key: i64) -> Option<i64> {
        self.cells.get(&key).copied().unwrap_or(self.default)
    }
}

impl OwnedSchema {
    /// Returns descriptions of wrong values of these columns, by key.
    pub(super) fn contradictions(
        &self,
        columns: &[&OwnColumn],
        seen: &BTreeMap<i64, Vec<Option<i64>>>,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        for key in self.rows.iter().filter(|(_, known)| **known).map(|(key, _)| key) {
            let Some(cells) = seen.get(key) else {
                wrong.push(format!("row {key} is missing"));
                continue;
            };
            for (column, cell) in
                columns.iter().zip(cells).filter(|(column, cell)| column.expected(*key) != **cell)
            {
                let (name, expected) = (&column.name, column.expected(*key));
                wrong.push(format!("row {key} has {cell:?} in {name}, not {expected:?}"));
            }
        }
        wrong
    }
}
