//! Writer of a replica's log: in the replica's own turn, or in a log task with group commit.
//!
//! ```text
//! not synced   replica loop ── append ──▶ page cache            the turn itself makes the entries "persisted"
//! synced       replica loop ── entries ──▶ log task ── append, sync ──▶ disk
//!                        ▲────── persisted up to OpId ─────┘    entries that arrive meanwhile share the next sync
//! ```
//!
//! Entries that peers lack and that are no longer in memory are read back by the same task, between two groups.
//!
//! Commit entries record the result of an applied operation. They need no sync of their own: without one, a restart
//! computes the result again from the same state. So they are written with the next operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::error::{Error, Result};
use engine::ids::OpId;
use engine::raft::interface::LogReadRequest;
use engine::replica::{LogWrite, write_log};
use engine::wal::{LogEntry, ReplicateEntry, Wal};
use tokio::sync::{mpsc, oneshot};

use super::replica_metrics::ReplicaMetrics;
use nyala_common::env::Env;

/// Destination of the entries that a turn of the replica appended.
pub enum LogWriter {
    /// Appends in the replica's turn, without syncing.
    Here(Box<Wal>),
    /// Sends the entries to the log task.
    Beside(mpsc::UnboundedSender<LogRequest>),
}

/// Requests to the log task, processed in order.
pub enum LogRequest {
    /// Writes, syncs, and reports the last operation as persisted.
    Append { writes: Vec<LogWrite>, last: Option<OpId> },
    /// Reads operations back, including those of all earlier writes.
    Read(LogReadRequest),
    /// Makes all earlier writes durable, runs `work` on the log, and replies.
    With(WalFn),
    /// Makes all earlier writes durable and returns the log.
    Stop(oneshot::Sender<Box<Wal>>),
}

/// Work on the log itself, for example log GC.
pub type WalFn = Box<dyn FnOnce(&mut Wal) + Send>;

/// Event that the log task reports to the replica.
pub enum LogEvent {
    /// Everything up to this operation is durable; after an error nothing is known to be durable.
    Persisted(Result<OpId>),
    Read(LogReadRequest, Result<Vec<ReplicateEntry>>),
}

/// Callback for the log task's events.
pub type LogCallback = Box<dyn Fn(LogEvent) + Send>;

/// Sizes of a log in bytes, as of its last change.
#[derive(Default)]
pub struct LogSizes {
    written: AtomicU64,
    on_disk: AtomicU64,
}

impl LogSizes {
    pub fn update(&self, wal: &Wal) {
        self.written.store(wal.bytes(), Ordering::Relaxed);
        self.on_disk.store(wal.disk_bytes(), Ordering::Relaxed);
    }

    /// Returns the bytes written.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Returns the bytes that the log takes on the device, with reserved space.
    pub fn on_disk(&self) -> u64 {
        self.on_disk.load(Ordering::Relaxed)
    }
}

/// Starts the task that syncs the entries it appends. `report` is called for every group and every read.
///
/// `sizes` are updated to those of the log, `metrics` by each group.
pub fn start(
    env: &Env,
    wal: Wal,
    sizes: Arc<LogSizes>,
    metrics: Arc<ReplicaMetrics>,
    report: LogCallback,
) -> LogWriter {
    let (works, inbox) = mpsc::unbounded_channel();
    env.spawn("log", LogTask { env: env.clone(), wal: Box::new(wal), sizes, metrics, inbox, report }.run());
    LogWriter::Beside(works)
}

struct LogTask {
    env: Env,
    wal: Box<Wal>,
    sizes: Arc<LogSizes>,
    metrics: Arc<ReplicaMetrics>,
    inbox: mpsc::UnboundedReceiver<LogRequest>,
    report: LogCallback,
}

/// Largest number of requests in one group.
const GROUP_MAX: usize = 1024;

impl LogTask {
    async fn run(mut self) {
        let mut works = Vec::new();
        while self.inbox.recv_many(&mut works, GROUP_MAX).await > 0 {
            let env = self.env.clone();
            let (wal, group, metrics) = (&mut self.wal, std::mem::take(&mut works), &*self.metrics);
            let outcome = env.run(|| write_group(wal, group, &GroupTimer { env: &env, metrics })).await;
            self.sizes.update(&self.wal);
            if let Some(result) = outcome.persisted {
                (self.report)(LogEvent::Persisted(result));
            }
            // Order: the replica receives the durable operations before the work gets the log.
            let (wal, works) = (&mut self.wal, outcome.works);
            if !works.is_empty() {
                env.run(|| works.into_iter().for_each(|work| work(wal))).await;
                self.sizes.update(&self.wal);
            }
            for (read, result) in outcome.reads {
                (self.report)(LogEvent::Read(read, result));
            }
            if let Some(reply_sender) = outcome.stop {
                // If the caller has stopped waiting, dropping the log closes it.
                drop(reply_sender.send(self.wal));
                return;
            }
        }
    }
}

#[derive(Default)]
struct GroupOutcome {
    persisted: Option<Result<OpId>>,
    works: Vec<WalFn>,
    reads: Vec<(LogReadRequest, Result<Vec<ReplicateEntry>>)>,
    stop: Option<oneshot::Sender<Box<Wal>>>,
}

/// Clock and metrics of a group.
struct GroupTimer<'a> {
    env: &'a Env,
    metrics: &'a ReplicaMetrics,
}

impl GroupTimer<'_> {
    /// Writes and syncs `writes`, and records the times.
    fn write_and_sync(&self, wal: &mut Wal, writes: Vec<LogWrite>) -> Result<()> {
        let began = self.env.now().mono;
        write_log(wal, writes)?;
        let appended = self.env.now().mono;
        self.metrics.log_append.record_micros(appended.since(began));
        wal.sync()?;
        let synced = self.env.now().mono;
        self.metrics.log_sync.record_micros(synced.since(appended));
        self.metrics.log_group.record_micros(synced.since(began));
        Ok(())
    }
}

fn write_group(wal: &mut Wal, group: Vec<LogRequest>, timer: &GroupTimer<'_>) -> GroupOutcome {
    let mut outcome = GroupOutcome::default();
    let mut writes = Vec::new();
    let mut last = None;
    let mut reads = Vec::new();
    let mut appends = 0;
    for work in group {
        match work {
            LogRequest::Append { writes: more, last: op } => {
                if writes.is_empty() {
                    writes = more
                } else {
                    writes.extend(more)
                }
                last = op.or(last);
                appends += 1;
            }
            LogRequest::Read(read) => reads.push(read),
            LogRequest::With(work) => outcome.works.push(work),
            LogRequest::Stop(reply_sender) => outcome.stop = Some(reply_sender),
        }
    }
    let written =
        if writes.is_empty() { write_and_sync(wal, writes) } else { timer.write_and_sync(wal, writes) };
    if appends > 0 {
        timer.metrics.log_appends_per_group.record(appends);
    }
    outcome.persisted = match written {
        Ok(()) => last.map(Ok),
        Err(error) => Some(Err(error)),
    };
    outcome.reads = reads.into_iter().map(|read| (read, wal.read(read.from, read.max_bytes))).collect();
    outcome
}

/// Writes and syncs `writes`.
pub fn write_and_sync(wal: &mut Wal, writes: Vec<LogWrite>) -> Result<()> {
    write_log(wal, writes)?;
    wal.sync()
}

/// Returns the last operation that `writes` append, if any.
pub fn last_op(writes: &[LogWrite]) -> Option<OpId> {
    writes.iter().rev().find_map(|write| match write {
        LogWrite::Append(LogEntry::Replicate(replicate)) => Some(replicate.op),
        LogWrite::Append(LogEntry::Commit(_)) | LogWrite::Truncate(_) => None,
    })
}

/// Returns true if `writes` must reach the log now.
pub fn has_operations(writes: &[LogWrite]) -> bool {
    writes.iter().any(|write| !matches!(write, LogWrite::Append(LogEntry::Commit(_))))
}

/// Returns the error for a log task that ended, which happens only when the node goes down.
pub fn log_task_ended() -> Error {
    Error::aborted("the log of this replica is closed")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc as threads;

    use engine::disk::mem::MemDisk;
    use engine::wal::WalConfig;

    use super::*;
    use nyala_common::env::os::{OsEnv, OsOptions};

    const CONFIG: WalConfig = WalConfig { segment_bytes_max: 1 << 20, preallocate: false, compress: false };

    /// The source of a copy reports the durable part of its log, so the replica must have received it by then.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_replica_receives_durable_operations_before_work_gets_the_log() {
        let env = OsEnv::new(&OsOptions::default()).expect("there is entropy");
        let wal = Wal::create(Arc::new(MemDisk::new(1)), "wal", CONFIG).expect("a log");
        let reports = Arc::new(Mutex::new(Vec::new()));
        let reported = reports.clone();
        let report = Box::new(move |done| {
            if let LogEvent::Persisted(Ok(op)) = done {
                reported.lock().unwrap().push(op.to_string());
            }
        });
        let LogWriter::Beside(works) = start(&env, wal, Arc::default(), Arc::default(), report) else {
            panic!("it has a task")
        };
        let (go_on, wait) = threads::channel();
        works.send(LogRequest::With(Box::new(move |_| wait.recv().unwrap()))).ok().unwrap();
        // While the task waits in that work, these become one group.
        let last = Some(OpId { term: 1, index: 7 });
        works.send(LogRequest::Append { writes: Vec::new(), last }).ok().unwrap();
        let (reply_sender, reply_receiver) = oneshot::channel();
        let seen = reports.clone();
        let work = move |_: &mut Wal| reply_sender.send(seen.lock().unwrap().clone()).unwrap();
        works.send(LogRequest::With(Box::new(work))).ok().unwrap();
        go_on.send(()).unwrap();
        assert_eq!(reply_receiver.await.unwrap(), ["1.7"]);
    }
}
