//! Things worth telling: the engine does not log, it returns notes.
//!
//! The node prints them, the simulator traces them, tests assert on them.

pub mod raft;

use std::fmt;

use crate::ids::{ColumnId, OpId, RowSetId, Term};
use crate::time::Timestamp;

/// Something a person who looks after a tablet may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A tablet was opened and its log replayed up to `last`. `config`: the index of the configuration it goes by from
    /// now on; 0 for the first.
    Replayed { ops: u64, last: OpId, config: u64 },
    /// The MemRowSet with everything up to `at` went to disk.
    Flushed { at: Timestamp, rows: u64, rowsets: Vec<RowSetId> },
    /// Recent deltas of a DiskRowSet went to disk.
    FlushedDeltas { rowset: RowSetId, at: Timestamp },
    /// Files of changes of a DiskRowSet went into the columns that they changed.
    MergedDeltas { rowset: RowSetId, columns: Vec<ColumnId> },
    /// DiskRowSets were merged into others.
    Compacted { from: Vec<RowSetId>, into: Vec<RowSetId>, rows: u64 },
    /// The schema changed.
    Altered { version: u32 },
    /// A file that nothing refers to, left by a crash, was removed.
    RemovedOrphan { file: String },
    /// A scan of the latest began, of everything up to `applied`. `leads`: the term that the replica leads in, if it
    /// does.
    ServedLatest { applied: Timestamp, leads: Option<Term> },
    /// Replication took a step.
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
            Note::MergedDeltas { rowset, columns } => {
                let columns: Vec<u32> = columns.iter().map(|id| id.0).collect();
                write!(f, "merged deltas rowset={rowset} columns={columns:?}")
            }
            Note::Compacted { from, into, rows } => {
                write!(f, "compacted from={from:?} into={into:?} rows={rows}")
            }
            Note::Altered { version } => write!(f, "altered version={version}"),
            Note::RemovedOrphan { file } => write!(f, "removed orphan file={file}"),
            Note::ServedLatest { applied, leads } => {
                write!(f, "served-latest applied={applied} leads={}", leads.unwrap_or_default())
            }
            Note::Raft(note) => write!(f, "raft {note}"),
        }
    }
}
