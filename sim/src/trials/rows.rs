//! The model's rows: every version of each key, by timestamp.

use std::collections::BTreeMap;

use sim_plan::tables::{ModelTable, Value};

use crate::history::HybridStamp;
use crate::model::rows::apply;
use crate::model::{ModelRow, RowAnswer, RowCells, RowWrite};
use crate::wire::keys;

/// Versions of the rows of a table.
#[derive(Debug, Default)]
pub(super) struct TrialRows {
    versions: BTreeMap<Vec<u8>, Vec<(HybridStamp, ModelRow)>>,
    /// The key cells of each key, also of rows that are gone.
    keys: Vec<RowCells>,
}

impl TrialRows {
    /// Applies a write that is committed at a timestamp; returns the answers that each row may have.
    pub(super) fn apply(
        &mut self,
        table: &ModelTable,
        rows: &[RowWrite],
        at: HybridStamp,
    ) -> Vec<Vec<RowAnswer>> {
        let keys = table.key_columns().len();
        let mut answers = Vec::with_capacity(rows.len());
        for row in rows {
            let key = key_of(table, &row.cells);
            let before = self.at(&key, HybridStamp::MAX);
            let effect = apply(&table.columns, keys, row, &before);
            if effect.changed {
                let versions = self.versions.entry(key).or_insert_with(|| {
                    let is_key = |(number, _): &(&u8, &Value)| usize::from(**number) < keys;
                    let cells = row.cells.iter().filter(is_key);
                    self.keys.push(cells.map(|(number, value)| (*number, value.clone())).collect());
                    Vec::new()
                });
                versions.push((at, effect.after));
            }
            answers.push(effect.answers);
        }
        answers
    }

    /// Returns the row of a key before a timestamp.
    pub(super) fn at(&self, key: &[u8], before: HybridStamp) -> ModelRow {
        let versions = self.versions.get(key)?;
        versions.iter().rev().find(|(at, _)| *at < before).and_then(|(_, row)| row.clone())
    }

    /// Returns true if a row was written within a span.
    pub(super) fn is_touched(&self, key: &[u8], from: HybridStamp, before: HybridStamp) -> bool {
        self.versions.get(key).is_some_and(|all| all.iter().any(|(at, _)| (from..before).contains(at)))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.versions.keys()
    }

    /// Returns the cells of all keys that had a row once.
    pub(super) fn key_cells(&self) -> &[RowCells] {
        &self.keys
    }

    /// Returns the rows before a timestamp.
    pub(super) fn live(&self, before: HybridStamp) -> Vec<RowCells> {
        let rows = self.versions.keys().filter_map(|key| self.at(key, before));
        rows.map(|row| RowCells::clone(&row)).collect()
    }
}

pub(super) fn key_of(table: &ModelTable, cells: &RowCells) -> Vec<u8> {
    keys::primary_key(table, &|number| cells.get(&number).cloned().unwrap_or(Value::Null))
}
