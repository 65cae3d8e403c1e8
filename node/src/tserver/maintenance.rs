//! Keeping tablets in shape beside their work: flushing memory, cutting logs; and watching memory.
//!
//! One job runs at a time, in steps that writers and readers go on between:
//!
//! ```text
//! look at every tablet ─▶ policy::choose ─▶ step … step ─▶ turn (in the replica loop) ─▶ sync the log ─▶ … ─▶ done
//!                                           └ beside the replica, on a thread that may wait    └▶ cut the log
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::config::TabletConfig;
use engine::error::{Error, Result};
use engine::ids::TabletId;
use engine::replica::{Job, JobKind, JobStep};
use engine::tablet::rowset::RowSetId;
use engine::time::Instant;
use engine::wal::Wal;

use super::entry::{EntryState, TabletEntry};
use super::policy::{self, DeltasView, TabletView};
use super::replica::ReplicaHandle;
use super::server::Server;
use crate::env::{Env, MemoryBudget};

/// How much of its memory a server uses, and whether that leaves room for writes.
///
/// Up to the soft limit every write may begin. From there to the hard limit more and more are refused, so that
/// clients slow down before everything stops. Source: Kudu's `memory_limit_soft_percentage`.
pub struct MemoryPressure {
    budget: Arc<dyn MemoryBudget>,
    soft_percent: u64,
    used_bytes: AtomicU64,
}

impl MemoryPressure {
    pub fn new(env: &Env, soft_percent: u64) -> MemoryPressure {
        MemoryPressure { budget: env.memory.clone(), soft_percent, used_bytes: AtomicU64::new(0) }
    }

    /// What was counted last.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    fn set_used_bytes(&self, bytes: u64) {
        self.used_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that a write is about to take, until the next count of everything.
    pub fn add(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes above which memory has to be freed.
    pub fn soft_limit_bytes(&self) -> u64 {
        self.budget.limit_bytes() / 100 * self.soft_percent.min(100)
    }

    pub fn is_above_soft_limit(&self) -> bool {
        self.used_bytes() > self.soft_limit_bytes()
    }

    /// Why a write may not begin now, if it may not. `random` decides between the limits.
    pub fn refuse(&self, random: u64) -> Option<String> {
        let (used, soft) = (self.used_bytes(), self.soft_limit_bytes());
        if used <= soft {
            return None;
        }
        let room = self.budget.limit_bytes().saturating_sub(soft).max(1);
        let refused = used - soft >= room || random % room < used - soft;
        refused.then(|| format!("Soft memory limit exceeded: {used} bytes are used, {soft} may be"))
    }
}

/// Counts memory and does what is due, for as long as the server runs.
pub async fn run(server: Arc<Server>) {
    let mut watch = Watch::default();
    loop {
        count_memory(&server);
        let did = match watch.next_job(&server) {
            Some((entry, replica, kind)) => do_job(&server, &mut watch, &entry, &replica, kind).await,
            None => false,
        };
        if !did {
            server.env.sleep(Duration::from_millis(server.config.maintenance_interval_ms)).await;
        }
    }
}

fn count_memory(server: &Server) {
    let tablets = server.tablets.all();
    let bytes = tablets.iter().filter_map(|entry| entry.tablet()).map(|tablet| tablet.stats().memory_bytes);
    server.memory.set_used_bytes(bytes.sum::<u64>() + server.tablets.cached_bytes());
}

/// Since when there has been something to flush where, as far as was noticed.
#[derive(Default)]
struct Watch {
    tablets: BTreeMap<TabletId, Since>,
}

#[derive(Default)]
struct Since {
    rows: Option<Instant>,
    deltas: BTreeMap<RowSetId, Instant>,
    log_bytes_at_checkpoint: u64,
    /// After a failed job, the next one waits.
    not_before: Instant,
}

/// How long a tablet is left alone after a job of it failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);

impl Watch {
    fn next_job(&mut self, server: &Server) -> Option<(Arc<TabletEntry>, ReplicaHandle, JobKind)> {
        let now = server.env.now().mono;
        let entries = server.tablets.all();
        self.tablets.retain(|id, _| entries.binary_search_by_key(id, |entry| entry.id).is_ok());
        let mut open = Vec::new();
        let mut views = Vec::new();
        for entry in entries {
            let EntryState::Running(replica) = entry.state() else { continue };
            let since = self.tablets.entry(entry.id).or_default();
            if replica.failure().is_none() && now >= since.not_before {
                views.push(since.view(&replica, now));
                open.push((entry, replica));
            }
        }
        let memory_short = server.memory.is_above_soft_limit();
        let (i, kind) = policy::choose(&views, &server.config.tablet, memory_short)?;
        let (entry, replica) = open.swap_remove(i);
        Some((entry, replica, kind))
    }
}

impl Since {
    /// Runs one job to its end and cuts the log behind it; whether there was something to do.
    async fn run(&mut self, env: &Env, replica: &ReplicaHandle, kind: JobKind) -> bool {
        match kind {
            JobKind::FlushRows => self.rows = None,
            JobKind::FlushDeltas(rowset) => drop(self.deltas.remove(&rowset)),
            JobKind::Compact(_) | JobKind::Checkpoint => {}
        }
        let outcome = match run_job(env, replica, kind.clone()).await {
            Ok(true) => cut_log(replica).await.map(|()| true),
            other => other,
        };
        self.log_bytes_at_checkpoint = replica.log_bytes();
        outcome.unwrap_or_else(|error| {
            tracing::warn!(tablet = %replica.tablet().tablet, ?kind, %error, "maintenance failed");
            self.not_before = env.now().mono.after(PAUSE_AFTER_FAILURE);
            false
        })
    }

    fn view(&mut self, replica: &ReplicaHandle, now: Instant) -> TabletView {
        let state = replica.tablet().state();
        let in_memory = || state.frozen.iter().chain([&state.active]);
        let has_rows = in_memory().any(|mrs| mrs.rows() > 0);
        self.rows = has_rows.then(|| self.rows.unwrap_or(now));
        let mut deltas = BTreeMap::new();
        for rowset in state.disk.iter().filter(|rowset| rowset.dms_len() > 0) {
            let id = rowset.meta().id;
            deltas.insert(id, self.deltas.get(&id).copied().unwrap_or(now));
        }
        self.deltas = deltas;
        let changed = |rowset: &RowSetId| {
            let found = state.disk.iter().find(|disk| disk.meta().id == *rowset);
            found.map_or(0, |rowset| rowset.dms_bytes() as u64)
        };
        let view = |(rowset, since): (&RowSetId, &Instant)| DeltasView {
            rowset: *rowset,
            bytes: changed(rowset),
            age: now.since(*since),
        };
        TabletView {
            rows_bytes: in_memory().map(|mrs| mrs.bytes() as u64).sum(),
            rows_age: self.rows.map(|since| now.since(since)),
            frozen: !state.frozen.is_empty(),
            deltas: self.deltas.iter().map(view).collect(),
            merge: replica.tablet().worth_merging(),
            log_bytes: replica.log_bytes(),
            log_bytes_at_checkpoint: self.log_bytes_at_checkpoint,
        }
    }
}

/// [`Since::run`] for one of the server's tablets, whose size the masters should hear of then.
async fn do_job(
    server: &Server,
    watch: &mut Watch,
    entry: &TabletEntry,
    replica: &ReplicaHandle,
    kind: JobKind,
) -> bool {
    let since = watch.tablets.entry(entry.id).or_default();
    let did = since.run(&server.env, replica, kind).await;
    server.tablets.mark_changed_quietly(entry.id);
    did
}

/// The same for one replica that is in no tablet table, a master's, looked at every `interval`.
pub async fn run_alone(env: Env, replica: ReplicaHandle, config: TabletConfig, interval: Duration) {
    let mut since = Since::default();
    loop {
        let now = env.now().mono;
        let idle = replica.failure().is_some() || now < since.not_before;
        let views = if idle { Vec::new() } else { vec![since.view(&replica, now)] };
        let did = match policy::choose(&views, &config, false) {
            Some((_, kind)) => since.run(&env, &replica, kind).await,
            None => false,
        };
        if !did {
            env.sleep(interval).await;
        }
    }
}

/// Runs a job of a replica step by step; false if there was nothing to do.
pub async fn run_job(env: &Env, replica: &ReplicaHandle, kind: JobKind) -> Result<bool> {
    let started = replica.with(move |replica, _| replica.start_job(kind)).await??;
    let Some(job) = started else { return Ok(false) };
    let (job, outcome) = drive(env, replica, job).await;
    let Some(job) = job else { return outcome.map(|()| true) };
    let error = outcome.as_ref().err().cloned();
    replica.with(move |replica, out| replica.end_job(job, error, out)).await?;
    outcome.map(|()| true)
}

/// Steps a job to its end. It comes back unless the replica went away with it.
async fn drive(env: &Env, replica: &ReplicaHandle, mut job: Job) -> (Option<Job>, Result<()>) {
    loop {
        match env.run(|| job.step()).await {
            Err(error) => return (Some(job), Err(error)),
            Ok(JobStep::Done) => return (Some(job), Ok(())),
            Ok(JobStep::More) => {}
            Ok(JobStep::SyncLog) => {
                if let Err(error) = replica.with_wal(|_| ()).await {
                    return (Some(job), Err(error));
                }
            }
            Ok(JobStep::Turn) => {
                let turned = replica.with(move |replica, out| {
                    let done = replica.job_turn(&mut job, out);
                    (job, done)
                });
                match turned.await {
                    Ok((back, Ok(()))) => job = back,
                    Ok((back, Err(error))) => return (Some(back), Err(error)),
                    Err(error) => return (None, Err(error)),
                }
            }
        }
    }
}

/// How many operations the log keeps although they are durable elsewhere. Their request ids are in the log only: a
/// client that did not hear of its write before a crash retries it soon after, and it must not run twice. More
/// than the writes that clients have in flight to one tablet.
const LOG_OPS_KEPT: u64 = 64;

/// Removes segments of the log that a restart will not look at.
async fn cut_log(replica: &ReplicaHandle) -> Result<()> {
    let keep_from = replica.with(|replica, _| replica.log_keep_from()).await?;
    let cut =
        move |wal: &mut Wal| wal.gc(keep_from.min(wal.last_op().index.saturating_sub(LOG_OPS_KEPT - 1)));
    let cut = replica.with_wal(cut).await?;
    match cut {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::context(error, "cut the log")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Budget(u64);

    impl MemoryBudget for Budget {
        fn limit_bytes(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn writes_are_refused_more_and_more_between_the_limits() {
        let budget = Arc::new(Budget(1000));
        let memory = MemoryPressure { budget, soft_percent: 80, used_bytes: AtomicU64::new(800) };
        assert!((0..200).all(|random| memory.refuse(random).is_none()));
        memory.add(50);
        let refused = (0..200).filter(|random| memory.refuse(*random).is_some()).count();
        assert_eq!(refused, 50, "a quarter of the way, a quarter of the writes");
        memory.add(150);
        assert!((0..200).all(|random| memory.refuse(random).is_some()));
    }
}
