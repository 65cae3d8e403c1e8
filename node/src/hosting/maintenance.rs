//! Background maintenance of one replica: flushes, compactions, log GC.
//!
//! A job runs in steps; writers and readers run between them:
//!
//! ```text
//! view ─▶ policy::choose ─▶ step … step ─▶ turn (in the replica loop) ─▶ sync the log ─▶ … ─▶ done
//!                           └ beside the replica, on a thread that may block         └▶ log GC
//! ```
//!
//! A compaction that meets a damaged file fails its replica if others can replace it. Otherwise the tablet's
//! compactions pause, longer each time, and flushes continue.
//!
//! *Not here:* the loop over a server's tablets (`tserver/maintenance.rs`).

use std::collections::BTreeMap;
use std::time::Duration;

use engine::config::TabletConfig;
use engine::error::{Error, ErrorKind, Result};
use engine::replica::maintenance_policy::{self, MaintenanceInput};
use engine::replica::{Job, JobKind, JobStep};
use engine::tablet::rowset::RowSetId;
use engine::time::Instant;
use engine::wal::Wal;

use super::replica::{LogNeeds, ReplicaHandle, is_damage};
use nyala_common::env::Env;

/// Times since when a tablet has had something to flush, as far as the scans noticed, and what its last job left.
#[derive(Default)]
pub struct UnflushedSince {
    rows: Option<Instant>,
    deltas: BTreeMap<RowSetId, Instant>,
    log: Option<RetainedLog>,
    log_bytes_at_checkpoint: u64,
    /// First operation that tablet copies needed from the log, if any did.
    anchored_from: Option<u64>,
    /// Earliest time of the next job after a failed one.
    not_before: Instant,
    compactions: CompactionPause,
}

/// Bytes of a log that GC could delete, and the time at which that was computed.
#[derive(Clone, Copy)]
struct RetainedLog {
    computed_at: Instant,
    log_bytes: u64,
    held_bytes: u64,
}

impl RetainedLog {
    /// Returns true if the amount may have changed: the log shrinks by whole segments, and peers catch up gradually.
    fn is_old(&self, now: Instant, log_bytes: u64, config: &TabletConfig) -> bool {
        let changed = log_bytes.abs_diff(self.log_bytes) >= config.wal_segment_bytes_max;
        changed || now.since(self.computed_at) >= RETAINED_LOG_AGE_MAX
    }
}

/// Longest age of a [`RetainedLog`]. Computing it takes a turn of the replica and one of its log task.
const RETAINED_LOG_AGE_MAX: Duration = Duration::from_secs(1);

/// Pause of a tablet after one of its jobs failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Pause of a tablet's compactions after some of them met damage. The next one would choose the same files.
#[derive(Debug, Default)]
struct CompactionPause {
    pause: Duration,
    not_before: Instant,
}

/// First pause after damage; each further one is twice as long.
const DAMAGE_PAUSE_MIN: Duration = Duration::from_secs(10);
const DAMAGE_PAUSE_MAX: Duration = Duration::from_secs(600);

impl CompactionPause {
    fn on_damage(&mut self, now: Instant) {
        self.pause = (self.pause * 2).clamp(DAMAGE_PAUSE_MIN, DAMAGE_PAUSE_MAX);
        self.not_before = now.after(self.pause);
    }

    fn is_over(&self, now: Instant) -> bool {
        now >= self.not_before
    }
}

/// Returns true for a job that reads stored rows. The others only write.
fn is_compaction(kind: &JobKind) -> bool {
    match kind {
        JobKind::Compact(_) | JobKind::MajorDeltaCompaction(_) | JobKind::MinorDeltaCompaction(_) => true,
        JobKind::FlushRows | JobKind::FlushDeltas(_) | JobKind::Checkpoint => false,
    }
}

impl UnflushedSince {
    /// Returns true unless a job failed a short time before `now`.
    pub fn may_run(&self, now: Instant) -> bool {
        now >= self.not_before
    }

    /// Runs one job to its end and then log GC. Returns true if there was something to do.
    pub async fn run(&mut self, env: &Env, replica: &ReplicaHandle, kind: JobKind) -> bool {
        env.observer.mark(match kind {
            JobKind::FlushRows => "maintenance: MemRowSet flush",
            JobKind::FlushDeltas(_) => "maintenance: delta flush",
            JobKind::Compact(_) => "maintenance: rowset compaction",
            JobKind::MajorDeltaCompaction(_) => "maintenance: major delta compaction",
            JobKind::MinorDeltaCompaction(_) => "maintenance: minor delta compaction",
            JobKind::Checkpoint => "maintenance: checkpoint",
        });
        match kind {
            JobKind::FlushRows => self.rows = None,
            JobKind::FlushDeltas(rowset) => drop(self.deltas.remove(&rowset)),
            JobKind::Compact(_)
            | JobKind::MajorDeltaCompaction(_)
            | JobKind::MinorDeltaCompaction(_)
            | JobKind::Checkpoint => {}
        }
        let began = env.now().mono;
        replica.metrics().job_began(&kind);
        let done = run_job(env, replica, kind.clone()).await;
        let ended = env.now().mono;
        replica.metrics().job_ended(&kind, ended.since(began));
        if is_compaction(&kind) {
            match &done {
                Err(error) if is_damage(error) => self.compactions.on_damage(ended),
                Err(_) => {}
                Ok(_) => self.compactions = CompactionPause::default(),
            }
        }
        let outcome = match done {
            Ok(true) => {
                let running = replica.metrics().log_gc_began();
                let cut = gc_log(replica).await;
                drop(running);
                replica.metrics().log_gc.record_millis(env.now().mono.since(ended));
                cut.map(|()| true)
            }
            other => other,
        };
        self.log_bytes_at_checkpoint = replica.log_bytes();
        self.log = None;
        outcome.unwrap_or_else(|error| {
            let tablet = replica.tablet().tablet;
            if error.kind == ErrorKind::Aborted {
                tracing::debug!(%tablet, ?kind, %error, "maintenance was given up");
                env.observer.mark("maintenance: tablet of a job removed");
            } else {
                tracing::warn!(%tablet, ?kind, %error, "maintenance failed");
                env.observer.mark("maintenance: job failed");
            }
            self.not_before = env.now().mono.after(PAUSE_AFTER_FAILURE);
            false
        })
    }

    /// Returns [`log_held`], at most [`RETAINED_LOG_AGE_MAX`] old; 0 without a query while the log is short.
    async fn log_held(&mut self, replica: &ReplicaHandle, now: Instant) -> u64 {
        let (config, log_bytes) = (replica.tablet().config(), replica.log_bytes());
        if log_bytes <= config.wal_retain_bytes {
            return 0;
        }
        if let Some(known) = self.log.filter(|known| !known.is_old(now, log_bytes, config)) {
            return known.held_bytes;
        }
        let (held_bytes, anchored_from) = log_held(replica).await;
        let has_moved = |before: u64| anchored_from.is_none_or(|from| from > before);
        if self.anchored_from.is_some_and(has_moved) {
            // Log GC can delete more, although the log has not grown since the last one.
            self.log_bytes_at_checkpoint = 0;
        }
        self.anchored_from = anchored_from;
        self.log = Some(RetainedLog { computed_at: now, log_bytes, held_bytes });
        held_bytes
    }

    /// Returns what the maintenance policy has to know of the replica.
    pub async fn view(&mut self, replica: &ReplicaHandle, now: Instant) -> MaintenanceInput {
        let log_held_bytes = self.log_held(replica, now).await;
        let tablet = replica.tablet();
        let mut stores = MaintenanceInput::of_stores(tablet);
        self.rows = stores.rows_age.map(|_| self.rows.unwrap_or(now));
        stores.rows_age = self.rows.map(|since| now.since(since));
        let known = std::mem::take(&mut self.deltas);
        for deltas in &mut stores.deltas {
            let since = known.get(&deltas.rowset).copied().unwrap_or(now);
            deltas.age = now.since(since);
            self.deltas.insert(deltas.rowset, since);
        }
        MaintenanceInput {
            merge: self.compactions.is_over(now).then(|| tablet.choose_compaction()).flatten(),
            priority: tablet.state().schema.maintenance_priority(),
            log_bytes: replica.log_bytes(),
            log_held_bytes,
            log_bytes_at_checkpoint: self.log_bytes_at_checkpoint,
            ..stores
        }
    }
}

/// Runs maintenance for one replica outside a tablet table, a master's, scanned every `interval`.
pub async fn run_alone(env: Env, replica: ReplicaHandle, config: TabletConfig, interval: Duration) {
    let mut since = UnflushedSince::default();
    loop {
        let now = env.now().mono;
        let idle = replica.failure().is_some() || !since.may_run(now);
        let views = if idle { Vec::new() } else { vec![since.view(&replica, now).await] };
        let did = match maintenance_policy::choose(&views, &config, false) {
            Some((_, kind)) => since.run(&env, &replica, kind).await,
            None => false,
        };
        if !did {
            env.sleep(interval).await;
        }
    }
}

/// Runs a job of a replica. Returns false if there was nothing to do. A compaction that meets damage fails the replica,
/// if its tablet can do without it.
pub async fn run_job(env: &Env, replica: &ReplicaHandle, kind: JobKind) -> Result<bool> {
    let reads = is_compaction(&kind);
    let ran = run_to_end(env, replica, kind).await;
    if let Err(error) = &ran
        && reads
        && is_damage(error)
    {
        replica.fail_if_replaceable(error).await;
    }
    ran
}

/// Runs a job step by step. A replica that stops waits for it: otherwise its files would stand in the way of the
/// replica's successor in that directory.
async fn run_to_end(env: &Env, replica: &ReplicaHandle, kind: JobKind) -> Result<bool> {
    let _running = replica.lock_job().await;
    let started = replica.run_on_loop(move |replica, _| replica.start_job(kind)).await??;
    let Some(job) = started else { return Ok(false) };
    let (job, outcome) = drive(env, replica, job).await;
    let Some(job) = job else { return outcome.map(|()| true) };
    let error = outcome.as_ref().err().cloned();
    replica.run_on_loop(move |replica, effects| replica.end_job(job, error, effects)).await?;
    outcome.map(|()| true)
}

/// Steps a job to its end. Returns the job unless the replica stopped with it.
async fn drive(env: &Env, replica: &ReplicaHandle, mut job: Job) -> (Option<Job>, Result<()>) {
    loop {
        match env.run(|| job.step()).await {
            Err(error) => return (Some(job), Err(error)),
            Ok(JobStep::Done) => return (Some(job), Ok(())),
            // New files are not needed any more.
            Ok(JobStep::More) if replica.is_stopping() => return (Some(job), Err(replica.stopped_error())),
            Ok(JobStep::More) => {}
            Ok(JobStep::SyncLog) => {
                if let Err(error) = replica.run_on_wal(|_| ()).await {
                    return (Some(job), Err(error));
                }
            }
            Ok(JobStep::Turn) => {
                let result = replica.run_on_loop(move |replica, effects| {
                    let done = replica.job_turn(&mut job, effects);
                    (job, done)
                });
                match result.await {
                    Ok((back, Ok(()))) => job = back,
                    Ok((back, Err(error))) => return (Some(back), Err(error)),
                    Err(error) => return (None, Err(error)),
                }
            }
        }
    }
}

/// Number of operations that the log keeps although their effects are flushed. Their request ids are in the log only: a
/// client that received no reply before a crash retries soon after, and the write must not run twice. The number
/// exceeds the writes that clients have in flight to one tablet.
const LOG_OPS_RETAINED: u64 = 64;

/// Returns the first operation that is kept for its request id, or for a tablet copy.
fn first_retained_index(wal: &Wal, needs: &LogNeeds) -> u64 {
    let first = wal.last_op().index.saturating_sub(LOG_OPS_RETAINED - 1);
    needs.anchored_from.map_or(first, |anchored| anchored.min(first))
}

/// Deletes log segments that recovery, tablet copies and peers do not need. Segments that only a peer needs go too when
/// there are too many of them.
async fn gc_log(replica: &ReplicaHandle) -> Result<()> {
    let needs = replica.log_needs().await?;
    let spared = replica.tablet().config().wal_spared_bytes_max;
    let cut = move |wal: &mut Wal| {
        let keep_from = needs.keep_from.min(first_retained_index(wal, &needs));
        wal.gc_keeping_from(keep_from, needs.wanted_from, spared)
    };
    let cut = replica.run_on_wal(cut).await?;
    match cut {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::context(error, "delete log segments")),
    }
}

/// Returns the bytes of log that GC could delete if everything in memory were flushed, and the first operation that
/// tablet copies need.
async fn log_held(replica: &ReplicaHandle) -> (u64, Option<u64>) {
    let spared = replica.tablet().config().wal_spared_bytes_max;
    let Ok(needs) = replica.log_needs().await else { return (0, None) };
    let held =
        move |wal: &mut Wal| wal.gcable_size(first_retained_index(wal, &needs), needs.wanted_from, spared).1;
    (replica.run_on_wal(held).await.unwrap_or(0), needs.anchored_from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_of_compactions_double_while_they_meet_damage() {
        let mut compactions = CompactionPause::default();
        assert!(compactions.is_over(Instant(0)));
        let pause = |compactions: &mut CompactionPause| {
            compactions.on_damage(Instant(0));
            compactions.not_before.since(Instant(0)).as_secs()
        };
        assert_eq!([0; 8].map(|_| pause(&mut compactions)), [10, 20, 40, 80, 160, 320, 600, 600]);
        assert!(!compactions.is_over(Instant(0).after(Duration::from_secs(599))));
        assert!(compactions.is_over(Instant(0).after(Duration::from_secs(600))));
    }
}
