//! A replica: a tablet and its log, member of a Raft group, driven one event at a time.
//!
//! ```text
//!   Propose ─► decode, timestamp, OpId ─► log: Replicate,  messages: Update      (memory only)
//!                                          │ the caller's log task appends and syncs; followers do the same
//!   Persisted, Updated ◄───────────────────┘
//!      └─► a majority has it ─► apply to the tablet ─► done: reply,  log: Commit
//!
//!   Update (a follower) ─► log: Truncate, Replicate;   committed ─► apply ─► completed: reply,  log: Commit
//! ```
//!
//! - A step never touches the log itself and never waits: the caller owns the [`Wal`](crate::wal::Wal) and tells when
//!   operations are durable. Only reads of flushed rows and superblock writes access a disk from here.
//! - Operations are applied in the order of the log, as soon as the group has committed them, even those that are not
//!   durable here yet. Order: the log is synced before a superblock is stored, so a superblock mentions only durable
//!   operations.
//! - An operation is in flight (see [`Mvcc`](crate::tablet::mvcc::Mvcc)) on every replica from its append to the log
//!   until it is applied there or truncated.
//! - A replica whose disk or log fails has a [`Replica::failure`]: it rejects every later event with that error.
//!
//! Background work (flushes, compactions) is a [`Job`]: see `job.rs`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::disk::Disk;
use crate::error::Error;
use crate::ids::{OpId, PeerId, Term};
use crate::memory::TrackedBytes;
use crate::note::Note;
use crate::raft::interface::{UpdateErrorKind, UpdateResponse, VoteError, VoteErrorKind, VoteResponse};
use crate::raft::{self, Raft, RaftReply, RaftStatus};
use crate::tablet::Tablet;
use crate::tablet::prepared_batch::PreparedBatch;
use crate::tablet::superblock::Superblock;
use crate::time::{ClockReading, Instant, Timestamp};
use crate::wal::ReplicateEntry;

mod applier;
mod bootstrap;
pub mod consensus_meta_store;
pub mod copy;
mod delta_jobs;
mod dirs;
mod file_check;
mod interface;
mod job;
mod job_start;
mod job_work;
pub mod log_payload;
pub mod maintenance_policy;
mod propose;
mod replication;
mod request_tracker;
mod rowset_jobs;
pub mod tombstone;

pub use bootstrap::{BootstrapReport, ReplicaSetup};
pub use dirs::wal_dir;
pub use file_check::{CheckStep, FileCheck, FileHome};
pub use interface::{
    LogWrite, Op, OpReply, OpResult, ReplicaEffects, ReplicaEvent, RequestId, WriteOp, write_log,
    write_log_from,
};
pub use job::{Job, JobKind, JobStep};
pub use log_payload::writes_of;

use applier::TabletApplier;
use request_tracker::RequestTracker;

/// A tablet, its unapplied operations, its Raft state, and its superblock.
pub struct Replica {
    applier: TabletApplier,
    data: Arc<dyn Disk>,
    job_running: bool,
    raft: Raft,
    /// Effects of the core in the current step; empty between steps.
    raft_effects: raft::RaftEffects,
    /// Operations in the log but not applied, in log order.
    pending: VecDeque<PendingOp>,
    requests: RequestTracker,
    /// The last auto-increment value that this replica assigned as a leader. The applier knows the values of applied
    /// operations.
    auto_increment: i64,
    /// Lower bound of timestamps assigned from here on.
    timestamp_floor: Timestamp,
    /// Highest term of the operations that were truncated from the log, until one of a later term is applied.
    truncated_term: Option<Term>,
    failed: Option<Error>,
    /// Tracked memory of log entries.
    log_memory: TrackedBytes,
}

/// An operation that is in the log or about to be appended.
struct PendingOp {
    entry: ReplicateEntry,
    /// The request of an operation that was not proposed here since the start: only such a request can be retried here.
    request: Option<RequestId>,
    /// Tickets that wait for the operation. Empty if another leader or an earlier run proposed it and no client has
    /// retried it.
    tickets: Tickets,
    /// Writes proposed here: rows decoded under the schema of that time.
    prepared: Option<PreparedBatch>,
    /// Tracked memory of the decoded write.
    tracked: TrackedBytes,
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
    pub fn meta(&self) -> &Superblock {
        &self.applier.meta
    }

    /// Term, vote and committed configuration, as they are or will be stored.
    pub fn consensus_meta(&self) -> &raft::ConsensusMeta {
        self.raft.meta()
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

    /// The error that ended this replica, if any.
    pub fn failure(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// Log anchor of a restart: the smallest index that it needs from the log.
    pub fn log_keep_from(&self) -> u64 {
        self.applier.meta.replay_from
    }

    /// Index before the first entry that a member of the group lacks. A log with both entries spares that member a
    /// tablet copy.
    pub fn log_wanted_from(&self) -> u64 {
        self.raft.log_keep_from()
    }

    /// Id of this replica in its group: that of its server.
    pub fn me(&self) -> PeerId {
        self.raft.me()
    }

    /// State of this replica in its group.
    pub fn status(&self, now: ClockReading) -> RaftStatus {
        self.raft.status(now)
    }

    /// Returns what the members of a group that this replica leads lack.
    pub fn backlog(&self) -> raft::ReplicationBacklog {
        self.raft.backlog()
    }

    /// Time at which a [`raft::RaftEvent::Tick`] is due.
    pub fn deadline(&self) -> Instant {
        match self.failed {
            None => self.raft.deadline(),
            Some(_) => Instant(u64::MAX),
        }
    }

    pub fn is_leader(&self) -> bool {
        self.raft.is_leader()
    }

    /// Changes the silence after which a member counts as failed, from the next tick on.
    pub fn set_follower_failed_after(&mut self, after: Duration) {
        self.raft.set_follower_failed_after(after);
    }

    /// The events that need not wake this replica until its next step.
    pub fn hibernation(&self) -> Option<raft::Hibernation> {
        let idle = self.failed.is_none() && self.pending.is_empty();
        idle.then(|| self.raft.hibernation()).flatten()
    }

    /// Processes one event. `assign` returns a new timestamp: greater than every one that this server has assigned or
    /// received.
    pub fn step(
        &mut self,
        now: ClockReading,
        event: impl Into<ReplicaEvent>,
        assign: &mut dyn FnMut() -> Timestamp,
        out: &mut ReplicaEffects,
    ) {
        match event.into() {
            ReplicaEvent::Propose { ticket, op, request } => self.propose((ticket, op, request), assign, out),
            ReplicaEvent::LogFailed(error) | ReplicaEvent::MetaFailed(error) => self.fail(error, out),
            ReplicaEvent::WantSnapshot { .. } if self.failed.is_some() => {}
            ReplicaEvent::WantSnapshot { at } => self.want_snapshot(now, at, assign, out),
            ReplicaEvent::Raft(event) if self.failed.is_some() => self.reject(event, out),
            ReplicaEvent::Raft(event) => self.process_raft_effects(now, event, assign, out),
        }
        self.count_log();
    }

    /// Updates the tracked memory of log entries.
    fn count_log(&self) {
        self.log_memory.set(self.raft.log_bytes() as u64, 0);
    }

    /// Fails the replica: all pending and later proposals and requests are rejected with `error`.
    ///
    /// Spec: Raft.tla Fail.
    fn fail(&mut self, error: Error, out: &mut ReplicaEffects) {
        if self.failed.is_none() {
            // Order: notes of the failing step precede the note of the failure.
            self.raft.note_failure(&mut self.raft_effects);
            out.notes.extend(self.raft_effects.notes.drain(..).map(Note::Raft));
        }
        for pending in self.pending.drain(..) {
            pending.answer(Err(error.clone()), out);
        }
        self.failed.get_or_insert(error);
        (out.status_changed, out.progress) = (true, true);
    }

    /// Rejects an event of a failed replica. Responses to its own messages are dropped.
    fn reject(&self, event: raft::RaftEvent, out: &mut ReplicaEffects) {
        let error = self.failed.clone().unwrap_or_else(|| Error::not_ready("the replica has not failed"));
        let (term, message) = (self.raft.term(), error.message.clone());
        let rejected = match event {
            raft::RaftEvent::Update { ticket, request } => {
                let kind = UpdateErrorKind::TabletFailed;
                (ticket, RaftReply::Update(UpdateResponse::refusal(request.dest, term, kind, message)))
            }
            raft::RaftEvent::Vote { ticket, request } => {
                let error = Some(VoteError { kind: VoteErrorKind::Invalid, message });
                let response = VoteResponse { responder: request.dest, term, granted: false, error };
                (ticket, RaftReply::Vote(response))
            }
            raft::RaftEvent::ChangeConfig { ticket, .. } | raft::RaftEvent::UnsafeConfig { ticket, .. } => {
                (ticket, RaftReply::Config(Err(error)))
            }
            raft::RaftEvent::StepDown { ticket, .. } => (ticket, RaftReply::StepDown(Err(error))),
            _ => return,
        };
        out.replies.push(rejected);
    }
}

impl PendingOp {
    fn new(entry: ReplicateEntry, request: Option<RequestId>) -> PendingOp {
        let (tickets, tracked) = (Tickets::default(), TrackedBytes::default());
        PendingOp { entry, request, tickets, prepared: None, tracked }
    }

    fn answer(&self, result: crate::error::Result<OpResult>, out: &mut ReplicaEffects) {
        for ticket in self.tickets.iter() {
            let (op_id, timestamp) = (self.entry.op, self.entry.timestamp);
            out.done.push(OpReply { ticket, op_id, timestamp, result: result.clone() });
        }
    }
}
