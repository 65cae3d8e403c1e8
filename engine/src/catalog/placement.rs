//! Placement of the replicas of a new tablet on tablet servers.
//!
//! Servers with the fewest replicas of the same range of the table come first, then those with the fewest of the table.
//! Among equals two are drawn at random and the one with fewer replicas in total wins (power of two choices): new
//! servers fill up quickly but are not flooded when many tables are created at once.
//!
//! Locations (racks, zones) of the servers take precedence. Each next replica is placed in a location with the fewest
//! replicas of the tablet so far, so that no location has a majority unless the servers leave no choice.

use std::collections::BTreeMap;

use super::Catalog;
use super::id_rng::IdRng;
use crate::ids::{PeerId, TableId};
use crate::time::Instant;

/// Replica counts of the servers that can take new ones; counted once per request.
#[derive(Debug, Default)]
pub(super) struct ReplicaCounts {
    servers: BTreeMap<PeerId, Load>,
    /// Locations of all registered servers; those without a location count as one location.
    locations: BTreeMap<PeerId, String>,
}

#[derive(Debug, Default)]
struct Load {
    all: usize,
    of_table: usize,
    /// By the range's lower bound.
    of_range: BTreeMap<Vec<u8>, usize>,
}

impl ReplicaCounts {
    pub(super) fn server_count(&self) -> usize {
        self.servers.len()
    }

    /// Chooses servers for `replicas` replicas of a tablet in this range and counts them; fewer if there are too few
    /// servers.
    pub(super) fn choose(&mut self, id_rng: &mut IdRng, replicas: usize, range: &[u8]) -> Vec<PeerId> {
        let mut chosen = Vec::with_capacity(replicas);
        while chosen.len() < replicas {
            let Some(pick) = self.pick(id_rng, &chosen, &chosen, range) else { break };
            chosen.push(pick);
        }
        for server in &chosen {
            self.count(*server, true, range);
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
        range: &[u8],
    ) -> Option<PeerId> {
        let best = self.best(members, spread, range);
        match best.len() {
            0 | 1 => best.first().copied(),
            count => {
                let first = id_rng.below(count);
                let second = (first + 1 + id_rng.below(count - 1)) % count;
                let [a, b] = [best[first], best[second]];
                Some(if self.servers[&b].all < self.servers[&a].all { b } else { a })
            }
        }
    }

    fn location(&self, server: PeerId) -> &str {
        self.locations.get(&server).map_or("", String::as_str)
    }

    /// The servers with the fewest replicas, among those that are not in `members`. Compared in order: replicas of the
    /// tablet in their location, replicas of the range, replicas of the table.
    fn best(&self, members: &[PeerId], spread: &[PeerId], range: &[u8]) -> Vec<PeerId> {
        let mut best = Vec::new();
        let mut least = (usize::MAX, usize::MAX, usize::MAX);
        for (server, load) in &self.servers {
            if members.contains(server) {
                continue;
            }
            let location = self.location(*server);
            let in_location = spread.iter().filter(|other| self.location(**other) == location).count();
            let weight = (in_location, load.of_range.get(range).copied().unwrap_or(0), load.of_table);
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

    fn count(&mut self, server: PeerId, same_table: bool, range: &[u8]) {
        let Some(load) = self.servers.get_mut(&server) else { return };
        load.all += 1;
        if same_table {
            load.of_table += 1;
            *load.of_range.entry(range.to_vec()).or_default() += 1;
        }
    }
}

impl Catalog {
    /// Counts the replicas of the servers that can take replicas of `table` now.
    pub(super) fn loads(&self, now: Instant, table: TableId) -> ReplicaCounts {
        let mut loads = ReplicaCounts::default();
        for (id, server) in &self.servers {
            if let Some(location) = &server.location {
                loads.locations.insert(*id, location.clone());
            }
            if self.can_take_replicas(now, *id) {
                loads.servers.insert(*id, Load::default());
            }
        }
        for tablet in self.tablets.values().filter(|tablet| tablet.record.state.is_live()) {
            let record = &tablet.record;
            let same_table = record.table == table;
            let range = if same_table { self.range_start(record) } else { Vec::new() };
            for peer in &record.consensus.peers {
                loads.count(peer.server, same_table, &range);
            }
        }
        loads
    }
}
