//! A serving trial: tablet servers with many tablets in two data directories, and made-up masters that hear of them.
//!
//! ```text
//!   made-up masters: lead by turns, forget, are silent, deaf ◄── heartbeats, reports ── servers of the keyed world
//!       │ in the end the leader knows what servers have                                   │ directories run full,
//!   operator ── CreateTablet, DeleteTablet, AlterSchema, Write, LeaderStepDown ──────────►│ disks fail, clocks err
//!       │ replicas go where space is, writes are refused where none is, leadership leaves a server that runs short,
//!       │ a transfer goes to the voter that it names, a commit wait ends after its timestamp, also for a request that
//!       │ is repeated at a new leader, and a session of a copy and a scanner live as long as they are used
//!       │ timestamps of a tablet only rise, and readings of a clock are above earlier timestamps and below later ones
//!       │ flags that the operator sets have effect, are shown, and end with the process
//!       └ orders that are late, old or for another server are refused, each with its code
//! ```
//!
//! *Not here:* rows, changes of members and copies, which other trials are for, and the invariants of replication: the
//! operator deletes majorities of replicas.

mod clock_reads;
mod commit_wait;
mod copy_sessions;
mod directories;
mod flag_values;
mod flags;
mod kept_scanners;
mod known_server;
mod limits;
mod masters;
mod order_codes;
mod quiet;
mod reports;
mod server_space;
mod slow_scans;
mod space_moves;
mod step;
mod tablet_case;
mod tablets;
mod transfers;

use std::sync::Arc;
use std::time::Duration;

use engine::ids::{TabletId, Uuid};
use engine::schema::Schema;
use engine::sync::Mutex;
use node::hosting::copy::CopyConfig;
use node::tserver::TserverConfig;
use sim_plan::tables::ModelTable;
use sim_plan::{Host, Plan, RandomStream};

use self::flag_values::FlagValues;
use self::limits::{COPY_IDLE, PENDING_BYTES, SCANNER_CHECK, SCANNER_TTL};
use self::masters::{MASTERS, Masters};
use self::server_space::{DATA, Directories, RESERVES};
use self::tablet_case::TabletCase;
use super::fleet::{Fleet, host};
use super::{draw, fleet, shape};
use crate::cluster;
use crate::oracle::Violation;
use crate::server_limits::CLOCK_ERROR_MAX_MICROS;
use crate::world::{HostProgram, World};

/// Name of this oracle.
const NAME: &str = "serving trial";

const SERVERS: usize = 3;
/// Steps of a trial, before its quiet end.
const STEPS: usize = 40;
/// Time until servers serve, and until a tablet's first leader.
const BEGINNING: Duration = Duration::from_secs(1);
/// Interval of heartbeats, and of looks at tablets' sizes.
const HEARTBEAT: Duration = Duration::from_millis(250);
const SIZES: Duration = Duration::from_millis(500);

struct ServingTrial {
    random: RandomStream,
    fleet: Fleet,
    masters: Arc<Mutex<Masters>>,
    directories: Vec<Directories>,
    flags: Vec<FlagValues>,
    table: ModelTable,
    schema: Schema,
    tablets: Vec<TabletCase>,
    /// Number of the next tablet.
    next: u8,
    /// Number of the next request that is sent twice.
    request: i64,
}

/// Runs the trial of a seed; returns what it finds.
pub(super) fn run(seed: u64) -> Option<Violation> {
    let mut trial = ServingTrial::create(seed);
    trial.run();
    trial.fleet.violation(NAME, seed)
}

/// Returns the plan of a trial. No replica is ever evicted.
fn plan_of(seed: u64) -> Plan {
    let mut plan = fleet::plan_of(seed, MASTERS, SERVERS, SERVERS);
    plan.cluster.follower_failed = Duration::from_secs(300);
    plan.cluster.heartbeat = HEARTBEAT;
    plan
}

fn config_of(plan: &Plan, host: Host) -> TserverConfig {
    let config = cluster::tserver_config(plan, host);
    TserverConfig {
        copy: CopyConfig { idle_timeout: COPY_IDLE, ..config.copy },
        data_dirs: DATA.map(str::to_string).to_vec(),
        replica_pending_bytes_max: PENDING_BYTES,
        reserves: RESERVES,
        scanner_ttl_ms: SCANNER_TTL.as_millis() as u64,
        scanner_check_interval_ms: SCANNER_CHECK.as_millis() as u64,
        tablet_stats_interval_ms: SIZES.as_millis() as u64,
        ..config
    }
}

/// Returns the id of the tablet of a number.
fn tablet_of(number: u8) -> TabletId {
    Uuid([number + 1; 16])
}

impl ServingTrial {
    fn create(seed: u64) -> ServingTrial {
        let mut random = RandomStream::new(seed, "serving trial");
        let table = draw::table(&mut random);
        let schema = shape::schema_of(&table).expect("a model table has a schema");
        ServingTrial {
            random,
            fleet: Fleet::create(seed, plan_of(seed)),
            masters: Arc::new(Mutex::new(Masters::new(seed))),
            directories: vec![Directories::default(); SERVERS],
            flags: vec![FlagValues::default(); SERVERS],
            table,
            schema,
            tablets: Vec::new(),
            next: 0,
            request: 0,
        }
    }

    fn run(&mut self) {
        for number in 0..MASTERS {
            let masters = self.masters.clone();
            let program: HostProgram =
                Arc::new(move |env| Box::pin(masters::serve(env, masters.clone(), number)));
            self.fleet.world.boot(&Host::Master(number as u8).name(), program);
        }
        self.set_clocks();
        self.fleet.boot(config_of, BEGINNING);
        for _ in 0..STEPS {
            if self.has_found() {
                return;
            }
            self.take_step();
        }
        self.end();
        let failure = self.fleet.observer.uncaused_failures().into_iter().next();
        failure.into_iter().for_each(|failure| self.fleet.report(failure.message));
    }

    /// Gives each server a clock that errs by up to what it states.
    fn set_clocks(&mut self) {
        for server in 0..SERVERS {
            let error = self.random.below(CLOCK_ERROR_MAX_MICROS);
            let offset = self.random.within(error);
            self.fleet.world.machine(&host(server).name()).set_clock(offset, error);
        }
    }

    /// Returns true if something is wrong; also takes over what the masters have found.
    fn has_found(&mut self) -> bool {
        let told = self.masters.lock().found.take();
        told.into_iter().for_each(|what| self.fleet.report(what));
        self.fleet.found.is_some()
    }

    /// Lets the next steps happen later.
    fn pass(&mut self, span: Duration) {
        self.fleet.pass(span);
    }
}

#[cfg(test)]
mod tests;
