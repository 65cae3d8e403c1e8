//! A replica: a tablet and its log, driven one event at a time.
//!
//! ```text
//!   Propose ─► decode, timestamp, OpId ─► Effects.append: Replicate      (memory only)
//!                                              │ the caller's log task appends and syncs
//!   Persisted(op) ◄────────────────────────────┘
//!      └─► apply to the tablet ─► Effects.done: answer,  Effects.append: Commit
//! ```
//!
//! - A step never touches the log itself and never waits: the caller owns the [`Wal`](crate::wal::Wal) and tells
//!   when operations are durable. Only reading flushed rows and replacing the superblock reach a disk from here.
//! - Operations are applied in the order of the log. With one replica, what is durable is agreed; Raft will take
//!   the place of that sentence.
//! - A replica whose disk or log fails is [`Replica::failure`]: it answers everything with that error from then on.
//!
//! Long work (flushes, compactions) is a [`Job`]: see `job.rs`.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::ids::OpId;
use crate::note::Note;
use crate::tablet::Tablet;
use crate::tablet::apply::Mode;
use crate::tablet::meta::{TabletMeta, TabletSchema};
use crate::tablet::prepare::{Home, Prepared, prepare};
use crate::tablet::writer::TabletWriter;
use crate::time::Timestamp;
use crate::wal::{Commit, Entry, Replicate};

mod bootstrap;
mod job;
mod payload;
mod types;

pub use bootstrap::BootstrapReport;
pub use job::{Job, JobKind, JobStep};
pub use types::{Done, Effects, Event, Op, OpResult, RequestId, WriteOp};

use payload::{Applied, Logged};

/// A tablet, what of its log is not applied yet, and what its superblock says.
pub struct Replica {
    tablet: Arc<Tablet>,
    writer: TabletWriter,
    data: Arc<dyn Disk>,
    job_running: bool,
    /// In the log's order.
    pending: VecDeque<Pending>,
    last_op: OpId,
    last_applied: OpId,
    /// The timestamp of `last_applied`.
    applied_at: Timestamp,
    /// The last number given to the auto-incrementing column, by operations applied or pending.
    auto_increment: i64,
    /// The superblock as it was stored last.
    meta: TabletMeta,
    /// Schema changes applied since `meta.replay_from`, by the index of their operation.
    alters: VecDeque<(u64, Arc<TabletSchema>)>,
    failed: Option<Error>,
}

/// An operation that is in the log or on its way there.
struct Pending {
    op: OpId,
    timestamp: Timestamp,
    ticket: u64,
    kind: u8,
    payload: Bytes,
    /// Writes: decoded under the schema of the moment.
    prepared: Option<Prepared>,
}

/// The term of operations while there are no elections.
const ONLY_TERM: u64 = 1;

impl Replica {
    /// The tablet, for reading.
    pub fn tablet(&self) -> &Arc<Tablet> {
        &self.tablet
    }

    /// The superblock as it was stored last.
    pub fn meta(&self) -> &TabletMeta {
        &self.meta
    }

    /// The last operation given to the log.
    pub fn last_op(&self) -> OpId {
        self.last_op
    }

    pub fn last_applied(&self) -> OpId {
        self.last_applied
    }

    /// Why this replica does nothing any more.
    pub fn failure(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// The smallest index the log still has to hold.
    pub fn log_keep_from(&self) -> u64 {
        self.meta.replay_from
    }

    /// Takes one event. `assign` gives the timestamp of a new operation: greater than every one before.
    pub fn step(&mut self, event: Event, assign: &mut dyn FnMut() -> Timestamp, out: &mut Effects) {
        match event {
            Event::Propose { ticket, op, request } => {
                let logged = Logged { op, request, auto_increment: self.auto_increment };
                if let Err(error) = self.propose(ticket, logged, assign, out) {
                    let (op_id, timestamp) = (OpId::MIN, Timestamp::MIN);
                    out.done.push(Done { ticket, op_id, timestamp, result: Err(error) });
                }
            }
            Event::Persisted(op) => self.persisted(op, out),
            Event::LogFailed(error) => self.fail(error, out),
        }
    }

    fn propose(
        &mut self,
        ticket: u64,
        logged: Logged,
        assign: &mut dyn FnMut() -> Timestamp,
        out: &mut Effects,
    ) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let prepared = match &logged.op {
            Op::Write(write) => Some(self.prepare(write)?),
            Op::AlterSchema { schema, .. } => {
                self.check_alter(schema)?;
                None
            }
            Op::NoOp => None,
        };
        if let Some(prepared) = &prepared {
            self.auto_increment = prepared.auto_increment;
        }
        let timestamp = self.tablet.mvcc().begin(assign);
        let op = OpId { term: ONLY_TERM.max(self.last_op.term), index: self.last_op.index + 1 };
        let (kind, payload) = logged.encode();
        out.append.push(Entry::Replicate(Replicate { op, timestamp, kind, payload: payload.clone() }));
        self.last_op = op;
        self.pending.push_back(Pending { op, timestamp, ticket, kind, payload, prepared });
        Ok(())
    }

    fn prepare(&self, write: &WriteOp) -> Result<Prepared> {
        let tablet = &self.tablet;
        let home = Home { schema: &tablet.partition_schema, partition: &tablet.partition };
        let WriteOp { columns, rows, indirect } = write;
        let schema = tablet.table_schema();
        prepare(&schema, tablet.config(), Some(home), columns, rows, indirect, self.auto_increment)
    }

    /// A schema that keeps the key as it is; rows cannot be reordered.
    fn check_alter(&self, schema: &crate::schema::Schema) -> Result<()> {
        let old = self.tablet.schema();
        let same = |(a, b): (&crate::schema::ColumnSchema, &crate::schema::ColumnSchema)| {
            a.id == b.id && a.ty == b.ty
        };
        let keys = old.key_columns().iter().zip(schema.key_columns());
        if old.num_key_columns() != schema.num_key_columns() || !keys.into_iter().all(same) {
            return Err(Error::invalid("a table's primary key columns cannot be changed"));
        }
        Ok(())
    }

    fn persisted(&mut self, up_to: OpId, out: &mut Effects) {
        while self.failed.is_none() && self.pending.front().is_some_and(|p| p.op.index <= up_to.index) {
            let pending = self.pending.pop_front().expect("it was just looked at");
            let (op, timestamp, ticket) = (pending.op, pending.timestamp, pending.ticket);
            match self.apply(pending, out) {
                Ok(applied) => {
                    self.tablet.mvcc().applied(timestamp);
                    (self.last_applied, self.applied_at) = (op, timestamp);
                    out.append.push(Entry::Commit(Commit { op, payload: applied.encode() }));
                    let result = applied.into_result();
                    out.done.push(Done { ticket, op_id: op, timestamp, result });
                }
                Err(error) => {
                    let result = Err(error.clone());
                    out.done.push(Done { ticket, op_id: op, timestamp, result });
                    self.fail(error, out);
                }
            }
        }
    }

    /// Applies a durable operation. An error is the end of the replica; an operation that merely could not be
    /// done is [`Applied::Failed`].
    fn apply(&mut self, mut pending: Pending, out: &mut Effects) -> Result<Applied> {
        let schema = self.tablet.table_schema();
        if let Some(prepared) = pending.prepared.take_if(|p| Arc::ptr_eq(&p.schema, &schema)) {
            let outcome = self.writer.apply(prepared, pending.timestamp, pending.op.index, Mode::New)?;
            return Ok(Applied::Written(outcome));
        }
        let logged = Logged::decode(pending.kind, &pending.payload)?;
        self.apply_logged(logged, pending.op, pending.timestamp, Mode::New, &mut out.notes)
    }

    /// Applies an operation from its record, under the schema of the moment.
    fn apply_logged(
        &mut self,
        logged: Logged,
        op: OpId,
        timestamp: Timestamp,
        mode: Mode<'_>,
        notes: &mut Vec<Note>,
    ) -> Result<Applied> {
        match logged.op {
            Op::Write(WriteOp { columns, rows, indirect }) => {
                let (schema, config) = (self.tablet.table_schema(), self.tablet.config());
                let from = logged.auto_increment;
                match prepare(&schema, config, None, &columns, &rows, &indirect, from) {
                    Ok(prepared) => {
                        self.auto_increment = self.auto_increment.max(prepared.auto_increment);
                        Ok(Applied::Written(self.writer.apply(prepared, timestamp, op.index, mode)?))
                    }
                    Err(error) => Ok(Applied::Failed(error)),
                }
            }
            Op::AlterSchema { schema, version, table_name, extra } => {
                let current = self.tablet.schema_version();
                if version > current {
                    let schema = TabletSchema::new(*schema, version, table_name, extra);
                    self.writer.alter(schema, self.last_applied.index, self.applied_at);
                    self.alters.push_back((op.index, self.tablet.table_schema()));
                    notes.push(Note::Altered { version });
                }
                Ok(Applied::Altered(version.max(current)))
            }
            Op::NoOp => Ok(Applied::Nothing),
        }
    }

    /// Ends the replica: everything pending and everything to come is answered with `error`.
    fn fail(&mut self, error: Error, out: &mut Effects) {
        for Pending { op, timestamp, ticket, .. } in self.pending.drain(..) {
            out.done.push(Done { ticket, op_id: op, timestamp, result: Err(error.clone()) });
        }
        self.failed.get_or_insert(error);
    }
}
