//! What clients know of the model tables.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::history::HybridStamp;
use crate::model::{Incarnation, RowCells};
use crate::wire::client::ToldErrors;
use crate::wire::keys::Bounds;

/// Most rows that the clients remember of a table.
const WRITTEN_MAX: usize = 24;

/// Knowledge of the clients about the model tables.
#[derive(Debug, Default)]
pub(super) struct ModelTables {
    /// All incarnations, in order of their creation.
    pub incarnations: Vec<Incarnation>,
    /// The state of each of the plan's tables.
    pub tables: Vec<TableState>,
    /// Tablets that masters have reported: their incarnation and bounds, by id.
    pub tablets: BTreeMap<String, (usize, Bounds)>,
    /// The newest timestamp that any plain client has seen.
    pub newest: HybridStamp,
    /// Number of rows that clients have asked to insert, by incarnation.
    pub inserted: BTreeMap<usize, u64>,
    /// Cells of rows that were written last, by incarnation: conditions and bounds of scans have their values.
    pub written: BTreeMap<usize, VecDeque<RowCells>>,
    /// Numbers of rows that reads of a tablet returned, where servers number rows.
    pub numbers: BTreeMap<String, BTreeSet<i128>>,
    /// Errors that services told the clients.
    pub errors: ToldErrors,
    /// Number of alterations by step that are known to be done.
    pub steps: BTreeMap<String, u64>,
}

impl ModelTables {
    /// Remembers rows of a table instead of older ones.
    pub(super) fn remember<'a>(&mut self, table: usize, rows: impl Iterator<Item = &'a RowCells>) {
        let written = self.written.entry(table).or_default();
        written.extend(rows.cloned());
        written.drain(..written.len().saturating_sub(WRITTEN_MAX));
    }

    /// Returns rows of a table that were written last.
    pub(super) fn known(&self, table: usize) -> Vec<RowCells> {
        self.written.get(&table).into_iter().flatten().cloned().collect()
    }
}

/// The state of one of the plan's tables.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TableState {
    /// Index of its incarnation.
    pub current: usize,
    /// True while an alteration is in flight.
    pub busy: bool,
    /// True if the outcome of an alteration is unknown.
    pub frozen: bool,
    /// True while it is dropped.
    pub dropped: bool,
    pub recreated: u8,
}
