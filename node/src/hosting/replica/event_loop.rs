//! A turn of the event loop: it steps the replica through all waiting commands, then sends the effects.
//!
//! The outputs do not wait for each other: the replica holds back messages until the entries or metadata they depend on
//! are durable. A separate task stores consensus metadata, so that a slow disk delays the votes and nothing else.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::error::{Error, Result};
use engine::ids::{OpId, Term};
use engine::memory::Reservation;
use engine::note::Note;
use engine::raft::{self, ConsensusMeta, RaftReply, Role};
use engine::replica::{Op, Replica, ReplicaEffects, ReplicaEvent, RequestId, write_log_from};
use engine::time::{ClockReading, Instant, Timestamp};
use engine::wal::Wal;
use tokio::sync::{mpsc, oneshot};

use super::op_steps::OpSteps;
use super::shared::{Command, CommittedOp, EventSender, MakeEvent, ReplySender, Shared, other_term, stopped};
use crate::hosting::log_writer::{self, FullDeviceRetry, GroupTimes, LogLoad, LogRequest, LogWriter};
use crate::hosting::raft_transport::RaftEventSink;
use nyala_common::rpc::call_steps::CallSteps;

/// Largest number of commands in one turn.
pub(super) const TURN_MAX: usize = 1024;
/// Bytes of operations above which a turn runs on a thread that may block.
const BRIEF_TURN_BYTES: usize = 64 << 10;

/// Ratio of a follower's tick interval to a leader's.
const FOLLOWER_TICK_DIVISOR: u32 = 10;

/// Expected duration of a turn, which decides where it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnCost {
    /// Microseconds: no operations, or small ones on a tablet that is all in memory.
    Light,
    /// Small operations on a tablet with DiskRowSets: their filters and indexes are mostly in memory.
    Brief,
    Heavy,
}

pub(super) struct ReplicaLoop {
    pub(super) shared: Arc<Shared>,
    pub(super) replica: Replica,
    log: LogWriter,
    /// Next attempt of a log that this loop writes itself.
    pub(super) retry: FullDeviceRetry,
    pub(super) inbox: mpsc::UnboundedReceiver<Command>,
    /// Sender for the events of tasks that work for this loop.
    pub(super) event_sender: EventSender,
    /// Callback for the results of messages.
    event_sink: RaftEventSink,
    /// Time at which the loop's task runs without a command.
    pub(super) alarm_at: Option<Instant>,
    /// True if a visitor has left an earlier deadline than `alarm_at`.
    pub(super) is_alarm_late: bool,
    /// Buffer for the command of a visitor.
    pub(super) visit_buffer: Vec<Command>,
    /// Callers whose operations are in flight, by ticket, and the reservations for these operations.
    pub(super) proposals: BTreeMap<u64, (ReplySender, Option<Reservation>)>,
    /// Reservations for leaders' operations up to an index.
    entry_reservations: VecDeque<(u64, Reservation)>,
    reply_senders: BTreeMap<u64, oneshot::Sender<RaftReply>>,
    next_ticket: u64,
    /// Steps of the calls whose operations are in flight.
    op_steps: OpSteps,
    pub(super) effects: ReplicaEffects,
    /// Buffer for the events that were queued while the replica hibernated.
    queued_events: Vec<(ClockReading, raft::RaftEvent)>,
    meta: MetaStore,
    /// The log task waits for space on its device.
    log_waits_for_space: bool,
    /// Time of the last check that the group can do without this leader, whose log is damaged.
    pub(super) log_checked_at: Option<Instant>,
    /// Receiver of the replica after the loop ends. While set, no more work is accepted.
    pub(super) stopping: Option<oneshot::Sender<Replica>>,
    /// Bytes of operations received from leaders that may not be applied yet.
    pub(super) received_bytes: usize,
}

/// Storage of consensus metadata, one version at a time.
#[derive(Default)]
struct MetaStore {
    busy: bool,
    /// Newest version whose storing has not begun.
    next: Option<(u64, ConsensusMeta)>,
}

impl ReplicaLoop {
    pub(super) fn new(
        shared: Arc<Shared>,
        (replica, effects): (Replica, ReplicaEffects),
        wal: Wal,
        event_sender: EventSender,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> ReplicaLoop {
        let log = if shared.config.log_sync {
            let event_sender = event_sender.clone();
            log_writer::start(
                &shared.env,
                wal,
                shared.log_sizes.clone(),
                shared.metrics.clone(),
                Box::new(move |done, load| match load {
                    LogLoad::Idle => event_sender.post(done.into()),
                    LogLoad::Busy => event_sender.queue(done.into()),
                }),
            )
        } else {
            LogWriter::Here(Box::new(wal))
        };
        let event_sink: RaftEventSink = {
            let (event_sender, shared) = (event_sender.clone(), shared.clone());
            Arc::new(move |event| match shared.hibernation.queue_event(event, || shared.env.now()) {
                Some(event) => event_sender.post(Command::Event(event)),
                None => shared.env.observer.mark("replica: hibernated through an answer"),
            })
        };
        ReplicaLoop {
            op_steps: OpSteps::new(shared.env.spans.is_on()),
            shared,
            replica,
            log,
            retry: FullDeviceRetry::default(),
            inbox: commands,
            event_sender,
            event_sink,
            alarm_at: None,
            is_alarm_late: false,
            visit_buffer: Vec::new(),
            proposals: BTreeMap::new(),
            entry_reservations: VecDeque::new(),
            reply_senders: BTreeMap::new(),
            next_ticket: 0,
            effects,
            queued_events: Vec::new(),
            meta: MetaStore::default(),
            log_waits_for_space: false,
            log_checked_at: None,
            stopping: None,
            received_bytes: 0,
        }
    }

    /// Returns the time of the next tick. Ticks of a server's replicas are rounded to common times, so that many
    /// tablets wake it no more often than one. Leaders round up, because their heartbeats are batched anyway. Followers
    /// round down, then tick again at the election timeout, unless a heartbeat has moved it, as nearly always.
    pub(super) fn deadline(&self) -> Instant {
        let deadline = self.replica.deadline();
        let window = self.shared.config.peers.heartbeat_window();
        if self.replica.is_leader() {
            return deadline.round_up(window);
        }
        let early = deadline.round_down(window * FOLLOWER_TICK_DIVISOR);
        if early > self.shared.env.now().mono { early } else { deadline }
    }

    /// Hibernates: heartbeats that say nothing new are answered without a turn.
    pub(super) fn try_hibernate(&self) {
        let takes_part =
            self.stopping.is_none() && self.shared.failure().is_none() && self.retry.at().is_none();
        self.shared.hibernation.begin(self.replica.hibernation().filter(|_| takes_part));
    }

    /// Processes the events that were queued during hibernation, before all else.
    fn wake(&mut self) {
        let mut queued_events = std::mem::take(&mut self.queued_events);
        self.shared.hibernation.end(&mut queued_events);
        for (now, event) in queued_events.drain(..) {
            self.step_at(now, ReplicaEvent::Raft(event));
        }
        self.queued_events = queued_events;
    }

    /// Returns true if the proposals in flight can finish without other members, and without space that the log lacks.
    pub(super) fn can_finish_alone(&self) -> bool {
        let status = self.shared.status();
        let waits_for_space = self.log_waits_for_space || self.retry.at().is_some();
        status.role == Role::Leader && status.active_config().voter_count() == 1 && !waits_for_space
    }

    /// Estimates the cost of a turn of these commands. Returns it with the bytes that leaders sent and that may not be
    /// applied before the turn.
    pub(super) fn turn_cost(&self, commands: &[Command]) -> (TurnCost, usize) {
        let (mut proposed, mut received, mut heavy) = (0, 0, false);
        for command in commands {
            match command {
                Command::Propose { bytes, .. } => proposed += bytes,
                Command::Ask { bytes, .. } => received += bytes,
                Command::With(_) | Command::WithWal(_) | Command::Stop(_) => heavy = true,
                Command::Event(_)
                | Command::Persisted(..)
                | Command::LogWaitsForSpace(_)
                | Command::Failed
                | Command::MetaStored(..)
                | Command::WantSnapshot(_) => {}
            }
        }
        let idle = self.replica.last_op() == self.replica.last_applied();
        // Uncommitted operations of leaders, and proposals of this replica, may be applied in this turn.
        let unapplied = received + if idle { 0 } else { self.received_bytes };
        if idle && proposed + received == 0 {
            return (if heavy { TurnCost::Heavy } else { TurnCost::Light }, unapplied);
        }
        let pending = self.shared.pending_bytes.load(Ordering::Relaxed).max(proposed);
        let cost = match pending + unapplied <= BRIEF_TURN_BYTES {
            true if !heavy && self.replica.tablet().state().disk.is_empty() => TurnCost::Light,
            true if !heavy => TurnCost::Brief,
            _ => TurnCost::Heavy,
        };
        (cost, unapplied)
    }

    /// Steps the replica through `commands` and starts the effects.
    pub(super) fn turn(&mut self, commands: &mut Vec<Command>) {
        self.replica.set_follower_failed_after(self.shared.config.follower_failed_after.get());
        self.wake();
        for command in commands.drain(..) {
            self.check(|this| this.command(command));
        }
        self.end_if_failed();
        if self.shared.env.now().mono >= self.replica.deadline() {
            // Order: the tick follows the messages, because they may show that the leader is alive.
            self.raft(raft::RaftEvent::Tick);
        }
        self.replica.flush(self.shared.env.now(), &mut self.effects);
        // Order: messages leave first, so that peers write their logs while this replica writes its own.
        self.emit_notes();
        self.send();
        self.check(ReplicaLoop::write_log);
        self.emit_notes();
        self.send();
    }

    /// Fails the replica after a failure outside of it: it must not continue to lead. Publishes a failure in work that
    /// the loop ran for others, such as the end of a job: no later step would.
    fn end_if_failed(&mut self) {
        match (self.replica.failure(), self.shared.failure()) {
            (None, Some(error)) => self.step(ReplicaEvent::LogFailed(error)),
            (Some(error), None) => self.shared.fail(error),
            _ => {}
        }
    }

    /// Runs `work`; its failure fails the replica.
    fn check(&mut self, work: impl FnOnce(&mut ReplicaLoop) -> Result<()>) {
        if let Err(error) = work(self) {
            self.shared.fail(&error);
        }
    }

    fn command(&mut self, command: Command) -> Result<()> {
        let failed = self.shared.failure().is_some();
        match command {
            Command::Propose { op, request, term, reply_sender, reservation, steps, .. } => {
                self.propose((op, request, steps), term, (reply_sender, reservation));
            }
            Command::Stop(reply_sender) => self.stopping = Some(reply_sender),
            Command::MetaStored(number, stored) => self.meta_stored(number, stored),
            // The turn steps the failure into the replica; see `end_if_failed`.
            Command::Failed => {}
            // Dropping the command reports the failure to its caller.
            _ if failed => {}
            Command::Ask { event, reply_sender, reservation, steps, .. } => {
                self.entry_reservations.extend(reservation);
                self.op_steps.add_update(steps);
                self.ask(event, reply_sender);
            }
            Command::Event(event) => self.event(event),
            Command::WantSnapshot(before) => {
                self.step(ReplicaEvent::WantSnapshot { at: Timestamp(before.0.saturating_sub(1)) });
            }
            Command::Persisted(Ok(op), times) => self.persisted(op, &times),
            Command::LogWaitsForSpace(waits) => self.log_waits_for_space = waits,
            Command::Persisted(Err(error), _) => self.step(ReplicaEvent::LogFailed(error)),
            Command::With(work) => work(&mut self.replica, &mut self.effects),
            Command::WithWal(work) => return self.with_wal(work),
        }
        Ok(())
    }

    fn propose(
        &mut self,
        (op, request, steps): (Op, Option<RequestId>, Option<Arc<CallSteps>>),
        term: Option<Term>,
        (reply_sender, reservation): (ReplySender, Option<Reservation>),
    ) {
        // No election completes within one turn, so the term of the last turn's status is current.
        let another = || term.filter(|term| self.shared.status().term != *term).map(other_term);
        let refusal = match self.shared.failure() {
            Some(error) => Some(error),
            None => self.stopping.is_some().then(stopped).or_else(another),
        };
        if let Some(error) = refusal {
            // The caller may have stopped waiting; then the reply is dropped.
            let _gone = reply_sender.send(Err(error));
            return;
        }
        let ticket = self.ticket();
        self.proposals.insert(ticket, (reply_sender, reservation));
        let before = self.replica.last_op();
        self.step(ReplicaEvent::Propose { ticket, op, request });
        self.op_steps.add_proposal((before, self.replica.last_op()), steps);
    }

    fn ask(&mut self, event: MakeEvent, reply_sender: oneshot::Sender<RaftReply>) {
        let ticket = self.ticket();
        self.reply_senders.insert(ticket, reply_sender);
        self.raft(event(ticket));
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Continues with everything up to `op` durable.
    fn persisted(&mut self, op: OpId, times: &GroupTimes) {
        self.op_steps.logged(op.index, times);
        self.raft(raft::RaftEvent::Persisted(op));
    }

    /// Processes the result of a message or of a read of the log.
    fn event(&mut self, event: raft::RaftEvent) {
        if let raft::RaftEvent::LogRead { result: Err(error), .. } = &event {
            self.on_log_read_failed(error);
        }
        self.raft(event);
    }

    fn raft(&mut self, event: raft::RaftEvent) {
        self.step(ReplicaEvent::Raft(event));
    }

    fn step(&mut self, event: ReplicaEvent) {
        self.step_at(self.shared.env.now(), event);
    }

    fn step_at(&mut self, now: ClockReading, event: ReplicaEvent) {
        let clock = &self.shared.clock;
        self.replica.step(now, event, &mut || clock.now(), &mut self.effects);
        clock.pass(self.effects.seen);
        let applied = self.replica.last_applied().index;
        self.op_steps.committed(applied, now.mono, &self.shared.metrics.replication);
        if let Some(error) = self.replica.failure() {
            self.shared.fail(error);
        }
    }

    /// Sends the effects that need no log: messages, replies, metadata.
    fn send(&mut self) {
        let tablet = self.shared.tablet.tablet;
        for (peer, message) in self.effects.messages.drain(..) {
            let span = self.op_steps.span_of(&message);
            self.shared.config.peers.send(tablet, &peer, (message, span), &self.event_sink);
        }
        for (ticket, reply) in self.effects.replies.drain(..) {
            if let Some(reply_sender) = self.reply_senders.remove(&ticket) {
                // The caller may have stopped waiting.
                let _gone = reply_sender.send(reply);
            }
        }
        if let Some(newer) = self.effects.meta.take() {
            self.meta.next = Some(newer);
        }
        self.store_meta();
    }

    fn store_meta(&mut self) {
        if self.meta.busy || self.shared.failure().is_some() {
            return;
        }
        let Some((number, meta)) = self.meta.next.take() else { return };
        self.meta.busy = true;
        self.shared.consensus_meta_bytes.store(meta.encode().len() as u64, Ordering::Relaxed);
        let (shared, disk, event_sender) =
            (self.shared.clone(), self.replica.data_disk().clone(), self.event_sender.clone());
        self.shared.env.spawn("consensus metadata", async move {
            let stored = shared.store_meta(&*disk, &meta).await;
            event_sender.post(Command::MetaStored(number, stored));
        });
    }

    fn meta_stored(&mut self, number: u64, stored: Result<()>) {
        self.meta.busy = false;
        match stored {
            Ok(()) => self.raft(raft::RaftEvent::MetaPersisted(number)),
            Err(error) => self.step(ReplicaEvent::MetaFailed(error)),
        }
    }

    /// Sends entries to the log. Commit entries alone wait for the next operation.
    fn write_log(&mut self) -> Result<()> {
        while self.shared.failure().is_none() && log_writer::has_operations(&self.effects.log) {
            let last = log_writer::last_op(&self.effects.log);
            match &mut self.log {
                LogWriter::Here(wal) => {
                    let now = self.shared.env.now().mono;
                    if self.retry.is_waiting(now) {
                        break;
                    }
                    let bytes_before = wal.bytes();
                    match write_log_from(wal, &mut self.effects.log) {
                        Err(error) if log_writer::is_full(wal, &error) => {
                            self.retry.found_full(now, &error);
                            break;
                        }
                        written => written?,
                    }
                    self.retry.found_space();
                    let appended = self.shared.env.now().mono;
                    self.shared.metrics.log_append.record_micros(appended.since(now));
                    self.shared.metrics.log_written(wal.bytes().saturating_sub(bytes_before));
                    self.shared.log_sizes.update(wal);
                    if let Some(last) = last {
                        self.persisted(last, &GroupTimes { began: now, appended, synced: appended });
                    }
                }
                LogWriter::Beside(works) => {
                    let writes = std::mem::take(&mut self.effects.log);
                    works
                        .send(LogRequest::Append { writes, last })
                        .map_err(|_| log_writer::log_task_ended())?;
                }
            }
        }
        self.read_log()
    }

    /// Requests the entries that peers lack. The reads include all earlier writes, unless these wait for space.
    fn read_log(&mut self) -> Result<()> {
        for read in std::mem::take(&mut self.effects.read_log) {
            match &mut self.log {
                LogWriter::Here(wal) => {
                    let waiting = &self.effects.log;
                    let result = log_writer::read_back(wal, waiting, &read, &self.shared.metrics);
                    self.event(raft::RaftEvent::LogRead { peer: read.peer, from: read.from, result });
                }
                LogWriter::Beside(works) => {
                    works.send(LogRequest::Read(read)).map_err(|_| log_writer::log_task_ended())?
                }
            }
        }
        Ok(())
    }

    /// Runs `work` on the log with everything durable. While the device is full, dropping `work` tells its caller.
    fn with_wal(&mut self, work: log_writer::WalFn) -> Result<()> {
        self.write_log()?;
        match &mut self.log {
            LogWriter::Here(wal) => {
                let now = self.shared.env.now().mono;
                if self.retry.is_waiting(now) {
                    return Ok(());
                }
                match log_writer::write_and_sync(wal, &mut self.effects.log) {
                    Err(error) if log_writer::is_full(wal, &error) => {
                        self.retry.found_full(now, &error);
                        return Ok(());
                    }
                    written => written?,
                }
                self.retry.found_space();
                work(wal);
                self.shared.log_sizes.update(wal);
                Ok(())
            }
            LogWriter::Beside(works) => {
                let writes = std::mem::take(&mut self.effects.log);
                let append = LogRequest::Append { writes, last: None };
                works
                    .send(append)
                    .and_then(|()| works.send(LogRequest::With(work)))
                    .map_err(|_| log_writer::log_task_ended())
            }
        }
    }

    /// Passes the notes to the observer. Order: before any message leaves, so that causes are recorded before effects.
    /// Every replica reports a new schema: a leader that was elected meanwhile has no other reason to.
    fn emit_notes(&mut self) {
        let tablet = self.shared.tablet.tablet;
        for note in self.effects.notes.drain(..) {
            match &note {
                Note::Raft(note) => tracing::trace!(%tablet, %note),
                note => tracing::info!(%tablet, %note),
            }
            self.shared.env.observer.note(tablet, &note);
            if matches!(note, Note::Altered { .. }) {
                (self.shared.config.on_change)();
            }
        }
    }

    /// Replies to the callers of finished operations, and wakes the tasks that wait for progress.
    pub(super) fn deliver(&mut self) {
        self.emit_notes();
        self.op_steps.applied(|| self.shared.env.now().mono);
        for (request, timestamp, result) in self.effects.completed.drain(..) {
            (self.shared.config.on_completed)(&request, timestamp, &result);
        }
        if std::mem::take(&mut self.effects.status_changed) {
            let now = self.shared.env.now();
            self.shared.set_status(self.replica.status(now));
        }
        self.shared.metrics.set_backlog(self.replica.backlog(), self.replica.last_op().index);
        let progress = std::mem::take(&mut self.effects.progress) || !self.effects.done.is_empty();
        for done in self.effects.done.drain(..) {
            let Some((reply_sender, _)) = self.proposals.remove(&done.ticket) else { continue };
            let (op_id, timestamp) = (done.op_id, done.timestamp);
            let _gone = reply_sender.send(done.result.map(|result| CommittedOp { op_id, timestamp, result }));
        }
        self.release_reservations();
        if progress {
            self.shared.progress.notify_waiters();
        }
    }

    /// Releases reservations: an applied operation is tracked by the tablet, a truncated one is never applied.
    fn release_reservations(&mut self) {
        let applied = match self.replica.last_applied() {
            applied if applied == self.replica.last_op() => u64::MAX,
            applied => applied.index,
        };
        while self.entry_reservations.front().is_some_and(|(index, _)| *index <= applied) {
            self.entry_reservations.pop_front();
        }
    }

    /// Rejects all waiting callers with `error`, and releases what operations hold that are not applied any more.
    pub(super) fn refuse(&mut self, error: &Error) {
        self.entry_reservations.clear();
        for (_, (reply_sender, _)) in std::mem::take(&mut self.proposals) {
            let _gone = reply_sender.send(Err(error.clone()));
        }
        self.reply_senders.clear();
        self.op_steps.clear();
    }

    /// Closes the log with all its entries and returns the replica to the caller of `stop`.
    pub(super) async fn close(mut self: Box<Self>) {
        self.reply_senders.clear();
        self.finish_meta().await;
        let mut writes = std::mem::take(&mut self.effects.log);
        let failed = self.shared.failure().is_some();
        match self.log {
            LogWriter::Here(mut wal) if !failed => {
                let env = self.shared.env.clone();
                let closed = env.run(|| log_writer::write_and_sync(&mut wal, &mut writes)).await;
                if let Err(error) = closed {
                    tracing::warn!(%error, "a log could not be closed in order; a restart replays it");
                }
            }
            LogWriter::Here(_) => {}
            LogWriter::Beside(works) => {
                let (reply_sender, closed) = oneshot::channel();
                let append = LogRequest::Append { writes, last: None };
                if works.send(append).and_then(|()| works.send(LogRequest::Stop(reply_sender))).is_ok() {
                    // An error means that the log task ended with the node.
                    drop(closed.await);
                }
            }
        }
        if let Some(reply_sender) = self.stopping.take() {
            // If the caller has stopped waiting, dropping the replica closes it too.
            drop(reply_sender.send(self.replica));
        }
    }

    /// Waits for the last metadata write: the caller may remove the replica's files next.
    async fn finish_meta(&mut self) {
        while self.meta.busy {
            match self.inbox.recv().await {
                Some(Command::MetaStored(..)) | None => self.meta.busy = false,
                // A newer version need not be stored: no caller waits for it.
                Some(_) => {}
            }
        }
    }
}

/// Deadline of a replica that waits for nothing.
pub(super) const NEVER: Instant = Instant(u64::MAX);

impl From<log_writer::LogEvent> for Command {
    fn from(done: log_writer::LogEvent) -> Command {
        match done {
            log_writer::LogEvent::Persisted(result, times) => Command::Persisted(result, times),
            log_writer::LogEvent::WaitsForSpace(waits) => Command::LogWaitsForSpace(waits),
            log_writer::LogEvent::Read(read, result) => {
                Command::Event(raft::RaftEvent::LogRead { peer: read.peer, from: read.from, result })
            }
        }
    }
}
