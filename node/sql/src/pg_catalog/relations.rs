//! Rows of the relations of `pg_catalog`.

use datafusion::arrow::array::RecordBatch;
use engine::schema::{ColumnSchema, DataType};
use nyala_client::{Client, Table};

use super::super::describe::default;
use super::super::error::SqlResult;
use super::columns::{Columns, DATABASE, PG_CATALOG, PUBLIC};

/// Ids of schemas and of the access methods of tables and keys, as Postgres has them.
const PG_CATALOG_ID: i64 = 11;
const SCHEMA_ID: i64 = 2200;
const DATABASE_ID: i64 = 5;
const HEAP: i64 = 2;
const BTREE: i64 = 403;

/// Smallest id of a table, and of the key of a table.
const TABLE_ID_MIN: i64 = 16_384;
const KEY_ID_MIN: i64 = 1 << 31;

/// Types of columns: id, name, SQL name, bytes (-1: varying), category.
const TYPES: [(i64, &str, &str, i64, &str); 13] = [
    (16, "bool", "boolean", 1, "B"),
    (17, "bytea", "bytea", -1, "U"),
    (20, "int8", "bigint", 8, "N"),
    (21, "int2", "smallint", 2, "N"),
    (23, "int4", "integer", 4, "N"),
    (25, "text", "text", -1, "S"),
    (700, "float4", "real", 4, "N"),
    (701, "float8", "double precision", 8, "N"),
    (1043, "varchar", "character varying", -1, "S"),
    (1082, "date", "date", 4, "D"),
    (1114, "timestamp", "timestamp without time zone", 8, "D"),
    (1184, "timestamptz", "timestamp with time zone", 8, "D"),
    (1700, "numeric", "numeric", -1, "N"),
];

/// Relations without a row, because the cluster has no such objects.
pub(super) const EMPTY: [&str; 23] = [
    "pg_collation",
    "pg_enum",
    "pg_event_trigger",
    "pg_extension",
    "pg_foreign_server",
    "pg_foreign_table",
    "pg_inherits",
    "pg_matviews",
    "pg_partitioned_table",
    "pg_policy",
    "pg_proc",
    "pg_publication",
    "pg_publication_namespace",
    "pg_publication_rel",
    "pg_rewrite",
    "pg_sequence",
    "pg_shdescription",
    "pg_stat_activity",
    "pg_statistic_ext",
    "pg_subscription",
    "pg_tablespace",
    "pg_trigger",
    "pg_views",
];

/// Relations with rows.
pub(super) const FILLED: [&str; 13] = [
    "pg_am",
    "pg_attrdef",
    "pg_attribute",
    "pg_class",
    "pg_constraint",
    "pg_database",
    "pg_description",
    "pg_index",
    "pg_namespace",
    "pg_roles",
    "pg_tables",
    "pg_type",
    "pg_user",
];

/// Returns true if the rows of a relation are about tables.
pub(super) fn describes_tables(name: &str) -> bool {
    const TABLES: [&str; 7] = [
        "pg_attrdef",
        "pg_attribute",
        "pg_class",
        "pg_constraint",
        "pg_description",
        "pg_index",
        "pg_tables",
    ];
    TABLES.contains(&name)
}

/// Returns the SQL names of types by their ids.
pub(super) fn type_names() -> impl Iterator<Item = (i64, &'static str)> {
    TYPES.iter().map(|(id, _, sql, _, _)| (*id, *sql))
}

/// Returns the rows of a relation; `None` if there is none of this name.
pub(super) fn relation(name: &str, client: &Client, tables: &[Table]) -> Option<SqlResult<RecordBatch>> {
    let user = client.config().user.as_str();
    let columns = match name {
        "pg_am" => access_methods(),
        "pg_attrdef" => defaults(tables),
        "pg_attribute" => attributes(tables),
        "pg_class" => classes(tables),
        "pg_constraint" => constraints(tables),
        "pg_database" => databases(user),
        "pg_description" => descriptions(tables),
        "pg_index" => indexes(tables),
        "pg_namespace" => namespaces(user),
        "pg_roles" | "pg_user" => roles(user),
        "pg_tables" => Columns::new(tables.len())
            .all_text(&["schemaname"], Some(PUBLIC))
            .texts("tablename", tables.iter().map(|table| Some(table.name().to_string())))
            .texts("tableowner", tables.iter().map(|table| Some(table.owner().to_string()))),
        "pg_type" => types(user),
        _ => return None,
    };
    Some(columns.build())
}

/// Returns the id of a table, from Kudu's.
fn table_id(table: &Table) -> i64 {
    let digits = table.id().get(..8).unwrap_or_default();
    TABLE_ID_MIN + (i64::from_str_radix(digits, 16).unwrap_or_default() & 0x3fff_ffff)
}

fn key_id(table: &Table) -> i64 {
    KEY_ID_MIN + table_id(table)
}

fn key_name(table: &Table) -> String {
    format!("{}_pkey", table.name())
}

/// Returns the key columns as a list.
fn key_columns(table: &Table) -> String {
    let names = table.schema().key_columns().iter().map(|column| column.name.as_str());
    names.collect::<Vec<_>>().join(", ")
}

/// Returns all columns with their tables and their numbers from 1.
fn all_columns(tables: &[Table]) -> Vec<(&Table, i64, &ColumnSchema)> {
    let columns = |table: &'_ Table| table.schema().columns().len();
    let numbered = tables.iter().flat_map(|table| (0..columns(table)).map(move |at| (table, at)));
    numbered.map(|(table, at)| (table, at as i64 + 1, &table.schema().columns()[at])).collect()
}

/// Returns the id of a column's type, and what modifies it.
fn type_of(column: &ColumnSchema) -> (i64, i64) {
    /// Bytes that Postgres adds to lengths in modifiers.
    const HEADER: i64 = 4;
    let attributes = column.attributes;
    match column.ty {
        DataType::Int8 | DataType::Int16 => (21, -1),
        DataType::Int32 => (23, -1),
        DataType::Int64 => (20, -1),
        DataType::Bool => (16, -1),
        DataType::Float => (700, -1),
        DataType::Double => (701, -1),
        DataType::Binary => (17, -1),
        DataType::Varchar => (1043, i64::from(attributes.length) + HEADER),
        DataType::Date => (1082, -1),
        DataType::UnixtimeMicros => (1184, -1),
        DataType::Decimal32 | DataType::Decimal64 | DataType::Decimal128 => {
            (1700, (i64::from(attributes.precision) << 16) + i64::from(attributes.scale) + HEADER)
        }
        _ => (25, -1),
    }
}

fn namespaces(user: &str) -> Columns {
    let names = [PG_CATALOG, PUBLIC, "information_schema"];
    Columns::new(names.len())
        .numbers("oid", [PG_CATALOG_ID, SCHEMA_ID, SCHEMA_ID + 1])
        .texts("nspname", names.map(|name| Some(name.to_string())))
        .all_text(&["nspowner"], Some(user))
        .all_text(&["nspacl"], None)
}

fn access_methods() -> Columns {
    Columns::new(2)
        .numbers("oid", [HEAP, BTREE])
        .texts("amname", ["heap", "btree"].map(|name| Some(name.to_string())))
        .texts("amtype", ["t", "i"].map(|kind| Some(kind.to_string())))
}

fn databases(user: &str) -> Columns {
    Columns::new(1)
        .all_number(&["oid"], DATABASE_ID)
        .all_text(&["datname"], Some(DATABASE))
        .all_text(&["datdba"], Some(user))
        .all_number(&["encoding"], 6)
        .all_text(&["datlocprovider"], Some("c"))
        .all_text(&["datcollate", "datctype"], Some("C.UTF-8"))
        .all_text(&["daticulocale", "daticurules", "datlocale", "datacl"], None)
        .all_flag(&["datistemplate"], false)
        .all_flag(&["datallowconn"], true)
        .all_number(&["dattablespace"], 0)
        .all_number(&["datconnlimit"], -1)
}

fn roles(user: &str) -> Columns {
    Columns::new(1)
        .all_number(&["oid", "usesysid"], 10)
        .all_text(&["rolname", "usename"], Some(user))
        .all_flag(&["rolsuper", "rolcreaterole", "rolcreatedb", "rolreplication", "rolbypassrls"], false)
        .all_flag(&["usesuper", "usecreatedb"], false)
        .all_flag(&["rolinherit", "rolcanlogin"], true)
        .all_number(&["rolconnlimit"], -1)
        .all_text(&["rolvaliduntil"], None)
}

fn types(user: &str) -> Columns {
    let kinds = TYPES.iter();
    Columns::new(TYPES.len())
        .numbers("oid", kinds.clone().map(|(id, ..)| *id))
        .texts("typname", kinds.clone().map(|(_, name, ..)| Some(name.to_string())))
        .numbers("typlen", kinds.clone().map(|(_, _, _, len, _)| *len))
        .texts("typcategory", kinds.map(|(.., category)| Some(category.to_string())))
        .all_text(&["typowner"], Some(user))
        .all_number(&["typnamespace"], PG_CATALOG_ID)
        .all_text(&["typtype"], Some("b"))
        .all_text(&["typdelim"], Some(","))
        .all_text(&["typdefault", "typacl"], None)
        .all_number(&["typrelid", "typelem", "typarray", "typbasetype", "typndims", "typcollation"], 0)
        .all_number(&["typtypmod"], -1)
        .all_flag(&["typnotnull"], false)
}

/// A table, or the key of one.
struct Class<'a> {
    id: i64,
    name: String,
    owner: &'a str,
    kind: &'static str,
    access_method: i64,
    columns: usize,
}

fn class_of_table(table: &Table) -> Class<'_> {
    Class {
        id: table_id(table),
        name: table.name().to_string(),
        owner: table.owner(),
        kind: "r",
        access_method: HEAP,
        columns: table.schema().columns().len(),
    }
}

fn class_of_key(table: &Table) -> Class<'_> {
    let columns = table.schema().key_columns().len();
    let (id, name, owner) = (key_id(table), key_name(table), table.owner());
    Class { id, name, owner, kind: "i", access_method: BTREE, columns }
}

fn classes(tables: &[Table]) -> Columns {
    let all: Vec<Class> =
        tables.iter().flat_map(|table| [class_of_table(table), class_of_key(table)]).collect();
    Columns::new(all.len())
        .numbers("oid", all.iter().map(|class| class.id))
        .texts("relname", all.iter().map(|class| Some(class.name.clone())))
        .texts("relowner", all.iter().map(|class| Some(class.owner.to_string())))
        .texts("relkind", all.iter().map(|class| Some(class.kind.to_string())))
        .numbers("relam", all.iter().map(|class| class.access_method))
        .numbers("relnatts", all.iter().map(|class| class.columns as i64))
        .flags("relhasindex", all.iter().map(|class| class.kind == "r"))
        .all_number(&["relnamespace"], SCHEMA_ID)
        .all_number(&["reltype", "reloftype", "reltablespace", "reltoastrelid", "relchecks", "relpages"], 0)
        .all_number(&["reltuples"], -1)
        .all_flag(&["relisshared", "relhasrules", "relhastriggers", "relhassubclass"], false)
        .all_flag(&["relrowsecurity", "relforcerowsecurity", "relispartition"], false)
        .all_text(&["relpersistence"], Some("p"))
        .all_text(&["relreplident"], Some("d"))
        .all_text(&["relacl", "reloptions", "relpartbound"], None)
}

fn attributes(tables: &[Table]) -> Columns {
    let all = all_columns(tables);
    let has_default = |column: &ColumnSchema| column.write_default.is_some();
    Columns::new(all.len())
        .numbers("attrelid", all.iter().map(|(table, ..)| table_id(table)))
        .texts("attname", all.iter().map(|(.., column)| Some(column.name.clone())))
        .numbers("attnum", all.iter().map(|(_, number, _)| *number))
        .numbers("atttypid", all.iter().map(|(.., column)| type_of(column).0))
        .numbers("atttypmod", all.iter().map(|(.., column)| type_of(column).1))
        .flags("attnotnull", all.iter().map(|(.., column)| !column.nullable))
        .flags("atthasdef", all.iter().map(|(.., column)| has_default(column)))
        .all_number(&["attlen"], -1)
        .all_number(&["attndims", "attcollation"], 0)
        .all_text(&["attidentity", "attgenerated"], Some(""))
        .all_text(&["attacl", "attoptions"], None)
        .all_flag(&["attisdropped", "atthasmissing"], false)
        .all_flag(&["attislocal"], true)
}

fn defaults(tables: &[Table]) -> Columns {
    let all: Vec<_> =
        all_columns(tables).into_iter().filter(|(.., column)| column.write_default.is_some()).collect();
    Columns::new(all.len())
        .numbers("oid", all.iter().map(|(table, number, _)| table_id(table) + number))
        .numbers("adrelid", all.iter().map(|(table, ..)| table_id(table)))
        .numbers("adnum", all.iter().map(|(_, number, _)| *number))
        .texts("adbin", all.iter().map(|(.., column)| default(column)))
}

fn descriptions(tables: &[Table]) -> Columns {
    /// Id of pg_class, to which the described objects belong.
    const PG_CLASS: i64 = 1259;
    let of_tables = tables.iter().map(|table| (table_id(table), 0, table.comment().to_string()));
    let columns = all_columns(tables).into_iter();
    let of_columns = columns.map(|(table, number, column)| (table_id(table), number, column.comment.clone()));
    let all: Vec<_> = of_tables.chain(of_columns).filter(|(.., text)| !text.is_empty()).collect();
    Columns::new(all.len())
        .numbers("objoid", all.iter().map(|(id, ..)| *id))
        .numbers("objsubid", all.iter().map(|(_, number, _)| *number))
        .texts("description", all.iter().map(|(.., text)| Some(text.clone())))
        .all_number(&["classoid"], PG_CLASS)
}

fn indexes(tables: &[Table]) -> Columns {
    let keys = |table: &Table| table.schema().key_columns().len() as i64;
    let numbers = |table: &Table| {
        let numbers = (1..=keys(table)).map(|number| number.to_string());
        Some(numbers.collect::<Vec<_>>().join(" "))
    };
    let definition = |table: &Table| {
        let (name, columns) = (table.name(), key_columns(table));
        Some(format!("CREATE UNIQUE INDEX {} ON {name} USING btree ({columns})", key_name(table)))
    };
    Columns::new(tables.len())
        .numbers("indexrelid", tables.iter().map(key_id))
        .numbers("indrelid", tables.iter().map(table_id))
        .numbers("indnatts", tables.iter().map(keys))
        .numbers("indnkeyatts", tables.iter().map(keys))
        .texts("indkey", tables.iter().map(numbers))
        .texts("indexdef", tables.iter().map(definition))
        .all_flag(&["indisunique", "indisprimary", "indisvalid", "indisready", "indislive"], true)
        .all_flag(&["indisclustered", "indisreplident", "indisexclusion"], false)
        .all_text(&["indexprs", "indpred", "indoption"], None)
}

fn constraints(tables: &[Table]) -> Columns {
    let definition = |table: &Table| Some(format!("PRIMARY KEY ({})", key_columns(table)));
    Columns::new(tables.len())
        .numbers("oid", tables.iter().map(key_id))
        .texts("conname", tables.iter().map(|table| Some(key_name(table))))
        .numbers("conrelid", tables.iter().map(table_id))
        .numbers("conindid", tables.iter().map(key_id))
        .texts("condef", tables.iter().map(definition))
        .all_number(&["connamespace"], SCHEMA_ID)
        .all_number(&["confrelid", "contypid", "conparentid"], 0)
        .all_text(&["contype"], Some("p"))
        .all_flag(&["condeferrable", "condeferred"], false)
        .all_flag(&["convalidated", "conislocal"], true)
        .all_text(&["conkey", "confkey", "confupdtype", "confdeltype"], None)
}
