//! Writing a replica's log: in the replica's own turn, or beside it with group commit.
//!
//! ```text
//! not synced   replica loop ── append ──▶ page cache            the turn itself makes the entries "persisted"
//! synced       replica loop ── entries ──▶ log task ── append, sync ──▶ disk
//!                        ▲────── persisted up to OpId ─────┘    whatever came meanwhile goes with the next sync
//! ```
//!
//! Entries that peers lack and nobody holds in memory any more are read back here too, between two groups.
//!
//! Commit entries say what an applied operation did. They need no sync of their own: without one, a restart decides
//! the operation afresh from the same state. So they travel with the next operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::error::{Error, Result};
use engine::ids::OpId;
use engine::raft::message::ReadLog;
use engine::replica::{LogWrite, write_log};
use engine::wal::{Entry, Replicate, Wal};
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
    /// Write, sync, and report the last operation as persisted.
    Append { writes: Vec<LogWrite>, last: Option<OpId> },
    /// Read operations back, those of every write before included.
    Read(ReadLog),
    /// Make everything before durable, let `work` have the log, and answer.
    With(WithWal),
    /// Make everything before durable and give the log back.
    Stop(oneshot::Sender<Box<Wal>>),
}

/// Work on the log itself, for example cutting off what is no longer needed.
pub type WithWal = Box<dyn FnOnce(&mut Wal) + Send>;

/// What the log task reports to the replica.
pub enum LogDone {
    /// Everything up to this operation is durable, or nothing is certain any more.
    Persisted(Result<OpId>),
    Read(ReadLog, Result<Vec<Replicate>>),
}

/// Takes what the log task reports.
pub type Report = Box<dyn Fn(LogDone) + Send>;

/// Starts the task that syncs what it appends. `report` is called for every group and every read.
///
/// `bytes` is kept at the size of the log.
pub fn start(env: &Env, wal: Wal, bytes: Arc<AtomicU64>, report: Report) -> Log {
    let (works, inbox) = mpsc::unbounded_channel();
    env.spawn("log", LogTask { env: env.clone(), wal: Box::new(wal), bytes, inbox, report }.run());
    Log::Beside(works)
}

struct LogTask {
    env: Env,
    wal: Box<Wal>,
    bytes: Arc<AtomicU64>,
    inbox: mpsc::UnboundedReceiver<LogWork>,
    report: Report,
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
                (self.report)(LogDone::Persisted(result));
            }
            // Whoever has the log now finds that the replica was told first what is durable in it.
            let (wal, works) = (&mut self.wal, outcome.works);
            if !works.is_empty() {
                env.run(|| works.into_iter().for_each(|work| work(wal))).await;
            }
            for (read, result) in outcome.reads {
                (self.report)(LogDone::Read(read, result));
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
    works: Vec<WithWal>,
    reads: Vec<(ReadLog, Result<Vec<Replicate>>)>,
    stop: Option<oneshot::Sender<Box<Wal>>>,
}

fn write_group(wal: &mut Wal, group: Vec<LogWork>) -> GroupOutcome {
    let mut outcome = GroupOutcome::default();
    let mut writes = Vec::new();
    let mut last = None;
    let mut reads = Vec::new();
    for work in group {
        match work {
            LogWork::Append { writes: more, last: op } => {
                if writes.is_empty() {
                    writes = more
                } else {
                    writes.extend(more)
                }
                last = op.or(last);
            }
            LogWork::Read(read) => reads.push(read),
            LogWork::With(work) => outcome.works.push(work),
            LogWork::Stop(answer) => outcome.stop = Some(answer),
        }
    }
    let written = write_and_sync(wal, writes);
    outcome.persisted = match written {
        Ok(()) => last.map(Ok),
        Err(error) => Some(Err(error)),
    };
    outcome.reads = reads.into_iter().map(|read| (read, wal.read(read.from, read.max_bytes))).collect();
    outcome
}

/// Writes and makes durable.
pub fn write_and_sync(wal: &mut Wal, writes: Vec<LogWrite>) -> Result<()> {
    write_log(wal, writes)?;
    wal.sync()
}

/// The last operation that `writes` append, if they do.
pub fn last_op(writes: &[LogWrite]) -> Option<OpId> {
    writes.iter().rev().find_map(|write| match write {
        LogWrite::Append(Entry::Replicate(replicate)) => Some(replicate.op),
        LogWrite::Append(Entry::Commit(_)) | LogWrite::Truncate(_) => None,
    })
}

/// Whether `writes` have to reach the log now.
pub fn has_operations(writes: &[LogWrite]) -> bool {
    writes.iter().any(|write| !matches!(write, LogWrite::Append(Entry::Commit(_))))
}

/// The log task is gone, which only happens when the node goes down.
pub fn gone() -> Error {
    Error::aborted("the log of this replica is closed")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc as threads;

    use engine::disk::mem::MemDisk;
    use engine::wal::WalConfig;

    use super::*;
    use crate::env::os::{OsEnv, OsOptions};

    const CONFIG: WalConfig = WalConfig { segment_bytes_max: 1 << 20, preallocate: false, compress: false };

    /// A copy's source says what of its log is durable: the replica must have heard of it by then.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_replica_hears_what_is_durable_before_others_have_the_log() {
        let env = OsEnv::new(&OsOptions::default()).expect("there is entropy");
        let wal = Wal::create(Arc::new(MemDisk::new(1)), "wal", CONFIG).expect("a log");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let told = heard.clone();
        let report = Box::new(move |done| {
            if let LogDone::Persisted(Ok(op)) = done {
                told.lock().unwrap().push(op.to_string());
            }
        });
        let Log::Beside(works) = start(&env, wal, Arc::default(), report) else { panic!("it has a task") };
        let (go_on, wait) = threads::channel();
        works.send(LogWork::With(Box::new(move |_| wait.recv().unwrap()))).ok().unwrap();
        // While the task waits in that work, these become one group.
        let last = Some(OpId { term: 1, index: 7 });
        works.send(LogWork::Append { writes: Vec::new(), last }).ok().unwrap();
        let (answer, answered) = oneshot::channel();
        let seen = heard.clone();
        let work = move |_: &mut Wal| answer.send(seen.lock().unwrap().clone()).unwrap();
        works.send(LogWork::With(Box::new(work))).ok().unwrap();
        go_on.send(()).unwrap();
        assert_eq!(answered.await.unwrap(), ["1.7"]);
    }
}
