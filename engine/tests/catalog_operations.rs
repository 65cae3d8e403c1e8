//! Operations that store the catalog's changes: a report or a sweep may change more than one operation holds.

use std::collections::BTreeMap;

use engine::catalog::{
    Catalog, CatalogCommand, CatalogConfig, CatalogEffects, CatalogEvent, ConsensusState, CreateTable,
    EventReply, EventResult, Heartbeat, ReportedTablet, SystemRowKey, SystemRowWrite, TableRef, TabletReport,
    TserverRegistration,
};
use engine::ids::TabletId;
use engine_testkit::catalog_script::{address, column, peer, reading, server, words};

const MIB: usize = 1 << 20;
/// Bytes of an operation that holds changes which do not belong together.
const OPERATION_BYTES: usize = MIB;

/// A catalog with one tablet server, whose tables have one tablet each, with a record of a little more than 1 MiB.
struct World {
    catalog: Catalog,
    rows: BTreeMap<SystemRowKey, Vec<u8>>,
    seconds: u64,
}

fn config() -> CatalogConfig {
    CatalogConfig { replicas_default: 1, ..CatalogConfig::default() }
}

fn stored_bytes(writes: &[SystemRowWrite]) -> usize {
    writes.iter().map(|write| write.metadata.as_ref().map_or(0, Vec::len)).sum()
}

/// Asserts that there are `count` operations, each with the record of one tablet and little else.
fn assert_one_tablet_each(operations: &[usize], count: usize) {
    assert_eq!(operations.len(), count, "{operations:?}");
    let is_one = |bytes: &usize| (MIB..MIB + 4096).contains(bytes);
    assert!(operations.iter().all(is_one), "{operations:?}");
}

impl World {
    fn with_tables(count: usize) -> World {
        let catalog = Catalog::load(config(), [1, 2], reading(0), []).expect("nothing to load");
        let mut world = World { catalog, rows: BTreeMap::new(), seconds: 0 };
        let registration = TserverRegistration { rpc: vec![address("a")], ..TserverRegistration::default() };
        world.beat(Heartbeat { registration: Some(registration), ..Heartbeat::of(server("a"), 1) });
        for number in 0..count {
            world.create(number);
        }
        world
    }

    /// Takes a turn. Returns the bytes of its operations, and its replies.
    fn turn(&mut self, event: CatalogEvent) -> (Vec<usize>, Vec<EventReply>) {
        let mut out = CatalogEffects::default();
        self.catalog.step(reading(self.seconds), event, &mut out);
        let operations = out.take_operations(OPERATION_BYTES);
        let bytes = operations.iter().map(|writes| stored_bytes(writes)).collect();
        for write in operations.into_iter().flatten() {
            match write.metadata {
                Some(metadata) => self.rows.insert(write.key, metadata),
                None => self.rows.remove(&write.key),
            };
        }
        (bytes, out.replies)
    }

    /// Runs a command, which must succeed. Returns the bytes of its operations.
    fn command(&mut self, command: CatalogCommand) -> Vec<usize> {
        let (operations, replies) =
            self.turn(CatalogEvent::Command { ticket: 1, caller: "ann".to_string(), command });
        assert!(matches!(replies[0].result, EventResult::Command(Ok(_))), "{replies:?}");
        operations
    }

    fn beat(&mut self, heartbeat: Heartbeat) -> (Vec<usize>, Vec<EventReply>) {
        self.turn(CatalogEvent::Heartbeat { ticket: 1, heartbeat: Box::new(heartbeat) })
    }

    fn create(&mut self, number: usize) -> Vec<usize> {
        self.command(CatalogCommand::Create(Box::new(CreateTable {
            name: format!("t{number}"),
            columns: vec![column(&words("k int32 key"), 0)],
            dimension_label: Some("l".repeat(MIB)),
            ..CreateTable::default()
        })))
    }

    fn delete_all(&mut self, reserve_seconds: u32) {
        let names: Vec<String> = self.catalog.tables().map(|table| table.record.name.clone()).collect();
        for name in names {
            let table = TableRef::by_name(&name);
            self.command(CatalogCommand::Delete { table, reserve_seconds: Some(reserve_seconds) });
        }
    }

    fn tablets(&self) -> Vec<TabletId> {
        let tables = self.catalog.tables();
        tables.flat_map(|table| self.catalog.tablets(table.id)).map(|tablet| tablet.id).collect()
    }

    /// Sends a full report: the server leads all tablets in `term`.
    fn report(&mut self, term: i64) -> (Vec<usize>, Vec<EventReply>) {
        let peers = vec![peer("a")];
        let consensus = ConsensusState { term, leader: Some(server("a")), config_index: -1, peers };
        let replica = |tablet: TabletId| ReportedTablet::running(tablet, consensus.clone());
        let updated = self.tablets().into_iter().map(replica).collect();
        let report = Some(TabletReport { updated, ..TabletReport::default() });
        self.beat(Heartbeat { report, ..Heartbeat::of(server("a"), 1) })
    }
}

#[test]
fn tables_due_at_once_are_purged_one_per_operation_and_a_few_per_step() {
    let mut world = World::with_tables(14);
    world.delete_all(20);
    world.seconds += 20;
    let (mut operations, mut steps) = (Vec::new(), 0);
    while world.catalog.deadline() <= reading(world.seconds).mono {
        operations.extend(world.turn(CatalogEvent::Tick).0);
        steps += 1;
    }
    assert_one_tablet_each(&operations, 14);
    assert_eq!(steps, 4, "each pauses after 4 MiB, and the next is due at once");
    let rows = world.rows.clone();
    let loaded = Catalog::load(config(), [3, 4], reading(world.seconds), rows).expect("its own rows");
    assert_eq!(loaded.tables().count(), 0);
}

#[test]
fn a_command_and_the_sweep_of_its_step_are_stored_apart() {
    let mut world = World::with_tables(1);
    world.delete_all(20);
    world.seconds += 20;
    assert_one_tablet_each(&world.create(1), 2);
}

#[test]
fn a_report_is_stored_tablet_by_tablet_and_answered_once() {
    let mut world = World::with_tables(6);
    for term in 1..3 {
        let (operations, replies) = world.report(term);
        assert_one_tablet_each(&operations, 6);
        let [EventReply { result: EventResult::Heartbeat(reply), .. }] = replies.as_slice() else {
            panic!("{replies:?}");
        };
        assert_eq!(reply.tablets, world.tablets());
    }
    assert!(world.report(2).0.is_empty(), "nothing has changed");
}

#[test]
fn deleted_tablets_of_an_unregistered_server_are_stored_one_by_one() {
    let mut world = World::with_tables(6);
    world.report(1);
    world.delete_all(0);
    let unregister = CatalogCommand::UnregisterServer { server: server("a"), force: true };
    assert_one_tablet_each(&world.command(unregister), 6);
}
