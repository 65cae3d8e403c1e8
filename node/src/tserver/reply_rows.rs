//! Rows of one reply: those of a scan, or the groups of an aggregation.
//!
//! Groups are those of the rows that one call has read: partial results, which the reader merges. So they take the
//! memory of one reply, a scanner has none between calls, and an ordered scan resumes after its last key.

use engine::error::Result;
use engine::schema::aggregation::Aggregator;
use engine::schema::row_block::RowBlock;
use engine::tablet::scan::Scan;
use nyala_common::wire::rows::RowsBuilder;

use super::open_scanner::OpenScanner;

/// Rows of a reply as they are read, or their groups.
pub(super) enum ReplyRows {
    Rows(RowsBuilder),
    /// Groups, and a buffer for the rows that are added next.
    Groups(Aggregator, RowBlock),
}

impl ReplyRows {
    pub(super) fn new(scanner: &OpenScanner, limit: usize) -> ReplyRows {
        match &scanner.aggregation {
            None => ReplyRows::Rows(RowsBuilder::new(scanner.layout, &scanner.projection, limit)),
            Some(aggregation) => {
                let projection = scanner.scan.projection();
                ReplyRows::Groups(Aggregator::new(aggregation, projection), RowBlock::new(projection))
            }
        }
    }

    /// Adds the rows of the scan's next block. Returns false at the end.
    pub(super) fn add_block(&mut self, scan: &mut Scan) -> Result<bool> {
        match self {
            ReplyRows::Rows(rows) => rows.add_with(|block| scan.append_block(block)),
            ReplyRows::Groups(groups, block) => {
                block.clear();
                let has_block = scan.append_block(block)?;
                if has_block {
                    groups.add(block);
                }
                Ok(has_block)
            }
        }
    }

    pub(super) fn byte_size(&self) -> usize {
        match self {
            ReplyRows::Rows(rows) => rows.byte_size(),
            ReplyRows::Groups(groups, _) => groups.byte_size(),
        }
    }

    /// Returns what the reply carries.
    pub(super) fn finish(self, scanner: &OpenScanner, limit: usize) -> RowsBuilder {
        match self {
            ReplyRows::Rows(rows) => rows,
            ReplyRows::Groups(groups, _) => {
                let mut rows = RowsBuilder::new(scanner.layout, &scanner.projection, limit);
                rows.add_with(|block| block.append(groups.finish()));
                rows
            }
        }
    }
}
