//! A small cluster as the trial knows it, and the cost of its placement, counted from the beginning each time.

use std::collections::{BTreeMap, BTreeSet};

use engine::ids::PeerId;
use nyala_client::rebalance::{ReplicaMove, TabletVoters};

/// Cost of a placement: replicas above the limit of their location, skew of each table, skew of all replicas.
type Cost = (i64, i64, i64);

/// Servers that can take replicas, and tablets, some of whose voters may be on other servers.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    /// Location of each server.
    pub(crate) servers: BTreeMap<PeerId, String>,
    pub(crate) tablets: Vec<TabletVoters>,
}

impl Cluster {
    /// Returns the location of a server; one that is not listed has none.
    fn location(&self, server: PeerId) -> &str {
        self.servers.get(&server).map_or("", String::as_str)
    }

    fn locations(&self) -> BTreeSet<&str> {
        self.servers.values().map(String::as_str).collect()
    }

    /// Returns the number of voters in each location.
    fn spread(&self, voters: &[PeerId]) -> BTreeMap<&str, i64> {
        let mut spread = BTreeMap::new();
        voters.iter().for_each(|voter| *spread.entry(self.location(*voter)).or_default() += 1);
        spread
    }

    /// Returns the number of voters above the limit of their location: less than half of them, or with two locations
    /// half of them, rounded up.
    pub(crate) fn excess(&self, voters: &[PeerId]) -> i64 {
        let count = voters.len() as i64;
        let limit = match self.locations().len() {
            0 | 1 => count,
            2 => (count + 1) / 2,
            _ => ((count - 1) / 2).max(1),
        };
        self.spread(voters).values().map(|here| (here - limit).max(0)).sum()
    }

    fn cost(&self) -> Cost {
        let crowding = self.tablets.iter().map(|tablet| self.excess(&tablet.servers)).sum();
        let mut of_tables: BTreeMap<(&str, PeerId), i64> = BTreeMap::new();
        let mut of_servers: BTreeMap<PeerId, i64> = BTreeMap::new();
        for tablet in &self.tablets {
            for server in &tablet.servers {
                *of_tables.entry((&tablet.table, *server)).or_default() += 1;
                *of_servers.entry(*server).or_default() += 1;
            }
        }
        let tables = of_tables.values().map(|count| count * count).sum();
        (crowding, tables, of_servers.values().map(|count| count * count).sum())
    }

    /// Returns the change of the cost by a move; a negative one is an improvement.
    pub(super) fn change(&self, step: &ReplicaMove) -> Cost {
        let (before, after) = (self.cost(), self.after(step).cost());
        (after.0 - before.0, after.1 - before.1, after.2 - before.2)
    }

    #[must_use]
    pub(super) fn after(&self, step: &ReplicaMove) -> Cluster {
        let mut after = self.clone();
        let moved = after.tablets.iter_mut().filter(|tablet| tablet.id == step.tablet);
        moved
            .flat_map(|tablet| &mut tablet.servers)
            .filter(|server| **server == step.from)
            .for_each(|server| *server = step.to);
        after
    }

    /// Returns all moves of replicas away from the servers for which `leaves` is true.
    pub(super) fn moves(&self, leaves: impl Fn(PeerId) -> bool) -> Vec<ReplicaMove> {
        let mut moves = Vec::new();
        for tablet in &self.tablets {
            for from in tablet.servers.iter().filter(|from| leaves(**from)) {
                let free = self.servers.keys().filter(|to| !tablet.servers.contains(to));
                moves.extend(free.map(|to| ReplicaMove { tablet: tablet.id, from: *from, to: *to }));
            }
        }
        moves
    }

    /// Returns the number of replicas on a server, of one table or of all.
    pub(super) fn load(&self, server: PeerId, table: Option<&str>) -> usize {
        let counts = |tablet: &&TabletVoters| table.is_none_or(|table| tablet.table == table);
        let tablets = self.tablets.iter().filter(counts);
        tablets.filter(|tablet| tablet.servers.contains(&server)).count()
    }

    /// Returns true if servers of several locations could hold `count` voters without a majority in one of them.
    pub(super) fn can_avoid_majority(&self, count: usize) -> bool {
        let limit = count.saturating_sub(1) / 2;
        let sizes = self.locations().into_iter().map(|location| {
            self.servers.values().filter(|other| other.as_str() == location).count().min(limit)
        });
        limit > 0 && sizes.sum::<usize>() >= count
    }

    /// Returns true if one location has more than half of the voters.
    pub(super) fn has_majority(&self, voters: &[PeerId]) -> bool {
        self.spread(voters).values().any(|here| *here * 2 > voters.len() as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::ids::Uuid;

    fn id(number: u8) -> PeerId {
        Uuid([number; 16])
    }

    fn cluster(locations: &[&str], voters: &[u8]) -> Cluster {
        let servers = locations.iter().zip(0..).map(|(location, at)| (id(at), location.to_string()));
        let tablet = TabletVoters {
            id: id(100),
            table: "t".to_string(),
            servers: voters.iter().map(|at| id(*at)).collect(),
        };
        Cluster { servers: servers.collect(), tablets: vec![tablet] }
    }

    #[test]
    fn a_location_has_a_limit_of_voters() {
        let excess = |locations: &[&str], voters: &[u8]| {
            let cluster = cluster(locations, voters);
            cluster.excess(&cluster.tablets[0].servers)
        };
        assert_eq!(excess(&["", "", ""], &[0, 1, 2]), 0);
        assert_eq!(excess(&["/a", "/a", "/a", "/b"], &[0, 1, 2]), 1);
        assert_eq!(excess(&["/a", "/a", "/b"], &[0, 1, 2]), 0);
        assert_eq!(excess(&["/a", "/a", "/b", "/c"], &[0, 1, 2]), 1);
        assert_eq!(excess(&["/a", "/a", "/b", "/c"], &[0, 2, 3]), 0);
    }

    #[test]
    fn a_majority_is_avoided_where_servers_are() {
        assert!(cluster(&["/a", "/a", "/b", "/c"], &[]).can_avoid_majority(3));
        assert!(!cluster(&["/a", "/a", "/b"], &[]).can_avoid_majority(3));
        assert!(!cluster(&["/a", "/b", "/c"], &[]).can_avoid_majority(1));
        let crowded = cluster(&["/a", "/a", "/b", "/c"], &[0, 1, 2]);
        assert!(crowded.has_majority(&crowded.tablets[0].servers));
        let step = ReplicaMove { tablet: id(100), from: id(0), to: id(3) };
        assert_eq!(crowded.change(&step), (-1, 0, 0));
        let spread = crowded.after(&step);
        assert!(!spread.has_majority(&spread.tablets[0].servers));
    }
}
