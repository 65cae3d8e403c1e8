//! DDL over the wire: errors as clients see them, and the state after a restart.

use expect_test::expect;

use super::*;
use nyala_common::env::partitionable_net::PartitionableNet;
use nyala_common::env::testing::hosts;
use nyala_proto::kudu::master::alter_table_request_pb::{
    AddColumn, AddRangePartition, DropColumn, Step, StepType,
};
use nyala_proto::kudu::partition_schema_pb::RangeWithHashSchemaPb;

fn alter(name: &str, steps: Vec<Step>) -> AlterTableRequestPb {
    AlterTableRequestPb {
        table: by_name(name),
        alter_schema_steps: steps,
        schema: Some(table("").schema),
        ..Default::default()
    }
}

fn add_column(column: ColumnSchemaPb) -> Step {
    Step {
        r#type: Some(StepType::AddColumn as i32),
        add_column: Some(AddColumn { schema: column }),
        ..Default::default()
    }
}

fn drop_column(name: &str) -> Step {
    Step {
        r#type: Some(StepType::DropColumn as i32),
        drop_column: Some(DropColumn { name: name.to_string() }),
        ..Default::default()
    }
}

fn add_range(lower: i32, upper: i32) -> Step {
    Step {
        r#type: Some(StepType::AddRangePartition as i32),
        add_range_partition: Some(AddRangePartition {
            range_bounds: Some(bounds(&[(lower, upper)])),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn changed(change: impl FnOnce(&mut CreateTableRequestPb)) -> CreateTableRequestPb {
    let mut request = table("t");
    change(&mut request);
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_create_table() {
    let master = Fixture::start().await;
    let mut reported = vec![master.create_error(&table("t")).await];
    master.heartbeat(SERVER, Vec::new()).await;
    let requests = [
        changed(|t| t.name.clear()),
        changed(|t| t.schema.columns[0].id = Some(0)),
        changed(|t| t.schema.columns[0].r#type = DataType::Float as i32),
        changed(|t| t.schema.columns[0].is_nullable = Some(true)),
        changed(|t| t.schema.columns[0].encoding = Some(3)),
        changed(|t| t.schema.columns[1].encoding = Some(4)),
        changed(|t| t.schema.columns[1].r#type = DataType::IsDeleted as i32),
        changed(|t| t.schema.columns[1].name = "k".to_string()),
        changed(|t| t.partition_schema.as_mut().expect("set").hash_schema[0].num_buckets = 1),
        changed(|t| {
            t.partition_schema.as_mut().expect("set").hash_schema[0].columns[0] = identifier("x");
        }),
        changed(|t| t.num_replicas = Some(0)),
        changed(|t| t.num_replicas = Some(2)),
        changed(|t| t.num_replicas = Some(3)),
        changed(|t| drop(t.extra_configs.insert("kudu.table.colour".to_string(), "red".to_string()))),
        changed(|t| t.split_rows_range_bounds = Some(bounds(&[(0, 10), (5, 15)]))),
        table("t"),
        table("t"),
    ];
    for request in &requests {
        reported.push(master.create_error(request).await);
    }
    let reported =
        reported.iter().map(|line| line.replace(&first_id(&master, line), "ID")).collect::<Vec<_>>();
    expect![[r#"
        REPLICATION_FACTOR_TOO_HIGH + INVALID_ARGUMENT: not enough live tablet servers to create a table with the requested replication factor 1; 0 tablet servers are alive
        INVALID_SCHEMA + INVALID_ARGUMENT: invalid table name: empty string not a valid identifier
        INVALID_SCHEMA + INVALID_ARGUMENT: column "k" may not carry an id; the server gives ids
        INVALID_SCHEMA + INVALID_ARGUMENT: key column "k" may not have type FLOAT
        UNKNOWN_ERROR + INVALID_ARGUMENT: Bad schema: Nullable key columns are not supported: k
        INVALID_SCHEMA + NOT_SUPPORTED: column "k": encoding number 3 is not supported
        INVALID_SCHEMA + NOT_SUPPORTED: invalid encoding for column 'v': encoding RLE not supported for type STRING
        UNKNOWN_ERROR + INVALID_ARGUMENT: column "v" may not be of the virtual type IS_DELETED
        UNKNOWN_ERROR + INVALID_ARGUMENT: duplicate column name "k"
        INVALID_SCHEMA + INVALID_ARGUMENT: must have at least two hash buckets
        INVALID_SCHEMA + INVALID_ARGUMENT: unknown hash column "x"
        ILLEGAL_REPLICATION_FACTOR + INVALID_ARGUMENT: illegal replication factor 0: minimum allowed replication factor is 1 (controlled by --min_num_replicas)
        EVEN_REPLICATION_FACTOR + INVALID_ARGUMENT: illegal replication factor 2: replication factor must be odd
        REPLICATION_FACTOR_TOO_HIGH + INVALID_ARGUMENT: not enough live tablet servers to create a table with the requested replication factor 3; 1 tablet servers are alive
        UNKNOWN_ERROR + INVALID_ARGUMENT: "kudu.table.colour" is not a table setting; there are kudu.table.history_max_age_sec, kudu.table.maintenance_priority and kudu.table.disable_compaction
        UNKNOWN_ERROR + INVALID_ARGUMENT: overlapping range partitions
        ok
        TABLE_ALREADY_PRESENT + ALREADY_PRESENT: table t already exists with id ID
    "#]].assert_eq(&(reported.join("\n") + "\n"));
}

/// Returns the first id in a line, if there is one.
fn first_id(_: &Fixture, line: &str) -> String {
    let word = line.split_whitespace().find(|word| Uuid::parse(word.as_bytes()).is_ok());
    word.unwrap_or("no id").to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_alter_table() {
    let master = Fixture::start().await;
    master.heartbeat(SERVER, Vec::new()).await;
    let table_id = master.create(&table("t")).await;
    let missing = master.alter_error(&alter("x", Vec::new())).await;
    let unnamed = AlterTableRequestPb { table: TableIdentifierPb::default(), ..alter("", Vec::new()) };
    let mut reported = vec![missing, master.alter_error(&unnamed).await];
    let requests = [
        alter("t", vec![drop_column("k")]),
        alter("t", vec![drop_column("x")]),
        alter("t", vec![add_column(column("v", DataType::Int32, false))]),
        alter("t", vec![add_column(column("n", DataType::Int32, false))]),
        alter("t", vec![add_range(0, 10)]),
        alter("t", vec![add_range(5, 15)]),
        alter("t", vec![Step { r#type: Some(StepType::AddColumn as i32), ..Default::default() }]),
        AlterTableRequestPb { num_replicas: Some(4), ..alter("t", Vec::new()) },
        AlterTableRequestPb { row_count_limit: Some(4), ..alter("t", Vec::new()) },
        alter("t", Vec::new()),
    ];
    for request in &requests {
        let response: AlterTableResponsePb = master.call("AlterTable", request).await;
        assert_eq!(response.table_id.as_ref(), Some(&table_id), "errors name the table, too");
        reported.push(shown(&response.error));
    }
    expect![[r#"
        TABLE_NOT_FOUND + NOT_FOUND: the table does not exist: table_name: "x"
        UNKNOWN_ERROR + INVALID_ARGUMENT: a table is named by its id or its name; neither was given
        INVALID_SCHEMA + INVALID_ARGUMENT: cannot remove a key column: k
        INVALID_SCHEMA + NOT_FOUND: The specified column does not exist: x
        INVALID_SCHEMA + ALREADY_PRESENT: The column already exists: v
        INVALID_SCHEMA + INVALID_ARGUMENT: column `n`: NOT NULL columns must have a default
        UNKNOWN_ERROR + ALREADY_PRESENT: range partition already exists: 0 <= VALUES < 10
        UNKNOWN_ERROR + INVALID_ARGUMENT: new range partition conflicts with existing one: 5 <= VALUES < 15
        UNKNOWN_ERROR + INVALID_ARGUMENT: an alter step to add a column does not say what
        EVEN_REPLICATION_FACTOR + INVALID_ARGUMENT: illegal replication factor 4: replication factor must be odd
        UNKNOWN_ERROR + NOT_SUPPORTED: tables have no limits on this server: table write limits are not enabled
        ok
    "#]].assert_eq(&(reported.join("\n") + "\n"));
}

/// Bounds are encoded as rows of the schema in the same response. That is the old schema until every tablet has the new
/// one.
#[tokio::test(flavor = "multi_thread")]
async fn ranges_with_another_hash_schema_can_be_read_during_an_alteration() {
    let master = Fixture::start().await;
    master.heartbeat(SERVER, Vec::new()).await;
    let request = changed(|t| {
        let partition = t.partition_schema.as_mut().expect("it is partitioned");
        let mut hash = partition.hash_schema.clone();
        hash[0].num_buckets = 5;
        partition.custom_hash_schema_ranges =
            vec![RangeWithHashSchemaPb { range_bounds: Some(bounds(&[(0, 10)])), hash_schema: hash }];
        t.split_rows_range_bounds = None;
    });
    master.create(&request).await;
    let more = (0..8).map(|number| {
        let mut column = column(&format!("c{number}"), DataType::Int32, false);
        column.is_nullable = Some(true);
        add_column(column)
    });
    let altered: AlterTableResponsePb = master.call("AlterTable", &alter("t", more.collect())).await;
    assert_eq!(altered.error, None);
    let reported = master.schema("t").await;
    let schema =
        nyala_common::wire::schema::schema_from_pb(&reported.schema.expect("a schema")).expect("a legal one");
    assert_eq!(schema.columns().len(), 2);
    let partition = reported.partition_schema.expect("it is partitioned");
    let read =
        nyala_common::wire::partition::schema_from_pb(&partition, &schema).expect("bounds of this schema");
    assert_eq!(read.custom.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_survive_a_restart() {
    let mut master = Fixture::start().await;
    master.heartbeat(SERVER, Vec::new()).await;
    let mut request = table("first");
    request.comment = Some("kept".to_string());
    request.extra_configs.insert("kudu.table.history_max_age_sec".to_string(), "60".to_string());
    let first = master.create(&request).await;
    master.create(&table("second")).await;
    let third = master.create(&table("third")).await;
    let tablets = master.tablet_ids("first").await;
    master.heartbeat(SERVER, tablets.iter().map(|tablet| running(tablet, SERVER, 0)).collect()).await;
    let dropped: DeleteTableResponsePb = master
        .call("DeleteTable", &DeleteTableRequestPb { table: by_id(&third), ..Default::default() })
        .await;
    assert_eq!(dropped.error, None);
    let before = master.schema("first").await;
    let connected: ConnectToMasterResponsePb =
        master.call("ConnectToMaster", &ConnectToMasterRequestPb {}).await;

    for _ in 0..2 {
        master.restart().await;
        assert_eq!(master.names().await, ["first", "second"]);
        let after = master.schema("first").await;
        assert_eq!(after, before);
        assert_eq!(after.table_id.as_ref(), Some(&first));
        assert_eq!(after.owner(), "ann");
        assert_eq!(after.comment(), "kept");
        let gone: GetTableSchemaResponsePb =
            master.call("GetTableSchema", &GetTableSchemaRequestPb { table: by_id(&third) }).await;
        assert!(shown(&gone.error).starts_with("TABLE_NOT_FOUND + NOT_FOUND: table third was deleted"));
        // Tablets that were running can be located before the next heartbeat of their server.
        let located: GetTableLocationsResponsePb = master
            .call(
                "GetTableLocations",
                &GetTableLocationsRequestPb { table: by_name("first"), ..Default::default() },
            )
            .await;
        assert_eq!(located.tablet_locations.len(), 4);
    }
    let again: ConnectToMasterResponsePb = master.call("ConnectToMaster", &ConnectToMasterRequestPb {}).await;
    assert_eq!(again.cluster_id, connected.cluster_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn soft_deleted_tables_can_be_recalled() {
    let master = Fixture::start().await;
    master.heartbeat(SERVER, Vec::new()).await;
    let table_id = master.create(&table("t")).await;
    let hide = DeleteTableRequestPb { table: by_name("t"), reserve_seconds: Some(60), ..Default::default() };
    let hidden: DeleteTableResponsePb = master.call("DeleteTable", &hide).await;
    assert_eq!(hidden.error, None);
    assert!(master.names().await.is_empty());
    let soft = ListTablesRequestPb { show_soft_deleted: Some(true), ..Default::default() };
    let soft: ListTablesResponsePb = master.call("ListTables", &soft).await;
    assert_eq!(soft.tables.len(), 1);
    let recall = RecallDeletedTableRequestPb { table: by_id(&table_id), new_table_name: None };
    let recalled: RecallDeletedTableResponsePb = master.call("RecallDeletedTable", &recall).await;
    assert_eq!(recalled.error, None);
    assert_eq!(master.names().await, ["t"]);
    let again: RecallDeletedTableResponsePb = master.call("RecallDeletedTable", &recall).await;
    assert!(shown(&again.error).starts_with("TABLE_NOT_FOUND + NOT_FOUND"));
}

/// Each table's records fit into an operation, those of two do not.
#[tokio::test(start_paused = true)]
async fn tables_that_are_due_at_once_are_deleted_and_the_master_leads_on() {
    let env = hosts(&PartitionableNet::default(), 1).pop().expect("one host");
    let master = Fixture::in_env(env, |config| config.rpc.max_message_bytes = 4 << 20).await;
    master.heartbeat(SERVER, Vec::new()).await;
    let label = "l".repeat(900 << 10);
    for name in ["a", "b", "c"] {
        master.create(&CreateTableRequestPb { dimension_label: Some(label.clone()), ..table(name) }).await;
        let request =
            DeleteTableRequestPb { table: by_name(name), reserve_seconds: Some(1), ..Default::default() };
        let deleted: DeleteTableResponsePb = master.call("DeleteTable", &request).await;
        assert_eq!(deleted.error, None);
    }
    master.env.sleep(Duration::from_secs(3)).await;
    let request = ListTablesRequestPb { show_soft_deleted: Some(true), ..Default::default() };
    let kept: ListTablesResponsePb = master.call("ListTables", &request).await;
    assert!(kept.error.is_none() && kept.tables.is_empty(), "{kept:?}");
    master.create(&table("next")).await;
    assert_eq!(master.names().await, ["next"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flushed_catalog_is_read_back() {
    let mut master = Fixture::with(|config| {
        config.tablet.mrs_flush_age_ms = 1;
        config.tablet.mrs_flush_bytes = 1 << 10;
        config.tablet.wal_segment_bytes_max = 4 << 10;
        config.tablet.wal_retain_bytes = 8 << 10;
        config.maintenance_interval = Duration::from_millis(1);
    })
    .await;
    master.heartbeat(SERVER, Vec::new()).await;
    let names: Vec<String> = (0..30).map(|i| format!("t{i:02}")).collect();
    for name in &names {
        master.create(&table(name)).await;
    }
    for name in names.iter().step_by(2) {
        let request = DeleteTableRequestPb { table: by_name(name), ..Default::default() };
        let deleted: DeleteTableResponsePb = master.call("DeleteTable", &request).await;
        assert_eq!(deleted.error, None);
    }
    let data = master.dir.path().join("data");
    let disk = master.env.disks.open(data.to_str().expect("UTF-8")).expect("the master's directory");
    let flushed = format!("data/{}", Uuid::ZERO);
    while disk.list(&flushed).map_or(0, |files| files.len()) == 0 {
        master.env.sleep(Duration::from_millis(1)).await;
    }
    for _ in 0..2 {
        master.restart().await;
        let left: Vec<String> = names.iter().skip(1).step_by(2).cloned().collect();
        assert_eq!(master.names().await, left);
    }
}
