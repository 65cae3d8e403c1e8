//! A replica: a tablet and its log, one of a group that agrees on them, driven one event at a time.
//!
//! ```text
//!   Propose ─► decode, timestamp, OpId ─► log: Replicate,  messages: Update      (memory only)
//!                                          │ the caller's log task appends and syncs; followers do the same
//!   Persisted, Updated ◄───────────────────┘
//!      └─► a majority has it ─► apply to the tablet ─► done: answer,  log: Commit
//!
//!   Update (a follower) ─► log: Truncate, Replicate;   committed ─► apply ─► completed: answer,  log: Commit
//! ```
//!
//! - A step never touches the log itself and never waits: the caller owns the [`Wal`](crate::wal::Wal) and tells
//!   when operations are durable. Only reading flushed rows and replacing the superblock reach a disk from here.
//! - Operations are applied in the order of the log, as soon as the group has committed them, even those that are not
//!   durable here yet. A superblock speaks only of what is, because the log is synced before it is stored.
//! - An operation is in flight (see [`Mvcc`](crate::tablet::mvcc::Mvcc)) from the moment it is in the log, on every
//!   replica, until it is applied there or another leader's log takes its place.
//! - A replica whose disk or log fails is [`Replica::failure`]: it answers everything with that error from then on.
//!
//! Long work (flushes, compactions) is a [`Job`]: see `job.rs`.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::disk::Disk;
use crate::error::Error;
use crate::ids::OpId;
use crate::memory::Held;
use crate::note::Note;
use crate::raft::message::{UpdateErrorKind, UpdateResponse, VoteError, VoteErrorKind, VoteResponse};
use crate::raft::{self, Raft, Reply, Status};
use crate::tablet::Tablet;
use crate::tablet::meta::TabletMeta;
use crate::tablet::prepare::Prepared;
use crate::time::{Instant, Now, Timestamp};
use crate::wal::Replicate;

mod agree;
mod applier;
mod bootstrap;
pub mod cmeta;
pub mod copy;
mod job;
pub mod payload;
pub mod policy;
mod propose;
mod requests;
pub mod tombstone;
mod types;

pub use bootstrap::{BootstrapReport, GroupSetup, wal_dir};
pub use job::{Job, JobKind, JobStep};
pub use payload::writes_of;
pub use types::{Done, Effects, Event, LogWrite, Op, OpResult, RequestId, WriteOp, write_log};

use applier::Applier;
use requests::Requests;

/// A tablet, what of its log is not applied yet, its part in its group, and what its superblock says.
pub struct Replica {
    applier: Applier,
    data: Arc<dyn Disk>,
    job_running: bool,
    raft: Raft,
    /// What the step at hand makes of the group's business; empty between steps.
    agreed: raft::Output,
    /// What is in the log but not applied, in its order.
    pending: VecDeque<Pending>,
    requests: Requests,
    /// The last number that this replica gave to the auto-incrementing column as a leader; what it applied of others'
    /// the applier knows.
    auto_increment: i64,
    /// Timestamps given from here on are above it.
    passed: Timestamp,
    failed: Option<Error>,
    /// Entries of the log that are in memory.
    log_held: Held,
}

/// An operation that is in the log or on its way there.
struct Pending {
    entry: Replicate,
    /// The request it came from, if it was not proposed here in this life: only then may it come again.
    request: Option<RequestId>,
    /// Who wants to hear of it; nobody if another leader, or an earlier life, made it and no client came back.
    tickets: Tickets,
    /// Writes proposed here: decoded under the schema of the moment.
    prepared: Option<Prepared>,
    /// The decoded write's bytes.
    held: Held,
}

/// Tickets of one operation: nearly always at most one.
#[derive(Debug, Default)]
struct Tickets {
    first: Option<u64>,
    others: Vec<u64>,
}

impl Tickets {
    fn add(&mut self, ticket: u64) {
        match self.first {
            None => self.first = Some(ticket),
            Some(_) => self.others.push(ticket),
        }
    }

    fn iter(&self) -> impl Iterator<Item = u64> {
        self.first.into_iter().chain(self.others.iter().copied())
    }
}

impl Replica {
    /// The tablet, for reading.
    pub fn tablet(&self) -> &Arc<Tablet> {
        &self.applier.tablet
    }

    /// The superblock as it was stored last.
    pub fn meta(&self) -> &TabletMeta {
        &self.applier.meta
    }

    /// The disk of its superblock and data.
    pub fn data_disk(&self) -> &Arc<dyn Disk> {
        &self.data
    }

    /// The last operation given to the log.
    pub fn last_op(&self) -> OpId {
        self.raft.last()
    }

    pub fn last_applied(&self) -> OpId {
        self.applier.last_applied
    }

    /// Why this replica does nothing any more.
    pub fn failure(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// The smallest index that a restart needs from the log.
    pub fn log_keep_from(&self) -> u64 {
        self.applier.meta.replay_from
    }

    /// The index before the smallest that a member of the group has not got yet: a log that still holds both spares
    /// that member a copy of the tablet.
    pub fn log_wanted_from(&self) -> u64 {
        self.raft.log_keep_from()
    }

    /// Where this replica stands in its group.
    pub fn status(&self, now: Now) -> Status {
        self.raft.status(now)
    }

    /// When a [`raft::Event::Tick`] is due.
    pub fn deadline(&self) -> Instant {
        match self.failed {
            None => self.raft.deadline(),
            Some(_) => Instant(u64::MAX),
        }
    }

    pub fn is_leader(&self) -> bool {
        self.raft.is_leader()
    }

    /// What this replica need not be woken for until its next step.
    pub fn rest(&self) -> Option<raft::Rest> {
        let settled = self.failed.is_none() && self.pending.is_empty();
        settled.then(|| self.raft.rest()).flatten()
    }

    /// Takes one event. `assign` gives a timestamp that was never given before: greater than every one that this
    /// server has given or seen.
    pub fn step(
        &mut self,
        now: Now,
        event: impl Into<Event>,
        assign: &mut dyn FnMut() -> Timestamp,
        out: &mut Effects,
    ) {
        match event.into() {
            Event::Propose { ticket, op, request } => self.propose((ticket, op, request), assign, out),
            Event::LogFailed(error) | Event::MetaFailed(error) => self.fail(error, out),
            Event::WantSnapshot { .. } if self.failed.is_some() => {}
            Event::WantSnapshot { at } => self.want_snapshot(now, at, assign, out),
            Event::Raft(event) if self.failed.is_some() => self.refuse(event, out),
            Event::Raft(event) => self.agree(now, event, assign, out),
        }
        self.count_log();
    }

    /// Tells how much of the log is in memory.
    fn count_log(&self) {
        self.log_held.set(self.raft.log_bytes() as u64, 0);
    }

    /// Ends the replica: everything pending and everything to come is answered with `error`.
    ///
    /// Spec: Raft.tla Fail.
    fn fail(&mut self, error: Error, out: &mut Effects) {
        if self.failed.is_none() {
            // What the step did before it failed comes first.
            self.raft.note_failure(&mut self.agreed);
            out.notes.extend(self.agreed.notes.drain(..).map(Note::Raft));
        }
        for pending in self.pending.drain(..) {
            pending.answer(Err(error.clone()), out);
        }
        self.failed.get_or_insert(error);
        (out.status_changed, out.progress) = (true, true);
    }

    /// What others hear of a replica that has failed. Its messages' answers are of no use any more.
    fn refuse(&self, event: raft::Event, out: &mut Effects) {
        let error = self.failed.clone().unwrap_or_else(|| Error::not_ready("the replica has not failed"));
        let (term, message) = (self.raft.term(), error.message.clone());
        let refused = match event {
            raft::Event::Update { ticket, request } => {
                let kind = UpdateErrorKind::TabletFailed;
                (ticket, Reply::Update(UpdateResponse::refusal(request.dest, term, kind, message)))
            }
            raft::Event::Vote { ticket, request } => {
                let error = Some(VoteError { kind: VoteErrorKind::Invalid, message });
                let response = VoteResponse { responder: request.dest, term, granted: false, error };
                (ticket, Reply::Vote(response))
            }
            raft::Event::ChangeConfig { ticket, .. } | raft::Event::UnsafeConfig { ticket, .. } => {
                (ticket, Reply::Config(Err(error)))
            }
            raft::Event::StepDown { ticket, .. } => (ticket, Reply::StepDown(Err(error))),
            _ => return,
        };
        out.replies.push(refused);
    }
}

impl Pending {
    fn new(entry: Replicate, request: Option<RequestId>) -> Pending {
        let (tickets, held) = (Tickets::default(), Held::default());
        Pending { entry, request, tickets, prepared: None, held }
    }

    fn answer(&self, result: crate::error::Result<OpResult>, out: &mut Effects) {
        for ticket in self.tickets.iter() {
            let (op_id, timestamp) = (self.entry.op, self.entry.timestamp);
            out.done.push(Done { ticket, op_id, timestamp, result: result.clone() });
        }
    }
}
