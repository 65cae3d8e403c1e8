//! Transcripts of the catalog, `tests/catalog/*.txt`: commands, heartbeats, replies and time, and its effects.
//!
//! Ids are shown as T1 … (tables), P1 … (tablets, in the order of their partition keys) and the letters that
//! name tablet servers. `REWRITE=1` accepts the output.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use datadriven::{TestCase, walk};
use engine::catalog::{
    AlterTable, Catalog, CatalogCommand, CatalogConfig, CatalogEffects, CatalogEvent, ConsensusState,
    EventResult, Heartbeat, LocationsQuery, ReplicaState, ReplicaStats, ReportedDataState, ReportedTablet,
    RequestedColumn, ServerStateChange, SystemRowKey, TableRef, TabletReport, TaskKey, TaskKind,
    TserverRegistration,
};
use engine::error::Error;
use engine::ids::Uuid;
use engine::schema::ColumnSchema;
use engine::time::{ClockReading, Instant, WallTime};

use engine_testkit::catalog_script::*;

#[test]
fn transcripts() {
    walk("tests/catalog", |file| {
        let mut world = World::new();
        file.run(|case| world.run(case));
    });
}

struct World {
    catalog: Catalog,
    config: CatalogConfig,
    /// Rows of the system tablet.
    rows: BTreeMap<SystemRowKey, Vec<u8>>,
    names: Vec<(Uuid, String)>,
    tables: usize,
    tablets: usize,
    seconds: f64,
    restarts: u64,
}

fn now_at(seconds: f64) -> ClockReading {
    let micros = 1_600_000_000_000_000 + (seconds * 1e6) as u64;
    ClockReading { mono: Instant((seconds * 1e9) as u64), wall: WallTime { micros, error_micros: 0 } }
}

impl World {
    fn new() -> World {
        let config = CatalogConfig {
            columns_max: 5,
            identifier_bytes_max: 20,
            replicas_default: 1,
            ..CatalogConfig::default()
        };
        let catalog = Catalog::load(config.clone(), [1, 2], now_at(0.0), []).expect("nothing to load");
        World {
            catalog,
            config,
            rows: BTreeMap::new(),
            names: Vec::new(),
            tables: 0,
            tablets: 0,
            seconds: 0.0,
            restarts: 0,
        }
    }

    fn run(&mut self, case: &TestCase) -> String {
        let arg = |key: &str| case.args.get(key).map(|values| values.first().cloned().unwrap_or_default());
        let need = |key: &str| arg(key).unwrap_or_else(|| panic!("{} needs {key}=", case.directive));
        let text = match case.directive.as_str() {
            "config" => self.configure(case),
            "server" => {
                let began = arg("began").map_or(1 + self.restarts as i64, |text| text.parse().unwrap());
                self.register(&need("id"), began, arg("location").map(|place| format!("/{place}")))
            }
            "beat" => self.beat(&need("id"), None),
            "report" => {
                let report = self.report(&need("id"), case);
                self.beat(&need("id"), Some(report))
            }
            "create" => {
                let (caller, request) = create(case);
                self.command(&caller, CatalogCommand::Create(Box::new(request)))
            }
            "alter" => {
                let request = self.alter(case);
                self.command("root", CatalogCommand::Alter(Box::new(request)))
            }
            "delete" => {
                let reserve_seconds = arg("reserve").map(|text| text.parse().expect("seconds"));
                self.command("root", CatalogCommand::Delete { table: self.table(case), reserve_seconds })
            }
            "recall" => {
                self.command("root", CatalogCommand::Recall { table: self.table(case), new_name: arg("as") })
            }
            "replace" => self.command("root", CatalogCommand::ReplaceTablet(self.id(&need("tablet")))),
            "maintenance" => {
                let change = match need("set").as_str() {
                    "on" => ServerStateChange::EnterMaintenance,
                    _ => ServerStateChange::ExitMaintenance,
                };
                let allow_missing = case.args.contains_key("missing");
                let server = server(&need("id"));
                self.command("root", CatalogCommand::ChangeServerState { server, change, allow_missing })
            }
            "unregister" => {
                let force = case.args.contains_key("force");
                self.command("root", CatalogCommand::UnregisterServer { server: server(&need("id")), force })
            }
            "answer" => self.answer(&need("id"), &need("tablet"), &need("kind"), arg("error")),
            "tick" => {
                self.seconds += need("s").parse::<f64>().expect("seconds");
                self.step(CatalogEvent::Tick)
            }
            "restart" => self.restart(),
            "table" => self.show_table(&self.table(case)),
            "tables" => {
                self.catalog.tables().map(|table| format!("{} {}\n", table.id, table.record.name)).collect()
            }
            "tablets" => self.show_tablets(&self.table(case)),
            "locations" => self.locations(case),
            "created" => show(self.catalog.is_created(&self.table(case))),
            "altered" => show(self.catalog.is_altered(&self.table(case))),
            "statistics" => show(self.catalog.statistics(&self.table(case))),
            "servers" => self.show_servers(),
            "counts" => format!("{:?}\n", self.catalog.counts(now_at(self.seconds).mono)),
            other => panic!("no directive {other}"),
        };
        self.named(&text)
    }

    fn configure(&mut self, case: &TestCase) -> String {
        for line in case.input.lines() {
            let (key, value) = line.split_once('=').expect("key=value");
            let number = || value.parse().expect("a number");
            match key {
                "replicas_default" => self.config.replicas_default = number(),
                "replicas_even" => self.config.replicas_even = value == "true",
                "under_replicated" => self.config.create_under_replicated = value == "true",
                "replicas_per_server" => self.config.create_replicas_per_server_max = number() as usize,
                "comment_bytes" => self.config.comment_bytes_max = number() as usize,
                "owner_bytes" => self.config.owner_bytes_max = number() as usize,
                "table_write_limits" => self.config.table_write_limits = value == "true",
                _ => panic!("no setting {key}"),
            }
        }
        self.restart()
    }

    fn table(&self, case: &TestCase) -> TableRef {
        let arg = |key: &str| case.args.get(key).map(|values| values[0].clone());
        TableRef { id: arg("table").map(|name| self.id(&name)), name: arg("name") }
    }

    fn id(&self, name: &str) -> Uuid {
        let found = self.names.iter().find(|(_, known)| known == name);
        found.unwrap_or_else(|| panic!("nothing is called {name}")).0
    }

    /// Names new ids and replaces ids by their names.
    fn named(&mut self, text: &str) -> String {
        let mut fresh = Vec::new();
        for table in self.catalog.tables() {
            fresh.push((table.id, true));
            fresh.extend(self.catalog.tablets(table.id).map(|tablet| (tablet.id, false)));
        }
        for (id, is_table) in fresh {
            if self.names.iter().any(|(known, _)| *known == id) {
                continue;
            }
            let (letter, count) = if is_table { ('T', &mut self.tables) } else { ('P', &mut self.tablets) };
            *count += 1;
            self.names.push((id, format!("{letter}{count}")));
        }
        let mut text = text.to_string();
        for (id, name) in &self.names {
            text = text.replace(&id.to_string(), name);
        }
        for name in ["a", "b", "c", "d", "e", "f"] {
            text = text.replace(&server(name).to_string(), name);
        }
        if text.is_empty() { "ok\n".to_string() } else { text }
    }

    fn command(&mut self, caller: &str, command: CatalogCommand) -> String {
        self.step(CatalogEvent::Command { ticket: 1, caller: caller.to_string(), command })
    }

    fn register(&mut self, name: &str, instance: i64, location: Option<String>) -> String {
        let registration = TserverRegistration { rpc: vec![address(name)], ..TserverRegistration::default() };
        let heartbeat = Heartbeat {
            registration: Some(registration),
            location,
            report: Some(TabletReport::default()),
            ..Heartbeat::of(server(name), instance)
        };
        self.step(CatalogEvent::Heartbeat { ticket: 1, heartbeat: Box::new(heartbeat) })
    }

    fn beat(&mut self, name: &str, report: Option<TabletReport>) -> String {
        let instance = self.catalog.servers(Instant(0)).find(|known| known.id == server(name));
        let instance = instance.map_or(1, |known| known.instance);
        let heartbeat = Heartbeat { report, ..Heartbeat::of(server(name), instance) };
        self.step(CatalogEvent::Heartbeat { ticket: 1, heartbeat: Box::new(heartbeat) })
    }

    fn report(&self, name: &str, case: &TestCase) -> TabletReport {
        let full = case.args.contains_key("full");
        let number = case.args.get("number").and_then(|values| values.first()?.parse().ok());
        let mut report = TabletReport { incremental: !full, number, ..TabletReport::default() };
        for line in case.input.lines() {
            let words = words(line);
            if words[0] == "removed" {
                report.removed.push(self.id(words[1]));
                continue;
            }
            report.updated.push(self.replica(name, &words));
        }
        report
    }

    fn replica(&self, name: &str, words: &[&str]) -> ReportedTablet {
        let number = |key: &str| option(words, key).map(|text| text.parse::<i64>().expect("a number"));
        let state = match words[1] {
            "running" => ReplicaState::Running,
            "bootstrapping" => ReplicaState::Bootstrapping,
            "failed" => ReplicaState::Failed,
            other => panic!("no state {other}"),
        };
        let leader = option(words, "leader").map(|name| server(&name));
        let term = number("term").unwrap_or(1);
        let tablet = match words[0] {
            "unknown" => Uuid([7; 16]),
            name => self.id(name),
        };
        let (mut config_index, mut peers, mut health) = (-1, vec![peer(name)], BTreeMap::new());
        if let Some(known) = self.catalog.tablet(tablet) {
            config_index = known.record.consensus.config_index;
            peers = known.record.consensus.peers.clone();
        }
        if let Some(text) = option(words, "members") {
            (peers, health) = members(&text);
        }
        let config_index = number("index").unwrap_or(config_index);
        let data = match words {
            words if words.contains(&"deleted") => ReportedDataState::Deleted,
            words if words.contains(&"tombstone") => ReportedDataState::Tombstoned,
            words if words.contains(&"copying") => ReportedDataState::Copying,
            _ => ReportedDataState::Ready,
        };
        ReportedTablet {
            tablet,
            state,
            data,
            consensus: Some(ConsensusState { term, leader, config_index, peers }),
            config_term: number("config-term"),
            health,
            error: option(words, "error"),
            schema_version: number("version").map(|version| version as u32),
            stats: number("bytes").map(|bytes| ReplicaStats {
                disk_bytes: bytes as u64,
                live_rows: number("rows").map(|rows| rows as u64),
            }),
        }
    }

    fn alter(&self, case: &TestCase) -> AlterTable {
        let arg = |key: &str| case.args.get(key).map(|values| values.first().cloned().unwrap_or_default());
        let number = |key: &str| arg(key).map(|text| text.parse::<i64>().expect("a number"));
        let table = self.table(case);
        let columns = self.client_columns(&table);
        let mut request = AlterTable {
            table,
            new_name: arg("rename"),
            new_owner: arg("owner"),
            new_comment: arg("comment"),
            replicas: number("replicas").map(|number| number as i32),
            row_count_limit: number("rows"),
            disk_size_limit: number("bytes"),
            client_columns: columns.clone(),
            ..AlterTable::default()
        };
        for line in case.input.lines() {
            let words = words(line);
            match words.as_slice() {
                ["config", pair] => {
                    let (key, value) = pair.split_once('=').expect("key=value");
                    request.new_extra_configs.insert(key.to_string(), value.to_string());
                }
                words => request.steps.push(alter_step(words, &columns)),
            }
        }
        request
    }

    fn client_columns(&self, table: &TableRef) -> Vec<RequestedColumn> {
        let Ok(table) = self.catalog.table(table) else { return Vec::new() };
        let schema = &table.record.schema;
        let keys = schema.num_key_columns();
        let column = |(i, column): (usize, &ColumnSchema)| RequestedColumn {
            column: column.clone(),
            is_key: i < keys,
            has_id: false,
        };
        schema.columns().iter().enumerate().map(column).collect()
    }

    fn answer(&mut self, id: &str, tablet: &str, kind: &str, error: Option<String>) -> String {
        let kind = match kind {
            "create" => TaskKind::Create,
            "alter" => TaskKind::Alter,
            "remove" => TaskKind::Remove,
            "change" => TaskKind::ChangeConfig,
            _ => TaskKind::Delete,
        };
        let result = match error.as_deref() {
            None => Ok(()),
            Some("missing") => Err(Error::not_found("no such tablet")),
            Some("newer") => Err(Error::aborted("the committed configuration is newer")),
            Some("present") => Err(Error::already_present("tablet is there")),
            Some(message) => Err(Error::not_ready(message)),
        };
        self.step(CatalogEvent::Answered {
            task: TaskKey { server: server(id), tablet: self.id(tablet), kind },
            result,
        })
    }

    /// Applies an event; formats and stores its effects.
    fn step(&mut self, event: CatalogEvent) -> String {
        let mut out = CatalogEffects::default();
        self.catalog.step(now_at(self.seconds), event, &mut out);
        self.named("");
        let mut text = String::new();
        for done in &out.replies {
            match &done.result {
                EventResult::Command(Ok(answer)) => writeln!(text, "{}", show_answer(answer)),
                EventResult::Command(Err(refusal)) => writeln!(text, "refused {refusal}"),
                EventResult::Heartbeat(reply) => {
                    let mut wants = String::new();
                    if reply.needs_registration {
                        wants.push_str(" wants registration");
                    }
                    if reply.needs_full_report {
                        wants.push_str(" wants full report");
                    }
                    writeln!(text, "heard{wants}")
                }
            }
            .expect("writing to a string");
        }
        for note in &out.notes {
            writeln!(text, "note {note}").expect("writing to a string");
        }
        let mut written: Vec<String> = out.writes.iter().map(|write| self.show_key(write.key)).collect();
        written.sort_by_key(|name| (name.len(), name.clone()));
        if !written.is_empty() {
            writeln!(text, "write {}", written.join(" ")).expect("writing to a string");
        }
        for request in &out.requests {
            writeln!(text, "send {} {}", request.task, show_call(&request.call))
                .expect("writing to a string");
        }
        for write in out.writes {
            match write.metadata {
                Some(metadata) => self.rows.insert(write.key, metadata),
                None => self.rows.remove(&write.key),
            };
        }
        text
    }

    fn show_key(&self, key: SystemRowKey) -> String {
        match key {
            SystemRowKey::Table(id) | SystemRowKey::Tablet(id) => self
                .names
                .iter()
                .find(|(known, _)| *known == id)
                .map_or("?".to_string(), |(_, name)| name.clone()),
            SystemRowKey::Server(id) => format!("server-{id}"),
            SystemRowKey::Cluster => "cluster".to_string(),
            SystemRowKey::Authority => "authority".to_string(),
            SystemRowKey::TokenKey(number) => format!("token key {number}"),
        }
    }

    fn restart(&mut self) -> String {
        self.restarts += 1;
        let rows: Vec<(SystemRowKey, Vec<u8>)> = self.rows.clone().into_iter().collect();
        let seed = [1 + self.restarts, 2];
        self.catalog = Catalog::load(self.config.clone(), seed, now_at(self.seconds), rows)
            .expect("the rows just stored");
        String::new()
    }

    fn show_table(&self, table: &TableRef) -> String {
        let table = match self.catalog.table(table) {
            Ok(table) => table,
            Err(refusal) => return format!("refused {refusal}\n"),
        };
        let record = table.record;
        let mut text = format!(
            "{:?} owner={:?} comment={:?} version={} replicas={}\n",
            record.name, record.owner, record.comment, record.version, record.replicas
        );
        let limits = [("bytes", record.disk_size_limit), ("rows", record.row_count_limit)];
        for (name, limit) in limits.into_iter().filter_map(|(name, limit)| Some((name, limit?))) {
            writeln!(text, "at most {limit} {name}").expect("writing to a string");
        }
        for (key, value) in record.extra.to_map() {
            writeln!(text, "{key}={value}").expect("writing to a string");
        }
        for column in table.schema().columns() {
            write!(text, "{} {column}", column.id.0).expect("writing to a string");
            if let Some(default) = &column.write_default {
                write!(text, " write_default={default:?}").expect("writing to a string");
            }
            if let Some(default) = &column.read_default {
                write!(text, " read_default={default:?}").expect("writing to a string");
            }
            text.push('\n');
        }
        text
    }

    fn show_tablets(&self, table: &TableRef) -> String {
        let table = match self.catalog.table(table) {
            Ok(table) => table,
            Err(refusal) => return format!("refused {refusal}\n"),
        };
        self.catalog.tablets(table.id).map(|tablet| show_tablet(tablet.id, tablet.record)).collect()
    }

    fn locations(&self, case: &TestCase) -> String {
        let arg = |key: &str| case.args.get(key).and_then(|values| values.first().cloned());
        let (start, end) = (hex(arg("start")), hex(arg("end")));
        let max = arg("max").map(|text| text.parse().expect("a number"));
        let query = LocationsQuery { start: &start, end: &end, max };
        match self.catalog.locations(&self.table(case), query) {
            Ok(tablets) => tablets.iter().map(|tablet| show_tablet(tablet.id, tablet.record)).collect(),
            Err(refusal) => format!("refused {refusal}\n"),
        }
    }

    fn show_servers(&self) -> String {
        let mut text = String::new();
        for server in self.catalog.servers(now_at(self.seconds).mono) {
            let (alive, maintenance) = (server.alive, server.maintenance);
            let location = server.location.map_or(String::new(), |place| format!(" at {place}"));
            let line = format!("{} alive={alive} maintenance={maintenance}{location}\n", server.id);
            text.push_str(&line);
        }
        for absent in self.catalog.absent_in_maintenance() {
            text.push_str(&format!("{absent} absent maintenance=true\n"));
        }
        text
    }
}

#[test]
fn the_first_step_of_a_new_catalog_stores_its_cluster() {
    let mut catalog =
        Catalog::load(CatalogConfig::default(), [7, 8], now_at(0.0), []).expect("nothing to load");
    let mut out = CatalogEffects::default();
    catalog.step(now_at(0.0), CatalogEvent::Tick, &mut out);
    assert_eq!(out.writes.len(), 1);
    assert_eq!(out.writes[0].key, SystemRowKey::Cluster);
    let rows = out.writes.iter().map(|write| (write.key, write.metadata.clone().expect("a put")));
    let again = Catalog::load(CatalogConfig::default(), [9, 9], now_at(1.0), rows).expect("what was stored");
    assert_eq!(again.cluster_id(), catalog.cluster_id());
    assert!(catalog.deadline() <= now_at(0.0).mono.after(Duration::from_secs(1)));
}
