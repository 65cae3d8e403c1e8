//! Merge of the scans of several rowsets by key.
//!
//! ```text
//!   rowset 1   a ── c ── e          read
//!   rowset 2      b ── d ── f       read: its first key is below e
//!   rowset 3                g ──    not opened before the merge comes to g
//! ```
//!
//! Where one rowset is alone, its blocks pass through whole. Of adjacent rowsets at most a few have a block in memory.

use super::rowset::{ReadBudget, RowSetScan, ScannedBlock};
use crate::config::TabletConfig;
use crate::error::Result;

/// The scan of one rowset, as part of a tablet's scan.
pub(super) struct ScanInput {
    pub scan: Box<dyn RowSetScan>,
    /// Encoded key that no row of the scan is below; empty if unknown. Ordered scans only.
    pub first_key: Vec<u8>,
}

/// Sizes at which the blocks of a merge end.
#[derive(Debug, Clone, Copy)]
pub(super) struct MergeLimits {
    /// Rows from which on a run is returned as a block by itself.
    long_run_rows: usize,
    /// Target rows of a block assembled from short runs.
    combined_rows: usize,
    /// Bytes at which a combined block ends.
    block_bytes: usize,
}

impl MergeLimits {
    pub(super) fn of(config: &TabletConfig) -> MergeLimits {
        MergeLimits {
            long_run_rows: config.scan_long_run_rows,
            combined_rows: config.scan_combined_rows,
            block_bytes: config.scan_block_bytes,
        }
    }
}

/// Rowset scans merged by key.
pub(super) struct MergeScan {
    heads: Vec<Head>,
    limits: MergeLimits,
}

struct Head {
    scan: Box<dyn RowSetScan>,
    /// Lower bound of the keys before the first block; empty later.
    first_key: Vec<u8>,
    /// Rows that were read and not yet returned, from `at` on. `None` before the first and after the last block.
    current: Option<ScannedBlock>,
    at: usize,
    done: bool,
}

impl Head {
    fn new(input: ScanInput) -> Head {
        let ScanInput { scan, first_key } = input;
        Head { scan, first_key, current: None, at: 0, done: false }
    }

    fn has_rows(&self) -> bool {
        self.current.as_ref().is_some_and(|block| self.at < block.block.rows)
    }

    /// Reads the next block if the current one is used up. Returns false if the budget is spent before there are rows
    /// or the end.
    fn fill(&mut self, budget: &mut ReadBudget) -> Result<bool> {
        while !self.done && !self.has_rows() {
            if budget.is_spent() {
                return Ok(false);
            }
            self.current = self.scan.read(budget)?;
            self.at = 0;
            self.done = self.current.is_none();
            self.first_key.clear();
        }
        Ok(true)
    }

    /// Returns the key of the next row, or a lower bound if no row is read.
    fn key(&self) -> &[u8] {
        match &self.current {
            Some(block) if self.at < block.block.rows => &block.keys[self.at],
            _ => &self.first_key,
        }
    }
}

/// Next rows of a merge.
enum NextRun {
    /// Rows of a head up to an end, below all rows of the other heads.
    Rows {
        head: usize,
        end: usize,
    },
    /// The budget is spent before the next rows are known.
    Unread,
    End,
}

/// Rows after which the bytes of a combined block are counted again.
const COUNTED_ROWS: usize = 16;

impl MergeScan {
    pub(super) fn new(inputs: Vec<ScanInput>, limits: MergeLimits) -> MergeScan {
        MergeScan { heads: inputs.into_iter().map(Head::new).collect(), limits }
    }

    /// Returns the next rows: one long run of one rowset, or short runs of several rowsets combined. There are none if
    /// the budget is spent first.
    pub(super) fn read(&mut self, budget: &mut ReadBudget) -> Result<Option<ScannedBlock>> {
        let (mut combined, mut uncounted): (Option<ScannedBlock>, usize) = (None, 0);
        loop {
            let (head, end) = match self.next_run(budget)? {
                NextRun::Rows { head, end } => (&mut self.heads[head], end),
                NextRun::Unread => return Ok(Some(combined.unwrap_or_default())),
                NextRun::End => break,
            };
            let current = head.current.as_ref().expect("next_run filled it");
            let (start, rows) = (head.at, current.block.rows);
            let long = end - start >= self.limits.long_run_rows || end - start == rows;
            match &mut combined {
                Some(_) if long => break,
                Some(block) => block.append(current, start, end),
                None if start == 0 && end == rows => {
                    head.at = 0;
                    return Ok(head.current.take());
                }
                None => combined = Some(current.slice(start, end)),
            }
            head.at = end;
            uncounted += end - start;
            if long || combined.as_ref().is_some_and(|scanned| self.is_full(scanned, &mut uncounted)) {
                break;
            }
        }
        Ok(combined)
    }

    /// Returns true if a combined block has enough rows or bytes. The bytes are counted once for several rows.
    fn is_full(&self, combined: &ScannedBlock, uncounted: &mut usize) -> bool {
        if combined.block.rows >= self.limits.combined_rows {
            return true;
        }
        if *uncounted < COUNTED_ROWS {
            return false;
        }
        *uncounted = 0;
        combined.block.byte_size() >= self.limits.block_bytes
    }

    /// Returns the head with the smallest key, and the end of its run of rows.
    fn next_run(&mut self, budget: &mut ReadBudget) -> Result<NextRun> {
        let first = loop {
            // A head without rows has only a lower bound. Of equal keys it comes first, because its rows may be next.
            let order = |i: &usize| (self.heads[*i].key(), self.heads[*i].has_rows());
            let Some(first) = (0..self.heads.len()).min_by_key(order) else { return Ok(NextRun::End) };
            let head = &mut self.heads[first];
            if head.has_rows() {
                break first;
            }
            if !head.fill(budget)? {
                return Ok(NextRun::Unread);
            }
            if head.done {
                self.heads.remove(first);
            }
        };
        let others = self.heads.iter().enumerate().filter(|(i, _)| *i != first);
        let bound = others.map(|(_, head)| head.key()).min();
        let head = &self.heads[first];
        let current = head.current.as_ref().expect("it has rows");
        let end = match bound {
            Some(bound) => head.at + current.keys[head.at..].partition_point(|key| key.as_slice() < bound),
            None => current.block.rows,
        };
        Ok(NextRun::Rows { head: first, end })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::schema::row_block::RowBlock;

    /// Blocks of keys that a rowset's scan returns one by one, and the number of those read.
    struct KeyBlocks {
        blocks: Vec<Vec<u8>>,
        next: usize,
        read: Arc<AtomicUsize>,
    }

    impl RowSetScan for KeyBlocks {
        fn read(&mut self, budget: &mut ReadBudget) -> Result<Option<ScannedBlock>> {
            let Some(keys) = self.blocks.get(self.next) else { return Ok(None) };
            self.next += 1;
            self.read.fetch_add(1, Ordering::Relaxed);
            budget.spend(keys.len());
            let block = RowBlock { rows: keys.len(), columns: Vec::new() };
            let keys = keys.iter().map(|key| vec![*key]).collect();
            Ok(Some(ScannedBlock { block, keys, deleted: None }))
        }

        fn append(&mut self, _out: &mut RowBlock, _budget: &mut ReadBudget) -> Result<bool> {
            unreachable!("a merge reads whole blocks")
        }
    }

    /// Merges rowsets given as `first key: block block`. Returns the blocks, each with the number of blocks read so far.
    fn merged(rowsets: &[&str]) -> Vec<String> {
        merged_with(&TabletConfig { scan_block_bytes: usize::MAX, ..TabletConfig::default() }, rowsets)
    }

    fn merged_with(config: &TabletConfig, rowsets: &[&str]) -> Vec<String> {
        let read = Arc::<AtomicUsize>::default();
        let input = |rowset: &&str| {
            let (first_key, blocks) = rowset.split_once(": ").unwrap();
            let blocks = blocks.split(' ').map(|block| block.as_bytes().to_vec()).collect();
            let scan = Box::new(KeyBlocks { blocks, next: 0, read: read.clone() });
            ScanInput { scan, first_key: first_key.as_bytes().to_vec() }
        };
        let mut merge = MergeScan::new(rowsets.iter().map(input).collect(), MergeLimits::of(config));
        let mut shown = Vec::new();
        while let Some(block) = merge.read(&mut ReadBudget::unlimited()).unwrap() {
            let keys = String::from_utf8(block.keys.concat()).unwrap();
            shown.push(format!("{keys} {}", read.load(Ordering::Relaxed)));
        }
        shown
    }

    #[test]
    fn a_rowset_is_read_when_the_merge_comes_to_its_first_key() {
        assert_eq!(merged(&["a: ab cd", "e: ef", "g: gh ij"]), ["ab 1", "cd 2", "ef 3", "gh 4", "ij 5"]);
        assert_eq!(merged(&["g: gh", "a: ab cd", "e: ef"]), ["ab 1", "cd 2", "ef 3", "gh 4"]);
        assert_eq!(merged(&["a: ace", "b: bd", "f: fg"]), ["abcde 3", "fg 3"]);
    }

    #[test]
    fn a_first_key_is_only_a_lower_bound() {
        // A scan from b on: the rows below it are passed over in both rowsets, so their bounds are equal.
        assert_eq!(merged(&["b: bd", "b: ce"]), ["bcde 2"]);
        assert_eq!(merged(&[": bd", ": ac", "a: x"]), ["abcd 3", "x 3"]);
        assert_eq!(merged(&["a: z", "b: c"]), ["c 2", "z 2"]);
    }

    #[test]
    fn long_runs_are_blocks_and_short_ones_are_combined_up_to_a_limit() {
        let limits = |long, combined| TabletConfig {
            scan_long_run_rows: long,
            scan_combined_rows: combined,
            ..TabletConfig::default()
        };
        let rowsets = ["a: abcdh", "e: efgi"];
        assert_eq!(merged_with(&limits(5, 100), &rowsets), ["abcdefghi 2"]);
        assert_eq!(merged_with(&limits(3, 100), &rowsets), ["abcd 1", "efg 2", "hi 2"]);
        assert_eq!(merged_with(&limits(5, 4), &rowsets), ["abcd 1", "efgh 2", "i 2"]);
        let short_one_first = ["a: ae", "b: bcdf"];
        assert_eq!(merged_with(&limits(3, 100), &short_one_first), ["a 2", "bcd 2", "ef 2"]);
    }
}
