//! The state of the table that a backup has.

use std::collections::BTreeSet;

use super::columns::{ReadRows, ValueColumn};
use super::facts::TableFacts;

#[derive(Clone)]
pub(super) struct Saved {
    pub rows: ReadRows,
    pub columns: Vec<ValueColumn>,
    pub ranges: BTreeSet<i64>,
    pub facts: TableFacts,
}
