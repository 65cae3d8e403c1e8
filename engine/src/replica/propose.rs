//! What a client wants done: checked, numbered, and given to the group.

use super::payload::Logged;
use super::requests::{Answer, Known};
use super::types::{Done, Effects, Op, RequestId, WriteOp};
use super::{Pending, Replica};
use crate::error::{Error, Result};
use crate::ids::OpId;
use crate::raft::message::kind;
use crate::schema::{ColumnSchema, Schema};
use crate::tablet::prepare::{Home, Prepared, prepare};
use crate::time::Timestamp;

impl Replica {
    pub(super) fn propose(
        &mut self,
        (ticket, op, request): (u64, Op, Option<RequestId>),
        assign: &mut dyn FnMut() -> Timestamp,
        out: &mut Effects,
    ) {
        let refuse = |error| {
            let (op_id, timestamp) = (OpId::MIN, Timestamp::MIN);
            Done { ticket, op_id, timestamp, result: Err(error) }
        };
        if let Some(error) = self.failed.clone().or_else(|| self.raft.check_leader().err()) {
            return out.done.push(refuse(error));
        }
        if let Some(known) = request.as_ref().and_then(|request| self.requests.find(request)) {
            return self.attach(ticket, known, out);
        }
        if let Err(error) = self.append_op((ticket, op, request), assign, out) {
            out.done.push(refuse(error));
        }
    }

    /// A request that came here before gets the answer of its operation.
    fn attach(&mut self, ticket: u64, known: Known, out: &mut Effects) {
        match known {
            Known::Pending(index) => {
                let waiting = self.pending.iter_mut().find(|pending| pending.entry.op.index == index);
                waiting.expect("requests are pending with their operations").tickets.add(ticket);
            }
            Known::Answered(Answer { op, timestamp, result }) => {
                out.done.push(Done { ticket, op_id: op, timestamp, result });
            }
        }
    }

    fn append_op(
        &mut self,
        (ticket, op, request): (u64, Op, Option<RequestId>),
        assign: &mut dyn FnMut() -> Timestamp,
        out: &mut Effects,
    ) -> Result<()> {
        let prepared = match &op {
            Op::Write(write) => Some(self.prepare(write)?),
            Op::AlterSchema { schema, .. } => {
                self.check_alter(schema)?;
                None
            }
            Op::NoOp => None,
        };
        let (kind, payload) = Logged { op, request, auto_increment: self.last_number() }.encode();
        let proposed =
            self.with_raft(assign, out, |raft, clock, agreed| raft.propose(kind, payload, clock, agreed))?;
        self.take_agreed(out);
        if let Some(prepared) = &prepared {
            self.auto_increment = prepared.auto_increment;
        }
        let pending = self.pending.back_mut().filter(|pending| pending.entry.op == proposed.op);
        let pending = pending.expect("what was proposed is last, and nothing applies it yet");
        pending.tickets.add(ticket);
        if let Some(prepared) = &prepared {
            pending.held = self.applier.tablet.hold_operation(prepared.byte_size());
        }
        pending.prepared = prepared;
        Ok(())
    }

    fn prepare(&self, write: &WriteOp) -> Result<Prepared> {
        let tablet = self.tablet();
        let schema = tablet.table_schema();
        if schema.schema.auto_incrementing().is_some() {
            self.check_numbers_known()?;
        }
        let home = Home { schema: &tablet.partition_schema, partition: &tablet.partition };
        let WriteOp { columns, rows, indirect } = write;
        prepare(&schema, tablet.config(), Some(home), columns, rows, indirect, self.last_number())
    }

    /// The last number that a row was given: by this leader, or by one before it, whose operations it has applied.
    fn last_number(&self) -> i64 {
        self.auto_increment.max(self.applier.auto_increment)
    }

    /// How many numbers an older leader's operations take is known when they are applied; and an alteration on its way
    /// may change which rows of a write are valid and take one. `Throttled` until then.
    fn check_numbers_known(&self) -> Result<()> {
        let unknown = |pending: &Pending| match pending.entry.kind {
            kind::WRITE => pending.prepared.is_none(),
            kind => kind == kind::ALTER,
        };
        match self.pending.iter().any(unknown) {
            true => {
                Err(Error::throttled("operations that bear on the numbers of rows are still being applied"))
            }
            false => Ok(()),
        }
    }

    /// A schema that keeps the key as it is; rows cannot be reordered.
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
