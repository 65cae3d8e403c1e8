//! Counts of the catalog's replicas, for placements: made once per step, and kept up to date within it.
//!
//! *Not here:* the choice of a server by these counts (`placement.rs`).

use std::collections::BTreeMap;

use super::Catalog;
use super::placement::{ReplicaCounts, TableLoad, TableRange};
use crate::ids::{PeerId, TableId, TabletId};
use crate::time::Instant;

impl Catalog {
    /// Counts the replicas for placements in `table`, unless this step has counted them.
    pub(super) fn count_replicas(&mut self, now: Instant, table: TableId) {
        #[cfg(test)]
        {
            self.full_counts += usize::from(self.loads.is_none());
        }
        let mut loads = self.loads.take().unwrap_or_else(|| self.count_all(now));
        loads.tables.entry(table).or_insert_with(|| self.count_of_table(table, &loads.planned));
        self.loads = Some(loads);
    }

    fn count_of_table(
        &self,
        table: TableId,
        planned: &BTreeMap<TabletId, PeerId>,
    ) -> BTreeMap<PeerId, TableLoad> {
        let mut loads: BTreeMap<PeerId, TableLoad> = BTreeMap::new();
        for tablet in self.tables[&table].tablets.values() {
            let record = &self.tablets[tablet].record;
            let range = TableRange::of(record);
            let members = record.consensus.peers.iter().map(|peer| peer.server);
            for server in members.chain(planned.get(tablet).copied()) {
                loads.entry(server).or_default().add(&range);
            }
        }
        loads
    }

    /// Counts the replicas on all servers that can take more now.
    fn count_all(&self, now: Instant) -> ReplicaCounts {
        let mut loads = ReplicaCounts::default();
        for (id, server) in &self.servers {
            if let Some(location) = &server.location {
                loads.locations.insert(*id, location.clone());
            }
            if self.can_take_replicas(now, *id) {
                loads.servers.insert(*id, 0);
            }
        }
        loads.planned = self.tablets.keys().filter_map(|id| Some((*id, self.planned(*id)?))).collect();
        let live = self.tablets.values().filter(|tablet| tablet.record.state.is_live());
        let members = live.flat_map(|tablet| &tablet.record.consensus.peers).map(|peer| &peer.server);
        for server in members.chain(loads.planned.values()) {
            if let Some(count) = loads.servers.get_mut(server) {
                *count += 1;
            }
        }
        loads
    }

    /// The server that is to be added to a live tablet's configuration, until its leader reports the next one.
    fn planned(&self, id: TabletId) -> Option<PeerId> {
        let (index, server) = self.requested_addition(id)?;
        let record = &self.tablets[&id].record;
        let is_next = index == record.consensus.config_index && !record.consensus.has(server);
        (record.state.is_live() && is_next).then_some(server)
    }

    /// Takes a live tablet's replicas out of this step's counts. Order: before its configuration changes, or it ends.
    pub(super) fn uncount(&mut self, id: TabletId) {
        let Some(loads) = &mut self.loads else { return };
        let record = &self.tablets[&id].record;
        let range = TableRange::of(record);
        record.consensus.peers.iter().for_each(|peer| loads.remove(peer.server, &range));
        loads.unplan(id, &range);
    }

    /// Adds a live tablet's replicas to this step's counts, after its configuration has changed.
    pub(super) fn recount(&mut self, id: TabletId) {
        let planned = self.planned(id);
        let Some(loads) = &mut self.loads else { return };
        let record = &self.tablets[&id].record;
        let range = TableRange::of(record);
        record.consensus.peers.iter().for_each(|peer| loads.add(peer.server, &range));
        if let Some(server) = planned {
            loads.plan(id, server, &range);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{
        CatalogCommand, CatalogConfig, CatalogEffects, CatalogEvent, CatalogNote, ColumnRef, ConsensusState,
        CreateTable, Heartbeat, HostPort, PeerRecord, ReportedHealth, ReportedTablet, RequestedColumn,
        RequestedHash, RequestedPartitioning, TabletReport, TaskKind, TserverRegistration,
    };
    use crate::ids::Uuid;
    use crate::schema::{ColumnSchema, DataType};
    use crate::time::{ClockReading, WallTime};

    const TABLETS: usize = 2_000;

    /// A catalog with some tablet servers, and a clock.
    struct World {
        catalog: Catalog,
        seconds: u64,
    }

    fn id(server: u8) -> PeerId {
        Uuid([server; 16])
    }

    impl World {
        /// Starts with `servers` tablet servers, which can take replicas or not.
        fn new(servers: u8, takes_replicas: bool) -> World {
            let config = CatalogConfig { create_replicas_per_server_max: 0, ..CatalogConfig::default() };
            let mut world = World {
                catalog: Catalog::load(config, [1, 2], reading(0), []).expect("nothing to load"),
                seconds: 0,
            };
            for server in 1..=servers {
                world.register(server, takes_replicas);
            }
            world
        }

        fn step(&mut self, event: CatalogEvent) -> CatalogEffects {
            let mut out = CatalogEffects::default();
            self.catalog.step(reading(self.seconds), event, &mut out);
            out
        }

        fn beat(&mut self, heartbeat: Heartbeat) -> CatalogEffects {
            self.step(CatalogEvent::Heartbeat { ticket: 1, heartbeat: Box::new(heartbeat) })
        }

        fn register(&mut self, server: u8, takes_replicas: bool) -> CatalogEffects {
            let rpc = vec![HostPort { host: format!("host{server}"), port: 7050 }];
            let registration = Some(TserverRegistration { rpc, ..TserverRegistration::default() });
            let report = Some(TabletReport::default());
            self.beat(Heartbeat { registration, takes_replicas, report, ..Heartbeat::of(id(server), 1) })
        }

        fn tick_after(&mut self, seconds: u64) -> CatalogEffects {
            self.seconds += seconds;
            self.step(CatalogEvent::Tick)
        }

        /// Creates a table of many tablets, each with three replicas.
        fn create(&mut self) {
            let column = ColumnSchema::new(0, "k", DataType::Int32);
            let columns = vec![ColumnRef::Name("k".to_string())];
            let hash = vec![RequestedHash { columns, buckets: TABLETS as i32, seed: 0 }];
            let request = CreateTable {
                name: "t".to_string(),
                columns: vec![RequestedColumn { column, is_key: true, has_id: false }],
                partitioning: RequestedPartitioning { hash, ..RequestedPartitioning::default() },
                ..CreateTable::default()
            };
            let command = CatalogCommand::Create(Box::new(request));
            self.step(CatalogEvent::Command { ticket: 1, caller: "ann".to_string(), command });
            assert_eq!(self.catalog.tablets.len(), TABLETS);
        }

        /// Reports that the first server leads each tablet, with these members, all healthy except for the third.
        fn report(&mut self, config_index: i64, members: &[u8]) -> CatalogEffects {
            let address = HostPort { host: "host".to_string(), port: 7050 };
            let peer = |server: &u8| PeerRecord {
                server: id(*server),
                voter: true,
                address: address.clone(),
                promote: false,
                replace: false,
            };
            let consensus = ConsensusState {
                term: 1,
                leader: Some(id(1)),
                config_index,
                peers: members.iter().map(peer).collect(),
            };
            let health = |server: &u8| {
                let health = if *server == 3 { ReportedHealth::Failed } else { ReportedHealth::Healthy };
                (id(*server), health)
            };
            let replica = |tablet: &TabletId| ReportedTablet {
                health: members.iter().map(health).collect(),
                ..ReportedTablet::running(*tablet, consensus.clone())
            };
            let updated = self.catalog.tablets.keys().map(replica).collect();
            let report = Some(TabletReport { incremental: true, updated, ..TabletReport::default() });
            self.beat(Heartbeat { report, ..Heartbeat::of(id(1), 1) })
        }

        /// Returns how often the replicas of all tablets were counted since the last call.
        fn full_counts(&mut self) -> usize {
            std::mem::take(&mut self.catalog.full_counts)
        }

        /// Counts the replicas as a placement in a step of its own.
        fn count_again(&mut self) {
            let table = *self.catalog.tables.keys().next().expect("a table was created");
            self.catalog.loads = None;
            self.catalog.count_replicas(reading(self.seconds).mono, table);
        }

        /// Returns the last count of replicas on all servers.
        fn total(&self) -> usize {
            self.counts().iter().map(|(_, count)| count).sum()
        }

        /// Returns the last step's counts of replicas by server.
        fn counts(&self) -> Vec<(PeerId, usize)> {
            let loads = self.catalog.loads.as_ref().expect("the last step placed replicas");
            loads.servers.iter().map(|(server, count)| (*server, *count)).collect()
        }
    }

    fn reading(seconds: u64) -> ClockReading {
        let micros = 1_600_000_000_000_000 + seconds * 1_000_000;
        ClockReading { mono: Instant(seconds * 1_000_000_000), wall: WallTime { micros, error_micros: 0 } }
    }

    fn additions(out: &CatalogEffects) -> usize {
        out.notes.iter().filter(|note| matches!(note, CatalogNote::ReplicaWanted { .. })).count()
    }

    #[test]
    fn replacements_without_a_server_for_them_count_no_replicas() {
        let mut world = World::new(3, true);
        world.create();
        assert_eq!(world.full_counts(), 1, "of the creation");
        world.report(1, &[1, 2, 3]);
        world.tick_after(1);
        world.tick_after(1);
        assert_eq!(world.full_counts(), 0);
        world.seconds += 1;
        let out = world.register(4, true);
        assert_eq!((additions(&out), world.full_counts()), (TABLETS, 1), "each gets the new server");
    }

    #[test]
    fn replicas_are_counted_once_for_all_configurations_of_a_report() {
        let mut world = World::new(3, true);
        world.create();
        world.report(1, &[1, 2, 3]);
        world.register(4, true);
        world.full_counts();
        let out = world.report(2, &[1, 2]);
        assert_eq!((additions(&out), world.full_counts()), (TABLETS, 1));
        let replaced = [(id(1), TABLETS), (id(2), TABLETS), (id(3), 0), (id(4), TABLETS)];
        assert_eq!(world.counts(), replaced);
    }

    #[test]
    fn replacements_that_no_leader_has_reported_are_counted() {
        let mut world = World::new(3, true);
        world.create();
        world.report(1, &[1, 2, 3]);
        world.register(4, true);
        world.register(5, true);
        let out = world.tick_after(1);
        assert_eq!(additions(&out), TABLETS);
        let [all, half] = [TABLETS, TABLETS / 2];
        let planned = [(id(1), all), (id(2), all), (id(3), all), (id(4), half), (id(5), half)];
        assert_eq!(world.counts(), planned, "those of one step");
        let mut tasks = out.requests.iter().map(|request| request.task);
        let task = tasks.find(|task| task.kind == TaskKind::ChangeConfig).expect("leaders are asked");
        world.step(CatalogEvent::Answered { task, result: Ok(()) });
        world.count_again();
        assert_eq!(world.counts(), planned, "those of an earlier step, with or without an answer");
        world.catalog.uncount(task.tablet);
        assert_eq!(world.total(), 4 * TABLETS - 4);
        world.catalog.recount(task.tablet);
        assert_eq!(world.counts(), planned);
    }

    #[test]
    fn replicas_are_counted_once_for_all_tablets_without_servers() {
        let mut world = World::new(3, false);
        world.create();
        world.tick_after(1);
        assert_eq!(world.full_counts(), 0, "no server can take them");
        for server in 1..=3 {
            world.register(server, true);
        }
        world.tick_after(1);
        assert_eq!(world.full_counts(), 1);
        let placed = [1, 2, 3].map(|server| (id(server), TABLETS));
        assert_eq!(world.counts(), placed);
        // No replica is created in time, so each tablet is replaced.
        world.tick_after(31);
        assert_eq!(world.full_counts(), 1);
        assert_eq!(world.counts(), placed);
        assert_eq!(world.catalog.tablets.len(), 2 * TABLETS);
    }
}
