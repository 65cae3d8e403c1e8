//! The model of a tablet: its directory, and the last operation that it must have.

use engine::ids::{TabletId, Uuid};

/// A tablet of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TabletModel {
    pub id: TabletId,
    /// Its data directory.
    pub dir: &'static str,
    /// Index of the last operation that was acknowledged.
    pub last: u64,
    /// True if its directory was given up: only its log is left, which it may have voted with.
    pub is_lost: bool,
}

/// Returns the id of the tablet of a number.
pub(super) fn tablet_of(number: usize) -> TabletId {
    Uuid([number as u8 + 1; 16])
}
