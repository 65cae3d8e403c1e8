//! The end of an operation's way: it is agreed on, and the tablet changes.

use std::collections::VecDeque;
use std::sync::Arc;

use super::payload::{Applied, Logged};
use super::types::{Op, WriteOp};
use crate::error::Result;
use crate::ids::OpId;
use crate::note::Note;
use crate::raft::message::kind;
use crate::tablet::Tablet;
use crate::tablet::apply::Mode;
use crate::tablet::meta::{TabletMeta, TabletSchema};
use crate::tablet::prepare::{Prepared, prepare};
use crate::tablet::writer::TabletWriter;
use crate::time::Timestamp;
use crate::wal::Replicate;

/// A tablet, how far it has come in its log, and what its superblock says.
pub(super) struct Applier {
    pub tablet: Arc<Tablet>,
    pub writer: TabletWriter,
    pub last_applied: OpId,
    /// The timestamp of `last_applied`.
    pub applied_at: Timestamp,
    /// The last number given to the auto-incrementing column.
    pub auto_increment: i64,
    /// The superblock as it was stored last.
    pub meta: TabletMeta,
    /// Schema changes applied since `meta.replay_from`, by the index of their operation.
    pub alters: VecDeque<(u64, Arc<TabletSchema>)>,
}

impl Applier {
    /// A tablet as its superblock describes it.
    pub fn new(tablet: Arc<Tablet>, meta: TabletMeta) -> Applier {
        Applier {
            writer: TabletWriter::new(tablet.clone()),
            tablet,
            last_applied: meta.last_op,
            applied_at: meta.last_timestamp,
            auto_increment: meta.auto_increment,
            meta,
            alters: VecDeque::new(),
        }
    }

    /// Applies a committed operation for the first time. `prepared` is used if it was decoded under the schema of this
    /// moment.
    ///
    /// An error is the end of the replica; an operation that merely could not be done is [`Applied::Failed`].
    pub fn apply(
        &mut self,
        op: &Replicate,
        prepared: Option<Prepared>,
        notes: &mut Vec<Note>,
    ) -> Result<Applied> {
        let schema = self.tablet.table_schema();
        match prepared.filter(|prepared| Arc::ptr_eq(&prepared.schema, &schema)) {
            Some(prepared) => self.write(prepared, op, Mode::New),
            None => self.apply_record(op, Mode::New, notes),
        }
    }

    /// Applies an operation from its record, under the schema of the moment.
    pub fn apply_record(
        &mut self,
        record: &Replicate,
        mode: Mode<'_>,
        notes: &mut Vec<Note>,
    ) -> Result<Applied> {
        if record.kind == kind::CONFIG {
            return Ok(Applied::Nothing);
        }
        let Logged { op, auto_increment, .. } = Logged::decode(record.kind, &record.payload)
            .map_err(|error| error.context(format_args!("operation {}", record.op)))?;
        match op {
            Op::Write(WriteOp { columns, rows, indirect }) => {
                let (schema, config) = (self.tablet.table_schema(), self.tablet.config());
                match prepare(&schema, config, None, &columns, &rows, &indirect, auto_increment) {
                    Ok(prepared) => self.write(prepared, record, mode),
                    Err(error) => Ok(Applied::Failed(error)),
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
                Ok(Applied::Altered(version.max(current)))
            }
            Op::NoOp => Ok(Applied::Nothing),
        }
    }

    fn write(&mut self, prepared: Prepared, record: &Replicate, mode: Mode<'_>) -> Result<Applied> {
        self.auto_increment = self.auto_increment.max(prepared.auto_increment);
        let outcome = self.writer.apply(prepared, record.timestamp, record.op.index, mode)?;
        Ok(Applied::Written(outcome))
    }

    /// The tablet has come to this operation.
    pub fn passed(&mut self, op: OpId, timestamp: Timestamp) {
        (self.last_applied, self.applied_at) = (op, timestamp);
    }
}
