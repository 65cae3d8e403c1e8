//! Rows of one reply: those of a scan, or the groups of an aggregation.
//!
//! Groups are those of the rows that one call has read: partial results, which the reader merges. So they take the
//! memory of one reply, a scanner has none between calls, and an ordered scan resumes after its last key.

use engine::schema::aggregation::Aggregator;
use engine::schema::row_block::RowBlock;
use nyala_common::wire::rows::RowsBuilder;

use super::open_scanner::OpenScanner;

/// Rows of a reply as they are read, or their groups.
pub(super) enum ReplyRows {
    Rows(RowsBuilder),
    Groups(Aggregator),
}

impl ReplyRows {
    pub(super) fn new(scanner: &OpenScanner, limit: usize) -> ReplyRows {
        match &scanner.aggregation {
            None => ReplyRows::Rows(RowsBuilder::new(scanner.layout, &scanner.projection, limit)),
            Some(aggregation) => ReplyRows::Groups(Aggregator::new(aggregation, scanner.scan.projection())),
        }
    }

    pub(super) fn add(&mut self, block: RowBlock) {
        match self {
            ReplyRows::Rows(rows) => rows.add(block),
            ReplyRows::Groups(groups) => groups.add(&block),
        }
    }

    pub(super) fn byte_size(&self) -> usize {
        match self {
            ReplyRows::Rows(rows) => rows.byte_size(),
            ReplyRows::Groups(groups) => groups.byte_size(),
        }
    }

    /// Returns what the reply carries.
    pub(super) fn finish(self, scanner: &OpenScanner, limit: usize) -> RowsBuilder {
        match self {
            ReplyRows::Rows(rows) => rows,
            ReplyRows::Groups(groups) => {
                let mut rows = RowsBuilder::new(scanner.layout, &scanner.projection, limit);
                rows.add(groups.finish());
                rows
            }
        }
    }
}
