//! The model's rows: every version of each key, by timestamp.

use std::borrow::Cow;
use std::collections::BTreeMap;

use sim_plan::client_ops::WriteKind;
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
    /// The last number that a row was given, if rows are numbered.
    last_number: i128,
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
            let Some(row) = self.numbered(table, row) else {
                answers.push(vec![RowAnswer::Refused]);
                continue;
            };
            let key = key_of(table, &row.cells);
            let before = self.at(&key, HybridStamp::MAX);
            let effect = apply(&table.columns, keys, &row, &before);
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

    /// Returns a row with its number, if rows are numbered: an insert gets the next one, unless it is refused. `None`
    /// if it names a number, which an insert may not. Others name numbers that rows had, or none that there is.
    fn numbered<'a>(&mut self, table: &ModelTable, row: &'a RowWrite) -> Option<Cow<'a, RowWrite>> {
        let inserts = matches!(row.kind, WriteKind::Insert | WriteKind::InsertIgnore);
        let Some(auto) = table.auto_increment().filter(|_| inserts) else { return Some(Cow::Borrowed(row)) };
        if row.cells.contains_key(&auto) {
            return None;
        }
        let mut row = row.clone();
        row.cells.insert(auto, Value::Int(self.last_number + 1));
        let answers = apply(&table.columns, table.key_columns().len(), &row, &None).answers;
        self.last_number += i128::from(answers != [RowAnswer::Refused]);
        Some(Cow::Owned(row))
    }

    /// Returns the row of a key before a timestamp.
    pub(super) fn at(&self, key: &[u8], before: HybridStamp) -> ModelRow {
        let versions = self.versions.get(key)?;
        versions.iter().rev().find(|(at, _)| *at < before).and_then(|(_, row)| row.clone())
    }

    /// Returns the last row that a key had before a timestamp.
    pub(super) fn last(&self, key: &[u8], before: HybridStamp) -> ModelRow {
        let versions = self.versions.get(key)?.iter().rev();
        versions.filter(|(at, _)| *at < before).find_map(|(_, row)| row.clone())
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

#[cfg(test)]
mod tests {
    use sim_plan::RandomStream;
    use sim_plan::tables::draw;

    use super::*;
    use crate::model::draws;

    #[test]
    fn inserts_get_ascending_numbers_and_refused_ones_get_none() {
        let random = &mut RandomStream::new(5, "test");
        let plain = draw::table(random, 0);
        let table = draw::numbered(random, plain);
        let auto = table.auto_increment().expect("rows are numbered");
        let mut rows = TrialRows::default();
        let mut numbers = Vec::new();
        for at in 1..=40 {
            let row = draws::row(random, &table, WriteKind::Insert);
            let mut named = row.clone();
            named.cells.insert(auto, Value::Int(7));
            assert_eq!(rows.apply(&table, &[named], at), [[RowAnswer::Refused]]);
            let known = rows.key_cells().len();
            let answers = rows.apply(&table, &[row], at);
            assert_eq!(answers == [[RowAnswer::Done]], rows.key_cells().len() > known);
            numbers.extend(rows.key_cells()[known..].iter().map(|key| key[&auto].clone()));
        }
        let expected: Vec<Value> = (1..=numbers.len() as i128).map(Value::Int).collect();
        assert!(numbers.len() > 30);
        assert_eq!(numbers, expected);
    }
}
