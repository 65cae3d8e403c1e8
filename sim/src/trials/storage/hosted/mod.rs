//! The hosted part of a storage trial: a replica in a tablet server, with its maintenance, and one client.
//!
//! ```text
//!   client: rows by columns that it learned some time ago ──► tablet server ──► replica, jobs
//!      │ the same request again, after a restart too                 │ disk operations fail within jobs,
//!      ▼                                                             │ pages cannot be read
//!   model: each request takes effect once ◄── rows, counts ──────────┘
//! ```
//!
//! What a server makes of its replica is not in the engine: jobs that fail must be ended and made again, a
//! page that cannot be read fails the replica, the reply to a request outlives a restart, and columns are
//! bound to the schema of today. A scan resumes after any key. At last a file rots, which the scrubber must find.
//!
//! *Not here:* members, masters and other servers, which hosting and serving trials have.

mod alterations;
mod altered_scans;
mod calls;
mod checks;
mod failing_jobs;
mod maintenance_settings;
mod repeated_writes;
mod resumed_scans;
mod scrubbing;
mod step;
mod tablet_metrics;
mod tablet_sizes;
mod text_keys;
mod unread_pages;
mod view;
mod write_counts;
mod writes;

use std::time::Duration;

use engine::ids::{TabletId, Uuid};
use sim_plan::tables::ModelTable;
use sim_plan::{DataSpec, DeviceSpec, EngineLimits, Plan, RandomStream};

use self::maintenance_settings::MaintenanceSettings;
use crate::cluster;
use crate::history::HybridStamp;
use crate::oracle::Violation;
use crate::trials::fleet::Fleet;
use crate::trials::rows::TrialRows;
use crate::trials::scans::TrialTable;
use crate::trials::{draw, fleet};

/// Name of this oracle.
const NAME: &str = "storage trial, hosted";

/// Percentage of storage trials that have this part, and its steps.
const HOSTED_PERCENT: u64 = 34;
const STEPS: usize = 16;
/// Time until the server serves, and until its replica leads.
const BEGINNING: Duration = Duration::from_secs(1);
const MAINTENANCE: Duration = Duration::from_millis(100);
const DEVICES: DeviceSpec = DeviceSpec {
    op: Duration::from_micros(10),
    kib: Duration::from_nanos(300),
    sync: Duration::from_micros(60),
};

const TABLET: TabletId = Uuid([7; 16]);
const TABLE: Uuid = Uuid([8; 16]);
/// The only server.
const SERVER: usize = 0;

struct HostedTrial {
    random: RandomStream,
    fleet: Fleet,
    table: TrialTable,
    rows: TrialRows,
    /// The columns as the client has learned them.
    view: ModelTable,
    /// The first unused number of a column.
    next_column: u8,
    version: u32,
    settings: MaintenanceSettings,
    /// Number of the last request.
    sequence: i64,
    /// Timestamps of the first and the last write.
    first: HybridStamp,
    last: HybridStamp,
}

/// Runs the hosted part of the trial of a seed, if it has one; returns what it finds.
pub(super) fn run(seed: u64) -> Option<Violation> {
    let mut random = RandomStream::new(seed, "storage trial, hosted");
    if !random.percent(HOSTED_PERCENT) {
        return None;
    }
    let mut trial = HostedTrial::create(seed, random);
    trial.run();
    trial.fleet.violation(NAME, seed)
}

/// Returns the plan of a trial: little is flushed at once, and nothing but the disk is slow.
fn plan_of(seed: u64) -> Plan {
    let mut plan = fleet::plan_of(seed, 1, 1, 1);
    (plan.cluster.limits, plan.cluster.maintenance) = (EngineLimits::Tiny, MAINTENANCE);
    (plan.data, plan.devices) = (DataSpec::default(), DEVICES);
    plan.network.latency = Duration::from_micros(100);
    (plan.network.jitter, plan.network.loss_per_mille) = (Duration::from_micros(200), 0);
    plan
}

impl HostedTrial {
    fn create(seed: u64, mut random: RandomStream) -> HostedTrial {
        let shape = text_keys::table_of(seed, draw::table(&mut random));
        let table = TrialTable::of(shape.clone()).expect("a model table has a schema");
        HostedTrial {
            random,
            fleet: Fleet::create(seed, plan_of(seed)),
            next_column: shape.columns.len() as u8,
            view: shape,
            table,
            rows: TrialRows::default(),
            version: 0,
            settings: MaintenanceSettings::new(seed),
            sequence: 0,
            first: 0,
            last: 0,
        }
    }

    fn run(&mut self) {
        self.fleet.boot(cluster::tserver_config, BEGINNING);
        self.create_tablet();
        self.fleet.pass(BEGINNING);
        for _ in 0..STEPS {
            self.take_step();
            self.check();
            if self.fleet.found.is_some() {
                return;
            }
        }
        self.recover();
        self.check_resumed_scans();
        self.check_upkeep();
        self.check();
        self.fleet.report_violations();
        // Order: last, as the replica may fail by the rot.
        if self.fleet.found.is_none() {
            self.check_scrubber();
        }
    }
}

#[cfg(test)]
mod tests;
