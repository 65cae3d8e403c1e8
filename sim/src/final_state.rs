//! The state of a cluster at the end of a run, as data that does not depend on the world: rows as text, tablets by
//! their bounds, no ids and no times.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sim_plan::line_format::LineField;
use sim_plan::tables::{ColumnSpec, Value};

/// Cells of each row besides its key, by key, both as text.
pub type RowTexts = BTreeMap<String, String>;

/// The checksum of a replica and the number of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReplicaSum {
    pub checksum: u64,
    pub rows: u64,
}

/// A table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinalTable {
    pub columns: Vec<String>,
    pub rows: RowTexts,
    /// Sums of all replicas by the bounds of their tablet.
    pub tablets: BTreeMap<String, Vec<ReplicaSum>>,
}

/// The end of a run in one world.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinalState {
    pub tables: BTreeMap<String, FinalTable>,
    /// Rows that the model has.
    pub model: BTreeMap<String, RowTexts>,
    /// Failures of the run itself: operations without a reply, violations, servers that ended.
    pub failures: Vec<String>,
    /// Number of applied faults.
    pub faults: u64,
    /// Rows written by clients.
    pub written: u64,
}

/// Returns a row's key and its other cells as text. `cell`: the value of a column.
pub fn row_text(
    columns: &[ColumnSpec],
    keys: usize,
    cell: impl Fn(&ColumnSpec) -> Value,
) -> (String, String) {
    let text = |columns: &[ColumnSpec]| {
        let cells = columns.iter().map(|column| format!("{}={}", column.name, cell(column).text()));
        cells.collect::<Vec<_>>().join(" ")
    };
    let (key, rest) = columns.split_at(keys.min(columns.len()));
    (text(key), text(rest))
}
