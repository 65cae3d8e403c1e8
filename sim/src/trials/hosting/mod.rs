//! A hosting trial: tablet servers with replicas of one tablet, and an operator in the place of masters.
//!
//! ```text
//!   operator ── CreateTablet, Write, ChangeConfig, DeleteTablet, StartTabletCopy ──► servers of the keyed world
//!      │            orders may be late, name no source, or come twice                   │ disks fail within them
//!      └── restarts, cut links, rot                                                     ▼
//!   in the end: three healthy voters, each order is carried out, nothing stays       invariants of replication
//! ```
//!
//! Scenarios put a group that is whole into a rare situation: a long copy, a log that a copy needs, truncated
//! operations, little memory, full devices, slow replicas, learners that are marked late, members that come back while
//! their replicas are deleted. Most trials end with one of them (`calm_end.rs`).
//!
//! In a run, masters delete and copy replicas now and then, and a disk mostly fails at another time. Here orders are
//! all that happens, so that each of their disk operations fails in some trial.
//!
//! *Not here:* rows, which the other trials compare, and masters.

mod broken_copies;
mod bulk_writes;
mod calls;
mod calm_end;
mod disks;
mod full_devices;
mod heartbeat_calls;
mod held_logs;
mod late_order;
mod little_memory;
mod long_copies;
mod operator;
mod orders;
mod quiet;
mod quiet_learners;
mod returns;
mod step;
mod truncated_entries;
mod votes;

use std::time::Duration;

use engine::ids::{TabletId, Uuid};
use engine::schema::Schema;
use sim_plan::tables::ModelTable;
use sim_plan::{EngineLimits, Plan, RandomStream};

use self::late_order::LateOrder;
use super::fleet::Fleet;
use super::{draw, fleet, shape};
use crate::cluster;
use crate::oracle::Violation;

/// Name of this oracle.
const NAME: &str = "hosting trial";

const TABLET: TabletId = Uuid([7; 16]);
const TABLE: Uuid = Uuid([8; 16]);
/// Servers, of which the first ones get a replica.
const SERVERS: usize = 4;
const MEMBERS: usize = 3;
/// Trials of which one has other limits than the smallest, with which logs are cut soon.
const NORMAL_ONE_IN: u64 = 5;
/// Steps of a trial, before its quiet end.
const STEPS: usize = 40;
/// Time until the tablet's first leader.
const BEGINNING: Duration = Duration::from_secs(4);

struct HostingTrial {
    random: RandomStream,
    fleet: Fleet,
    table: ModelTable,
    schema: Schema,
    /// The server that has a damaged file: the group can do without it, and without no other.
    rotten: Option<usize>,
    late: Vec<LateOrder>,
}

/// Runs the trial of a seed; returns what it finds.
pub(super) fn run(seed: u64) -> Option<Violation> {
    let mut trial = HostingTrial::create(seed);
    trial.run();
    trial.fleet.violation(NAME, seed)
}

/// Returns the plan of a trial; no master runs.
fn plan_of(seed: u64) -> Plan {
    let mut plan = fleet::plan_of(seed, 1, SERVERS, MEMBERS);
    plan.cluster.follower_failed = Duration::from_secs(3);
    if !seed.is_multiple_of(NORMAL_ONE_IN) {
        plan.cluster.limits = EngineLimits::Tiny;
    }
    plan
}

impl HostingTrial {
    fn create(seed: u64) -> HostingTrial {
        let mut random = RandomStream::new(seed, "hosting trial");
        let table = draw::table(&mut random);
        let schema = shape::schema_of(&table).expect("a model table has a schema");
        let fleet = Fleet::create(seed, plan_of(seed));
        HostingTrial { random, fleet, table, schema, rotten: None, late: Vec::new() }
    }

    fn run(&mut self) {
        self.fleet.boot(cluster::tserver_config, BEGINNING);
        self.create_tablet();
        self.fleet.pass(BEGINNING);
        for _ in 0..STEPS {
            if self.fleet.found.is_some() {
                return;
            }
            self.take_step();
        }
        self.end();
        self.fleet.report_violations();
    }
}

#[cfg(test)]
mod tests;
