//! Randomized test of a catalog: after every step its stored rows equal its state, and the state is consistent.

use std::collections::BTreeMap;

use engine::catalog::{
    AlterStep, AlterTable, Catalog, CatalogCommand, CatalogConfig, CatalogEffects, CatalogEvent, ColumnRef,
    ConsensusState, CreateTable, EventResult, Heartbeat, HostPort, RangeOps, ReportedTablet, RequestedColumn,
    RequestedHash, RequestedPartitioning, SystemRowKey, TableRef, TabletLifecycle, TabletReport, TaskKind,
    TserverCall, TserverRegistration, TserverRequest,
};
use engine::error::Error;
use engine::ids::{TabletId, Uuid};
use engine::schema::{ColumnSchema, DataType};
use engine_testkit::catalog_script::reading;
use proptest::prelude::*;

/// A step of the test.
#[derive(Debug, Clone)]
enum CatalogStep {
    Create {
        name: u8,
        buckets: i32,
    },
    AddColumn {
        name: u8,
        column: u8,
    },
    AddRange {
        name: u8,
        range: u8,
    },
    DropRange {
        name: u8,
        range: u8,
    },
    Rename {
        name: u8,
        to: u8,
    },
    Delete {
        name: u8,
        reserve: u32,
    },
    Recall {
        name: u8,
    },
    /// The server executes the oldest request it received.
    Serve {
        server: u8,
    },
    /// The oldest request to the server is lost.
    Lose {
        server: u8,
    },
    Report {
        server: u8,
    },
    Wait {
        seconds: u8,
    },
    /// The master restarts from the stored rows.
    Restart,
}

fn step() -> impl Strategy<Value = CatalogStep> {
    let name = 0..3u8;
    let server = 0..2u8;
    prop_oneof![
        4 => (name.clone(), 2..4i32).prop_map(|(name, buckets)| CatalogStep::Create { name, buckets }),
        2 => (name.clone(), 0..3u8).prop_map(|(name, column)| CatalogStep::AddColumn { name, column }),
        2 => (name.clone(), 0..4u8).prop_map(|(name, range)| CatalogStep::AddRange { name, range }),
        2 => (name.clone(), 0..4u8).prop_map(|(name, range)| CatalogStep::DropRange { name, range }),
        1 => (name.clone(), 0..3u8).prop_map(|(name, to)| CatalogStep::Rename { name, to }),
        2 => (name.clone(), 0..2u32).prop_map(|(name, reserve)| CatalogStep::Delete { name, reserve: reserve * 20 }),
        1 => name.prop_map(|name| CatalogStep::Recall { name }),
        9 => server.clone().prop_map(|server| CatalogStep::Serve { server }),
        2 => server.clone().prop_map(|server| CatalogStep::Lose { server }),
        5 => server.prop_map(|server| CatalogStep::Report { server }),
        3 => (1..20u8).prop_map(|seconds| CatalogStep::Wait { seconds }),
        1 => Just(CatalogStep::Restart),
    ]
}

/// A tablet server in the catalog's view: tablets and their schema versions.
#[derive(Default)]
struct Server {
    tablets: BTreeMap<TabletId, u32>,
    inbox: Vec<TserverRequest>,
}

struct World {
    catalog: Catalog,
    rows: BTreeMap<SystemRowKey, Vec<u8>>,
    servers: Vec<Server>,
    seconds: u64,
    restarts: u64,
}

fn config() -> CatalogConfig {
    CatalogConfig { replicas_default: 1, ..CatalogConfig::default() }
}

fn server_id(server: u8) -> Uuid {
    Uuid([server + 1; 16])
}

fn table(name: u8) -> TableRef {
    TableRef::by_name(&format!("t{name}"))
}

fn range(range: u8) -> RangeOps {
    let mut rows = Vec::new();
    for (kind, value) in [(6, i32::from(range) * 10), (7, i32::from(range) * 10 + 10)] {
        rows.extend([kind, 1]);
        rows.extend(value.to_le_bytes());
    }
    RangeOps { rows, indirect: Vec::new() }
}

fn key_column() -> RequestedColumn {
    RequestedColumn { column: ColumnSchema::new(0, "k", DataType::Int32), is_key: true, has_id: false }
}

fn create(name: u8, buckets: i32) -> CatalogCommand {
    let hash = RequestedHash { columns: vec![ColumnRef::Name("k".to_string())], buckets, seed: 0 };
    CatalogCommand::Create(Box::new(CreateTable {
        name: format!("t{name}"),
        columns: vec![key_column()],
        partitioning: RequestedPartitioning {
            hash: vec![hash],
            splits_and_bounds: range(0),
            ..RequestedPartitioning::default()
        },
        ..CreateTable::default()
    }))
}

fn alter(name: u8, step: AlterStep) -> CatalogCommand {
    let request = AlterTable {
        table: table(name),
        steps: vec![step],
        client_columns: vec![key_column()],
        ..AlterTable::default()
    };
    CatalogCommand::Alter(Box::new(request))
}

impl World {
    fn new() -> World {
        let mut world = World {
            catalog: Catalog::load(config(), [1, 2], reading(0), []).expect("nothing to load"),
            rows: BTreeMap::new(),
            servers: vec![Server::default(), Server::default()],
            seconds: 0,
            restarts: 0,
        };
        world.report(0);
        world.report(1);
        world
    }

    fn step(&mut self, event: CatalogEvent) -> Option<EventResult> {
        let mut out = CatalogEffects::default();
        self.catalog.step(reading(self.seconds), event, &mut out);
        for write in out.writes {
            match write.metadata {
                Some(metadata) => self.rows.insert(write.key, metadata),
                None => self.rows.remove(&write.key),
            };
        }
        for request in out.requests {
            let at =
                self.servers.iter().enumerate().position(|(i, _)| server_id(i as u8) == request.task.server);
            self.servers[at.expect("a known server")].inbox.push(request);
        }
        out.replies.pop().map(|done| done.result)
    }

    fn command(&mut self, command: CatalogCommand) {
        // A rejected request must change nothing.
        let before = self.rows.clone();
        let done = self.step(CatalogEvent::Command { ticket: 1, caller: "root".to_string(), command });
        if let Some(EventResult::Command(Err(_))) = done {
            let swept = self.rows.len() != before.len() || self.rows != before;
            assert!(!swept || self.seconds > 0, "a rejected request changed the catalog");
        }
    }

    fn apply(&mut self, step: &CatalogStep) {
        match step {
            CatalogStep::Create { name, buckets } => self.command(create(*name, *buckets)),
            CatalogStep::AddColumn { name, column } => {
                let column = ColumnSchema::new(0, &format!("c{column}"), DataType::Int8).nullable();
                let request = RequestedColumn { column, is_key: false, has_id: false };
                self.command(alter(*name, AlterStep::AddColumn(request)));
            }
            CatalogStep::AddRange { name, range: at } => {
                let step = AlterStep::AddRange { bounds: range(*at), hash: None, dimension_label: None };
                self.command(alter(*name, step));
            }
            CatalogStep::DropRange { name, range: at } => {
                self.command(alter(*name, AlterStep::DropRange { bounds: range(*at) }));
            }
            CatalogStep::Rename { name, to } => {
                let new_name = Some(format!("t{to}"));
                let request = AlterTable { table: table(*name), new_name, ..AlterTable::default() };
                self.command(CatalogCommand::Alter(Box::new(request)));
            }
            CatalogStep::Delete { name, reserve } => {
                self.command(CatalogCommand::Delete { table: table(*name), reserve_seconds: Some(*reserve) });
            }
            CatalogStep::Recall { name } => {
                self.command(CatalogCommand::Recall { table: table(*name), new_name: None });
            }
            CatalogStep::Serve { server } => self.serve(*server),
            CatalogStep::Lose { server } => self.lose(*server),
            CatalogStep::Report { server } => self.report(*server),
            CatalogStep::Wait { seconds } => {
                self.seconds += u64::from(*seconds);
                self.step(CatalogEvent::Tick);
            }
            CatalogStep::Restart => self.restart(),
        }
    }

    fn serve(&mut self, server: u8) {
        let state = &mut self.servers[server as usize];
        if state.inbox.is_empty() {
            return;
        }
        let request = state.inbox.remove(0);
        let tablet = request.task.tablet;
        let result = match &request.call {
            TserverCall::CreateTablet(_) if state.tablets.contains_key(&tablet) => {
                Err(Error::already_present("the tablet is there"))
            }
            TserverCall::CreateTablet(_) => {
                state.tablets.insert(tablet, 0);
                Ok(())
            }
            TserverCall::AlterSchema { version, .. } => match state.tablets.get_mut(&tablet) {
                Some(has) => {
                    *has = (*has).max(*version);
                    Ok(())
                }
                None => Err(Error::not_found("no such tablet")),
            },
            TserverCall::ChangeConfig { .. } => Err(Error::not_ready("there is one replica")),
            TserverCall::DeleteTablet { .. } => match state.tablets.remove(&tablet) {
                Some(_) => Ok(()),
                None => Err(Error::not_found("no such tablet")),
            },
        };
        self.step(CatalogEvent::Answered { task: request.task, result });
    }

    fn lose(&mut self, server: u8) {
        let inbox = &mut self.servers[server as usize].inbox;
        if !inbox.is_empty() {
            let task = inbox.remove(0).task;
            self.step(CatalogEvent::Answered { task, result: Err(Error::not_ready("lost")) });
        }
    }

    /// Sends a full report, as after a start.
    fn report(&mut self, server: u8) {
        let id = server_id(server);
        let consensus = |tablet: &TabletId| {
            let peers = self.catalog.tablet(*tablet).map(|tablet| tablet.record.consensus.peers.clone());
            ConsensusState { term: 1, leader: Some(id), config_index: -1, peers: peers.unwrap_or_default() }
        };
        let updated = self.servers[server as usize].tablets.iter().map(|(tablet, version)| ReportedTablet {
            schema_version: Some(*version),
            ..ReportedTablet::running(*tablet, consensus(tablet))
        });
        let updated = updated.collect();
        let rpc = vec![HostPort { host: format!("s{server}"), port: 7050 }];
        let heartbeat = Heartbeat {
            registration: Some(TserverRegistration { rpc, ..TserverRegistration::default() }),
            report: Some(TabletReport { updated, ..TabletReport::default() }),
            ..Heartbeat::of(id, 1)
        };
        self.step(CatalogEvent::Heartbeat { ticket: 1, heartbeat: Box::new(heartbeat) });
    }

    /// Restarts the master; its requests in flight are lost.
    fn restart(&mut self) {
        self.restarts += 1;
        self.servers.iter_mut().for_each(|server| server.inbox.clear());
        self.catalog = self.reloaded();
        self.report(0);
        self.report(1);
    }

    fn reloaded(&self) -> Catalog {
        let rows: Vec<(SystemRowKey, Vec<u8>)> = self.rows.clone().into_iter().collect();
        let seed = [100 + self.restarts, 7];
        Catalog::load(config(), seed, reading(self.seconds), rows).expect("the stored rows")
    }

    /// Checks that the stored rows equal the catalog's state.
    fn check(&self) {
        assert_eq!(known(&self.reloaded()), known(&self.catalog));
        for table in self.catalog.tables() {
            let tablets: Vec<_> = self.catalog.tablets(table.id).collect();
            let apart = |pair: &[_]| -> bool {
                let [a, b]: &[engine::catalog::TabletEntry<'_>; 2] = pair.try_into().expect("two");
                a.record.partition.end <= b.record.partition.start
            };
            assert!(tablets.windows(2).all(apart), "tablets of {} overlap", table.record.name);
        }
    }

    /// Lets time pass with working servers: afterwards all tablets run and nothing else is left on the servers.
    fn settle(&mut self) {
        for _ in 0..200 {
            self.report(0);
            self.report(1);
            for server in 0..2 {
                while !self.servers[server as usize].inbox.is_empty() {
                    self.serve(server);
                }
            }
            self.seconds += 1;
            self.step(CatalogEvent::Tick);
        }
        self.check();
        let mut wanted: Vec<TabletId> = Vec::new();
        for table in self.catalog.tables() {
            assert_eq!(table.record.applied_schema, None, "{} is still being altered", table.record.name);
            for tablet in self.catalog.tablets(table.id) {
                assert_eq!(tablet.record.state, TabletLifecycle::Running, "of {}", table.record.name);
                wanted.push(tablet.id);
            }
        }
        let mut have: Vec<TabletId> =
            self.servers.iter().flat_map(|server| server.tablets.keys().copied()).collect();
        wanted.sort();
        have.sort();
        assert_eq!(have, wanted, "servers hold exactly the live tablets");
    }
}

/// Formats all state of tables and tablets that must survive a restart.
fn known(catalog: &Catalog) -> String {
    let mut text = format!("{}\n", catalog.cluster_id());
    for table in catalog.tables() {
        text.push_str(&format!("{} {:?}\n", table.id, table.record));
        for tablet in catalog.tablets(table.id) {
            text.push_str(&format!("  {} {:?}\n", tablet.id, tablet.record));
        }
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn stored_rows_equal_the_state(steps in proptest::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        for step in &steps {
            world.apply(step);
            world.check();
        }
        world.settle();
    }
}

#[test]
fn every_kind_of_request_occurs() {
    let mut world = World::new();
    let mut kinds = Vec::new();
    for step in [
        CatalogStep::Create { name: 0, buckets: 2 },
        CatalogStep::Serve { server: 0 },
        CatalogStep::Serve { server: 1 },
        CatalogStep::Report { server: 0 },
        CatalogStep::Report { server: 1 },
        CatalogStep::AddColumn { name: 0, column: 0 },
        CatalogStep::Delete { name: 0, reserve: 0 },
    ] {
        world.apply(&step);
        kinds.extend(world.servers.iter().flat_map(|server| &server.inbox).map(|request| request.task.kind));
    }
    for kind in [TaskKind::Create, TaskKind::Alter, TaskKind::Delete] {
        assert!(kinds.contains(&kind), "{kind:?}");
    }
    world.settle();
}

/// The last tablet that an alteration waited for is dropped: nothing is left to wait for.
#[test]
fn dropping_the_last_lagging_tablet_ends_the_alteration() {
    let mut world = World::new();
    for step in [
        CatalogStep::Create { name: 2, buckets: 2 },
        CatalogStep::Rename { name: 2, to: 0 },
        CatalogStep::DropRange { name: 0, range: 0 },
    ] {
        world.apply(&step);
        world.check();
    }
    world.settle();
}
