//! The scrubber: reads all stored files of a server in the background and verifies their checksums.
//!
//! ```text
//!   wait until a pass is due ─▶ instance files ─▶ tablet after tablet, file after file, a MiB at a time ─▶ wait …
//!                                              │ pauses by the rate, and while other work needs the disks
//!                                              └─▶ damage ─▶ the host: the replica fails and goes, or a report
//! ```
//!
//! - Files are read by the engine's readers (`engine::replica::FileCheck`), those that serve reads. Files that a
//!   compaction or log GC removes meanwhile are passed over, or stay readable while they are open.
//! - A pass continues after a restart of the server (`progress.rs`), once the tablets of the start are open: a pass
//!   leaves out those that are not.
//!
//! *Not here:* what happens to a damaged replica (the [`ScrubHost`]), the comparison of replicas with each other
//! (`cluster check --checksum`).

mod pace;
mod progress;
pub mod views;

use engine::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::error::{Error, ErrorKind, Result};
use engine::ids::TabletId;
use engine::replica::{CheckStep, FileCheck, FileHome};
use engine::time::Instant;

use crate::dirs::{Directory, ServerDirs};
use crate::hosting::replica::{self, ReplicaHandle};
use crate::server::flags::Flags;
use nyala_common::env::{BoxFuture, Env};
use pace::ScrubPace;
pub use progress::{Finding, FindingOutcome, FinishedPass, ScrubProgress};

/// Settings of a scrubber (`scrub_interval_sec`, `scrub_bytes_per_second`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubConfig {
    /// Time from the begin of a pass to the begin of the next; zero: there is no scrubber.
    pub interval: Duration,
    /// Bytes read per second, at most.
    pub bytes_per_second: u64,
}

impl ScrubConfig {
    pub const OFF: ScrubConfig = ScrubConfig { interval: Duration::ZERO, bytes_per_second: 8 << 20 };

    /// Returns the settings in a server's flags.
    pub fn of(flags: &Flags) -> ScrubConfig {
        ScrubConfig {
            interval: Duration::from_secs(flags.number("scrub_interval_sec")),
            bytes_per_second: flags.number("scrub_bytes_per_second"),
        }
    }
}

/// A tablet whose files are checked.
#[derive(Clone)]
pub struct ScrubTarget {
    pub tablet: TabletId,
    pub data_dir: Arc<Directory>,
    /// The running replica; `None` for a tombstone, which has metadata only.
    pub replica: Option<ReplicaHandle>,
}

impl ScrubTarget {
    /// Returns true if the replica failed or stops: its files may disappear, and damage changes nothing.
    fn is_over(&self) -> bool {
        self.replica.as_ref().is_some_and(|replica| replica.is_stopping() || replica.is_stopped())
    }
}

/// The server that is scrubbed.
pub trait ScrubHost: Send + Sync {
    fn dirs(&self) -> &ServerDirs;
    /// Returns the tablets, ordered by id.
    fn tablets(&self) -> Vec<TabletId>;
    /// Returns a tablet whose files are in order, as far as the server knows.
    fn find(&self, tablet: TabletId) -> Option<ScrubTarget>;
    /// Returns true while the server opens the tablets of its start.
    fn is_opening(&self) -> bool;
    /// Returns true while other work needs disks or memory.
    fn is_busy(&self) -> bool;
    /// Handles damage of a tablet's file: bytes that are missing, wrong or unreadable.
    fn damaged<'a>(&'a self, target: &'a ScrubTarget, error: &'a Error) -> BoxFuture<'a, FindingOutcome>;
}

/// Values of the flags, which may change at run time.
struct ScrubFlags {
    interval_s: Arc<AtomicU64>,
    bytes_per_second: Arc<AtomicU64>,
}

/// Counts since the start of the server.
#[derive(Debug, Default)]
struct ScrubCounts {
    files: AtomicU64,
    bytes: AtomicU64,
    damaged: AtomicU64,
    passes: AtomicU64,
}

/// The scrubber of one server.
pub struct Scrubber {
    env: Env,
    flags: ScrubFlags,
    counts: ScrubCounts,
    progress: Mutex<ScrubProgress>,
    /// Tablets that the pass has left behind, and all.
    tablets: Mutex<(usize, usize)>,
    /// Time of the last store of the progress.
    stored_at: Mutex<Instant>,
}

/// Interval at which an idle scrubber looks at its settings and the time.
const POLL: Duration = Duration::from_secs(60);
/// Interval between stores of the progress during a pass.
const STORE_INTERVAL: Duration = Duration::from_secs(60);
/// Pause while the server opens its tablets.
const OPENING_PAUSE: Duration = Duration::from_millis(200);
/// Pause while other work needs the disks, and the number of pauses after which a step is made in spite of it.
const BUSY_PAUSE: Duration = Duration::from_millis(200);
const BUSY_PAUSES_MAX: u32 = 50;

impl Scrubber {
    /// Creates a scrubber that follows `flags`, which get the values of `config` first. `None` if it is off: then a
    /// server has no task for it.
    pub fn new(env: &Env, config: ScrubConfig, flags: &Flags) -> Result<Option<Arc<Scrubber>>> {
        let follow = |name: &str, value: u64| {
            if flags.number(name) != value {
                flags.set(name, &value.to_string())?;
            }
            Ok::<_, Error>(flags.live(name))
        };
        let flags = ScrubFlags {
            interval_s: follow("scrub_interval_sec", config.interval.as_secs())?,
            bytes_per_second: follow("scrub_bytes_per_second", config.bytes_per_second)?,
        };
        let scrubber = Scrubber {
            env: env.clone(),
            flags,
            counts: ScrubCounts::default(),
            progress: Mutex::default(),
            tablets: Mutex::default(),
            stored_at: Mutex::new(env.now().mono),
        };
        Ok((!config.interval.is_zero()).then(|| Arc::new(scrubber)))
    }

    /// Returns the stored progress.
    pub fn progress(&self) -> ScrubProgress {
        self.progress.lock().clone()
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(self.flags.interval_s.load(Ordering::Relaxed))
    }

    fn wall_micros(&self) -> u64 {
        self.env.now().wall.micros
    }

    /// Runs passes for as long as the server runs.
    pub async fn run(self: Arc<Self>, host: Arc<dyn ScrubHost>) {
        let host = &*host;
        let loaded = self.env.run(|| ScrubProgress::load(&*host.dirs().wal.disk)).await;
        match loaded {
            Ok(progress) => *self.progress.lock() = progress,
            Err(error) => tracing::warn!(%error, "the scrubber begins anew: its progress cannot be read"),
        }
        loop {
            let wait = self.progress.lock().wait(self.wall_micros(), self.interval());
            match wait {
                Some(wait) => self.env.sleep(wait.min(POLL)).await,
                None => self.pass(host).await,
            }
        }
    }

    /// Runs a pass, or the rest of one, once the tablets of the start are open.
    pub(crate) async fn pass(&self, host: &dyn ScrubHost) {
        while host.is_opening() {
            self.env.sleep(OPENING_PAUSE).await;
        }
        self.progress.lock().begin(self.wall_micros());
        self.store(host).await;
        self.check_instances(host).await;
        let tablets = host.tablets();
        for (done, tablet) in tablets.iter().enumerate() {
            *self.tablets.lock() = (done, tablets.len());
            if !self.progress.lock().has_left(*tablet) {
                self.check_tablet(host, *tablet).await;
            }
        }
        *self.tablets.lock() = (tablets.len(), tablets.len());
        let pass = self.progress.lock().finish(self.wall_micros());
        self.counts.passes.fetch_add(1, Ordering::Relaxed);
        self.env.observer.mark("scrub: pass finished");
        let (files, bytes, damaged) = (pass.files, pass.bytes, pass.findings.len());
        tracing::info!(files, bytes, damaged, "scrubbed all files");
        self.store(host).await;
    }

    async fn check_instances(&self, host: &dyn ScrubHost) {
        let found = self.env.run(|| host.dirs().repair_instances()).await;
        for damage in found {
            let outcome = match damage.repaired {
                true => FindingOutcome::Repaired,
                false => FindingOutcome::Reported,
            };
            self.report(None, damage.file, &damage.error, outcome);
        }
    }

    async fn check_tablet(&self, host: &dyn ScrubHost, tablet: TabletId) {
        let Some(target) = host.find(tablet) else { return };
        let data = &target.data_dir.disk;
        self.check_file(host, &target, FileCheck::consensus_meta(data.clone(), tablet)).await;
        // One at a time: a file that is open keeps its space when a compaction removes it.
        for path in rowset_files(&target) {
            if let Some(check) = open_rowset_file(&target, &path) {
                self.check_file(host, &target, check).await;
            }
        }
        self.check_file(host, &target, FileCheck::superblock(data.clone(), tablet)).await;
        for check in log_files(host, &target).await {
            self.check_file(host, &target, check).await;
        }
    }

    async fn check_file(&self, host: &dyn ScrubHost, target: &ScrubTarget, mut check: FileCheck) {
        if target.is_over() || self.progress.lock().has_checked(target.tablet, check.path()) {
            return;
        }
        let checked = self.check_steps(host, &mut check).await;
        if let Err(error) = checked {
            self.damaged(host, target, &check, &error).await;
        }
        self.counts.files.fetch_add(1, Ordering::Relaxed);
        self.progress.lock().checked(target.tablet, check.path());
        let stored_at = *self.stored_at.lock();
        if self.env.now().mono.since(stored_at) >= STORE_INTERVAL {
            self.store(host).await;
        }
    }

    async fn check_steps(&self, host: &dyn ScrubHost, check: &mut FileCheck) -> Result<()> {
        loop {
            self.wait_for_turn(host).await;
            let began = self.env.now().mono;
            let CheckStep { bytes, done } = self.env.run(|| check.step()).await?;
            let took = self.env.now().mono.since(began);
            self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.progress.lock().add_bytes(bytes);
            let rate = self.flags.bytes_per_second.load(Ordering::Relaxed);
            self.env.sleep(ScrubPace::pause(bytes, rate, took)).await;
            if done {
                return Ok(());
            }
        }
    }

    /// Waits while other work needs the disks, at most ten seconds, and while the scrubber is switched off.
    async fn wait_for_turn(&self, host: &dyn ScrubHost) {
        while self.interval().is_zero() {
            self.env.sleep(POLL).await;
        }
        let mut pauses = 0;
        while host.is_busy() && pauses < BUSY_PAUSES_MAX {
            pauses += 1;
            self.env.sleep(BUSY_PAUSE).await;
        }
    }

    /// Handles a failed check, unless the tablet was stopped, deleted or replaced meanwhile.
    async fn damaged(&self, host: &dyn ScrubHost, target: &ScrubTarget, check: &FileCheck, error: &Error) {
        let runs = target.replica.is_some();
        let same = host.find(target.tablet).is_some_and(|now| now.replica.is_some() == runs);
        // A tombstone of a replica whose metadata was unreadable has none.
        let expected = !runs && error.kind == ErrorKind::NotFound;
        if target.is_over() || !same || expected {
            return;
        }
        let dir = match check.home() {
            FileHome::Data => &target.data_dir.path,
            FileHome::Wal => &host.dirs().wal.path,
        };
        let file = format!("{dir}/{}", check.path());
        let outcome = match is_damage(error) {
            true => {
                self.env.observer.mark("scrub: damage found");
                host.damaged(target, error).await
            }
            false => FindingOutcome::Reported,
        };
        self.report(Some(target.tablet), file, error, outcome);
    }

    fn report(&self, tablet: Option<TabletId>, file: String, error: &Error, outcome: FindingOutcome) {
        let tablet_name = tablet.map(|tablet| tablet.to_string());
        let what = if is_damage(error) { "is damaged" } else { "could not be checked" };
        tracing::error!(file, tablet = tablet_name, %error, outcome = outcome.name(), "a stored file {what}");
        self.counts.damaged.fetch_add(1, Ordering::Relaxed);
        let at = self.wall_micros();
        let finding = Finding { tablet: tablet_name, file, error: error.message.clone(), outcome, at };
        self.progress.lock().add_finding(finding);
    }

    /// Stores the progress. Without space the pass continues; a restart repeats more of it then.
    async fn store(&self, host: &dyn ScrubHost) {
        let progress = self.progress();
        let stored = self.env.run(|| progress.store(&*host.dirs().wal.disk)).await;
        *self.stored_at.lock() = self.env.now().mono;
        if let Err(error) = stored {
            tracing::warn!(%error, "the scrubber's progress cannot be stored");
        }
    }
}

/// Returns true if a check failed by the fault of its file: it is damaged, or missing.
fn is_damage(error: &Error) -> bool {
    error.kind == ErrorKind::NotFound || replica::is_damage(error)
}

/// Returns the paths of a replica's rowset files, sorted.
fn rowset_files(target: &ScrubTarget) -> Vec<String> {
    let Some(replica) = &target.replica else { return Vec::new() };
    let mut paths: Vec<String> =
        replica.tablet().open_files().iter().map(|file| file.path().to_string()).collect();
    paths.sort_unstable();
    paths
}

/// Returns the check of a rowset file, unless a compaction has removed the file.
fn open_rowset_file(target: &ScrubTarget, path: &str) -> Option<FileCheck> {
    let files = target.replica.as_ref()?.tablet().open_files();
    files.into_iter().find(|file| file.path() == path).map(FileCheck::pages)
}

/// Returns the checks of a replica's log, as far as it is durable.
async fn log_files(host: &dyn ScrubHost, target: &ScrubTarget) -> Vec<FileCheck> {
    let Some(replica) = target.replica.as_ref().filter(|_| !target.is_over()) else { return Vec::new() };
    // A log that cannot be synced fails its replica.
    let Ok(Ok(snapshot)) = replica.run_on_wal(|wal| wal.snapshot()).await else { return Vec::new() };
    let segment = |segment| FileCheck::segment(target.tablet, segment);
    let truncations = FileCheck::truncations(host.dirs().wal.disk.clone(), target.tablet);
    snapshot.segments.into_iter().map(segment).chain([truncations]).collect()
}
