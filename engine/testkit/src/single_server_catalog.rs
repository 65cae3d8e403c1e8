//! A catalog with a single tablet server, and its stored rows.

use std::collections::BTreeMap;

use engine::catalog::{
    Catalog, CatalogCommand, CatalogConfig, CatalogEffects, CatalogEvent, CommandReply, EventResult,
    Heartbeat, HostPort, SystemRowKey, TabletReport, TserverRegistration,
};
use engine::ids::Uuid;
use engine::time::{ClockReading, Instant, WallTime};

pub struct OneServer {
    pub catalog: Catalog,
    config: CatalogConfig,
    rows: BTreeMap<SystemRowKey, Vec<u8>>,
}

fn now() -> ClockReading {
    ClockReading { mono: Instant(1), wall: WallTime { micros: 1_600_000_000_000_000, error_micros: 0 } }
}

impl OneServer {
    pub fn new(config: CatalogConfig) -> OneServer {
        let config = CatalogConfig { replicas_default: 1, ..config };
        let catalog = Catalog::load(config.clone(), [1, 2], now(), []).expect("nothing to load");
        let mut world = OneServer { catalog, config, rows: BTreeMap::new() };
        let rpc = vec![HostPort { host: "s".to_string(), port: 7050 }];
        let heartbeat = Heartbeat {
            registration: Some(TserverRegistration { rpc, ..TserverRegistration::default() }),
            report: Some(TabletReport::default()),
            ..Heartbeat::of(Uuid([1; 16]), 1)
        };
        world.step(CatalogEvent::Heartbeat { ticket: 1, heartbeat: Box::new(heartbeat) });
        world
    }

    fn step(&mut self, event: CatalogEvent) -> CatalogEffects {
        let mut effects = CatalogEffects::default();
        self.catalog.step(now(), event, &mut effects);
        for write in &effects.writes {
            match &write.metadata {
                Some(bytes) => self.rows.insert(write.key, bytes.clone()),
                None => self.rows.remove(&write.key),
            };
        }
        effects
    }

    /// Runs a command. After success and failure the catalog can be loaded again from its rows.
    pub fn command(&mut self, command: CatalogCommand) -> engine::catalog::CatalogResult<CommandReply> {
        let mut effects = self.step(CatalogEvent::Command { ticket: 2, caller: "me".to_string(), command });
        assert_eq!(effects.replies.len(), 1, "every command gets a reply at once");
        let reply = match effects.replies.remove(0).result {
            EventResult::Command(reply) => reply,
            other => panic!("{other:?} is no reply to a command"),
        };
        assert!(reply.is_ok() || effects.writes.is_empty(), "a rejected command changes nothing");
        Catalog::load(self.config.clone(), [1, 2], now(), self.rows.clone()).expect("its own rows");
        reply
    }
}
