//! DDL: create, open, alter, drop and list tables.

use std::collections::BTreeMap;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::schema::partition::{HashDimension, PartitionSchema};
use engine::schema::partition_range::PartitionRange;
use engine::schema::{ColumnSchema, Schema};
use engine::time::Instant;

use super::backoff::Backoff;
use super::{Client, Table};
use nyala_common::wire::{partition, schema};
use nyala_proto::kudu::ColumnSchemaDeltaPb;
use nyala_proto::kudu::master::{
    AlterTableRequestPb, AlterTableResponsePb, CreateTableRequestPb, CreateTableResponsePb,
    DeleteTableRequestPb, DeleteTableResponsePb, GetTableSchemaRequestPb, GetTableSchemaResponsePb,
    GetTableStatisticsRequestPb, GetTableStatisticsResponsePb, IsAlterTableDoneRequestPb,
    IsAlterTableDoneResponsePb, IsCreateTableDoneRequestPb, IsCreateTableDoneResponsePb, ListTablesRequestPb,
    ListTablesResponsePb, ListTabletServersRequestPb, ListTabletServersResponsePb, TableIdentifierPb,
    alter_table_request_pb as alter, list_tables_response_pb,
};

/// Application feature flags of the master.
const RANGE_PARTITION_BOUNDS: u32 = 1;
const ADD_DROP_RANGE_PARTITIONS: u32 = 2;
const RANGE_SPECIFIC_HASH_SCHEMA: u32 = 8;
const IMMUTABLE_COLUMN_ATTRIBUTE: u32 = 10;
const AUTO_INCREMENTING_COLUMN: u32 = 11;

/// Request to create a table.
#[derive(Debug, Clone)]
pub struct CreateTable {
    pub name: String,
    pub schema: Schema,
    pub partition: PartitionSchema,
    /// Range partitions; empty for one unbounded range.
    pub ranges: Vec<PartitionRange>,
    /// Replication factor; `None` for the cluster's default.
    pub replicas: Option<i32>,
    pub owner: Option<String>,
    pub comment: Option<String>,
    pub extra_config: BTreeMap<String, String>,
}

impl CreateTable {
    /// Creates a request without hash and range partitioning.
    pub fn new(name: impl Into<String>, schema: Schema) -> CreateTable {
        CreateTable {
            name: name.into(),
            schema,
            partition: PartitionSchema::default(),
            ranges: Vec::new(),
            replicas: None,
            owner: None,
            comment: None,
            extra_config: BTreeMap::new(),
        }
    }

    /// Adds hash partitioning over `buckets` by these key columns.
    pub fn hash(mut self, columns: &[&str], buckets: u32) -> Result<CreateTable> {
        let columns = columns.iter().map(|name| self.column(name)).collect::<Result<Vec<_>>>()?;
        self.partition.hash.push(HashDimension { columns, buckets, seed: 0 });
        Ok(self)
    }

    /// Sets range partitioning by these key columns.
    pub fn range(mut self, columns: &[&str]) -> Result<CreateTable> {
        self.partition.range_columns =
            columns.iter().map(|name| self.column(name)).collect::<Result<Vec<_>>>()?;
        Ok(self)
    }

    fn column(&self, name: &str) -> Result<engine::ids::ColumnId> {
        let missing = || Error::invalid(format!("unknown partition column {name:?}"));
        let index = self.schema.index_of_name(name).ok_or_else(missing)?;
        Ok(self.schema.columns()[index].id)
    }

    fn features(&self) -> Vec<u32> {
        let columns = self.schema.columns();
        let uses = [
            (RANGE_PARTITION_BOUNDS, !self.ranges.is_empty()),
            (RANGE_SPECIFIC_HASH_SCHEMA, !self.partition.custom.is_empty()),
            (IMMUTABLE_COLUMN_ATTRIBUTE, columns.iter().any(|column| column.immutable)),
            (AUTO_INCREMENTING_COLUMN, columns.iter().any(|column| column.auto_incrementing)),
        ];
        uses.iter().filter(|(_, used)| *used).map(|(feature, _)| *feature).collect()
    }

    fn to_pb(&self) -> CreateTableRequestPb {
        let mut schema = schema::schema_to_client_pb(&self.schema);
        schema.columns.iter_mut().for_each(|column| column.write_default_value = None);
        let mut partition_schema = partition::schema_to_pb(&self.partition, &self.schema);
        by_name(&mut partition_schema, &self.schema);
        let custom = !self.partition.custom.is_empty();
        let bounds = |range: &PartitionRange| {
            partition::range_bounds_to_pb(&self.partition, &self.schema, &range.lower, &range.upper)
        };
        let mut split_rows_range_bounds = None;
        if custom {
            // With custom hash schemas the request lists all ranges here, including those with the table's hash schema.
            for range in &self.ranges {
                if !self.partition.custom.iter().any(|custom| custom.lower == range.lower) {
                    let hash_schema = partition_schema.hash_schema.clone();
                    let range_bounds = Some(bounds(range));
                    partition_schema.custom_hash_schema_ranges.push(
                        nyala_proto::kudu::partition_schema_pb::RangeWithHashSchemaPb {
                            range_bounds,
                            hash_schema,
                        },
                    );
                }
            }
        } else if !self.ranges.is_empty() {
            split_rows_range_bounds = Some(partition::all_range_bounds_to_pb(
                &self.partition,
                &self.schema,
                self.ranges.iter().map(|range| (range.lower.as_slice(), range.upper.as_slice())),
            ));
        }
        CreateTableRequestPb {
            name: self.name.clone(),
            schema,
            split_rows_range_bounds,
            partition_schema: Some(partition_schema),
            num_replicas: self.replicas,
            owner: self.owner.clone(),
            extra_configs: self.extra_config.clone(),
            comment: self.comment.clone(),
            ..Default::default()
        }
    }
}

/// Replaces column ids by names, because columns in requests of clients have no ids.
fn by_name(pb: &mut nyala_proto::kudu::PartitionSchemaPb, schema: &Schema) {
    use nyala_proto::kudu::partition_schema_pb::column_identifier_pb::Identifier;
    let custom = pb.custom_hash_schema_ranges.iter_mut().flat_map(|range| &mut range.hash_schema);
    let hashed = pb.hash_schema.iter_mut().chain(custom).flat_map(|hash| &mut hash.columns);
    let ranged = pb.range_schema.iter_mut().flat_map(|range| &mut range.columns);
    for column in hashed.chain(ranged) {
        if let Some(Identifier::Id(id)) = column.identifier {
            let name = schema.by_id(engine::ids::ColumnId(id as u32)).map(|column| column.name.clone());
            column.identifier = name.map(Identifier::Name);
        }
    }
}

/// Entry of a table list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    pub id: String,
    pub name: String,
    pub live_rows: Option<u64>,
    pub tablets: Option<i32>,
    pub replicas: Option<i32>,
}

/// Sums over a table's tablets, some seconds old.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableStatistics {
    pub disk_bytes: i64,
    pub live_rows: Option<i64>,
}

/// One step of an alteration.
#[derive(Debug, Clone)]
pub enum AlterStep {
    AddColumn(ColumnSchema),
    DropColumn(String),
    RenameColumn {
        from: String,
        to: String,
    },
    /// Sets the default of rows written later, or removes it.
    SetDefault {
        column: String,
        default: Option<Vec<u8>>,
    },
    AddRange(PartitionRange),
    DropRange(PartitionRange),
}

/// A table that the masters have created, and whose tablets may not be running yet.
#[derive(Clone)]
#[must_use = "wait until it is running, or drop it from the cluster"]
pub struct StartingTable {
    client: Client,
    name: String,
    /// The id if the master told it: another client may drop the table meanwhile, and create one of its name.
    table: TableIdentifierPb,
    deadline: Instant,
}

impl StartingTable {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the id; `None` if the master did not tell it.
    pub fn id(&self) -> Option<String> {
        self.table.table_id.as_ref().map(|id| String::from_utf8_lossy(id).into_owned())
    }

    /// Waits until all tablets are running, up to the deadline of the creation. Dropping the future changes nothing in
    /// the cluster.
    pub async fn wait(&self) -> Result<Table> {
        let mut backoff = Backoff::new(self.deadline);
        loop {
            let request = IsCreateTableDoneRequestPb { table: self.table.clone() };
            let masters = &self.client.shared.masters;
            let done: IsCreateTableDoneResponsePb =
                masters.call("IsCreateTableDone", &request, self.deadline, &[]).await?;
            if done.done() {
                return self.client.open(self.table.clone()).await;
            }
            let what = format!("creating table {}", self.name);
            let waiting = Error::not_ready("some tablets are not running yet");
            backoff.failed(self.client.env(), &what, waiting).await?;
        }
    }
}

fn by_table_name(name: &str) -> TableIdentifierPb {
    TableIdentifierPb { table_id: None, table_name: Some(name.to_string()) }
}

fn by_table_id(id: Bytes) -> TableIdentifierPb {
    TableIdentifierPb { table_id: Some(id), table_name: None }
}

impl Client {
    /// Creates a table and waits until all its tablets are running. After an error there may be a table.
    pub async fn create_table(&self, create: &CreateTable) -> Result<Table> {
        self.start_table(create).await?.wait().await
    }

    /// Creates a table, and does not wait for its tablets.
    pub async fn start_table(&self, create: &CreateTable) -> Result<StartingTable> {
        let deadline = self.deadline();
        let request = create.to_pb();
        let masters = &self.shared.masters;
        let created: CreateTableResponsePb =
            masters.call("CreateTable", &request, deadline, &create.features()).await?;
        let table = created.table_id.map_or_else(|| by_table_name(&create.name), by_table_id);
        Ok(StartingTable { client: self.clone(), name: create.name.clone(), table, deadline })
    }

    /// Opens a table by name. Fails with `NotFound` if it does not exist. Rows of ranges that other clients have added
    /// before are found from then on.
    pub async fn open_table(&self, name: &str) -> Result<Table> {
        self.open(by_table_name(name)).await
    }

    pub(super) async fn open(&self, table: TableIdentifierPb) -> Result<Table> {
        let as_of = self.env().now().mono;
        let reply = self.table_schema(table, self.deadline()).await?;
        let table = Table::from_reply(self, &reply, as_of)?;
        self.forget_gaps(table.id());
        Ok(table)
    }

    /// Asks the masters for the schema and the partitioning of a table.
    pub(super) async fn table_schema(
        &self,
        table: TableIdentifierPb,
        deadline: Instant,
    ) -> Result<GetTableSchemaResponsePb> {
        let id = || table.table_id.as_ref().map(|id| String::from_utf8_lossy(id).into_owned());
        let name = table.table_name.clone().or_else(id).unwrap_or_default();
        let request = GetTableSchemaRequestPb { table };
        let called = self.shared.masters.call("GetTableSchema", &request, deadline, &[]).await;
        called.map_err(|error: Error| error.context(format!("opening table {name}")))
    }

    /// Drops a table. Fails with `NotFound` if it does not exist.
    pub async fn delete_table(&self, name: &str) -> Result<()> {
        self.delete(by_table_name(name)).await
    }

    /// Drops a table by its id, whatever its name is now. Fails with `NotFound` if it does not exist, also if another
    /// table has its name.
    pub async fn delete_table_by_id(&self, id: &str) -> Result<()> {
        self.delete(by_table_id(Bytes::copy_from_slice(id.as_bytes()))).await
    }

    async fn delete(&self, table: TableIdentifierPb) -> Result<()> {
        let request = DeleteTableRequestPb { table, ..Default::default() };
        let deadline = self.deadline();
        let _: DeleteTableResponsePb =
            self.shared.masters.call("DeleteTable", &request, deadline, &[]).await?;
        Ok(())
    }

    /// Lists the tables whose names contain `filter`, or all tables, sorted by name.
    pub async fn list_tables(&self, filter: Option<&str>) -> Result<Vec<TableInfo>> {
        let request = ListTablesRequestPb { name_filter: filter.map(str::to_string), ..Default::default() };
        let deadline = self.deadline();
        let reply: ListTablesResponsePb =
            self.shared.masters.call("ListTables", &request, deadline, &[]).await?;
        Ok(table_infos(&reply))
    }

    /// Returns the size and row count of a table.
    pub async fn table_statistics(&self, name: &str) -> Result<TableStatistics> {
        let request = GetTableStatisticsRequestPb { table: by_table_name(name) };
        let deadline = self.deadline();
        let reply: GetTableStatisticsResponsePb =
            self.shared.masters.call("GetTableStatistics", &request, deadline, &[]).await?;
        Ok(TableStatistics { disk_bytes: reply.on_disk_size(), live_rows: reply.live_row_count })
    }

    /// Returns the number of tablet servers known to the leader master.
    pub async fn tablet_servers(&self) -> Result<usize> {
        let request = ListTabletServersRequestPb::default();
        let deadline = self.deadline();
        let reply: ListTabletServersResponsePb =
            self.shared.masters.call("ListTabletServers", &request, deadline, &[]).await?;
        Ok(reply.servers.len())
    }

    /// Alters a table, all steps or none, and waits until all tablets have applied the change. Returns the reopened
    /// table.
    pub async fn alter_table(
        &self,
        table: &Table,
        steps: &[AlterStep],
        new_name: Option<&str>,
    ) -> Result<Table> {
        let deadline = self.deadline();
        let ranges =
            steps.iter().any(|step| matches!(step, AlterStep::AddRange(_) | AlterStep::DropRange(_)));
        let by_id = by_table_id(table.id_bytes());
        let request = AlterTableRequestPb {
            table: by_id.clone(),
            alter_schema_steps: steps.iter().map(|step| step_to_pb(table, step)).collect(),
            new_table_name: new_name.map(str::to_string),
            schema: ranges.then(|| table.info.client_schema.clone()),
            ..Default::default()
        };
        let features = if ranges { &[ADD_DROP_RANGE_PARTITIONS][..] } else { &[] };
        let masters = &self.shared.masters;
        let called: Result<AlterTableResponsePb> =
            masters.call("AlterTable", &request, deadline, features).await;
        // After an error, too: an attempt without a reply may have had its effect, and a later one found it done.
        if ranges {
            self.forget_all(table.id());
        }
        called?;
        let mut backoff = Backoff::new(deadline);
        loop {
            let request = IsAlterTableDoneRequestPb { table: by_id.clone() };
            let done: IsAlterTableDoneResponsePb =
                masters.call("IsAlterTableDone", &request, deadline, &[]).await?;
            if done.done() {
                return self.open(by_id).await;
            }
            let waiting = Error::not_ready("some tablets have not altered their schema yet");
            backoff.failed(self.env(), &format!("altering table {}", table.name()), waiting).await?;
        }
    }
}

/// Returns the tables of a list, sorted by name.
pub(super) fn table_infos(reply: &ListTablesResponsePb) -> Vec<TableInfo> {
    let info = |table: &list_tables_response_pb::TableInfo| TableInfo {
        id: String::from_utf8_lossy(&table.id).into_owned(),
        name: table.name.clone(),
        live_rows: table.live_row_count,
        tablets: table.num_tablets,
        replicas: table.num_replicas,
    };
    let mut tables: Vec<TableInfo> = reply.tables.iter().map(info).collect();
    tables.sort_by(|a, b| a.name.cmp(&b.name));
    tables
}

fn step_to_pb(table: &Table, step: &AlterStep) -> alter::Step {
    let bounds = |range: &PartitionRange| {
        let (partition, schema) = (table.partition_schema(), table.schema());
        Some(partition::range_bounds_to_pb(partition, schema, &range.lower, &range.upper))
    };
    let of = |kind: alter::StepType| alter::Step { r#type: Some(kind as i32), ..Default::default() };
    match step {
        AlterStep::AddColumn(column) => {
            let mut schema = schema::column_to_pb(column, false);
            schema.id = None;
            let add_column = Some(alter::AddColumn { schema });
            alter::Step { add_column, ..of(alter::StepType::AddColumn) }
        }
        AlterStep::DropColumn(name) => {
            let drop_column = Some(alter::DropColumn { name: name.clone() });
            alter::Step { drop_column, ..of(alter::StepType::DropColumn) }
        }
        AlterStep::RenameColumn { from, to } => {
            let rename = alter::RenameColumn { old_name: from.clone(), new_name: to.clone() };
            alter::Step { rename_column: Some(rename), ..of(alter::StepType::RenameColumn) }
        }
        AlterStep::SetDefault { column, default } => {
            let delta = ColumnSchemaDeltaPb {
                name: Some(column.clone()),
                default_value: default.clone().map(Bytes::from),
                remove_default: default.is_none().then_some(true),
                ..Default::default()
            };
            let alter_column = Some(alter::AlterColumn { delta: Some(delta) });
            alter::Step { alter_column, ..of(alter::StepType::AlterColumn) }
        }
        AlterStep::AddRange(range) => {
            let add = alter::AddRangePartition { range_bounds: bounds(range), ..Default::default() };
            alter::Step { add_range_partition: Some(add), ..of(alter::StepType::AddRangePartition) }
        }
        AlterStep::DropRange(range) => {
            let drop = alter::DropRangePartition { range_bounds: bounds(range) };
            alter::Step { drop_range_partition: Some(drop), ..of(alter::StepType::DropRangePartition) }
        }
    }
}
