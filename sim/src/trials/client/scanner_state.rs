//! A scanner of the double.

use super::rows::Row;

/// A scanner of a server.
#[derive(Debug)]
pub(super) struct ScannerState {
    pub server: usize,
    pub tablet: usize,
    pub op: usize,
    pub snapshot: u64,
    pub is_ordered: bool,
    pub columns: Vec<usize>,
    /// Rows that are left.
    pub rows: Vec<(i64, Row)>,
    pub next_call: u32,
}
