//! Tablets of this process: their rows are read without calls.
//!
//! ```text
//! Scanner ── a tablet of this process? ─┬─ yes: LocalTablets ── blocks of columns ─┐
//!                                       └─ no:  calls of its server ── sidecars ───┴─► Arrow batches
//! ```
//!
//! A program that runs a tablet server beside its client saves the encoding of rows and the socket. Only scans at a
//! known snapshot read this way: such a scan has the same rows at any replica that has applied all before it. Scans in
//! key order that resume at another replica, and diff scans, call the server.

use std::fmt;

use engine::error::Result;
use engine::schema::Schema;
use engine::schema::predicate::Predicate;
use engine::schema::row_block::{ProjectedColumn, RowBlock};
use engine::tablet::scan::ScanSpec;

use nyala_common::env::BoxFuture;

/// Tablets of this process.
pub trait LocalTablets: fmt::Debug + Send + Sync {
    /// Opens a scan once the tablet has applied all operations before its snapshot. `None` if the tablet is not in this
    /// process, is not running, or has other columns than the client knows ([`has_columns`]): then the scan calls its
    /// server.
    fn open<'a>(
        &'a self,
        tablet: &'a str,
        spec: ScanSpec,
    ) -> BoxFuture<'a, Result<Option<Box<dyn LocalScan>>>>;
}

/// Returns true if a tablet's schema has the columns of a scan, of the same names and types.
pub fn has_columns(schema: &Schema, spec: &ScanSpec) -> bool {
    let has_column = |wanted: &ProjectedColumn| {
        let found = wanted.id.and_then(|id| schema.by_id(id));
        found.is_some_and(|column| {
            (column.ty, column.nullable) == (wanted.ty, wanted.nullable) && column.name == wanted.name
        })
    };
    let is_known = |predicate: &Predicate| schema.by_id(predicate.column).is_some();
    spec.projection.iter().all(has_column) && spec.predicates.iter().all(is_known)
}

/// Scan of a tablet of this process.
pub trait LocalScan: Send {
    /// Returns the next rows, never an empty block; `None` at the end.
    fn next_block(&mut self) -> BoxFuture<'_, Result<Option<RowBlock>>>;
}

#[cfg(test)]
mod tests {
    use engine::ids::ColumnId;
    use engine::schema::predicate::PredicateKind;
    use engine::schema::{ColumnSchema, DataType};

    use super::*;

    #[test]
    fn a_scan_of_columns_that_have_changed_is_not_for_this_process() {
        let column = |id, name| ColumnSchema::new(id, name, DataType::Int32);
        let schema = Schema::new(vec![column(0, "k"), column(1, "v").nullable()], 1).expect("a legal schema");
        let has = |column: ColumnSchema| has_columns(&schema, &ScanSpec::latest(vec![(&column).into()]));
        assert!(has(column(0, "k")) && has(column(1, "v").nullable()));
        let other_type = ColumnSchema::new(0, "k", DataType::Int64);
        for changed in [column(2, "v").nullable(), column(1, "w").nullable(), column(1, "v"), other_type] {
            assert!(!has(changed.clone()), "{changed:?}");
        }
        let filtered = |id| {
            let predicates = vec![Predicate::new(ColumnId(id), PredicateKind::IsNotNull)];
            has_columns(&schema, &ScanSpec { predicates, ..ScanSpec::latest(Vec::new()) })
        };
        assert_eq!([filtered(1), filtered(2)], [true, false]);
    }
}
