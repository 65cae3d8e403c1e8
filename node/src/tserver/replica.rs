//! The replica loop: one task per replica, which alone touches its [`Replica`].
//!
//! ```text
//!   write, alter ──▶ inbox ──▶ Replica::step ──▶ log ──▶ Persisted ──┐    scans read the Tablet
//!   other servers ──▶  ▲            ├──▶ peers ──▶ other servers      │    and never come here
//!   deadlines ───────▶ │            ├──▶ consensus metadata ──▶ stored┤
//!                      │            └──▶ answers                      │
//!                      └──────────────────────────────────────────────┘
//! ```
//!
//! One turn takes everything that waits in the inbox, so that the log is written and synced for many operations
//! at once. A storage error fails the replica: all that wait and all that come later are told, and the process
//! goes on with its other tablets.

mod rest;
mod turns;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use engine::error::{Error, Result};
use engine::ids::{OpId, PeerId, Term};
use engine::memory::Promise;
use engine::raft::message::{UpdateRequest, UpdateResponse, VoteRequest, VoteResponse};
use engine::raft::{self, Change, Reply, Role, Status};
use engine::replica::{Effects, Op, OpResult, Replica, RequestId};
use engine::tablet::Tablet;
use engine::time::{Instant, Timestamp};
use engine::wal::Wal;
use tokio::sync::{Notify, mpsc, oneshot};

use super::log;
use super::peers::Peers;
use crate::env::Env;
use crate::server_clock::ServerClock;

/// Told of a tracked request that took effect, when, and what it did.
pub type OnCompleted = Arc<dyn Fn(&RequestId, Timestamp, &OpResult) + Send + Sync>;

/// How one replica is run.
#[derive(Clone)]
pub struct ReplicaConfig {
    /// Acknowledge only what is synced to the log.
    pub log_sync: bool,
    /// Bytes of proposals that may wait; more are refused as throttled.
    pub pending_bytes_max: usize,
    /// The longest frame that the tablet's other servers accept, in bytes: an operation has to fit.
    pub frame_bytes_max: usize,
    /// The way to the tablet's other replicas.
    pub peers: Peers,
    /// Told when the replica fails.
    pub on_failure: Arc<dyn Fn() + Send + Sync>,
    /// Told when a report to the masters would show something else: another leader, other members, another health
    /// of one.
    pub on_change: Arc<dyn Fn() + Send + Sync>,
    /// Told of requests that took effect though this replica was not asked.
    pub on_completed: OnCompleted,
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

/// A leader's message that a replica has.
pub enum PendingUpdate {
    /// It said nothing new.
    Answered(UpdateResponse),
    Asked {
        replica: ReplicaHandle,
        answered: oneshot::Receiver<Reply>,
    },
}

impl PendingUpdate {
    pub async fn answer(self) -> Result<UpdateResponse> {
        let (replica, answered) = match self {
            PendingUpdate::Answered(response) => return Ok(response),
            PendingUpdate::Asked { replica, answered } => (replica, answered),
        };
        match answered.await.map_err(|_| replica.unanswered())? {
            Reply::Update(response) => Ok(response),
            other => Err(odd_reply(&other)),
        }
    }
}

struct Shared {
    env: Env,
    clock: ServerClock,
    tablet: Arc<Tablet>,
    config: ReplicaConfig,
    /// Bytes of proposals that are not answered yet.
    pending_bytes: AtomicUsize,
    failure: Mutex<Option<Error>>,
    /// [`ReplicaHandle::stop`] was called.
    stopping: AtomicBool,
    /// Rung when operations were applied, safe time moved, or the replica failed.
    progress: Notify,
    /// Where the replica stood when something last changed that is worth a report.
    status: Mutex<Arc<Status>>,
    /// Rung when that changes.
    turned: Notify,
    /// Takes what the loop need not be woken for.
    resting: rest::Resting,
    /// Size of the log.
    log_bytes: Arc<AtomicU64>,
}

type Answer = oneshot::Sender<Result<Applied>>;
type WithReplica = Box<dyn FnOnce(&mut Replica, &mut Effects) + Send>;
type MakeEvent = Box<dyn FnOnce(u64) -> raft::Event + Send>;

enum Command {
    Propose {
        op: Op,
        request: Option<RequestId>,
        /// The only term in which it may be taken.
        term: Option<Term>,
        /// Room for what it will hold, kept until it is applied.
        room: Option<Promise>,
        bytes: usize,
        answer: Answer,
    },
    /// Something that is answered by a [`Reply`]; `bytes` of operations come with it.
    Ask {
        event: MakeEvent,
        bytes: usize,
        answer: oneshot::Sender<Reply>,
        /// Room for what the operations up to this index will hold, kept until they are applied.
        room: Option<(u64, Promise)>,
    },
    /// What became of a message or of a read of the log.
    Event(raft::Event),
    /// Somebody waits until everything before this is applied.
    WantSnapshot(Timestamp),
    Persisted(Result<OpId>),
    MetaStored(u64, Result<()>),
    With(WithReplica),
    WithWal(log::WithWal),
    Stop(oneshot::Sender<Replica>),
}

impl ReplicaHandle {
    /// Runs an opened replica until [`ReplicaHandle::stop`]. One that decides alone leads when this returns.
    pub fn start(
        env: &Env,
        clock: &ServerClock,
        mut replica: Replica,
        wal: Wal,
        config: ReplicaConfig,
    ) -> Self {
        let (inbox, commands) = mpsc::unbounded_channel();
        let tablet = replica.tablet().clone();
        // What was once given must not be given again, even if the wall clock was set back meanwhile.
        clock.pass(tablet.mvcc().newest());
        let mut out = Effects::default();
        replica.start(env.now(), &mut || clock.now(), &mut out);
        let shared = Arc::new(Shared {
            env: env.clone(),
            clock: clock.clone(),
            tablet,
            config,
            pending_bytes: AtomicUsize::new(0),
            failure: Mutex::new(None),
            stopping: AtomicBool::new(false),
            progress: Notify::new(),
            status: Mutex::new(Arc::new(replica.status(env.now()))),
            turned: Notify::new(),
            resting: rest::Resting::default(),
            log_bytes: Arc::new(AtomicU64::new(wal.bytes())),
        });
        let looped = turns::ReplicaLoop::new(shared.clone(), (replica, out), wal, &inbox, commands);
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

    /// Whether the replica was told to stop.
    pub fn is_stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::Relaxed)
    }

    /// Where the replica stood when its role, its members or their health last changed. Operation numbers in it
    /// are of that moment; [`ReplicaHandle::status_now`] has today's.
    pub fn status(&self) -> Arc<Status> {
        self.shared.status()
    }

    pub fn is_leader(&self) -> bool {
        self.shared.status().role == Role::Leader
    }

    /// Where the replica stands.
    pub async fn status_now(&self) -> Result<Status> {
        let now = self.shared.env.now();
        self.with(move |replica, _| replica.status(now)).await
    }

    /// Waits until `met` holds for the status, or `deadline`; gives the last one looked at.
    pub async fn wait_status(&self, deadline: Instant, met: impl Fn(&Status) -> bool) -> Arc<Status> {
        let shared = &self.shared;
        loop {
            let turned = shared.turned.notified();
            tokio::pin!(turned);
            turned.as_mut().enable();
            let status = shared.status();
            let left = deadline.since(shared.env.now().mono);
            if met(&status) || left.is_zero() || self.inbox.is_closed() || shared.failure().is_some() {
                return status;
            }
            shared.env.timeout(left, turned).await;
        }
    }

    /// How many messages the replica, being at rest, has not been woken for.
    #[cfg(test)]
    pub fn sleeps_through(&self) -> usize {
        self.shared.resting.kept()
    }

    /// Whether the loop has ended, or had to give up.
    pub fn is_stopped(&self) -> bool {
        self.inbox.is_closed() || self.shared.failure().is_some()
    }

    /// The operation logged last; asks the replica.
    pub async fn last_op(&self) -> Result<OpId> {
        self.with(|replica, _| replica.last_op()).await
    }

    /// Bytes of the log.
    pub fn log_bytes(&self) -> u64 {
        self.shared.log_bytes.load(Ordering::Relaxed)
    }

    /// `Invalid` if the operation is larger than what other servers accept.
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

    /// Proposes an operation and waits until it is agreed and applied (and durable, if the server is set so).
    ///
    /// `Invalid` if it is too large; `Throttled` if too much is waiting already; `NotLeader` if another replica must
    /// be asked; `Aborted` if another leader came before it was agreed; the replica's own error if it failed.
    pub async fn propose(&self, op: Op, request: Option<RequestId>) -> Result<Applied> {
        self.propose_when(op, request, None, None).await
    }

    /// The same with room for what the operation will hold in memory.
    pub async fn propose_within(&self, op: Op, request: Option<RequestId>, room: Promise) -> Result<Applied> {
        self.propose_when(op, request, None, Some(room)).await
    }

    /// The same, in this term only: `NotLeader` if the replica leads in another one by now.
    pub async fn propose_in(&self, term: Term, op: Op, request: Option<RequestId>) -> Result<Applied> {
        self.propose_when(op, request, Some(term), None).await
    }

    async fn propose_when(
        &self,
        op: Op,
        request: Option<RequestId>,
        term: Option<Term>,
        room: Option<Promise>,
    ) -> Result<Applied> {
        self.check_fits(&op)?;
        let bytes = op_bytes(&op);
        let waiting = self.shared.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
        let _owed = Owed { shared: &self.shared, bytes };
        if waiting > self.shared.config.pending_bytes_max {
            return Err(Error::throttled(format!("{waiting} bytes of writes wait for this tablet already")));
        }
        let (answer, answered) = oneshot::channel();
        let command = Command::Propose { op, request, term, room, bytes, answer };
        self.inbox.send(command).map_err(|_| self.unanswered())?;
        answered.await.map_err(|_| self.unanswered())?
    }

    /// Gives a leader's message to the replica, with room for what its operations will hold in memory; its answer can
    /// be waited for later.
    pub fn begin_update(&self, request: UpdateRequest, room: Option<Promise>) -> Result<PendingUpdate> {
        if let Some(response) = self.shared.resting.answer(&request, || self.shared.env.now()) {
            self.shared.env.watch.mark("replica: slept through a heartbeat");
            return Ok(PendingUpdate::Answered(response));
        }
        let bytes = request.entries.iter().map(|entry| entry.payload.len()).sum();
        let room = request.entries.last().map(|last| last.op.index).zip(room);
        let answered = self.begin(bytes, room, |ticket| raft::Event::Update { ticket, request })?;
        Ok(PendingUpdate::Asked { replica: self.clone(), answered })
    }

    /// Takes a candidate's question.
    pub async fn vote(&self, request: VoteRequest) -> Result<VoteResponse> {
        match self.ask(0, |ticket| raft::Event::Vote { ticket, request }).await? {
            Reply::Vote(response) => Ok(response),
            other => Err(odd_reply(&other)),
        }
    }

    /// Changes the members and waits until that is agreed.
    pub async fn change_config(&self, change: Change) -> Result<()> {
        self.ask_config(|ticket| raft::Event::ChangeConfig { ticket, change }).await
    }

    /// Keeps of the members `voters` alone, without a majority; waits until that is in the log.
    pub async fn unsafe_config(&self, voters: Vec<PeerId>, caller: String) -> Result<()> {
        self.ask_config(|ticket| raft::Event::UnsafeConfig { ticket, voters, caller }).await
    }

    async fn ask_config(&self, event: impl FnOnce(u64) -> raft::Event + Send + 'static) -> Result<()> {
        match self.ask(0, event).await? {
            Reply::Config(result) => result,
            other => Err(odd_reply(&other)),
        }
    }

    /// Gives up leadership, to `to` if given; `abrupt`: at once, whoever comes.
    pub async fn step_down(&self, to: Option<PeerId>, abrupt: bool) -> Result<()> {
        match self.ask(0, move |ticket| raft::Event::StepDown { ticket, to, abrupt }).await? {
            Reply::StepDown(result) => result,
            other => Err(odd_reply(&other)),
        }
    }

    /// Begins to let another replica lead, if this one does and a majority still answers it. False if nobody will.
    pub async fn begin_hand_over(&self) -> bool {
        let Ok(status) = self.status_now().await else { return false };
        let others = status.committed_config.voter_count() > 1 && status.quorum_heard;
        let leads = status.role == Role::Leader && others;
        leads && (status.transferring || self.step_down(None, false).await.is_ok())
    }

    /// Waits until this replica leads no longer, or `deadline`.
    pub async fn until_handed_over(&self, deadline: Instant) {
        self.wait_status(deadline, |status| status.role != Role::Leader).await;
    }

    /// Begins an election.
    pub fn elect(&self, ignore_live_leader: bool) {
        // A loop that ended elects nobody.
        let _ended = self.inbox.send(Command::Event(raft::Event::Elect { ignore_live_leader }));
    }

    async fn ask(
        &self,
        bytes: usize,
        event: impl FnOnce(u64) -> raft::Event + Send + 'static,
    ) -> Result<Reply> {
        self.begin(bytes, None, event)?.await.map_err(|_| self.unanswered())
    }

    fn begin(
        &self,
        bytes: usize,
        room: Option<(u64, Promise)>,
        event: impl FnOnce(u64) -> raft::Event + Send + 'static,
    ) -> Result<oneshot::Receiver<Reply>> {
        let (answer, answered) = oneshot::channel();
        let command = Command::Ask { event: Box::new(event), bytes, answer, room };
        self.inbox.send(command).map_err(|_| self.unanswered())?;
        Ok(answered)
    }

    /// Waits until every operation below `before` is applied and no more of them can come. The caller has moved the
    /// clock past `before`. `Throttled` at the deadline. Spec: SafeTime.tla Serve.
    pub async fn wait_applied_before(&self, before: Timestamp, deadline: Instant) -> Result<()> {
        let mvcc = self.shared.tablet.mvcc();
        let met = || mvcc.all_applied_before(before);
        let _reader = self.shared.resting.reader();
        if !met() {
            // A loop that ended cannot help; the wait ends at its deadline.
            let _ended = self.inbox.send(Command::WantSnapshot(before));
        }
        self.wait(met, deadline, || format!("the tablet did not reach the timestamp {before} in time")).await
    }

    /// Waits until a replica that leads has applied everything that leaders before it may have acknowledged.
    /// `Throttled` at the deadline.
    pub async fn wait_caught_up(&self, deadline: Instant) -> Result<()> {
        let met = || self.shared.tablet.mvcc().is_caught_up();
        self.wait(met, deadline, || "the new leader of the tablet did not catch up in time".to_string()).await
    }

    async fn wait(&self, met: impl Fn() -> bool, deadline: Instant, what: impl Fn() -> String) -> Result<()> {
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
                return Err(Error::throttled(what()));
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
        self.shared.stopping.store(true, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.inbox.send(Command::Stop(answer)).ok()?;
        answered.await.ok()
    }
}

fn odd_reply(reply: &Reply) -> Error {
    Error::invalid(format!("the replica answered something else: {reply:?}"))
}

fn stopped() -> Error {
    Error::aborted("the tablet is shutting down")
}

fn other_term(term: Term) -> Error {
    Error::not_leader(format!("this replica leads no longer in term {term}"))
}

/// Bytes of a message to another replica beside the rows of its one operation, at most: columns, ids, headers.
const FRAME_OVERHEAD: usize = 64 << 10;

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
            tracing::error!(tablet = %self.tablet.tablet, %error, "a replica failed");
            *failure = Some(error.clone());
            drop(failure);
            (self.config.on_failure)();
        }
        self.progress.notify_waiters();
        self.turned.notify_waiters();
    }

    fn status(&self) -> Arc<Status> {
        self.status.lock().expect("nobody panics while holding it").clone()
    }

    fn set_status(&self, status: Status) {
        *self.status.lock().expect("nobody panics while holding it") = Arc::new(status);
        self.turned.notify_waiters();
        (self.config.on_change)();
    }
}
