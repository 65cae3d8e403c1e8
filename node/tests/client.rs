//! The client against an embedded cluster over real sockets.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use engine::schema::partition::{HashDimension, RangeHashSchema};
use engine::schema::partition_range::PartitionRange;
use engine::schema::row_ops::{ClientCell, RowOpKind};
use engine::schema::{ColumnSchema, DataType, Schema};
use node::server::cluster::{Cluster, ClusterConfig};
use node::server::flags::Flags;
use nyala_client::predicate::{Comparison, SimplifiedPredicate};
use nyala_client::tables::AlterStep;
use nyala_client::{
    Client, ClientConfig, CreateTable, ErrorKind, FlushMode, ReadMode, ScanSpec, ScanToken, Scanner, Session,
    SessionConfig, Table,
};
use nyala_common::env::Env;
use nyala_common::env::os::{OsEnv, OsOptions};

struct World {
    client: Client,
    cluster: Cluster,
    _dir: tempfile::TempDir,
}

async fn world() -> World {
    let env: Env = OsEnv::new(&OsOptions::default()).expect("this machine");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let flags = Flags::new();
    flags.set("log_sync", "false").expect("a flag");
    let config = ClusterConfig::on_loopback(dir.path().to_str().expect("UTF-8"), 2, flags);
    let cluster = Cluster::start(&env, &config).await.expect("free ports and a fresh directory");
    let client = Client::connect(env, ClientConfig::new(cluster.master_addresses())).await.expect("a leader");
    World { client, cluster, _dir: dir }
}

fn schema() -> Schema {
    let columns = vec![
        ColumnSchema::new(0, "k", DataType::Int64),
        ColumnSchema::new(1, "v", DataType::Int32).nullable(),
        ColumnSchema::new(2, "s", DataType::String).nullable(),
    ];
    Schema::new(columns, 1).expect("a legal schema")
}

async fn hashed(client: &Client, name: &str) -> Table {
    let mut create = CreateTable::new(name, schema()).hash(&["k"], 4).expect("a key column");
    create.replicas = Some(1);
    client.create_table(&create).await.expect("a new table")
}

async fn insert(table: &Table, mode: FlushMode, rows: std::ops::Range<i64>) -> Vec<(u64, ErrorKind)> {
    let session = table.client().session(SessionConfig { buffer_bytes: 20_000, ..SessionConfig::new(mode) });
    let mut failures = Vec::new();
    for k in rows {
        let (key, v) = (k.to_le_bytes(), (k as i32 * 2).to_le_bytes());
        let text = format!("row {k}");
        let s = if k % 3 == 0 { ClientCell::Null } else { ClientCell::Value(text.as_bytes()) };
        let cells = [ClientCell::Value(&key), ClientCell::Value(&v), s];
        match session.apply(table, RowOpKind::Insert, &cells, k as u64).await {
            Ok(()) => {}
            Err(error) if error.kind == ErrorKind::Throttled => {
                failures.extend(session.flush().await);
                session.apply(table, RowOpKind::Insert, &cells, k as u64).await.expect("the buffer is empty");
            }
            Err(error) => failures.push(nyala_client::RowFailure { tag: k as u64, error }),
        }
    }
    failures.extend(session.flush().await);
    let mut failures: Vec<_> = failures.into_iter().map(|f| (f.tag, f.error.kind)).collect();
    failures.sort_by_key(|failure| failure.0);
    failures
}

/// Returns the keys and the sum of `v` of a scan.
async fn scan(table: &Table, spec: ScanSpec) -> (Vec<i64>, i64) {
    read(table.scan(spec).expect("a legal scan")).await
}

/// Reads a scan to its end; returns the keys and the sum of `v`.
async fn read(mut scanner: Scanner) -> (Vec<i64>, i64) {
    let (mut keys, mut sum) = (Vec::new(), 0);
    while let Some(batch) = scanner.next_batch().await.expect("a running cluster") {
        keys.extend(batch.column(0).as_primitive::<Int64Type>().values());
        sum += batch.column(1).as_primitive::<Int32Type>().iter().flatten().map(i64::from).sum::<i64>();
    }
    (keys, sum)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_started_cluster_can_create_tables() {
    let mut world = world().await;
    assert_eq!(world.client.tablet_servers().await.expect("a running cluster"), 2);
    hashed(&world.client, "first").await;
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_background_flush_begins_at_the_watermark() {
    let mut world = world().await;
    let table = hashed(&world.client, "watermark").await;
    let mut keys = 0i64..;
    for watermark_percent in [50, 80] {
        let session = world.client.session(SessionConfig {
            buffer_bytes: 20_000,
            watermark_percent,
            flush_interval: std::time::Duration::from_secs(3600),
            ..SessionConfig::new(FlushMode::AutoBackground)
        });
        let (mut buffered, mut row_bytes) = (0, 0);
        while session.buffered_bytes() >= buffered {
            row_bytes = session.buffered_bytes() - buffered;
            buffered = session.buffered_bytes();
            let key = keys.next().expect("there are more").to_le_bytes();
            let cells = [ClientCell::Value(&key), ClientCell::Null, ClientCell::Null];
            session.apply(&table, RowOpKind::Insert, &cells, 0).await.expect("the buffer has space");
        }
        let watermark = 20_000 * watermark_percent / 100;
        assert!((watermark - row_bytes..watermark).contains(&buffered), "{buffered} of {watermark}");
        assert_eq!(session.flush().await, []);
    }
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_written_in_every_mode_are_scanned() {
    let mut world = world().await;
    let table = hashed(&world.client, "modes").await;
    assert_eq!(insert(&table, FlushMode::AutoSync, 0..20).await, []);
    assert_eq!(insert(&table, FlushMode::Manual, 20..2000).await, []);
    assert_eq!(insert(&table, FlushMode::AutoBackground, 2000..6000).await, []);
    let duplicates = [(5998, ErrorKind::AlreadyPresent), (5999, ErrorKind::AlreadyPresent)];
    assert_eq!(insert(&table, FlushMode::AutoBackground, 5998..6003).await, duplicates);
    assert_eq!(table.count(vec![]).await.expect("a running cluster"), 6003);
    let your_writes = ScanSpec { read_mode: ReadMode::YourWrites, batch_bytes: 4096, ..ScanSpec::default() };
    let (mut keys, sum) = scan(&table, your_writes).await;
    keys.sort_unstable();
    assert_eq!(keys, (0..6003).collect::<Vec<i64>>());
    assert_eq!(sum, (0..6003).map(|k| k * 2).sum::<i64>());
    let Ok(SimplifiedPredicate::Predicate(least)) = table.compare("k", Comparison::GreaterEqual, "5000")
    else {
        panic!("a predicate")
    };
    let some = ScanSpec { predicates: vec![least.clone()], limit: Some(17), ..ScanSpec::default() };
    assert_eq!(scan(&table, some).await.0.len(), 17);
    let mut found = 0;
    let tokens = table.scan_tokens(&ScanSpec { predicates: vec![least], ..ScanSpec::default() }).await;
    let tokens = tokens.expect("a running cluster");
    assert_eq!(tokens.len(), 4);
    for token in tokens {
        let mut scanner =
            world.client.scan_serialized_token(&token.serialize()).await.expect("the token of a table");
        while let Some(batch) = scanner.next_batch().await.expect("a running cluster") {
            found += batch.num_rows();
        }
    }
    assert_eq!(found, 1003);
    let key = 77i64.to_le_bytes();
    let one = ScanSpec { predicates: table.key_equals(&[&key]), ..ScanSpec::default() };
    assert_eq!(scan(&table, one).await, (vec![77], 154));
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_tolerant_scan_keeps_its_snapshot() {
    let mut world = world().await;
    let table = hashed(&world.client, "snapshot").await;
    assert_eq!(insert(&table, FlushMode::AutoBackground, 0..3000).await, []);
    let spec = ScanSpec { fault_tolerant: true, batch_bytes: 2048, ..ScanSpec::default() };
    let mut scanner = table.scan(spec).expect("a legal scan");
    let first = scanner.next_batch().await.expect("a running cluster").expect("there are rows");
    assert!(scanner.snapshot().is_some());
    assert_eq!(insert(&table, FlushMode::AutoBackground, 3000..4000).await, []);
    let mut rows = first.num_rows();
    let mut last: Option<i64> = None;
    let mut falls = 0;
    while let Some(batch) = scanner.next_batch().await.expect("a running cluster") {
        rows += batch.num_rows();
        for key in batch.column(0).as_primitive::<Int64Type>().values() {
            falls += usize::from(last.is_some_and(|last| last >= *key));
            last = Some(*key);
        }
    }
    assert_eq!(rows, 3000);
    assert!(falls < 4, "keys ascend within each of four tablets");
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_tolerant_scan_of_the_clients_writes_reads_a_snapshot_after_them() {
    let mut world = world().await;
    let table = hashed(&world.client, "own").await;
    assert_eq!(insert(&table, FlushMode::AutoBackground, 0..100).await, []);
    let written = world.client.observed_timestamp();
    let spec = ScanSpec { fault_tolerant: true, read_mode: ReadMode::YourWrites, ..ScanSpec::default() };
    let mut scanner = table.scan(spec.clone()).expect("a legal scan");
    scanner.next_batch().await.expect("a running cluster").expect("there are rows");
    assert!(written.is_some() && scanner.snapshot() > written);
    assert_eq!(scan(&table, spec.clone()).await.0.len(), 100);
    let mut rows = 0;
    for token in table.scan_tokens(&spec).await.expect("a running cluster") {
        let scanner = world.client.scan_serialized_token(&token.serialize()).await.expect("a token");
        rows += read(scanner).await.0.len();
    }
    assert_eq!(rows, 100);
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tokens_of_a_tablets_partition_keys_are_one() {
    let mut world = world().await;
    let table = hashed(&world.client, "parts").await;
    assert_eq!(insert(&table, FlushMode::AutoBackground, 0..200).await, []);
    let all = table.scan_tokens(&ScanSpec::default()).await.expect("a running cluster");
    assert_eq!(all.len(), 4);
    let mut rows = 0;
    for token in all {
        let partition = token.tablet().partition.clone();
        let partitions = PartitionRange { lower: partition.start, upper: partition.end };
        let spec = ScanSpec { partitions, ..ScanSpec::default() };
        let some = table.scan_tokens(&spec).await.expect("a running cluster");
        let ids: Vec<&str> = some.iter().map(|token| token.tablet().id.as_str()).collect();
        assert_eq!(ids, [token.tablet().id.as_str()]);
        let scanner = world.client.scan_serialized_token(&some[0].serialize()).await.expect("a token");
        rows += read(scanner).await.0.len();
    }
    assert_eq!(rows, 200);
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_reads_the_columns_for_which_it_was_created_or_fails() {
    let mut world = world().await;
    let table = hashed(&world.client, "altered").await;
    assert_eq!(insert(&table, FlushMode::AutoBackground, 0..100).await, []);
    let columns = Some(vec!["k".to_string(), "v".to_string()]);
    let tokens = table.scan_tokens(&ScanSpec { columns, ..ScanSpec::default() }).await;
    let tokens: Vec<Vec<u8>> = tokens.expect("a running cluster").iter().map(ScanToken::serialize).collect();
    let v = |ty| AlterStep::AddColumn(ColumnSchema::new(9, "v", ty).nullable());
    let rename = AlterStep::RenameColumn { from: "v".to_string(), to: "w".to_string() };
    let steps = [rename, v(DataType::Int32)];
    let table = world.client.alter_table(&table, &steps, None).await.expect("legal steps");
    let mut sum = 0;
    for token in &tokens {
        let scanner = world.client.scan_serialized_token(token).await.expect("its column has another name");
        sum += read(scanner).await.1;
    }
    assert_eq!(sum, (0..100).map(|k| k * 2).sum::<i64>(), "the new column has no values");
    let dropped = ["v", "w"].map(|name| AlterStep::DropColumn(name.to_string()));
    let steps: Vec<AlterStep> = dropped.into_iter().chain([v(DataType::Int64)]).collect();
    world.client.alter_table(&table, &steps, None).await.expect("legal steps");
    let error = world.client.scan_serialized_token(&tokens[0]).await.err().expect("its column is gone");
    assert_eq!(error.kind, ErrorKind::NotFound);
    let message = "scan token of table altered: column \"v\" no longer exists; create the tokens again";
    assert_eq!(error.message, message);
    world.cluster.shutdown().await;
}

/// Inserts a row that has this key and no other value.
async fn insert_key(session: &Session, table: &Table, k: i64) -> Result<(), ErrorKind> {
    let key = k.to_le_bytes();
    let cells = [ClientCell::Value(&key), ClientCell::Null, ClientCell::Null];
    session.apply(table, RowOpKind::Insert, &cells, k as u64).await.map_err(|error| error.kind)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_task_that_shares_a_session_gets_the_result_of_its_row() {
    let mut world = world().await;
    let table = hashed(&world.client, "shared").await;
    let session = world.client.session(SessionConfig::new(FlushMode::AutoSync));
    assert_eq!(insert_key(&session, &table, 0).await, Ok(()));
    let other = session.clone();
    for k in 1..100 {
        let results = tokio::join!(insert_key(&session, &table, k), insert_key(&other, &table, 0));
        assert_eq!(results, (Ok(()), Err(ErrorKind::AlreadyPresent)));
    }
    assert_eq!(session.flush().await, []);
    assert_eq!(session.written(), 100);
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_failure_of_a_row_whose_caller_gave_up_is_for_the_next_flush() {
    let mut world = world().await;
    let table = hashed(&world.client, "abandoned").await;
    let session = world.client.session(SessionConfig::new(FlushMode::AutoSync));
    assert_eq!(insert_key(&session, &table, 0).await, Ok(()));
    let mut abandoned = Box::pin(insert_key(&session, &table, 0));
    assert!(futures_util::poll!(&mut abandoned).is_pending(), "the row is sent");
    drop(abandoned);
    assert_eq!(insert_key(&session, &table, 1).await, Ok(()));
    let failures = session.flush().await;
    let failures: Vec<_> = failures.into_iter().map(|failure| (failure.tag, failure.error.kind)).collect();
    assert_eq!(failures, [(0, ErrorKind::AlreadyPresent)]);
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_continues_after_columns_changed() {
    let mut world = world().await;
    let table = hashed(&world.client, "grows").await;
    let session = world.client.session(SessionConfig::new(FlushMode::Manual));
    let (k, more, w) = (1i64.to_le_bytes(), 2i64.to_le_bytes(), 8i16.to_le_bytes());
    let cells = [ClientCell::Value(&k), ClientCell::Null, ClientCell::Unset];
    session.apply(&table, RowOpKind::Insert, &cells, 1).await.expect("the buffer has space");
    let step = AlterStep::AddColumn(ColumnSchema::new(9, "w", DataType::Int16).nullable());
    let wider = world.client.alter_table(&table, &[step], None).await.expect("a legal step");
    let cells = [ClientCell::Value(&more), ClientCell::Null, ClientCell::Unset, ClientCell::Value(&w)];
    session.apply(&wider, RowOpKind::Insert, &cells, 2).await.expect("the buffer has space");
    assert_eq!(session.flush().await, []);
    assert_eq!(wider.count(vec![]).await.expect("a running cluster"), 2);
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_continues_after_a_hash_schema_changed() {
    let mut world = world().await;
    let key = |k: i64| (k as u64 ^ 1 << 63).to_be_bytes().to_vec();
    let range = |low, high| PartitionRange { lower: key(low), upper: key(high) };
    let mut create = CreateTable::new("rehashed", schema()).hash(&["k"], 2).expect("a key column");
    create = create.range(&["k"]).expect("a key column");
    create.replicas = Some(1);
    create.ranges = vec![range(0, 100), range(100, 200)];
    let columns = create.partition.hash[0].columns.clone();
    let hash = vec![HashDimension { columns, buckets: 5, seed: 0 }];
    create.partition.custom = vec![RangeHashSchema { lower: key(100), upper: key(200), hash }];
    let table = world.client.create_table(&create).await.expect("a new table");
    let session = world.client.session(SessionConfig::new(FlushMode::AutoSync));
    let insert = async |table: &Table, k: i64| {
        let bytes = k.to_le_bytes();
        session
            .apply(
                table,
                RowOpKind::Insert,
                &[ClientCell::Value(&bytes), ClientCell::Null, ClientCell::Null],
                0,
            )
            .await
    };
    insert(&table, 1).await.expect("it has a range");
    let steps = [AlterStep::DropRange(range(100, 200)), AlterStep::AddRange(range(100, 200))];
    let table = world.client.alter_table(&table, &steps, None).await.expect("legal steps");
    for k in 100..130 {
        insert(&table, k).await.expect("its tablet is one of two now");
    }
    assert_eq!(table.count(vec![]).await.expect("a running cluster"), 31);
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_continues_after_a_range_replaced_a_smaller_one() {
    let mut world = world().await;
    let key = |k: i64| (k as u64 ^ 1 << 63).to_be_bytes().to_vec();
    let range = |low, high| PartitionRange { lower: key(low), upper: key(high) };
    let mut create = CreateTable::new("replaced", schema()).range(&["k"]).expect("a key column");
    create.replicas = Some(1);
    create.ranges = vec![range(0, 10), range(20, 30)];
    let table = world.client.create_table(&create).await.expect("a new table");
    let session = world.client.session(SessionConfig::new(FlushMode::Manual));
    let insert = async |k: i64| {
        let bytes = k.to_le_bytes();
        let cells = [ClientCell::Value(&bytes), ClientCell::Null, ClientCell::Null];
        session.apply(&table, RowOpKind::Insert, &cells, k as u64).await.expect("it has a range");
    };
    insert(5).await;
    insert(25).await;
    let dropped = [AlterStep::DropRange(range(0, 10)), AlterStep::DropRange(range(20, 30))];
    let steps = dropped.into_iter().chain([AlterStep::AddRange(range(0, 100))]).collect::<Vec<_>>();
    world.client.alter_table(&table, &steps, None).await.expect("legal steps");
    for k in [6, 28, 50] {
        insert(k).await;
    }
    session.flush().await.iter().for_each(|failure| assert!([5, 25].contains(&failure.tag)));
    // Also 6 and 28, though tablets of the dropped ranges were open for them.
    assert_eq!(scan(&table, ScanSpec::default()).await.0, [6, 28, 50]);
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_altered_and_rows_in_gaps_fail() {
    let mut world = world().await;
    let key = |k: i64| (k as u64 ^ 1 << 63).to_be_bytes().to_vec();
    let mut create = CreateTable::new("ranges", schema()).range(&["k"]).expect("a key column");
    create.ranges = vec![
        PartitionRange { lower: key(0), upper: key(10) },
        PartitionRange { lower: key(20), upper: key(30) },
    ];
    create.replicas = Some(1);
    let table = world.client.create_table(&create).await.expect("a new table");
    let again = world.client.create_table(&create).await.err().expect("the name is taken");
    assert_eq!(again.kind, ErrorKind::AlreadyPresent);
    let missing: Vec<_> = (10..20).map(|k| (k, ErrorKind::NotFound)).collect();
    assert_eq!(insert(&table, FlushMode::AutoBackground, 0..30).await, missing);
    assert_eq!(insert(&table, FlushMode::AutoSync, 15..16).await, [(15, ErrorKind::NotFound)]);
    assert_eq!(table.count(vec![]).await.expect("a running cluster"), 20);
    let mut added = ColumnSchema::new(9, "w", DataType::Int16);
    added.read_default = Some(vec![7, 0]);
    let steps = [
        AlterStep::AddRange(PartitionRange { lower: key(10), upper: key(20) }),
        AlterStep::AddColumn(added),
        AlterStep::RenameColumn { from: "v".to_string(), to: "value".to_string() },
        AlterStep::DropColumn("s".to_string()),
    ];
    let altered = world.client.alter_table(&table, &steps, Some("renamed")).await.expect("legal steps");
    let names: Vec<&str> = altered.schema().columns().iter().map(|column| column.name.as_str()).collect();
    assert_eq!((altered.name(), names), ("renamed", vec!["k", "value", "w"]));
    let session = world.client.session(SessionConfig::new(FlushMode::AutoSync));
    let (k, w) = (15i64.to_le_bytes(), 8i16.to_le_bytes());
    let cells = [ClientCell::Value(&k), ClientCell::Null, ClientCell::Value(&w)];
    session.apply(&altered, RowOpKind::Upsert, &cells, 0).await.expect("its range exists now");
    assert_eq!(scan(&altered, ScanSpec::default()).await.0.len(), 21);
    assert_eq!(world.client.list_tables(None).await.expect("a running cluster").len(), 1);
    world.client.delete_table("renamed").await.expect("it exists");
    let gone = world.client.open_table("renamed").await.err().expect("it was dropped");
    assert_eq!(gone.kind, ErrorKind::NotFound);
    drop(Arc::new(altered));
    world.cluster.shutdown().await;
}
