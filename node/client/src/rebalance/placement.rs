//! Choice of the replica moves that even out a placement. Pure.
//!
//! The cost of a placement is a tuple, compared in order:
//! 1. the number of replicas above an avoidable majority in one location;
//! 2. the skew of each table over the servers (sum of squares);
//! 3. the skew of all replicas over the servers.
//!
//! Invariant: each move strictly lowers the cost, so the moves come to an end.

use std::collections::BTreeMap;

use engine::ids::{PeerId, TabletId};

/// A tablet server that can take replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerLoad {
    pub id: PeerId,
    pub location: String,
}

/// A tablet and the servers of its voters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TabletVoters {
    pub id: TabletId,
    pub table: String,
    pub servers: Vec<PeerId>,
}

/// Move of a replica of `tablet` from one server to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaMove {
    pub tablet: TabletId,
    pub from: PeerId,
    pub to: PeerId,
}

/// Placement of replicas on servers.
#[derive(Debug, Clone, Default)]
pub struct Placement {
    servers: BTreeMap<PeerId, String>,
    locations: usize,
    tablets: Vec<TabletVoters>,
    loads: BTreeMap<PeerId, usize>,
    table_loads: BTreeMap<(String, PeerId), usize>,
}

/// Change of the cost tuple by a move; negative is better.
type CostChange = (i64, i64, i64);

impl Placement {
    pub fn new(servers: &[ServerLoad], tablets: Vec<TabletVoters>) -> Placement {
        let servers: BTreeMap<PeerId, String> =
            servers.iter().map(|server| (server.id, server.location.clone())).collect();
        let mut locations: Vec<&String> = servers.values().collect();
        locations.sort();
        locations.dedup();
        let mut layout = Placement { locations: locations.len(), servers, ..Placement::default() };
        for tablet in &tablets {
            for server in &tablet.servers {
                layout.count(&tablet.table, *server, 1);
            }
        }
        layout.tablets = tablets;
        layout
    }

    fn count(&mut self, table: &str, server: PeerId, by: isize) {
        let add = |count: &mut usize| *count = count.saturating_add_signed(by);
        add(self.loads.entry(server).or_default());
        add(self.table_loads.entry((table.to_string(), server)).or_default());
    }

    fn load(&self, server: PeerId) -> i64 {
        self.loads.get(&server).copied().unwrap_or(0) as i64
    }

    fn table_load(&self, table: &str, server: PeerId) -> i64 {
        self.table_loads.get(&(table.to_string(), server)).copied().unwrap_or(0) as i64
    }

    fn location(&self, server: PeerId) -> &str {
        self.servers.get(&server).map_or("", String::as_str)
    }

    /// Returns the number of replicas above the limit per location. With two locations, one of them must hold two of
    /// three replicas.
    fn location_excess(&self, servers: &[PeerId]) -> i64 {
        let allowed = match self.locations {
            0 | 1 => servers.len(),
            2 => servers.len().div_ceil(2),
            _ => (servers.len().saturating_sub(1) / 2).max(1),
        };
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for server in servers {
            *counts.entry(self.location(*server)).or_default() += 1;
        }
        counts.values().map(|count| count.saturating_sub(allowed) as i64).sum()
    }

    fn skew_change(&self, tablet: &TabletVoters, from: PeerId, to: PeerId) -> CostChange {
        let mut after = tablet.servers.clone();
        after.iter_mut().filter(|server| **server == from).for_each(|server| *server = to);
        let crowding = self.location_excess(&after) - self.location_excess(&tablet.servers);
        // Half the change of the sum of squares for a move from a to b: (a-1)² + (b+1)² - a² - b² = 2(b - a + 1).
        let squares = |from: i64, to: i64| 2 * (to - from + 1);
        let table = squares(self.table_load(&tablet.table, from), self.table_load(&tablet.table, to));
        (crowding, table, squares(self.load(from), self.load(to)))
    }

    /// Returns the best move of a tablet for which `free` is true, or `None` if no move lowers the cost.
    pub fn next_move(&self, free: impl Fn(TabletId) -> bool) -> Option<ReplicaMove> {
        let mut best: Option<(CostChange, ReplicaMove)> = None;
        for tablet in self.tablets.iter().filter(|tablet| free(tablet.id)) {
            // A replica on a server that is not listed is left to re-replication.
            for from in tablet.servers.iter().filter(|from| self.servers.contains_key(from)) {
                for to in self.servers.keys().filter(|to| !tablet.servers.contains(to)) {
                    let change = self.skew_change(tablet, *from, *to);
                    if change < (0, 0, 0) && best.as_ref().is_none_or(|(known, _)| change < *known) {
                        best = Some((change, ReplicaMove { tablet: tablet.id, from: *from, to: *to }));
                    }
                }
            }
        }
        best.map(|(_, found)| found)
    }

    /// Returns the best move of a replica away from a server that is not listed; `None` if no tablet for which `free`
    /// is true has a replica there that another server can take.
    pub fn next_drain(&self, from: PeerId, free: impl Fn(TabletId) -> bool) -> Option<ReplicaMove> {
        let mut best: Option<(CostChange, ReplicaMove)> = None;
        let here = |tablet: &&TabletVoters| tablet.servers.contains(&from) && free(tablet.id);
        for tablet in self.tablets.iter().filter(here) {
            for to in self.servers.keys().filter(|to| !tablet.servers.contains(to)) {
                let change = self.skew_change(tablet, from, *to);
                if best.as_ref().is_none_or(|(known, _)| change < *known) {
                    best = Some((change, ReplicaMove { tablet: tablet.id, from, to: *to }));
                }
            }
        }
        best.map(|(_, found)| found)
    }

    /// Returns the number of replicas on any server.
    pub fn count_replicas(&self, server: PeerId) -> usize {
        self.tablets.iter().filter(|tablet| tablet.servers.contains(&server)).count()
    }

    /// Updates the placement for a move.
    pub fn apply(&mut self, done: ReplicaMove) {
        let Some(at) = self.tablets.iter().position(|tablet| tablet.id == done.tablet) else { return };
        let table = self.tablets[at].table.clone();
        let servers = &mut self.tablets[at].servers;
        servers.iter_mut().filter(|server| **server == done.from).for_each(|server| *server = done.to);
        self.count(&table, done.from, -1);
        self.count(&table, done.to, 1);
    }

    /// Returns id, location and number of replicas of each server.
    pub fn loads(&self) -> impl Iterator<Item = (PeerId, &str, usize)> {
        self.servers.iter().map(|(id, location)| (*id, location.as_str(), self.load(*id) as usize))
    }

    /// Returns the largest difference between two servers: over all tables, and of the most uneven table.
    pub fn skew(&self) -> (usize, usize) {
        let spread = |counts: &mut dyn Iterator<Item = i64>| {
            let counts: Vec<i64> = counts.collect();
            let (most, least) = (counts.iter().max(), counts.iter().min());
            (most.copied().unwrap_or(0) - least.copied().unwrap_or(0)) as usize
        };
        let all = spread(&mut self.servers.keys().map(|server| self.load(*server)));
        let tables = self.tablets.iter().map(|tablet| tablet.table.as_str());
        let of = |table: &str| spread(&mut self.servers.keys().map(|server| self.table_load(table, *server)));
        (all, tables.map(of).max().unwrap_or(0))
    }

    /// Returns the number of tablets with an avoidable majority in one location.
    pub fn count_overcrowded_tablets(&self) -> usize {
        self.tablets.iter().filter(|tablet| self.location_excess(&tablet.servers) > 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::ids::Uuid;
    use proptest::prelude::*;

    fn id(n: u8) -> PeerId {
        Uuid([n; 16])
    }

    fn servers(locations: &[&str]) -> Vec<ServerLoad> {
        let server = |(n, place): (usize, &&str)| ServerLoad { id: id(n as u8), location: place.to_string() };
        locations.iter().enumerate().map(server).collect()
    }

    fn tablet(n: u8, table: &str, on: &[u8]) -> TabletVoters {
        TabletVoters {
            id: id(100 + n),
            table: table.to_string(),
            servers: on.iter().map(|n| id(*n)).collect(),
        }
    }

    /// Applies moves until none lowers the cost. Returns their number.
    fn settle(layout: &mut Placement) -> usize {
        let mut moves = 0;
        while let Some(next) = layout.next_move(|_| true) {
            layout.apply(next);
            moves += 1;
            assert!(moves < 10_000, "no end");
        }
        moves
    }

    #[test]
    fn a_new_server_gets_its_share() {
        let tablets = (0..8).map(|n| tablet(n, "t", &[0, 1, 2])).collect();
        let mut layout = Placement::new(&servers(&["", "", "", ""]), tablets);
        assert_eq!(layout.skew(), (8, 8));
        assert_eq!(settle(&mut layout), 6);
        assert_eq!(layout.skew(), (0, 0));
    }

    #[test]
    fn avoidable_majorities_in_one_location_are_removed() {
        let tablets = vec![tablet(0, "t", &[0, 1, 2]), tablet(1, "t", &[0, 1, 3])];
        let mut layout = Placement::new(&servers(&["/a", "/a", "/a", "/b", "/c"]), tablets);
        assert_eq!(layout.count_overcrowded_tablets(), 2);
        settle(&mut layout);
        assert_eq!(layout.count_overcrowded_tablets(), 0);
        // With two locations, one of them holds two of three.
        let mut layout =
            Placement::new(&servers(&["/a", "/a", "/a", "/b"]), vec![tablet(0, "t", &[0, 1, 2])]);
        assert_eq!(settle(&mut layout), 1);
        assert_eq!(layout.count_overcrowded_tablets(), 0);
    }

    #[test]
    fn tables_are_balanced_before_the_total() {
        // The total is even, but each table is on one server.
        let tablets =
            vec![tablet(0, "a", &[0]), tablet(1, "a", &[0]), tablet(2, "b", &[1]), tablet(3, "b", &[1])];
        let mut layout = Placement::new(&servers(&["", ""]), tablets);
        assert_eq!(layout.skew(), (0, 2));
        settle(&mut layout);
        assert_eq!(layout.skew(), (0, 0));
    }

    #[test]
    fn replicas_on_servers_that_are_not_listed_only_drain() {
        let tablets = (0..4).map(|n| tablet(n, "t", &[0, 1, 9])).collect();
        let mut layout = Placement::new(&servers(&["", "", "", ""]), tablets);
        settle(&mut layout);
        assert_eq!(layout.count_replicas(id(9)), 4);
        while let Some(next) = layout.next_drain(id(9), |_| true) {
            assert_eq!(next.from, id(9));
            layout.apply(next);
        }
        assert_eq!((layout.count_replicas(id(9)), layout.skew()), (0, (0, 0)));
        // Every other server has a replica already.
        let full = Placement::new(&servers(&["", ""]), vec![tablet(0, "t", &[0, 1, 9])]);
        assert_eq!(full.next_drain(id(9), |_| true), None);
    }

    proptest! {
        #[test]
        fn every_placement_settles_evenly(
            places in prop::collection::vec(0..3u8, 3..7),
            homes in prop::collection::vec((any::<u64>(), 0..3u8), 1..20),
        ) {
            let names: Vec<String> = places.iter().map(|place| format!("/{place}")).collect();
            let all = servers(&names.iter().map(String::as_str).collect::<Vec<_>>());
            let tablets = homes.iter().enumerate().map(|(n, (draw, table))| {
                let first = (*draw % all.len() as u64) as u8;
                let on: Vec<u8> = (0..3).map(|step| (first + step) % all.len() as u8).collect();
                tablet(n as u8, &format!("t{table}"), &on)
            });
            let mut layout = Placement::new(&all, tablets.collect());
            let crowded = layout.count_overcrowded_tablets();
            settle(&mut layout);
            prop_assert!(layout.count_overcrowded_tablets() <= crowded);
            for tablet in &layout.tablets {
                let mut on = tablet.servers.clone();
                on.sort();
                on.dedup();
                prop_assert_eq!(on.len(), 3, "two replicas on one server");
            }
            let one_place = names.iter().all(|name| *name == names[0]);
            let (_, table_skew) = layout.skew();
            prop_assert!(!one_place || table_skew <= 1, "{:?}", layout);
        }
    }
}
