//! Alteration of tables: all steps run on a draft, which takes effect only if every one of them succeeds.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::columns::{change_column, check_column_count, check_comment, check_name, check_owner, new_column};
use super::commands::{AlterStep, AlterTable, CommandReply, RangeOps, RequestedColumn, RequestedHash};
use super::delete::soft_deleted;
use super::draft_ranges::{DraftRanges, DraftTablet};
use super::error::{CatalogError, CatalogErrorCode, CatalogResult};
use super::partition_setup;
use super::record::{SystemRowKey, TableLifecycle, TableRecord, TabletLifecycle};
use super::record_limits;
use super::tablet_budget::TabletBudget;
use super::task_queue::TaskKind;
use super::{Catalog, CatalogConfig, CatalogEffects, CatalogNote};
use crate::error::Error;
use crate::ids::{ColumnId, TableId, TabletId};
use crate::schema::partition::{Partition, PartitionSchema};
use crate::schema::partition_range::PartitionRange;
use crate::schema::row_ops::ClientColumn;
use crate::schema::{ColumnSchema, Schema};
use crate::time::ClockReading;

/// The altered table before it takes effect.
struct TableDraft<'a> {
    config: &'a CatalogConfig,
    record: TableRecord,
    columns: Vec<ColumnSchema>,
    keys: usize,
    partition_schema: PartitionSchema,
    /// Columns for bounds; absent before the first range step, and after a step that changes the columns.
    bounds: Option<Arc<BoundColumns>>,
    ranges: DraftRanges,
    dropped: Vec<TabletId>,
    budget: TabletBudget,
}

/// Columns as the bounds of ranges refer to them.
struct BoundColumns {
    /// Schema of the altered table, without defaults and comments.
    schema: Schema,
    /// Columns that bounds are encoded with.
    client: Vec<ClientColumn>,
}

impl Catalog {
    pub(super) fn alter_table(
        &mut self,
        now: ClockReading,
        request: AlterTable,
        out: &mut CatalogEffects,
    ) -> CatalogResult<CommandReply> {
        let id = self.find(&request.table)?;
        let record = &self.tables[&id].record;
        if record.state != TableLifecycle::Running {
            return Err(soft_deleted(&record.name));
        }
        let mut draft = self.draft(id);
        for step in &request.steps {
            draft.step(step, &request.client_columns)?;
        }
        draft.finish_schema()?;
        self.alter_attributes(now, &mut draft.record, &request)?;
        self.check_record_bytes(&draft)?;
        let (record, added, dropped) = (draft.record, draft.ranges.into_added(), draft.dropped);
        let version = self.commit_alteration(now, id, record, added, dropped, out);
        Ok(CommandReply::Altered { table: id, version })
    }

    fn check_record_bytes(&self, draft: &TableDraft<'_>) -> CatalogResult<()> {
        record_limits::check_table(&draft.record)?;
        if !draft.ranges.tablets().any(|tablet| matches!(tablet, DraftTablet::New(..))) {
            return Ok(());
        }
        let tablets = draft.ranges.tablets().map(|tablet| match tablet {
            DraftTablet::Old(id, partition) => {
                (partition, self.tablets[id].record.dimension_label.as_deref())
            }
            DraftTablet::New(partition, label) => (partition, label.as_deref()),
        });
        record_limits::check_tablets(&draft.record.name, tablets)
    }

    fn draft(&self, id: TableId) -> TableDraft<'_> {
        let table = &self.tables[&id];
        let mut ranges = DraftRanges::default();
        for tablet in table.tablets.values() {
            ranges.add_old(*tablet, self.tablets[tablet].record.partition.clone());
        }
        TableDraft {
            config: &self.config,
            record: table.record.clone(),
            columns: table.record.schema.columns().to_vec(),
            keys: table.record.schema.num_key_columns(),
            partition_schema: PartitionSchema::clone(&table.record.partition_schema),
            bounds: None,
            ranges,
            dropped: Vec::new(),
            budget: TabletBudget::default(),
        }
    }

    fn alter_attributes(
        &self,
        now: ClockReading,
        record: &mut TableRecord,
        request: &AlterTable,
    ) -> CatalogResult<()> {
        if let Some(name) = &request.new_name {
            check_name("table", name, &self.config)?;
            if *name != record.name {
                self.check_name_free(name)?;
            }
            record.name.clone_from(name);
        }
        if let Some(owner) = &request.new_owner {
            check_owner(owner, &self.config)?;
            record.owner.clone_from(owner);
        }
        if let Some(comment) = &request.new_comment {
            check_comment("table", comment, &self.config)?;
            record.comment.clone_from(comment);
        }
        record.extra = record.extra.changed(&request.new_extra_configs)?;
        if let Some(replicas) = request.replicas {
            self.check_replicas(now.mono, replicas)?;
            record.replicas = replicas;
        }
        if request.disk_size_limit.is_some() || request.row_count_limit.is_some() {
            self.alter_limits(record, request)?;
        }
        Ok(())
    }

    fn alter_limits(&self, record: &mut TableRecord, request: &AlterTable) -> CatalogResult<()> {
        if !self.config.table_write_limits {
            let message = "tables have no limits on this server: table write limits are not enabled";
            return Err(CatalogError::from(Error::unsupported(message)));
        }
        for (limit, value) in [
            (&mut record.disk_size_limit, request.disk_size_limit),
            (&mut record.row_count_limit, request.row_count_limit),
        ] {
            match value {
                None => {}
                Some(-1) => *limit = None,
                Some(value) if value >= 0 => *limit = Some(value),
                Some(value) => {
                    let message = format!("a limit is at least 0, or -1 for none, not {value}");
                    return Err(CatalogError::invalid(message));
                }
            }
        }
        Ok(())
    }

    /// Replaces the table by the draft. Returns its version.
    fn commit_alteration(
        &mut self,
        now: ClockReading,
        id: TableId,
        mut record: TableRecord,
        added: Vec<(Partition, Option<String>)>,
        dropped: Vec<TabletId>,
        out: &mut CatalogEffects,
    ) -> u32 {
        let old = &self.tables[&id].record;
        let touches_tablets = !same_for_tablets(old, &record);
        let changed = touches_tablets || !added.is_empty() || !dropped.is_empty();
        if !changed {
            return old.version;
        }
        let (old_schema, old_name) = (old.schema.clone(), old.name.clone());
        record.altered = now.wall.micros;
        if touches_tablets {
            record.version += 1;
        }
        // New tablets start at schema version 0 and may have to catch up, too.
        if touches_tablets || (!added.is_empty() && record.version > 0) {
            record.applied_schema.get_or_insert(old_schema);
        }
        let version = record.version;
        if record.name != old_name {
            self.names.remove(&old_name);
            self.names.insert(record.name.clone(), id);
        }
        out.notes.push(CatalogNote::TableAltered { table: id, name: record.name.clone(), version });
        let table = self.tables.get_mut(&id).expect("found by the caller");
        table.record = record;
        let gone: BTreeSet<TabletId> = dropped.iter().copied().collect();
        table.tablets.retain(|_, tablet| !gone.contains(tablet));
        self.dirty.insert(SystemRowKey::Table(id));
        let reason = format!("Partition dropped at {}", super::delete::utc(now.wall.micros));
        for tablet in dropped {
            self.end_tablet(now, tablet, TabletLifecycle::Deleted, &reason);
        }
        self.add_partitions(now, id, added, out);
        if touches_tablets {
            self.spread_alteration(now, id, out);
        } else {
            // An earlier alteration may have waited only for the tablets just dropped.
            self.finish_alteration(id, out);
        }
        version
    }

    /// Sends the leader of each running tablet the table's new schema, name and configuration.
    pub(super) fn spread_alteration(&mut self, now: ClockReading, id: TableId, out: &mut CatalogEffects) {
        let tablets: Vec<TabletId> = self.tables[&id].tablets.values().copied().collect();
        for tablet in tablets {
            let record = &self.tablets[&tablet].record;
            if let (TabletLifecycle::Running, Some(leader)) = (record.state, record.consensus.leader) {
                self.add_task(now, TaskKind::Alter, tablet, leader);
            }
        }
        self.finish_alteration(id, out);
    }
}

/// Returns true if the difference between the two concerns no tablet.
fn same_for_tablets(old: &TableRecord, new: &TableRecord) -> bool {
    old.schema == new.schema
        && old.name == new.name
        && old.owner == new.owner
        && old.comment == new.comment
        && old.extra == new.extra
        && old.replicas == new.replicas
        && old.disk_size_limit == new.disk_size_limit
        && old.row_count_limit == new.row_count_limit
}

impl TableDraft<'_> {
    fn step(&mut self, step: &AlterStep, client: &[RequestedColumn]) -> CatalogResult<()> {
        if !matches!(step, AlterStep::AddRange { .. } | AlterStep::DropRange { .. }) {
            self.bounds = None;
        }
        match step {
            AlterStep::AddColumn(column) => self.add_column(column),
            AlterStep::DropColumn(name) => self.drop_column(name),
            AlterStep::RenameColumn { from, to } => self.rename_column(from, to),
            AlterStep::ChangeColumn(change) => {
                let at = self.index(&change.name)?;
                change_column(&mut self.columns[at], change, self.config)?;
                match &change.new_name {
                    Some(to) if *to != change.name => self.rename_column(&change.name, to),
                    _ => Ok(()),
                }
            }
            AlterStep::AddRange { bounds, hash, dimension_label } => {
                self.add_range(bounds, hash.as_deref(), dimension_label, client)
            }
            AlterStep::DropRange { bounds } => self.drop_range(bounds, client),
        }
    }

    fn index(&self, name: &str) -> CatalogResult<usize> {
        self.columns.iter().position(|column| column.name == name).ok_or_else(|| {
            let error = Error::not_found(format!("The specified column does not exist: {name}"));
            CatalogError::new(CatalogErrorCode::InvalidSchema, error)
        })
    }

    fn check_free(&self, name: &str) -> CatalogResult<()> {
        if self.columns.iter().any(|column| column.name == name) {
            let error = Error::already_present(format!("The column already exists: {name}"));
            return Err(CatalogError::new(CatalogErrorCode::InvalidSchema, error));
        }
        Ok(())
    }

    fn add_column(&mut self, request: &RequestedColumn) -> CatalogResult<()> {
        let name = &request.column.name;
        self.check_free(name)?;
        if request.is_key {
            return Err(CatalogError::schema(format!("column {name:?} cannot be added to the primary key")));
        }
        let column = new_column(request, ColumnId(self.record.next_column_id), self.config)?;
        if !column.nullable && column.read_default.is_none() {
            let message = format!("column `{name}`: NOT NULL columns must have a default");
            return Err(CatalogError::schema(message));
        }
        check_column_count(self.columns.len() + 1, self.config)?;
        self.record.next_column_id += 1;
        self.columns.push(column);
        Ok(())
    }

    fn drop_column(&mut self, name: &str) -> CatalogResult<()> {
        let at = self.index(name)?;
        if at < self.keys {
            return Err(CatalogError::schema(format!("cannot remove a key column: {name}")));
        }
        self.columns.remove(at);
        Ok(())
    }

    fn rename_column(&mut self, from: &str, to: &str) -> CatalogResult<()> {
        let at = self.index(from)?;
        check_name("column", to, self.config)?;
        if to == from {
            return Ok(());
        }
        self.check_free(to)?;
        if self.columns[at].auto_incrementing || to == super::AUTO_INCREMENTING_ID {
            return Err(CatalogError::schema(format!("column {from:?} cannot be renamed to {to:?}")));
        }
        self.columns[at].name = to.to_string();
        Ok(())
    }

    fn add_range(
        &mut self,
        bounds: &RangeOps,
        hash: Option<&[RequestedHash]>,
        label: &Option<String>,
        client: &[RequestedColumn],
    ) -> CatalogResult<()> {
        let columns = self.bound_columns(client)?;
        let range = self.requested_range(&columns, bounds)?;
        if let Some(other) = self.ranges.overlapping(&range) {
            let shown = self.show(&columns.schema, &range);
            return Err(if *other == range {
                let message = format!("range partition already exists: {shown}");
                CatalogError::from(Error::already_present(message))
            } else {
                CatalogError::invalid(format!("new range partition conflicts with existing one: {shown}"))
            });
        }
        partition_setup::set_range_hash(&columns.schema, &mut self.partition_schema, &range, hash)?;
        self.budget.add(&self.partition_schema, &range, label.as_deref())?;
        let partitions = self.partition_schema.partitions_of(&range);
        self.ranges.add_new(range, partitions, label);
        Ok(())
    }

    fn drop_range(&mut self, bounds: &RangeOps, client: &[RequestedColumn]) -> CatalogResult<()> {
        let columns = self.bound_columns(client)?;
        let range = self.requested_range(&columns, bounds)?;
        let Some(tablets) = self.ranges.remove(&range) else {
            let shown = self.show(&columns.schema, &range);
            return Err(CatalogError::invalid(format!("no range partition to drop: {shown}")));
        };
        self.dropped.extend(tablets.iter().filter_map(|tablet| match tablet {
            DraftTablet::Old(id, _) => Some(*id),
            DraftTablet::New(..) => None,
        }));
        self.partition_schema.forget_custom(&range);
        Ok(())
    }

    fn requested_range(&self, columns: &BoundColumns, bounds: &RangeOps) -> CatalogResult<PartitionRange> {
        partition_setup::requested_range(&columns.schema, &self.partition_schema, &columns.client, bounds)
    }

    /// Returns the columns for bounds. They are built once for all range steps between two column steps, because a
    /// request may have many steps and many columns.
    fn bound_columns(&mut self, client: &[RequestedColumn]) -> CatalogResult<Arc<BoundColumns>> {
        if let Some(columns) = &self.bounds {
            return Ok(columns.clone());
        }
        let plain = |column: &ColumnSchema| ColumnSchema {
            attributes: column.attributes,
            nullable: column.nullable,
            auto_incrementing: column.auto_incrementing,
            ..ColumnSchema::new(column.id.0, &column.name, column.ty)
        };
        let schema = Schema::new(self.columns.iter().map(plain).collect(), self.keys)?;
        let client = partition_setup::bind_columns(&schema, client);
        Ok(self.bounds.insert(Arc::new(BoundColumns { schema, client })).clone())
    }

    fn show(&self, schema: &Schema, range: &PartitionRange) -> String {
        self.partition_schema.show_bounds(schema, range)
    }

    fn finish_schema(&mut self) -> CatalogResult<()> {
        let schema = Schema::new(self.columns.clone(), self.keys)?;
        if schema != *self.record.schema {
            self.record.schema = Arc::new(schema);
        }
        self.record.partition_schema = Arc::new(self.partition_schema.clone());
        Ok(())
    }
}
