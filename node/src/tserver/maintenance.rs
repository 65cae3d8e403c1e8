//! Keeping tablets in shape beside their work: flushing memory, cutting logs; and letting go of pages.
//!
//! One job runs at a time, in steps that writers and readers go on between:
//!
//! ```text
//! look at every tablet ─▶ policy::choose ─▶ step … step ─▶ turn (in the replica loop) ─▶ sync the log ─▶ … ─▶ done
//!                                           └ beside the replica, on a thread that may wait    └▶ cut the log
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::config::TabletConfig;
use engine::error::{Error, ErrorKind, Result};
use engine::ids::TabletId;
use engine::replica::policy::{self, DeltasView, TabletView};
use engine::replica::{Job, JobKind, JobStep};
use engine::tablet::rowset::RowSetId;
use engine::time::{Instant, Timestamp};
use engine::wal::Wal;

use super::entry::{EntryState, TabletEntry};
use super::replica::ReplicaHandle;
use super::server::Server;
use crate::env::Env;

/// Does what is due, for as long as the server runs.
pub async fn run(server: Arc<Server>) {
    let mut watch = Watch::default();
    loop {
        let starved = server.memory.starved();
        count_memory(&server, starved);
        let did = match watch.next_job(&server, starved).await {
            Some((entry, replica, kind)) => do_job(&server, &mut watch, &entry, &replica, kind).await,
            None => false,
        };
        if !did {
            server.env.sleep(pause(&server, watch.tablets.len())).await;
        }
    }
}

/// How much longer the time between looks is for each tablet, so that a server with thousands of idle ones spends
/// less than a hundredth of a core on looking.
const PAUSE_PER_TABLET: Duration = Duration::from_millis(1);

/// Until tablets are looked at again when nothing was due. Where memory is short that does not wait for their number.
fn pause(server: &Server, tablets: usize) -> Duration {
    let interval = Duration::from_millis(server.config.maintenance_interval_ms);
    match server.memory.excess_bytes() {
        0 => interval.max(PAUSE_PER_TABLET.saturating_mul(tablets as u32)),
        _ => interval,
    }
}

/// Where something was refused though less is held than the soft limit, pages give way to it, one part in so many of
/// all memory at a time.
const PAGES_FOR_THE_STARVED: u64 = 16;

/// Lets go of pages where memory is short, and tells what is held.
fn count_memory(server: &Server, starved: bool) {
    let memory = &server.memory;
    let wanted = if starved { memory.limit_bytes() / PAGES_FOR_THE_STARVED } else { 0 };
    server.tablets.give_back_pages(memory.excess_bytes().max(wanted));
    server.env.watch.memory(memory.used_bytes(), memory.limit_bytes());
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
    log: Option<LogHeld>,
    log_bytes_at_checkpoint: u64,
    /// After a failed job, the next one waits.
    not_before: Instant,
}

/// What of a log could go, as of some moment.
#[derive(Clone, Copy)]
struct LogHeld {
    asked: Instant,
    log_bytes: u64,
    held_bytes: u64,
}

impl LogHeld {
    /// Whether it may be another amount by now: the log is cut by segments, and members need less of it bit by bit.
    fn is_old(&self, now: Instant, log_bytes: u64, config: &TabletConfig) -> bool {
        let changed = log_bytes.abs_diff(self.log_bytes) >= config.wal_segment_bytes_max;
        changed || now.since(self.asked) >= LOG_LOOK_INTERVAL
    }
}

/// To ask what of a log could go takes a turn of the replica and one of its log. So often that is done at least.
const LOG_LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a tablet is left alone after a job of it failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);

impl Watch {
    async fn next_job(
        &mut self,
        server: &Server,
        starved: bool,
    ) -> Option<(Arc<TabletEntry>, ReplicaHandle, JobKind)> {
        let now = server.env.now().mono;
        let entries = server.tablets.all();
        self.tablets.retain(|id, _| entries.binary_search_by_key(id, |entry| entry.id).is_ok());
        let mut open = Vec::new();
        let mut views = Vec::new();
        for entry in entries {
            let EntryState::Running(replica) = entry.state() else { continue };
            let since = self.tablets.entry(entry.id).or_default();
            if replica.failure().is_none() && now >= since.not_before {
                replica.tablet().raise_history_mark(history_mark(server, &entry));
                views.push(since.view(&replica, now).await);
                open.push((entry, replica));
            }
        }
        let memory_short = starved || server.memory.excess_bytes() > 0;
        let (i, kind) = policy::choose(&views, &server.live.tablet(&server.config.tablet), memory_short)?;
        server.env.watch.mark_if(memory_short, "maintenance: memory is short");
        let (entry, replica) = open.swap_remove(i);
        Some((entry, replica, kind))
    }
}

/// Before it no snapshot is served any more (see the check in `scan.rs`).
fn history_mark(server: &Server, entry: &TabletEntry) -> Timestamp {
    let age_s = entry.history_max_age_s().unwrap_or(server.config.history_max_age_s);
    let now = server.clock.reading().wall.micros;
    Timestamp::from_micros(now.saturating_sub(age_s.saturating_mul(1_000_000)))
}

impl Since {
    /// Runs one job to its end and cuts the log behind it; whether there was something to do.
    async fn run(&mut self, env: &Env, replica: &ReplicaHandle, kind: JobKind) -> bool {
        env.watch.mark(match kind {
            JobKind::FlushRows => "maintenance: a flush",
            JobKind::FlushDeltas(_) => "maintenance: a flush of changes",
            JobKind::Compact(_) => "maintenance: a merge",
            JobKind::MergeDeltas(_) => "maintenance: a merge of changes",
            JobKind::Checkpoint => "maintenance: a checkpoint",
        });
        match kind {
            JobKind::FlushRows => self.rows = None,
            JobKind::FlushDeltas(rowset) => drop(self.deltas.remove(&rowset)),
            JobKind::Compact(_) | JobKind::MergeDeltas(_) | JobKind::Checkpoint => {}
        }
        let outcome = match run_job(env, replica, kind.clone()).await {
            Ok(true) => cut_log(replica).await.map(|()| true),
            other => other,
        };
        self.log_bytes_at_checkpoint = replica.log_bytes();
        self.log = None;
        outcome.unwrap_or_else(|error| {
            let tablet = replica.tablet().tablet;
            if error.kind == ErrorKind::Aborted {
                tracing::debug!(%tablet, ?kind, %error, "maintenance was given up");
                env.watch.mark("maintenance: a job's tablet went away");
            } else {
                tracing::warn!(%tablet, ?kind, %error, "maintenance failed");
                env.watch.mark("maintenance: a job failed");
            }
            self.not_before = env.now().mono.after(PAUSE_AFTER_FAILURE);
            false
        })
    }

    /// [`log_held`], asked now or not long ago, and not at all while the log is short anyway.
    async fn log_held(&mut self, replica: &ReplicaHandle, now: Instant) -> u64 {
        let (config, log_bytes) = (replica.tablet().config(), replica.log_bytes());
        if log_bytes <= config.wal_retain_bytes {
            return 0;
        }
        if let Some(known) = self.log.filter(|known| !known.is_old(now, log_bytes, config)) {
            return known.held_bytes;
        }
        let held_bytes = log_held(replica).await;
        self.log = Some(LogHeld { asked: now, log_bytes, held_bytes });
        held_bytes
    }

    async fn view(&mut self, replica: &ReplicaHandle, now: Instant) -> TabletView {
        let log_held_bytes = self.log_held(replica, now).await;
        let (state, anchors) = (replica.tablet().state(), replica.tablet().log_anchors());
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
            from: anchors.deltas.get(rowset).copied().unwrap_or(u64::MAX),
        };
        TabletView {
            rows_bytes: in_memory().map(|mrs| mrs.bytes() as u64).sum(),
            rows_age: self.rows.map(|since| now.since(since)),
            rows_from: anchors.rows.unwrap_or(u64::MAX),
            frozen: !state.frozen.is_empty(),
            deltas: self.deltas.iter().map(view).collect(),
            merge: replica.tablet().worth_merging(),
            log_bytes: replica.log_bytes(),
            log_held_bytes,
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
        let views = if idle { Vec::new() } else { vec![since.view(&replica, now).await] };
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

/// The first of the operations that are kept for their request ids.
fn retried_from(wal: &Wal) -> u64 {
    wal.last_op().index.saturating_sub(LOG_OPS_KEPT - 1)
}

/// Removes segments of the log that a restart will not look at, and that no member of the group still needs, unless
/// there are too many of those.
async fn cut_log(replica: &ReplicaHandle) -> Result<()> {
    let (keep_from, wanted_from) =
        replica.with(|replica, _| (replica.log_keep_from(), replica.log_wanted_from())).await?;
    let spared = replica.tablet().config().wal_spared_bytes_max;
    let cut = move |wal: &mut Wal| wal.gc_sparing(keep_from.min(retried_from(wal)), wanted_from, spared);
    let cut = replica.with_wal(cut).await?;
    match cut {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::context(error, "cut the log")),
    }
}

/// Bytes of the log that could go if nothing were in memory only.
async fn log_held(replica: &ReplicaHandle) -> u64 {
    let spared = replica.tablet().config().wal_spared_bytes_max;
    let Ok(wanted_from) = replica.with(|replica, _| replica.log_wanted_from()).await else { return 0 };
    let held = move |wal: &mut Wal| wal.superfluous(retried_from(wal), wanted_from, spared).1;
    replica.with_wal(held).await.unwrap_or(0)
}
