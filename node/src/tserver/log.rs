//! Writing a replica's log: in the replica's own turn, or beside it with group commit.
//!
//! ```text
//! not synced   replica loop ── append ──▶ page cache            the turn itself makes the entries "persisted"
//! synced       replica loop ── entries ──▶ log task ── append, sync ──▶ disk
//!                        ▲────── persisted up to OpId ─────┘    whatever came meanwhile goes with the next sync
//! ```
//!
//! Commit entries say what an applied operation did. They need no sync of their own: without one, a restart decides
//! the operation afresh from the same state. So they travel with the next operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::error::{Error, Result};
use engine::ids::OpId;
use engine::wal::{Entry, Wal};
use tokio::sync::{mpsc, oneshot};

use crate::env::Env;

/// Takes what a turn of the replica appended.
pub enum Log {
    /// Appends in the replica's turn, without syncing.
    Here(Box<Wal>),
    /// Hands over to the log task.
    Beside(mpsc::UnboundedSender<LogWork>),
}

/// What the log task is asked to do, in this order.
pub enum LogWork {
    /// Append, sync, and report the last operation as persisted.
    Append { entries: Vec<Entry>, last: Option<OpId> },
    /// Make everything before durable, let `work` have the log, and answer.
    With(WithWal),
    /// Make everything before durable and give the log back.
    Stop(oneshot::Sender<Box<Wal>>),
}

/// Work on the log itself, for example cutting off what is no longer needed.
pub type WithWal = Box<dyn FnOnce(&mut Wal) + Send>;

/// What the log task reports to the replica.
pub type Persisted = Box<dyn Fn(Result<OpId>) + Send>;

/// Starts the task that syncs what it appends. `persisted` is called for every group.
///
/// `bytes` is kept at the size of the log.
pub fn start(env: &Env, wal: Wal, bytes: Arc<AtomicU64>, persisted: Persisted) -> Log {
    let (works, inbox) = mpsc::unbounded_channel();
    env.spawn("log", LogTask { env: env.clone(), wal: Box::new(wal), bytes, inbox, persisted }.run());
    Log::Beside(works)
}

struct LogTask {
    env: Env,
    wal: Box<Wal>,
    bytes: Arc<AtomicU64>,
    inbox: mpsc::UnboundedReceiver<LogWork>,
    persisted: Persisted,
}

/// How many hand-overs go into one group at most.
const GROUP_MAX: usize = 1024;

impl LogTask {
    async fn run(mut self) {
        let mut works = Vec::new();
        while self.inbox.recv_many(&mut works, GROUP_MAX).await > 0 {
            let env = self.env.clone();
            let (wal, group) = (&mut self.wal, std::mem::take(&mut works));
            let outcome = env.run(|| write_group(wal, group)).await;
            self.bytes.store(self.wal.bytes(), Ordering::Relaxed);
            if let Some(result) = outcome.persisted {
                (self.persisted)(result);
            }
            if let Some(answer) = outcome.stop {
                // Nobody waiting for the log any more is fine: it is closed by being dropped.
                drop(answer.send(self.wal));
                return;
            }
        }
    }
}

#[derive(Default)]
struct GroupOutcome {
    persisted: Option<Result<OpId>>,
    stop: Option<oneshot::Sender<Box<Wal>>>,
}

fn write_group(wal: &mut Wal, group: Vec<LogWork>) -> GroupOutcome {
    let mut outcome = GroupOutcome::default();
    let mut entries = Vec::new();
    let mut last = None;
    let mut then = Vec::new();
    for work in group {
        match work {
            LogWork::Append { entries: more, last: op } => {
                if entries.is_empty() {
                    entries = more
                } else {
                    entries.extend(more)
                }
                last = op.or(last);
            }
            LogWork::With(work) => then.push(work),
            LogWork::Stop(answer) => outcome.stop = Some(answer),
        }
    }
    let written = append_and_sync(wal, &entries);
    outcome.persisted = match written {
        Ok(()) => last.map(Ok),
        Err(error) => Some(Err(error)),
    };
    then.into_iter().for_each(|work| work(wal));
    outcome
}

/// Appends and makes durable.
pub fn append_and_sync(wal: &mut Wal, entries: &[Entry]) -> Result<()> {
    if !entries.is_empty() {
        wal.append(entries)?;
    }
    wal.sync()
}

/// The last operation among `entries`, if any is one.
pub fn last_op(entries: &[Entry]) -> Option<OpId> {
    entries.iter().rev().find_map(|entry| match entry {
        Entry::Replicate(replicate) => Some(replicate.op),
        Entry::Commit(_) => None,
    })
}

/// The log task is gone, which only happens when the node goes down.
pub fn gone() -> Error {
    Error::aborted("the log of this replica is closed")
}
