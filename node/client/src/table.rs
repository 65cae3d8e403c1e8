//! An open table.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::schema::Schema;
use engine::schema::partition::PartitionSchema;
use engine::schema::predicate::Predicate;
use engine::schema::row_ops::ClientCell;
use engine::sync::Mutex;
use engine::time::Instant;

use super::predicate::{Comparison, SimplifiedPredicate};
use super::{Client, cell_text};
use nyala_common::wire::{partition, schema};
use nyala_proto::kudu::SchemaPb;
use nyala_proto::kudu::master::GetTableSchemaResponsePb;

/// The newest partitioning of a table that is known, which all clones of an open table share.
#[derive(Debug, Clone)]
pub(super) struct KnownPartitioning {
    pub(super) schema: Arc<PartitionSchema>,
    /// Time at which the masters were asked for it.
    pub(super) as_of: Instant,
}

/// An open table with its schema at the time of opening. Cheap to clone.
#[derive(Clone)]
pub struct Table {
    pub(super) client: Client,
    pub(super) info: Arc<TableDetails>,
}

pub(super) struct TableDetails {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) schema: Schema,
    /// Schema as sent in requests, without column ids.
    pub(super) client_schema: SchemaPb,
    partition_schema: Arc<PartitionSchema>,
    /// Partitioning by which scans prune.
    pub(super) partitioning: Mutex<KnownPartitioning>,
    num_replicas: i32,
    owner: String,
    comment: String,
    extra_config: BTreeMap<String, String>,
}

/// Returns the schema and the partition schema of a table.
pub(super) fn schemas_from_reply(reply: &GetTableSchemaResponsePb) -> Result<(Schema, PartitionSchema)> {
    let missing = || Error::invalid("the master's response lacks the table's schema");
    let schema = schema::schema_from_pb(reply.schema.as_ref().ok_or_else(missing)?)?;
    let none = Default::default();
    let partition = partition::schema_from_pb(reply.partition_schema.as_ref().unwrap_or(&none), &schema)?;
    Ok((schema, partition))
}

impl Table {
    /// Builds a table from a response to a request that was sent at `as_of`.
    pub(super) fn from_reply(
        client: &Client,
        reply: &GetTableSchemaResponsePb,
        as_of: Instant,
    ) -> Result<Table> {
        let (schema, partition_schema) = schemas_from_reply(reply)?;
        let partition_schema = Arc::new(partition_schema);
        let id = String::from_utf8_lossy(reply.table_id()).into_owned();
        let info = TableDetails {
            id,
            name: reply.table_name().to_string(),
            client_schema: schema::schema_to_client_pb(&schema),
            schema,
            partitioning: Mutex::new(KnownPartitioning { schema: partition_schema.clone(), as_of }),
            partition_schema,
            num_replicas: reply.num_replicas(),
            owner: reply.owner().to_string(),
            comment: reply.comment().to_string(),
            extra_config: reply.extra_configs.clone(),
        };
        client.shared.authz_tokens.set(&info.id, reply.authz_token.clone());
        Ok(Table { client: client.clone(), info: Arc::new(info) })
    }

    pub fn id(&self) -> &str {
        &self.info.id
    }

    pub fn name(&self) -> &str {
        &self.info.name
    }

    pub fn schema(&self) -> &Schema {
        &self.info.schema
    }

    /// Returns the partition schema at the time of opening.
    pub fn partition_schema(&self) -> &PartitionSchema {
        &self.info.partition_schema
    }

    pub fn num_replicas(&self) -> i32 {
        self.info.num_replicas
    }

    pub fn owner(&self) -> &str {
        &self.info.owner
    }

    pub fn comment(&self) -> &str {
        &self.info.comment
    }

    /// Returns the settings of the table, by name (`kudu.table.…`).
    pub fn extra_config(&self) -> &BTreeMap<String, String> {
        &self.info.extra_config
    }

    /// Drops cached tablets of the table. Later lookups ask the masters, and so see ranges added or dropped since,
    /// whatever their hash buckets.
    pub fn forget_locations(&self) {
        self.client.forget_all(&self.info.id);
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn id_bytes(&self) -> Bytes {
        Bytes::copy_from_slice(self.info.id.as_bytes())
    }

    /// Builds a predicate on a column from a value given as text; see [`cell_text::parse_cell`].
    pub fn compare(&self, column: &str, comparison: Comparison, text: &str) -> Result<SimplifiedPredicate> {
        let missing = || Error::not_found(format!("table {} has no column {column:?}", self.name()));
        let index = self.schema().index_of_name(column).ok_or_else(missing)?;
        let column = &self.schema().columns()[index];
        let cell = cell_text::parse_cell(column, text)
            .map_err(|error| error.context(format!("column {:?}", column.name)))?;
        Ok(super::predicate::compare(column, comparison, cell))
    }

    /// Returns the predicates that select the row with this key.
    pub fn key_equals(&self, key: &[&[u8]]) -> Vec<Predicate> {
        use engine::schema::predicate::PredicateKind::Equal;
        let columns = self.schema().key_columns().iter().zip(key);
        columns.map(|(column, cell)| Predicate::new(column.id, Equal(cell.to_vec()))).collect()
    }

    /// Returns a row without set cells.
    pub fn blank_row(&self) -> Vec<ClientCell<'static>> {
        vec![ClientCell::Unset; self.schema().columns().len()]
    }
}
