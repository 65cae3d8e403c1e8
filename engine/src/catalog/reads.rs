//! Questions that change nothing: tables, schemas, locations, servers, statistics.

use std::ops::Bound::{Included, Unbounded};

use super::record::{TableRecord, TableState, TabletRecord, TabletState};
use super::refusal::{Code, Refusal, Result};
use super::request::TableRef;
use super::servers::{DataState, Registration};
use super::{Catalog, CatalogConfig, Table};
use crate::error::Error;
use crate::ids::{PeerId, TableId, TabletId, Uuid};
use crate::schema::Schema;
use crate::time::Instant;

/// A table found: its id and record.
#[derive(Debug, Clone, Copy)]
pub struct TableView<'a> {
    pub id: TableId,
    pub record: &'a TableRecord,
}

impl<'a> TableView<'a> {
    /// The schema to tell clients: while an alteration spreads, the last one that every tablet has.
    pub fn schema(&self) -> &'a Schema {
        self.record.served_schema()
    }
}

/// A tablet found: its id and record.
#[derive(Debug, Clone, Copy)]
pub struct TabletView<'a> {
    pub id: TabletId,
    pub record: &'a TabletRecord,
}

/// Which tablets of a table to locate, by partition key. Empty keys are unbounded.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocationsQuery<'a> {
    pub start: &'a [u8],
    pub end: &'a [u8],
    pub max: Option<usize>,
}

/// A tablet server known to this master.
#[derive(Debug, Clone, Copy)]
pub struct ServerView<'a> {
    pub id: PeerId,
    pub instance: i64,
    pub registration: &'a Registration,
    pub location: Option<&'a str>,
    pub millis_since_heartbeat: u64,
    pub alive: bool,
    pub maintenance: bool,
}

/// Sums over a table's tablets, as their leaders last reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    pub disk_bytes: u64,
    /// Absent until a tablet has reported.
    pub live_rows: Option<u64>,
    pub disk_size_limit: Option<i64>,
    pub row_count_limit: Option<i64>,
}

/// How much there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Tables that are not deleted.
    pub tables: u64,
    /// Their tablets, and those of them that are not up.
    pub tablets: u64,
    pub tablets_not_running: u64,
    /// Tablet servers that have registered, and those of them heard of lately.
    pub servers: u64,
    pub servers_alive: u64,
    /// Tablets with fewer good voters than their table wants, as their leaders say.
    pub tablets_under_replicated: u64,
    /// Remains of replicas that tablet servers keep to vote by.
    pub tombstones: u64,
    /// Requests to tablet servers that are not done.
    pub requests: u64,
}

impl Catalog {
    /// Counts everything; takes a look at each tablet.
    pub fn counts(&self, now: Instant) -> Counts {
        let states = || self.tablets.values().map(|tablet| tablet.record.state);
        let live = states().filter(|state| state.is_live()).count();
        let running = states().filter(|state| *state == TabletState::Running).count();
        Counts {
            tables: self.names.len() as u64,
            tablets: live as u64,
            tablets_not_running: (live - running) as u64,
            tablets_under_replicated: self.under_replicated(),
            tombstones: self.tombstones(),
            servers: self.servers.len() as u64,
            servers_alive: self.live_servers(now) as u64,
            requests: self.tasks.len() as u64,
        }
    }

    fn under_replicated(&self) -> u64 {
        let tablets = self.tablets.values();
        tablets.filter(|tablet| self.lacks_replicas(tablet)).count() as u64
    }

    fn tombstones(&self) -> u64 {
        let replicas = self.tablets.values().flat_map(|tablet| tablet.replicas.values());
        replicas.filter(|replica| replica.data == DataState::Tombstoned).count() as u64
    }

    pub fn cluster_id(&self) -> Uuid {
        self.cluster.id
    }

    pub fn config(&self) -> &CatalogConfig {
        &self.config
    }

    pub(super) fn find(&self, table: &TableRef) -> Result<TableId> {
        match (table.id, table.name.as_deref()) {
            (None, None) => {
                Err(Refusal::invalid("a table is named by its id or its name; neither was given"))
            }
            (None, Some(name)) => self.names.get(name).copied().ok_or_else(|| missing(name)),
            (Some(id), name) => {
                let record = &self.tables.get(&id).ok_or_else(|| missing(id))?.record;
                if let TableState::Deleted { at } = record.state {
                    let when = super::delete::utc(at);
                    let message = format!("table {} was deleted: Table deleted at {when}", record.name);
                    return Err(Refusal::no_such_table(message));
                }
                match name {
                    Some(name) if name != record.name => Err(Refusal::no_such_table(format!(
                        "the table does not exist: id {id} has the name {:?}, not {name:?}",
                        record.name
                    ))),
                    _ => Ok(id),
                }
            }
        }
    }

    /// The table, soft-deleted or not; `TableNotFound` if there is none.
    pub fn table(&self, table: &TableRef) -> Result<TableView<'_>> {
        let id = self.find(table)?;
        Ok(TableView { id, record: &self.tables[&id].record })
    }

    /// Tables that are not deleted, in the order of their names.
    pub fn tables(&self) -> impl Iterator<Item = TableView<'_>> {
        self.names.values().map(|id| TableView { id: *id, record: &self.tables[id].record })
    }

    /// The live tablets of a table, in the order of their partition keys.
    pub fn tablets(&self, table: TableId) -> impl Iterator<Item = TabletView<'_>> {
        let tablets = self.tables.get(&table).map(|table| table.tablets.values());
        tablets.into_iter().flatten().map(|id| self.view(id))
    }

    fn view(&self, id: &TabletId) -> TabletView<'_> {
        TabletView { id: *id, record: &self.tablets[id].record }
    }

    /// A live tablet of a table that is not deleted.
    pub fn tablet(&self, id: TabletId) -> Option<TabletView<'_>> {
        let tablet = self.tablets.get(&id).filter(|tablet| tablet.record.state.is_live())?;
        Some(TabletView { id, record: &tablet.record })
    }

    /// Whether every tablet of the table is up.
    pub fn is_created(&self, table: &TableRef) -> Result<bool> {
        let id = self.find(table)?;
        Ok(self.all_running(&self.tables[&id]))
    }

    /// The table's version, and whether every tablet has reached it.
    pub fn is_altered(&self, table: &TableRef) -> Result<(u32, bool)> {
        let table = &self.tables[&self.find(table)?];
        Ok((table.record.version, table.record.applied_schema.is_none() && self.all_running(table)))
    }

    fn all_running(&self, table: &Table) -> bool {
        table.tablets.values().all(|id| self.tablets[id].record.state == TabletState::Running)
    }

    /// The tablets that a client needs for the keys of `query`.
    ///
    /// The first is the last one that starts at or before the start, even if it ends before it too: clients take
    /// what lies before the first tablet they are given for keys without a tablet. The last is the one that starts
    /// at or before the end. `TabletNotRunning` if any of them is not up yet.
    pub fn locations(&self, table: &TableRef, query: LocationsQuery<'_>) -> Result<Vec<TabletView<'_>>> {
        if query.max == Some(0) {
            return Err(Refusal::invalid("max_returned_locations must be greater than 0 if specified"));
        }
        if !query.end.is_empty() && query.start > query.end {
            return Err(Refusal::invalid("the start of the partition keys lies after their end"));
        }
        let table = &self.tables[&self.find(table)?];
        let before = table.tablets.range::<[u8], _>((Unbounded, Included(query.start))).next_back();
        let first = before.map_or(query.start, |(start, _)| start.as_slice());
        let mut found = Vec::new();
        for (start, id) in table.tablets.range::<[u8], _>((Included(first), Unbounded)) {
            let past_end = !query.end.is_empty() && start.as_slice() > query.end;
            if past_end || query.max.is_some_and(|max| found.len() >= max) {
                break;
            }
            let tablet = self.view(id);
            if tablet.record.state != TabletState::Running {
                let error = Error::not_ready(format!("Tablet not running: {id}"));
                return Err(Refusal::new(Code::TabletNotRunning, error));
            }
            found.push(tablet);
        }
        Ok(found)
    }

    /// How a server can be reached, if it has registered with this master.
    pub fn registration(&self, server: PeerId) -> Option<&Registration> {
        self.servers.get(&server).map(|server| &server.registration)
    }

    /// Where a server stands, if that is known.
    pub fn location(&self, server: PeerId) -> Option<&str> {
        self.servers.get(&server)?.location.as_deref()
    }

    /// Tablet servers that have registered, in the order of their ids.
    pub fn servers(&self, now: Instant) -> impl Iterator<Item = ServerView<'_>> {
        self.servers.iter().map(move |(id, server)| ServerView {
            id: *id,
            instance: server.instance,
            registration: &server.registration,
            location: server.location.as_deref(),
            millis_since_heartbeat: now.since(server.last_heartbeat).as_millis() as u64,
            alive: self.is_alive(now, *id),
            maintenance: self.in_maintenance(*id),
        })
    }

    /// Servers in maintenance that have not registered with this master.
    pub fn absent_in_maintenance(&self) -> impl Iterator<Item = PeerId> {
        let absent = self.server_records.keys().filter(|id| !self.servers.contains_key(id));
        absent.copied()
    }

    pub fn statistics(&self, table: &TableRef) -> Result<Statistics> {
        let table = &self.tables[&self.find(table)?];
        let mut sum = Statistics {
            disk_size_limit: table.record.disk_size_limit,
            row_count_limit: table.record.row_count_limit,
            ..Statistics::default()
        };
        for id in table.tablets.values() {
            let tablet = &self.tablets[id];
            let leader = tablet.record.consensus.leader.and_then(|leader| tablet.replicas.get(&leader));
            let Some(stats) = leader.and_then(|leader| leader.stats) else { continue };
            sum.disk_bytes += stats.disk_bytes;
            if let Some(rows) = stats.live_rows {
                sum.live_rows = Some(sum.live_rows.unwrap_or(0) + rows);
            }
        }
        Ok(sum)
    }
}

fn missing(table: impl std::fmt::Display) -> Refusal {
    Refusal::no_such_table(format!("the table does not exist: {table}"))
}
