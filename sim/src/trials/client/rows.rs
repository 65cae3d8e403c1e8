//! The rows of the double's table: every version of each, by the time at which it was written.

use std::collections::BTreeMap;

use sim_plan::client_ops::WriteKind;

/// Cells of a row next to its key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Row {
    pub number: Option<i64>,
    pub text: Option<String>,
}

/// Cells that an operation sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Cells {
    pub number: Option<Option<i64>>,
    pub text: Option<Option<String>>,
}

/// Result of a row operation at a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowResult {
    Written,
    /// An IGNORE operation had nothing to do.
    Ignored,
    Present,
    Missing,
}

/// Version of a row: its timestamp, the time on the world's clock, the row if there is one.
#[derive(Debug, Clone)]
struct Version {
    stamp: u64,
    at: u64,
    row: Option<Row>,
}

#[derive(Default)]
pub(super) struct Rows(BTreeMap<i64, Vec<Version>>);

impl Rows {
    /// Applies an operation.
    pub(super) fn apply(
        &mut self,
        kind: WriteKind,
        key: i64,
        cells: &Cells,
        (stamp, at): (u64, u64),
    ) -> RowResult {
        use WriteKind::{Delete, DeleteIgnore, Insert, InsertIgnore, Update, UpdateIgnore};
        let row = match (kind, self.latest(key)) {
            (Insert, Some(_)) => return RowResult::Present,
            (Update | Delete, None) => return RowResult::Missing,
            (InsertIgnore, Some(_)) | (UpdateIgnore | DeleteIgnore, None) => return RowResult::Ignored,
            (Delete | DeleteIgnore, Some(_)) => None,
            (_, old) => {
                let old = old.unwrap_or_default();
                let text = cells.text.clone().unwrap_or(old.text);
                Some(Row { number: cells.number.unwrap_or(old.number), text })
            }
        };
        self.0.entry(key).or_default().push(Version { stamp, at, row });
        RowResult::Written
    }

    /// Removes all rows of a range that was dropped.
    pub(super) fn drop_range(&mut self, lower: i64, upper: i64, (stamp, at): (u64, u64)) {
        for versions in self.0.range_mut(lower..upper).map(|(_, versions)| versions) {
            versions.push(Version { stamp, at, row: None });
        }
    }

    fn latest(&self, key: i64) -> Option<Row> {
        self.0.get(&key)?.last()?.row.clone()
    }

    /// Returns the rows of a range as of a timestamp, in the order of their keys.
    pub(super) fn as_of(&self, lower: i64, upper: i64, stamp: u64) -> Vec<(i64, Row)> {
        let versions = self.0.range(lower..upper);
        versions.filter_map(|(key, versions)| Some((*key, before(versions, stamp)?))).collect()
    }

    /// Returns the states that a row had at a timestamp: one.
    pub(super) fn at_stamp(&self, key: i64, stamp: u64) -> Vec<Option<Row>> {
        vec![self.0.get(&key).and_then(|versions| before(versions, stamp))]
    }

    /// Returns the states that a row had between two times of the world's clock.
    pub(super) fn between(&self, key: i64, from: u64, to: u64) -> Vec<Option<Row>> {
        let versions = self.0.get(&key).map(Vec::as_slice).unwrap_or_default();
        let first = versions.iter().rev().find(|version| version.at < from);
        let later = versions.iter().filter(|version| version.at >= from && version.at <= to);
        std::iter::once(first.and_then(|version| version.row.clone()))
            .chain(later.map(|version| version.row.clone()))
            .collect()
    }

    /// Returns true if a row ever was in this state.
    pub(super) fn ever(&self, key: i64, row: &Row) -> bool {
        let versions = self.0.get(&key).map(Vec::as_slice).unwrap_or_default();
        versions.iter().any(|version| version.row.as_ref() == Some(row))
    }

    /// Returns the keys that ever had a row.
    pub(super) fn keys(&self) -> impl Iterator<Item = i64> {
        self.0.keys().copied()
    }
}

fn before(versions: &[Version], stamp: u64) -> Option<Row> {
    versions.iter().rev().find(|version| version.stamp < stamp)?.row.clone()
}
