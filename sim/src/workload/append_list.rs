//! The state of a client's growing list; its operations are in [`super::lists`].

use crate::oracle::lists::NONE_BEFORE;

/// The state of a client's list.
pub(super) struct AppendList {
    /// Number of rows that were sent.
    pub sent: i64,
    /// The key of the last acknowledged row.
    pub last: i64,
}

impl Default for AppendList {
    fn default() -> AppendList {
        AppendList { sent: 0, last: NONE_BEFORE }
    }
}
