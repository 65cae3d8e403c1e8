//! What the handle of a replica and its event loop share: state, configuration and commands.

use engine::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use engine::disk::Disk;
use engine::error::{Error, Result};
use engine::ids::{OpId, PeerId, Term};
use engine::memory::Reservation;
use engine::raft::{self, ConsensusMeta, RaftReply, RaftStatus};
use engine::replica::{Op, OpResult, Replica, ReplicaEffects, RequestId, consensus_meta_store};
use engine::tablet::Tablet;
use engine::time::Timestamp;
use tokio::sync::{Notify, mpsc, oneshot};

use super::hibernation::HibernationSlot;
use super::log_anchors::LogAnchors;
use crate::changed_flag::LiveSeconds;
use crate::hosting::log_writer;
use crate::hosting::raft_transport::RaftTransport;
use crate::hosting::replica_metrics::ReplicaMetrics;
use crate::server_clock::ServerClock;
use nyala_common::env::Env;
use nyala_common::rpc::call_steps::CallSteps;

/// Callback for a tracked request that took effect: its id, timestamp and result.
pub type OnCompleted = Arc<dyn Fn(&RequestId, Timestamp, &OpResult) + Send + Sync>;

/// Environment and limits of one replica.
#[derive(Clone)]
pub struct ReplicaConfig {
    /// True if a write is acknowledged only after its entry is synced.
    pub log_sync: bool,
    /// Bytes of proposals that may be in flight; more are rejected as throttled.
    pub pending_bytes_max: usize,
    /// Longest frame that the tablet's other servers accept, in bytes: an operation must fit.
    pub frame_bytes_max: usize,
    /// Transport to the tablet's other replicas.
    pub peers: RaftTransport,
    /// Silence after which a member counts as failed.
    pub follower_failed_after: LiveSeconds,
    /// True if masters replace the replica once it has failed.
    pub is_replaced: bool,
    /// Called when the replica fails.
    pub on_failure: Arc<dyn Fn() + Send + Sync>,
    /// Called when the tablet report would differ: another leader, other members, another health of a member.
    pub on_change: Arc<dyn Fn() + Send + Sync>,
    /// Called for requests that took effect without a call to this replica.
    pub on_completed: OnCompleted,
}

/// An operation that took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedOp {
    pub op_id: OpId,
    pub timestamp: Timestamp,
    pub result: OpResult,
}

/// State of a replica that its loop and its callers share.
pub(super) struct Shared {
    pub(super) env: Env,
    pub(super) clock: ServerClock,
    pub(super) tablet: Arc<Tablet>,
    /// Id of the replica in its group.
    pub(super) me: PeerId,
    pub(super) config: ReplicaConfig,
    /// Bytes of proposals in flight.
    pub(super) pending_bytes: AtomicUsize,
    pub(super) failure: Mutex<Option<Error>>,
    /// True after [`ReplicaHandle::stop`].
    pub(super) stopping: AtomicBool,
    /// Held while a maintenance job runs, beside the loop and beyond its end.
    pub(super) job_lock: tokio::sync::Mutex<()>,
    /// Notified when operations are applied, safe time advances, or the replica fails.
    pub(super) progress: Notify,
    /// Status at the last change that a tablet report shows.
    pub(super) status: Mutex<Arc<RaftStatus>>,
    /// Notified when the status changes.
    pub(super) status_changed: Notify,
    /// Number of running checks that the group can do without the damaged replica.
    pub(super) damage_checks: AtomicUsize,
    /// Hibernation state: takes events that need not wake the loop.
    pub(super) hibernation: HibernationSlot,
    pub(super) log_sizes: Arc<log_writer::LogSizes>,
    /// Log anchors of copies from this replica.
    pub(super) log_anchors: Arc<LogAnchors>,
    /// Bytes of the consensus metadata.
    pub(super) consensus_meta_bytes: AtomicU64,
    pub(super) metrics: Arc<ReplicaMetrics>,
}

pub(super) type ReplySender = oneshot::Sender<Result<CommittedOp>>;
pub(super) type WithReplica = Box<dyn FnOnce(&mut Replica, &mut ReplicaEffects) + Send>;
pub(super) type MakeEvent = Box<dyn FnOnce(u64) -> raft::RaftEvent + Send>;

/// Message to the event loop.
pub(super) enum Command {
    Propose {
        op: Op,
        request: Option<RequestId>,
        /// The only term in which the operation may be proposed, if given.
        term: Option<Term>,
        /// Reservation for the operation, held until it is applied.
        reservation: Option<Reservation>,
        /// Steps of the call that proposes it.
        steps: Option<Arc<CallSteps>>,
        bytes: usize,
        reply_sender: ReplySender,
    },
    /// A request that gets a [`RaftReply`]; `bytes` of operations come with it.
    Ask {
        event: MakeEvent,
        bytes: usize,
        reply_sender: oneshot::Sender<RaftReply>,
        /// Reservation for the operations up to this index, held until they are applied.
        reservation: Option<(u64, Reservation)>,
        /// Steps of the call that brings the operations up to this index.
        steps: Option<(u64, Arc<CallSteps>)>,
    },
    /// Result of a message or of a read of the log.
    Event(raft::RaftEvent),
    /// A reader waits until every operation below this timestamp is applied.
    WantSnapshot(Timestamp),
    /// Result of the log task: everything up to this operation is durable, and the times of its group.
    Persisted(Result<OpId>, log_writer::GroupTimes),
    /// True while the log task waits for space on its device.
    LogWaitsForSpace(bool),
    /// Wakes the loop of a replica that failed outside of it, so that it rejects the waiting callers.
    Failed,
    MetaStored(u64, Result<()>),
    With(WithReplica),
    WithWal(log_writer::WalFn),
    Stop(oneshot::Sender<Replica>),
}

/// Runs a turn with a command if the loop is idle, or returns the command for the inbox.
pub(super) type VisitFn = Arc<dyn Fn(Command) -> Option<Command> + Send + Sync>;

/// Sender for the events of tasks that work for a loop; weak, because they must not keep it alive.
#[derive(Clone)]
pub(super) struct EventSender {
    inbox: mpsc::WeakUnboundedSender<Command>,
    visit: VisitFn,
}

impl EventSender {
    pub(super) fn new(inbox: mpsc::WeakUnboundedSender<Command>, visit: VisitFn) -> EventSender {
        EventSender { inbox, visit }
    }

    /// Sends a command; a loop that ended needs none.
    pub(super) fn queue(&self, command: Command) {
        if let Some(inbox) = self.inbox.upgrade() {
            let _ended = inbox.send(command);
        }
    }

    /// Processes a command here if the replica is idle, else sends it.
    pub(super) fn post(&self, command: Command) {
        if let Some(command) = (self.visit)(command) {
            self.queue(command);
        }
    }
}

/// Pause between attempts to store consensus metadata on a full device.
const FULL_DEVICE_PAUSE: Duration = Duration::from_secs(1);

impl Shared {
    /// Stores consensus metadata; on a full device, when there is space again. What depends on it waits meanwhile.
    pub(super) async fn store_meta(&self, disk: &dyn Disk, meta: &ConsensusMeta) -> Result<()> {
        loop {
            let stored = self.env.run(|| consensus_meta_store::store(disk, meta)).await;
            let ends = self.stopping.load(Ordering::Relaxed) || self.failure().is_some();
            match stored {
                Err(error) if error.is_no_space() && !ends => {
                    tracing::warn!(tablet = %self.tablet.tablet, %error, "a vote or term waits for space");
                    self.env.sleep(FULL_DEVICE_PAUSE).await;
                }
                stored => return stored,
            }
        }
    }

    pub(super) fn failure(&self) -> Option<Error> {
        self.failure.lock().clone()
    }

    pub(super) fn fail(&self, error: &Error) {
        let mut failure = self.failure.lock();
        if failure.is_none() {
            tracing::error!(tablet = %self.tablet.tablet, %error, "a replica failed");
            *failure = Some(error.clone());
            drop(failure);
            (self.config.on_failure)();
        }
        self.progress.notify_waiters();
        self.status_changed.notify_waiters();
    }

    pub(super) fn status(&self) -> Arc<RaftStatus> {
        self.status.lock().clone()
    }

    pub(super) fn set_status(&self, status: RaftStatus) {
        *self.status.lock() = Arc::new(status);
        self.status_changed.notify_waiters();
        (self.config.on_change)();
    }
}

/// Returns the error for callers of a replica that stops.
pub(super) fn stopped() -> Error {
    Error::aborted("the tablet is shutting down")
}

/// Returns the error for a proposal in an earlier term.
pub(super) fn other_term(term: Term) -> Error {
    Error::not_leader(format!("this replica leads no longer in term {term}"))
}
