//! An order that an operator gives once more, or later than it was meant.

use engine::raft::ConfigPosition;

/// An order to delete a replica that is no member in the configuration at this position.
#[derive(Debug, Clone, Copy)]
pub(super) struct LateOrder {
    pub server: usize,
    pub cas: ConfigPosition,
}
