//! A catalog with a single tablet server, and the rows that it stores.

use std::collections::BTreeMap;

use engine::catalog::{
    Answer, Catalog, CatalogConfig, Command, DoneResult, Effects, Event, Heartbeat, HostPort, Registration,
    RowKey, TabletReport,
};
use engine::ids::Uuid;
use engine::time::{Instant, Now, WallTime};

pub struct OneServer {
    pub catalog: Catalog,
    config: CatalogConfig,
    rows: BTreeMap<RowKey, Vec<u8>>,
}

fn now() -> Now {
    Now { mono: Instant(1), wall: WallTime { micros: 1_600_000_000_000_000, error_micros: 0 } }
}

impl OneServer {
    pub fn new(config: CatalogConfig) -> OneServer {
        let config = CatalogConfig { replicas_default: 1, ..config };
        let catalog = Catalog::load(config.clone(), [1, 2], now(), []).expect("nothing to load");
        let mut world = OneServer { catalog, config, rows: BTreeMap::new() };
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
    pub fn command(&mut self, command: Command) -> engine::catalog::Result<Answer> {
        let mut effects = self.step(Event::Command { ticket: 2, caller: "me".to_string(), command });
        assert_eq!(effects.answers.len(), 1, "every command is answered at once");
        let answer = match effects.answers.remove(0).result {
            DoneResult::Command(answer) => answer,
            other => panic!("{other:?} answers no command"),
        };
        assert!(answer.is_ok() || effects.writes.is_empty(), "what is refused changes nothing");
        Catalog::load(self.config.clone(), [1, 2], now(), self.rows.clone()).expect("its own rows");
        answer
    }
}
