//! Effects of the Raft core: the log follows the leader's, and committed operations are applied.

use super::interface::{LogWrite, ReplicaEffects, RequestId};
use super::log_payload::{self, CommitPayload};
use super::{PendingOp, Replica};
use crate::error::{Error, Result};
use crate::note::Note;
use crate::raft::interface::{LogChange, TimestampSource};
use crate::raft::{self, Raft, RaftEffects};
use crate::tablet::mvcc::{LeadershipState, Mvcc, SafeTimeSource};
use crate::time::{ClockReading, Timestamp};
use crate::wal::{CommitEntry, LogEntry, ReplicateEntry};

/// The core's clock: the server's clock and the tablet's operations in flight.
struct OpClock<'a> {
    mvcc: &'a Mvcc,
    assign: &'a mut dyn FnMut() -> Timestamp,
    /// Lower bound of every timestamp assigned from here on.
    timestamp_floor: &'a mut Timestamp,
    /// Timestamp past which the server's clock must be moved.
    seen: &'a mut Timestamp,
}

impl TimestampSource for OpClock<'_> {
    fn begin(&mut self) -> Timestamp {
        let (mut given, timestamp_floor) = (Timestamp::MIN, *self.timestamp_floor);
        let timestamp = self.mvcc.begin(&mut || {
            given = (self.assign)();
            given.max(timestamp_floor.next())
        });
        if timestamp > given {
            self.pass(timestamp);
        }
        timestamp
    }

    fn take(&mut self) -> Timestamp {
        (self.assign)().max(self.mvcc.newest()).max(*self.timestamp_floor)
    }

    fn pass(&mut self, seen: Timestamp) {
        *self.timestamp_floor = seen.max(*self.timestamp_floor);
        *self.seen = seen.max(*self.seen);
    }
}

impl Replica {
    /// Starts participation in the group. Order: called once, before the first step.
    pub fn start(
        &mut self,
        now: ClockReading,
        assign: &mut dyn FnMut() -> Timestamp,
        out: &mut ReplicaEffects,
    ) {
        self.with_raft(assign, out, |raft, clock, raft_effects| raft.start(now, clock, raft_effects));
        self.finish_step(out);
        self.count_log();
    }

    /// Sends operations proposed since the last step or flush. Steps other than proposals send them too: call it once
    /// after several proposals to send these together.
    pub fn flush(&mut self, now: ClockReading, out: &mut ReplicaEffects) {
        if self.failed.is_none() {
            self.raft.send_pending_updates(now, &mut self.raft_effects);
            self.finish_step(out);
        }
    }

    /// Requests a complete snapshot for a reader: every operation at or below `at` applied, and no new one possible.
    pub(super) fn want_snapshot(
        &mut self,
        now: ClockReading,
        at: Timestamp,
        assign: &mut dyn FnMut() -> Timestamp,
        out: &mut ReplicaEffects,
    ) {
        self.with_raft(assign, out, |raft, clock, raft_effects| {
            raft.want_safe_time(now, at, clock, raft_effects)
        });
        self.finish_step(out);
    }

    /// Gives an event to the core and carries out its effects.
    pub(super) fn process_raft_effects(
        &mut self,
        now: ClockReading,
        event: raft::RaftEvent,
        assign: &mut dyn FnMut() -> Timestamp,
        out: &mut ReplicaEffects,
    ) {
        self.with_raft(assign, out, |raft, clock, raft_effects| raft.step(now, event, clock, raft_effects));
        self.finish_step(out);
    }

    /// Carries out the effects of a step of the core.
    fn finish_step(&mut self, out: &mut ReplicaEffects) {
        self.take_raft_effects(out);
        self.apply_committed(out);
        self.set_safe_time_source(out);
    }

    /// Sets the bound of readable snapshots.
    fn set_safe_time_source(&mut self, out: &mut ReplicaEffects) {
        let safe_time_source = match self.raft.leads_single_voter_group() {
            true => SafeTimeSource::Clock,
            false => SafeTimeSource::Until(self.raft.safe_time()),
        };
        let mvcc = self.applier.tablet.mvcc();
        out.progress |= mvcc.set_safe_time_source(safe_time_source);
        let (term, caught_up) = (self.raft.term(), self.raft.is_caught_up_leader());
        // Clients of the only voter have no other replica to read from, whether it leads yet or waits for space.
        let is_read = self.raft.is_leader() || self.raft.is_only_voter();
        mvcc.set_leadership(is_read.then_some(LeadershipState { term, caught_up }));
    }

    pub(super) fn with_raft<R>(
        &mut self,
        assign: &mut dyn FnMut() -> Timestamp,
        out: &mut ReplicaEffects,
        work: impl FnOnce(&mut Raft, &mut dyn TimestampSource, &mut RaftEffects) -> R,
    ) -> R {
        let (mvcc, timestamp_floor) = (self.applier.tablet.mvcc(), &mut self.timestamp_floor);
        let mut clock = OpClock { mvcc, assign, timestamp_floor, seen: &mut out.seen };
        work(&mut self.raft, &mut clock, &mut self.raft_effects)
    }

    /// Carries out the core's log changes on the tablet's operations, and passes on its other effects.
    pub(super) fn take_raft_effects(&mut self, out: &mut ReplicaEffects) {
        let mut log_changes = std::mem::take(&mut self.raft_effects.log);
        for change in log_changes.drain(..) {
            match change {
                // Entries of another leader cannot follow those of a failed replica; no more is written.
                _ if self.failed.is_some() => {}
                LogChange::Truncate { after } => self.truncate(after, out),
                LogChange::Append { entry, own } => self.append(entry, own, out),
            }
        }
        let raft_effects = &mut self.raft_effects;
        raft_effects.log = log_changes;
        out.meta = raft_effects.meta.take().or(out.meta.take());
        out.messages.append(&mut raft_effects.messages);
        out.replies.append(&mut raft_effects.replies);
        out.read_log.append(&mut raft_effects.read_log);
        out.notes.extend(raft_effects.notes.drain(..).map(Note::Raft));
        out.status_changed |= std::mem::take(&mut raft_effects.status_changed);
        let marks = std::mem::take(&mut raft_effects.marks);
        marks.into_iter().for_each(|mark| self.tablet().config().observer.mark(mark));
    }

    fn append(&mut self, entry: ReplicateEntry, own: bool, out: &mut ReplicaEffects) {
        let request = match own {
            true => None,
            false => match self.begin_replicated(&entry) {
                Ok(request) => request,
                Err(error) => return self.fail(error, out),
            },
        };
        self.pending.push_back(PendingOp::new(entry.clone(), request));
        out.log.push(LogWrite::Append(LogEntry::Replicate(entry)));
    }

    /// Registers an operation of a leader or the log as in flight; returns its request.
    pub(super) fn begin_replicated(&mut self, entry: &ReplicateEntry) -> Result<Option<RequestId>> {
        let ReplicateEntry { op, timestamp, kind, payload } = entry;
        if !self.applier.tablet.mvcc().begin_at(*timestamp) {
            let message = format!("operation {op} at {timestamp} is not newer than the one before it");
            return Err(Error::corrupt(message));
        }
        let request = log_payload::request_of(*kind, payload);
        if let Some(request) = &request {
            self.requests.on_appended(request, op.index);
        }
        Ok(request)
    }

    /// Drops the operations that another leader's log lacks.
    fn truncate(&mut self, after: u64, out: &mut ReplicaEffects) {
        while self.pending.back().is_some_and(|pending| pending.entry.op.index > after) {
            let pending = self.pending.pop_back().expect("the end was checked");
            self.applier.tablet.mvcc().truncated(pending.entry.timestamp);
            self.truncated_term = self.truncated_term.max(Some(pending.entry.op.term));
            let message =
                format!("operation {}: replaced by another leader's; send it again", pending.entry.op);
            pending.answer(Err(Error::aborted(message)), out);
        }
        self.requests.truncated(after);
        let prepared_writes = self.pending.iter().filter_map(|pending| pending.prepared.as_ref());
        self.auto_increment = prepared_writes
            .map(|prepared| prepared.auto_increment)
            .fold(self.applier.auto_increment, i64::max);
        out.log.push(LogWrite::Truncate(after));
        out.progress = true;
    }

    /// Applies committed operations.
    fn apply_committed(&mut self, out: &mut ReplicaEffects) {
        let committed = self.raft.committed().index;
        while self.failed.is_none() && self.pending.front().is_some_and(|p| p.entry.op.index <= committed) {
            let mut pending = self.pending.pop_front().expect("the end was checked");
            match self.applier.apply(&pending.entry, pending.prepared.take(), &mut out.notes) {
                Ok(applied) => self.applied(pending, applied, out),
                Err(error) => {
                    pending.answer(Err(error.clone()), out);
                    self.fail(error, out);
                }
            }
        }
    }

    fn applied(&mut self, mut pending: PendingOp, applied: CommitPayload, out: &mut ReplicaEffects) {
        let (op, timestamp) = (pending.entry.op, pending.entry.timestamp);
        self.applier.tablet.mvcc().applied(timestamp);
        // A returned operation keeps its term, and others may return after it. None can follow one of a later term.
        if self.truncated_term.take_if(|truncated| op.term > *truncated).is_some() {
            self.applier.tablet.mvcc().truncation_is_final();
        }
        self.applier.advance_to(op, timestamp);
        out.log.push(LogWrite::Append(LogEntry::Commit(CommitEntry { op, payload: applied.encode() })));
        out.progress = true;
        let result = applied.into_result();
        if let Some(request) = pending.request.take() {
            if let Ok(result) = &result {
                out.completed.push((request.clone(), timestamp, result.clone()));
            }
            self.requests.applied(&request, (op, timestamp), &result);
        }
        pending.answer(result, out);
    }
}
