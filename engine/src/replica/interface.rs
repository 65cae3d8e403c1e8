//! Events and effects of a replica.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::sync::Arc;
use std::vec::IntoIter;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ids::OpId;
use crate::note::Note;
use crate::raft::interface::LogReadRequest;
use crate::raft::{self, ConsensusMeta, Peer, RaftMessage, RaftReply};
use crate::schema::Schema;
use crate::schema::row_ops::{ClientColumn, RowError};
use crate::tablet::apply::WriteCounts;
use crate::time::Timestamp;
use crate::wal::{LogEntry, Wal, entry_len};

/// Id of a client's request, the same for all its retries, so that the request takes effect exactly once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId {
    /// The client, as it writes itself.
    pub client: Vec<u8>,
    pub seq: i64,
    /// All requests of the client below this one have their replies.
    pub first_incomplete: i64,
    pub attempt: i64,
}

/// Rows to write, as the client sent them.
#[derive(Debug, Clone)]
pub struct WriteOp {
    /// The client's columns, in its order, bound to the tablet's.
    pub columns: Arc<[ClientColumn]>,
    pub rows: Bytes,
    pub indirect: Bytes,
}

/// An operation on a tablet, applied in log order.
#[derive(Debug, Clone)]
pub enum Op {
    Write(WriteOp),
    /// Takes effect if `version` is above the tablet's; otherwise it was applied before.
    AlterSchema {
        schema: Box<Schema>,
        version: u32,
        table_name: String,
        /// The table's extra configuration.
        extra: BTreeMap<String, String>,
    },
    NoOp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpResult {
    /// `errors`: the rows that failed, by their position in the request, ascending; all others took effect.
    Write {
        errors: Vec<(u32, RowError)>,
        counts: WriteCounts,
    },
    /// The tablet's schema version afterwards.
    Altered {
        version: u32,
    },
    NoOp,
}

/// An input of a replica.
#[derive(Debug)]
pub enum ReplicaEvent {
    /// Proposal of a client; the reply is an [`OpReply`] with the same ticket. `NotLeader` if another replica leads,
    /// `Aborted` if another leader's operations replaced it.
    Propose { ticket: u64, op: Op, request: Option<RequestId> },
    /// A reader waits until the snapshot at this timestamp is complete: a leader advances safe time.
    WantSnapshot { at: Timestamp },
    /// The log cannot be written any more.
    LogFailed(Error),
    /// Consensus metadata could not be stored: the stored state is unknown.
    MetaFailed(Error),
    /// Event of the Raft core: messages, time, durability.
    Raft(raft::RaftEvent),
}

impl From<raft::RaftEvent> for ReplicaEvent {
    fn from(event: raft::RaftEvent) -> ReplicaEvent {
        ReplicaEvent::Raft(event)
    }
}

/// Reply to a proposal.
#[derive(Debug)]
pub struct OpReply {
    pub ticket: u64,
    /// `OpId::MIN` if the operation was rejected before it was appended.
    pub op_id: OpId,
    /// The operation's timestamp; `Timestamp::MIN` if it was rejected before it got one.
    pub timestamp: Timestamp,
    pub result: Result<OpResult>,
}

/// One change of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogWrite {
    /// Truncate every replicate after this index.
    Truncate(u64),
    Append(LogEntry),
}

/// Effects of a step. The caller drains it; a step only adds.
///
/// Its parts do not depend on each other, except for the order of `log`.
#[derive(Debug, Default)]
pub struct ReplicaEffects {
    /// Writes to the log. Order: in this sequence, before those of a later step. When appended replicates are as
    /// durable as the server's flags require: [`raft::RaftEvent::Persisted`] with the last of them.
    pub log: Vec<LogWrite>,
    /// Metadata to store with [`consensus_meta_store::store`](super::consensus_meta_store::store), then
    /// [`raft::RaftEvent::MetaPersisted`] with the number. A later one supersedes all earlier ones.
    pub meta: Option<(u64, ConsensusMeta)>,
    pub messages: Vec<(Peer, RaftMessage)>,
    /// Replies to messages and to configuration changes, by their tickets.
    pub replies: Vec<(u64, RaftReply)>,
    pub read_log: Vec<LogReadRequest>,
    pub done: Vec<OpReply>,
    /// Requests that took effect without a proposal here: their retries must get the same reply.
    pub completed: Vec<(RequestId, Timestamp, OpResult)>,
    /// Timestamp past which the server's clock must be moved, so that later ones of other tablets are above it.
    pub seen: Timestamp,
    /// True if operations were applied or safe time advanced: waiting readers check again.
    pub progress: bool,
    /// True if a tablet report to the masters would change.
    pub status_changed: bool,
    pub notes: Vec<Note>,
}

/// Writes a step's changes to the log. Appends are durable after the next [`Wal::sync`], truncations at once.
pub fn write_log(wal: &mut Wal, writes: impl IntoIterator<Item = LogWrite>) -> Result<()> {
    write_log_from(wal, &mut writes.into_iter().collect())
}

/// As [`write_log`], and leaves in `writes` what the log has not taken: nothing, unless this fails. After
/// [`Error::is_no_space`] the caller may try the rest again, as long as the log is usable ([`Wal::failure`]).
pub fn write_log_from(wal: &mut Wal, writes: &mut Vec<LogWrite>) -> Result<()> {
    let mut rest = std::mem::take(writes).into_iter().peekable();
    loop {
        let mut entries = next_entries(&mut rest);
        let mut written = wal.append(&entries);
        let mut truncation = None;
        if written.is_ok() {
            entries.clear();
            truncation = rest.next_if(|write| matches!(write, LogWrite::Truncate(_)));
            if let Some(LogWrite::Truncate(after)) = &truncation {
                written = wal.truncate_after(*after);
            }
        }
        if let Err(error) = written {
            writes.extend(entries.into_iter().map(LogWrite::Append).chain(truncation).chain(rest));
            return Err(error);
        }
        if rest.peek().is_none() {
            return Ok(());
        }
    }
}

/// Bytes of entries after which a batch of the log ends, because the log limits a batch.
pub(super) const APPEND_BYTES_MAX: usize = 64 << 20;

/// Takes the entries of the next batch of the log.
fn next_entries(rest: &mut Peekable<IntoIter<LogWrite>>) -> Vec<LogEntry> {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    while bytes < APPEND_BYTES_MAX
        && let Some(LogWrite::Append(entry)) = rest.next_if(|write| matches!(write, LogWrite::Append(_)))
    {
        bytes += entry_len(&entry);
        entries.push(entry);
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::CommitEntry;

    #[test]
    fn long_entries_are_divided_among_batches_of_the_log() {
        let commit = |payload: &Bytes| {
            LogWrite::Append(LogEntry::Commit(CommitEntry { op: OpId::MIN, payload: payload.clone() }))
        };
        let half = Bytes::from(vec![0; APPEND_BYTES_MAX / 2]);
        let [long, short] = [half, Bytes::new()].map(|payload| commit(&payload));
        let truncation = LogWrite::Truncate(3);
        let writes = [&short, &long, &long, &long, &short, &truncation, &short].map(LogWrite::clone);
        let mut rest = Vec::from(writes).into_iter().peekable();
        let mut batches = Vec::new();
        while rest.peek().is_some() {
            batches.push(next_entries(&mut rest).len());
            let _truncation = rest.next_if(|write| matches!(write, LogWrite::Truncate(_)));
        }
        assert_eq!(batches, [3, 2, 1], "the limit ends the first one, the truncation the second one");
    }
}
