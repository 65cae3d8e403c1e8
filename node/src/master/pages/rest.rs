//! Objects of the REST catalog of Kudu 1.19, as far as it reads: tables, one table, the leader.
//!
//! Messages have the names of their fields, enums the names of their values, and defaults of columns are not shown.

use engine::catalog::{Catalog, TableEntry, TableLifecycle};
use engine::ids::TableId;
use serde_json::{Map, Value, json};

use super::servers::http_address;
use crate::master::proto::extra_to_pb;
use nyala_common::wire::{partition, schema};
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::master::ListMastersResponsePb;
use nyala_proto::kudu::partition_schema_pb::column_identifier_pb::Identifier;
use nyala_proto::kudu::partition_schema_pb::{ColumnIdentifierPb, HashBucketSchemaPb};
use nyala_proto::kudu::{ColumnSchemaPb, PartitionSchemaPb};

/// Text in the place of a cell.
const REDACTED: &str = "<redacted>";

fn running(catalog: &Catalog) -> impl Iterator<Item = TableEntry<'_>> {
    catalog.tables().filter(|table| table.record.state == TableLifecycle::Running)
}

/// Returns the description of these paths, in the form of OpenAPI 3.
pub(super) fn spec() -> Value {
    let get = |summary: &str, answer: Value, parameters: Value| {
        let error = |text: &str| json!({ "description": text });
        json!({ "get": {
            "summary": summary,
            "parameters": parameters,
            "responses": {
                "200": { "description": summary, "content": { "application/json": { "schema": answer } } },
                "404": error("the table does not exist"),
                "503": error("another master leads, or the catalog is being loaded"),
            },
        } })
    };
    let object = |names: &[&str]| {
        let member = |name: &&str| ((*name).to_owned(), json!({}));
        json!({ "type": "object", "properties": names.iter().map(member).collect::<Map<_, _>>() })
    };
    let of_table = ["name", "id", "schema", "partition_schema", "owner", "comment", "extra_config"];
    let id = json!([{ "name": "table_id", "in": "path", "required": true, "schema": { "type": "string" } }]);
    json!({
        "openapi": "3.0.3",
        "info": { "title": "nyala's catalog, to read", "version": env!("CARGO_PKG_VERSION") },
        "paths": {
            "/api/v1/tables": get("ids and names of all tables", object(&["tables"]), json!([])),
            "/api/v1/tables/{table_id}": get("one table", object(&of_table), id),
            "/api/v1/leader": get("address of the leading master", object(&["leader"]), json!([])),
        },
    })
}

/// Returns ids and names of the tables that the request sees.
pub(super) fn tables(catalog: &Catalog, sees: impl Fn(&TableEntry<'_>) -> bool) -> Value {
    let table =
        |table: TableEntry<'_>| json!({ "table_id": table.id.to_string(), "table_name": table.record.name });
    json!({ "tables": running(catalog).filter(sees).map(table).collect::<Vec<_>>() })
}

/// Returns a table. One that the request does not see is absent.
pub(super) fn table(catalog: &Catalog, id: TableId, sees: impl Fn(&TableEntry<'_>) -> bool) -> Option<Value> {
    let table = running(catalog).find(|table| table.id == id).filter(sees)?;
    let (record, schema) = (table.record, schema::schema_to_pb(table.schema()));
    let partitions = partition::schema_to_pb(&record.partition_schema, table.schema());
    let extra = extra_to_pb(&record.extra);
    let mut extra_config = Map::new();
    put(&mut extra_config, "history_max_age_sec", extra.history_max_age_sec);
    put(&mut extra_config, "maintenance_priority", extra.maintenance_priority);
    put(&mut extra_config, "disable_compaction", extra.disable_compaction);
    Some(json!({
        "name": record.name,
        "id": id.to_string(),
        "schema": { "columns": schema.columns.iter().map(column).collect::<Vec<_>>() },
        "partition_schema": partition_schema(&partitions),
        "owner": record.owner,
        "comment": record.comment,
        "extra_config": extra_config,
    }))
}

/// Adds a field that is set.
fn put(object: &mut Map<String, Value>, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        object.insert(name.to_owned(), value.into());
    }
}

fn column(column: &ColumnSchemaPb) -> Value {
    let mut object = Map::new();
    put(&mut object, "id", column.id);
    put(&mut object, "name", Some(column.name.as_str()));
    put(&mut object, "type", Some(column.r#type().as_str_name()));
    put(&mut object, "is_key", column.is_key);
    put(&mut object, "is_nullable", column.is_nullable);
    put(&mut object, "read_default_value", column.read_default_value.as_ref().map(|_| REDACTED));
    put(&mut object, "write_default_value", column.write_default_value.as_ref().map(|_| REDACTED));
    put(&mut object, "encoding", column.encoding.map(|_| column.encoding().as_str_name()));
    put(&mut object, "compression", column.compression.map(|_| column.compression().as_str_name()));
    put(&mut object, "cfile_block_size", column.cfile_block_size);
    if let Some(of_type) = &column.type_attributes {
        let mut attributes = Map::new();
        put(&mut attributes, "precision", of_type.precision);
        put(&mut attributes, "scale", of_type.scale);
        put(&mut attributes, "length", of_type.length);
        object.insert("type_attributes".to_owned(), attributes.into());
    }
    put(&mut object, "comment", column.comment.as_deref());
    put(&mut object, "immutable", column.immutable);
    put(&mut object, "is_auto_incrementing", column.is_auto_incrementing);
    object.into()
}

fn partition_schema(partitions: &PartitionSchemaPb) -> Value {
    let mut object = Map::new();
    let hash = |dimensions: &[HashBucketSchemaPb]| dimensions.iter().map(hash_dimension).collect::<Vec<_>>();
    if !partitions.hash_schema.is_empty() {
        object.insert("hash_schema".to_owned(), hash(&partitions.hash_schema).into());
    }
    if let Some(range) = &partitions.range_schema {
        object.insert("range_schema".to_owned(), json!({ "columns": identifiers(&range.columns) }));
    }
    let custom = partitions.custom_hash_schema_ranges.iter();
    let custom: Vec<Value> = custom
        .map(|range| json!({ "range_bounds": REDACTED, "hash_schema": hash(&range.hash_schema) }))
        .collect();
    if !custom.is_empty() {
        object.insert("custom_hash_schema_ranges".to_owned(), custom.into());
    }
    object.into()
}

fn hash_dimension(dimension: &HashBucketSchemaPb) -> Value {
    let mut object = Map::new();
    object.insert("columns".to_owned(), identifiers(&dimension.columns).into());
    put(&mut object, "num_buckets", Some(dimension.num_buckets));
    put(&mut object, "seed", dimension.seed);
    object.into()
}

fn identifiers(columns: &[ColumnIdentifierPb]) -> Vec<Value> {
    let identifier = |column: &ColumnIdentifierPb| match &column.identifier {
        Some(Identifier::Id(id)) => json!({ "id": id }),
        Some(Identifier::Name(name)) => json!({ "name": name }),
        None => json!({}),
    };
    columns.iter().map(identifier).collect()
}

/// Returns the address of the leading master's web port; none if no master is known to lead, or if it has no port.
pub(super) fn leader(masters: &ListMastersResponsePb) -> Option<Value> {
    let leads = |master: &&nyala_proto::kudu::ServerEntryPb| {
        master.error.is_none() && master.role == Some(Role::Leader as i32)
    };
    let registration = masters.masters.iter().find(leads)?.registration.as_ref()?;
    let address = registration.http_addresses.first()?;
    Some(json!({ "leader": http_address(registration.https_enabled(), address) }))
}
