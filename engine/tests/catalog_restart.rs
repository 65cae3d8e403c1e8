//! Random lives of a catalog: whatever happens, what is stored is what it knows, and it stays whole.

use std::collections::BTreeMap;

use engine::catalog::{
    AlterStep, AlterTable, Call, Catalog, CatalogConfig, ColumnRef, Command, Consensus, CreateTable,
    DataState, DoneResult, Effects, Event, Heartbeat, HostPort, RangeOps, Registration, ReplicaState,
    ReportedTablet, Request, RequestedColumn, RequestedHash, RequestedPartitioning, RowKey, TableRef,
    TabletReport, TabletState, TaskKind,
};
use engine::error::Error;
use engine::ids::{TabletId, Uuid};
use engine::schema::{ColumnSchema, DataType};
use engine::time::{Instant, Now, WallTime};
use proptest::prelude::*;

/// One thing that happens.
#[derive(Debug, Clone)]
enum Happening {
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
    /// The server does the oldest request it was sent.
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
    /// The master starts again on what was stored.
    Restart,
}

fn happening() -> impl Strategy<Value = Happening> {
    let name = 0..3u8;
    let server = 0..2u8;
    prop_oneof![
        4 => (name.clone(), 2..4i32).prop_map(|(name, buckets)| Happening::Create { name, buckets }),
        2 => (name.clone(), 0..3u8).prop_map(|(name, column)| Happening::AddColumn { name, column }),
        2 => (name.clone(), 0..4u8).prop_map(|(name, range)| Happening::AddRange { name, range }),
        2 => (name.clone(), 0..4u8).prop_map(|(name, range)| Happening::DropRange { name, range }),
        1 => (name.clone(), 0..3u8).prop_map(|(name, to)| Happening::Rename { name, to }),
        2 => (name.clone(), 0..2u32).prop_map(|(name, reserve)| Happening::Delete { name, reserve: reserve * 20 }),
        1 => name.prop_map(|name| Happening::Recall { name }),
        9 => server.clone().prop_map(|server| Happening::Serve { server }),
        2 => server.clone().prop_map(|server| Happening::Lose { server }),
        5 => server.prop_map(|server| Happening::Report { server }),
        3 => (1..20u8).prop_map(|seconds| Happening::Wait { seconds }),
        1 => Just(Happening::Restart),
    ]
}

/// A tablet server as far as the catalog can see it: tablets and their schema versions.
#[derive(Default)]
struct Server {
    tablets: BTreeMap<TabletId, u32>,
    inbox: Vec<Request>,
}

struct World {
    catalog: Catalog,
    rows: BTreeMap<RowKey, Vec<u8>>,
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

fn create(name: u8, buckets: i32) -> Command {
    let hash = RequestedHash { columns: vec![ColumnRef::Name("k".to_string())], buckets, seed: 0 };
    Command::Create(Box::new(CreateTable {
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

fn alter(name: u8, step: AlterStep) -> Command {
    let request = AlterTable {
        table: table(name),
        steps: vec![step],
        client_columns: vec![key_column()],
        ..AlterTable::default()
    };
    Command::Alter(Box::new(request))
}

impl World {
    fn new() -> World {
        let mut world = World {
            catalog: Catalog::load(config(), [1, 2], now(0), []).expect("nothing to load"),
            rows: BTreeMap::new(),
            servers: vec![Server::default(), Server::default()],
            seconds: 0,
            restarts: 0,
        };
        world.report(0);
        world.report(1);
        world
    }

    fn step(&mut self, event: Event) -> Option<DoneResult> {
        let mut out = Effects::default();
        self.catalog.step(now(self.seconds), event, &mut out);
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
        out.answers.pop().map(|done| done.result)
    }

    fn command(&mut self, command: Command) {
        // A refusal is as good as success: it must change nothing.
        let before = self.rows.clone();
        let done = self.step(Event::Command { ticket: 1, caller: "root".to_string(), command });
        if let Some(DoneResult::Command(Err(_))) = done {
            let swept = self.rows.len() != before.len() || self.rows != before;
            assert!(!swept || self.seconds > 0, "a refused request changed the catalog");
        }
    }

    fn happen(&mut self, happening: &Happening) {
        match happening {
            Happening::Create { name, buckets } => self.command(create(*name, *buckets)),
            Happening::AddColumn { name, column } => {
                let column = ColumnSchema::new(0, &format!("c{column}"), DataType::Int8).nullable();
                let request = RequestedColumn { column, is_key: false, has_id: false };
                self.command(alter(*name, AlterStep::AddColumn(request)));
            }
            Happening::AddRange { name, range: at } => {
                let step = AlterStep::AddRange { bounds: range(*at), hash: None, dimension_label: None };
                self.command(alter(*name, step));
            }
            Happening::DropRange { name, range: at } => {
                self.command(alter(*name, AlterStep::DropRange { bounds: range(*at) }));
            }
            Happening::Rename { name, to } => {
                let new_name = Some(format!("t{to}"));
                let request = AlterTable { table: table(*name), new_name, ..AlterTable::default() };
                self.command(Command::Alter(Box::new(request)));
            }
            Happening::Delete { name, reserve } => {
                self.command(Command::Delete { table: table(*name), reserve_seconds: Some(*reserve) });
            }
            Happening::Recall { name } => {
                self.command(Command::Recall { table: table(*name), new_name: None });
            }
            Happening::Serve { server } => self.serve(*server),
            Happening::Lose { server } => self.lose(*server),
            Happening::Report { server } => self.report(*server),
            Happening::Wait { seconds } => {
                self.seconds += u64::from(*seconds);
                self.step(Event::Tick);
            }
            Happening::Restart => self.restart(),
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
            Call::CreateTablet(_) if state.tablets.contains_key(&tablet) => {
                Err(Error::already_present("the tablet is there"))
            }
            Call::CreateTablet(_) => {
                state.tablets.insert(tablet, 0);
                Ok(())
            }
            Call::AlterSchema { version, .. } => match state.tablets.get_mut(&tablet) {
                Some(has) => {
                    *has = (*has).max(*version);
                    Ok(())
                }
                None => Err(Error::not_found("no such tablet")),
            },
            Call::ChangeConfig { .. } => Err(Error::not_ready("there is one replica")),
            Call::DeleteTablet { .. } => match state.tablets.remove(&tablet) {
                Some(_) => Ok(()),
                None => Err(Error::not_found("no such tablet")),
            },
        };
        self.step(Event::Answered { task: request.task, result });
    }

    fn lose(&mut self, server: u8) {
        let inbox = &mut self.servers[server as usize].inbox;
        if !inbox.is_empty() {
            let task = inbox.remove(0).task;
            self.step(Event::Answered { task, result: Err(Error::not_ready("lost")) });
        }
    }

    /// A full report, as after a start.
    fn report(&mut self, server: u8) {
        let id = server_id(server);
        let consensus = |tablet: &TabletId| {
            let peers = self.catalog.tablet(*tablet).map(|tablet| tablet.record.consensus.peers.clone());
            Consensus { term: 1, leader: Some(id), config_index: -1, peers: peers.unwrap_or_default() }
        };
        let updated = self.servers[server as usize].tablets.iter().map(|(tablet, version)| ReportedTablet {
            tablet: *tablet,
            state: ReplicaState::Running,
            data: DataState::Ready,
            consensus: Some(consensus(tablet)),
            error: None,
            schema_version: Some(*version),
            stats: None,
            health: BTreeMap::new(),
        });
        let updated = updated.collect();
        let rpc = vec![HostPort { host: format!("s{server}"), port: 7050 }];
        let heartbeat = Heartbeat {
            server: id,
            instance: 1,
            registration: Some(Registration { rpc, ..Registration::default() }),
            location: None,
            report: Some(TabletReport { incremental: false, updated, removed: Vec::new() }),
        };
        self.step(Event::Heartbeat { ticket: 1, heartbeat: Box::new(heartbeat) });
    }

    /// Requests under way are lost with the master that sent them.
    fn restart(&mut self) {
        self.restarts += 1;
        self.servers.iter_mut().for_each(|server| server.inbox.clear());
        self.catalog = self.reloaded();
        self.report(0);
        self.report(1);
    }

    fn reloaded(&self) -> Catalog {
        let rows: Vec<(RowKey, Vec<u8>)> = self.rows.clone().into_iter().collect();
        let seed = [100 + self.restarts, 7];
        Catalog::load(config(), seed, now(self.seconds), rows).expect("what was stored")
    }

    /// What is stored is what the catalog knows.
    fn check(&self) {
        assert_eq!(known(&self.reloaded()), known(&self.catalog));
        for table in self.catalog.tables() {
            let tablets: Vec<_> = self.catalog.tablets(table.id).collect();
            let apart = |pair: &[_]| -> bool {
                let [a, b]: &[engine::catalog::TabletView<'_>; 2] = pair.try_into().expect("two");
                a.record.partition.end <= b.record.partition.start
            };
            assert!(tablets.windows(2).all(apart), "tablets of {} overlap", table.record.name);
        }
    }

    /// With time and working servers everything is done: tablets run and nothing else is left on the servers.
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
            self.step(Event::Tick);
        }
        self.check();
        let mut wanted: Vec<TabletId> = Vec::new();
        for table in self.catalog.tables() {
            assert_eq!(table.record.applied_schema, None, "{} is still being altered", table.record.name);
            for tablet in self.catalog.tablets(table.id) {
                assert_eq!(tablet.record.state, TabletState::Running, "of {}", table.record.name);
                wanted.push(tablet.id);
            }
        }
        let mut have: Vec<TabletId> =
            self.servers.iter().flat_map(|server| server.tablets.keys().copied()).collect();
        wanted.sort();
        have.sort();
        assert_eq!(have, wanted, "servers hold exactly the tablets that live");
    }
}

fn now(seconds: u64) -> Now {
    let micros = 1_600_000_000_000_000 + seconds * 1_000_000;
    Now { mono: Instant(seconds * 1_000_000_000), wall: WallTime { micros, error_micros: 0 } }
}

/// Everything about tables and tablets that is to survive.
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
    fn what_is_stored_is_what_is_known(life in proptest::collection::vec(happening(), 1..60)) {
        let mut world = World::new();
        for happening in &life {
            world.happen(happening);
            world.check();
        }
        world.settle();
    }
}

#[test]
fn every_kind_of_request_is_met() {
    let mut world = World::new();
    let mut kinds = Vec::new();
    for happening in [
        Happening::Create { name: 0, buckets: 2 },
        Happening::Serve { server: 0 },
        Happening::Serve { server: 1 },
        Happening::Report { server: 0 },
        Happening::Report { server: 1 },
        Happening::AddColumn { name: 0, column: 0 },
        Happening::Delete { name: 0, reserve: 0 },
    ] {
        world.happen(&happening);
        kinds.extend(world.servers.iter().flat_map(|server| &server.inbox).map(|request| request.task.kind));
    }
    for kind in [TaskKind::Create, TaskKind::Alter, TaskKind::Delete] {
        assert!(kinds.contains(&kind), "{kind:?}");
    }
    world.settle();
}

/// A table's last lagging tablet was dropped: nothing is left to wait for.
#[test]
fn an_alteration_ends_with_the_tablets_it_waited_for() {
    let mut world = World::new();
    for happening in [
        Happening::Create { name: 2, buckets: 2 },
        Happening::Rename { name: 2, to: 0 },
        Happening::DropRange { name: 0, range: 0 },
    ] {
        world.happen(&happening);
        world.check();
    }
    world.settle();
}
