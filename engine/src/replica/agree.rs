//! What the group agrees on, carried out: the log follows the leader's, and what is committed is applied.

use super::payload::{self, Applied};
use super::requests::Answer;
use super::types::{Effects, LogWrite, RequestId};
use super::{Pending, Replica};
use crate::error::{Error, Result};
use crate::note::Note;
use crate::raft::message::{Clock, LogChange};
use crate::raft::{self, Output, Raft};
use crate::tablet::mvcc::{Leads, Mvcc, Promise};
use crate::time::{Now, Timestamp};
use crate::wal::{Commit, Entry, Replicate};

/// The core's clock: the server's, and the tablet's operations in flight.
struct OpClock<'a> {
    mvcc: &'a Mvcc,
    assign: &'a mut dyn FnMut() -> Timestamp,
    /// Every timestamp given from here on is above it.
    passed: &'a mut Timestamp,
    /// What the server's clock has yet to be moved past.
    seen: &'a mut Timestamp,
}

impl Clock for OpClock<'_> {
    fn begin(&mut self) -> Timestamp {
        let (mut given, passed) = (Timestamp::MIN, *self.passed);
        let timestamp = self.mvcc.begin(&mut || {
            given = (self.assign)();
            given.max(passed.next())
        });
        if timestamp > given {
            self.pass(timestamp);
        }
        timestamp
    }

    fn take(&mut self) -> Timestamp {
        (self.assign)().max(self.mvcc.newest()).max(*self.passed)
    }

    fn pass(&mut self, seen: Timestamp) {
        *self.passed = seen.max(*self.passed);
        *self.seen = seen.max(*self.seen);
    }
}

impl Replica {
    /// Begins to take part in the group; once, before the first step.
    pub fn start(&mut self, now: Now, assign: &mut dyn FnMut() -> Timestamp, out: &mut Effects) {
        self.with_raft(assign, out, |raft, clock, agreed| raft.start(now, clock, agreed));
        self.settle(out);
        self.count_log();
    }

    /// Sends what was proposed since the last step or flush. Steps other than proposals do it themselves: call it once
    /// after several proposals, so that they travel together.
    pub fn flush(&mut self, now: Now, out: &mut Effects) {
        if self.failed.is_none() {
            self.raft.pump(now, &mut self.agreed);
            self.settle(out);
        }
    }

    /// A reader waits until every operation at or below `at` is applied and no more can come.
    pub(super) fn want_snapshot(
        &mut self,
        now: Now,
        at: Timestamp,
        assign: &mut dyn FnMut() -> Timestamp,
        out: &mut Effects,
    ) {
        self.with_raft(assign, out, |raft, clock, agreed| raft.want_safe_time(now, at, clock, agreed));
        self.settle(out);
    }

    /// Lets the group's core have an event, and carries out what comes of it.
    pub(super) fn agree(
        &mut self,
        now: Now,
        event: raft::Event,
        assign: &mut dyn FnMut() -> Timestamp,
        out: &mut Effects,
    ) {
        self.with_raft(assign, out, |raft, clock, agreed| raft.step(now, event, clock, agreed));
        self.settle(out);
    }

    /// Carries out what a step of the core came to.
    fn settle(&mut self, out: &mut Effects) {
        self.take_agreed(out);
        self.apply_committed(out);
        self.promise(out);
    }

    /// Says up to where snapshots may be served.
    fn promise(&mut self, out: &mut Effects) {
        let promise = match self.raft.decides_alone() {
            true => Promise::Clock,
            false => Promise::Until(self.raft.safe_time()),
        };
        let mvcc = self.applier.tablet.mvcc();
        out.progress |= mvcc.promise(promise);
        let (term, caught_up) = (self.raft.term(), self.raft.is_caught_up_leader());
        mvcc.set_leads(self.raft.is_leader().then_some(Leads { term, caught_up }));
    }

    pub(super) fn with_raft<R>(
        &mut self,
        assign: &mut dyn FnMut() -> Timestamp,
        out: &mut Effects,
        work: impl FnOnce(&mut Raft, &mut dyn Clock, &mut Output) -> R,
    ) -> R {
        let (mvcc, passed) = (self.applier.tablet.mvcc(), &mut self.passed);
        let mut clock = OpClock { mvcc, assign, passed, seen: &mut out.seen };
        work(&mut self.raft, &mut clock, &mut self.agreed)
    }

    /// Does to the tablet's operations what the core did to the log, and passes the rest on.
    pub(super) fn take_agreed(&mut self, out: &mut Effects) {
        let mut changes = std::mem::take(&mut self.agreed.log);
        for change in changes.drain(..) {
            match change {
                // What another leader sent cannot follow what is here; nothing more is to be written.
                _ if self.failed.is_some() => {}
                LogChange::Truncate { after } => self.truncate(after, out),
                LogChange::Append { entry, own } => self.append(entry, own, out),
            }
        }
        let agreed = &mut self.agreed;
        agreed.log = changes;
        out.meta = agreed.meta.take().or(out.meta.take());
        out.messages.append(&mut agreed.messages);
        out.replies.append(&mut agreed.replies);
        out.read_log.append(&mut agreed.read_log);
        out.notes.extend(agreed.notes.drain(..).map(Note::Raft));
        out.status_changed |= std::mem::take(&mut agreed.status_changed);
        let marks = std::mem::take(&mut agreed.marks);
        marks.into_iter().for_each(|mark| self.tablet().config().watch.mark(mark));
    }

    fn append(&mut self, entry: Replicate, own: bool, out: &mut Effects) {
        let request = match own {
            true => None,
            false => match self.begin_foreign(&entry) {
                Ok(request) => request,
                Err(error) => return self.fail(error, out),
            },
        };
        self.pending.push_back(Pending::new(entry.clone(), request));
        out.log.push(LogWrite::Append(Entry::Replicate(entry)));
    }

    /// An operation that a leader or the log brought begins; gives the request it came from.
    pub(super) fn begin_foreign(&mut self, entry: &Replicate) -> Result<Option<RequestId>> {
        let Replicate { op, timestamp, kind, payload } = entry;
        if !self.applier.tablet.mvcc().begin_at(*timestamp) {
            let what = format!("operation {op} at {timestamp} is not newer than the one before it");
            return Err(Error::corrupt(what));
        }
        let request = payload::request_of(*kind, payload);
        if let Some(request) = &request {
            self.requests.appended(request, op.index);
        }
        Ok(request)
    }

    /// Forgets operations that another leader's log has not.
    fn truncate(&mut self, after: u64, out: &mut Effects) {
        while self.pending.back().is_some_and(|pending| pending.entry.op.index > after) {
            let pending = self.pending.pop_back().expect("it was just looked at");
            self.applier.tablet.mvcc().aborted(pending.entry.timestamp);
            let what = format!("operation {} gave way to another leader's; send it again", pending.entry.op);
            pending.answer(Err(Error::aborted(what)), out);
        }
        self.requests.truncated(after);
        let numbers = self.pending.iter().filter_map(|pending| pending.prepared.as_ref());
        self.auto_increment =
            numbers.map(|prepared| prepared.auto_increment).fold(self.applier.auto_increment, i64::max);
        out.log.push(LogWrite::Truncate(after));
        out.progress = true;
    }

    /// Applies what the group has committed.
    fn apply_committed(&mut self, out: &mut Effects) {
        let committed = self.raft.committed().index;
        while self.failed.is_none() && self.pending.front().is_some_and(|p| p.entry.op.index <= committed) {
            let mut pending = self.pending.pop_front().expect("it was just looked at");
            match self.applier.apply(&pending.entry, pending.prepared.take(), &mut out.notes) {
                Ok(applied) => self.applied(pending, applied, out),
                Err(error) => {
                    pending.answer(Err(error.clone()), out);
                    self.fail(error, out);
                }
            }
        }
    }

    fn applied(&mut self, mut pending: Pending, applied: Applied, out: &mut Effects) {
        let (op, timestamp) = (pending.entry.op, pending.entry.timestamp);
        self.applier.tablet.mvcc().applied(timestamp);
        self.applier.passed(op, timestamp);
        out.log.push(LogWrite::Append(Entry::Commit(Commit { op, payload: applied.encode() })));
        out.progress = true;
        let result = applied.into_result();
        if let Some(request) = pending.request.take() {
            if let Ok(result) = &result {
                out.completed.push((request.clone(), timestamp, result.clone()));
            }
            self.requests.applied(&request, Answer { op, timestamp, result: result.clone() });
        }
        pending.answer(result, out);
    }
}
