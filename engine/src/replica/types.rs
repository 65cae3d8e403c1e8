//! What goes into a replica and what comes out.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ids::OpId;
use crate::note::Note;
use crate::schema::Schema;
use crate::schema::ops::{RowError, WireColumn};
use crate::tablet::apply::WriteCounts;
use crate::time::Timestamp;
use crate::wal;

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
    /// A client wants `op` done; the answer is a [`Done`] with the same ticket.
    Propose { ticket: u64, op: Op, request: Option<RequestId> },
    /// Every operation up to this one is as durable in the log as the server's settings ask.
    Persisted(OpId),
    /// The log cannot be written any more.
    LogFailed(Error),
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

/// What a step wants done. The caller drains it; a step only adds.
#[derive(Debug, Default)]
pub struct Effects {
    /// To append to the log, in this order, before anything from a later step.
    pub append: Vec<wal::Entry>,
    pub done: Vec<Done>,
    pub notes: Vec<Note>,
}
