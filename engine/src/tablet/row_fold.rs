//! Folding of one row's deltas: as few as lead to the same states.
//!
//! ```text
//!   UNDO, newest first     58: a=4   55: b=1   51: a=3  │  41: DELETE   33: b=9
//!   folded at 50           51: a=3, b=1                 │  33: b=9   33: DELETE
//! ```
//!
//! A row that is updated often has millions of deltas, of which a reader needs the last cell of each column. Read one
//! after the other and folded, they take the memory of one row. If UNDO deltas delete the row at the timestamp, the
//! next one, which restores its last values, is not folded: a diff scan returns these.

use std::collections::BTreeMap;

use super::delta_page::{DeltaBatch, DeltaDirection};
use crate::ids::{ColumnId, RowId};
use crate::schema::row_change::{RowChange, RowChangeBuilder, encode_delete};
use crate::time::Timestamp;

/// Deltas of one row, folded on both sides of a timestamp: the row's state there is one that a reader asks for.
pub(super) struct RowFold<'a> {
    row: RowId,
    /// Columns whose cells are kept.
    columns: &'a [ColumnId],
    split: Timestamp,
    older: FoldedChanges,
    /// The UNDO delta that restores a row which is deleted at the split.
    restoring: FoldedChanges,
    /// Deltas at the split and newer ones.
    newer: FoldedChanges,
}

/// Joint effect of consecutive changes.
#[derive(Default)]
struct FoldedChanges {
    /// Timestamp of the last change; `None` if there is none.
    ts: Option<Timestamp>,
    cells: BTreeMap<ColumnId, Option<Vec<u8>>>,
    /// True if the columns without a cell are set to their defaults.
    reinserts: bool,
    deletes: bool,
}

impl<'a> RowFold<'a> {
    pub(super) fn new(row: RowId, columns: &'a [ColumnId], split: Timestamp) -> RowFold<'a> {
        let [older, restoring, newer] = std::array::from_fn(|_| FoldedChanges::default());
        RowFold { row, columns, split, older, restoring, newer }
    }

    /// Adds the next delta in order of application. Its row change has been parsed before.
    pub(super) fn add(&mut self, ts: Timestamp, change: &[u8]) {
        let restores = self.newer.deletes && self.restoring.ts.is_none();
        let side = match ts < self.split {
            true if restores => &mut self.restoring,
            true => &mut self.older,
            false => &mut self.newer,
        };
        side.add(ts, RowChange::parsed_before(change), self.columns);
    }

    /// Returns the folded deltas in order of application.
    pub(super) fn into_batch(self, direction: DeltaDirection) -> DeltaBatch {
        let sides = match direction {
            DeltaDirection::Undo => [self.newer, self.restoring, self.older],
            DeltaDirection::Redo => [self.older, self.restoring, self.newer],
        };
        let mut batch = DeltaBatch::default();
        sides.into_iter().for_each(|side| side.push_to(self.row, &mut batch));
        batch
    }
}

impl FoldedChanges {
    fn add(&mut self, ts: Timestamp, change: RowChange<'_>, columns: &[ColumnId]) {
        self.ts = Some(ts);
        match change {
            // The cells stay: a diff scan returns the last ones of a deleted row.
            RowChange::Delete => self.deletes = true,
            RowChange::Update(_) => {}
            RowChange::Reinsert(_) => {
                self.cells.clear();
                (self.reinserts, self.deletes) = (true, false);
            }
        }
        let kept = change.cells().filter(|(id, _)| columns.contains(id));
        self.cells.extend(kept.map(|(id, cell)| (id, cell.map(<[u8]>::to_vec))));
    }

    /// Appends at most two deltas: one that sets cells, and one that deletes the row.
    fn push_to(self, row: RowId, batch: &mut DeltaBatch) {
        let Some(ts) = self.ts else { return };
        let mut change = Vec::new();
        if self.reinserts || !self.deletes || !self.cells.is_empty() {
            let mut builder = match self.reinserts {
                true => RowChangeBuilder::reinsert(&mut change),
                false => RowChangeBuilder::update(&mut change),
            };
            for (id, cell) in &self.cells {
                builder.set(*id, cell.as_deref());
            }
            batch.push(row, ts, &change);
            change.clear();
        }
        if self.deletes {
            encode_delete(&mut change);
            batch.push(row, ts, &change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [ColumnId; 2] = [ColumnId(1), ColumnId(2)];

    /// Encodes `1=a 2=NULL` as an update, the same after `+` as a reinsert, and `-` as a delete.
    fn encode(text: &str) -> Vec<u8> {
        let mut change = Vec::new();
        if text == "-" {
            encode_delete(&mut change);
            return change;
        }
        let (mut builder, cells) = match text.strip_prefix('+') {
            Some(cells) => (RowChangeBuilder::reinsert(&mut change), cells),
            None => (RowChangeBuilder::update(&mut change), text),
        };
        for (id, cell) in cells.split_whitespace().map(|cell| cell.split_once('=').unwrap()) {
            builder.set(ColumnId(id.parse().unwrap()), (cell != "NULL").then_some(cell.as_bytes()));
        }
        change
    }

    fn show(change: &[u8]) -> String {
        let change = RowChange::parse(change).unwrap();
        let cell = |(id, cell): (ColumnId, Option<&[u8]>)| {
            format!("{}={}", id.0, cell.map_or("NULL".into(), String::from_utf8_lossy))
        };
        let cells: Vec<String> = change.cells().map(cell).collect();
        match change {
            RowChange::Delete => "-".to_string(),
            RowChange::Update(_) => cells.join(" "),
            RowChange::Reinsert(_) => format!("+{}", cells.join(" ")),
        }
    }

    fn folded(direction: DeltaDirection, changes: &[(u64, &str)]) -> String {
        let mut fold = RowFold::new(7, &COLUMNS, Timestamp(50));
        changes.iter().for_each(|(ts, change)| fold.add(Timestamp(*ts), &encode(change)));
        let batch = fold.into_batch(direction);
        let shown: Vec<String> =
            batch.iter().map(|(row, ts, change)| format!("{row}@{} {}", ts.0, show(change))).collect();
        shown.join(", ")
    }

    #[test]
    fn the_last_cell_of_each_column_stays() {
        let undo = [(58, "1=a"), (55, "2=b 3=x"), (51, "1=NULL"), (41, "-"), (33, "2=c")];
        assert_eq!(folded(DeltaDirection::Undo, &undo), "7@51 1=NULL 2=b, 7@33 2=c, 7@33 -");
        let redo = [(10, "1=a"), (20, "1=b"), (50, "3=x")];
        assert_eq!(folded(DeltaDirection::Redo, &redo), "7@20 1=b, 7@50 ");
        assert_eq!(folded(DeltaDirection::Redo, &[]), "");
    }

    #[test]
    fn the_values_before_a_deletion_stay() {
        let undo = [(58, "1=a"), (55, "-"), (41, "+1=x 2=y"), (33, "1=b"), (20, "-")];
        let all = "7@55 1=a, 7@55 -, 7@41 +1=x 2=y, 7@20 1=b, 7@20 -";
        assert_eq!(folded(DeltaDirection::Undo, &undo), all);
        assert_eq!(folded(DeltaDirection::Undo, &undo[1..3]), "7@55 -, 7@41 +1=x 2=y");
    }

    #[test]
    fn a_reinsert_replaces_all_that_was_before() {
        let redo = [(10, "1=a"), (20, "-"), (30, "+2=b"), (40, "1=c")];
        assert_eq!(folded(DeltaDirection::Redo, &redo), "7@40 +1=c 2=b");
        assert_eq!(folded(DeltaDirection::Redo, &redo[..2]), "7@20 1=a, 7@20 -");
        assert_eq!(folded(DeltaDirection::Redo, &[(10, "-"), (60, "+")]), "7@10 -, 7@60 +");
    }
}
