//! A catalog trial: the masters' catalog alone, with made-up tablet servers and clients.
//!
//! ```text
//!   clients: requests that must succeed, be refused, come twice ──┐
//!                                                                 ▼
//!   servers ── heartbeats, late or lost ──► Catalog ── turns ──► committed rows ──► the next master's Catalog
//!      ▲                                       │
//!      └── calls: lost, late, twice ◄──────────┘
//!      │
//!   [`group`] of each tablet: terms, leaders, configurations that are accepted and lost, copies
//!
//!   [`model`]  tables, ranges, versions: each reply and each query must be the model's
//!   [`orders`] each call to a server must be one that its tablet allows
//!   in the end, without faults: every tablet whole, every alteration done, nothing left elsewhere, no call open,
//!   and the records of deleted tables and tablets expire
//! ```
//!
//! In a run, a catalog sees few requests, most of which succeed, and seconds pass between two of them. Here a request,
//! a fail-over or a lost call may come between any two messages.
//!
//! The seam is [`engine::catalog::Catalog`], a state machine without IO, driven as the masters' catalog loop drives it:
//! a turn takes some events, stores their writes all together, and only then lets calls and replies leave.
//!
//! *Not here:* the wire, the system tablet's replication, authorization, secrets and format levels.

mod agenda;
mod alteration;
mod calls;
mod creations;
mod ddl;
mod definition;
mod draws;
mod encode;
mod expired;
mod faults;
mod group;
mod group_turns;
mod heartbeats;
mod invalid;
mod master;
mod messages;
mod model;
mod observe;
mod orders;
mod queries;
mod quiet;
mod rebuilding;
mod server;
mod servers;
mod settings;
mod step;
mod table_settings;
mod turns;

use std::collections::BTreeMap;
use std::time::Duration;

use engine::catalog::{Catalog, CatalogConfig, SystemRowKey, TserverContact};
use engine::ids::{PeerId, TableId, TabletId};
use engine::time::{ClockReading, Instant, WallTime};
use sim_plan::RandomStream;

use self::agenda::Agenda;
use self::ddl::Ddl;
use self::group::Group;
use self::master::{DeposedMaster, Master};
use self::model::Model;
use self::server::TrialServer;
use self::settings::EPOCH_MICROS;
use crate::oracle::Violation;

/// Name of this oracle.
const NAME: &str = "catalog trial";

/// Steps of a trial, before its quiet end.
const STEPS: usize = 160;
/// Lines that a violation's story ends with.
const STORY: usize = 120;

struct CatalogTrial {
    random: RandomStream,
    now: Duration,
    /// False in the quiet end.
    faults: bool,
    config: CatalogConfig,
    agenda: Agenda,
    master: Master,
    deposed: Option<DeposedMaster>,
    /// The committed rows of the system tablet.
    rows: BTreeMap<SystemRowKey, Vec<u8>>,
    /// Tablet servers of which all masters have received a registration.
    contacts: BTreeMap<PeerId, TserverContact>,
    /// Numbers of the last reports that a master received of a run of a server.
    last_reports: BTreeMap<(usize, PeerId, i64), Option<i32>>,
    servers: BTreeMap<PeerId, TrialServer>,
    /// Number of the next server's identity.
    next_server: u8,
    groups: BTreeMap<TabletId, Group>,
    model: Model,
    /// Requests that may be repeated.
    past: Vec<Ddl>,
    /// Tables that there were.
    old_tables: Vec<TableId>,
    reached: Reached,
    found: Option<String>,
    steps: Vec<String>,
}

/// Counts of what a trial has come to.
#[derive(Debug, Default, Clone, Copy)]
struct Reached {
    done: u64,
    refused: u64,
    fail_overs: u64,
    lost_turns: u64,
    lost_changes: u64,
    repairs: u64,
    removals: u64,
    replacements: u64,
    /// Looks at a tablet that runs without a replica which its server could not be asked for.
    creations: u64,
}

/// Runs the trial of a seed; returns what it finds.
pub(super) fn run(seed: u64) -> Option<Violation> {
    let mut trial = match CatalogTrial::create(seed) {
        Ok(trial) => trial,
        Err(error) => return Some(Violation::new(NAME, format!("seed {seed}: {error}"))),
    };
    trial.run();
    let what = trial.found?;
    let message = format!("seed {seed}, at {:?}: {what}", trial.now);
    Some(Violation::new(NAME, message).with_end_of(trial.steps, STORY))
}

impl CatalogTrial {
    fn create(seed: u64) -> engine::error::Result<CatalogTrial> {
        let mut random = RandomStream::new(seed, "catalog trial");
        let config = settings::config(&mut random);
        let now = Duration::from_secs(1);
        let catalog = Catalog::load(config.clone(), [random.next_u64(), 1], reading(now), [])?;
        let mut trial = CatalogTrial {
            random,
            now,
            faults: true,
            config,
            agenda: Agenda::default(),
            master: Master::new(0, 1, now, catalog),
            deposed: None,
            rows: BTreeMap::new(),
            contacts: BTreeMap::new(),
            last_reports: BTreeMap::new(),
            servers: BTreeMap::new(),
            next_server: 1,
            groups: BTreeMap::new(),
            model: Model::default(),
            past: Vec::new(),
            old_tables: Vec::new(),
            reached: Reached::default(),
            found: None,
            steps: Vec::new(),
        };
        trial.boot_servers();
        Ok(trial)
    }

    /// Takes all steps and the quiet end, unless something is wrong before.
    fn run(&mut self) {
        // The first turn stores the records of a new catalog.
        self.turn();
        for _ in 0..STEPS {
            self.take_step();
            if self.found.is_some() {
                return;
            }
        }
        self.end();
    }

    /// Returns what the clocks show.
    fn reading(&self) -> ClockReading {
        reading(self.now)
    }

    /// Adds what happens in a step to the story.
    fn note(&mut self, what: impl Into<String>) {
        self.steps.push(format!("  {:?} {}", self.now, what.into()));
    }

    /// Records what is wrong, unless something was before.
    fn report(&mut self, what: String) {
        self.found.get_or_insert(what);
    }

    /// Records the finding of a check.
    fn check(&mut self, checked: Result<(), String>) {
        if let Err(what) = checked {
            self.report(what);
        }
    }
}

fn reading(now: Duration) -> ClockReading {
    let micros = EPOCH_MICROS + now.as_micros() as u64;
    ClockReading { mono: Instant(now.as_nanos() as u64), wall: WallTime { micros, error_micros: 0 } }
}

#[cfg(test)]
mod tests;
