//! Requests to create and alter tables, from the bytes of the message to what the catalog keeps.

use std::collections::BTreeMap;

use engine::catalog::{
    AlterTable, Catalog, CatalogConfig, Command, DoneResult, Effects, Event, Heartbeat, HostPort,
    Registration, RowKey, TabletReport,
};
use engine::ids::Uuid;
use engine::time::{Instant, Now, WallTime};
use node::master::convert;
use node::proto::kudu::master::{AlterTableRequestPb, CreateTableRequestPb};
use prost::Message;

use crate::seeds::table_with_hash_and_range;

struct World {
    catalog: Catalog,
    rows: BTreeMap<RowKey, Vec<u8>>,
}

fn config() -> CatalogConfig {
    CatalogConfig { replicas_default: 1, ..CatalogConfig::default() }
}

fn now() -> Now {
    Now { mono: Instant(1), wall: WallTime { micros: 1_600_000_000_000_000, error_micros: 0 } }
}

impl World {
    /// A cluster of one tablet server.
    fn new() -> World {
        let catalog = Catalog::load(config(), [1, 2], now(), []).expect("nothing to load");
        let mut world = World { catalog, rows: BTreeMap::new() };
        let rpc = vec![HostPort { host: "s".to_string(), port: 7050 }];
        let heartbeat = Heartbeat {
            server: Uuid([1; 16]),
            instance: 1,
            registration: Some(Registration { rpc, ..Registration::default() }),
            location: None,
            report: Some(TabletReport::default()),
        };
        world.step(Event::Heartbeat { ticket: 1, heartbeat: Box::new(heartbeat) });
        world
    }

    fn step(&mut self, event: Event) -> Effects {
        let mut effects = Effects::default();
        self.catalog.step(now(), event, &mut effects);
        for write in &effects.writes {
            match &write.metadata {
                Some(bytes) => self.rows.insert(write.key, bytes.clone()),
                None => self.rows.remove(&write.key),
            };
        }
        effects
    }

    /// Gives a command; whatever came of it, the catalog can be read again from its rows.
    fn command(&mut self, command: Command) -> bool {
        let effects = self.step(Event::Command { ticket: 2, caller: "me".to_string(), command });
        assert_eq!(effects.answers.len(), 1, "every command is answered at once");
        let answer = &effects.answers[0].result;
        let DoneResult::Command(answer) = answer else { panic!("{answer:?} answers no command") };
        assert!(answer.is_ok() || effects.writes.is_empty(), "what is refused changes nothing");
        Catalog::load(config(), [1, 2], now(), self.rows.clone()).expect("its own rows");
        answer.is_ok()
    }

    fn create(&mut self, message: &[u8]) -> bool {
        let Ok(pb) = CreateTableRequestPb::decode(message) else { return false };
        let Ok(create) = convert::create_table(&pb) else { return false };
        self.command(Command::Create(Box::new(create)))
    }
}

pub fn create_table(data: &[u8]) {
    World::new().create(data);
}

/// A request to alter the table that is there.
pub fn alter_table(data: &[u8]) {
    let mut world = World::new();
    assert!(world.create(&table_with_hash_and_range().encode_to_vec()), "a lawful table");
    let Ok(pb) = AlterTableRequestPb::decode(data) else { return };
    let Ok(alter) = convert::alter_table(&pb) else { return };
    let named = AlterTable { table: engine::catalog::TableRef::by_name("t"), ..alter.clone() };
    world.command(Command::Alter(Box::new(alter)));
    world.command(Command::Alter(Box::new(named)));
}
