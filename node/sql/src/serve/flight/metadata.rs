//! Metadata of the cluster as Flight SQL describes it: one catalog, one schema, tables, keys.

use std::sync::Arc;

use arrow_flight::sql::CommandGetTables;
use arrow_flight::sql::metadata::GetTablesBuilder;
use datafusion::arrow::array::{ArrayRef, AsArray, Int32Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType as ArrowType, Field, Schema as ArrowSchema, SchemaRef};
use futures_util::{StreamExt, TryStreamExt, stream};
use nyala_client::arrow::arrow_schema;
use nyala_client::{Client, ErrorKind};
use tonic::Status;

use super::super::super::catalog::{CATALOG, SCHEMA};
use super::super::super::dml;
use super::super::super::error::SqlResult;
use super::status::{flight_status, status};

/// Type of all tables.
pub(super) const TABLE: &str = "TABLE";

/// Column of the names in a list of tables.
const NAME: usize = 2;

/// Tables that are opened at a time.
const OPEN_MAX: usize = 16;

/// Returns the tables that a client asks for, with their columns if it wants them.
pub(super) async fn tables(client: &Client, query: CommandGetTables) -> Result<RecordBatch, Status> {
    let wants_columns = query.include_schema;
    let mut list = CommandGetTables { include_schema: false, ..query.clone() }.into_builder();
    for table in client.list_tables(None).await.map_err(status)? {
        let appended = list.append(CATALOG, SCHEMA, &table.name, TABLE, &ArrowSchema::empty());
        appended.map_err(flight_status)?;
    }
    let list = list.build().map_err(flight_status)?;
    if !wants_columns {
        return Ok(list);
    }
    let names = list.column(NAME).as_string::<i32>();
    let names: Vec<String> = names.iter().flatten().map(str::to_string).collect();
    let opened = stream::iter(names).map(|name| async move {
        match client.open_table(&name).await {
            Ok(table) => Ok(Some((name, arrow_schema(table.schema().columns())))),
            // Dropped since the list was made.
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    });
    let opened: Vec<_> = opened.buffered(OPEN_MAX).try_collect().await.map_err(status)?;
    let mut tables: GetTablesBuilder = query.into_builder();
    for (name, schema) in opened.into_iter().flatten() {
        tables.append(CATALOG, SCHEMA, name, TABLE, &schema).map_err(flight_status)?;
    }
    tables.build().map_err(flight_status)
}

fn text(name: &str, nullable: bool) -> Field {
    Field::new(name, ArrowType::Utf8, nullable)
}

/// Returns the columns of a list of primary keys.
pub(super) fn primary_keys_schema() -> SchemaRef {
    Arc::new(ArrowSchema::new(vec![
        text("catalog_name", true),
        text("db_schema_name", true),
        text("table_name", false),
        text("column_name", false),
        text("key_name", true),
        Field::new("key_sequence", ArrowType::Int32, false),
    ]))
}

/// Returns the columns of the primary key of a table.
pub(super) async fn primary_keys(client: &Client, table: &str) -> SqlResult<RecordBatch> {
    let table = dml::open(client, table).await?;
    let names: Vec<&str> = table.schema().key_columns().iter().map(|column| column.name.as_str()).collect();
    let same = |value: &str| Arc::new(StringArray::from(vec![value; names.len()])) as ArrayRef;
    let sequence = (1..=names.len() as i32).collect::<Vec<_>>();
    let columns = vec![
        same(CATALOG),
        same(SCHEMA),
        same(table.name()),
        Arc::new(StringArray::from(names.clone())) as ArrayRef,
        Arc::new(StringArray::from(vec![None::<&str>; names.len()])),
        Arc::new(Int32Array::from(sequence)),
    ];
    Ok(RecordBatch::try_new(primary_keys_schema(), columns)?)
}

/// Returns the columns of a list of foreign keys. There are none, so that the list is empty.
pub(super) fn foreign_keys_schema() -> SchemaRef {
    let table_of = |side: &str| {
        [
            text(&format!("{side}_catalog_name"), true),
            text(&format!("{side}_db_schema_name"), true),
            text(&format!("{side}_table_name"), false),
            text(&format!("{side}_column_name"), false),
        ]
    };
    let rest = [
        Field::new("key_sequence", ArrowType::Int32, false),
        text("fk_key_name", true),
        text("pk_key_name", true),
        Field::new("update_rule", ArrowType::UInt8, false),
        Field::new("delete_rule", ArrowType::UInt8, false),
    ];
    let fields = table_of("pk").into_iter().chain(table_of("fk")).chain(rest);
    Arc::new(ArrowSchema::new(fields.collect::<Vec<_>>()))
}
