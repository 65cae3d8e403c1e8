//! The format level in the catalog: new clusters have the newest, old ones keep theirs until every server supports more.

use std::collections::BTreeMap;

use engine::catalog::{
    Catalog, CatalogCommand, CatalogConfig, CatalogEffects, CatalogEvent, ClusterRecord, EventResult,
    Heartbeat, HeartbeatReply, HostPort, SystemRecord, SystemRowKey, TserverRegistration,
};
use engine::error::ErrorKind;
use engine::format_level::{FormatLevel, LevelRange};
use engine::ids::Uuid;
use engine::time::ClockReading;

type Rows = BTreeMap<SystemRowKey, Vec<u8>>;

const LAST: LevelRange = LevelRange::FIRST;
const THIS: LevelRange = LevelRange::PROGRAM;

struct Master {
    catalog: Catalog,
    rows: Rows,
}

impl Master {
    /// Starts a master whose program supports `levels`.
    fn start(levels: LevelRange, rows: Rows) -> Result<Master, engine::error::Error> {
        let config = CatalogConfig { levels, ..CatalogConfig::default() };
        let stored: Vec<_> = rows.clone().into_iter().collect();
        let catalog = Catalog::load(config, [1, 2], ClockReading::default(), stored)?;
        let mut master = Master { catalog, rows };
        master.step(CatalogEvent::Tick);
        Ok(master)
    }

    fn step(&mut self, event: CatalogEvent) -> Option<EventResult> {
        let mut out = CatalogEffects::default();
        self.catalog.step(ClockReading::default(), event, &mut out);
        for write in out.writes {
            self.rows.insert(write.key, write.metadata.expect("nothing is removed"));
        }
        out.replies.pop().map(|reply| reply.result)
    }

    fn raise(&mut self, level: u16) -> Result<(), String> {
        let command = CatalogCommand::RaiseLevel(FormatLevel(level));
        match self.step(CatalogEvent::Command { ticket: 1, caller: String::new(), command }) {
            Some(EventResult::Command(result)) => result.map(drop).map_err(|error| error.error.message),
            _ => panic!("a reply to a command"),
        }
    }

    /// Registers server `id`, whose program supports `levels`; `None` if its formats are not nyala's.
    fn register(&mut self, id: u8, levels: Option<LevelRange>) -> HeartbeatReply {
        let registration = TserverRegistration {
            rpc: vec![HostPort { host: format!("t{id}"), port: 7050 }],
            software_version: "1.18.1-nyala-0.1.0".to_string(),
            levels,
            ..TserverRegistration::default()
        };
        let beat = Heartbeat { registration: Some(registration), ..Heartbeat::of(Uuid([id; 16]), 1) };
        match self.step(CatalogEvent::Heartbeat { ticket: 1, heartbeat: Box::new(beat) }) {
            Some(EventResult::Heartbeat(reply)) => reply,
            _ => panic!("a reply to a heartbeat"),
        }
    }

    /// Version and level of the stored record.
    fn stored(&self) -> (u8, FormatLevel) {
        let row = &self.rows[&SystemRowKey::Cluster];
        (row[4], ClusterRecord::unseal(row).expect("a whole record").level)
    }
}

#[test]
fn a_new_cluster_has_the_newest_level_of_its_master() {
    assert_eq!(Master::start(THIS, Rows::new()).expect("nothing to load").stored(), (2, FormatLevel(2)));
    assert_eq!(Master::start(LAST, Rows::new()).expect("nothing to load").stored(), (1, FormatLevel(1)));
}

#[test]
fn both_releases_lead_until_the_level_is_raised() {
    let mut rows = Master::start(LAST, Rows::new()).expect("nothing to load").rows;
    for levels in [THIS, LAST, THIS] {
        let master = Master::start(levels, rows).expect("either release");
        assert_eq!(master.stored(), (1, FormatLevel(1)));
        rows = master.rows;
    }
    let mut master = Master::start(THIS, rows).expect("its rows");
    assert_eq!(master.raise(2), Ok(()));
    assert_eq!(master.stored(), (2, FormatLevel(2)));
    assert_eq!(Master::start(THIS, master.rows.clone()).expect("its rows").catalog.level(), FormatLevel(2));
    let refused = Master::start(LAST, master.rows.clone()).err().expect("the last release");
    assert_eq!(refused.kind, ErrorKind::Unsupported);
    assert_eq!(
        master.raise(1).expect_err("never lowered"),
        "the format level cannot be raised: the cluster has format level 2 already, and keeps it"
    );
    assert_eq!(master.raise(2), Ok(()), "a repetition changes nothing");
    assert!(master.raise(3).expect_err("unknown").contains("supports levels up to 2 only"));
}

#[test]
fn a_server_of_the_last_release_stops_finalization_and_is_refused_after_it() {
    let rows = Master::start(LAST, Rows::new()).expect("nothing to load").rows;
    let mut master = Master::start(THIS, rows).expect("its rows");
    for (id, levels) in [(1, Some(THIS)), (2, Some(LAST)), (3, None)] {
        let reply = master.register(id, levels);
        assert_eq!((reply.unsupported, reply.level), (None, Some(FormatLevel(1))));
    }
    assert_eq!(
        master.raise(2).expect_err("server 2"),
        "the format level cannot be raised: the program of tablet server 02020202020202020202020202020202 t2:7050 \
         (1.18.1-nyala-0.1.0) supports level 1; upgrade it first, or remove it with nyala cluster remove-server"
    );
    assert_eq!(master.stored(), (1, FormatLevel(1)));
    assert_eq!(master.register(2, Some(THIS)).unsupported, None, "upgraded");
    assert_eq!(master.raise(2), Ok(()));
    let reply = master.register(4, Some(LAST));
    let refused = reply.unsupported.expect("the last release").message;
    assert!(refused.contains("supports format level 1, but the cluster has level 2"), "{refused}");
    assert!(master.register(4, Some(THIS)).unsupported.is_none());
}
