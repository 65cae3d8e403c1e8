//! Catalog of the master: tables, tablets, tablet servers. A pure state machine.
//!
//! ```text
//!            commands (DDL) ──┐                      ┌── writes     rows of the system tablet
//!   heartbeats and reports ───┤  Catalog::step(now)  ├── requests   CreateTablet, DeleteTablet, AlterSchema
//!   responses of tservers ────┤                      ├── replies    replies to commands and heartbeats
//!                 ticks ──────┘                      └── notes      events worth logging
//! ```
//!
//! Rules:
//!
//! - A step applies an event as a whole or rejects it as a whole.
//! - Order: its `writes` must be durable before any of its requests or replies leave the server. No client saw the
//!   effect of writes that are lost with a master. The rows of one change are stored all together; a report or a sweep
//!   makes many changes, and may be stored by several operations ([`CatalogEffects`]).
//! - Requests are idempotent. A failed one is retried with backoff until it is done or obsolete. They are not stored:
//!   after a restart the first full report of each tablet server shows what is missing (a tablet to create or delete,
//!   an outdated schema), and they are created again.
//! - A deleted tablet is remembered until each server that may hold a replica has confirmed its removal.
//!
//! *Not here:* protobuf, sockets, the system tablet itself (`node::master`).

mod alter;
mod columns;
mod commands;
mod config;
mod config_order;
mod consistency;
mod create;
mod delete;
mod draft_ranges;
mod effects;
mod error;
mod extra_config;
mod finalized_level;
mod heartbeat;
mod id_rng;
mod membership;
mod partition_setup;
mod placement;
mod queries;
mod rebuild;
mod record;
mod record_limits;
mod repair;
mod replica_counts;
mod secrets;
mod sweep;
mod table_attributes;
mod tablet_budget;
mod tablet_report;
mod task_queue;
mod tserver_tasks;
mod tservers;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

pub use self::columns::AUTO_INCREMENTING_ID;
pub use self::commands::{
    AlterStep, AlterTable, CatalogCommand, ColumnChange, ColumnRef, CommandReply, CreateTable, RangeOps,
    RequestedColumn, RequestedHash, RequestedPartitioning, RequestedRange, SecretsChange, ServerStateChange,
    TableRef,
};
pub use self::config::CatalogConfig;
pub use self::consistency::{CatalogCheck, CatalogFinding, FindingSeverity, StoredSystemRow, check_catalog};
pub use self::effects::CatalogEffects;
pub use self::error::{CatalogError, CatalogErrorCode, CatalogResult};
use self::heartbeat::Tserver;
pub use self::heartbeat::{
    Heartbeat, HeartbeatReply, ReplicaState, ReplicaStats, ReportedDataState, ReportedTablet, TabletReport,
    TserverContact, TserverRegistration,
};
use self::id_rng::IdRng;
use self::membership::PendingRepair;
pub use self::membership::{MembershipChange, ReportedHealth};
use self::placement::ReplicaCounts;
pub use self::queries::{
    CatalogCounts, LocationsQuery, TableEntry, TableSizes, TableStatistics, TabletEntry, TserverEntry,
};
pub use self::rebuild::{FoundReplica, RebuiltCatalog, RebuiltTable, rebuild_catalog};
pub use self::record::{
    AuthorityRecord, ClusterRecord, ClusterSecrets, ConsensusState, ExtraConfig, HostPort, PeerRecord,
    SECRETS_ENTRY_TYPE, ServerRecord, SystemRecord, SystemRowKey, SystemRowWrite, TableLifecycle,
    TableRecord, TabletLifecycle, TabletRecord, TokenKeyRecord,
};
pub use self::table_attributes::ATTRIBUTE_PREFIX;
use self::task_queue::TaskQueue;
pub use self::task_queue::{CreateTabletCall, TaskKey, TaskKind, TserverCall, TserverRequest};
use crate::error::Error;
use crate::ids::{PeerId, TableId, TabletId, Uuid};
use crate::schema::Schema;
use crate::time::{ClockReading, Instant};

/// An input of the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CatalogEvent {
    /// Command of a client or tool; `caller` becomes the owner of a created table.
    Command { ticket: u64, caller: String, command: CatalogCommand },
    /// Heartbeat of a tablet server.
    Heartbeat { ticket: u64, heartbeat: Box<Heartbeat> },
    /// Response of a tablet server to a [`TserverRequest`], or the reason why it could not be reached.
    Answered { task: TaskKey, result: CatalogResult<(), Error> },
    /// Time has passed; see [`Catalog::deadline`].
    Tick,
}

/// Reply to the event with this ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventReply {
    pub ticket: u64,
    pub result: EventResult,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventResult {
    Command(CatalogResult<CommandReply>),
    Heartbeat(HeartbeatReply),
}

/// Events worth logging for an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CatalogNote {
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
    /// A server holds a replica of a tablet that is not in the catalog; it is left unchanged.
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
        change: MembershipChange,
    },
    /// A tablet is under-replicated, and no server can take a replica now.
    TabletUnderReplicated {
        tablet: TabletId,
        reason: String,
    },
    /// A replica outside its tablet's configuration is to be removed.
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

impl fmt::Display for CatalogNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CatalogNote::TableCreated { table, name, tablets } => {
                write!(f, "table created: {name:?} {table} with {tablets} tablets")
            }
            CatalogNote::TableAltered { table, name, version } => {
                write!(f, "table altered: {name:?} {table} is at version {version}")
            }
            CatalogNote::TableApplied { table, version } => {
                write!(f, "alteration done: every tablet of {table} is at version {version}")
            }
            CatalogNote::TableSoftDeleted { table, name } => {
                write!(f, "table hidden for deletion: {name:?} {table}")
            }
            CatalogNote::TableRecalled { table, name } => write!(f, "table recalled: {name:?} {table}"),
            CatalogNote::TableDeleted { table, name } => write!(f, "table deleted: {name:?} {table}"),
            CatalogNote::TabletRunning { tablet, leader } => {
                write!(f, "tablet running: {tablet} led by {leader}")
            }
            CatalogNote::TabletReplaced { tablet, by, reason } => {
                write!(f, "tablet replaced: {tablet} by {by}: {reason}")
            }
            CatalogNote::TabletUnplaced { tablet, reason } => {
                write!(f, "tablet has no place: {tablet}: {reason}")
            }
            CatalogNote::ReplicaFailed { tablet, server, error } => {
                write!(f, "replica failed: {tablet} on {server}: {error}")
            }
            CatalogNote::ReplicaMissing { tablet, server } => {
                write!(f, "replica missing: {tablet} on {server}")
            }
            CatalogNote::ReplicaUnknown { tablet, server } => {
                write!(f, "replica of an unknown tablet left alone: {tablet} on {server}")
            }
            CatalogNote::ServerRegistered { server, address } => {
                write!(f, "tablet server registered: {server} at {address}")
            }
            CatalogNote::ReplicaWanted { tablet, change } => write!(f, "replicas of {tablet}: {change}"),
            CatalogNote::TabletUnderReplicated { tablet, reason } => {
                write!(f, "tablet has too few replicas: {tablet}: {reason}")
            }
            CatalogNote::ReplicaEvicted { tablet, server } => {
                write!(f, "replica no longer belongs to its tablet: {tablet} on {server}")
            }
            CatalogNote::RequestFailed { task, attempts, error } => {
                write!(f, "request failed: {task}, attempt {attempts}: {error}")
            }
        }
    }
}

/// A table and its in-memory state.
#[derive(Debug)]
struct Table {
    record: TableRecord,
    /// Its live tablets by the start of their partition keys.
    tablets: BTreeMap<Vec<u8>, TabletId>,
}

/// A tablet and the reports of its replicas.
#[derive(Debug)]
struct Tablet {
    record: TabletRecord,
    /// Time since which this master has waited for it to run.
    waiting_since: Instant,
    replicas: BTreeMap<PeerId, ReportedTablet>,
    /// Health of the members, as last reported by the current leader.
    health: BTreeMap<PeerId, ReportedHealth>,
    /// The schema that its replicas began with, if this master saw it start running.
    first_schema: Option<Arc<Schema>>,
    repair: PendingRepair,
}

impl Tablet {
    fn new(record: TabletRecord, now: Instant) -> Tablet {
        Tablet {
            record,
            waiting_since: now,
            replicas: BTreeMap::new(),
            health: BTreeMap::new(),
            first_schema: None,
            repair: PendingRepair::default(),
        }
    }

    /// Returns true if it runs with its initial members, each of which may still create its first replica.
    ///
    /// A server without a replica has never had one then: it deletes permanently only what is deleted in the catalog,
    /// and with empty disks it is another server. So no vote is lost. Only a master that saw the tablet start running
    /// knows which members have not reported a replica since.
    fn has_first_members(&self) -> bool {
        let first = ConsensusState::default().config_index;
        self.record.state == TabletLifecycle::Running
            && self.first_schema.is_some()
            && self.record.consensus.config_index == first
    }
}

/// The catalog: records of the system tablet and in-memory state.
#[derive(Debug)]
pub struct Catalog {
    config: CatalogConfig,
    cluster: ClusterRecord,
    tables: BTreeMap<TableId, Table>,
    /// Names of tables that are not deleted; soft-deleted ones keep their names.
    names: BTreeMap<String, TableId>,
    tablets: BTreeMap<TabletId, Tablet>,
    servers: BTreeMap<PeerId, Tserver>,
    server_records: BTreeMap<PeerId, ServerRecord>,
    secrets: ClusterSecrets,
    tasks: TaskQueue,
    /// Replica counts of this step, if it has placed replicas.
    loads: Option<ReplicaCounts>,
    /// Number of times that the replicas of all tablets were counted.
    #[cfg(test)]
    full_counts: usize,
    id_rng: IdRng,
    /// Rows changed by this step.
    dirty: BTreeSet<SystemRowKey>,
    /// Time of the next check of all timeouts.
    next_sweep: Instant,
}

impl Catalog {
    /// Loads the catalog from these rows of the system tablet, or creates a new one if there are none.
    ///
    /// `seed` determines new ids and placement; it must be fresh entropy in production.
    pub fn load(
        config: CatalogConfig,
        seed: [u64; 2],
        now: ClockReading,
        rows: impl IntoIterator<Item = (SystemRowKey, Vec<u8>)>,
    ) -> CatalogResult<Catalog, Error> {
        let mut id_rng = IdRng::new(seed);
        let (created, level) = (now.wall.micros, config.levels.newest);
        let cluster = ClusterRecord { id: id_rng.uuid(), created, level };
        let mut catalog = Catalog {
            tasks: TaskQueue::new(&config),
            config,
            cluster,
            tables: BTreeMap::new(),
            names: BTreeMap::new(),
            tablets: BTreeMap::new(),
            servers: BTreeMap::new(),
            server_records: BTreeMap::new(),
            secrets: ClusterSecrets::default(),
            loads: None,
            #[cfg(test)]
            full_counts: 0,
            id_rng,
            dirty: BTreeSet::from([SystemRowKey::Cluster]),
            next_sweep: now.mono,
        };
        for (key, metadata) in rows {
            let read = catalog.load_row(now, key, &metadata);
            read.map_err(|error| error.context(format!("system tablet, row {key:?}")))?;
        }
        catalog.check_level()?;
        catalog.link_tablets()?;
        Ok(catalog)
    }

    fn load_row(
        &mut self,
        now: ClockReading,
        key: SystemRowKey,
        metadata: &[u8],
    ) -> CatalogResult<(), Error> {
        match key {
            SystemRowKey::Table(id) => {
                let record = TableRecord::unseal(metadata)?;
                if !matches!(record.state, TableLifecycle::Deleted { .. }) {
                    self.names.insert(record.name.clone(), id);
                }
                self.tables.insert(id, Table { record, tablets: BTreeMap::new() });
            }
            SystemRowKey::Tablet(id) => {
                let record = TabletRecord::unseal(metadata)?;
                self.tablets.insert(id, Tablet::new(record, now.mono));
            }
            SystemRowKey::Server(id) => {
                self.server_records.insert(id, ServerRecord::unseal(metadata)?);
            }
            SystemRowKey::Cluster => {
                self.cluster = ClusterRecord::unseal(metadata)?;
                self.dirty.remove(&SystemRowKey::Cluster);
            }
            SystemRowKey::Authority => {
                self.secrets.authority = Some(AuthorityRecord::unseal(metadata)?);
            }
            SystemRowKey::TokenKey(number) => {
                self.secrets.token_keys.insert(number, TokenKeyRecord::unseal(metadata)?);
            }
        }
        Ok(())
    }

    fn link_tablets(&mut self) -> CatalogResult<(), Error> {
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

    /// Processes `event` at `now`.
    pub fn step(&mut self, now: ClockReading, event: CatalogEvent, out: &mut CatalogEffects) {
        self.loads = None;
        match event {
            CatalogEvent::Command { ticket, caller, command } => {
                let result = self.command(now, &caller, command, out);
                out.replies.push(EventReply { ticket, result: EventResult::Command(result) });
            }
            CatalogEvent::Heartbeat { ticket, heartbeat } => {
                let reply = self.heartbeat(now, *heartbeat, out);
                out.replies.push(EventReply { ticket, result: EventResult::Heartbeat(reply) });
            }
            CatalogEvent::Answered { task, result } => self.answered(now, task, result, out),
            CatalogEvent::Tick => {}
        }
        // The sweep has units of its own: with the event's changes it may have more than one operation holds.
        self.save(out);
        if self.next_sweep <= now.mono {
            self.sweep(now, out);
            self.save(out);
        }
        self.send_requests(now, out);
    }

    /// Time at which [`CatalogEvent::Tick`] is due if no other event arrives.
    pub fn deadline(&self) -> Instant {
        self.tasks.next_due().map_or(self.next_sweep, |due| due.min(self.next_sweep))
    }

    fn command(
        &mut self,
        now: ClockReading,
        caller: &str,
        command: CatalogCommand,
        out: &mut CatalogEffects,
    ) -> CatalogResult<CommandReply> {
        match command {
            CatalogCommand::Create(request) => self.create_table(now, caller, *request, out),
            CatalogCommand::Alter(request) => self.alter_table(now, *request, out),
            CatalogCommand::Delete { table, reserve_seconds } => {
                self.delete_table(now, &table, reserve_seconds, out)
            }
            CatalogCommand::Recall { table, new_name } => self.recall_table(now, &table, new_name, out),
            CatalogCommand::ReplaceTablet(tablet) => self.replace_tablet_by_hand(now, tablet, out),
            CatalogCommand::ChangeServerState { server, change, allow_missing } => {
                self.change_server_state(now, server, change, allow_missing)
            }
            CatalogCommand::UnregisterServer { server, force } => {
                self.unregister_server(now, server, force, out)
            }
            CatalogCommand::RaiseLevel(level) => self.raise_level(level),
            CatalogCommand::ChangeSecrets(change) => self.change_secrets(*change),
        }
    }

    /// Emits the changed rows as one unit and returns their bytes; a removed record becomes a deletion.
    fn save(&mut self, out: &mut CatalogEffects) -> usize {
        let row = |key: SystemRowKey| {
            let metadata = match key {
                SystemRowKey::Table(id) => self.tables.get(&id).map(|table| table.record.seal()),
                SystemRowKey::Tablet(id) => self.tablets.get(&id).map(|tablet| tablet.record.seal()),
                SystemRowKey::Server(id) => self.server_records.get(&id).map(SystemRecord::seal),
                SystemRowKey::Cluster => Some(self.cluster.seal()),
                SystemRowKey::Authority => self.secrets.authority.as_ref().map(SystemRecord::seal),
                SystemRowKey::TokenKey(number) => {
                    self.secrets.token_keys.get(&number).map(SystemRecord::seal)
                }
            };
            SystemRowWrite { key, metadata }
        };
        out.add_unit(std::mem::take(&mut self.dirty).into_iter().map(row).collect())
    }

    /// An id that no table or tablet has.
    fn fresh_id(&mut self) -> Uuid {
        loop {
            let id = self.id_rng.uuid();
            let taken = self.tables.contains_key(&id) || self.tablets.contains_key(&id);
            if !taken && id != Uuid::ZERO {
                return id;
            }
        }
    }
}
