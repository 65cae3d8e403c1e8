//! Proposals of clients: checked, decoded, and appended to the leader's log.

use super::interface::{Op, OpReply, ReplicaEffects, RequestId, WriteOp};
use super::log_payload::{LoggedOp, OP_BYTES_MAX};
use super::request_tracker::{CachedResult, RequestState};
use super::{PendingOp, Replica};
use crate::error::{Error, Result};
use crate::ids::OpId;
use crate::raft::interface::kind;
use crate::schema::{ColumnSchema, Schema};
use crate::tablet::prepared_batch::{PartitionCheck, PreparedBatch, RowAdmission, prepare};
use crate::time::Timestamp;

impl Replica {
    pub(super) fn propose(
        &mut self,
        (ticket, op, request): (u64, Op, Option<RequestId>),
        assign: &mut dyn FnMut() -> Timestamp,
        out: &mut ReplicaEffects,
    ) {
        let done = if let Some(error) = self.failed.clone().or_else(|| self.raft.check_leader().err()) {
            Err(error)
        } else if let Some(known) = request.as_ref().and_then(|request| self.requests.find(request)) {
            self.attach(ticket, known, out)
        } else {
            self.append_op((ticket, op, request), assign, out)
        };
        if let Err(error) = done {
            let (op_id, timestamp) = (OpId::MIN, Timestamp::MIN);
            out.done.push(OpReply { ticket, op_id, timestamp, result: Err(error) });
        }
    }

    /// Attaches a retried request to its pending operation, or replies with the cached result.
    ///
    /// `Throttled` if the result was dropped: the next retry gets it from the node. `Aborted` if the client has
    /// declared the request complete.
    fn attach(&mut self, ticket: u64, known: RequestState, out: &mut ReplicaEffects) -> Result<()> {
        match known {
            RequestState::Pending(index) => {
                let pending = self.pending.iter_mut().find(|pending| pending.entry.op.index == index);
                pending.expect("requests are pending with their operations").tickets.add(ticket);
            }
            RequestState::Answered(CachedResult { op, timestamp, result }) => {
                out.done.push(OpReply { ticket, op_id: op, timestamp, result });
            }
            RequestState::ResultDropped(op) => {
                let message =
                    format!("operation {op}: already applied, and its result is not in memory; retry");
                return Err(Error::throttled(message));
            }
            RequestState::Stale => {
                return Err(Error::aborted("request: the client has declared it complete; nothing was done"));
            }
        }
        Ok(())
    }

    fn append_op(
        &mut self,
        (ticket, op, request): (u64, Op, Option<RequestId>),
        assign: &mut dyn FnMut() -> Timestamp,
        out: &mut ReplicaEffects,
    ) -> Result<()> {
        let prepared = match &op {
            Op::Write(write) => Some(self.prepare(write)?),
            Op::AlterSchema { schema, .. } => {
                self.check_alter(schema)?;
                None
            }
            Op::NoOp => None,
        };
        let (kind, payload) = LoggedOp { op, request, auto_increment: self.last_auto_increment() }.encode();
        check_fits_log(payload.len())?;
        let proposed = self.with_raft(assign, out, |raft, clock, raft_effects| {
            raft.propose(kind, payload, clock, raft_effects)
        })?;
        self.take_raft_effects(out);
        if let Some(prepared) = &prepared {
            self.auto_increment = prepared.auto_increment;
        }
        let pending = self.pending.back_mut().filter(|pending| pending.entry.op == proposed.op);
        let pending = pending.expect("the proposed operation is the last one and not yet applied");
        pending.tickets.add(ticket);
        if let Some(prepared) = &prepared {
            pending.tracked = self.applier.tablet.track_operation(prepared.byte_size());
        }
        pending.prepared = prepared;
        Ok(())
    }

    fn prepare(&self, write: &WriteOp) -> Result<PreparedBatch> {
        let tablet = self.tablet();
        let schema = tablet.table_schema();
        if schema.schema.auto_incrementing().is_some() {
            self.check_auto_increment_known()?;
        }
        let home = PartitionCheck { schema: &tablet.partition_schema, partition: &tablet.partition };
        let WriteOp { columns, rows, indirect } = write;
        let admission = RowAdmission::Limits(tablet.config());
        prepare(&schema, admission, Some(home), columns, rows, indirect, self.last_auto_increment())
    }

    /// The last auto-increment value assigned by this leader, or by an earlier one whose operations it has applied.
    fn last_auto_increment(&self) -> i64 {
        self.auto_increment.max(self.applier.auto_increment)
    }

    /// Returns `Throttled` until auto-increment values are known. Values used by an earlier leader's operations are
    /// known only once they are applied. An ALTER in flight may change which rows of a write are valid and need a
    /// value.
    fn check_auto_increment_known(&self) -> Result<()> {
        let unknown = |pending: &PendingOp| match pending.entry.kind {
            kind::WRITE => pending.prepared.is_none(),
            kind => kind == kind::ALTER,
        };
        match self.pending.iter().any(unknown) {
            true => Err(Error::throttled("earlier auto-increment operations are still being applied; retry")),
            false => Ok(()),
        }
    }

    /// Checks that a schema keeps the key columns: rows cannot be reordered.
    fn check_alter(&self, schema: &Schema) -> Result<()> {
        let old = self.tablet().schema();
        let same = |(a, b): (&ColumnSchema, &ColumnSchema)| a.id == b.id && a.ty == b.ty;
        let keys = old.key_columns().iter().zip(schema.key_columns());
        if old.num_key_columns() != schema.num_key_columns() || !keys.into_iter().all(same) {
            return Err(Error::invalid("a table's primary key columns cannot be changed"));
        }
        Ok(())
    }
}

/// Returns `Invalid` if a record of this many bytes is too long for the log.
fn check_fits_log(bytes: usize) -> Result<()> {
    if bytes <= OP_BYTES_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "operation: too large for the log ({bytes} bytes, limit {OP_BYTES_MAX}); send fewer rows at a time"
    )))
}
