//! Columns of a relation under construction.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray};

use super::super::error::SqlResult;

/// Catalog and schema of the cluster's tables, as they are named to clients.
pub(super) const DATABASE: &str = "nyala";
pub(super) const PUBLIC: &str = "public";

/// Name of the schema.
pub(crate) const PG_CATALOG: &str = "pg_catalog";

/// Columns with as many values as the relation has rows.
pub(super) struct Columns {
    rows: usize,
    columns: Vec<(&'static str, ArrayRef)>,
}

impl Columns {
    pub(super) fn new(rows: usize) -> Columns {
        Columns { rows, columns: Vec::new() }
    }

    /// Adds a column of texts.
    pub(super) fn texts(
        mut self,
        name: &'static str,
        values: impl IntoIterator<Item = Option<String>>,
    ) -> Columns {
        self.columns.push((name, Arc::new(values.into_iter().collect::<StringArray>())));
        self
    }

    /// Adds a column of numbers.
    pub(super) fn numbers(mut self, name: &'static str, values: impl IntoIterator<Item = i64>) -> Columns {
        self.columns.push((name, Arc::new(Int64Array::from_iter_values(values))));
        self
    }

    /// Adds a column of flags.
    pub(super) fn flags(mut self, name: &'static str, values: impl IntoIterator<Item = bool>) -> Columns {
        self.columns.push((name, Arc::new(BooleanArray::from_iter(values.into_iter().map(Some)))));
        self
    }

    /// Adds columns with the same text in each row.
    pub(super) fn all_text(mut self, names: &[&'static str], value: Option<&str>) -> Columns {
        for name in names {
            self.columns.push((name, Arc::new(StringArray::from(vec![value; self.rows]))));
        }
        self
    }

    /// Adds columns with the same number in each row.
    pub(super) fn all_number(mut self, names: &[&'static str], value: i64) -> Columns {
        for name in names {
            self.columns.push((name, Arc::new(Int64Array::from(vec![value; self.rows]))));
        }
        self
    }

    /// Adds columns with the same flag in each row.
    pub(super) fn all_flag(mut self, names: &[&'static str], value: bool) -> Columns {
        for name in names {
            self.columns.push((name, Arc::new(BooleanArray::from(vec![value; self.rows]))));
        }
        self
    }

    pub(super) fn build(self) -> SqlResult<RecordBatch> {
        Ok(RecordBatch::try_from_iter_with_nullable(
            self.columns.into_iter().map(|(name, column)| (name, column, true)),
        )?)
    }
}
