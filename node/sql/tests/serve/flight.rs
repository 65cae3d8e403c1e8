//! Arrow Flight SQL, with arrow-flight's own client.

use std::sync::Arc;

use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::client::{FlightSqlServiceClient, PreparedStatement};
use arrow_flight::sql::{
    CommandGetDbSchemas, CommandGetImportedKeys, CommandGetPrimaryKeys, CommandGetTables,
    CommandStatementIngest, SqlInfo, TableDefinitionOptions, TableExistsOption, TableNotExistOption,
};
use arrow_flight::{FlightData, FlightInfo, HandshakeRequest};
use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType, Int64Type, Schema as ArrowSchema};
use datafusion::arrow::util::pretty::pretty_format_batches;
use futures_util::{StreamExt, TryStreamExt, stream};
use nyala_sql::serve::{Passwords, ServeConfig, SqlServer};
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request};

use super::bed::{Bed, CREATE_HALF, block_on, flood, open_scanners, until};

pub(crate) type FlightClient = FlightSqlServiceClient<Channel>;

pub(crate) fn flight_config() -> ServeConfig {
    ServeConfig { flight_listen: Some(([127, 0, 0, 1], 0).into()), ..ServeConfig::default() }
}

pub(crate) async fn connect(server: &SqlServer) -> FlightClient {
    let address = server.flight_address().expect("Flight SQL is served");
    let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
    FlightSqlServiceClient::new(channel.connect().await.expect("a server"))
}

/// Fetches a result.
pub(crate) async fn fetch(
    client: &mut FlightClient,
    info: FlightInfo,
) -> Result<FlightRecordBatchStream, FlightError> {
    let ticket = info.endpoint[0].ticket.clone().expect("a ticket");
    client.do_get(ticket).await
}

/// Returns the rows of a result as a table.
async fn table_of(client: &mut FlightClient, info: FlightInfo) -> String {
    let batches: Vec<RecordBatch> =
        fetch(client, info).await.expect("a result").try_collect().await.expect("rows");
    pretty_format_batches(&batches).expect("a table").to_string()
}

async fn query(client: &mut FlightClient, sql: &str) -> String {
    let info = client.execute(sql.to_string(), None).await.expect(sql);
    match info.endpoint.is_empty() {
        true => format!("{} rows written", info.total_records),
        false => table_of(client, info).await,
    }
}

/// Returns the message of a failure, without the details of gRPC.
pub(crate) fn message(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[test]
fn clients_of_flight_sql_are_served() {
    block_on(async {
        let bed = Bed::start().await;
        let server = bed.serve(flight_config()).await;
        let mut client = connect(&server).await;
        statements_read_and_write(&mut client).await;
        results_have_the_schema_that_was_described(&mut client).await;
        prepared_statements_take_parameters(&mut client).await;
        tables_and_keys_are_described(&mut client).await;
        batches_are_ingested(&mut client).await;
        drop(client);
        server.stop().await;
        scans_end_with_their_client(&bed).await;
        a_server_that_stops_leaves_no_half_filled_table(&bed).await;
        limits_and_passwords_hold(&bed).await;
        connections_without_a_call_lock_no_client_out(&bed).await;
        calls_are_admitted_before_their_messages(&bed).await;
        bed.stop().await;
    });
}

async fn statements_read_and_write(client: &mut FlightClient) {
    // Clients that do not know what a statement is send all of them as queries.
    let create =
        "CREATE TABLE cities (id BIGINT PRIMARY KEY, name VARCHAR, people DECIMAL(9, 2), at TIMESTAMP)
                  PARTITION BY HASH (id) PARTITIONS 2";
    assert_eq!(query(client, create).await, "0 rows written");
    let insert =
        "INSERT INTO cities VALUES (1, 'Lima', 10.25, '2026-01-31T12:00:00.000001Z'), (2, 'Oslo', 7, NULL)";
    assert_eq!(client.execute_update(insert.to_string(), None).await.expect("rows"), 2);
    let update = "UPDATE cities SET people = 7 WHERE id = 2";
    assert_eq!(query(client, update).await, "1 rows written");
    let rows = query(client, "SELECT * FROM cities ORDER BY id").await;
    let expected = "\
+----+------+--------+-----------------------------+
| id | name | people | at                          |
+----+------+--------+-----------------------------+
| 1  | Lima | 10.25  | 2026-01-31T12:00:00.000001Z |
| 2  | Oslo | 7.00   |                             |
+----+------+--------+-----------------------------+";
    assert_eq!(rows, expected);
    let errors = [
        ("SELEC 1", "(SQLSTATE 42601)"),
        ("SELECT * FROM nothere", "table nothere does not exist"),
        ("SELECT 1; SELECT 2", "expected one statement at a time"),
        ("SELECT $1", "0 values for 1 parameters; prepare the statement"),
        ("COPY cities TO '/tmp/never.csv'", "(SQLSTATE 42501)"),
    ];
    for (sql, expected) in errors {
        let failed = match client.execute(sql.to_string(), None).await {
            Ok(info) => fetch(client, info).await.err().map(message),
            Err(error) => Some(message(error)),
        };
        let failed = failed.expect(sql);
        assert!(failed.contains(expected), "{sql}: {failed}");
    }
    let failed = client.execute_update("SELECT 1".to_string(), None).await.expect_err("rows");
    assert!(message(failed).contains("execute it as a query"));
}

async fn results_have_the_schema_that_was_described(client: &mut FlightClient) {
    let sql = "SELECT CASE WHEN v > 1 THEN 0 ELSE CAST(v AS DOUBLE) END AS c FROM (VALUES (1), (2)) AS t (v)";
    let info = client.execute(sql.to_string(), None).await.expect("a query");
    let described = info.clone().try_decode_schema().expect("a schema");
    assert_eq!(described.field(0).data_type(), &DataType::Float64);
    let rows: Vec<RecordBatch> =
        fetch(client, info).await.expect("a result").try_collect().await.expect("rows");
    assert_eq!(rows[0].schema().field(0).data_type(), &DataType::Float64);
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .expect("equal lengths")
}

async fn rows_of(client: &mut FlightClient, statement: &mut PreparedStatement<Channel>) -> String {
    let info = statement.execute().await.expect("a query");
    table_of(client, info).await
}

async fn prepared_statements_take_parameters(client: &mut FlightClient) {
    let sql = "INSERT INTO cities (id, name) VALUES (?, ?)";
    let mut insert = client.prepare(sql.to_string(), None).await.expect("a write");
    let types = |schema: &ArrowSchema| {
        let names = schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type()));
        names.collect::<Vec<_>>().join(", ")
    };
    assert_eq!(types(insert.parameter_schema().expect("a schema")), "$1 Int64, $2 Utf8");
    assert_eq!(types(insert.dataset_schema().expect("a schema")), "");
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![3, 4, 5]));
    let names: ArrayRef = Arc::new(StringArray::from(vec![Some("it's"), None, Some("Rome")]));
    insert.set_parameters(batch(vec![("a", ids), ("b", names)])).expect("two columns");
    assert_eq!(insert.execute_update().await.expect("rows"), 3);
    insert.close().await.expect("an open statement");

    let sql = "SELECT id, name FROM cities WHERE id > $1 AND name IS NOT NULL ORDER BY id";
    let mut select = client.prepare(sql.to_string(), None).await.expect("a query");
    assert_eq!(types(select.dataset_schema().expect("a schema")), "id Int64, name Utf8");
    for (least, count) in [(2, 2), (4, 1), (9, 0)] {
        select.set_parameters(batch(vec![("a", Arc::new(Int64Array::from(vec![least])))])).expect("a column");
        let rows = rows_of(client, &mut select).await;
        assert_eq!(rows.lines().filter(|line| line.contains("it's") || line.contains("Rome")).count(), count);
    }
    let two: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    select.set_parameters(batch(vec![("a", two)])).expect("a column");
    let failed = message(select.execute().await.expect_err("two rows"));
    assert!(failed.contains("a query takes one row of parameters"), "{failed}");
    select.close().await.expect("an open statement");
}

async fn tables_and_keys_are_described(client: &mut FlightClient) {
    let create =
        "CREATE TABLE pairs (b INT, a VARCHAR, c INT, PRIMARY KEY (b, a)) PARTITION BY HASH (a) PARTITIONS 2";
    client.execute_update(create.to_string(), None).await.expect("a table");
    let info = client.get_catalogs().await.expect("catalogs");
    assert!(table_of(client, info).await.contains("| nyala "));
    let info = client.get_db_schemas(CommandGetDbSchemas::default()).await.expect("schemas");
    assert!(table_of(client, info).await.contains("| nyala        | public "));
    let info = client.get_table_types().await.expect("types");
    assert!(table_of(client, info).await.contains("| TABLE "));
    let tables = |pattern: &str, include_schema| CommandGetTables {
        table_name_filter_pattern: Some(pattern.to_string()),
        include_schema,
        ..CommandGetTables::default()
    };
    let info = client.get_tables(tables("p%", false)).await.expect("tables");
    let listed = table_of(client, info).await;
    assert!(listed.contains("| nyala        | public         | pairs      | TABLE "), "{listed}");
    assert!(!listed.contains("cities"), "{listed}");
    let info = client.get_tables(tables("%", true)).await.expect("tables");
    let listed: Vec<RecordBatch> =
        fetch(client, info).await.expect("tables").try_collect().await.expect("rows");
    assert_eq!((listed[0].num_rows(), listed[0].num_columns()), (2, 5));
    let keys = CommandGetPrimaryKeys { table: "pairs".to_string(), ..CommandGetPrimaryKeys::default() };
    let info = client.get_primary_keys(keys).await.expect("keys");
    let keys = table_of(client, info).await;
    let line = |column, number| {
        format!("| nyala        | public         | pairs      | {column}           |          | {number}  ")
    };
    assert!(keys.contains(&line('b', 1)) && keys.contains(&line('a', 2)), "{keys}");
    let imported = CommandGetImportedKeys { table: "pairs".to_string(), ..CommandGetImportedKeys::default() };
    let info = client.get_imported_keys(imported).await.expect("keys");
    assert_eq!(table_of(client, info).await, "++\n++");
    let info = client.get_sql_info(vec![SqlInfo::FlightSqlServerName]).await.expect("facts");
    assert!(table_of(client, info).await.contains("nyala"));
}

async fn batches_are_ingested(client: &mut FlightClient) {
    let ingest = |table: &str, if_not_exist: TableNotExistOption| CommandStatementIngest {
        table_definition_options: Some(TableDefinitionOptions {
            if_not_exist: if_not_exist.into(),
            if_exists: TableExistsOption::Append.into(),
        }),
        table: table.to_string(),
        ..CommandStatementIngest::default()
    };
    let part = |from: i64| {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(from..from + 1000));
        Ok(batch(vec![("id", ids)]))
    };
    let append = ingest("cities", TableNotExistOption::Fail);
    let parts = stream::iter([part(1000), part(2000)]);
    assert_eq!(client.execute_ingest(append.clone(), parts).await.expect("rows"), 2000);
    assert!(query(client, "SELECT COUNT(*) FROM cities WHERE id >= 1000").await.contains("| 2000 "));
    let failed = client.execute_ingest(append, stream::iter([part(2500)])).await.expect_err("old keys");
    assert!(message(failed).contains("UPSERT INTO replaces rows"));
    let create = ingest("new", TableNotExistOption::Create);
    let failed = client.execute_ingest(create, stream::iter([part(0)])).await.expect_err("no table");
    assert!(message(failed).contains("a new table needs a primary key"));
}

async fn scans_end_with_their_client(bed: &Bed) {
    bed.fill_big().await;
    let server = bed.serve(flight_config()).await;
    let mut client = connect(&server).await;
    let info = client.execute("SELECT k, pad FROM big".to_string(), None).await.expect("a query");
    let mut rows = fetch(&mut client, info).await.expect("a result");
    let first = rows.next().await.expect("a batch").expect("rows");
    assert!(!first.column(0).as_primitive::<Int64Type>().is_empty());
    // The rest waits for the reader.
    assert!(open_scanners(bed).await > 0, "the scan is complete before its rows are read");
    drop(rows);
    until(bed, "a scan that nobody reads is closed", |open| open == 0).await;
    // The connection is usable, and ends with the server.
    let info = client.execute("SELECT k, pad FROM big".to_string(), None).await.expect("a query");
    let mut rows = fetch(&mut client, info).await.expect("a result");
    rows.next().await.expect("a batch").expect("rows");
    assert_eq!(server.connections(), 1);
    server.stop().await;
    until(bed, "the scan of a server that has stopped is closed", |open| open == 0).await;
    let mut rest = rows.collect::<Vec<_>>().await;
    assert!(rest.pop().expect("an end").is_err(), "the stream of a server that has stopped is complete");
}

async fn a_server_that_stops_leaves_no_half_filled_table(bed: &Bed) {
    let program = bed.start_program(flight_config()).await;
    let mut client = connect(&program.server).await;
    let created = program.end_during(bed, client.execute(CREATE_HALF.to_string(), None)).await;
    created.expect_err("the server stops");
}

async fn connections_without_a_call_lock_no_client_out(bed: &Bed) {
    let passwords = Passwords::parse(bed.client.env(), "ann:secret\n").expect("a good file");
    let config = ServeConfig { connections_max: 1, passwords: Some(Arc::new(passwords)), ..flight_config() };
    let server = bed.serve(config).await;
    let address = server.flight_address().expect("Flight SQL is served");
    let _silent = flood(address, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    let mut client = connect(&server).await;
    client.handshake("ann", "secret").await.expect("the right password");
    let _more = flood(address, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert!(query(&mut client, "SELECT 1 AS one").await.contains("| 1 "), "a client that was let in stays");
    server.stop().await;
}

/// The messages of these calls never come.
async fn calls_are_admitted_before_their_messages(bed: &Bed) {
    let passwords = Passwords::parse(bed.client.env(), "ann:secret\n").expect("a good file");
    let server = bed.serve(ServeConfig { passwords: Some(Arc::new(passwords)), ..flight_config() }).await;
    let address = server.flight_address().expect("Flight SQL is served");
    let channel = Channel::from_shared(format!("http://{address}")).expect("an address").connect().await;
    let mut client = FlightServiceClient::new(channel.expect("a server"));
    let refused = client.do_put(stream::pending::<FlightData>()).await.expect_err("no token");
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(refused.message().contains("call Handshake with a user name and a password first"), "{refused}");
    let mut forged = Request::new(stream::pending::<FlightData>());
    forged.metadata_mut().insert("authorization", MetadataValue::from_static("Bearer forged"));
    let refused = client.do_put(forged).await.expect_err("a forged token");
    assert!(refused.message().contains("the token is unknown or has expired"), "{refused}");
    // ann:secret
    let credentials = MetadataValue::from_static("Basic YW5uOnNlY3JldA==");
    let mut login = Request::new(stream::pending::<HandshakeRequest>());
    login.metadata_mut().insert("authorization", credentials);
    client.handshake(login).await.expect("the right password");
    server.stop().await;
}

async fn limits_and_passwords_hold(bed: &Bed) {
    let passwords = Passwords::parse(bed.client.env(), "ann:secret\nbob:secret\n").expect("a good file");
    let limited = ServeConfig {
        connections_max: 1,
        message_bytes_max: 10_000,
        passwords: Some(Arc::new(passwords)),
        ..flight_config()
    };
    let server = bed.serve(limited).await;
    let mut client = connect(&server).await;
    let refused = message(client.execute("SELECT 1".to_string(), None).await.expect_err("no token"));
    assert!(refused.contains("call Handshake with a user name and a password first"), "{refused}");
    let refused = message(client.handshake("ann", "wrong").await.expect_err("a wrong password"));
    assert!(refused.contains("user ann: wrong password"), "{refused}");
    client.set_token("forged".to_string());
    let refused = message(client.execute("SELECT 1".to_string(), None).await.expect_err("no token"));
    assert!(refused.contains("the token is unknown or has expired"), "{refused}");

    // This client would send the old token instead of the name.
    client.clear_token();
    client.handshake("ann", "secret").await.expect("the right password");
    assert!(query(&mut client, "SELECT 1 AS one").await.contains("| 1 "));
    let mut statement = client.prepare("SELECT 2 AS two".to_string(), None).await.expect("a query");
    let info = statement.execute().await.expect("a query");
    // A handle is of no use to another user.
    client.clear_token();
    client.handshake("bob", "secret").await.expect("the right password");
    let refused = message(fetch(&mut client, info).await.expect_err("ann's statement"));
    assert!(refused.contains("the prepared statement is closed or has expired"), "{refused}");
    statement.close().await.expect("an open statement");

    let long = format!("SELECT '{}'", "x".repeat(10_000));
    client.execute(long, None).await.expect_err("a message that is too long");
    let address = server.flight_address().expect("Flight SQL is served");
    let second = Channel::from_shared(format!("http://{address}")).expect("an address").connect().await;
    if let Ok(channel) = second {
        let refused = FlightSqlServiceClient::new(channel).handshake("ann", "secret").await;
        refused.expect_err("a second connection");
    }
    server.stop().await;
}
