//! Which DiskRowSets are worth merging.
//!
//! ```text
//!   [a────────f]                     many cover one key: lookups and ordered scans visit all of them
//!      [b──────g]
//!   [a][b][c][d][e]                  many are small: every scan opens all of them
//!   [a─f] +Δ +Δ +Δ +Δ                one has many files of changes: every read of it looks into all of them
//! ```
//!
//! Each merge leaves less of what it was for, so they come to an end.

use super::Tablet;
use super::rowset::RowSetId;

/// Rowsets merged at once.
const MERGED_MAX: usize = 16;
/// A rowset is small if so many of it would make one of the size at which they are rolled.
const SMALL_PER_ROLL: u64 = 8;

/// What there is to know of a DiskRowSet.
struct Seen {
    id: RowSetId,
    bytes: u64,
    min_key: Vec<u8>,
    delta_files: usize,
}

impl Tablet {
    /// DiskRowSets whose merging does the most good; none if it would do little.
    pub fn worth_merging(&self) -> Vec<RowSetId> {
        let state = self.state();
        let many = self.config().merge_min.max(2);
        let small_bytes = self.config().rowset_roll_bytes / SMALL_PER_ROLL;
        let seen = |rowset: &std::sync::Arc<super::DiskRowSet>| {
            let meta = rowset.meta();
            let (bytes, delta_files) = (meta.bytes, meta.delta_files.len());
            Seen { id: meta.id, bytes, min_key: meta.min_key.clone(), delta_files }
        };
        let rowsets: Vec<Seen> = state.disk.iter().map(seen).collect();
        let ids = |chosen: &[&Seen]| chosen.iter().take(MERGED_MAX).map(|rowset| rowset.id).collect();

        let mut deepest: Vec<&Seen> = state.tree.deepest().into_iter().map(|at| &rowsets[at]).collect();
        if deepest.len() >= many {
            deepest.sort_by_key(|rowset| rowset.bytes);
            return ids(&deepest);
        }
        let mut small: Vec<&Seen> = rowsets.iter().filter(|rowset| rowset.bytes < small_bytes).collect();
        if small.len() >= many {
            // Neighbours, so that the result covers few keys.
            small.sort_by(|a, b| a.min_key.cmp(&b.min_key));
            return ids(&small);
        }
        let most_files = rowsets.iter().max_by_key(|rowset| rowset.delta_files);
        most_files.filter(|rowset| rowset.delta_files >= many).map_or(Vec::new(), |rowset| vec![rowset.id])
    }
}
