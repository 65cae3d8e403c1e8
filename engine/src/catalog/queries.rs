//! Read-only queries: tables, schemas, locations, servers, statistics.

use std::collections::BTreeMap;
use std::ops::Bound::{Included, Unbounded};

use super::commands::TableRef;
use super::error::{CatalogError, CatalogErrorCode, CatalogResult};
use super::heartbeat::{ReportedDataState, ReportedTablet, TserverRegistration};
use super::record::{TableLifecycle, TableRecord, TabletLifecycle, TabletRecord};
use super::{Catalog, CatalogConfig, Table};
use crate::error::Error;
use crate::ids::{PeerId, TableId, TabletId, Uuid};
use crate::schema::Schema;
use crate::time::Instant;

/// A table with its id and record.
#[derive(Debug, Clone, Copy)]
pub struct TableEntry<'a> {
    pub id: TableId,
    pub record: &'a TableRecord,
}

impl<'a> TableEntry<'a> {
    /// The schema for clients: during an alteration, the last one that every tablet has.
    pub fn schema(&self) -> &'a Schema {
        self.record.served_schema()
    }
}

/// A tablet with its id and record.
#[derive(Debug, Clone, Copy)]
pub struct TabletEntry<'a> {
    pub id: TabletId,
    pub record: &'a TabletRecord,
}

/// Range of partition keys of a location lookup. Empty keys are unbounded.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocationsQuery<'a> {
    pub start: &'a [u8],
    pub end: &'a [u8],
    pub max: Option<usize>,
}

/// A tablet server known to this master.
#[derive(Debug, Clone, Copy)]
pub struct TserverEntry<'a> {
    pub id: PeerId,
    pub instance: i64,
    pub registration: &'a TserverRegistration,
    pub location: Option<&'a str>,
    pub millis_since_heartbeat: u64,
    pub alive: bool,
    pub maintenance: bool,
}

/// Sums over a table's tablets, as last reported by their leaders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableStatistics {
    pub disk_bytes: u64,
    /// Absent until a tablet has reported.
    pub live_rows: Option<u64>,
    pub disk_size_limit: Option<i64>,
    pub row_count_limit: Option<i64>,
}

/// Counts for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CatalogCounts {
    /// Tables that are not deleted.
    pub tables: u64,
    /// Their tablets, and those of them that are not running.
    pub tablets: u64,
    pub tablets_not_running: u64,
    /// Registered tablet servers, and those of them with a recent heartbeat.
    pub servers: u64,
    pub servers_alive: u64,
    /// Tablets with fewer good voters than their replication factor, as reported by their leaders.
    pub tablets_under_replicated: u64,
    /// Tombstones that tablet servers keep in order to vote.
    pub tombstones: u64,
    /// Unfinished requests to tablet servers.
    pub requests: u64,
    /// Difference between the largest and the smallest number of replicas on a live server.
    pub replica_skew: u64,
}

/// Sizes of a table, as the leaders of its tablets report them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSizes {
    pub id: TableId,
    pub name: String,
    pub columns: u64,
    pub schema_version: u32,
    pub statistics: TableStatistics,
}

impl Catalog {
    /// Counts everything; visits each tablet.
    pub fn counts(&self, now: Instant) -> CatalogCounts {
        let states = || self.tablets.values().map(|tablet| tablet.record.state);
        let live = states().filter(|state| state.is_live()).count();
        let running = states().filter(|state| *state == TabletLifecycle::Running).count();
        CatalogCounts {
            tables: self.names.len() as u64,
            tablets: live as u64,
            tablets_not_running: (live - running) as u64,
            tablets_under_replicated: self.under_replicated(),
            tombstones: self.tombstones(),
            servers: self.servers.len() as u64,
            servers_alive: self.live_servers(now) as u64,
            requests: self.tasks.len() as u64,
            replica_skew: self.replica_skew(now),
        }
    }

    fn replica_skew(&self, now: Instant) -> u64 {
        let live = self.servers.keys().filter(|id| self.is_alive(now, **id));
        let mut replicas: BTreeMap<PeerId, u64> = live.map(|id| (*id, 0)).collect();
        for tablet in self.tablets.values() {
            let kept =
                tablet.replicas.iter().filter(|(_, replica)| replica.data != ReportedDataState::Tombstoned);
            for (server, _) in kept {
                if let Some(count) = replicas.get_mut(server) {
                    *count += 1;
                }
            }
        }
        let most = replicas.values().max().copied().unwrap_or(0);
        most - replicas.values().min().copied().unwrap_or(0)
    }

    /// Returns the sizes of all tables that are not deleted.
    pub fn table_sizes(&self) -> Vec<TableSizes> {
        let sizes = |(name, id): (&String, &TableId)| {
            let table = self.tables.get(id)?;
            Some(TableSizes {
                id: *id,
                name: name.clone(),
                columns: table.record.schema.columns().len() as u64,
                schema_version: table.record.version,
                statistics: self.table_statistics(table),
            })
        };
        self.names.iter().filter_map(sizes).collect()
    }

    fn under_replicated(&self) -> u64 {
        let tablets = self.tablets.values();
        tablets.filter(|tablet| self.lacks_replicas(tablet)).count() as u64
    }

    fn tombstones(&self) -> u64 {
        let replicas = self.tablets.values().flat_map(|tablet| tablet.replicas.values());
        replicas.filter(|replica| replica.data == ReportedDataState::Tombstoned).count() as u64
    }

    pub fn cluster_id(&self) -> Uuid {
        self.cluster.id
    }

    pub fn config(&self) -> &CatalogConfig {
        &self.config
    }

    pub(super) fn find(&self, table: &TableRef) -> CatalogResult<TableId> {
        match (table.id, table.name.as_deref()) {
            (None, None) => {
                Err(CatalogError::invalid("a table is named by its id or its name; neither was given"))
            }
            (None, Some(name)) => {
                self.names.get(name).copied().ok_or_else(|| CatalogError::table_not_found(table))
            }
            (Some(id), name) => {
                let record =
                    &self.tables.get(&id).ok_or_else(|| CatalogError::table_not_found(table))?.record;
                if let TableLifecycle::Deleted { at } = record.state {
                    let when = super::delete::utc(at);
                    let message = format!("table {} was deleted: Table deleted at {when}", record.name);
                    return Err(CatalogError::no_such_table(message));
                }
                match name {
                    Some(name) if name != record.name => Err(CatalogError::no_such_table(format!(
                        "the table ID refers to a different table '{} [id={id}]' than '{name}'",
                        record.name
                    ))),
                    _ => Ok(id),
                }
            }
        }
    }

    /// The table, soft-deleted or not; `TableNotFound` if there is none.
    pub fn table(&self, table: &TableRef) -> CatalogResult<TableEntry<'_>> {
        let id = self.find(table)?;
        Ok(TableEntry { id, record: &self.tables[&id].record })
    }

    /// Tables that are not deleted, in the order of their names.
    pub fn tables(&self) -> impl Iterator<Item = TableEntry<'_>> {
        self.names.values().map(|id| TableEntry { id: *id, record: &self.tables[id].record })
    }

    /// The live tablets of a table, in the order of their partition keys.
    pub fn tablets(&self, table: TableId) -> impl Iterator<Item = TabletEntry<'_>> {
        let tablets = self.tables.get(&table).map(|table| table.tablets.values());
        tablets.into_iter().flatten().map(|id| self.view(id))
    }

    fn view(&self, id: &TabletId) -> TabletEntry<'_> {
        TabletEntry { id: *id, record: &self.tablets[id].record }
    }

    /// A live tablet of a table that is not deleted.
    pub fn tablet(&self, id: TabletId) -> Option<TabletEntry<'_>> {
        let tablet = self.tablets.get(&id).filter(|tablet| tablet.record.state.is_live())?;
        Some(TabletEntry { id, record: &tablet.record })
    }

    /// Returns true if every tablet of the table is running.
    pub fn is_created(&self, table: &TableRef) -> CatalogResult<bool> {
        let id = self.find(table)?;
        Ok(self.all_running(&self.tables[&id]))
    }

    /// The table's version, and true if every tablet has reached it.
    pub fn is_altered(&self, table: &TableRef) -> CatalogResult<(u32, bool)> {
        let table = &self.tables[&self.find(table)?];
        Ok((table.record.version, table.record.applied_schema.is_none() && self.all_running(table)))
    }

    fn all_running(&self, table: &Table) -> bool {
        table.tablets.values().all(|id| self.tablets[id].record.state == TabletLifecycle::Running)
    }

    /// Returns the tablets that a client needs for the keys of `query`.
    ///
    /// The first is the last one that starts at or before the start, even if it ends before it too: clients treat all
    /// keys before the first returned tablet as not covered. The last is the one that starts at or before the end.
    /// `TabletNotRunning` if any of them does not run yet.
    pub fn locations(
        &self,
        table: &TableRef,
        query: LocationsQuery<'_>,
    ) -> CatalogResult<Vec<TabletEntry<'_>>> {
        if query.max == Some(0) {
            return Err(CatalogError::invalid("max_returned_locations must be greater than 0 if specified"));
        }
        if !query.end.is_empty() && query.start > query.end {
            return Err(CatalogError::invalid("the start of the partition keys lies after their end"));
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
            if tablet.record.state != TabletLifecycle::Running {
                let error = Error::not_ready(format!("Tablet not running: {id}"));
                return Err(CatalogError::new(CatalogErrorCode::TabletNotRunning, error));
            }
            found.push(tablet);
        }
        Ok(found)
    }

    /// The addresses of a server, if it has registered with this master.
    pub fn registration(&self, server: PeerId) -> Option<&TserverRegistration> {
        self.servers.get(&server).map(|server| &server.registration)
    }

    /// The location of a server, if known.
    pub fn location(&self, server: PeerId) -> Option<&str> {
        self.servers.get(&server)?.location.as_deref()
    }

    /// Tablet servers that have registered, in the order of their ids.
    pub fn servers(&self, now: Instant) -> impl Iterator<Item = TserverEntry<'_>> {
        self.servers.iter().map(move |(id, server)| TserverEntry {
            id: *id,
            instance: server.instance,
            registration: &server.registration,
            location: server.location.as_deref(),
            millis_since_heartbeat: now.since(server.last_heartbeat).as_millis() as u64,
            alive: self.is_alive(now, *id),
            maintenance: self.in_maintenance(*id),
        })
    }

    /// Replicas of a tablet as their servers reported them, tombstones too, in the order of the servers' ids.
    pub fn replicas(&self, tablet: TabletId) -> impl Iterator<Item = (PeerId, &ReportedTablet)> {
        let tablet = self.tablets.get(&tablet);
        tablet.into_iter().flat_map(|tablet| &tablet.replicas).map(|(server, replica)| (*server, replica))
    }

    /// Servers in maintenance that have not registered with this master.
    pub fn absent_in_maintenance(&self) -> impl Iterator<Item = PeerId> {
        let absent = self.server_records.keys().filter(|id| !self.servers.contains_key(id));
        absent.copied()
    }

    pub fn statistics(&self, table: &TableRef) -> CatalogResult<TableStatistics> {
        Ok(self.table_statistics(&self.tables[&self.find(table)?]))
    }

    fn table_statistics(&self, table: &Table) -> TableStatistics {
        let mut sum = TableStatistics {
            disk_size_limit: table.record.disk_size_limit,
            row_count_limit: table.record.row_count_limit,
            ..TableStatistics::default()
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
        sum
    }
}
