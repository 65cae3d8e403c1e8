//! The core's view of the log: the newest entries, and the terms of all entries since the start.
//!
//! ```text
//!     terms known, entries on disk only      entries in memory
//!   ├──────────────────────────────────┼──────────────────────────────┤ last
//!                                          ▲ committed   ▲ durable        (in either order)
//! ```
//!
//! An entry leaves memory when it is both committed and durable here, and either every peer has it or the cache is
//! full. A peer that needs it later gets it from the disk.

use std::collections::VecDeque;

use crate::ids::{OpId, Term};
use crate::wal::ReplicateEntry;

/// The end of the log in memory.
///
/// Invariant: `entries` are contiguous and end with `last`; `runs` is ascending in both, and its first run begins at or
/// before the first entry.
pub(super) struct RaftLog {
    entries: VecDeque<ReplicateEntry>,
    /// Payload bytes of `entries`.
    bytes: usize,
    /// First index and term of each run of entries of one term.
    runs: VecDeque<(u64, Term)>,
    last: OpId,
    /// Index up to which entries are durable.
    durable: u64,
}

/// Capacity in entries that is never released.
const ENTRIES_RETAINED: usize = 64;

/// Bytes of an entry's buffer besides its payload: the reference count.
const BUFFER_BYTES: usize = 3 * size_of::<usize>();

/// Number of term runs kept; beyond it, a lagging peer is probed with entries read from the disk.
const RUNS_MAX: usize = 1024;

impl RaftLog {
    /// Creates a log that ends with `base`, all of it on disk.
    pub(super) fn new(base: OpId) -> RaftLog {
        RaftLog {
            entries: VecDeque::new(),
            bytes: 0,
            runs: VecDeque::from([(base.index, base.term)]),
            last: base,
            durable: base.index,
        }
    }

    pub(super) fn last(&self) -> OpId {
        self.last
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable
    }

    /// Marks all entries as durable.
    pub(super) fn set_durable(&mut self) {
        self.durable = self.last.index;
    }

    /// The term of an entry; `None` if there is no such entry or its term is no longer known.
    pub(super) fn term_at(&self, index: u64) -> Option<Term> {
        if index == 0 {
            return Some(0);
        }
        if index > self.last.index {
            return None;
        }
        let after = self.runs.partition_point(|run| run.0 <= index);
        after.checked_sub(1).map(|at| self.runs[at].1)
    }

    /// The entry's OpId, if its term is known.
    pub(super) fn op_at(&self, index: u64) -> Option<OpId> {
        self.term_at(index).map(|term| OpId { term, index })
    }

    /// Returns true if the log has an entry of this index and term.
    pub(super) fn holds(&self, op: OpId) -> bool {
        self.term_at(op.index) == Some(op.term)
    }

    /// The last entry that a log ending with `theirs` can have too: not after its end, and not of a later term. `None`
    /// if no entry with a known term qualifies.
    pub(super) fn last_shareable(&self, theirs: OpId) -> Option<u64> {
        let mut limit = theirs.index.min(self.last.index);
        for (first, term) in self.runs.iter().rev() {
            if *first <= limit {
                if *term <= theirs.term {
                    return Some(limit);
                }
                limit = first.saturating_sub(1);
            }
        }
        None
    }

    /// Memory used by entries, in bytes.
    pub(super) fn byte_size(&self) -> usize {
        let shared = self.entries.len() * BUFFER_BYTES;
        self.bytes + shared + self.entries.capacity() * size_of::<ReplicateEntry>()
    }

    fn first_held(&self) -> u64 {
        self.last.index + 1 - self.entries.len() as u64
    }

    pub(super) fn get(&self, index: u64) -> Option<&ReplicateEntry> {
        let at = index.checked_sub(self.first_held())?;
        self.entries.get(at as usize)
    }

    pub(super) fn append(&mut self, entry: ReplicateEntry) {
        assert_eq!(entry.op.index, self.last.index + 1, "log entries: indexes are contiguous");
        if self.last.term != entry.op.term {
            self.runs.push_back((entry.op.index, entry.op.term));
        }
        self.last = entry.op;
        self.bytes += entry.payload.len();
        self.entries.push_back(entry);
    }

    /// Truncates everything after `index`, which must be in memory or right before it.
    pub(super) fn truncate_after(&mut self, index: u64) {
        while self.last.index > index {
            let entry = self.entries.pop_back().expect("uncommitted entries are in memory");
            self.bytes -= entry.payload.len();
            self.last.index -= 1;
            if self.runs.back().is_some_and(|run| run.0 > self.last.index) {
                self.runs.pop_back();
            }
            self.last.term = self.runs.back().expect("a run begins before every entry in memory").1;
        }
        self.durable = self.durable.min(index);
    }

    /// Records that the disk has everything up to `op`. Returns true if the durable index advances: the report of a
    /// truncated entry says nothing about the one in its place.
    pub(super) fn persisted(&mut self, op: OpId) -> bool {
        let advances = op.index > self.durable && self.holds(op);
        if advances {
            self.durable = op.index;
        }
        advances
    }

    /// Entries from `from` on that fit into `max_bytes`, at least one; `None` if the first is not in memory.
    pub(super) fn slice(&self, from: u64, max_bytes: usize) -> Option<Vec<ReplicateEntry>> {
        let start = from.checked_sub(self.first_held())? as usize;
        let (mut bytes, mut end) = (0, start);
        while let Some(entry) = self.entries.get(end) {
            bytes += entry.payload.len();
            if bytes > max_bytes && end > start {
                break;
            }
            end += 1;
        }
        (end > start).then(|| self.entries.range(start..end).cloned().collect())
    }

    /// Returns those of the entries read from the disk that are committed ones of this log. The disk can be behind:
    /// then it still has truncated entries of another leader, also in the place of committed ones. An entry whose
    /// term is not known here is from before the start, and the same everywhere.
    pub(super) fn committed_part(
        &self,
        mut entries: Vec<ReplicateEntry>,
        committed: u64,
    ) -> Vec<ReplicateEntry> {
        let differs = |entry: &ReplicateEntry| {
            let OpId { term, index } = entry.op;
            index > committed || self.term_at(index).is_some_and(|own| own != term)
        };
        if let Some(first) = entries.iter().position(differs) {
            entries.truncate(first);
        }
        entries
    }

    /// Payload bytes of the entries after `index` up to and with `to`; `None` if some are not in memory.
    pub(super) fn bytes_between(&self, index: u64, to: u64) -> Option<usize> {
        let start = (index + 1).checked_sub(self.first_held())? as usize;
        let end = (to + 1).checked_sub(self.first_held())? as usize;
        (start <= end).then(|| self.entries.range(start..end).map(|entry| entry.payload.len()).sum())
    }

    /// Evicts entries that are committed and durable: those up to `all_have`, and more while they are more than
    /// `max_bytes`.
    pub(super) fn evict(&mut self, committed: u64, all_have: u64, max_bytes: usize) {
        let limit = committed.min(self.durable);
        while let Some(first) = self.entries.front()
            && first.op.index <= limit
            && (first.op.index <= all_have || self.bytes > max_bytes)
        {
            self.bytes -= first.payload.len();
            self.entries.pop_front();
        }
        if self.entries.capacity() > ENTRIES_RETAINED.max(4 * self.entries.len()) {
            self.entries.shrink_to(ENTRIES_RETAINED.max(2 * self.entries.len()));
        }
        while self.runs.len() > RUNS_MAX && self.runs[1].0 <= limit.min(self.first_held()) {
            self.runs.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
