//! The rowsets and the schema of a tablet, which readers take as a whole.

use std::sync::Arc;

use super::diskrowset::DiskRowSet;
use super::memrowset::MemRowSet;
use super::rowset_tree::RowSetTree;
use super::superblock::TabletSchema;

/// The rowsets and the schema of a tablet at one point in its history.
#[derive(Clone)]
pub struct TabletComponents {
    pub schema: Arc<TabletSchema>,
    pub active: Arc<MemRowSet>,
    /// Oldest first.
    pub frozen: Vec<Arc<MemRowSet>>,
    /// By id.
    pub disk: Vec<Arc<DiskRowSet>>,
    /// Over the keys of `disk`.
    pub tree: RowSetTree,
}

impl TabletComponents {
    /// Returns these components with `disk` as the DiskRowSets.
    pub(super) fn with_disk(mut self, mut disk: Vec<Arc<DiskRowSet>>) -> TabletComponents {
        disk.sort_by_key(|rowset| rowset.meta().id);
        self.tree = RowSetTree::new(disk.iter().map(|rowset| rowset.key_bounds()));
        self.disk = disk;
        self
    }
}
