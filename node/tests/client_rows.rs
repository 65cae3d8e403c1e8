//! Typed rows, builders, streams and errors of the client against an embedded cluster over real sockets.

#[path = "common/embedded.rs"]
mod embedded;
#[path = "../client/examples/quick_start.rs"]
mod quick_start;

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use embedded::EmbeddedCluster;
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use nyala_client::predicate::Comparison;
use nyala_client::rows::{BatchStream, FromRow, ToRow};
use nyala_client::{
    Client, ClientConfig, ClientError, ClientResult, DataType, FlushMode, RowOpKind, SessionConfig, Table,
};
use nyala_common::env::testing::{HeldTasks, becomes};
use quick_start::Person;

/// A cluster and a client of it.
struct World {
    client: Client,
    embedded: EmbeddedCluster,
}

async fn world() -> World {
    let embedded = EmbeddedCluster::start().await;
    let masters = embedded.cluster.master_addresses();
    World { client: Client::builder(masters).connect().await.expect("a leader"), embedded }
}

impl World {
    async fn people(&self, name: &str) -> Table {
        let table = self.client.new_table(name).key("id", DataType::Int64).nullable("name", DataType::String);
        table.hash(["id"], 3).replicas(1).create().await.expect("a new table")
    }
}

fn person(id: i64, name: &str) -> Person {
    Person { id, name: Some(name.to_string()) }
}

async fn sorted(table: &Table) -> Vec<Person> {
    let mut rows: Vec<Person> = table.select().your_writes().collect().await.expect("a running cluster");
    rows.sort_by_key(|person| person.id);
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_quick_start_works() {
    let mut world = world().await;
    let rows = quick_start::run(world.embedded.cluster.master_addresses()).await.expect("it works");
    assert_eq!(rows, [person(0, "name 0"), person(1, "name 1"), person(2, "name 2")]);
    world.embedded.shutdown().await;
}

/// The key of a person: what a delete needs.
#[derive(ToRow)]
struct PersonKey {
    id: i64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn typed_rows_are_written_changed_and_read() {
    let mut world = world().await;
    let people = world.people("people").await;
    let mut writer = people.writer();
    for id in 0..100 {
        writer.insert(&person(id, "new")).await.expect("it fits");
    }
    writer.flush().await.expect("all are new");
    writer.update(&Person { id: 1, name: None }).await.expect("it fits");
    writer.upsert(&person(2, "changed")).await.expect("it fits");
    for id in 3..100 {
        writer.delete(&PersonKey { id }).await.expect("a key");
    }
    assert_eq!(writer.finish().await.expect("all are there").written, 199);
    assert_eq!(sorted(&people).await, [person(0, "new"), Person { id: 1, name: None }, person(2, "changed")]);
    let nameless = people.select().filter_null("name").collect::<Person>().await.expect("a scan");
    assert_eq!(nameless, [Person { id: 1, name: None }]);
    let two = people.select().filter_in("id", [0i64, 2, 7]).filter_not_null("name");
    assert_eq!(two.count().await.expect("a scan"), 2);
    let none = people.select().filter("id", Comparison::Greater, i64::MAX);
    assert_eq!(none.count().await.expect("no row is above the largest"), 0);
    assert_eq!(people.select().limit(2).count().await.expect("a scan"), 2);
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discarded_rows_are_not_written() {
    let mut world = world().await;
    let people = world.people("people").await;
    let flush_interval = std::time::Duration::from_secs(3600);
    let config = SessionConfig { flush_interval, ..SessionConfig::new(FlushMode::AutoBackground) };
    let mut writer = people.writer_with(config);
    writer.insert(&person(1, "sent")).await.expect("it fits");
    writer.flush().await.expect("it is new");
    writer.upsert(&person(1, "buffered")).await.expect("it fits");
    assert_eq!(writer.discard().await.written, 1);
    assert_eq!(sorted(&people).await, [person(1, "sent")]);
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_dropped_writer_are_not_sent_while_a_flush_is_in_flight() {
    let mut world = world().await;
    world.people("people").await;
    let tasks = world.embedded.env.tasks.clone();
    let running = |name: &str| tasks.all().iter().filter(|task| task.name == name).count();
    let mut env = world.embedded.env.clone();
    let flushes = HeldTasks::install(&mut env, "session flush");
    let timers = HeldTasks::install(&mut env, "session timer");
    let config = ClientConfig::new(world.embedded.cluster.master_addresses());
    let people = Client::connect(env, config).await.expect("a leader").open_table("people").await;
    let people = people.expect("it exists");

    let flush_interval = std::time::Duration::ZERO;
    let config = SessionConfig { flush_interval, ..SessionConfig::new(FlushMode::AutoBackground) };
    let mut writer = people.writer_with(config);
    writer.upsert(&person(1, "sent")).await.expect("it fits");
    assert!(writer.flush().now_or_never().is_none(), "the flush is held");
    writer.upsert(&person(1, "dropped")).await.expect("it fits");
    drop(writer);
    timers.release_one();
    timers.release_one();
    assert!(becomes(&world.embedded.env, || running("session timer") == 0).await, "the timers end");
    assert_eq!(running("session flush"), 1, "the timer of a dropped writer sends nothing");
    flushes.release_one();
    assert!(becomes(&world.embedded.env, || running("session flush") == 0).await, "the flush ends");
    assert_eq!(sorted(&people).await, [person(1, "sent")]);
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_batches_are_written_and_streamed() {
    let mut world = world().await;
    let people = world.people("people").await;
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..5000));
    let names: ArrayRef = Arc::new(StringArray::from_iter_values((0..5000).map(|id| format!("name {id}"))));
    let columns = [("name", names, true), ("id", ids, false)];
    let batch = RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length");
    let mut writer = people.writer();
    writer.write_batch(RowOpKind::Insert, &batch).await.expect("its columns are the table's");
    assert_eq!(writer.finish().await.expect("all are new").written, 5000);
    let batches = people.select().columns(["name"]).batch_bytes(1024).your_writes().batches();
    let batches: Vec<RecordBatch> = batches.expect("a scan").try_collect().await.expect("a scan");
    assert!(batches.len() > 3, "one per response");
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 5000);
    assert_eq!(batches[0].num_columns(), 1);
    world.embedded.shutdown().await;
}

impl World {
    /// Returns a stream that has returned some of its rows.
    async fn begin_stream(&self) -> BatchStream {
        let people = self.people("people").await;
        let mut writer = people.writer();
        for id in 0..1000 {
            writer.insert(&person(id, "x")).await.expect("it fits");
        }
        writer.finish().await.expect("all are new");
        let mut rows = people.select().batch_bytes(1).your_writes().batches().expect("a scan");
        rows.next().await.expect("a batch").expect("a running cluster");
        let server = &self.embedded.tablet_server(0).server;
        assert!(!server.scanners().is_empty(), "the scan has more rows");
        rows
    }

    async fn wait_for_closed_scanners(&self) {
        let server = &self.embedded.tablet_server(0).server;
        assert!(becomes(&server.env, || server.scanners().is_empty()).await, "a scanner stays open");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_stream_closes_its_scanner() {
    let mut world = world().await;
    drop(world.begin_stream().await);
    world.wait_for_closed_scanners().await;
    world.embedded.shutdown().await;
}

#[test]
fn a_stream_that_is_dropped_outside_of_a_runtime_closes_its_scanner() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("threads");
    let (mut world, rows) = runtime.block_on(async {
        let world = world().await;
        let rows = world.begin_stream().await;
        (world, rows)
    });
    drop(rows);
    runtime.block_on(async move {
        world.wait_for_closed_scanners().await;
        world.embedded.shutdown().await;
    });
}

#[derive(ToRow)]
struct WrongType {
    id: i32,
}

#[derive(Debug, FromRow)]
struct NoSuchColumn {
    #[expect(dead_code, reason = "it is never read")]
    age: i32,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_tell_what_to_do() {
    let mut world = world().await;
    let people = world.people("people").await;
    let mut writer = people.writer();
    for id in [0, 1, 0, 2] {
        writer.insert(&person(id, "x")).await.expect("it fits");
    }
    let Err(ClientError::RowsRefused(refused)) = writer.flush().await else { panic!("a key came twice") };
    assert_eq!((refused.table.as_str(), refused.count, refused.written), ("people", 1, 3));
    assert_eq!(refused.rows[0].index, 2, "the second row with key 0");

    let mut faults = Vec::new();
    let mut note = |what: &str, error: ClientError| {
        let variant = format!("{error:?}");
        let variant = variant.split(['(', ' ']).next().unwrap_or_default().to_string();
        faults.push(format!("{what}: {variant}: {error}"));
    };
    note("type", writer.insert(&WrongType { id: 1 }).await.expect_err("INT64"));
    drop(writer);
    note("column", people.select().rows::<NoSuchColumn>().err().expect("no such column"));
    note("predicate", people.select().filter("id", Comparison::Less, "x").open().err().expect("a text"));
    note(
        "null",
        people.select().filter("name", Comparison::Equal, None::<String>).open().err().expect("NULL"),
    );
    note("open", world.client.open_table("nobody").await.map_err(ClientError::from).err().expect("no table"));
    let again = world.client.new_table("people").key("id", DataType::Int64).replicas(1).create().await;
    note("create", again.err().expect("it exists"));
    let order = world.client.new_table("t").column("v", DataType::Int8).key("id", DataType::Int64);
    note("order", order.create().await.err().expect("keys come first"));
    let text = faults.join("\n").replace(people.id(), "ID") + "\n";
    expect_test::expect![[r#"
        type: SchemaMismatch: table people, row 4, column "id": i32 does not fit INT64; it fits INT32, DATE
        column: SchemaMismatch: table people, column "age": the table has no such column
        predicate: SchemaMismatch: table people, column "id": string does not fit INT64; it fits STRING, VARCHAR
        null: SchemaMismatch: table people, column "name": a predicate cannot compare with NULL; use filter_null or filter_not_null
        open: NotFound: opening table nobody: the table does not exist: table_name: "nobody"
        create: AlreadyPresent: creating table people: table people already exists with id ID
        order: SchemaMismatch: table t, column "id": a key column comes before all other columns; declare it earlier
    "#]]
    .assert_eq(&text);
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_gone_is_a_timeout() -> ClientResult<()> {
    let unreachable = Client::builder(["127.0.0.1:1"]).connect_timeout(std::time::Duration::from_millis(50));
    let error = unreachable.connect().await.err().expect("no server listens there");
    assert!(matches!(error, ClientError::Timeout(_)) && error.is_retriable(), "{error:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn range_partitions_are_built_from_values() {
    let mut world = world().await;
    let table = world.client.new_table("ranges").key("id", DataType::Int64).replicas(1);
    let table = table.range_partition("id", None, Some(10i64)).range_partition("id", Some(10i64), Some(20));
    let table = table.create().await.expect("a new table");
    let mut writer = table.writer();
    for id in [5i64, 15, 25] {
        writer.insert(&PersonKey { id }).await.expect("it fits");
    }
    let Err(ClientError::RowsRefused(refused)) = writer.flush().await else { panic!("25 is in no range") };
    assert_eq!(refused.rows.iter().map(|row| row.index).collect::<Vec<_>>(), [2]);
    world.embedded.shutdown().await;
}
