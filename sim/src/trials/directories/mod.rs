//! A directories trial: one tablet server with several data directories on devices of their own, which its operator
//! loses, declares lost, gives up, brings back, reorders and exchanges.
//!
//! ```text
//!   operator ── CreateTablet, Write, DeleteTablet ──► server of the keyed world ── data, data-2, data-3
//!      │                                                                            │ each start is one that must
//!      └── disks are unmounted, mounted again, and named in another order           ▼ succeed or must be refused
//!   after each start: every tablet of a directory that is there runs with all that it had, and the others have failed
//! ```
//!
//! A server that takes an empty mount point for a new disk, or a disk of long ago for its own, forgets votes and rows.
//!
//! *Not here:* groups of several replicas, and rows: tablets tell the last operation that they have.

mod checks;
mod model;
mod starts;
mod tablets;

use std::time::Duration;

use engine::disk::mem::MemDisk;
use engine::schema::Schema;
use sim_plan::tables::ModelTable;
use sim_plan::{Plan, RandomStream};

use self::model::TabletModel;
use super::fleet::Fleet;
use super::{draw, fleet, shape};
use crate::cluster::{self, DATA_DIR};
use crate::oracle::Violation;

/// Name of this oracle.
const NAME: &str = "directories trial";

/// Data directories of the server: those of a plan that has three.
const DIRS: [&str; 3] = [DATA_DIR, "data-2", "data-3"];
/// Steps of a trial.
const STEPS: usize = 14;
const BEGINNING: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Create,
    Write,
    Delete,
    /// The server restarts with its directories named in another order.
    Reorder,
    /// Two disks change places.
    Exchange,
    /// A directory is not named.
    Omit,
    /// A disk is gone, and an empty one in its place.
    Lose,
    /// A disk that was given up is back.
    BringBack,
}

struct DirectoriesTrial {
    random: RandomStream,
    fleet: Fleet,
    table: ModelTable,
    schema: Schema,
    tablets: Vec<TabletModel>,
    /// Number of the next tablet.
    next: usize,
    /// Order in which the directories are named.
    order: Vec<&'static str>,
    /// Disks that were given up, with the directory of each.
    given_up: Vec<(&'static str, MemDisk)>,
}

/// Runs the trial of a seed; returns what it finds.
pub(super) fn run(seed: u64) -> Option<Violation> {
    let mut trial = DirectoriesTrial::create(seed);
    trial.run();
    trial.fleet.violation(NAME, seed)
}

fn plan_of(seed: u64) -> Plan {
    Plan { data_dirs: DIRS.len() as u8, ..fleet::plan_of(seed, 1, 1, 1) }
}

impl DirectoriesTrial {
    fn create(seed: u64) -> DirectoriesTrial {
        let mut random = RandomStream::new(seed, "directories trial");
        let table = draw::table(&mut random);
        let schema = shape::schema_of(&table).expect("a model table has a schema");
        DirectoriesTrial {
            random,
            fleet: Fleet::create(seed, plan_of(seed)),
            table,
            schema,
            tablets: Vec::new(),
            next: 0,
            order: DIRS.to_vec(),
            given_up: Vec::new(),
        }
    }

    fn run(&mut self) {
        self.fleet.boot(cluster::tserver_config, BEGINNING);
        (0..DIRS.len()).for_each(|_| self.create_tablet());
        for _ in 0..STEPS {
            if self.fleet.found.is_some() {
                return;
            }
            self.take_step();
        }
        self.delete_all();
    }

    fn take_step(&mut self) {
        let step = self.random.weighted(&[
            (Step::Create, 12),
            (Step::Write, 14),
            (Step::Delete, 6),
            (Step::Reorder, 10),
            (Step::Exchange, 8),
            (Step::Omit, 6),
            (Step::Lose, 14),
            (Step::BringBack, 10),
        ]);
        self.fleet.steps.push(format!("{step:?}"));
        match step {
            Step::Create => self.create_tablet(),
            Step::Write => self.write_all(),
            Step::Delete => self.delete_some(),
            Step::Reorder => self.reorder(),
            Step::Exchange => self.exchange(),
            Step::Omit => self.omit(),
            Step::Lose => self.lose(),
            Step::BringBack => self.bring_back(),
        }
    }
}

#[cfg(test)]
mod tests;
