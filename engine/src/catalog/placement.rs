//! Placement of the replicas of a new tablet on tablet servers.
//!
//! Servers with the fewest replicas of the same range of the table come first, then those with the fewest of the table.
//! Among equals two are drawn at random and the one with fewer replicas in total wins (power of two choices): new
//! servers fill up quickly but are not flooded when many tables are created at once.
//!
//! Locations (racks, zones) of the servers take precedence. Each next replica is placed in a location with the fewest
//! replicas of the tablet so far, so that no location has a majority unless the servers leave no choice.

use std::collections::BTreeMap;

use super::id_rng::IdRng;
use super::record::TabletRecord;
use crate::ids::{PeerId, TableId, TabletId};

/// Range of a table.
#[derive(Debug)]
pub(super) struct TableRange {
    table: TableId,
    /// Its lower bound.
    lower: Vec<u8>,
}

impl TableRange {
    /// Returns the range of a tablet.
    pub(super) fn of(record: &TabletRecord) -> TableRange {
        TableRange { table: record.table, lower: record.partition.range().lower }
    }
}

/// Replica counts of the servers that can take new ones. To count them visits every tablet, so they are counted at most
/// once per step, and for each table at most once, however many replicas are placed.
#[derive(Debug, Default)]
pub(super) struct ReplicaCounts {
    /// Replicas of all tables.
    pub(super) servers: BTreeMap<PeerId, usize>,
    /// Replicas of one table, for the tables with placements in this step.
    pub(super) tables: BTreeMap<TableId, BTreeMap<PeerId, TableLoad>>,
    /// Locations of all registered servers; those without a location count as one location.
    pub(super) locations: BTreeMap<PeerId, String>,
    /// Replicas that leaders were asked to add and that no configuration has yet. They are counted, too: otherwise all
    /// tablets of a lost server would get their new replicas on the same server.
    pub(super) planned: BTreeMap<TabletId, PeerId>,
}

/// Replicas of a table on one server.
#[derive(Debug, Default)]
pub(super) struct TableLoad {
    all: usize,
    /// By the range's lower bound.
    of_range: BTreeMap<Vec<u8>, usize>,
}

impl ReplicaCounts {
    /// Chooses servers for `replicas` replicas of a tablet in this range and counts them; fewer if there are too few
    /// servers.
    pub(super) fn choose(&mut self, id_rng: &mut IdRng, replicas: usize, range: &TableRange) -> Vec<PeerId> {
        let mut chosen = Vec::with_capacity(replicas);
        while chosen.len() < replicas {
            let Some(pick) = self.pick(id_rng, &chosen, &chosen, range) else { break };
            chosen.push(pick);
        }
        for server in &chosen {
            self.add(*server, range);
        }
        chosen
    }

    /// Chooses a server for one more replica of a tablet that already has replicas on `spread`, on none of `members`.
    /// `None` if there is no other server.
    pub(super) fn pick(
        &self,
        id_rng: &mut IdRng,
        members: &[PeerId],
        spread: &[PeerId],
        range: &TableRange,
    ) -> Option<PeerId> {
        let best = self.best(members, spread, range);
        match best.len() {
            0 | 1 => best.first().copied(),
            count => {
                let first = id_rng.below(count);
                let second = (first + 1 + id_rng.below(count - 1)) % count;
                let [a, b] = [best[first], best[second]];
                Some(if self.servers[&b] < self.servers[&a] { b } else { a })
            }
        }
    }

    fn location(&self, server: PeerId) -> &str {
        self.locations.get(&server).map_or("", String::as_str)
    }

    /// The servers with the fewest replicas, among those that are not in `members`. Compared in order: replicas of the
    /// tablet in their location, replicas of the range, replicas of the table.
    fn best(&self, members: &[PeerId], spread: &[PeerId], range: &TableRange) -> Vec<PeerId> {
        let of_table = self.tables.get(&range.table);
        let mut best = Vec::new();
        let mut least = (usize::MAX, usize::MAX, usize::MAX);
        for server in self.servers.keys().filter(|server| !members.contains(server)) {
            let location = self.location(*server);
            let in_location = spread.iter().filter(|other| self.location(**other) == location).count();
            let load = of_table.and_then(|loads| loads.get(server));
            let in_range = load.and_then(|load| load.of_range.get(&range.lower)).copied().unwrap_or(0);
            let weight = (in_location, in_range, load.map_or(0, |load| load.all));
            if weight < least {
                least = weight;
                best.clear();
            }
            if weight == least {
                best.push(*server);
            }
        }
        best
    }

    /// Counts a replica that the tablet's leader is asked to add, instead of an earlier one.
    pub(super) fn plan(&mut self, tablet: TabletId, server: PeerId, range: &TableRange) {
        self.unplan(tablet, range);
        self.planned.insert(tablet, server);
        self.add(server, range);
    }

    pub(super) fn unplan(&mut self, tablet: TabletId, range: &TableRange) {
        if let Some(server) = self.planned.remove(&tablet) {
            self.remove(server, range);
        }
    }

    pub(super) fn add(&mut self, server: PeerId, range: &TableRange) {
        let Some(all) = self.servers.get_mut(&server) else { return };
        *all += 1;
        if let Some(loads) = self.tables.get_mut(&range.table) {
            loads.entry(server).or_default().add(range);
        }
    }

    pub(super) fn remove(&mut self, server: PeerId, range: &TableRange) {
        let Some(all) = self.servers.get_mut(&server) else { return };
        *all -= 1;
        if let Some(load) = self.tables.get_mut(&range.table).and_then(|loads| loads.get_mut(&server)) {
            load.remove(range);
        }
    }
}

impl TableLoad {
    pub(super) fn add(&mut self, range: &TableRange) {
        self.all += 1;
        *self.of_range.entry(range.lower.clone()).or_default() += 1;
    }

    fn remove(&mut self, range: &TableRange) {
        self.all -= 1;
        if let Some(count) = self.of_range.get_mut(&range.lower) {
            *count -= 1;
        }
    }
}
