//! Notes: events that the engine reports. The engine does not log, it returns notes.
//!
//! The node prints them, the simulator traces them, and tests assert on them.

pub mod raft;

use std::fmt;

use crate::ids::{ColumnId, OpId, PeerId, RowSetId, Term};
use crate::time::Timestamp;

/// An event of interest to operators, tests and the simulator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A tablet was opened and its log replayed up to `last`. `config` is the log index of the configuration in use, 0
    /// for the first one.
    Replayed { ops: u64, last: OpId, config: u64 },
    /// The MemRowSet with everything up to `at` was flushed.
    Flushed { at: Timestamp, rows: u64, rowsets: Vec<RowSetId> },
    /// A DiskRowSet's DeltaMemStore was flushed.
    FlushedDeltas { rowset: RowSetId, at: Timestamp },
    /// Delta files of a DiskRowSet were folded into these columns (major delta compaction).
    FoldedDeltas { rowset: RowSetId, columns: Vec<ColumnId> },
    /// This many delta files of a DiskRowSet were merged into one (minor delta compaction).
    MergedDeltas { rowset: RowSetId, files: usize },
    /// DiskRowSets were compacted into others.
    Compacted { from: Vec<RowSetId>, into: Vec<RowSetId>, rows: u64 },
    /// The schema changed.
    Altered { version: u32 },
    /// An orphan file, left by a crash, was removed.
    RemovedOrphan { file: String },
    /// A scan at the latest snapshot began, of everything up to `applied`. `leads` is the term that the replica is
    /// leader of, if it is.
    ServedLatest { applied: Timestamp, leads: Option<Term> },
    /// A leader's request to copy the tablet to this server was refused.
    CopyRefused { leader: PeerId },
    /// An action of replication.
    Raft(raft::RaftNote),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Replayed { ops, last, config } => {
                write!(f, "replayed ops={ops} last={last} config={config}")
            }
            Note::Flushed { at, rows, rowsets } => {
                write!(f, "flushed at={at} rows={rows} rowsets={rowsets:?}")
            }
            Note::FlushedDeltas { rowset, at } => write!(f, "flushed deltas rowset={rowset} at={at}"),
            Note::FoldedDeltas { rowset, columns } => {
                let columns: Vec<u32> = columns.iter().map(|id| id.0).collect();
                write!(f, "folded deltas rowset={rowset} columns={columns:?}")
            }
            Note::MergedDeltas { rowset, files } => {
                write!(f, "merged deltas rowset={rowset} files={files}")
            }
            Note::Compacted { from, into, rows } => {
                write!(f, "compacted from={from:?} into={into:?} rows={rows}")
            }
            Note::Altered { version } => write!(f, "altered version={version}"),
            Note::RemovedOrphan { file } => write!(f, "removed orphan file={file}"),
            Note::ServedLatest { applied, leads } => {
                write!(f, "served-latest applied={applied} leads={}", leads.unwrap_or_default())
            }
            Note::CopyRefused { leader } => write!(f, "copy-refused leader={leader}"),
            Note::Raft(note) => write!(f, "raft {note}"),
        }
    }
}
