//! Creation of tables: everything is checked first, then the table, its tablets and their placement appear at once.

use std::sync::Arc;

use super::columns::{check_comment, check_name, check_owner, new_schema};
use super::commands::{CommandReply, CreateTable};
use super::error::{CatalogError, CatalogErrorCode, CatalogResult};
use super::partition_setup;
use super::record::{ExtraConfig, SystemRowKey, TableLifecycle, TableRecord, TabletLifecycle, TabletRecord};
use super::record_limits;
use super::{Catalog, CatalogEffects, CatalogNote, Table};
use crate::error::Error;
use crate::ids::{TableId, TabletId};
use crate::schema::partition::Partition;
use crate::time::{ClockReading, Instant};

impl Catalog {
    pub(super) fn create_table(
        &mut self,
        now: ClockReading,
        caller: &str,
        request: CreateTable,
        out: &mut CatalogEffects,
    ) -> CatalogResult<CommandReply> {
        check_name("table", &request.name, &self.config)?;
        check_comment("table", &request.comment, &self.config)?;
        if let Some(owner) = &request.owner {
            check_owner(owner, &self.config)?;
        }
        let schema = new_schema(&request.columns, &self.config)?;
        let label = request.dimension_label.as_deref();
        let (partition_schema, partitions) =
            partition_setup::of_new_table(&schema, &request.partitioning, label)?;
        let extra = ExtraConfig::default().changed(&request.extra_configs)?;
        let replicas = request.replicas.unwrap_or(self.config.replicas_default);
        self.check_replicas(now.mono, replicas)?;
        self.check_tablet_count(now.mono, partitions.len(), replicas)?;
        self.check_name_free(&request.name)?;
        let record = TableRecord {
            name: request.name,
            owner: request.owner.unwrap_or_else(|| caller.to_string()),
            comment: request.comment,
            state: TableLifecycle::Running,
            next_column_id: schema.columns().len() as u32,
            schema,
            version: 0,
            applied_schema: None,
            partition_schema: Arc::new(partition_schema),
            replicas,
            extra,
            disk_size_limit: None,
            row_count_limit: None,
            created: now.wall.micros,
            altered: now.wall.micros,
        };
        record_limits::check_table(&record)?;
        Ok(CommandReply::Created(self.install_table(now, record, partitions, request.dimension_label, out)))
    }

    fn install_table(
        &mut self,
        now: ClockReading,
        record: TableRecord,
        partitions: Vec<Partition>,
        label: Option<String>,
        out: &mut CatalogEffects,
    ) -> TableId {
        let table = self.fresh_id();
        let (name, tablets) = (record.name.clone(), partitions.len());
        self.names.insert(name.clone(), table);
        self.tables.insert(table, Table { record, tablets: Default::default() });
        self.dirty.insert(SystemRowKey::Table(table));
        out.notes.push(CatalogNote::TableCreated { table, name, tablets });
        let partitions = partitions.into_iter().map(|partition| (partition, label.clone()));
        self.add_partitions(now, table, partitions.collect(), out);
        table
    }

    /// Adds a tablet for each of these partitions and places it.
    pub(super) fn add_partitions(
        &mut self,
        now: ClockReading,
        table: TableId,
        partitions: Vec<(Partition, Option<String>)>,
        out: &mut CatalogEffects,
    ) {
        for (partition, label) in partitions {
            let id = self.fresh_id();
            let start = partition.start.clone();
            self.add_tablet(now, id, TabletRecord::new(table, partition, label, now.wall.micros));
            self.tables.get_mut(&table).expect("created by the caller").tablets.insert(start, id);
            self.place(now, id, out);
        }
    }

    /// Checks that a table with this replication factor can be created now.
    pub(super) fn check_replicas(&self, now: Instant, replicas: i32) -> CatalogResult<()> {
        let config = &self.config;
        let (min, max) = (config.replicas_min, config.replicas_max);
        if replicas < min {
            let error = Error::invalid(format!(
                "illegal replication factor {replicas}: minimum allowed replication factor is {min} (controlled by \
                 --min_num_replicas)"
            ));
            return Err(CatalogError::new(CatalogErrorCode::IllegalReplicationFactor, error));
        }
        if replicas > max {
            let error = Error::invalid(format!(
                "illegal replication factor {replicas}: maximum allowed replication factor is {max} (controlled by \
                 --max_num_replicas)"
            ));
            return Err(CatalogError::new(CatalogErrorCode::ReplicationFactorTooHigh, error));
        }
        if replicas % 2 == 0 && !config.replicas_even {
            let error = Error::invalid(format!(
                "illegal replication factor {replicas}: replication factor must be odd"
            ));
            return Err(CatalogError::new(CatalogErrorCode::EvenReplicationFactor, error));
        }
        let live = self.live_servers(now);
        if self.replicas_needed(replicas) > live {
            let error = Error::invalid(format!(
                "not enough live tablet servers to create a table with the requested replication factor \
                 {replicas}; {live} tablet servers are alive"
            ));
            return Err(CatalogError::new(CatalogErrorCode::ReplicationFactorTooHigh, error));
        }
        Ok(())
    }

    /// Number of servers that a new tablet of `replicas` replicas must have.
    pub(super) fn replicas_needed(&self, replicas: i32) -> usize {
        let replicas = replicas.max(1) as usize;
        if self.config.create_under_replicated { replicas / 2 + 1 } else { replicas }
    }

    /// Checks that a new replicated table does not put too many replicas on each server.
    fn check_tablet_count(&self, now: Instant, tablets: usize, replicas: i32) -> CatalogResult<()> {
        let per_server = self.config.create_replicas_per_server_max;
        let max = per_server.saturating_mul(self.live_servers(now));
        let wanted = tablets.saturating_mul(replicas as usize);
        if per_server > 0 && replicas > 1 && wanted > max {
            let error = Error::invalid(format!(
                "the requested number of tablet replicas is over the maximum permitted at creation time \
                 ({max}), more tablets can be added later with range partitions"
            ));
            return Err(CatalogError::new(CatalogErrorCode::TooManyTablets, error));
        }
        Ok(())
    }

    pub(super) fn check_name_free(&self, name: &str) -> CatalogResult<()> {
        match self.names.get(name) {
            None => Ok(()),
            Some(id) => {
                let error = Error::already_present(format!("table {name} already exists with id {id}"));
                Err(CatalogError::new(CatalogErrorCode::TableAlreadyPresent, error))
            }
        }
    }
}

impl TabletRecord {
    /// Creates a tablet without servers, entered `now` (microseconds since 1970).
    pub(super) fn new(
        table: TableId,
        partition: Partition,
        dimension_label: Option<String>,
        now: u64,
    ) -> TabletRecord {
        TabletRecord {
            table,
            partition,
            dimension_label,
            state: TabletLifecycle::Preparing,
            message: String::new(),
            since: now,
            consensus: Default::default(),
            doomed: Vec::new(),
        }
    }
}

impl Catalog {
    /// Notes once why a tablet has no servers: only `count` can take it. Placement is retried every second.
    pub(super) fn note_unplaced(&mut self, id: TabletId, count: usize, out: &mut CatalogEffects) {
        let tablet = &self.tablets[&id];
        let replicas = self.tables[&tablet.record.table].record.replicas;
        let needed = self.replicas_needed(replicas);
        let tablet = self.tablets.get_mut(&id).expect("the caller found it");
        let reason = format!("it needs {needed} tablet servers, {count} can take it");
        if tablet.record.message != reason {
            tablet.record.message.clone_from(&reason);
            self.dirty.insert(SystemRowKey::Tablet(id));
            out.notes.push(CatalogNote::TabletUnplaced { tablet: id, reason });
        }
    }
}
