//! One run of one plan in one world, from the first boot to the judges' last word.
//!
//! ```text
//! boot ─► tables are made ─► clients at work, faults strike ─► all heals ─► quiet: whole again? ─► judges
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::aftermath;
use crate::chaos::Chaos;
use crate::cluster;
use crate::observer::Observer;
use crate::oracle::{Finding, calm, unprovoked};
use crate::plan::record::words;
use crate::plan::{Host, Plan};
use crate::trace::{EventLog, Moment, Track, listen_to_logs};
use crate::workload::Workload;
use crate::world::turmoil::TurmoilWorld;
use crate::world::{Program, Stopped, World};

words! {
    /// Which world a plan runs in.
    pub enum WorldKind {
        Madsim = "madsim",
        Turmoil = "turmoil",
    }
}

/// What of a run is kept besides its outcome.
#[derive(Debug, Clone, Default)]
pub struct Keep {
    /// Numbers of the events whose text is kept.
    pub events: Range<u64>,
    /// Whether the moments are kept that a page shows.
    pub moments: bool,
    /// Where the traces of replication go, and what their names begin with.
    pub traces: Option<(PathBuf, String)>,
}

/// Something that must not have happened, as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub oracle: String,
    pub message: String,
    pub story: Vec<String>,
}

/// What a run came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub seed: u64,
    pub world: String,
    pub events: u64,
    /// Of all events, in hexadecimal.
    pub hash: String,
    /// Hashes along the way, as [`crate::trace::Steps`] writes them.
    pub steps: String,
    pub simulated_ms: u64,
    pub answered: u64,
    pub unanswered: u64,
    pub rows_written: u64,
    pub rows_read: u64,
    pub checked: u64,
    pub undecided: u64,
    /// How often each kind of fault struck.
    pub fired: BTreeMap<String, u64>,
    /// How often each mark was reached.
    pub marks: BTreeMap<String, u64>,
    pub failures: Vec<Fault>,
    /// CPU time and memory of the process, where it is known.
    pub cpu_ms: u64,
    pub judge_ms: u64,
    pub rss_kib: u64,
}

/// An outcome and what was kept.
pub struct Ran {
    pub outcome: Outcome,
    pub lines: Vec<String>,
    pub moments: Vec<Moment>,
    pub lanes: Vec<Track>,
}

/// How long making the tables may take.
const PREPARE_LIMIT: Duration = Duration::from_secs(120);
/// The longest a run may take, all phases together.
const RUN_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// The world of a kind; an error says how to get it.
fn world(kind: WorldKind, plan: &Plan, log: &EventLog) -> Result<Box<dyn World>, String> {
    match kind {
        WorldKind::Turmoil => {
            let mut world = TurmoilWorld::new(plan.seed, RUN_LIMIT, log.clone());
            world.set_cost(cluster::device_cost(plan));
            Ok(Box::new(world))
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

/// Runs a plan. One run per process, if it is to repeat itself.
pub fn run(plan: &Plan, kind: WorldKind, keep: Keep) -> Result<Ran, String> {
    listen_to_logs();
    let log = EventLog::keeping(keep.events, keep.moments);
    let mut world = world(kind, plan, &log)?;
    let workload = Workload::new(plan);
    let origin = keep.traces.as_ref().map(|(_, name)| format!("cargo sim, {name}"));
    let observer = Observer::new(plan, origin);
    let mut run = Run {
        world: world.as_mut(),
        workload: workload.clone(),
        plan,
        observer: observer.clone(),
        failures: Vec::new(),
    };
    // A run that panics has a trace up to there.
    let phases = catch_unwind(AssertUnwindSafe(|| run.phases()));
    if let Some((dir, name)) = &keep.traces {
        let written = observer.write_traces(dir, name);
        written.map_err(|error| format!("writing traces into {}: {error}", dir.display()))?;
    }
    let chaos = phases.unwrap_or_else(|panic| resume_unwind(panic));
    let (mut failures, simulated) = (run.failures, run.world.now());
    observer.alive(&workload.living_tablets());
    let (memory, unprovoked) = (observer.memory_findings(), observer.unprovoked_findings());
    failures.extend(observer.findings().iter().chain(&memory).chain(&unprovoked).map(fault));
    let judging = cpu_ms();
    let outcome = outcome(plan, kind, &log, &workload, chaos, failures, simulated);
    let outcome = Outcome { marks: observer.marks(), ..outcome };
    let outcome = Outcome { judge_ms: cpu_ms() - judging, cpu_ms: cpu_ms(), rss_kib: rss_kib(), ..outcome };
    // Dropping a world drops all of its tasks, one by one; the process ends soon anyway.
    std::mem::forget(world);
    Ok(Ran { outcome, lines: log.lines(), moments: log.moments(), lanes: log.lanes() })
}

fn outcome(
    plan: &Plan,
    kind: WorldKind,
    log: &EventLog,
    workload: &Workload,
    chaos: Option<Chaos>,
    mut failures: Vec<Fault>,
    simulated: Duration,
) -> Outcome {
    let report = workload.report();
    failures.extend(report.findings.iter().map(fault));
    let (print, counts) = (log.fingerprint(), workload.counts());
    Outcome {
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
        fired: chaos.map(|chaos| chaos.fired).unwrap_or_default(),
        failures,
        ..Outcome::default()
    }
}

fn fault(finding: &Finding) -> Fault {
    let (oracle, message) = (finding.oracle.to_string(), finding.message.clone());
    Fault { oracle, message, story: finding.story.clone() }
}

struct Run<'a> {
    world: &'a mut dyn World,
    workload: Workload,
    plan: &'a Plan,
    observer: Observer,
    failures: Vec<Fault>,
}

impl Run<'_> {
    fn fail(&mut self, oracle: &str, message: String) {
        self.failures.push(Fault { oracle: oracle.to_string(), message, story: Vec::new() });
    }

    /// All phases; the chaos that was, if it came to that.
    fn phases(&mut self) -> Option<Chaos> {
        cluster::boot(self.world, self.plan, &self.observer);
        let workload = self.workload.clone();
        let prepare: Program = Arc::new(move |env| {
            let workload = workload.clone();
            Box::pin(async move { Ok(workload.prepare(&env).await?) })
        });
        self.world.client("setup", prepare);
        // Until the workload begins only supervisors act.
        let mut calm = Chaos::new(&Plan { faults: Vec::new(), ..self.plan.clone() }, Duration::ZERO);
        if !self.pass(&mut calm, PREPARE_LIMIT, "making the tables") {
            return None;
        }
        let mut chaos = Chaos::new(self.plan, self.world.now());
        for (index, client) in self.plan.clients.iter().enumerate() {
            let workload = self.workload.clone();
            let program: Program = Arc::new(move |env| {
                let workload = workload.clone();
                Box::pin(async move {
                    workload.run_client(&env, index).await;
                    Ok(())
                })
            });
            self.world.client(&Host::Client(client.setup.number).name(), program);
        }
        let worked = self.plan.clients.is_empty() || self.pass(&mut chaos, self.plan.limit, "the workload");
        chaos.heal(self.world);
        if worked {
            chaos.end(self.world);
            self.settle(&mut chaos);
        }
        self.count_disk_faults(&mut chaos);
        Some(chaos)
    }

    fn settle(&mut self, chaos: &mut Chaos) {
        let workload = self.workload.clone();
        let settle: Program = Arc::new(move |env| {
            let workload = workload.clone();
            Box::pin(async move {
                workload.settle(&env).await;
                Ok(())
            })
        });
        self.world.client("judge", settle);
        if self.pass(chaos, self.plan.quiet * 6, "looking at the healed cluster") {
            self.aftermath(chaos);
        }
    }

    /// Nobody asks for anything: the cluster falls silent, and keeps nothing of what is gone.
    fn aftermath(&mut self, chaos: &mut Chaos) {
        let mut left = Vec::new();
        // What was dropped last may still be on its way out.
        for time in 0..10 {
            let before = self.world.log().fingerprint().events;
            let idle: Program = Arc::new(|env| {
                Box::pin(async move {
                    env.sleep(aftermath::IDLE).await;
                    Ok(())
                })
            });
            self.world.client(&format!("idler{time}"), idle);
            if !self.pass(chaos, aftermath::IDLE * 5, "doing nothing") {
                return;
            }
            let events = self.world.log().fingerprint().events - before;
            left = aftermath::leftovers(self.world, self.plan);
            left.extend(aftermath::long_logs(self.world, self.plan));
            left.extend(calm::check(&self.plan.cluster, events, aftermath::IDLE));
            if left.is_empty() {
                break;
            }
        }
        self.failures.extend(left.iter().map(fault));
    }

    /// Lets time pass until every client has ended; false if they do not within the limit, or one fails.
    fn pass(&mut self, chaos: &mut Chaos, limit: Duration, what: &str) -> bool {
        let end = self.world.now() + limit;
        while self.world.now() < end {
            self.observer.silent(&chaos.silent());
            let until = chaos.next_at().map_or(end, |next| next.min(end));
            match self.world.run_until(until) {
                Ok(Stopped::Reached) => chaos.act(self.world),
                Ok(Stopped::ClientsEnded) => return true,
                Ok(Stopped::LostPower { host }) => chaos.lost_power(self.world, &host),
                Ok(Stopped::Struck { fault }) => chaos.strike(self.world, fault),
                Ok(Stopped::Exited { host, error }) => {
                    let was_up = chaos.exited(self.world, &host, error.as_deref());
                    if was_up && self.world.machine(&host).disks_obey() {
                        self.failures.push(fault(&unprovoked::check_exit(&host, error.as_deref())));
                    }
                }
                Err(failure) => {
                    self.fail("client", format!("{what}: {failure}"));
                    return false;
                }
            }
        }
        self.fail("liveness", format!("{what} has not ended after {limit:?} of simulated time"));
        false
    }

    /// What devices did is counted by them.
    fn count_disk_faults(&mut self, chaos: &mut Chaos) {
        for host in self.plan.servers() {
            for counts in self.world.machine(&host.name()).fault_counts() {
                let named = [
                    ("disk: writes lost", counts.writes_lost),
                    ("disk: writes torn", counts.writes_torn),
                    ("disk: names lost", counts.names_lost),
                    ("disk: operations failed", counts.ops_failed),
                    ("disk: syncs failed", counts.syncs_failed),
                    ("disk: full", counts.full),
                    ("disk: bits flipped", counts.bits_flipped),
                    ("disk: writes never made", counts.writes_phantom),
                    ("disk: writes misdirected", counts.writes_misdirected),
                    ("disk: power cuts in sync", counts.power_cuts_in_sync),
                ];
                for (name, count) in named.into_iter().filter(|(_, count)| *count > 0) {
                    *chaos.fired.entry(name.to_string()).or_default() += count;
                }
            }
        }
    }
}

/// CPU time of this process so far.
fn cpu_ms() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    // User and system time, in hundredths of a second on every Linux.
    (ticks(11) + ticks(12)) * 10
}

/// The most memory this process has had.
fn rss_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
