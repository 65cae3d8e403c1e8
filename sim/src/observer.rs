//! Who watches every server of a run: counts marks, has the invariants look at each note of replication, and keeps
//! the notes as traces if somebody wants them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use std::{fmt, io};

use engine::ids::{PeerId, TabletId};
use engine::note::Note;
use engine::note::raft::{Action, RaftNote, Trace};
use engine::watch::{Watch, Watcher};

use crate::cluster;
use crate::fuse::Fuses;
use crate::invariants::Watchdog;
use crate::machine::Machine;
use crate::oracle::memory::Counted;
use crate::oracle::{Finding, clocks, unprovoked};
use crate::plan::{Host, Limits, Plan};
use crate::trace::{self, Lane};

/// The kind of moments that tell the daily business of logs.
pub const LOG_ENTRY: &str = "log entry";

/// What was seen of one run. Clones share it.
#[derive(Clone)]
pub struct Observer {
    seen: Arc<Seen>,
}

struct Seen {
    marks: Mutex<BTreeMap<String, u64>>,
    dog: Mutex<Watchdog>,
    memory: Mutex<Memory>,
    unprovoked: Mutex<Vec<Finding>>,
    clients: usize,
    /// Whether tablets may forget what was acknowledged.
    forgets: bool,
    /// Whether logs keep whatever a member lacks, and members have all that they said they had.
    keeps_logs: bool,
    /// Whether any group of servers has had other members.
    changed: AtomicBool,
    machines: Mutex<Vec<Weak<Machine>>>,
    /// On which machine each server runs.
    hosts: Mutex<BTreeMap<PeerId, Host>>,
    /// None if nobody wants them.
    traces: Option<Mutex<Traces>>,
}

/// What the replicas of each tablet did, in the form that `spec/README.md` tells.
struct Traces {
    origin: String,
    /// Safe times of clocks that are more wrong than they say are promises that the spec would hold them to.
    without_safe_times: bool,
    tablets: BTreeMap<TabletId, Trace>,
}

impl Traces {
    fn push(&mut self, server: PeerId, tablet: TabletId, note: &RaftNote) {
        if self.without_safe_times && matches!(note.action, Action::SafeTimeAdvance { .. }) {
            return;
        }
        let origin = &self.origin;
        self.tablets.entry(tablet).or_insert_with(|| Trace::new(tablet, origin)).push(server, note);
    }
}

/// What servers count of their memory.
#[derive(Default)]
struct Memory {
    by_server: BTreeMap<PeerId, Counted>,
    findings: Vec<Finding>,
}

impl Observer {
    /// `origin`: where traces say that they come from; without it none are kept.
    pub fn new(plan: &Plan, origin: Option<String>) -> Observer {
        let patience = cluster::raft(plan).election_timeout();
        let dog =
            Watchdog::new(plan.cluster.log_sync, patience).giving_up_after(plan.cluster.follower_failed);
        let clocks_wrong = clocks::beyond_error(plan);
        let dog = dog.clocks_wrong_by(clocks_wrong);
        let (dog, hosts) = (Mutex::new(dog), Mutex::default());
        let without_safe_times = !clocks_wrong.is_zero();
        let traces =
            origin.map(|origin| Mutex::new(Traces { origin, without_safe_times, tablets: BTreeMap::new() }));
        let (marks, memory, unprovoked) = (Mutex::default(), Mutex::default(), Mutex::default());
        let keeps_logs = plan.cluster.limits != Limits::Tiny && plan.cluster.log_sync;
        let (changed, machines) = (AtomicBool::default(), Mutex::default());
        let seen = Seen {
            marks,
            dog,
            memory,
            unprovoked,
            clients: plan.clients.len(),
            forgets: plan.forgets(),
            keeps_logs,
            changed,
            machines,
            hosts,
            traces,
        };
        Observer { seen: Arc::new(seen) }
    }

    /// Writes each tablet's trace into `dir`, as `NAME-TABLET.trace`.
    pub fn write_traces(&self, dir: &Path, name: &str) -> io::Result<()> {
        let Some(traces) = &self.seen.traces else { return Ok(()) };
        std::fs::create_dir_all(dir)?;
        let traces = traces.lock().expect("nothing panics while it holds the traces");
        for (tablet, trace) in &traces.tablets {
            let path = dir.join(format!("{name}-{tablet}.trace"));
            std::fs::write(path, trace.clone().finish())?;
        }
        Ok(())
    }

    /// For the environment of the server on a machine, whose fuses its notes may burn.
    pub fn watch(&self, host: Host, machine: &Arc<Machine>) -> Watch {
        let fuses = machine.fuses().clone();
        // The machine keeps the watch: were it the other way round as well, neither would ever go.
        let machine = Arc::downgrade(machine);
        self.seen.machines().push(machine.clone());
        let (seen, name) = (self.seen.clone(), host.name());
        Watch::new(Arc::new(Post { seen, host, name, fuses, machine }))
    }

    /// These machines do nothing, each since that time of the run.
    pub fn silent(&self, hosts: &BTreeMap<Host, Duration>) {
        let servers = self.seen.hosts();
        let since = |host| hosts.get(host).map(|since| since.as_nanos() as u64);
        let silent = servers.iter().filter_map(|(server, host)| Some((*server, since(host)?)));
        self.seen.dog().silent(silent.collect());
    }

    /// How often each mark was reached.
    pub fn marks(&self) -> BTreeMap<String, u64> {
        self.seen.marks().clone()
    }

    /// Tells the invariants which tablets are there in the end.
    pub fn alive(&self, tablets: &[TabletId]) {
        self.seen.dog().alive(tablets);
    }

    /// What the invariants object to.
    pub fn findings(&self) -> Vec<Finding> {
        self.seen.dog().findings().to_vec()
    }

    /// Who held too much memory.
    pub fn memory_findings(&self) -> Vec<Finding> {
        self.seen.memory().findings.clone()
    }

    /// What failed for no reason.
    pub fn unprovoked_findings(&self) -> Vec<Finding> {
        self.seen.unprovoked().clone()
    }

    /// Notes of replication that were looked at.
    pub fn events(&self) -> u64 {
        self.seen.dog().events()
    }
}

/// Who watches one machine.
struct Post {
    seen: Arc<Seen>,
    host: Host,
    name: String,
    fuses: Fuses,
    machine: Weak<Machine>,
}

impl Post {
    /// Takes a failure down, if the machine's disks are no reason for it.
    fn judge(&self, found: Option<Finding>) {
        let obey = || self.machine.upgrade().is_some_and(|machine| machine.disks_obey());
        if let Some(found) = found.filter(|_| obey()) {
            self.seen.unprovoked().push(found);
        }
    }
}

impl Watcher for Post {
    fn mark(&self, mark: &'static str) {
        self.judge(unprovoked::check_mark(&self.name, mark));
        if let Some(found) = unprovoked::check_log(&self.name, mark).filter(|_| self.seen.keeps_all()) {
            self.seen.unprovoked().push(found);
        }
        self.seen.count(mark);
    }

    fn memory(&self, server: PeerId, bytes: u64, limit: u64) {
        self.seen.memory_counted(server, bytes, limit);
    }

    fn note(&self, server: PeerId, tablet: TabletId, note: &Note) {
        self.seen.hosts().entry(server).or_insert(self.host);
        self.seen.note(server, tablet, note);
        self.judge(unprovoked::check_note(&self.name, note));
        self.fuses.see(tablet, note, trace::nanos_here());
    }
}

impl Seen {
    fn hosts(&self) -> MutexGuard<'_, BTreeMap<PeerId, Host>> {
        self.hosts.lock().expect("nothing panics while it holds the hosts")
    }

    fn marks(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.marks.lock().expect("nothing panics while it holds the marks")
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("nothing panics while it holds what was counted")
    }

    fn unprovoked(&self) -> MutexGuard<'_, Vec<Finding>> {
        self.unprovoked.lock().expect("nothing panics while it holds what failed")
    }

    fn machines(&self) -> MutexGuard<'_, Vec<Weak<Machine>>> {
        self.machines.lock().expect("nothing panics while it holds the machines")
    }

    /// Whether every leader has what any member may lack: who was no member for a while is not waited for.
    fn keeps_all(&self) -> bool {
        let obey = |machine: &Weak<Machine>| machine.upgrade().is_none_or(|machine| machine.disks_obey());
        self.keeps_logs && !self.changed.load(Ordering::Relaxed) && self.machines().iter().all(obey)
    }

    fn dog(&self) -> MutexGuard<'_, Watchdog> {
        self.dog.lock().expect("nothing panics while it holds the invariants")
    }

    fn count(&self, mark: &str) {
        let mut marks = self.marks();
        match marks.get_mut(mark) {
            Some(count) => *count += 1,
            None => drop(marks.insert(mark.to_string(), 1)),
        }
    }
}

/// Where a page shows it: what decides who leads and who belongs, or the daily business of logs.
fn kind_of(action: &Action) -> &'static str {
    use Action::{AdvanceCommit, ClientAppend, FollowerAppend, FollowerCommit, FollowerPersist};
    use Action::{LeaderPersist, SafeTimeAdvance};
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

/// `before` and the first word of what `shown` shows; the rest is not even written.
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
    // It ends early, at the first space.
    let _ended = fmt::Write::write_fmt(&mut word, format_args!("{shown}"));
    word.0
}

impl Seen {
    fn memory_counted(&self, server: PeerId, bytes: u64, limit: u64) {
        trace::lane_here(Lane::Memory, bytes);
        let mut memory = self.memory();
        let counted = memory.by_server.entry(server).or_default();
        let found = counted.take(&server.to_string(), bytes, limit, self.clients);
        memory.findings.extend(found);
    }

    /// Whether the invariants hold of this tablet.
    fn judged(&self, tablet: TabletId) -> bool {
        !self.forgets || tablet == node::master::system::TABLET_ID
    }

    fn note(&self, server: PeerId, tablet: TabletId, note: &Note) {
        let name = match note {
            Note::Raft(raft) => {
                trace::aside_here(kind_of(&raft.action), || format!("{tablet} {raft}"));
                if matches!(raft.action, Action::ConfigAppend { .. }) {
                    self.changed.store(true, Ordering::Relaxed);
                }
                if self.judged(tablet) {
                    self.dog().see(server, tablet, raft, trace::nanos_here());
                }
                if let Some(traces) = self.traces.as_ref().filter(|_| self.judged(tablet)) {
                    let mut traces = traces.lock().expect("nothing panics while it holds the traces");
                    traces.push(server, tablet, raft);
                }
                // Its action's name: what stands before the parameters.
                first_word("raft: ", &raft.action)
            }
            other => first_word("note: ", other),
        };
        match note {
            Note::Replayed { config, .. } => {
                self.memory().by_server.entry(server).or_default().opened();
                self.dog().opened(server, tablet, *config);
            }
            Note::ServedLatest { applied, leads: Some(term) } if self.judged(tablet) => {
                self.dog().served_latest(server, tablet, *term, *applied);
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
        assert_eq!(first_word("raft: ", &Action::BecomeLeader), "raft: BecomeLeader");
        assert_eq!(
            first_word("raft: ", &Action::StartElection { term: 3, asked: true }),
            "raft: StartElection"
        );
        assert_eq!(first_word("", &"one two three"), "one");
    }
}
