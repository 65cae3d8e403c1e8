//! A group trial: replicas of one tablet with their logs, files and clocks, over links of its own.
//!
//! ```text
//!        clients: writes with request ids, again at any server; alterations, also late ones
//!           │
//!  server a ◄─── links: reordered, lost, twice, cut ───► server b … e      [`server`]: Replica, Wal, two MemDisks
//!           │                                                              [`copies`]: a chunk at a time
//!           ├──► ledger   entries, commits with outcomes, leaders, votes, configurations
//!           └──► model    rows of committed operations: scans at any replica, at any snapshot it calls complete
//!
//!  operator: evicts what a leader reports as lost, adds members, deletes former ones, at any time
//!  in the end, without faults: three healthy voters, all requests done, equal rows, nothing left elsewhere; then a
//!  leadership transfer to a voter that is gone, the operator's last orders, or a disaster
//! ```
//!
//! A run's cluster goes through few elections and copies, each of which takes seconds of its time. Here they take
//! microseconds, and any message, disk operation, copied chunk or order of an operator may come between.
//!
//! *Not here:* masters, transports and tasks.

mod actions;
mod clients;
mod copies;
mod copy_state;
mod disaster;
mod effects;
mod faults;
mod full_log;
mod hibernation;
mod ids;
mod last_orders;
mod late_orders;
mod late_proposals;
mod ledger;
mod links;
mod lost_learner;
mod marked_learner;
mod membership;
mod membership_checks;
mod missing_replicas;
mod open_request;
mod operator;
mod published;
mod quiet;
mod server;
mod step;
mod transfer;
mod undone_append;
mod variant;
mod voters;

use std::collections::BTreeMap;
use std::time::Duration;

use engine::error::Result;
use engine::raft::{ConfigPosition, RaftConfig};
use engine::replica::Op;
use engine::schema::partition::{Partition, PartitionSchema};
use engine::tablet::superblock::Superblock;
use engine::time::{ClockReading, Instant, WallTime};
use sim_plan::RandomStream;
use sim_plan::tables::ModelTable;

use self::ids::{TABLE, TABLET, peer_of};
use self::ledger::Ledger;
use self::links::Links;
use self::membership::Membership;
use self::open_request::OpenRequest;
use self::server::{MissingReplica, TrialServer};
use self::variant::{GroupVariant, LateProposal};
use super::rows::TrialRows;
use super::scans::TrialTable;
use super::{draw, shape};
use crate::model::{RowAnswer, RowWrite};
use crate::oracle::Violation;

/// Name of this oracle.
const NAME: &str = "group trial";

/// Servers, of which the first ones have a replica in the beginning.
const SERVERS: usize = 5;
const MEMBERS: usize = 3;
/// Steps of a trial, before its quiet end.
const STEPS: u64 = 3_000;
/// Largest error of a clock.
const SKEW_MICROS: u64 = 5_000;
/// Lines that a violation's story ends with.
const STORY: usize = 80;

struct GroupTrial {
    random: RandomStream,
    variant: GroupVariant,
    now: Duration,
    /// False in the quiet end.
    faults: bool,
    servers: Vec<TrialServer>,
    links: Links,
    ledger: Ledger,
    /// Members by the orders to change them.
    membership: Membership,
    /// The last reply to a leader that a member has no replica, by leader and member.
    missing_replicas: BTreeMap<(usize, usize), MissingReplica>,
    /// Orders to delete replicas that were no members, with the position of the configuration that said so.
    late: Vec<(usize, ConfigPosition)>,
    /// The table, by schema version.
    tables: Vec<TrialTable>,
    rows: TrialRows,
    /// All requests of writes by number; answers to the rows of those that are committed.
    requests: BTreeMap<i64, Vec<RowWrite>>,
    answers: BTreeMap<i64, Vec<Vec<RowAnswer>>>,
    /// Index of each committed request, and the greatest one of those that were acknowledged.
    committed_at: BTreeMap<i64, u64>,
    acknowledged_until: u64,
    /// Requests without a reply.
    open: Vec<OpenRequest>,
    /// Proposals that wait for their replicas.
    late_proposals: Vec<LateProposal>,
    /// The alteration that is not committed yet, with the table after it.
    alteration: Option<(Op, ModelTable)>,
    /// True while requests have to end before an alteration.
    alteration_waits: bool,
    /// All alterations that were ordered.
    orders: Vec<Op>,
    /// The first unused number of a column.
    next_column: u8,
    /// The oldest snapshot that may be read.
    mark: u64,
    /// A learner that is to stay one.
    staying: Option<usize>,
    /// Complete tablet copies.
    copied: u64,
    found: Option<String>,
    steps: Vec<String>,
}

/// Runs the trial of a seed; returns what it finds.
pub(super) fn run(seed: u64) -> Option<Violation> {
    let mut trial = match GroupTrial::create(seed) {
        Ok(trial) => trial,
        Err(error) => return Some(Violation::new(NAME, format!("seed {seed}: {error}"))),
    };
    trial.run();
    let what = trial.found?;
    let message = format!("seed {seed}, after step {}: {what}", trial.steps.len());
    Some(Violation::new(NAME, message).with_end_of(trial.steps, STORY))
}

impl GroupTrial {
    fn create(seed: u64) -> Result<GroupTrial> {
        let mut random = RandomStream::new(seed, "group trial");
        let (variant, mut own) = GroupVariant::draw(seed);
        let shape = variant.table(&mut own, draw::table(&mut random));
        let config = variant.config(draw::config(&mut random));
        let schema = shape::schema_of(&shape)?;
        // One tablet has all rows.
        let given = schema.key_columns().iter().filter(|column| !column.auto_incrementing);
        let range_columns = given.map(|column| column.id).collect();
        let partition = PartitionSchema { range_columns, ..PartitionSchema::default() };
        let members = RaftConfig::initial((0..MEMBERS).map(peer_of).collect());
        let mut servers = Vec::new();
        for number in 0..SERVERS {
            let skew = random.below(2 * SKEW_MICROS);
            let mut server = TrialServer::new(number, random.next_u64(), config.clone(), skew);
            if number < MEMBERS {
                let (schema, partition) = (schema.clone(), partition.clone());
                let meta =
                    Superblock::new(TABLET, TABLE, "trial", schema, 0, partition, Partition::default());
                server.create(meta, members.clone())?;
            }
            servers.push(server);
        }
        let mut trial = GroupTrial {
            random,
            variant,
            now: Duration::from_secs(1),
            faults: true,
            servers,
            links: Links::default(),
            ledger: Ledger::default(),
            membership: Membership::of(&members),
            missing_replicas: BTreeMap::new(),
            late: Vec::new(),
            next_column: shape.columns.len() as u8,
            tables: vec![TrialTable::of(shape)?],
            rows: TrialRows::default(),
            requests: BTreeMap::new(),
            answers: BTreeMap::new(),
            committed_at: BTreeMap::new(),
            acknowledged_until: 0,
            open: Vec::new(),
            late_proposals: Vec::new(),
            alteration: None,
            alteration_waits: false,
            orders: Vec::new(),
            mark: 1,
            staying: None,
            copied: 0,
            found: None,
            steps: Vec::new(),
        };
        trial.note(format!("{variant:?}"));
        for server in 0..MEMBERS {
            let now = trial.reading(server);
            trial.servers[server].begin(now);
            trial.settle(server);
        }
        Ok(trial)
    }

    /// Takes all steps and the quiet end, unless something is wrong before.
    fn run(&mut self) {
        for _ in 0..STEPS {
            self.take_step();
            if self.found.is_some() {
                return;
            }
        }
        self.end();
    }

    /// Returns what a server's clocks show.
    fn reading(&self, server: usize) -> ClockReading {
        let micros = self.now.as_micros() as u64 + self.servers[server].skew_micros;
        let wall = WallTime { micros, error_micros: SKEW_MICROS };
        ClockReading { mono: Instant(self.now.as_nanos() as u64), wall }
    }

    /// Returns true if two servers run and reach each other.
    fn reaches(&self, one: usize, other: usize) -> bool {
        let up = self.servers[one].is_up && self.servers[other].is_up;
        up && !self.links.is_cut(one, other) && !self.links.is_cut(other, one)
    }

    fn any_server(&mut self) -> usize {
        self.random.below(SERVERS as u64) as usize
    }

    /// Returns the leader of the newest term, if there is one.
    fn leader(&self) -> Option<usize> {
        let running = self.servers.iter().filter_map(|server| Some((server.number, server.running()?)));
        let leaders = running.filter(|(_, replica)| replica.is_leader());
        leaders.max_by_key(|(_, replica)| replica.consensus_meta().term).map(|(number, _)| number)
    }

    fn table(&self) -> &TrialTable {
        self.tables.last().expect("there is a first version")
    }

    /// Adds what happens in a step to the story.
    fn note(&mut self, what: impl Into<String>) {
        self.steps.push(format!("  {}", what.into()));
    }

    /// Records what is wrong, unless something was before.
    fn report(&mut self, what: Option<String>) {
        self.found = self.found.take().or(what);
    }
}

#[cfg(test)]
mod tests;
