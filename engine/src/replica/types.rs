//! What goes into a replica and what comes out.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ids::OpId;
use crate::note::Note;
use crate::raft::message::ReadLog;
use crate::raft::{self, ConsensusMeta, Message, Peer, Reply};
use crate::schema::Schema;
use crate::schema::ops::{RowError, WireColumn};
use crate::tablet::apply::WriteCounts;
use crate::time::Timestamp;
use crate::wal::{Entry, Wal};

/// Names a client's request through all its retries, so that it takes effect once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId {
    /// The client, as it writes itself.
    pub client: Vec<u8>,
    pub seq: i64,
    /// The client has the answers to all its requests below this one.
    pub first_incomplete: i64,
    pub attempt: i64,
}

/// Rows to write, as the client sent them.
#[derive(Debug, Clone)]
pub struct WriteOp {
    /// The client's columns, in its order, bound to the tablet's.
    pub columns: Arc<[WireColumn]>,
    pub rows: Bytes,
    pub indirect: Bytes,
}

/// Something to do to a tablet, in its log's order.
#[derive(Debug, Clone)]
pub enum Op {
    Write(WriteOp),
    /// Takes effect if `version` is above the tablet's; otherwise it has happened before.
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

/// Something that happened to a replica.
#[derive(Debug)]
pub enum Event {
    /// A client wants `op` done; the answer is a [`Done`] with the same ticket. `NotLeader` if it must be asked
    /// elsewhere, `Aborted` if another leader's operations took its place.
    Propose { ticket: u64, op: Op, request: Option<RequestId> },
    /// Somebody waits for a snapshot of this moment to become complete: a leader sees to it that it soon does.
    WantSnapshot { at: Timestamp },
    /// The log cannot be written any more.
    LogFailed(Error),
    /// Consensus metadata could not be stored: what is stored now, nobody knows.
    MetaFailed(Error),
    /// What concerns agreement: messages, time, durability.
    Raft(raft::Event),
}

impl From<raft::Event> for Event {
    fn from(event: raft::Event) -> Event {
        Event::Raft(event)
    }
}

/// The end of a proposal.
#[derive(Debug)]
pub struct Done {
    pub ticket: u64,
    /// `OpId::MIN` if the operation was refused before it got a place in the log.
    pub op_id: OpId,
    /// The operation's timestamp; `Timestamp::MIN` if it was refused before it got one.
    pub timestamp: Timestamp,
    pub result: Result<OpResult>,
}

/// One change of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogWrite {
    /// Take back every replicate after this index.
    Truncate(u64),
    Append(Entry),
}

/// What a step wants done. The caller drains it; a step only adds.
///
/// Nothing in here has to wait for anything else in here, but for the order of `log`.
#[derive(Debug, Default)]
pub struct Effects {
    /// To do to the log, in this order, before anything from a later step. When appended replicates are as durable
    /// as the server's settings ask: [`raft::Event::Persisted`] with the last of them.
    pub log: Vec<LogWrite>,
    /// To store with [`cmeta::store`](super::cmeta::store), then [`raft::Event::MetaPersisted`] with the number.
    /// A later one stands for all before it.
    pub meta: Option<(u64, ConsensusMeta)>,
    pub messages: Vec<(Peer, Message)>,
    /// Answers to messages and to changes of the group, by their tickets.
    pub replies: Vec<(u64, Reply)>,
    pub read_log: Vec<ReadLog>,
    pub done: Vec<Done>,
    /// Requests that took effect though this replica was not asked: their retries must get the same answer.
    pub completed: Vec<(RequestId, Timestamp, OpResult)>,
    /// The server's clock is to be moved past this, so that what it gives elsewhere comes after.
    pub seen: Timestamp,
    /// Operations were applied or safe time has moved: whoever waits for a snapshot looks again.
    pub progress: bool,
    /// Something a report to the masters would show has changed.
    pub status_changed: bool,
    pub notes: Vec<Note>,
}

/// Does what a step wants done to the log. Appends are durable after the next [`Wal::sync`], truncations at once.
pub fn write_log(wal: &mut Wal, writes: impl IntoIterator<Item = LogWrite>) -> Result<()> {
    let mut entries = Vec::new();
    for write in writes {
        match write {
            LogWrite::Append(entry) => entries.push(entry),
            LogWrite::Truncate(after) => {
                wal.append(&entries)?;
                entries.clear();
                wal.truncate_after(after)?;
            }
        }
    }
    wal.append(&entries)
}
