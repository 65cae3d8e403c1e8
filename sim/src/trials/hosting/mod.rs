//! A hosting trial: tablet servers with replicas of one tablet, and an operator in the place of masters.
//!
//! ```text
//!   operator ── CreateTablet, Write, ChangeConfig, DeleteTablet, StartTabletCopy ──► servers of the keyed world
//!      │            orders may be late, name no source, or come twice                   │ disks fail within them
//!      └── restarts, cut links, rot                                                     ▼
//!   in the end: three healthy voters, each order is carried out, nothing stays       invariants of replication
//! ```
//!
//! In a run, masters delete and copy replicas now and then, and a disk mostly fails at another time. Here orders are
//! all that happens, so that each of their disk operations fails in some trial.
//!
//! *Not here:* rows, which the other trials compare, and masters.

mod calls;
mod disks;
mod late_order;
mod operator;
mod orders;
mod quiet;
mod step;
mod votes;

use std::time::Duration;

use engine::disk::mem::DiskCost;
use engine::ids::{TabletId, Uuid};
use engine::schema::Schema;
use sim_plan::tables::ModelTable;
use sim_plan::{FaultProfile, FinalRestart, Host, Plan, PlanSize, RandomStream};

use self::late_order::LateOrder;
use super::{draw, shape};
use crate::cluster;
use crate::event_log::EventLog;
use crate::oracle::Violation;
use crate::run_observer::RunObserver;
use crate::world::keyed::KeyedWorld;
use crate::world::{LinkRuleId, StopReason, World};

/// Name of this oracle.
const NAME: &str = "hosting trial";

const TABLET: TabletId = Uuid([7; 16]);
const TABLE: Uuid = Uuid([8; 16]);
/// Servers, of which the first ones get a replica.
const SERVERS: usize = 4;
const MEMBERS: usize = 3;
/// Steps of a trial, before its quiet end.
const STEPS: usize = 40;
/// Time until the tablet's first leader.
const BEGINNING: Duration = Duration::from_secs(4);
/// Lines that a violation's story ends with.
const STORY: usize = 60;
/// Invariants that need to know which disturbances there are.
const OF_DISTURBANCES: [&str; 3] = ["LeaderUndisturbed", "MajorityElects", "LiveMajority"];

struct HostingTrial {
    random: RandomStream,
    world: KeyedWorld,
    plan: Plan,
    observer: RunObserver,
    table: ModelTable,
    schema: Schema,
    ids: Vec<Uuid>,
    up: [bool; SERVERS],
    /// The server that has a damaged file: the group can do without it, and without no other.
    rotten: Option<usize>,
    rules: Vec<LinkRuleId>,
    late: Vec<LateOrder>,
    found: Option<String>,
    steps: Vec<String>,
}

/// Runs the trial of a seed; returns what it finds.
pub(super) fn run(seed: u64) -> Option<Violation> {
    let mut trial = HostingTrial::create(seed);
    trial.run();
    let what = trial.found?;
    let message = format!("seed {seed}, after step {}: {what}", trial.steps.len());
    let story = trial.steps.split_off(trial.steps.len().saturating_sub(STORY));
    Some(Violation { oracle: NAME, message, story })
}

/// Returns the plan of a trial: settings of servers, without masters, clients and faults.
fn plan_of(seed: u64) -> Plan {
    let mut plan = Plan::generate(seed, FaultProfile::Calm, PlanSize::Smoke);
    (plan.clients, plan.faults, plan.clocks, plan.tables) = Default::default();
    (plan.security, plan.ending) = (None, FinalRestart::Stay);
    (plan.cluster.masters, plan.cluster.tservers) = (1, SERVERS as u8);
    (plan.cluster.replicas, plan.cluster.log_sync) = (MEMBERS as u8, true);
    plan.cluster.raft_heartbeat = Duration::from_millis(100);
    plan.cluster.follower_failed = Duration::from_secs(3);
    plan.cluster.rpc_timeout = Duration::from_secs(1);
    plan
}

/// Returns the host of a server.
fn host(server: usize) -> Host {
    Host::Tserver(server as u8)
}

impl HostingTrial {
    fn create(seed: u64) -> HostingTrial {
        let plan = plan_of(seed);
        let mut random = RandomStream::new(seed, "hosting trial");
        let table = draw::table(&mut random);
        let schema = shape::schema_of(&table).expect("a model table has a schema");
        let (log, cost) = (EventLog::keeping(0..0, false), DiskCost::default());
        let world = KeyedWorld::new(seed, plan.network.clone(), cost, log);
        let observer = RunObserver::new(&plan, None);
        HostingTrial {
            random,
            world,
            plan,
            observer,
            table,
            schema,
            ids: Vec::new(),
            up: [true; SERVERS],
            rotten: None,
            rules: Vec::new(),
            late: Vec::new(),
            found: None,
            steps: Vec::new(),
        }
    }

    fn run(&mut self) {
        self.boot();
        for _ in 0..STEPS {
            if self.found.is_some() {
                return;
            }
            self.take_step();
        }
        self.end();
        self.report_violations();
    }

    /// Boots all servers and creates the tablet.
    fn boot(&mut self) {
        for server in 0..SERVERS {
            let machine = self.world.machine(&host(server).name());
            machine.set_cost(cluster::device_cost(&self.plan));
            machine.set_observer(self.observer.observer_for(host(server), &machine));
            if let Some(program) = cluster::server(&self.plan, host(server), self.observer.running()) {
                self.world.boot(&host(server).name(), program);
            }
        }
        self.pass(BEGINNING);
        let ids = self.observer.running().all().into_iter().map(|(_, server)| server.uuid());
        self.ids = ids.collect();
        if self.ids.len() < SERVERS {
            return self.report("not all servers have started".to_string());
        }
        self.create_tablet();
        self.pass(BEGINNING);
    }

    /// Lets time pass.
    fn pass(&mut self, span: Duration) {
        let until = self.world.now() + span;
        while !self.run_until(until) {}
    }

    /// Lets time pass until then; false if the operator's call ended before.
    fn run_until(&mut self, until: Duration) -> bool {
        loop {
            match self.world.run_until(until) {
                Ok(StopReason::Reached) => return true,
                Ok(StopReason::ClientsEnded) => return false,
                Ok(StopReason::Fired { .. }) => {}
                Ok(StopReason::LostPower { host }) => {
                    self.world.cut_power(&host);
                    self.mark_down(&host);
                }
                Ok(StopReason::Exited { host, error }) => self.exited(&host, error),
                Err(failure) => {
                    self.report(failure.to_string());
                    return true;
                }
            }
        }
    }

    /// Handles the end of a server's process, which only a faulty disk explains.
    fn exited(&mut self, host: &str, error: Option<String>) {
        let sound = self.world.machine(host).disks_are_fault_free();
        self.world.kill(host);
        self.mark_down(host);
        self.note(format!("{host} ends: {error:?}"));
        if sound {
            self.report(format!("{host} ends by itself: {error:?}"));
        }
    }

    fn mark_down(&mut self, name: &str) {
        let server = (0..SERVERS).find(|server| host(*server).name() == name);
        server.into_iter().for_each(|server| self.up[server] = false);
    }

    /// Reports what the invariants of replication have found.
    fn report_violations(&mut self) {
        let of_group = |violation: &&Violation| !OF_DISTURBANCES.contains(&violation.oracle);
        let (found, uncaused) = (self.observer.violations(), self.observer.uncaused_failures());
        let first = found.iter().filter(of_group).chain(&uncaused).next();
        let text = first.map(|violation| format!("{}: {}", violation.oracle, violation.message));
        text.into_iter().for_each(|text| self.report(text));
    }

    /// Adds what happens in a step to the story.
    fn note(&mut self, what: impl Into<String>) {
        self.steps.push(format!("  {}", what.into()));
    }

    /// Records what is wrong, unless something was before.
    fn report(&mut self, what: String) {
        self.found.get_or_insert(what);
    }
}

#[cfg(test)]
mod tests;
