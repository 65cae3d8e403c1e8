//! Conditions on one column.

use crate::ids::ColumnId;

/// A condition on one column's cells. Cell bytes as in a block: little-endian, or the bytes themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Predicate {
    pub column: ColumnId,
    pub kind: PredicateKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PredicateKind {
    /// `lower` inclusive, `upper` exclusive.
    Range {
        lower: Option<Vec<u8>>,
        upper: Option<Vec<u8>>,
    },
    Equal(Vec<u8>),
    /// Sorted.
    InList(Vec<Vec<u8>>),
    IsNotNull,
    IsNull,
}
