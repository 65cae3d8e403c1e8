//! One run of one plan in one world.
//!
//! ```text
//! boot ─► create tables ─► clients and faults ─► faults end
//!      ─► restart ─► recovery checks ─► idle checks ─► oracles
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nyala_common::env::Env;
use serde::{Deserialize, Serialize};

use crate::cluster;
use crate::event_log::{EventLog, SeriesPoints, TimelineEvent, listen_to_logs};
use crate::features::RunFeatures;
use crate::history::HistoryOp;
use crate::idle_look;
use crate::injector::{CALLS_CUT, FaultInjector, disturbances};
use crate::machine::MountedDisk;
use crate::oracle::{Violation, control_calls, maintenance, recovered_state, resources, uncaused_failures};
use crate::post_checks;
use crate::recovered_state::{maintain, read as read_recovered_state};
use crate::reply_checks::{self, AMPLE_MEMORY};
use crate::run_observer::RunObserver;
use crate::workload::Workload;
use crate::world::keyed::KeyedWorld;
use crate::world::turmoil::TurmoilWorld;
use crate::world::{HostProgram, StopReason, World};
use sim_plan::line_format::words;
use sim_plan::{Host, Plan};

words! {
    /// The world that a plan runs in.
    pub enum WorldKind {
        Madsim = "madsim",
        Turmoil = "turmoil",
        /// Our own executor; draws are named by keys, so that runs with and without a fault can be compared.
        Keyed = "keyed",
    }
}

impl WorldKind {
    /// Returns true if a draw depends on no other, so that a fault that is left out changes only what it caused.
    pub fn draws_by_key(self) -> bool {
        self == WorldKind::Keyed
    }
}

/// Parts of a run to retain besides its outcome.
#[derive(Debug, Clone, Default)]
pub struct KeepOptions {
    /// Numbers of the events to retain as text.
    pub events: Range<u64>,
    /// True if the timeline is retained.
    pub timeline: bool,
    /// Folder of replication traces, and the prefix of their names.
    pub traces: Option<(PathBuf, String)>,
    /// True if the run's features are collected, for guided search.
    pub features: bool,
    /// True if the run ends without trials: another run has made those of its seed.
    pub no_trials: bool,
}

/// A violation as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViolationRecord {
    pub oracle: String,
    pub message: String,
    pub story: Vec<String>,
}

/// The outcome of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunOutcome {
    pub seed: u64,
    pub world: String,
    pub events: u64,
    /// Hash of all events, in hexadecimal.
    pub hash: String,
    /// Intermediate hashes, as [`crate::event_log::HashCheckpoints`] formats them.
    pub steps: String,
    pub simulated_ms: u64,
    pub answered: u64,
    pub unanswered: u64,
    pub rows_written: u64,
    pub rows_read: u64,
    pub checked: u64,
    pub undecided: u64,
    /// Number of applied faults by kind.
    pub fired: BTreeMap<String, u64>,
    /// Number of times each mark was reached.
    pub marks: BTreeMap<String, u64>,
    /// Counters of the run's cost by name, as far as its world counts.
    #[serde(default)]
    pub work: BTreeMap<String, u64>,
    pub failures: Vec<ViolationRecord>,
    /// CPU time and memory of the process, where known.
    pub cpu_ms: u64,
    pub judge_ms: u64,
    pub rss_kib: u64,
}

/// An outcome and what was retained.
pub struct RunResult {
    pub outcome: RunOutcome,
    pub lines: Vec<String>,
    pub timeline: Vec<TimelineEvent>,
    pub series: Vec<SeriesPoints>,
    /// The features, if they were requested.
    pub features: Option<RunFeatures>,
}

/// Operations without an end, and those that failed last, that the story of a hung run names.
const PENDING_MAX: usize = 8;
/// Most operations of a plan after which trials are repeated.
const SMALL_PLAN_OPS_MAX: usize = 1_000;
/// Longest time for creating the tables.
const PREPARE_LIMIT: Duration = Duration::from_secs(120);
/// Longest time of a run, all phases together.
const RUN_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Creates the world of a kind; the error says how to get it.
pub(crate) fn world(kind: WorldKind, plan: &Plan, log: &EventLog) -> Result<Box<dyn World>, String> {
    match kind {
        WorldKind::Turmoil => {
            let mut world = TurmoilWorld::new(plan.seed, RUN_LIMIT, log.clone());
            world.set_cost(cluster::device_cost(plan));
            Ok(Box::new(world))
        }
        WorldKind::Keyed => {
            let (cost, network) = (cluster::device_cost(plan), plan.network.clone());
            Ok(Box::new(KeyedWorld::new(plan.seed, network, cost, log.clone())))
        }
        #[cfg(madsim)]
        WorldKind::Madsim => {
            let cost = cluster::device_cost(plan);
            let world =
                crate::world::madsim::MadsimWorld::new(plan.seed, plan.network.clone(), cost, log.clone());
            Ok(Box::new(world))
        }
        #[cfg(not(madsim))]
        WorldKind::Madsim => Err("this build has no madsim world: run it as `cargo sim`".to_string()),
    }
}

/// Runs a plan. Only the first run of a process is reproducible.
pub fn run(plan: &Plan, kind: WorldKind, keep: KeepOptions) -> Result<RunResult, String> {
    listen_to_logs();
    let log = EventLog::keeping(keep.events, keep.timeline);
    let mut world = world(kind, plan, &log)?;
    let workload = Workload::new(plan);
    let origin = keep.traces.as_ref().map(|(_, name)| format!("cargo sim, {name}"));
    let observer = RunObserver::new(plan, origin);
    if keep.features {
        observer.collect_features();
    }
    let mut run = Run::new(world.as_mut(), &workload, plan, &observer);
    // A run that panics has a trace up to there.
    let phases = catch_unwind(AssertUnwindSafe(|| {
        let injector = run.phases();
        if injector.is_some() && !keep.no_trials {
            run.run_trials();
        }
        injector
    }));
    if let Some((dir, name)) = &keep.traces {
        let written = observer.write_traces(dir, name);
        written.map_err(|error| format!("writing traces into {}: {error}", dir.display()))?;
    }
    let mut injector = phases.unwrap_or_else(|panic| resume_unwind(panic));
    injector.iter_mut().for_each(|injector| injector.note_overloads(run.world));
    let work = work_counts(run.world, plan, &observer);
    let (mut failures, simulated) = (run.failures, run.world.now());
    observer.check_live_tablets(&workload.live_tablets());
    let (memory, unprovoked) = (observer.memory_violations(), observer.uncaused_failures());
    let hasty = observer.hasty_copy_requests();
    failures
        .extend(observer.violations().iter().chain(&memory).chain(&unprovoked).chain(&hasty).map(to_record));
    if let Some(injector) = injector.as_ref().filter(|_| plan.cluster.memory >= AMPLE_MEMORY) {
        let aborted = observer.aborted_copies(injector.disturbances(), cluster::recovery_time(plan));
        failures.extend(aborted.iter().map(to_record));
    }
    let checks_begin = cpu_ms();
    let outcome = outcome(plan, kind, &log, &workload, injector, failures, simulated);
    let mut marks = observer.marks();
    marks.extend(workload.coverage());
    let features = observer.features();
    let features = features.map(|found| found.with_answers(&marks, &workload.history().operations()));
    let outcome = RunOutcome { marks, work, ..outcome };
    let outcome =
        RunOutcome { judge_ms: cpu_ms() - checks_begin, cpu_ms: cpu_ms(), rss_kib: rss_kib(), ..outcome };
    // Dropping a world drops its tasks one by one; the process ends soon anyway.
    std::mem::forget(world);
    Ok(RunResult { outcome, lines: log.lines(), timeline: log.timeline(), series: log.series(), features })
}

fn outcome(
    plan: &Plan,
    kind: WorldKind,
    log: &EventLog,
    workload: &Workload,
    injector: Option<FaultInjector>,
    mut failures: Vec<ViolationRecord>,
    simulated: Duration,
) -> RunOutcome {
    let mut report = workload.report();
    if let Some(injector) = &injector {
        reply_checks::check(plan, workload, injector, &mut report);
    }
    failures.extend(report.violations.iter().map(to_record));
    let (print, counts) = (log.fingerprint(), workload.counts());
    RunOutcome {
        seed: plan.seed,
        world: kind.word().to_string(),
        events: print.events,
        hash: format!("{:032x}", print.hash),
        steps: log.steps().to_string(),
        simulated_ms: simulated.as_millis() as u64,
        answered: counts.answered,
        unanswered: counts.unanswered,
        rows_written: counts.rows_written,
        rows_read: counts.rows_read,
        checked: report.checked,
        undecided: report.undecided,
        fired: injector.map(|injector| injector.fired).unwrap_or_default(),
        failures,
        ..RunOutcome::default()
    }
}

/// Returns the counters of the world, of its disks and of what is recorded and checked.
fn work_counts(world: &mut dyn World, plan: &Plan, observer: &RunObserver) -> BTreeMap<String, u64> {
    let mut counts = world.work_counts();
    if counts.is_empty() {
        return BTreeMap::new();
    }
    let disks = plan.servers().iter().map(|host| world.machine(&host.name()).disk_op_count()).sum();
    counts.insert("disk operations", disks);
    counts.insert("records", world.log().fingerprint().events);
    counts.insert("notes", observer.events());
    counts.into_iter().map(|(name, count)| (name.to_string(), count)).collect()
}

fn to_record(violation: &Violation) -> ViolationRecord {
    let (oracle, message) = (violation.oracle.to_string(), violation.message.clone());
    ViolationRecord { oracle, message, story: violation.story.clone() }
}

/// A run: its world and what it has found so far.
pub(crate) struct Run<'a> {
    world: &'a mut dyn World,
    workload: Workload,
    plan: &'a Plan,
    observer: RunObserver,
    pub failures: Vec<ViolationRecord>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        world: &'a mut dyn World,
        workload: &Workload,
        plan: &'a Plan,
        observer: &RunObserver,
    ) -> Run<'a> {
        let (workload, observer) = (workload.clone(), observer.clone());
        Run { world, workload, plan, observer, failures: Vec::new() }
    }

    fn fail(&mut self, oracle: &str, message: String) {
        self.failures.push(ViolationRecord { oracle: oracle.to_string(), message, story: Vec::new() });
    }

    /// Runs all phases; returns the workload's fault injector, if it got that far.
    fn phases(&mut self) -> Option<FaultInjector> {
        let (mut injector, worked) = self.work()?;
        if worked {
            self.check_recovery_phase(&mut injector);
        }
        self.count_device_faults(&mut injector);
        Some(injector)
    }

    /// Runs the phases up to the final restart. Returns the workload's fault injector, if it got that far, and true if
    /// the clients have ended in time.
    pub(crate) fn work(&mut self) -> Option<(FaultInjector, bool)> {
        cluster::boot(self.world, self.plan, &self.observer);
        let workload = self.workload.clone();
        let prepare: HostProgram = Arc::new(move |env| {
            let workload = workload.clone();
            Box::pin(async move { Ok(workload.prepare(&env).await?) })
        });
        self.start_client("setup", prepare);
        // Until the workload begins only supervisors act.
        let mut calm = FaultInjector::new(&Plan { faults: Vec::new(), ..self.plan.clone() }, Duration::ZERO);
        if !self.pass(&mut calm, PREPARE_LIMIT, "creating the tables") {
            return None;
        }
        let mut injector = FaultInjector::new(self.plan, self.world.now());
        for (index, client) in self.plan.clients.iter().enumerate() {
            if client.backs_up() {
                self.start_backups(index, client.setup.number);
                continue;
            }
            let workload = self.workload.clone();
            let program: HostProgram = Arc::new(move |env| {
                let workload = workload.clone();
                Box::pin(async move {
                    workload.run_client(&env, index).await;
                    Ok(())
                })
            });
            self.start_client(&Host::Client(client.setup.number).name(), program);
        }
        let worked =
            self.plan.clients.is_empty() || self.pass(&mut injector, self.plan.limit, "the workload");
        injector.end_faults(self.world);
        if worked {
            let kept = post_checks::find_kept_data(self.world, self.observer.running());
            self.failures.extend(kept.iter().map(to_record));
            injector.final_restart(self.world);
        }
        Some((injector, worked))
    }

    /// Starts a client, with a ticket if the plan requires one.
    pub(crate) fn start_client(&mut self, name: &str, program: HostProgram) {
        cluster::give_ticket(self.world, self.plan, name);
        self.world.client(name, program);
    }

    /// Boots a client that backs up tables as a process which restarts, and starts a client that waits for its end.
    fn start_backups(&mut self, index: usize, number: u8) {
        let (workload, name) = (self.workload.clone(), Host::Client(number).name());
        let program: HostProgram = Arc::new(move |env| {
            let workload = workload.clone();
            Box::pin(async move {
                workload.run_backups(&env, index).await;
                std::future::pending().await
            })
        });
        cluster::give_ticket(self.world, self.plan, &name);
        self.world.boot(&name, program);
        let workload = self.workload.clone();
        let wait: HostProgram = Arc::new(move |env| {
            let workload = workload.clone();
            Box::pin(async move {
                workload.wait_for_backups(&env, u32::from(number)).await;
                Ok(())
            })
        });
        self.start_client(&format!("waiter{number}"), wait);
    }

    /// Restores backups on another machine, which has the disk of the client that made them.
    fn check_backups(&mut self, injector: &mut FaultInjector) -> bool {
        for host in self.plan.backup_hosts() {
            let Host::Client(number) = host else { continue };
            let store = MountedDisk(self.world.machine(&host.name()).disk(cluster::DATA_DIR));
            let workload = self.workload.clone();
            let program: HostProgram = Arc::new(move |env| {
                let (workload, env) = (workload.clone(), Env { disks: Arc::new(store.clone()), ..env });
                Box::pin(async move {
                    workload.check_backups(&env, u32::from(number)).await;
                    Ok(())
                })
            });
            self.start_client(&format!("restorer{number}"), program);
            if !self.pass(injector, self.plan.quiet * 6, "the restores") {
                return false;
            }
        }
        true
    }

    fn check_recovery_phase(&mut self, injector: &mut FaultInjector) {
        let workload = self.workload.clone();
        let check_recovery_phase: HostProgram = Arc::new(move |env| {
            let workload = workload.clone();
            Box::pin(async move {
                workload.check_recovery(&env).await;
                Ok(())
            })
        });
        self.start_client("judge", check_recovery_phase);
        if self.pass(injector, self.plan.quiet * 6, "the recovery checks") && self.check_backups(injector) {
            self.check_idle_phase(injector);
            self.audit(injector);
        }
    }

    /// Checks that the catalog is whole and that servers have no other replicas than those it lists.
    fn audit(&mut self, injector: &mut FaultInjector) {
        let mut left = Vec::new();
        for time in 0..post_checks::AUDITS {
            let scans = self.has_sound_files();
            let workload = self.workload.clone();
            let program: HostProgram = Arc::new(move |env| {
                let workload = workload.clone();
                Box::pin(async move {
                    workload.audit_catalog(&env, scans).await;
                    Ok(())
                })
            });
            self.start_client(&format!("auditor{time}"), program);
            if !self.pass(injector, self.plan.quiet * 2, "the audit") {
                return;
            }
            let excused = self.observer.members_of_lost_changes();
            let (catalog, servers) = (self.workload.last_audit(), self.observer.running());
            left = post_checks::audit(self.world, self.plan, &catalog, &excused, servers);
            if left.is_empty() {
                break;
            }
        }
        self.failures.extend(left.iter().map(to_record));
    }

    /// Returns true if a scan finds no damaged file. Told by the disks and not by the plan: a fault that never struck
    /// is to change nothing.
    fn has_sound_files(&mut self) -> bool {
        let mut tservers = (0..self.plan.cluster.tservers).map(Host::Tserver);
        tservers.all(|host| self.world.machine(&host.name()).disks_were_at_most_full())
    }

    /// Checks that the idle cluster falls silent and that deleted tablets leave nothing.
    fn check_idle_phase(&mut self, injector: &mut FaultInjector) {
        let mut left = Vec::new();
        // The last dropped tablets may still be in deletion.
        for time in 0..post_checks::IDLE_TIMES {
            let Some(found) = self.idle(injector, time, post_checks::IDLE) else { return };
            left = found;
            if left.is_empty() {
                break;
            }
        }
        // What clients have left open is dropped some time later.
        if !left.is_empty() && left.iter().all(|violation| violation.oracle == resources::NAME) {
            let Some(found) = self.idle(injector, post_checks::IDLE_TIMES, post_checks::EXPIRY) else {
                return;
            };
            left = found;
        }
        left.extend(self.check_recovered_state(injector));
        let maintained = maintain(self.world, &self.observer.running().all(), self.plan.seed);
        left.extend(maintained.iter().filter_map(maintenance::check));
        self.failures.extend(left.iter().map(to_record));
    }

    /// Runs the trials of the plan's seed.
    fn run_trials(&mut self) {
        let is_large = self.plan.op_count() > SMALL_PLAN_OPS_MAX;
        let found = crate::trials::run(self.plan.seed, is_large);
        self.failures.extend(found.iter().map(to_record));
    }

    /// Compares what replicas hold in memory with what a restart would find. An operation may be on its way: what
    /// differs once is looked at again.
    fn check_recovered_state(&mut self, injector: &mut FaultInjector) -> Vec<Violation> {
        let servers = self.observer.running().all();
        let differ = recovered_state::check(&read_recovered_state(self.world, &servers));
        if differ.is_empty() || self.idle(injector, post_checks::IDLE_TIMES + 1, post_checks::IDLE).is_none()
        {
            return Vec::new();
        }
        recovered_state::check(&read_recovered_state(self.world, &servers))
    }

    /// Lets the cluster be idle for some time; returns what is left over, `None` if the run has failed.
    fn idle(&mut self, injector: &mut FaultInjector, time: u32, span: Duration) -> Option<Vec<Violation>> {
        let before = idle_look::read(self.world, &self.observer);
        let idle: HostProgram = Arc::new(move |env| {
            Box::pin(async move {
                env.sleep(span).await;
                Ok(())
            })
        });
        self.start_client(&format!("idler{time}"), idle);
        if !self.pass(injector, span * 5, "the idle phase") {
            return None;
        }
        // First of all: other checks read disks.
        let mut left = idle_look::check(self.world, self.plan, &self.observer, before, span);
        left.extend(post_checks::find_orphans(self.world, self.plan));
        left.extend(post_checks::find_kept_data(self.world, self.observer.running()));
        left.extend(post_checks::find_wrong_sizes(self.world, self.plan, self.observer.running()));
        left.extend(post_checks::find_long_logs(self.world, self.plan));
        left.extend(control_calls::check(&self.observer.running().calls(), self.world.now()));
        left.extend(resources::check(&self.observer.running().usages(self.world)));
        let checks = self.observer.running().health.checks();
        left.extend(post_checks::find_unready(self.world, self.plan, &checks));
        Some(left)
    }

    /// Lets time pass until every client has ended; false if they do not within the limit, or one fails.
    pub(crate) fn pass(&mut self, injector: &mut FaultInjector, limit: Duration, what: &str) -> bool {
        let end = self.world.now() + limit;
        while self.world.now() < end {
            self.observer.set_silent(&injector.silent_hosts());
            self.observer.set_disturbed(&disturbances::last_ends(injector.disturbances()));
            self.observer.set_active_faults(injector.disturbances(), self.world.now());
            let until = injector.next_at().map_or(end, |next| next.min(end));
            match self.world.run_until(until) {
                Ok(StopReason::Reached) => injector.run_due(self.world),
                Ok(StopReason::ClientsEnded) => return true,
                Ok(StopReason::LostPower { host }) => injector.on_power_loss(self.world, &host),
                Ok(StopReason::Fired { fault }) => injector.fire(self.world, fault),
                Ok(StopReason::Exited { host, error }) => {
                    let was_up = injector.on_exit(self.world, &host, error.as_deref());
                    if was_up && self.world.machine(&host).disks_are_fault_free() {
                        self.failures
                            .push(to_record(&uncaused_failures::check_exit(&host, error.as_deref())));
                    }
                }
                Err(failure) => {
                    self.fail("client", format!("{what}: {failure}"));
                    return false;
                }
            }
        }
        let message = format!("{what} has not ended after {limit:?} of simulated time");
        let operations = self.workload.history().operations();
        let pending = operations.iter().filter(|operation| operation.returned.is_none());
        let failed = |operation: &&HistoryOp| operation.outcome.error().is_some();
        let failed = operations.iter().rev().filter(failed).take(PENDING_MAX);
        let story = pending.take(PENDING_MAX).map(|operation| format!("pending: {operation}"));
        let story = story.chain(failed.map(|operation| format!("failed: {operation}"))).collect();
        self.failures.push(ViolationRecord { oracle: "liveness".to_string(), message, story });
        false
    }

    /// Adds the counters of the network and of the devices.
    fn count_device_faults(&mut self, injector: &mut FaultInjector) {
        let calls_cut = self.world.calls_cut();
        if calls_cut > 0 {
            injector.fired.insert(CALLS_CUT.to_string(), calls_cut);
        }
        for host in self.plan.servers() {
            for counts in self.world.machine(&host.name()).fault_counts() {
                let named = [
                    ("disk: writes lost", counts.writes_lost),
                    ("disk: writes torn", counts.writes_torn),
                    ("disk: pages lost", counts.pages_lost),
                    ("disk: names lost", counts.names_lost),
                    ("disk: operations failed", counts.ops_failed),
                    ("disk: syncs failed", counts.syncs_failed),
                    ("disk: full", counts.full),
                    ("disk: bits flipped", counts.bits_flipped),
                    ("disk: pages unreadable", counts.pages_unreadable),
                    ("disk: writes never made", counts.writes_phantom),
                    ("disk: writes misdirected", counts.writes_misdirected),
                    ("disk: power cuts in sync", counts.power_cuts_in_sync),
                ];
                for (name, count) in named.into_iter().filter(|(_, count)| *count > 0) {
                    *injector.fired.entry(name.to_string()).or_default() += count;
                }
            }
        }
    }
}

/// Returns the CPU time of this process so far.
fn cpu_ms() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    // User and system time, in hundredths of a second on every Linux.
    (ticks(11) + ticks(12)) * 10
}

/// Returns the peak resident memory of this process.
fn rss_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
