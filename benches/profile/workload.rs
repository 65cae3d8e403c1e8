//! Profiled workloads: one master, one tablet server and a busy client in this process.

use std::path::PathBuf;
use std::time::Duration;

use benches::cluster;
use benches::lineitem::Q1;
use benches::sample_tables::ycsb_row;
use benches::ycsb;
use engine::error::Result;
use engine::schema::Schema;
use engine::schema::row_ops::{ClientCell, RowOpKind};
use engine_testkit::world::Value;
use futures_util::future::join_all;
use node::cli::lineitem::{self, TablePart};
use nyala_client::{Client, ClientConfig, CreateTable, FlushMode, ScanSpec, SessionConfig, Table};
use nyala_common::env::os::{OsEnv, OsOptions};

/// Flags with early flushes: flushes are part of the profile, and scans read flushed rows.
const SETTINGS: &[(&str, &str)] =
    &[("log_sync", "false"), ("flush_threshold_mb", "16"), ("flush_threshold_secs", "1")];
const TABLETS: u32 = 4;
const BLOCK_ROWS: usize = 4096;
/// Rows of one write and number of concurrent clients, as in the YCSB study.
const BATCH: u64 = 100;
const CLIENTS: u64 = 16;
/// Scans per percent of the usual work; a scan takes a few milliseconds.
const SCANS_PER_PERCENT: u64 = 10;
const BATCHES_PER_PERCENT: u64 = 60;
/// Time after which all rows are flushed with the flags above.
const SETTLING: Duration = Duration::from_secs(4);

/// Command line of a workload.
pub(crate) struct WorkloadArgs {
    workload: String,
    /// Amount of work, in percent of the usual.
    percent: u64,
    /// Folder of the profile.
    pub out: PathBuf,
}

/// Returns the parsed command line; `None` without words, as when all benches are run.
pub(crate) fn asked() -> Option<WorkloadArgs> {
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let mut asked = WorkloadArgs { workload: words.next()?, percent: 100, out: "target/profile".into() };
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_else(|| panic!("{word} wants a value"));
        match word.as_str() {
            "--percent" => asked.percent = value.parse().expect("--percent wants a number"),
            "--out" => asked.out = value.into(),
            _ => panic!("{word} is not known: --percent, --out"),
        }
    }
    Some(asked)
}

/// Prepares the workload, calls `begin`, does the work, and returns the value of `begin` to the caller.
pub(crate) fn run<T>(asked: &WorkloadArgs, begin: impl FnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(play(asked, begin)).expect("the servers serve")
}

async fn play<T>(asked: &WorkloadArgs, begin: impl FnOnce() -> T) -> Result<T> {
    let place = tempfile::tempdir_in("target").or_else(|_| tempfile::tempdir()).expect("a folder");
    let env = OsEnv::new(&OsOptions::default()).expect("there is entropy");
    let mut cluster = cluster::start(&env, place.path().to_str().expect("a plain path"), SETTINGS).await?;
    let client = Client::connect(env.clone(), ClientConfig::new(cluster.master_addresses())).await?;
    let profile = match asked.workload.as_str() {
        "load" => {
            let table = create(&client, lineitem::schema()?, "l_orderkey").await?;
            let profile = begin();
            load(&table, asked.percent).await?;
            profile
        }
        "scan" => {
            let table = create(&client, lineitem::schema()?, "l_orderkey").await?;
            load(&table, 20).await?;
            env.sleep(SETTLING).await;
            let profile = begin();
            for _ in 0..asked.percent * SCANS_PER_PERCENT {
                scan(&table).await?;
            }
            profile
        }
        "inserts" => {
            let table = create(&client, ycsb::schema(), "key").await?;
            let profile = begin();
            inserts(&table, asked.percent * BATCHES_PER_PERCENT).await?;
            profile
        }
        other => panic!("{other} is no workload: load, scan, inserts"),
    };
    cluster.shutdown().await;
    Ok(profile)
}

async fn create(client: &Client, schema: Schema, key: &str) -> Result<Table> {
    client.create_table(&CreateTable::new("profiled", schema).hash(&[key], TABLETS)?).await
}

/// Loads lineitem at a scale factor of a thousandth of `percent`: at most `percent` times 6,000 rows.
async fn load(table: &Table, percent: u64) -> Result<()> {
    let mut part = TablePart::new(percent as f64 / 1_000.0, 1, 1)?;
    let session = table.client().session(SessionConfig::new(FlushMode::AutoBackground));
    let mut rows = 0;
    while let Some(block) = part.next(BLOCK_ROWS) {
        let tags: Vec<u64> = (rows..part.truth.rows).collect();
        rows = part.truth.rows;
        session.apply_columns(table, RowOpKind::Insert, &block, &tags).await?;
    }
    session.flush().await.pop().map_or(Ok(()), |failure| Err(failure.error))
}

async fn scan(table: &Table) -> Result<()> {
    let columns = Some(Q1.iter().map(|name| name.to_string()).collect());
    let mut scanner = table.scan(ScanSpec { columns, ..ScanSpec::default() })?;
    while let Some(batch) = scanner.next_batch().await? {
        std::hint::black_box(batch);
    }
    Ok(())
}

/// Inserts YCSB's rows from concurrent clients, each of which waits for its batch.
async fn inserts(table: &Table, batches: u64) -> Result<()> {
    let clients = (0..CLIENTS).map(|client| insert(table, (client..batches).step_by(CLIENTS as usize)));
    join_all(clients).await.into_iter().collect()
}

async fn insert(table: &Table, batches: impl Iterator<Item = u64>) -> Result<()> {
    let session = table.client().session(SessionConfig::new(FlushMode::Manual));
    for batch in batches {
        for number in batch * BATCH..(batch + 1) * BATCH {
            let row = ycsb_row(number);
            let cells: Vec<ClientCell<'_>> = row.iter().map(cell).collect();
            session.apply(table, RowOpKind::Insert, &cells, number).await?;
        }
        if let Some(failure) = session.flush().await.pop() {
            return Err(failure.error);
        }
    }
    Ok(())
}

fn cell(value: &Value) -> ClientCell<'_> {
    match value {
        Value::Bytes(bytes) => ClientCell::Value(bytes),
        Value::Null => ClientCell::Null,
        Value::Unset => ClientCell::Unset,
    }
}
