//! What the master knows and decides: tables, tablets, tablet servers. A pure state machine.
//!
//! ```text
//!            commands (DDL) ──┐                      ┌── writes     rows of the system tablet
//!   heartbeats and reports ───┤  Catalog::step(now)  ├── requests   CreateTablet, DeleteTablet, AlterSchema
//!   answers of tservers ──────┤                      ├── answers    to commands and heartbeats
//!                 ticks ──────┘                      └── notes      things worth logging
//! ```
//!
//! The rules:
//! - A step applies an event as a whole or refuses it as a whole.
//! - Its `writes` must be durable, all together, before any of its requests or answers leave the server. Writes
//!   that are lost (the master died) were never seen by anyone.
//! - Requests are idempotent. One that fails is repeated, with growing waits, until it is done or pointless.
//!   They are not stored: after a restart the first full report of each tablet server shows what is missing
//!   (a tablet to create or delete, a schema to bring up to date) and they are made again.
//! - A deleted tablet is remembered until each server that may hold a replica has confirmed that it is gone.
//!
//! *Not here:* protobuf, sockets, the system tablet itself (`node::master`).

mod alter;
mod columns;
mod config;
mod create;
mod delete;
mod extra;
mod partitioning;
mod placement;
mod reads;
mod record;
mod refusal;
mod repair;
mod report;
mod request;
mod servers;
mod tasks;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

pub use self::columns::AUTO_INCREMENTING_ID;
pub use self::config::CatalogConfig;
use self::placement::Dice;
pub use self::reads::{Counts, LocationsQuery, ServerView, Statistics, TableView, TabletView};
pub use self::record::{
    ClusterRecord, Consensus, ExtraConfig, HostPort, Peer, Record, RowKey, RowWrite, ServerRecord,
    TableRecord, TableState, TabletRecord, TabletState,
};
pub use self::refusal::{Code, Refusal, Result};
use self::repair::RepairState;
pub use self::repair::{Health, MemberChange};
pub use self::request::{
    AlterStep, AlterTable, Answer, ColumnChange, ColumnRef, Command, CreateTable, RangeOps, RequestedColumn,
    RequestedHash, RequestedPartitioning, RequestedRange, ServerStateChange, TableRef,
};
use self::servers::Server;
pub use self::servers::{
    DataState, Heartbeat, HeartbeatReply, KnownServer, Registration, ReplicaState, ReplicaStats,
    ReportedTablet, TabletReport,
};
use self::tasks::Tasks;
pub use self::tasks::{Call, CreateTabletCall, Request, TaskKey, TaskKind};
use crate::error::Error;
use crate::ids::{PeerId, TableId, TabletId, Uuid};
use crate::schema::Schema;
use crate::time::{Instant, Now};

/// Something that happened to the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client or tool wants something; `caller` becomes the owner of what it creates.
    Command { ticket: u64, caller: String, command: Command },
    /// A tablet server reports.
    Heartbeat { ticket: u64, heartbeat: Box<Heartbeat> },
    /// What a tablet server answered to a [`Request`], or why it could not be reached.
    Answered { task: TaskKey, result: Result<(), Error> },
    /// Time has passed; see [`Catalog::deadline`].
    Tick,
}

/// An answer to the event with this ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    pub ticket: u64,
    pub result: DoneResult,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DoneResult {
    Command(Result<Answer>),
    Heartbeat(HeartbeatReply),
}

/// What a step wants done. `writes` come first and all together; see the module's rules.
#[derive(Debug, Default)]
pub struct Effects {
    pub writes: Vec<RowWrite>,
    pub requests: Vec<Request>,
    pub answers: Vec<Done>,
    pub notes: Vec<Note>,
}

/// Things worth telling whoever runs the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    TableCreated {
        table: TableId,
        name: String,
        tablets: usize,
    },
    TableAltered {
        table: TableId,
        name: String,
        version: u32,
    },
    TableApplied {
        table: TableId,
        version: u32,
    },
    TableSoftDeleted {
        table: TableId,
        name: String,
    },
    TableRecalled {
        table: TableId,
        name: String,
    },
    TableDeleted {
        table: TableId,
        name: String,
    },
    TabletRunning {
        tablet: TabletId,
        leader: PeerId,
    },
    TabletReplaced {
        tablet: TabletId,
        by: TabletId,
        reason: String,
    },
    /// No server can take a replica of this tablet now.
    TabletUnplaced {
        tablet: TabletId,
        reason: String,
    },
    ReplicaFailed {
        tablet: TabletId,
        server: PeerId,
        error: String,
    },
    /// A server that should hold a replica does not have it.
    ReplicaMissing {
        tablet: TabletId,
        server: PeerId,
    },
    /// A server holds a replica of a tablet that the catalog has never heard of; it is left alone.
    ReplicaUnknown {
        tablet: TabletId,
        server: PeerId,
    },
    ServerRegistered {
        server: PeerId,
        address: String,
    },
    /// A tablet's configuration is to be changed.
    ReplicaWanted {
        tablet: TabletId,
        change: MemberChange,
    },
    /// A tablet has too few good replicas, and nothing can be done about it now.
    TabletUnderReplicated {
        tablet: TabletId,
        reason: String,
    },
    /// A replica that its tablet's configuration does not name is to be removed.
    ReplicaEvicted {
        tablet: TabletId,
        server: PeerId,
    },
    RequestFailed {
        task: TaskKey,
        attempts: u32,
        error: String,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::TableCreated { table, name, tablets } => {
                write!(f, "table created: {name:?} {table} with {tablets} tablets")
            }
            Note::TableAltered { table, name, version } => {
                write!(f, "table altered: {name:?} {table} is at version {version}")
            }
            Note::TableApplied { table, version } => {
                write!(f, "alteration done: every tablet of {table} is at version {version}")
            }
            Note::TableSoftDeleted { table, name } => {
                write!(f, "table hidden for deletion: {name:?} {table}")
            }
            Note::TableRecalled { table, name } => write!(f, "table recalled: {name:?} {table}"),
            Note::TableDeleted { table, name } => write!(f, "table deleted: {name:?} {table}"),
            Note::TabletRunning { tablet, leader } => write!(f, "tablet running: {tablet} led by {leader}"),
            Note::TabletReplaced { tablet, by, reason } => {
                write!(f, "tablet replaced: {tablet} by {by}: {reason}")
            }
            Note::TabletUnplaced { tablet, reason } => write!(f, "tablet has no place: {tablet}: {reason}"),
            Note::ReplicaFailed { tablet, server, error } => {
                write!(f, "replica failed: {tablet} on {server}: {error}")
            }
            Note::ReplicaMissing { tablet, server } => write!(f, "replica missing: {tablet} on {server}"),
            Note::ReplicaUnknown { tablet, server } => {
                write!(f, "replica of an unknown tablet left alone: {tablet} on {server}")
            }
            Note::ServerRegistered { server, address } => {
                write!(f, "tablet server registered: {server} at {address}")
            }
            Note::ReplicaWanted { tablet, change } => write!(f, "replicas of {tablet}: {change}"),
            Note::TabletUnderReplicated { tablet, reason } => {
                write!(f, "tablet has too few replicas: {tablet}: {reason}")
            }
            Note::ReplicaEvicted { tablet, server } => {
                write!(f, "replica no longer belongs to its tablet: {tablet} on {server}")
            }
            Note::RequestFailed { task, attempts, error } => {
                write!(f, "request failed: {task}, attempt {attempts}: {error}")
            }
        }
    }
}

/// A table and what is known of it beyond its record.
#[derive(Debug)]
struct Table {
    record: TableRecord,
    /// Its live tablets by the start of their partition keys.
    tablets: BTreeMap<Vec<u8>, TabletId>,
}

/// A tablet and what its replicas reported.
#[derive(Debug)]
struct Tablet {
    record: TabletRecord,
    /// Since when this master has waited for it to come up.
    waiting_since: Instant,
    replicas: BTreeMap<PeerId, ReportedTablet>,
    /// How the members are, as the present leader said last.
    health: BTreeMap<PeerId, Health>,
    /// The schema that its replicas began with, if this master saw it come up.
    first_schema: Option<Arc<Schema>>,
    repair: RepairState,
}

impl Tablet {
    fn new(record: TabletRecord, now: Instant) -> Tablet {
        Tablet {
            record,
            waiting_since: now,
            replicas: BTreeMap::new(),
            health: BTreeMap::new(),
            first_schema: None,
            repair: RepairState::default(),
        }
    }

    /// Whether it runs with the members that it was created with, each of which may still have its first replica made.
    /// A server that has none then never had one: it deletes for good only what is no more, and with empty disks it is
    /// another server. So it has forgotten no vote. This holds for a master that saw the tablet come up, which alone
    /// knows who has not reported a replica since.
    fn has_first_members(&self) -> bool {
        let first = Consensus::default().config_index;
        self.record.state == TabletState::Running
            && self.first_schema.is_some()
            && self.record.consensus.config_index == first
    }
}

/// See the module.
#[derive(Debug)]
pub struct Catalog {
    config: CatalogConfig,
    cluster: ClusterRecord,
    tables: BTreeMap<TableId, Table>,
    /// Of tables that are not deleted; soft-deleted ones keep their names.
    names: BTreeMap<String, TableId>,
    tablets: BTreeMap<TabletId, Tablet>,
    servers: BTreeMap<PeerId, Server>,
    server_records: BTreeMap<PeerId, ServerRecord>,
    tasks: Tasks,
    dice: Dice,
    /// Rows that this step changed.
    dirty: BTreeSet<RowKey>,
    /// When the next look at everything that can time out is due.
    next_sweep: Instant,
}

impl Catalog {
    /// The catalog of these rows of the system tablet, or a new one if there are none.
    ///
    /// `seed` decides new ids and placement; it must be fresh entropy in production.
    pub fn load(
        config: CatalogConfig,
        seed: [u64; 2],
        now: Now,
        rows: impl IntoIterator<Item = (RowKey, Vec<u8>)>,
    ) -> Result<Catalog, Error> {
        let mut dice = Dice::new(seed);
        let cluster = ClusterRecord { id: dice.uuid(), created: now.wall.micros };
        let mut catalog = Catalog {
            tasks: Tasks::new(&config),
            config,
            cluster,
            tables: BTreeMap::new(),
            names: BTreeMap::new(),
            tablets: BTreeMap::new(),
            servers: BTreeMap::new(),
            server_records: BTreeMap::new(),
            dice,
            dirty: BTreeSet::from([RowKey::Cluster]),
            next_sweep: now.mono,
        };
        for (key, metadata) in rows {
            let read = catalog.load_row(now, key, &metadata);
            read.map_err(|error| error.context(format!("system tablet, row {key:?}")))?;
        }
        catalog.link_tablets()?;
        Ok(catalog)
    }

    fn load_row(&mut self, now: Now, key: RowKey, metadata: &[u8]) -> Result<(), Error> {
        match key {
            RowKey::Table(id) => {
                let record = TableRecord::unseal(metadata)?;
                if !matches!(record.state, TableState::Deleted { .. }) {
                    self.names.insert(record.name.clone(), id);
                }
                self.tables.insert(id, Table { record, tablets: BTreeMap::new() });
            }
            RowKey::Tablet(id) => {
                let record = TabletRecord::unseal(metadata)?;
                self.tablets.insert(id, Tablet::new(record, now.mono));
            }
            RowKey::Server(id) => {
                self.server_records.insert(id, ServerRecord::unseal(metadata)?);
            }
            RowKey::Cluster => {
                self.cluster = ClusterRecord::unseal(metadata)?;
                self.dirty.remove(&RowKey::Cluster);
            }
        }
        Ok(())
    }

    fn link_tablets(&mut self) -> Result<(), Error> {
        for (id, tablet) in &self.tablets {
            let record = &tablet.record;
            let Some(table) = self.tables.get_mut(&record.table) else {
                return Err(Error::corrupt(format!("tablet {id} belongs to no table: {}", record.table)));
            };
            if record.state.is_live() {
                table.tablets.insert(record.partition.start.clone(), *id);
            }
        }
        Ok(())
    }

    /// Lets `event` happen at `now`.
    pub fn step(&mut self, now: Now, event: Event, out: &mut Effects) {
        match event {
            Event::Command { ticket, caller, command } => {
                let result = self.command(now, &caller, command, out);
                out.answers.push(Done { ticket, result: DoneResult::Command(result) });
            }
            Event::Heartbeat { ticket, heartbeat } => {
                let reply = self.heartbeat(now, *heartbeat, out);
                out.answers.push(Done { ticket, result: DoneResult::Heartbeat(reply) });
            }
            Event::Answered { task, result } => self.answered(now, task, result, out),
            Event::Tick => {}
        }
        if self.next_sweep <= now.mono {
            self.sweep(now, out);
        }
        self.send_requests(now, out);
        self.save(out);
    }

    /// When [`Event::Tick`] is due if nothing else happens.
    pub fn deadline(&self) -> Instant {
        self.tasks.next_due().map_or(self.next_sweep, |due| due.min(self.next_sweep))
    }

    fn command(&mut self, now: Now, caller: &str, command: Command, out: &mut Effects) -> Result<Answer> {
        match command {
            Command::Create(request) => self.create_table(now, caller, *request, out),
            Command::Alter(request) => self.alter_table(now, *request, out),
            Command::Delete { table, reserve_seconds } => {
                self.delete_table(now, &table, reserve_seconds, out)
            }
            Command::Recall { table, new_name } => self.recall_table(now, &table, new_name, out),
            Command::ReplaceTablet(tablet) => self.replace_tablet_by_hand(now, tablet, out),
            Command::ChangeServerState { server, change, allow_missing } => {
                self.change_server_state(now, server, change, allow_missing)
            }
            Command::UnregisterServer { server, force } => self.unregister_server(now, server, force),
        }
    }

    /// Hands out the changed rows; a record that is gone becomes a deletion.
    fn save(&mut self, out: &mut Effects) {
        for key in std::mem::take(&mut self.dirty) {
            let metadata = match key {
                RowKey::Table(id) => self.tables.get(&id).map(|table| table.record.seal()),
                RowKey::Tablet(id) => self.tablets.get(&id).map(|tablet| tablet.record.seal()),
                RowKey::Server(id) => self.server_records.get(&id).map(Record::seal),
                RowKey::Cluster => Some(self.cluster.seal()),
            };
            out.writes.push(RowWrite { key, metadata });
        }
    }

    /// An id that no table or tablet has.
    fn fresh_id(&mut self) -> Uuid {
        loop {
            let id = self.dice.uuid();
            let taken = self.tables.contains_key(&id) || self.tablets.contains_key(&id);
            if !taken && id != Uuid::ZERO {
                return id;
            }
        }
    }
}
