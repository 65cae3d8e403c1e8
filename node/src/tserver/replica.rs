//! The replica loop: one task per replica, which alone touches its [`Replica`].
//!
//! ```text
//!   write, alter ──▶ inbox ──▶ Replica::step ──▶ log ──▶ Persisted ──▶ Replica::step (apply) ──▶ answers
//!                      ▲                          │
//!                      └──────────────────────────┘         scans read the Tablet and never come here
//! ```
//!
//! One turn takes everything that waits in the inbox, so that the log is written and synced for many operations
//! at once. A storage error fails the replica: all that wait and all that come later are told, and the process
//! goes on with its other tablets.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use engine::error::{Error, Result};
use engine::ids::OpId;
use engine::replica::{Effects, Event, Op, OpResult, Replica, RequestId};
use engine::tablet::Tablet;
use engine::time::{Instant, Timestamp};
use engine::wal::Wal;
use tokio::sync::{Notify, mpsc, oneshot};

use super::log::{self, Log, LogWork};
use crate::env::Env;
use crate::server_clock::ServerClock;

/// How one replica is run.
#[derive(Clone)]
pub struct ReplicaConfig {
    /// Acknowledge only what is synced to the log.
    pub log_sync: bool,
    /// Bytes of proposals that may wait; more are refused as throttled.
    pub pending_bytes_max: usize,
    /// Told when the replica fails.
    pub on_failure: Arc<dyn Fn() + Send + Sync>,
}

/// An operation that took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    pub op_id: OpId,
    pub timestamp: Timestamp,
    pub result: OpResult,
}

/// Speaks to a running replica; cheap to clone.
#[derive(Clone)]
pub struct ReplicaHandle {
    shared: Arc<Shared>,
    inbox: mpsc::UnboundedSender<Command>,
}

struct Shared {
    env: Env,
    clock: ServerClock,
    tablet: Arc<Tablet>,
    /// Bytes of proposals that are not answered yet.
    pending_bytes: AtomicUsize,
    pending_bytes_max: usize,
    failure: Mutex<Option<Error>>,
    on_failure: Arc<dyn Fn() + Send + Sync>,
    /// Rung when operations were applied or the replica failed.
    progress: Notify,
    /// The operation applied last.
    last_op: Mutex<OpId>,
    /// Size of the log.
    log_bytes: Arc<AtomicU64>,
}

type Answer = oneshot::Sender<Result<Applied>>;
type WithReplica = Box<dyn FnOnce(&mut Replica, &mut Effects) + Send>;

enum Command {
    Propose { op: Op, request: Option<RequestId>, bytes: usize, answer: Answer },
    Persisted(Result<OpId>),
    With(WithReplica),
    WithWal(log::WithWal),
    Stop(oneshot::Sender<Replica>),
}

impl ReplicaHandle {
    /// Runs an opened replica until [`ReplicaHandle::stop`].
    pub fn start(env: &Env, clock: &ServerClock, replica: Replica, wal: Wal, config: ReplicaConfig) -> Self {
        let (inbox, commands) = mpsc::unbounded_channel();
        let tablet = replica.tablet().clone();
        // What was once given must not be given again, even if the wall clock was set back meanwhile.
        clock.pass(tablet.mvcc().last_applied());
        let shared = Arc::new(Shared {
            env: env.clone(),
            clock: clock.clone(),
            tablet,
            pending_bytes: AtomicUsize::new(0),
            pending_bytes_max: config.pending_bytes_max,
            failure: Mutex::new(None),
            on_failure: config.on_failure,
            progress: Notify::new(),
            last_op: Mutex::new(replica.last_applied()),
            log_bytes: Arc::new(AtomicU64::new(wal.bytes())),
        });
        let log = if config.log_sync {
            let persisted = inbox.downgrade();
            let post = move |result| {
                if let Some(inbox) = persisted.upgrade() {
                    // A loop that ended needs no news.
                    let _ended = inbox.send(Command::Persisted(result));
                }
            };
            log::start(env, wal, shared.log_bytes.clone(), Box::new(post))
        } else {
            Log::Here(Box::new(wal))
        };
        let looped = ReplicaLoop {
            shared: shared.clone(),
            replica,
            log,
            inbox: commands,
            waiting: BTreeMap::new(),
            next_ticket: 0,
            out: Effects::default(),
            stopping: None,
        };
        env.spawn("replica", looped.run());
        ReplicaHandle { shared, inbox }
    }

    pub fn tablet(&self) -> &Arc<Tablet> {
        &self.shared.tablet
    }

    /// The error that failed this replica, if one did.
    pub fn failure(&self) -> Option<Error> {
        self.shared.failure()
    }

    /// The operation applied last.
    pub fn last_op(&self) -> OpId {
        *self.shared.last_op.lock().expect("nobody panics while holding it")
    }

    /// Bytes of the log.
    pub fn log_bytes(&self) -> u64 {
        self.shared.log_bytes.load(Ordering::Relaxed)
    }

    /// Proposes an operation and waits until it is applied (and durable, if the server is set so).
    ///
    /// `Throttled` if too much is waiting already; the replica's own error if it failed.
    pub async fn propose(&self, op: Op, request: Option<RequestId>) -> Result<Applied> {
        let bytes = op_bytes(&op);
        let waiting = self.shared.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
        let _owed = Owed { shared: &self.shared, bytes };
        if waiting > self.shared.pending_bytes_max {
            return Err(Error::throttled(format!("{waiting} bytes of writes wait for this tablet already")));
        }
        let (answer, answered) = oneshot::channel();
        let command = Command::Propose { op, request, bytes, answer };
        self.inbox.send(command).map_err(|_| self.unanswered())?;
        answered.await.map_err(|_| self.unanswered())?
    }

    /// Waits until every operation below `before` is applied. The caller has moved the clock past `before`, so no
    /// more of them can begin. `Throttled` at the deadline. Spec: SafeTime.tla Serve.
    pub async fn wait_applied_before(&self, before: Timestamp, deadline: Instant) -> Result<()> {
        let shared = &self.shared;
        loop {
            let progress = shared.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            if shared.tablet.mvcc().all_applied_before(before) {
                return Ok(());
            }
            if let Some(error) = shared.failure() {
                return Err(error);
            }
            let now = shared.env.now().mono;
            if now >= deadline || shared.env.timeout(deadline.since(now), progress).await.is_none() {
                return Err(Error::throttled(format!(
                    "the tablet did not reach the timestamp {before} in time"
                )));
            }
        }
    }

    /// Lets `work` have the replica between two turns. It runs where disks may be waited for.
    pub async fn with<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Replica, &mut Effects) -> R + Send + 'static,
    ) -> Result<R> {
        let (answer, answered) = oneshot::channel();
        let work: WithReplica = Box::new(move |replica, out| drop(answer.send(work(replica, out))));
        self.inbox.send(Command::With(work)).map_err(|_| self.unanswered())?;
        answered.await.map_err(|_| self.unanswered())
    }

    /// Makes durable everything applied so far, what it did included, then lets `work` have the log.
    pub async fn with_wal<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Wal) -> R + Send + 'static,
    ) -> Result<R> {
        let (answer, answered) = oneshot::channel();
        let work: log::WithWal = Box::new(move |wal| {
            let result = wal.sync().map(|()| work(wal));
            drop(answer.send(result));
        });
        self.inbox.send(Command::WithWal(work)).map_err(|_| self.unanswered())?;
        let result = answered.await.map_err(|_| self.unanswered())?;
        result.inspect_err(|error| self.fail(error))
    }

    /// Fails the replica: everything that waits and comes later gets `error`.
    pub fn fail(&self, error: &Error) {
        self.shared.fail(error);
        // Wakes the loop, which tells those who wait.
        let _ended = self.inbox.send(Command::Persisted(Err(error.clone())));
    }

    /// Why a command got no answer.
    fn unanswered(&self) -> Error {
        self.failure().unwrap_or_else(stopped)
    }

    /// Finishes what was proposed, closes the log in order, and gives the replica back. `None` if somebody
    /// else stopped it.
    pub async fn stop(&self) -> Option<Replica> {
        let (answer, answered) = oneshot::channel();
        self.inbox.send(Command::Stop(answer)).ok()?;
        answered.await.ok()
    }
}

fn stopped() -> Error {
    Error::aborted("the tablet is shutting down")
}

/// What an operation weighs while it waits.
fn op_bytes(op: &Op) -> usize {
    match op {
        Op::Write(write) => write.rows.len() + write.indirect.len(),
        _ => 0,
    }
}

/// Bytes of a proposal, given back when its future ends or is dropped.
struct Owed<'a> {
    shared: &'a Shared,
    bytes: usize,
}

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        self.shared.pending_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Shared {
    fn failure(&self) -> Option<Error> {
        self.failure.lock().expect("nobody panics while holding it").clone()
    }

    fn fail(&self, error: &Error) {
        let mut failure = self.failure.lock().expect("nobody panics while holding it");
        if failure.is_none() {
            tracing::error!(%error, "a replica failed");
            *failure = Some(error.clone());
            drop(failure);
            (self.on_failure)();
        }
        self.progress.notify_waiters();
    }
}

/// Commands taken in one turn at most.
const TURN_MAX: usize = 1024;
/// A turn with more bytes of proposals than this runs where it does not hold up other tasks.
const LIGHT_TURN_BYTES: usize = 64 << 10;

struct ReplicaLoop {
    shared: Arc<Shared>,
    replica: Replica,
    log: Log,
    inbox: mpsc::UnboundedReceiver<Command>,
    waiting: BTreeMap<u64, Answer>,
    next_ticket: u64,
    out: Effects,
    stopping: Option<oneshot::Sender<Replica>>,
}

impl ReplicaLoop {
    async fn run(mut self) {
        let mut commands = Vec::new();
        while self.inbox.recv_many(&mut commands, TURN_MAX).await > 0 {
            if self.is_light(&commands) {
                self.turn(&mut commands);
            } else {
                let env = self.shared.env.clone();
                env.run(|| self.turn(&mut commands)).await;
            }
            self.deliver();
            if let Some(error) = self.shared.failure() {
                self.refuse_waiting(&error);
            }
            if self.stopping.is_some() && self.waiting.is_empty() {
                return self.close().await;
            }
        }
    }

    /// A light turn is over in microseconds: small writes to a tablet that is all in memory. Handing it over to
    /// another thread would cost more than it takes.
    fn is_light(&self, commands: &[Command]) -> bool {
        let bytes: usize = commands
            .iter()
            .map(|command| match command {
                Command::Propose { bytes, .. } => *bytes,
                Command::Persisted(_) => self.shared.pending_bytes.load(Ordering::Relaxed),
                _ => usize::MAX / (2 * TURN_MAX),
            })
            .sum();
        bytes <= LIGHT_TURN_BYTES && self.replica.tablet().state().disk.is_empty()
    }

    /// Steps the replica through `commands` and logs what comes of it.
    fn turn(&mut self, commands: &mut Vec<Command>) {
        for command in commands.drain(..) {
            self.check(|this| this.command(command));
        }
        self.check(ReplicaLoop::write_log);
    }

    /// Does `work`; if it fails, so has the replica.
    fn check(&mut self, work: impl FnOnce(&mut ReplicaLoop) -> Result<()>) {
        if let Err(error) = work(self) {
            self.shared.fail(&error);
        }
    }

    fn command(&mut self, command: Command) -> Result<()> {
        let failed = self.shared.failure().is_some();
        match command {
            Command::Propose { op, request, answer, .. } => return self.propose(op, request, answer),
            Command::Stop(answer) => self.stopping = Some(answer),
            // Whoever asked finds the replica failed when the work is dropped.
            _ if failed => {}
            Command::Persisted(Ok(op)) => self.step(Event::Persisted(op)),
            Command::Persisted(Err(error)) => self.step(Event::LogFailed(error)),
            Command::With(work) => work(&mut self.replica, &mut self.out),
            Command::WithWal(work) => return self.with_wal(work),
        }
        Ok(())
    }

    fn propose(&mut self, op: Op, request: Option<RequestId>, answer: Answer) -> Result<()> {
        let refusal = match self.shared.failure() {
            Some(error) => Some(error),
            None => self.stopping.is_some().then(stopped),
        };
        if let Some(error) = refusal {
            // Whoever asked may have given up; then nobody needs the answer.
            let _gone = answer.send(Err(error));
            return Ok(());
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.insert(ticket, answer);
        self.step(Event::Propose { ticket, op, request });
        Ok(())
    }

    fn step(&mut self, event: Event) {
        let clock = &self.shared.clock;
        self.replica.step(event, &mut || clock.now(), &mut self.out);
        if let Some(error) = self.replica.failure() {
            self.shared.fail(error);
        }
    }

    /// Gives new operations to the log. Entries that only say what was done wait for the next operation.
    fn write_log(&mut self) -> Result<()> {
        if self.shared.failure().is_some() {
            return Ok(());
        }
        let Some(last) = log::last_op(&self.out.append) else { return Ok(()) };
        let entries = std::mem::take(&mut self.out.append);
        match &mut self.log {
            Log::Here(wal) => {
                wal.append(&entries)?;
                self.shared.log_bytes.store(wal.bytes(), Ordering::Relaxed);
                self.step(Event::Persisted(last));
                Ok(())
            }
            Log::Beside(works) => {
                works.send(LogWork::Append { entries, last: Some(last) }).map_err(|_| log::gone())
            }
        }
    }

    fn with_wal(&mut self, work: log::WithWal) -> Result<()> {
        self.write_log()?;
        let entries = std::mem::take(&mut self.out.append);
        match &mut self.log {
            Log::Here(wal) => {
                log::append_and_sync(wal, &entries)?;
                work(wal);
                self.shared.log_bytes.store(wal.bytes(), Ordering::Relaxed);
                Ok(())
            }
            Log::Beside(works) => {
                let append = LogWork::Append { entries, last: None };
                works.send(append).and_then(|()| works.send(LogWork::With(work))).map_err(|_| log::gone())
            }
        }
    }

    /// Answers those whose operations are done.
    fn deliver(&mut self) {
        for note in self.out.notes.drain(..) {
            tracing::info!(tablet = %self.shared.tablet.tablet, %note);
        }
        if self.out.done.is_empty() {
            return;
        }
        for done in self.out.done.drain(..) {
            let Some(answer) = self.waiting.remove(&done.ticket) else { continue };
            let (op_id, timestamp) = (done.op_id, done.timestamp);
            if done.result.is_ok() {
                *self.shared.last_op.lock().expect("nobody panics while holding it") = op_id;
            }
            let _gone = answer.send(done.result.map(|result| Applied { op_id, timestamp, result }));
        }
        self.shared.progress.notify_waiters();
    }

    fn refuse_waiting(&mut self, error: &Error) {
        for (_, answer) in std::mem::take(&mut self.waiting) {
            let _gone = answer.send(Err(error.clone()));
        }
    }

    /// Closes the log with everything in it and hands the replica to whoever stopped it.
    async fn close(mut self) {
        let entries = std::mem::take(&mut self.out.append);
        let failed = self.shared.failure().is_some();
        match self.log {
            Log::Here(mut wal) if !failed => {
                let env = self.shared.env.clone();
                let closed = env.run(|| log::append_and_sync(&mut wal, &entries)).await;
                if let Err(error) = closed {
                    tracing::warn!(%error, "a log could not be closed in order; a restart replays it");
                }
            }
            Log::Here(_) => {}
            Log::Beside(works) => {
                let (answer, closed) = oneshot::channel();
                let append = LogWork::Append { entries, last: None };
                if works.send(append).and_then(|()| works.send(LogWork::Stop(answer))).is_ok() {
                    // An error means that the log task ended with the node.
                    drop(closed.await);
                }
            }
        }
        if let Some(answer) = self.stopping.take() {
            // A caller that went away leaves the replica to be dropped, which closes it too.
            drop(answer.send(self.replica));
        }
    }
}
