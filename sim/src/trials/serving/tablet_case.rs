//! A tablet of the operator.

use engine::ids::TabletId;

/// A tablet and its members.
#[derive(Debug, Clone)]
pub(super) struct TabletCase {
    pub id: TabletId,
    pub members: Vec<usize>,
    /// Version of the schema, of which the operator gives the next.
    pub version: u32,
    /// True once it is to be deleted everywhere.
    pub is_dropped: bool,
}
