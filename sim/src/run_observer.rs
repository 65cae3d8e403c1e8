//! The observer of every server of a run: counts marks, passes each replication note to the invariants, and retains the
//! notes as traces on request.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use std::{fmt, io};

use engine::ids::{PeerId, TabletId};
use engine::note::Note;
use engine::note::raft::{RaftAction, RaftNote, RaftTrace};
use engine::observer::{Observer, ObserverHandle};
use engine::sync::{Mutex, MutexGuard};
use engine::time::Instant;

use crate::event_log::{self, Series};
use crate::features::{FeatureCollector, RunFeatures};
use crate::injector::disturbances::Disturbance;
use crate::invariants::InvariantChecker;
use crate::machine::Machine;
use crate::oracle::copies::CopyLog;
use crate::oracle::copy_requests::CopyRequests;
use crate::oracle::memory_limit::MemoryReadings;
use crate::oracle::uncaused_failures::DiskFailure;
use crate::oracle::{Violation, hybrid_time, uncaused_failures, wrong_clocks};
use crate::server_limits::{CLOCK_ERROR_MAX_MICROS, raft};
use crate::server_usage::RunningServers;
use crate::trigger::Triggers;
use crate::world::BOOTED;
use sim_plan::{EngineLimits, Host, Plan};

/// Kind of timeline events for log entries.
pub const LOG_ENTRY: &str = "log entry";

/// The observations of one run. Clones share them.
#[derive(Clone)]
pub struct RunObserver {
    state: Arc<Observations>,
}

struct Observations {
    marks: Mutex<BTreeMap<String, u64>>,
    invariants: Mutex<InvariantChecker>,
    memory: Mutex<Memory>,
    uncaused: Mutex<Vec<Violation>>,
    copies: Mutex<CopyLog>,
    copy_requests: Mutex<CopyRequests>,
    clients: usize,
    /// True if tablets may lose acknowledged data.
    may_lose_acknowledged: bool,
    /// True if logs retain whatever a member lacks, and members have all that they reported.
    keeps_logs: bool,
    /// True once any configuration has changed.
    changed: AtomicBool,
    machines: Mutex<Vec<Weak<Machine>>>,
    /// Machine of each server.
    hosts: Mutex<BTreeMap<PeerId, Host>>,
    running: RunningServers,
    /// `None` if traces were not requested.
    traces: Option<Mutex<Traces>>,
    /// Empty if features were not requested.
    features: OnceLock<Mutex<FeatureCollector>>,
}

/// The actions of each tablet's replicas, in the form of `spec/README.md`.
struct Traces {
    origin: String,
    /// True if clocks are wrong beyond their stated error: their safe times would violate the spec.
    without_safe_times: bool,
    tablets: BTreeMap<TabletId, RaftTrace>,
}

impl Traces {
    fn push(&mut self, server: PeerId, tablet: TabletId, note: &RaftNote) {
        if self.without_safe_times && matches!(note.action, RaftAction::SafeTimeAdvance { .. }) {
            return;
        }
        let origin = &self.origin;
        self.tablets.entry(tablet).or_insert_with(|| RaftTrace::new(tablet, origin)).push(server, note);
    }
}

/// Memory samples of the servers.
#[derive(Default)]
struct Memory {
    by_server: BTreeMap<PeerId, MemoryReadings>,
    violations: Vec<Violation>,
}

impl RunObserver {
    /// `origin`: the origin named in traces; without it none are retained.
    pub fn new(plan: &Plan, origin: Option<String>) -> RunObserver {
        let election_timeout = raft(plan).election_timeout();
        let invariants = InvariantChecker::new(plan.cluster.log_sync, election_timeout)
            .evicting_after(plan.cluster.follower_failed);
        let excess_clock_error = hybrid_time::beyond_error(plan);
        let invariants = invariants.with_clock_error(excess_clock_error);
        let (invariants, hosts) = (Mutex::new(invariants), Mutex::default());
        let without_safe_times = !excess_clock_error.is_zero();
        let traces =
            origin.map(|origin| Mutex::new(Traces { origin, without_safe_times, tablets: BTreeMap::new() }));
        let (marks, memory, uncaused) = (Mutex::default(), Mutex::default(), Mutex::default());
        let keeps_logs = plan.cluster.limits != EngineLimits::Tiny && plan.cluster.log_sync;
        let (changed, machines) = (AtomicBool::default(), Mutex::default());
        let state = Observations {
            marks,
            invariants,
            memory,
            uncaused,
            copies: Mutex::default(),
            copy_requests: Mutex::new(CopyRequests::new(copy_pause(plan))),
            clients: plan.clients.len(),
            may_lose_acknowledged: plan.may_lose_acknowledged(),
            keeps_logs,
            changed,
            machines,
            hosts,
            running: RunningServers::default(),
            traces,
            features: OnceLock::new(),
        };
        RunObserver { state: Arc::new(state) }
    }

    /// Collects the run's features from now on.
    pub fn collect_features(&self) {
        self.state.features.get_or_init(Mutex::default);
    }

    /// Returns the features of the states, orders and disturbances so far; `None` if they are not collected.
    pub fn features(&self) -> Option<RunFeatures> {
        self.state.features.get().map(|features| features.lock().features())
    }

    /// Tells which faults are active now: what happens next happens under them.
    pub fn set_active_faults(&self, disturbances: &[Disturbance], now: Duration) {
        if let Some(features) = self.state.features.get() {
            features.lock().set_active(disturbances, now);
        }
    }

    /// Writes each tablet's trace into `dir`, as `NAME-TABLET.trace`.
    pub fn write_traces(&self, dir: &Path, name: &str) -> io::Result<()> {
        let Some(traces) = &self.state.traces else { return Ok(()) };
        std::fs::create_dir_all(dir)?;
        let traces = traces.lock();
        for (tablet, trace) in &traces.tablets {
            let path = dir.join(format!("{name}-{tablet}.trace"));
            std::fs::write(path, trace.clone().finish())?;
        }
        Ok(())
    }

    /// Returns the observer for the environment of the server on a machine, whose triggers its notes may fire.
    pub fn observer_for(&self, host: Host, machine: &Arc<Machine>) -> ObserverHandle {
        let triggers = machine.triggers().clone();
        // The machine holds the observer: a reference back would leak both.
        let machine = Arc::downgrade(machine);
        self.state.machines().push(machine.clone());
        let (state, name) = (self.state.clone(), host.name());
        ObserverHandle::new(Arc::new(MachineObserver { state, host, name, triggers, machine }))
    }

    /// Returns the tablet servers that run.
    pub fn running(&self) -> &RunningServers {
        &self.state.running
    }

    /// Sets the silent machines, each with the start of its silence.
    pub fn set_silent(&self, hosts: &BTreeMap<Host, Duration>) {
        let servers = self.state.hosts();
        let since = |host| hosts.get(host).map(|since| since.as_nanos() as u64);
        let silent = servers.iter().filter_map(|(server, host)| Some((*server, since(host)?)));
        self.state.invariants().set_silent(silent.collect());
    }

    /// Sets the ends of the last disturbances of machines.
    pub fn set_disturbed(&self, hosts: &BTreeMap<Host, Duration>) {
        let servers = self.state.hosts();
        let until = |host| hosts.get(host).map(|until| u64::try_from(until.as_nanos()).unwrap_or(u64::MAX));
        let disturbed = servers.iter().filter_map(|(server, host)| Some((*server, until(host)?)));
        self.state.invariants().set_disturbed(disturbed.collect());
    }

    /// Returns how often each mark was reached.
    pub fn marks(&self) -> BTreeMap<String, u64> {
        self.state.marks().clone()
    }

    /// Returns how often one mark was reached.
    pub fn mark_count(&self, mark: &str) -> u64 {
        self.state.marks().get(mark).copied().unwrap_or_default()
    }

    /// Tells the invariants which tablets exist at the end.
    pub fn check_live_tablets(&self, tablets: &[TabletId]) {
        self.state.invariants().check_live_tablets(tablets);
    }

    /// Returns the invariants' violations.
    pub fn violations(&self) -> Vec<Violation> {
        self.state.invariants().violations().to_vec()
    }

    /// Returns violations of the memory limit.
    pub fn memory_violations(&self) -> Vec<Violation> {
        self.state.memory().violations.clone()
    }

    /// Returns failures without a cause.
    pub fn uncaused_failures(&self) -> Vec<Violation> {
        self.state.uncaused().clone()
    }

    /// Returns servers and tablets of members that only a lost configuration change names.
    pub fn members_of_lost_changes(&self) -> BTreeSet<(String, String)> {
        let (members, hosts) = (self.state.invariants().members_of_lost_changes(), self.state.hosts());
        let named = members.iter().filter_map(|(tablet, server)| Some((hosts.get(server)?, tablet)));
        named.map(|(host, tablet)| (host.name(), tablet.to_string())).collect()
    }

    /// Returns leaders that repeated refused requests without a pause.
    pub fn hasty_copy_requests(&self) -> Vec<Violation> {
        self.state.copy_requests.lock().violations()
    }

    /// Returns tablet copies that were given up without a cause.
    pub fn aborted_copies(&self, disturbances: &[Disturbance], settle: Duration) -> Vec<Violation> {
        self.state.copies.lock().check(&self.state.hosts(), disturbances, settle)
    }

    /// Returns the number of replication notes checked.
    pub fn events(&self) -> u64 {
        self.state.invariants().events()
    }
}

/// Returns the time that a leader waits at least before it repeats a refused request.
fn copy_pause(plan: &Plan) -> Duration {
    let options = raft(plan);
    options.heartbeat_interval.min(options.backoff_max).min(options.follower_failed_after / 3)
}

/// The observer of one machine.
struct MachineObserver {
    state: Arc<Observations>,
    host: Host,
    name: String,
    triggers: Triggers,
    machine: Weak<Machine>,
}

impl MachineObserver {
    /// Checks that a tablet server with a wrong clock accepts no writes.
    fn check_clock(&self, tablet: TabletId, note: &Note) {
        let (Host::Tserver(_), Note::Raft(note)) = (self.host, note) else { return };
        let Some(machine) = self.machine.upgrade() else { return };
        let now = Duration::from_nanos(event_log::nanos_here());
        let wrong_for = machine.clock_wrong_for(CLOCK_ERROR_MAX_MICROS, now);
        // Writes that were admitted before a stall end after it.
        let stalled_until =
            machine.overloads().last().map(|(_, to)| to.since(Instant(0)).saturating_sub(BOOTED));
        let wrong_for = wrong_for.min(now.saturating_sub(stalled_until.unwrap_or_default()));
        let found = wrong_clocks::check(&self.name, tablet, note, wrong_for);
        self.state.uncaused().extend(found);
    }

    /// Records a failure, unless the machine's disks caused it.
    fn report_uncaused(&self, found: Option<DiskFailure>) {
        let Some(found) = found else { return };
        let Some(machine) = self.machine.upgrade() else { return };
        let no_disk_explains = match found.may_be_full {
            true => machine.disks_are_fault_free(),
            false => machine.disks_were_at_most_full(),
        };
        if no_disk_explains {
            self.state.uncaused().push(found.violation);
        }
    }
}

impl Observer for MachineObserver {
    fn mark(&self, mark: &'static str) {
        self.report_uncaused(uncaused_failures::check_mark(&self.name, mark));
        if let Some(found) = uncaused_failures::check_log(&self.name, mark).filter(|_| self.state.keeps_all())
        {
            event_log::record_unhashed_here("role", || found.to_string());
            self.state.uncaused().push(found);
        }
        self.state.count(mark);
        self.triggers.on_mark(mark);
    }

    fn memory(&self, server: PeerId, bytes: u64, limit: u64) {
        self.state.memory_counted(server, bytes, limit);
    }

    fn note(&self, server: PeerId, tablet: TabletId, note: &Note) {
        self.state.hosts().entry(server).or_insert(self.host);
        self.state.note(server, tablet, note);
        self.report_uncaused(uncaused_failures::check_note(&self.name, note));
        self.check_clock(tablet, note);
        self.triggers.on_note(tablet, note, event_log::nanos_here());
    }
}

impl Observations {
    fn hosts(&self) -> MutexGuard<'_, BTreeMap<PeerId, Host>> {
        self.hosts.lock()
    }

    fn marks(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.marks.lock()
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock()
    }

    fn uncaused(&self) -> MutexGuard<'_, Vec<Violation>> {
        self.uncaused.lock()
    }

    fn machines(&self) -> MutexGuard<'_, Vec<Weak<Machine>>> {
        self.machines.lock()
    }

    /// Returns true if every leader has what any member may lack; former members are not waited for.
    fn keeps_all(&self) -> bool {
        let obey =
            |machine: &Weak<Machine>| machine.upgrade().is_none_or(|machine| machine.disks_are_fault_free());
        self.keeps_logs && !self.changed.load(Ordering::Relaxed) && self.machines().iter().all(obey)
    }

    fn invariants(&self) -> MutexGuard<'_, InvariantChecker> {
        self.invariants.lock()
    }

    fn count(&self, mark: &str) {
        if let Some(features) = self.features.get() {
            features.lock().mark(mark);
        }
        let mut marks = self.marks();
        match marks.get_mut(mark) {
            Some(count) => *count += 1,
            None => drop(marks.insert(mark.to_string(), 1)),
        }
    }
}

/// Returns the timeline kind of an action: leadership and membership, or log entries.
fn kind_of(action: &RaftAction) -> &'static str {
    use RaftAction::{AdvanceCommit, ClientAppend, FollowerAppend, FollowerCommit, FollowerPersist};
    use RaftAction::{LeaderPersist, SafeTimeAdvance};
    match action {
        ClientAppend { .. }
        | FollowerAppend { .. }
        | LeaderPersist { .. }
        | FollowerPersist { .. }
        | AdvanceCommit
        | FollowerCommit
        | SafeTimeAdvance { .. } => LOG_ENTRY,
        _ => "role",
    }
}

/// Returns `before` and the first word of `shown`; the rest is not even formatted.
fn first_word(before: &str, shown: &impl fmt::Display) -> String {
    struct Word(String);
    impl fmt::Write for Word {
        fn write_str(&mut self, more: &str) -> fmt::Result {
            let word = more.split(' ').next().unwrap_or_default();
            self.0.push_str(word);
            if word.len() < more.len() { Err(fmt::Error) } else { Ok(()) }
        }
    }
    let mut word = Word(before.to_string());
    // The error is expected: it ends the formatting at the first space.
    let _ended = fmt::Write::write_fmt(&mut word, format_args!("{shown}"));
    word.0
}

impl Observations {
    fn memory_counted(&self, server: PeerId, bytes: u64, limit: u64) {
        event_log::add_sample_here(Series::Memory, bytes);
        let mut memory = self.memory();
        let readings = memory.by_server.entry(server).or_default();
        let found = readings.check_sample(&server.to_string(), bytes, limit, self.clients);
        memory.violations.extend(found);
    }

    /// Adds what the tablet's model is after a note to the features, if they are collected.
    fn collect(&self, server: PeerId, tablet: TabletId, note: &RaftNote) {
        let Some(features) = self.features.get() else { return };
        if let Some(model) = self.invariants().model_of(tablet) {
            features.lock().note(server, tablet, note, model);
        }
    }

    /// Returns true if the invariants apply to this tablet.
    fn is_checked(&self, tablet: TabletId) -> bool {
        !self.may_lose_acknowledged || tablet == node::master::system_tablet::TABLET_ID
    }

    fn note(&self, server: PeerId, tablet: TabletId, note: &Note) {
        let name = match note {
            Note::Raft(raft) => {
                event_log::record_unhashed_here(kind_of(&raft.action), || format!("{tablet} {raft}"));
                let now = Duration::from_nanos(event_log::nanos_here());
                self.copies.lock().note(server, tablet, &raft.action, now);
                if matches!(raft.action, RaftAction::ConfigAppend { .. }) {
                    self.changed.store(true, Ordering::Relaxed);
                }
                if self.is_checked(tablet) {
                    self.invariants().check_note(server, tablet, raft, event_log::nanos_here());
                    self.collect(server, tablet, raft);
                }
                if let Some(traces) = self.traces.as_ref().filter(|_| self.is_checked(tablet)) {
                    let mut traces = traces.lock();
                    traces.push(server, tablet, raft);
                }
                // The action's name: the text before its parameters.
                first_word("raft: ", &raft.action)
            }
            other => first_word("note: ", other),
        };
        match note {
            Note::Replayed { config, .. } => {
                self.memory().by_server.entry(server).or_default().opened();
                self.invariants().opened(server, tablet, *config);
            }
            Note::CopyRefused { leader } => {
                let now = Duration::from_nanos(event_log::nanos_here());
                self.copy_requests.lock().refused(tablet, server, *leader, now);
            }
            Note::ServedLatest { applied, leads: Some(term) } if self.is_checked(tablet) => {
                self.invariants().served_latest(server, tablet, *term, *applied);
            }
            _ => {}
        }
        self.count(&name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_action_is_its_first_word() {
        assert_eq!(first_word("raft: ", &RaftAction::BecomeLeader), "raft: BecomeLeader");
        assert_eq!(
            first_word("raft: ", &RaftAction::StartElection { term: 3, asked: true }),
            "raft: StartElection"
        );
        assert_eq!(first_word("", &"one two three"), "one");
    }
}
