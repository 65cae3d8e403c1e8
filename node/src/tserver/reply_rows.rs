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
    /// Groups, a buffer for the rows that are added next, and the size in bytes of a full reply.
    Groups(Aggregator, RowBlock, usize),
}

impl ReplyRows {
    pub(super) fn new(scanner: &OpenScanner, limit: usize) -> ReplyRows {
        match &scanner.aggregation {
            None => ReplyRows::Rows(RowsBuilder::new(scanner.layout, &scanner.projection, limit)),
            Some(aggregation) => {
                let projection = scanner.scan.projection();
                ReplyRows::Groups(Aggregator::new(aggregation, projection), RowBlock::new(projection), limit)
            }
        }
    }

    /// Adds the rows of the scan's next block and returns their number, which may be 0; `None` at the end.
    pub(super) fn add_block(&mut self, scan: &mut Scan) -> Result<Option<usize>> {
        match self {
            ReplyRows::Rows(rows) => {
                let before = rows.rows();
                let has_block = rows.add_with(|block| scan.append_block(block))?;
                Ok(has_block.then(|| rows.rows() - before))
            }
            ReplyRows::Groups(groups, block, _) => {
                block.clear();
                if !scan.append_block(block)? {
                    return Ok(None);
                }
                if block.rows > 0 {
                    groups.add(block);
                }
                Ok(Some(block.rows))
            }
        }
    }

    pub(super) fn byte_size(&self) -> usize {
        match self {
            ReplyRows::Rows(rows) => rows.byte_size(),
            ReplyRows::Groups(groups, ..) => groups.byte_size(),
        }
    }

    /// Returns true if no more rows should be added.
    pub(super) fn is_full(&self) -> bool {
        match self {
            ReplyRows::Rows(rows) => rows.is_full(),
            ReplyRows::Groups(groups, _, limit) => groups.byte_size() >= *limit,
        }
    }

    /// Returns what the reply carries.
    pub(super) fn finish(self, scanner: &OpenScanner) -> RowsBuilder {
        match self {
            ReplyRows::Rows(rows) => rows,
            ReplyRows::Groups(groups, _, limit) => {
                let mut rows = RowsBuilder::new(scanner.layout, &scanner.projection, limit);
                rows.add_with(|block| block.append(groups.finish()));
                rows
            }
        }
    }
}
