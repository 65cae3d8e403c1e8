//! The effect of a row operation on a row: a second implementation, from the documentation.

use crate::rows::{Row, RowOp, RowOpKind, RowOutcome, RowState};

/// The effect of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowEffect {
    pub outcome: RowOutcome,
    /// The row afterwards; `None` if the operation changes nothing.
    pub change: Option<RowState>,
}

/// Returns the outcome of `op` on a row in this state, and the row it leaves.
pub fn apply(state: &RowState, op: &RowOp) -> RowEffect {
    use RowOpKind::*;
    let (outcome, change) = match (op.kind, state) {
        (Insert, Some(_)) => (RowOutcome::AlreadyPresent, None),
        (Update | Delete, None) => (RowOutcome::NotFound, None),
        (InsertIgnore, Some(_)) | (UpdateIgnore | DeleteIgnore, None) => (RowOutcome::Done, None),
        (Insert | InsertIgnore | Upsert | UpsertIgnore, None) => (RowOutcome::Done, Some(Some(inserted(op)))),
        (Update | UpdateIgnore | Upsert | UpsertIgnore, Some(row)) => {
            (RowOutcome::Done, Some(Some(changed(row, op))))
        }
        (Delete | DeleteIgnore, Some(_)) => (RowOutcome::Done, Some(None)),
    };
    RowEffect { outcome, change }
}

/// Returns a new row: unset cells are NULL.
fn inserted(op: &RowOp) -> Row {
    op.cells.iter().map(|cell| cell.unwrap_or_default()).collect()
}

fn changed(row: &Row, op: &RowOp) -> Row {
    let mut row = row.clone();
    row.resize(op.cells.len().max(row.len()), None);
    for (old, new) in row.iter_mut().zip(&op.cells) {
        if let Some(new) = new {
            *old = *new;
        }
    }
    row
}

/// Formats a state.
pub fn show(state: &RowState) -> String {
    let cell = |cell: &Option<i64>| cell.map_or("null".to_string(), |value| value.to_string());
    match state {
        None => "no row".to_string(),
        Some(row) => format!("({})", row.iter().map(cell).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_meets_a_row_and_none() {
        use RowOpKind::*;
        let mut lines = Vec::new();
        for kind in [Insert, Update, Delete, Upsert, InsertIgnore, UpdateIgnore, DeleteIgnore, UpsertIgnore] {
            let op = RowOp { kind, key: 1, cells: vec![Some(Some(7)), None] };
            let reported = |effect: RowEffect| {
                let left = effect.change.as_ref().map_or("as it was".to_string(), show);
                format!("{:?} {left}", effect.outcome)
            };
            let (without, with) = (apply(&None, &op), apply(&Some(vec![Some(1), Some(2)]), &op));
            lines.push(format!("{}: none {}; one {}", kind.name(), reported(without), reported(with)));
        }
        let expected = "\
INSERT: none Done (7, null); one AlreadyPresent as it was
UPDATE: none NotFound as it was; one Done (7, 2)
DELETE: none NotFound as it was; one Done no row
UPSERT: none Done (7, null); one Done (7, 2)
INSERT_IGNORE: none Done (7, null); one Done as it was
UPDATE_IGNORE: none Done as it was; one Done (7, 2)
DELETE_IGNORE: none Done as it was; one Done no row
UPSERT_IGNORE: none Done (7, null); one Done (7, 2)";
        assert_eq!(lines.join("\n"), expected);
    }
}
