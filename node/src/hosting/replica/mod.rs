//! A running replica: one task, the event loop, owns the [`Replica`]; a [`ReplicaHandle`] sends it commands.
//!
//! ```text
//!   write, alter ──▶ inbox ──▶ Replica::step ──▶ log ──▶ Persisted ──┐    scans read the Tablet
//!   other servers ──▶  ▲            ├──▶ peers ──▶ other servers      │    without the loop
//!   deadlines ───────▶ │            ├──▶ consensus metadata ──▶ stored┤
//!                      │            └──▶ replies                      │
//!                      └──────────────────────────────────────────────┘
//! ```
//!
//! - One turn takes all commands from the inbox, so that the log is written and synced for many operations at once.
//! - While the replica is idle, a small command gets its turn on the task of its caller (`visits.rs`).
//! - A storage error fails the replica: all waiting and later callers get the error. The process continues with its
//!   other tablets.
//!
//! *Not here:* the replica's logic (`engine::replica`), the turns (`event_loop.rs`, `visits.rs`), hibernation
//! (`hibernation.rs`), the commands (`shared.rs`), the steps of calls (`op_steps.rs`), what the log must keep
//! (`log_anchors.rs`), damaged files (`damage.rs`).

mod damage;
mod event_loop;
mod hibernation;
mod log_anchors;
mod op_steps;
mod shared;
mod visits;

use engine::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use engine::error::{Error, Result};
use engine::ids::{OpId, PeerId, Term};
use engine::memory::Reservation;
use engine::raft::interface::{UpdateRequest, UpdateResponse, VoteRequest, VoteResponse};
use engine::raft::{self, ConfigChange, RaftReply, RaftStatus, Role};
use engine::replica::{Op, Replica, ReplicaEffects, RequestId};
use engine::tablet::Tablet;
use engine::time::{Instant, Timestamp};
use engine::wal::Wal;
use tokio::sync::{Notify, mpsc, oneshot};

use super::log_writer;
use super::replica_metrics::ReplicaMetrics;
use crate::server_clock::ServerClock;
use nyala_common::env::Env;
use nyala_common::rpc::call_steps::CallSteps;

pub use damage::is_damage;
use event_loop::ReplicaLoop;
use log_anchors::LogAnchors;
pub use log_anchors::{LogAnchorGuard, LogNeeds};
use shared::{Command, Shared, WithReplica, stopped};
pub use shared::{CommittedOp, OnCompleted, ReplicaConfig};
use visits::LoopSlot;

/// Handle of a running replica; cheap to clone.
#[derive(Clone)]
pub struct ReplicaHandle {
    shared: Arc<Shared>,
    inbox: mpsc::UnboundedSender<Command>,
    slot: Arc<LoopSlot>,
}

/// A leader's message that the replica has received.
pub enum PendingUpdate {
    /// The reply of a hibernated replica to a message that changes nothing.
    Answered(UpdateResponse),
    Asked {
        replica: ReplicaHandle,
        reply_receiver: oneshot::Receiver<RaftReply>,
    },
}

impl PendingUpdate {
    pub async fn answer(self) -> Result<UpdateResponse> {
        let (replica, reply_receiver) = match self {
            PendingUpdate::Answered(response) => return Ok(response),
            PendingUpdate::Asked { replica, reply_receiver } => (replica, reply_receiver),
        };
        match reply_receiver.await.map_err(|_| replica.stopped_error())? {
            RaftReply::Update(response) => Ok(response),
            other => Err(unexpected_reply(&other)),
        }
    }
}

impl ReplicaHandle {
    /// Runs an opened replica until [`ReplicaHandle::stop`]. A replica that is the only voter leads when this returns.
    pub fn start(
        env: &Env,
        clock: &ServerClock,
        mut replica: Replica,
        wal: Wal,
        config: ReplicaConfig,
    ) -> Self {
        let (inbox, commands) = mpsc::unbounded_channel();
        let tablet = replica.tablet().clone();
        // A timestamp in the data must not be issued again, even if the wall clock was set back meanwhile.
        clock.pass(tablet.mvcc().newest());
        let mut effects = ReplicaEffects::default();
        replica.start(env.now(), &mut || clock.now(), &mut effects);
        let shared = Arc::new(Shared {
            env: env.clone(),
            clock: clock.clone(),
            tablet,
            me: replica.me(),
            config,
            pending_bytes: AtomicUsize::new(0),
            failure: Mutex::new(None),
            stopping: AtomicBool::new(false),
            job_lock: tokio::sync::Mutex::default(),
            progress: Notify::new(),
            status: Mutex::new(Arc::new(replica.status(env.now()))),
            status_changed: Notify::new(),
            damage_checks: AtomicUsize::new(0),
            hibernation: hibernation::HibernationSlot::default(),
            log_sizes: Arc::default(),
            log_anchors: Arc::default(),
            consensus_meta_bytes: AtomicU64::new(replica.consensus_meta().encode().len() as u64),
            metrics: Arc::default(),
        });
        shared.log_sizes.update(&wal);
        shared.metrics.opened(env.now().mono);
        let slot = Arc::new(LoopSlot::default());
        let event_sender = visits::event_sender(&slot, &inbox);
        let state = ReplicaLoop::new(shared.clone(), (replica, effects), wal, event_sender, commands);
        env.spawn("replica", visits::run(slot.clone(), Box::new(state)));
        ReplicaHandle { shared, inbox, slot }
    }

    pub fn tablet(&self) -> &Arc<Tablet> {
        &self.shared.tablet
    }

    /// Returns the counts and times of this replica.
    pub fn metrics(&self) -> &ReplicaMetrics {
        &self.shared.metrics
    }

    /// Returns the error that failed this replica, if any.
    pub fn failure(&self) -> Option<Error> {
        self.shared.failure()
    }

    /// Returns the bytes of operations in flight.
    pub fn pending_bytes(&self) -> usize {
        self.shared.pending_bytes.load(Ordering::Relaxed)
    }

    /// Returns true after [`ReplicaHandle::stop`].
    pub fn is_stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::Relaxed)
    }

    /// Returns the status as of the last change of role, members or their health. Its operation numbers are as old;
    /// [`ReplicaHandle::status_now`] has the current ones.
    pub fn status(&self) -> Arc<RaftStatus> {
        self.shared.status()
    }

    pub fn is_leader(&self) -> bool {
        self.shared.status().role == Role::Leader
    }

    /// Returns true if the replica hibernates: events that report nothing new do not wake it.
    pub fn is_hibernating(&self) -> bool {
        self.shared.hibernation.is_hibernating()
    }

    /// Returns the current status.
    pub async fn status_now(&self) -> Result<RaftStatus> {
        let now = self.shared.env.now();
        self.run_on_loop(move |replica, _| replica.status(now)).await
    }

    /// Waits until `met` holds for the status, or until `deadline`. Returns the last status.
    pub async fn wait_status(&self, deadline: Instant, met: impl Fn(&RaftStatus) -> bool) -> Arc<RaftStatus> {
        let shared = &self.shared;
        loop {
            let status_changed = shared.status_changed.notified();
            tokio::pin!(status_changed);
            status_changed.as_mut().enable();
            let status = shared.status();
            let left = deadline.since(shared.env.now().mono);
            if met(&status) || left.is_zero() || self.inbox.is_closed() || shared.failure().is_some() {
                return status;
            }
            shared.env.timeout(left, status_changed).await;
        }
    }

    /// Returns the number of messages that the hibernated replica has not processed.
    #[cfg(test)]
    pub fn deferred_message_count(&self) -> usize {
        self.shared.hibernation.queued_event_count()
    }

    /// Returns true if the loop has ended or is failing.
    pub fn is_stopped(&self) -> bool {
        self.inbox.is_closed() || self.shared.failure().is_some()
    }

    /// Returns the last logged operation, by a query to the loop.
    pub async fn last_op(&self) -> Result<OpId> {
        self.run_on_loop(|replica, _| replica.last_op()).await
    }

    /// Returns the first operations that the users of the log need, by a query to the loop.
    pub async fn log_needs(&self) -> Result<LogNeeds> {
        let (now, anchors) = (self.shared.env.now(), self.shared.log_anchors.clone());
        self.run_on_loop(move |replica, _| LogNeeds {
            keep_from: replica.log_keep_from(),
            wanted_from: replica.log_wanted_from(),
            anchored_from: anchors.keep_from(now.mono, || replica.status(now).peers),
        })
        .await
    }

    /// Returns the log anchors of copies from this replica.
    pub fn log_anchors(&self) -> &Arc<LogAnchors> {
        &self.shared.log_anchors
    }

    /// Returns the bytes of the log.
    pub fn log_bytes(&self) -> u64 {
        self.shared.log_sizes.written()
    }

    /// Returns the bytes of the tablet, as masters, planners and tools see them: files of rowsets, superblock,
    /// consensus metadata and log.
    ///
    /// Unflushed rows are in memory and in the log, which is compressed: the larger one counts. Otherwise a planner
    /// takes a freshly loaded table for an empty one.
    pub fn disk_size(&self) -> u64 {
        let stats = self.shared.tablet.stats();
        let consensus_meta = self.shared.consensus_meta_bytes.load(Ordering::Relaxed);
        let recent = self.shared.log_sizes.on_disk().max(stats.memory_bytes);
        stats.disk_bytes + stats.superblock_bytes + consensus_meta + recent
    }

    /// Returns `Invalid` if the operation is larger than other servers accept.
    pub fn check_fits(&self, op: &Op) -> Result<()> {
        let most = self.shared.config.frame_bytes_max.saturating_sub(FRAME_OVERHEAD);
        match op_bytes(op) {
            bytes if bytes <= most => Ok(()),
            bytes => Err(Error::invalid(format!(
                "an operation of {bytes} bytes is too large to be replicated: at most {most} fit a message of \
                 rpc_max_message_size; write fewer rows at once"
            ))),
        }
    }

    /// Proposes an operation and waits until it is committed and applied, and durable if the server syncs its logs.
    ///
    /// Errors:
    /// - `Invalid` if the operation is too large.
    /// - `Throttled` if too many bytes are in flight.
    /// - `NotLeader` if another replica leads.
    /// - `Aborted` if a later leader truncated the operation.
    /// - The replica's own error if it failed.
    pub async fn propose(&self, op: Op, request: Option<RequestId>) -> Result<CommittedOp> {
        self.propose_when(op, request, None, (None, None)).await
    }

    /// Proposes the operation of a call, with a reservation for the memory that it will use.
    pub async fn propose_within(
        &self,
        op: Op,
        request: Option<RequestId>,
        reservation: Reservation,
        steps: &Arc<CallSteps>,
    ) -> Result<CommittedOp> {
        self.propose_when(op, request, None, (Some(reservation), Some(steps.clone()))).await
    }

    /// Proposes an operation in `term` only: `NotLeader` if the replica leads in another one by now.
    pub async fn propose_in(&self, term: Term, op: Op, request: Option<RequestId>) -> Result<CommittedOp> {
        self.propose_when(op, request, Some(term), (None, None)).await
    }

    async fn propose_when(
        &self,
        op: Op,
        request: Option<RequestId>,
        term: Option<Term>,
        (reservation, steps): (Option<Reservation>, Option<Arc<CallSteps>>),
    ) -> Result<CommittedOp> {
        self.check_fits(&op)?;
        let _alters = matches!(op, Op::AlterSchema { .. }).then(|| self.shared.metrics.alter_began());
        let bytes = op_bytes(&op);
        let pending_before = self.shared.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
        let _owed = PendingBytesGuard { shared: &self.shared, bytes };
        if pending_before > self.shared.config.pending_bytes_max {
            return Err(Error::throttled(format!(
                "{pending_before} bytes of writes are pending for this tablet (limit {}); retry later",
                self.shared.config.pending_bytes_max
            )));
        }
        let (reply_sender, reply_receiver) = oneshot::channel();
        let command = Command::Propose { op, request, term, reservation, steps, bytes, reply_sender };
        self.post(command)?;
        reply_receiver.await.map_err(|_| self.stopped_error())?
    }

    /// Posts a leader's message to the replica, with a reservation for its operations and the steps of the call. The
    /// caller may wait for the reply later.
    pub fn begin_update(
        &self,
        request: UpdateRequest,
        reservation: Option<Reservation>,
        steps: Option<&Arc<CallSteps>>,
    ) -> Result<PendingUpdate> {
        let reported = request.committed.max(request.last().index);
        self.shared.metrics.leader_reported(reported, self.shared.env.now().mono);
        if let Some(response) = self.shared.hibernation.answer(&request, || self.shared.env.now()) {
            self.shared.env.observer.mark("replica: hibernated through a heartbeat");
            return Ok(PendingUpdate::Answered(response));
        }
        let bytes = request.entries.iter().map(|entry| entry.payload.len()).sum();
        let last = request.entries.last().map(|last| last.op.index);
        let (reservation, steps) = (last.zip(reservation), last.zip(steps.cloned()));
        let event = |ticket| raft::RaftEvent::Update { ticket, request };
        let reply_receiver = self.begin(bytes, reservation, steps, event)?;
        Ok(PendingUpdate::Asked { replica: self.clone(), reply_receiver })
    }

    /// Posts a candidate's vote request and waits for the reply.
    pub async fn vote(&self, request: VoteRequest) -> Result<VoteResponse> {
        match self.ask(0, |ticket| raft::RaftEvent::Vote { ticket, request }).await? {
            RaftReply::Vote(response) => Ok(response),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Changes the configuration and waits until the change is committed.
    pub async fn change_config(&self, change: ConfigChange) -> Result<()> {
        self.ask_config(|ticket| raft::RaftEvent::ChangeConfig { ticket, change }).await
    }

    /// Reduces the configuration to `voters` without a majority, and waits until that is in the log.
    pub async fn unsafe_config(&self, voters: Vec<PeerId>, caller: String) -> Result<()> {
        self.ask_config(|ticket| raft::RaftEvent::UnsafeConfig { ticket, voters, caller }).await
    }

    async fn ask_config(&self, event: impl FnOnce(u64) -> raft::RaftEvent + Send + 'static) -> Result<()> {
        match self.ask(0, event).await? {
            RaftReply::Config(result) => result,
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Steps down, in favour of `to` if given. `abrupt`: at once, without waiting for a target.
    pub async fn step_down(&self, to: Option<PeerId>, abrupt: bool) -> Result<()> {
        match self.ask(0, move |ticket| raft::RaftEvent::StepDown { ticket, to, abrupt }).await? {
            RaftReply::StepDown(result) => result,
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Starts a leadership transfer. Returns false if this replica does not lead or no voter can take over.
    pub async fn begin_transfer(&self) -> bool {
        let Ok(status) = self.status_now().await else { return false };
        let others = status.committed_config.voter_count() > 1 && status.is_quorum_active;
        let leads = status.role == Role::Leader && others;
        leads && (status.transferring || self.step_down(None, false).await.is_ok())
    }

    /// Waits until this replica does not lead, or until `deadline`.
    pub async fn wait_transferred(&self, deadline: Instant) {
        self.wait_status(deadline, |status| status.role != Role::Leader).await;
    }

    /// Starts an election.
    pub fn elect(&self, ignore_live_leader: bool) {
        // A loop that ended holds no election.
        let _ended = self.inbox.send(Command::Event(raft::RaftEvent::Elect { ignore_live_leader }));
    }

    async fn ask(
        &self,
        bytes: usize,
        event: impl FnOnce(u64) -> raft::RaftEvent + Send + 'static,
    ) -> Result<RaftReply> {
        self.begin(bytes, None, None, event)?.await.map_err(|_| self.stopped_error())
    }

    fn begin(
        &self,
        bytes: usize,
        reservation: Option<(u64, Reservation)>,
        steps: Option<(u64, Arc<CallSteps>)>,
        event: impl FnOnce(u64) -> raft::RaftEvent + Send + 'static,
    ) -> Result<oneshot::Receiver<RaftReply>> {
        let (reply_sender, reply_receiver) = oneshot::channel();
        let command = Command::Ask { event: Box::new(event), bytes, reply_sender, reservation, steps };
        self.post(command)?;
        Ok(reply_receiver)
    }

    /// Waits until every operation below `before` is applied and no more can follow. The caller has moved the clock
    /// past `before`. `Throttled` at the deadline. Spec: SafeTime.tla Serve.
    pub async fn wait_applied_before(&self, before: Timestamp, deadline: Instant) -> Result<()> {
        let mvcc = self.shared.tablet.mvcc();
        let met = || mvcc.all_applied_before(before);
        let _reader = self.shared.hibernation.reader();
        if !met() {
            // A loop that ended cannot advance safe time; the wait ends at its deadline.
            let _ended = self.post(Command::WantSnapshot(before));
        }
        self.wait(met, deadline, || format!("the tablet did not reach the timestamp {before} in time")).await
    }

    /// Waits until a leader has applied everything that earlier leaders may have acknowledged. `Throttled` at the
    /// deadline.
    pub async fn wait_caught_up(&self, deadline: Instant) -> Result<()> {
        let met = || self.shared.tablet.mvcc().is_caught_up();
        self.wait(met, deadline, || "the new leader of the tablet did not catch up in time".to_string()).await
    }

    async fn wait(
        &self,
        met: impl Fn() -> bool,
        deadline: Instant,
        describe: impl Fn() -> String,
    ) -> Result<()> {
        let shared = &self.shared;
        loop {
            let progress = shared.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            if met() {
                return Ok(());
            }
            if let Some(error) = shared.failure() {
                return Err(error);
            }
            let now = shared.env.now().mono;
            if now >= deadline || shared.env.timeout(deadline.since(now), progress).await.is_none() {
                return Err(Error::throttled(describe()));
            }
        }
    }

    /// Runs `work` with the replica between two turns, on a thread that may block.
    pub async fn run_on_loop<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Replica, &mut ReplicaEffects) -> R + Send + 'static,
    ) -> Result<R> {
        let (reply_sender, reply_receiver) = oneshot::channel();
        let work: WithReplica =
            Box::new(move |replica, effects| drop(reply_sender.send(work(replica, effects))));
        self.inbox.send(Command::With(work)).map_err(|_| self.stopped_error())?;
        reply_receiver.await.map_err(|_| self.stopped_error())
    }

    /// Makes durable all applied operations and their commit entries, then runs `work` with the log.
    pub async fn run_on_wal<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Wal) -> R + Send + 'static,
    ) -> Result<R> {
        let (reply_sender, reply_receiver) = oneshot::channel();
        let work: log_writer::WalFn = Box::new(move |wal| {
            let result = wal.sync().map(|()| work(wal));
            drop(reply_sender.send(result));
        });
        self.inbox.send(Command::WithWal(work)).map_err(|_| self.stopped_error())?;
        let result = reply_receiver.await.map_err(|_| self.stopped_error())?;
        result.inspect_err(|error| self.fail(error))
    }

    /// Fails the replica: all waiting and later callers get `error`.
    pub fn fail(&self, error: &Error) {
        self.shared.fail(error);
        let _ended = self.inbox.send(Command::Failed);
    }

    /// Processes a command on this task if the replica is idle and the command is small, else sends it to the loop.
    fn post(&self, command: Command) -> Result<()> {
        match visits::visit(&self.slot, command) {
            Some(command) => self.inbox.send(command).map_err(|_| self.stopped_error()),
            None => Ok(()),
        }
    }

    /// Returns the error for a command that got no reply.
    pub(crate) fn stopped_error(&self) -> Error {
        self.failure().unwrap_or_else(stopped)
    }

    /// Finishes the proposals in flight, closes the log in order, and returns the replica. `None` if another caller has
    /// stopped it. When this returns, no job of the replica writes any more: its directory may be removed or opened.
    pub async fn stop(&self) -> Option<Replica> {
        self.shared.stopping.store(true, Ordering::Relaxed);
        let (reply_sender, reply_receiver) = oneshot::channel();
        let stopped = match self.inbox.send(Command::Stop(reply_sender)) {
            Ok(()) => reply_receiver.await.ok(),
            Err(_) => None,
        };
        drop(self.lock_job().await);
        stopped
    }

    /// Waits until no maintenance job of the replica runs, and keeps others from running.
    pub async fn lock_job(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.shared.job_lock.lock().await
    }
}

fn unexpected_reply(reply: &RaftReply) -> Error {
    Error::invalid(format!("the replica returned an unexpected reply: {reply:?}"))
}

/// Upper limit of a message's bytes besides the rows of its one operation: columns, ids, headers.
const FRAME_OVERHEAD: usize = 64 << 10;

/// Returns the bytes by which an operation counts as pending.
fn op_bytes(op: &Op) -> usize {
    match op {
        Op::Write(write) => write.rows.len() + write.indirect.len(),
        _ => 0,
    }
}

/// Pending bytes of a proposal, released when its future ends or is dropped.
struct PendingBytesGuard<'a> {
    shared: &'a Shared,
    bytes: usize,
}

impl Drop for PendingBytesGuard<'_> {
    fn drop(&mut self) {
        self.shared.pending_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
