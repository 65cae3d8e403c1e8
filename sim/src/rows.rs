//! Rows of the usual tables and operations on them, as history and oracles know them: a key and some numbers.

pub use engine::schema::row_ops::RowOpKind;

/// A row's columns after its key; `None` is NULL.
pub type Row = Vec<Option<i64>>;

/// A row that may not be present.
pub type RowState = Option<Row>;

/// One row operation of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowOp {
    pub kind: RowOpKind,
    pub key: i64,
    /// Cells by column; the outer `None` leaves one unset.
    pub cells: Vec<Option<Option<i64>>>,
}

/// The outcome of one row of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowOutcome {
    /// The operation took effect, or an IGNORE operation had nothing to do.
    Done,
    AlreadyPresent,
    NotFound,
    /// Rejected for a reason that says nothing about the row; it had no effect.
    Refused,
}
