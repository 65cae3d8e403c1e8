//! Ranges that another client adds to an open table, also with hash buckets of their own.

#[path = "common/embedded.rs"]
mod embedded;

use embedded::EmbeddedCluster;
use engine::schema::partition_range::PartitionRange;
use engine::schema::predicate::Predicate;
use engine::schema::row_ops::{ClientCell, RowOpKind};
use engine::schema::{ColumnSchema, DataType, Schema};
use nyala_client::predicate::{Comparison, SimplifiedPredicate};
use nyala_client::tables::AlterStep;
use nyala_client::{Client, CreateTable, FlushMode, ScanSpec, SessionConfig, Table};
use nyala_common::rpc::client::{CallOptions, Proxy};
use nyala_common::wire::{partition, schema};
use nyala_proto::kudu::master::alter_table_request_pb::{
    AddRangePartition, Step, StepType, add_range_partition::CustomHashSchema,
};
use nyala_proto::kudu::master::{AlterTableRequestPb, AlterTableResponsePb, TableIdentifierPb};
use nyala_proto::kudu::partition_schema_pb::column_identifier_pb::Identifier;
use nyala_proto::kudu::partition_schema_pb::{ColumnIdentifierPb, HashBucketSchemaPb};

const TABLE: &str = "t";
/// Number of rows, whose keys are 0 and on, in a range.
const ROWS: i64 = 40;

/// A cluster, a client that has opened a table, and another client.
struct World {
    embedded: EmbeddedCluster,
    table: Table,
    other: Client,
}

impl World {
    /// Creates a table of two hash buckets of `k` and the range 0..100 of `r`.
    async fn new() -> World {
        let embedded = EmbeddedCluster::start().await;
        let connect =
            async || Client::builder(embedded.cluster.master_addresses()).connect().await.expect("a leader");
        let (client, other) = (connect().await, connect().await);
        let columns =
            ["k", "r"].iter().zip(0..).map(|(name, id)| ColumnSchema::new(id, name, DataType::Int64));
        let schema = Schema::new(columns.collect(), 2).expect("a legal schema");
        let create = CreateTable::new(TABLE, schema).hash(&["k"], 2).and_then(|create| create.range(&["r"]));
        let mut create = create.expect("key columns");
        create.ranges = vec![range(0, 100)];
        create.replicas = Some(1);
        let table = client.create_table(&create).await.expect("a new table");
        World { embedded, table, other }
    }

    /// Returns the table as the other client opens it.
    async fn other_table(&self) -> Table {
        self.other.open_table(TABLE).await.expect("it exists")
    }

    /// Adds the range 100..200, with eight hash buckets.
    async fn add_range_of_more_buckets(&self) {
        let of = &self.table;
        let bounds = range(100, 200);
        let (lower, upper) = (&bounds.lower, &bounds.upper);
        let k = ColumnIdentifierPb { identifier: Some(Identifier::Name("k".to_string())) };
        let level = HashBucketSchemaPb { columns: vec![k], num_buckets: 8, ..Default::default() };
        let add = AddRangePartition {
            range_bounds: Some(partition::range_bounds_to_pb(
                of.partition_schema(),
                of.schema(),
                lower,
                upper,
            )),
            custom_hash_schema: Some(CustomHashSchema { hash_schema: vec![level] }),
            ..Default::default()
        };
        let step = Step {
            r#type: Some(StepType::AddRangePartition as i32),
            add_range_partition: Some(add),
            ..Default::default()
        };
        let request = AlterTableRequestPb {
            table: TableIdentifierPb { table_name: Some(TABLE.to_string()), ..Default::default() },
            alter_schema_steps: vec![step],
            schema: Some(schema::schema_to_client_pb(of.schema())),
            ..Default::default()
        };
        let env = &self.embedded.env;
        let master = Proxy::new(env.clone(), self.embedded.cluster.master_addresses()[0].as_str(), "nyala");
        let until = env.now().mono.after(self.other.config().operation_timeout);
        let called =
            master.call("kudu.master.MasterService", "AlterTable", &request, until, CallOptions::default());
        let response: AlterTableResponsePb = called.await.expect("a running master").message;
        assert_eq!(response.error, None);
    }

    /// Writes rows to the range 100..200 as the other client.
    async fn write_rows(&self) {
        let table = self.other_table().await;
        let session = self.other.session(SessionConfig::new(FlushMode::Manual));
        for k in 0..ROWS {
            let (k, r) = (k.to_le_bytes(), 150i64.to_le_bytes());
            let cells = [ClientCell::Value(&k), ClientCell::Value(&r)];
            session.apply(&table, RowOpKind::Insert, &cells, 0).await.expect("the buffer has space");
        }
        assert_eq!(session.flush().await, []);
    }
}

fn range(low: i64, high: i64) -> PartitionRange {
    let key = |r: i64| (r as u64 ^ 1 << 63).to_be_bytes().to_vec();
    PartitionRange { lower: key(low), upper: key(high) }
}

async fn count(table: &Table, predicates: Vec<Predicate>) -> u64 {
    table.count(predicates).await.expect("a running cluster")
}

/// Counts the rows of the tokens of a scan.
async fn count_by_tokens(table: &Table, predicates: Vec<Predicate>) -> usize {
    let spec = ScanSpec { predicates, ..ScanSpec::default() };
    let mut rows = 0;
    for token in table.scan_tokens(&spec).await.expect("a running cluster") {
        let mut scanner = table.scan_token(&token).expect("a token of the table");
        while let Some(batch) = scanner.next_batch().await.expect("a running cluster") {
            rows += batch.num_rows();
        }
    }
    rows
}

/// Counts the rows that are found by their values of `k`.
async fn count_by_key(table: &Table) -> i64 {
    let mut rows = 0;
    for k in 0..ROWS {
        let equal = table.compare("k", Comparison::Equal, &k.to_string()).expect("a column and its value");
        let SimplifiedPredicate::Predicate(equal) = equal else { panic!("an INT64 may be {k}") };
        let found = count(table, vec![equal.clone()]).await;
        assert_eq!(count_by_tokens(table, vec![equal]).await as u64, found);
        rows += found as i64;
    }
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_opened_table_has_the_ranges_that_another_client_added() {
    let mut world = World::new().await;
    assert_eq!(count(&world.table, vec![]).await, 0, "the client knows of the gaps from now on");
    let add = [AlterStep::AddRange(range(100, 200))];
    world.other.alter_table(&world.other_table().await, &add, None).await.expect("a legal step");
    world.write_rows().await;
    let opened = world.table.client().open_table(TABLE).await.expect("it exists");
    assert_eq!(count(&opened, vec![]).await, ROWS as u64);
    assert_eq!(count_by_tokens(&opened, vec![]).await, ROWS as usize);
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_table_is_scanned_by_the_hash_buckets_of_ranges_that_were_added() {
    let mut world = World::new().await;
    let table = world.table.clone();
    assert_eq!(count_by_key(&table).await, 0);
    world.add_range_of_more_buckets().await;
    world.write_rows().await;
    table.forget_locations();
    assert_eq!(count(&table, vec![]).await, ROWS as u64);
    assert_eq!(count_by_tokens(&table, vec![]).await, ROWS as usize);
    assert_eq!(count_by_key(&table).await, ROWS);
    // Now it has the two buckets of the table.
    let replace = [AlterStep::DropRange(range(100, 200)), AlterStep::AddRange(range(100, 200))];
    world.other.alter_table(&world.other_table().await, &replace, None).await.expect("legal steps");
    world.write_rows().await;
    table.forget_locations();
    assert_eq!(count_by_key(&table).await, ROWS);
    world.embedded.shutdown().await;
}
