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
//! A full device fails no replica: the entries stay in memory and are tried again with growing pauses. Meanwhile the
//! log is read, but gets no other work, because that may only see durable entries. A read leaves out what a waiting
//! write truncates: it is not in the replica's log any more.
//!
//! Commit entries record the result of an applied operation. They need no sync of their own: without one, a restart
//! computes the result again from the same state. So they are written with the next operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::error::{Error, Result};
use engine::ids::OpId;
use engine::raft::interface::LogReadRequest;
use engine::replica::{LogWrite, write_log_from};
use engine::time::Instant;
use engine::wal::{LogEntry, ReplicateEntry, Wal};
use tokio::sync::{mpsc, oneshot};

use super::replica_metrics::ReplicaMetrics;
use nyala_common::env::Env;

/// Destination of the entries that a turn of the replica appended.
pub(super) enum LogWriter {
    /// Appends in the replica's turn, without syncing.
    Here(Box<Wal>),
    /// Sends the entries to the log task.
    Beside(mpsc::UnboundedSender<LogRequest>),
}

/// Requests to the log task, processed in order.
pub(super) enum LogRequest {
    /// Writes, syncs, and reports the last operation as persisted.
    Append { writes: Vec<LogWrite>, last: Option<OpId> },
    /// Reads operations back: those of all earlier writes, except for writes that wait for space.
    Read(LogReadRequest),
    /// Makes all earlier writes durable, runs `work` on the log, and replies.
    With(WalFn),
    /// Makes all earlier writes durable and returns the log.
    Stop(oneshot::Sender<Box<Wal>>),
}

/// Work on the log itself, for example log GC.
pub(super) type WalFn = Box<dyn FnOnce(&mut Wal) + Send>;

/// Event that the log task reports to the replica.
pub(super) enum LogEvent {
    /// Everything up to this operation is durable; after an error nothing is known to be durable.
    Persisted(Result<OpId>, GroupTimes),
    Read(LogReadRequest, Result<Vec<ReplicateEntry>>),
    /// True while the device is full: nothing becomes durable.
    WaitsForSpace(bool),
}

/// Times of a group of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct GroupTimes {
    pub(super) began: Instant,
    pub(super) appended: Instant,
    pub(super) synced: Instant,
}

/// Load of the log task when it reports an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogLoad {
    /// No request waits, so the log task may process what the event causes.
    Idle,
    Busy,
}

/// Callback for the log task's events.
pub(super) type LogCallback = Box<dyn Fn(LogEvent, LogLoad) + Send>;

/// Sizes of a log in bytes, as of its last change.
#[derive(Default)]
pub(super) struct LogSizes {
    written: AtomicU64,
    on_disk: AtomicU64,
}

impl LogSizes {
    pub(super) fn update(&self, wal: &Wal) {
        self.written.store(wal.bytes(), Ordering::Relaxed);
        self.on_disk.store(wal.disk_bytes(), Ordering::Relaxed);
    }

    /// Returns the bytes written.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Returns the bytes that the log takes on the device, with reserved space.
    pub(super) fn on_disk(&self) -> u64 {
        self.on_disk.load(Ordering::Relaxed)
    }
}

/// Starts the task that syncs the entries it appends. `report` is called for every group and every read.
///
/// `sizes` are updated to those of the log, `metrics` by each group.
pub(super) fn start(
    env: &Env,
    wal: Wal,
    sizes: Arc<LogSizes>,
    metrics: Arc<ReplicaMetrics>,
    report: LogCallback,
) -> LogWriter {
    let (works, inbox) = mpsc::unbounded_channel();
    let state = LogState { wal: Box::new(wal), writes: Vec::new(), last: None, failure: None };
    let retry = FullDeviceRetry::default();
    env.spawn("log", LogTask { env: env.clone(), state, sizes, metrics, inbox, report, retry }.run());
    LogWriter::Beside(works)
}

/// First pause after the device was full; each further one is twice as long.
const FULL_DEVICE_PAUSE_MIN: Duration = Duration::from_millis(250);
const FULL_DEVICE_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Time of the next attempt to write to a device that was full.
#[derive(Debug, Default)]
pub(super) struct FullDeviceRetry {
    pause: Duration,
    at: Option<Instant>,
}

impl FullDeviceRetry {
    /// Returns the time of the next attempt, if the last one found the device full.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Returns true before the time of the next attempt.
    pub(super) fn is_waiting(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| now < at)
    }

    /// Records that an attempt found the device full. The first of several is logged.
    pub(super) fn found_full(&mut self, now: Instant, error: &Error) {
        if self.at.is_none() {
            tracing::warn!(%error, "the device of a log is full; its replica waits for space");
        }
        self.pause = (self.pause * 2).clamp(FULL_DEVICE_PAUSE_MIN, FULL_DEVICE_PAUSE_MAX);
        self.at = Some(now.after(self.pause));
    }

    /// Records that an attempt succeeded.
    pub(super) fn found_space(&mut self) {
        if self.at.is_some() {
            tracing::info!("a log that waited for space is written again");
            *self = FullDeviceRetry::default();
        }
    }
}

/// Returns true if `error` of `wal` asks to try again once the device has space.
pub(super) fn is_full(wal: &Wal, error: &Error) -> bool {
    error.is_no_space() && wal.failure().is_none()
}

struct LogTask {
    env: Env,
    state: LogState,
    sizes: Arc<LogSizes>,
    metrics: Arc<ReplicaMetrics>,
    inbox: mpsc::UnboundedReceiver<LogRequest>,
    report: LogCallback,
    retry: FullDeviceRetry,
}

/// A log and what it has not taken yet.
struct LogState {
    wal: Box<Wal>,
    writes: Vec<LogWrite>,
    /// The last operation of `writes` to report.
    last: Option<OpId>,
    /// The first write that failed, except for a full device. Its entries are gone, and those after it would not follow
    /// on the log: from then on nothing is written, and no work sees the log.
    failure: Option<Error>,
}

/// Largest number of requests in one group.
const GROUP_MAX: usize = 1024;

impl LogTask {
    async fn run(mut self) {
        let mut works = Vec::new();
        while self.receive(&mut works).await {
            let (env, group) = (self.env.clone(), std::mem::take(&mut works));
            let may_write = !self.retry.is_waiting(env.now().mono);
            let (state, timer) = (&mut self.state, GroupTimer { env: &env, metrics: &self.metrics });
            // After a full device the group has the writes of earlier ones, too.
            let is_brief = self.retry.at().is_none() && is_brief(&group);
            let run = || state.run_group(group, may_write, &timer);
            let outcome = if is_brief { env.run_brief(run).await } else { env.run(run).await };
            self.sizes.update(&self.state.wal);
            match &outcome.full {
                Some(error) => {
                    self.retry.found_full(env.now().mono, error);
                    (self.report)(LogEvent::WaitsForSpace(true), LogLoad::Busy);
                }
                None if may_write && self.retry.at().is_some() => {
                    self.retry.found_space();
                    (self.report)(LogEvent::WaitsForSpace(false), LogLoad::Busy);
                }
                None => {}
            }
            let is_idle = outcome.is_append_only() && self.inbox.is_empty();
            if let Some(result) = outcome.persisted {
                let load = if is_idle { LogLoad::Idle } else { LogLoad::Busy };
                (self.report)(LogEvent::Persisted(result, outcome.times), load);
            }
            // Order: the replica receives the durable operations before the work gets the log.
            let (wal, works) = (&mut self.state.wal, outcome.works);
            if !works.is_empty() {
                env.run(|| works.into_iter().for_each(|work| work(wal))).await;
                self.sizes.update(&self.state.wal);
            }
            for (read, result) in outcome.reads {
                (self.report)(LogEvent::Read(read, result), LogLoad::Busy);
            }
            if let Some(reply_sender) = outcome.stop {
                // If the caller has stopped waiting, dropping the log closes it.
                drop(reply_sender.send(self.state.wal));
                return;
            }
        }
    }

    /// Waits for requests, or until a full device is to be tried again. Returns false when the replica has gone.
    async fn receive(&mut self, works: &mut Vec<LogRequest>) -> bool {
        let received = self.inbox.recv_many(works, GROUP_MAX);
        let Some(at) = self.retry.at() else { return received.await > 0 };
        let left = at.since(self.env.now().mono);
        self.env.timeout(left, received).await.is_none_or(|count| count > 0)
    }
}

#[derive(Default)]
struct GroupOutcome {
    persisted: Option<Result<OpId>>,
    times: GroupTimes,
    /// The error that asks to try the writes again later.
    full: Option<Error>,
    works: Vec<WalFn>,
    reads: Vec<(LogReadRequest, Result<Vec<ReplicateEntry>>)>,
    stop: Option<oneshot::Sender<Box<Wal>>>,
}

impl GroupOutcome {
    /// Returns true if the group's requests have no other results to report than that the appends are durable.
    fn is_append_only(&self) -> bool {
        self.works.is_empty() && self.reads.is_empty() && self.stop.is_none()
    }
}

/// Clock and metrics of a group.
struct GroupTimer<'a> {
    env: &'a Env,
    metrics: &'a ReplicaMetrics,
}

impl GroupTimer<'_> {
    /// Writes and syncs `writes`, and records the times.
    fn write_and_sync(&self, wal: &mut Wal, writes: &mut Vec<LogWrite>) -> Result<GroupTimes> {
        let (began, bytes_before) = (self.env.now().mono, wal.bytes());
        write_log_from(wal, writes)?;
        self.metrics.log_written(wal.bytes().saturating_sub(bytes_before));
        let appended = self.env.now().mono;
        self.metrics.log_append.record_micros(appended.since(began));
        wal.sync()?;
        let synced = self.env.now().mono;
        self.metrics.log_sync.record_micros(synced.since(appended));
        self.metrics.log_group.record_micros(synced.since(began));
        Ok(GroupTimes { began, appended, synced })
    }
}

impl LogState {
    /// Processes a group of requests; without `may_write` the device is full, and the writes wait.
    fn run_group(&mut self, group: Vec<LogRequest>, may_write: bool, timer: &GroupTimer<'_>) -> GroupOutcome {
        let mut outcome = GroupOutcome::default();
        let mut reads = Vec::new();
        let mut appends = 0;
        for work in group {
            match work {
                LogRequest::Append { writes: more, last: op } => {
                    if self.writes.is_empty() {
                        self.writes = more
                    } else {
                        self.writes.extend(more)
                    }
                    self.last = op.or(self.last);
                    appends += 1;
                }
                LogRequest::Read(read) => reads.push(read),
                LogRequest::With(work) => outcome.works.push(work),
                LogRequest::Stop(reply_sender) => outcome.stop = Some(reply_sender),
            }
        }
        if may_write {
            self.write(&mut outcome, timer);
        }
        if appends > 0 {
            timer.metrics.log_appends_per_group.record(appends);
        }
        if !may_write || outcome.full.is_some() || self.failure.is_some() {
            // The callers get an error: their work needs the writes to be durable.
            outcome.works.clear();
        }
        let (wal, waiting) = (&self.wal, &self.writes);
        let read_one = |read| (read, read_back(wal, waiting, &read, timer.metrics));
        outcome.reads = reads.into_iter().map(read_one).collect();
        outcome
    }

    fn write(&mut self, outcome: &mut GroupOutcome, timer: &GroupTimer<'_>) {
        if let Some(error) = &self.failure {
            let refused = !std::mem::take(&mut self.writes).is_empty();
            outcome.persisted = refused.then(|| Err(error.clone()));
            return;
        }
        let written = match self.writes.is_empty() {
            true => write_and_sync(&mut self.wal, &mut self.writes).map(|()| GroupTimes::default()),
            false => timer.write_and_sync(&mut self.wal, &mut self.writes),
        };
        match written {
            Ok(times) => (outcome.persisted, outcome.times) = (self.last.take().map(Ok), times),
            Err(error) if is_full(&self.wal, &error) => outcome.full = Some(error),
            Err(error) => {
                self.writes.clear();
                self.failure.get_or_insert_with(|| error.clone());
                outcome.persisted = Some(Err(error));
            }
        }
    }
}

/// Largest payload of a group whose work ends in microseconds, but for the sync.
const BRIEF_GROUP_BYTES: usize = 64 << 10;

/// Returns true if the group takes little but its sync. Several requests mean that the server is busy.
fn is_brief(group: &[LogRequest]) -> bool {
    let [LogRequest::Append { writes, .. }] = group else { return false };
    let mut bytes = 0;
    let is_append = |write: &LogWrite| {
        if let LogWrite::Append(LogEntry::Replicate(replicate)) = write {
            bytes += replicate.payload.len();
        }
        matches!(write, LogWrite::Append(_))
    };
    writes.iter().all(is_append) && bytes <= BRIEF_GROUP_BYTES
}

/// Reads operations back that a member lacks, without those that the `waiting` writes truncate.
pub(super) fn read_back(
    wal: &Wal,
    waiting: &[LogWrite],
    read: &LogReadRequest,
    metrics: &ReplicaMetrics,
) -> Result<Vec<ReplicateEntry>> {
    let mut entries = wal.read(read.from, read.max_bytes)?;
    let bytes = entries.iter().map(|entry| entry.payload.len() as u64).sum();
    metrics.log_read(entries.len() as u64, bytes);
    if let Some(last) = waiting.iter().filter_map(truncation).min() {
        entries.retain(|entry| entry.op.index <= last);
    }
    Ok(entries)
}

/// Returns the index after which `write` truncates the log, if it does.
fn truncation(write: &LogWrite) -> Option<u64> {
    match write {
        LogWrite::Truncate(after) => Some(*after),
        LogWrite::Append(_) => None,
    }
}

/// Writes and syncs `writes`; after an error it holds what the log has not taken.
pub(super) fn write_and_sync(wal: &mut Wal, writes: &mut Vec<LogWrite>) -> Result<()> {
    write_log_from(wal, writes)?;
    wal.sync()
}

/// Returns the last operation that `writes` append, if any.
pub(super) fn last_op(writes: &[LogWrite]) -> Option<OpId> {
    writes.iter().rev().find_map(|write| match write {
        LogWrite::Append(LogEntry::Replicate(replicate)) => Some(replicate.op),
        LogWrite::Append(LogEntry::Commit(_)) | LogWrite::Truncate(_) => None,
    })
}

/// Returns true if `writes` must reach the log now.
pub(super) fn has_operations(writes: &[LogWrite]) -> bool {
    writes.iter().any(|write| !matches!(write, LogWrite::Append(LogEntry::Commit(_))))
}

/// Returns the error for a log task that ended, which happens only when the node goes down.
pub(super) fn log_task_ended() -> Error {
    Error::aborted("the log of this replica is closed")
}

#[cfg(test)]
mod tests {
    use engine::sync::Mutex;
    use std::sync::mpsc as threads;

    use engine::disk::mem::MemDisk;
    use engine::ids::Uuid;
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
        let report = Box::new(move |done, _| {
            if let LogEvent::Persisted(Ok(op), _) = done {
                reported.lock().push(op.to_string());
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
        let work = move |_: &mut Wal| reply_sender.send(seen.lock().clone()).unwrap();
        works.send(LogRequest::With(Box::new(work))).ok().unwrap();
        go_on.send(()).unwrap();
        assert_eq!(reply_receiver.await.unwrap(), ["1.7"]);
    }

    fn replicate(index: u64) -> LogWrite {
        let op = OpId { term: 1, index };
        let payload = bytes::Bytes::from(vec![7; 100]);
        LogWrite::Append(LogEntry::Replicate(ReplicateEntry {
            op,
            timestamp: Default::default(),
            kind: 1,
            payload,
        }))
    }

    fn append(index: u64) -> LogRequest {
        LogRequest::Append { writes: vec![replicate(index)], last: Some(OpId { term: 1, index }) }
    }

    type Requests = mpsc::UnboundedSender<LogRequest>;

    /// Starts a task for the log. Returns the senders of its requests, and what it reports.
    fn started(env: &Env, wal: Wal) -> (Requests, mpsc::UnboundedReceiver<LogEvent>) {
        let (reported, reports) = mpsc::unbounded_channel();
        let report = Box::new(move |done, _| drop(reported.send(done)));
        match start(env, wal, Arc::default(), Arc::default(), report) {
            LogWriter::Beside(works) => (works, reports),
            _ => panic!("it has a task"),
        }
    }

    /// Returns true if work does not get the log.
    async fn is_refused(works: &Requests) -> bool {
        let (reply_sender, reply_receiver) = oneshot::channel::<()>();
        let work = move |_: &mut Wal| reply_sender.send(()).expect("the test waits");
        works.send(LogRequest::With(Box::new(work))).ok().unwrap();
        reply_receiver.await.is_err()
    }

    /// Space comes back while the task waits, and all that waited becomes durable in order.
    #[tokio::test(start_paused = true)]
    async fn a_full_device_delays_the_log_and_ends_nothing() {
        let env = OsEnv::new(&OsOptions::default()).expect("there is entropy");
        let disk = MemDisk::new(1);
        let wal = Wal::create(Arc::new(disk.clone()), "wal", CONFIG).expect("a log");
        let (works, mut reports) = started(&env, wal);
        works.send(append(1)).ok().unwrap();
        assert!(matches!(reports.recv().await, Some(LogEvent::Persisted(Ok(op), _)) if op.index == 1));
        disk.set_free(10);
        works.send(append(2)).ok().unwrap();
        works.send(append(3)).ok().unwrap();
        // Other work is refused while the device is full, and reads are answered.
        assert!(is_refused(&works).await);
        env.sleep(Duration::from_secs(60)).await;
        let events: Vec<_> = std::iter::from_fn(|| reports.try_recv().ok()).collect();
        let waits = |event: &LogEvent| matches!(event, LogEvent::WaitsForSpace(true));
        assert!(!events.is_empty() && events.iter().all(waits), "nothing is durable and nothing has failed");
        disk.set_free(1 << 20);
        while !matches!(reports.recv().await, Some(LogEvent::WaitsForSpace(false))) {}
        assert!(matches!(reports.recv().await, Some(LogEvent::Persisted(Ok(op), _)) if op.index == 3));
        let (reply_sender, stopped) = oneshot::channel();
        works.send(LogRequest::Stop(reply_sender)).ok().unwrap();
        let indexes: Vec<_> =
            stopped.await.unwrap().read(1, 1 << 20).unwrap().iter().map(|e| e.op.index).collect();
        assert_eq!(indexes, [1, 2, 3]);
    }

    /// Reads the log from `from` on; returns the indexes of the operations found.
    async fn read(works: &Requests, reports: &mut mpsc::UnboundedReceiver<LogEvent>, from: u64) -> Vec<u64> {
        let read = LogReadRequest { peer: Uuid::ZERO, from, max_bytes: 1 << 20 };
        works.send(LogRequest::Read(read)).ok().unwrap();
        loop {
            if let LogEvent::Read(_, entries) = reports.recv().await.unwrap() {
                return entries.unwrap().iter().map(|entry| entry.op.index).collect();
            }
        }
    }

    /// Other operations are in their place in the replica's log, and may be committed.
    #[tokio::test(start_paused = true)]
    async fn operations_that_a_waiting_write_truncates_are_not_read() {
        let env = OsEnv::new(&OsOptions::default()).expect("there is entropy");
        let disk = MemDisk::new(1);
        let wal = Wal::create(Arc::new(disk.clone()), "wal", CONFIG).expect("a log");
        let (works, mut reports) = started(&env, wal);
        let last = Some(OpId { term: 1, index: 4 });
        let writes = (1..=4).map(replicate).collect();
        works.send(LogRequest::Append { writes, last }).ok().unwrap();
        assert_eq!(read(&works, &mut reports, 2).await, [2, 3, 4]);
        disk.set_free(0);
        let writes = vec![LogWrite::Truncate(2), replicate(3)];
        works.send(LogRequest::Append { writes, last: Some(OpId { term: 1, index: 3 }) }).ok().unwrap();
        assert_eq!(read(&works, &mut reports, 1).await, [1, 2]);
        assert!(read(&works, &mut reports, 3).await.is_empty());
        disk.set_free(1 << 20);
        while !matches!(reports.recv().await, Some(LogEvent::WaitsForSpace(false))) {}
        assert_eq!(read(&works, &mut reports, 1).await, [1, 2, 3]);
    }

    /// A superblock that is stored after a failed append could be ahead of the log.
    #[tokio::test(start_paused = true)]
    async fn after_a_failed_append_nothing_is_written_and_no_work_sees_the_log() {
        let env = OsEnv::new(&OsOptions::default()).expect("there is entropy");
        let wal = Wal::create(Arc::new(MemDisk::new(1)), "wal", CONFIG).expect("a log");
        let (works, mut reports) = started(&env, wal);
        // The log refuses 3 after 1. 2 would follow, and come after what was dropped.
        for index in [1, 3, 2] {
            works.send(append(index)).ok().unwrap();
            let LogEvent::Persisted(result, _) = reports.recv().await.unwrap() else { panic!("a write") };
            assert_eq!(result.is_ok(), index == 1, "{index}: {result:?}");
        }
        assert!(is_refused(&works).await);
    }
}
