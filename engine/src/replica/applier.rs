//! Application of committed operations to the tablet.

use std::collections::VecDeque;
use std::sync::Arc;

use super::interface::{Op, WriteOp};
use super::log_payload::{CommitPayload, LoggedOp};
use crate::error::{Error, Result};
use crate::ids::OpId;
use crate::note::Note;
use crate::raft::interface::kind;
use crate::tablet::Tablet;
use crate::tablet::apply::ApplyMode;
use crate::tablet::prepared_batch::{PreparedBatch, RowAdmission, prepare};
use crate::tablet::superblock::{Superblock, TabletSchema};
use crate::tablet::writer::TabletWriter;
use crate::time::Timestamp;
use crate::wal::ReplicateEntry;

/// A tablet, its last applied operation, and its superblock.
pub(super) struct TabletApplier {
    pub tablet: Arc<Tablet>,
    pub writer: TabletWriter,
    pub last_applied: OpId,
    /// The timestamp of `last_applied`.
    pub applied_at: Timestamp,
    /// The last value of the auto-incrementing column.
    pub auto_increment: i64,
    /// The superblock as it was stored last.
    pub meta: Superblock,
    /// Schema changes applied since `meta.replay_from`, by the index of their operation.
    pub alters: VecDeque<(u64, Arc<TabletSchema>)>,
}

impl TabletApplier {
    /// Creates the applier of a tablet as its superblock describes it.
    pub(super) fn new(tablet: Arc<Tablet>, meta: Superblock) -> TabletApplier {
        TabletApplier {
            writer: TabletWriter::new(tablet.clone()),
            tablet,
            last_applied: meta.last_op,
            applied_at: meta.last_timestamp,
            auto_increment: meta.auto_increment,
            meta,
            alters: VecDeque::new(),
        }
    }

    /// Applies a committed operation for the first time. `prepared` is used if it was decoded under the current schema.
    ///
    /// An error ends the replica; an operation that is rejected is [`CommitPayload::Failed`].
    pub(super) fn apply(
        &mut self,
        op: &ReplicateEntry,
        prepared: Option<PreparedBatch>,
        notes: &mut Vec<Note>,
    ) -> Result<CommitPayload> {
        let schema = self.tablet.table_schema();
        match prepared.filter(|prepared| Arc::ptr_eq(&prepared.schema, &schema)) {
            Some(prepared) => self.write(prepared, op, ApplyMode::New),
            None => self.apply_record(op, ApplyMode::New, notes),
        }
    }

    /// Applies an operation from its record, under the current schema.
    pub(super) fn apply_record(
        &mut self,
        record: &ReplicateEntry,
        mode: ApplyMode<'_>,
        notes: &mut Vec<Note>,
    ) -> Result<CommitPayload> {
        if record.kind == kind::CONFIG {
            return Ok(CommitPayload::Nothing);
        }
        let LoggedOp { op, auto_increment, .. } = LoggedOp::decode(record.kind, &record.payload)
            .map_err(|error| error.context(format_args!("operation {}", record.op)))?;
        match op {
            Op::Write(WriteOp { columns, rows, indirect }) => {
                let (schema, recorded) = (self.tablet.table_schema(), mode.recorded());
                let limits = RowAdmission::Limits(self.tablet.config());
                let admission = recorded.map_or(limits, |result| RowAdmission::Recorded(&result.errors));
                match prepare(&schema, admission, None, &columns, &rows, &indirect, auto_increment) {
                    Ok(prepared) => self.write(prepared, record, mode),
                    Err(error) if recorded.is_some() => Err(Error::corrupt(format!(
                        "operation {}: cannot be replayed, although the log records its result: {error}",
                        record.op
                    ))),
                    Err(error) => Ok(CommitPayload::Failed(error)),
                }
            }
            Op::AlterSchema { schema, version, table_name, extra } => {
                let current = self.tablet.schema_version();
                if version > current {
                    let schema = TabletSchema::new(*schema, version, table_name, extra);
                    self.writer.alter(schema, self.last_applied.index, self.applied_at);
                    self.alters.push_back((record.op.index, self.tablet.table_schema()));
                    notes.push(Note::Altered { version });
                }
                Ok(CommitPayload::Altered(version.max(current)))
            }
            Op::NoOp => Ok(CommitPayload::Nothing),
        }
    }

    fn write(
        &mut self,
        prepared: PreparedBatch,
        record: &ReplicateEntry,
        mode: ApplyMode<'_>,
    ) -> Result<CommitPayload> {
        self.auto_increment = self.auto_increment.max(prepared.auto_increment);
        let outcome = self.writer.apply(prepared, record.timestamp, record.op.index, mode)?;
        Ok(CommitPayload::Written(outcome))
    }

    /// Records that the tablet has applied all operations up to this one.
    pub(super) fn advance_to(&mut self, op: OpId, timestamp: Timestamp) {
        (self.last_applied, self.applied_at) = (op, timestamp);
    }
}
