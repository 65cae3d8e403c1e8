//! The double of a cluster: its state, which all its servers share, and what it knows of the client's operations.

use std::collections::{BTreeMap, BTreeSet};

use nyala_client::Error;
use sim_plan::RandomStream;
use sim_plan::client_ops::WriteKind;

use super::conditions::{Condition, Disturbances};
use super::limits::{MASTERS, SERVERS};
use super::rows::{Cells, RowResult, Rows};
use super::scanner_state::ScannerState;
use super::tablets::{OPEN, RangeChange, Tablets};

/// An operation of the client.
#[derive(Debug, Clone)]
pub(super) struct Op {
    pub began: u64,
    /// Highest timestamp of the writes that the client knew then.
    pub observed: u64,
    /// A change of ranges that the operation asks for.
    pub change: Option<RangeChange>,
    /// True once the change was made.
    pub is_changed: bool,
    /// True once masters have refused it, as it did not fit the ranges of that time.
    pub is_refused: bool,
}

/// A row operation that the client was told to send.
#[derive(Debug, Clone)]
pub(super) struct Intent {
    pub op: usize,
    pub kind: WriteKind,
    pub key: i64,
    pub cells: Cells,
    /// Results of its executions, with the tablet of each.
    pub results: Vec<(usize, RowResult)>,
}

/// The state of all servers.
pub(super) struct Cluster {
    pub random: RandomStream,
    pub leader: usize,
    pub masters: [Condition; MASTERS],
    pub servers: [Condition; SERVERS],
    pub tablets: Tablets,
    pub rows: Rows,
    /// Number of the token that servers accept.
    pub token: u64,
    /// Last timestamp given.
    pub stamp: u64,
    pub scanners: BTreeMap<u64, ScannerState>,
    pub next_scanner: u64,
    /// Replies by tablet, client and number of the request.
    pub replies: BTreeMap<(usize, String, i64), Vec<u8>>,
    /// First incomplete request of each client.
    pub incomplete: BTreeMap<String, i64>,
    pub ops: Vec<Op>,
    /// Operations without a result.
    pub pending: BTreeSet<usize>,
    /// Time of the last result of a change of ranges: the client has dropped all locations then.
    pub forgotten: u64,
    pub intents: Vec<Intent>,
    pub disturbances: Disturbances,
    /// Time to live of locations.
    pub ttl: u64,
    pub found: Option<String>,
    pub steps: Vec<String>,
}

impl Cluster {
    pub(super) fn new(seed: u64) -> Cluster {
        let mut random = RandomStream::new(seed, "client trial");
        let ttl = random.pick(&[300, 2_000, 8_000, 60_000]) * 1_000_000;
        let mut tablets = Tablets::default();
        let bounds = [OPEN.0, 50, 100, 120, 160, OPEN.1];
        for pair in bounds.windows(2) {
            if random.percent(85) {
                tablets.add(&mut random, (pair[0], pair[1]));
            }
        }
        Cluster {
            leader: random.below(MASTERS as u64) as usize,
            random,
            masters: [Condition::Fine; MASTERS],
            servers: [Condition::Fine; SERVERS],
            tablets,
            rows: Rows::default(),
            token: 1,
            stamp: 1 << 20,
            scanners: BTreeMap::new(),
            next_scanner: 1,
            replies: BTreeMap::new(),
            incomplete: BTreeMap::new(),
            ops: Vec::new(),
            pending: BTreeSet::new(),
            forgotten: 0,
            intents: Vec::new(),
            disturbances: Disturbances::default(),
            ttl,
            found: None,
            steps: Vec::new(),
        }
    }

    /// Returns a timestamp higher than all before.
    pub(super) fn tick(&mut self) -> u64 {
        // Gaps let a server choose a snapshot right after a write.
        self.stamp += 4;
        self.stamp
    }

    /// Registers an operation that begins now; returns its number.
    pub(super) fn begin_op(&mut self, began: u64, observed: u64) -> usize {
        self.ops.push(Op { began, observed, change: None, is_changed: false, is_refused: false });
        let op = self.ops.len() - 1;
        self.pending.insert(op);
        op
    }

    /// Takes note of an operation that ends now.
    pub(super) fn end_op(&mut self, op: usize, now: u64) {
        self.mark_disturbances(now);
        self.pending.remove(&op);
        if self.ops[op].change.is_some() {
            self.forgotten = now;
        }
    }

    /// Reports an operation that has not ended at the end of the trial: servers have been in order for longer than any
    /// operation may take.
    pub(super) fn check_pending(&mut self) {
        let pending = self.pending.first().map(|op| self.ops[*op].began);
        if let Some(began) = pending {
            self.report(format!("an operation that began at {:.3} s has not ended", seconds(began)));
        }
    }

    /// Returns true if a lookup may be under way that began before the client dropped all locations: it does not keep
    /// the reply.
    pub(super) fn has_old_lookups(&self) -> bool {
        self.pending.iter().any(|op| self.ops[*op].began <= self.forgotten)
    }

    /// Takes note of what is disturbed up to now; called before and after each change of a condition.
    pub(super) fn mark_disturbances(&mut self, now: u64) {
        let (servers, master) = (self.servers, self.masters[self.leader]);
        if servers.iter().any(|server| server.is_hard()) || master.is_hard() {
            self.disturbances.hard = now;
        }
        if servers.iter().any(|server| *server != Condition::Fine) {
            self.disturbances.any = now;
        }
        let serves = |leader: Option<usize>| leader.is_some_and(|at| servers[at] == Condition::Fine);
        if master != Condition::Fine || !self.tablets.live().all(|(_, tablet)| serves(tablet.leader)) {
            self.disturbances.unserved = now;
        }
    }

    /// Takes note of a leader or a range that has changed.
    pub(super) fn mark_change(&mut self, now: u64) {
        self.disturbances = Disturbances { hard: now, unserved: now, any: now };
    }

    /// Changes ranges, and drops what dropped tablets had.
    pub(super) fn change_ranges(&mut self, change: RangeChange, now: u64) {
        self.mark_disturbances(now);
        let stamp = self.tick();
        let (lower, upper) = self.tablets.change(&mut self.random, change, (stamp, now));
        self.rows.drop_range(lower, upper, (stamp, now));
        self.scanners.retain(|_, scanner| scanner.tablet != change.drop);
        self.note(format!("{:.3} s: {change:?}, rows of {lower}..{upper}", seconds(now)));
        self.mark_change(now);
    }

    /// Loses the scanners of a server.
    pub(super) fn lose_scanners(&mut self, server: usize) {
        self.scanners.retain(|_, scanner| scanner.server != server);
    }

    /// Adds what happens to the story.
    pub(super) fn note(&mut self, what: String) {
        self.steps.push(format!("  {what}"));
    }

    /// Records what is wrong, unless something was before.
    pub(super) fn report(&mut self, what: String) {
        self.note(what.clone());
        self.found.get_or_insert(what);
    }
}

/// Returns the text of a result.
pub(super) fn text_of<T>(result: &Result<T, Error>) -> String {
    match result {
        Ok(_) => "ok".to_string(),
        Err(error) => format!("{:?}: {}", error.kind, error.message),
    }
}

pub(super) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
