//! Predicate evaluation shared by the scans of all rowsets.

use super::rowset::{RowSetScanSpec, ScannedBlock};
use crate::schema::row_block::Bitmap;

/// Drops the rows that fail a predicate. Rows reported as deleted stay, because their cells are from before the
/// deletion.
pub(super) fn keep_matching(spec: &RowSetScanSpec, scanned: &mut ScannedBlock) {
    if spec.predicates.is_empty() || scanned.block.rows == 0 {
        return;
    }
    let mut selected = Bitmap::new(scanned.block.rows, true);
    for predicate in spec.predicates.iter() {
        let named = |c: &crate::schema::row_block::ProjectedColumn| c.id == Some(predicate.column);
        let at = spec.columns.iter().position(named).expect("a scan's columns include its predicates'");
        predicate.evaluate(spec.columns[at].ty, &scanned.block.columns[at], &mut selected);
    }
    if let Some(deleted) = &scanned.deleted {
        deleted.ones().for_each(|row| selected.set(row, true));
    }
    if selected.all() {
        return;
    }
    scanned.block = scanned.block.filter(&selected);
    let mut at = 0;
    scanned.keys.retain(|_| {
        at += 1;
        selected.get(at - 1)
    });
    if let Some(deleted) = &mut scanned.deleted {
        let mut filtered = Bitmap::default();
        selected.ones().for_each(|row| filtered.push(deleted.get(row)));
        *deleted = filtered;
    }
}
