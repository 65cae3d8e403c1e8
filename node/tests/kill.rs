//! `kill -9` at random times while clients write and tablets flush. Afterwards the table contains all acknowledged
//! rows with their values, and no row that was never sent.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the program from outside"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use engine::schema::row_ops::{ClientCell, RowOpKind};
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::sync::Mutex;
use nyala_client::{
    Client, ClientConfig, CreateTable, Error, ErrorKind, FlushMode, RowFailure, ScanSpec, Session,
    SessionConfig, Table,
};
use nyala_common::env::os::{OsEnv, OsOptions};
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

mod common;

const TABLE: &str = "ledger";
/// Number of concurrent writers, each with a separate set of keys.
const LANES: u64 = 4;
/// Keys per writer: few enough that rows are updated and deleted, in memory and on disk, as often as inserted.
const KEYS_PER_LANE: u64 = 300;
const BATCH_ROWS_MAX: u64 = 24;
const ROUNDS: u64 = 6;

/// Flags with which tablets flush, compact and GC their logs continuously.
const BUSY: &[&str] = &[
    "--tablet-servers=1",
    "--flush-threshold-secs=0",
    "--maintenance-manager-polling-interval-ms=1",
    "--log-segment-size-mb=1",
    "--log-compression-codec=NO_COMPRESSION",
    "--log-target-replay-size-mb=0",
];
/// Flags with which tablets keep all rows in memory and in their logs.
const LAZY: &[&str] = &["--tablet-servers=1"];

/// Possible states of a row: the value of its column `v`, or `None` if it does not exist. More than one while a change
/// is in flight, and if it got no reply.
type Possible = Vec<Option<i64>>;

/// Knowledge of one writer about its rows. Missing keys do not exist.
#[derive(Default)]
struct Lane {
    rows: BTreeMap<i64, Possible>,
    acknowledged: u64,
    /// Row errors that contradict the known state.
    unexpected: Vec<RowFailure>,
}

impl Lane {
    fn certain(&self, key: i64) -> Option<i64> {
        match self.rows.get(&key).map(Vec::as_slice) {
            None => None,
            Some([value]) => *value,
            Some(more) => panic!("row {key} was not settled: {more:?}"),
        }
    }
}

type Lanes = Vec<Arc<Mutex<Lane>>>;

fn below(rng: &mut ChaCha12Rng, end: u64) -> u64 {
    rng.next_u64() % end
}

fn text(key: i64, value: i64) -> String {
    format!("row {key} is {value}; {}", "x".repeat((value % 6000) as usize))
}

/// `k INT64, v INT64, s STRING NULL`, where `s` is a function of the others.
fn create() -> CreateTable {
    let columns = vec![
        ColumnSchema::new(0, "k", DataType::Int64),
        ColumnSchema::new(1, "v", DataType::Int64),
        ColumnSchema::new(2, "s", DataType::String).nullable(),
    ];
    let schema = Schema::new(columns, 1).unwrap();
    let create = CreateTable::new(TABLE, schema).hash(&["k"], 3).unwrap();
    CreateTable { replicas: Some(1), ..create }
}

async fn connect(printed: &str) -> Client {
    let master = printed.lines().find_map(|line| line.trim().strip_prefix("master")).unwrap();
    let address = master.split_whitespace().next().unwrap();
    let env = OsEnv::new(&OsOptions::default()).unwrap();
    Client::connect(env, ClientConfig::new([address])).await.unwrap()
}

/// Applies one change of a row that fails only if server and test disagree about the existence of the row.
async fn apply(
    session: &Session,
    table: &Table,
    rng: &mut ChaCha12Rng,
    key: i64,
    exists: bool,
) -> Result<Option<i64>, Error> {
    let value = below(rng, 1 << 40) as i64;
    let (k, v, s) = (key.to_le_bytes(), value.to_le_bytes(), text(key, value));
    let whole = [ClientCell::Value(&k), ClientCell::Value(&v), ClientCell::Value(s.as_bytes())];
    let (kind, cells) = match (exists, below(rng, 4)) {
        (false, _) => (RowOpKind::Insert, whole),
        (true, 0) => (RowOpKind::Delete, [ClientCell::Value(&k), ClientCell::Unset, ClientCell::Unset]),
        (true, 1) => (RowOpKind::Upsert, whole),
        (true, _) => (RowOpKind::Update, whole),
    };
    session.apply(table, kind, &cells, key as u64).await?;
    Ok((kind != RowOpKind::Delete).then_some(value))
}

/// Writes batch after batch until one fails. Sends a message to `acknowledged` after each success.
async fn write(
    table: Table,
    lane: u64,
    state: Arc<Mutex<Lane>>,
    mut rng: ChaCha12Rng,
    acknowledged: mpsc::UnboundedSender<()>,
) {
    let session = table.client().session(SessionConfig::new(FlushMode::Manual));
    loop {
        let mut batch = BTreeMap::new();
        for _ in 0..=below(&mut rng, BATCH_ROWS_MAX) {
            let key = (below(&mut rng, KEYS_PER_LANE) * LANES + lane) as i64;
            if batch.contains_key(&key) {
                continue;
            }
            let before = state.lock().certain(key);
            // This fails if the server was killed before the client had looked up the tablet.
            let Ok(after) = apply(&session, &table, &mut rng, key, before.is_some()).await else { return };
            batch.insert(key, after);
            state.lock().rows.insert(key, vec![before, after]);
        }
        let failures = session.flush().await;
        let mut state = state.lock();
        if !failures.is_empty() {
            let wrong = [ErrorKind::AlreadyPresent, ErrorKind::NotFound, ErrorKind::Invalid];
            state
                .unexpected
                .extend(failures.into_iter().filter(|failure| wrong.contains(&failure.error.kind)));
            return;
        }
        state.acknowledged += batch.len() as u64;
        state.rows.extend(batch.into_iter().map(|(key, value)| (key, vec![value])));
        drop(state);
        let _ = acknowledged.send(());
    }
}

async fn scan(table: &Table) -> BTreeMap<i64, i64> {
    let mut scanner = table.scan(ScanSpec { batch_bytes: 20_000, ..ScanSpec::default() }).unwrap();
    let mut rows = BTreeMap::new();
    while let Some(batch) = scanner.next_batch().await.unwrap() {
        let number = |column: usize| batch.column(column).as_primitive::<Int64Type>().values();
        let texts = batch.column(2).as_string::<i32>();
        for ((key, value), s) in number(0).iter().zip(number(1)).zip(texts) {
            assert_eq!(s, Some(text(*key, *value).as_str()), "row {key} mixes two versions");
            assert_eq!(rows.insert(*key, *value), None, "row {key} was returned twice");
        }
    }
    rows
}

/// Compares the table with the rows sent and acknowledged. Uncertain rows take the state found.
async fn check(table: &Table, lanes: &Lanes, round: u64) {
    let mut found = scan(table).await;
    for lane in lanes {
        let mut lane = lane.lock();
        assert_eq!(lane.unexpected, [], "round {round}");
        for (key, possible) in &mut lane.rows {
            let value = found.remove(key);
            assert!(
                possible.contains(&value),
                "round {round}: row {key} is {value:?}, not one of {possible:?}"
            );
            *possible = vec![value];
        }
    }
    assert_eq!(found, BTreeMap::new(), "round {round}: rows that were never sent");
}

/// Writes from all lanes until some batches are acknowledged, and kills the server while others are in flight.
async fn write_and_kill(table: &Table, lanes: &Lanes, child: &mut Child, rng: &mut ChaCha12Rng) {
    let (sender, mut acknowledged) = mpsc::unbounded_channel();
    for (lane, state) in (0..).zip(lanes) {
        let rng = ChaCha12Rng::seed_from_u64(rng.next_u64());
        tokio::spawn(write(table.clone(), lane, state.clone(), rng, sender.clone()));
    }
    for _ in 0..20 + below(rng, 150) {
        acknowledged.recv().await.unwrap();
    }
    let delay = Duration::from_micros(below(rng, 10_000));
    table.client().env().sleep(delay).await;
    child.kill().unwrap();
}

/// Starts a cluster and kills it during its recovery, then starts it again.
fn up_again(dir: &Path, settings: &[&str], rng: &mut ChaCha12Rng) -> (Child, String) {
    let mut early = common::begin_up(dir, settings);
    std::thread::sleep(Duration::from_millis(below(rng, 300)));
    early.kill().unwrap();
    early.wait().unwrap();
    common::up(dir, settings)
}

/// Returns the names of all files of tablets in this directory of the tablet server.
fn files(dir: &Path, of: &str) -> Vec<String> {
    let tablets = std::fs::read_dir(dir.join("tserver-1").join(of)).unwrap();
    let files = tablets.flat_map(|tablet| std::fs::read_dir(tablet.unwrap().path()).unwrap());
    files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

/// Returns a runtime for the client of one round. Dropping it ends all tasks of the client with the server.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn kill_repeatedly(seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    let lanes: Lanes = (0..LANES).map(|_| Arc::default()).collect();
    let (mut child, mut printed) = common::up(dir.path(), BUSY);
    for round in 0..ROUNDS {
        runtime().block_on(async {
            let client = connect(&printed).await;
            let table = match round {
                0 => client.create_table(&create()).await.unwrap(),
                _ => client.open_table(TABLE).await.unwrap(),
            };
            check(&table, &lanes, round).await;
            write_and_kill(&table, &lanes, &mut child, &mut rng).await;
        });
        child.wait().unwrap();
        let settings = if below(&mut rng, 3) == 0 { LAZY } else { BUSY };
        (child, printed) = up_again(dir.path(), settings, &mut rng);
    }
    runtime().block_on(async {
        let table = connect(&printed).await.open_table(TABLE).await.unwrap();
        check(&table, &lanes, ROUNDS).await;
    });
    common::stop(child);
    let acknowledged: u64 = lanes.iter().map(|lane| lane.lock().acknowledged).sum();
    assert!(acknowledged > 1000, "only {acknowledged} rows were acknowledged");
    assert!(!files(dir.path(), "data/data").is_empty(), "no rowset was flushed");
    let logs = files(dir.path(), "wal/wals");
    let first = logs.iter().filter(|file| *file == "0000000001.wal").count();
    assert!(first < 3, "no log segment was deleted: {logs:?}");
}

#[test]
fn acknowledged_rows_survive_kills() {
    kill_repeatedly(1);
}

#[test]
fn acknowledged_rows_survive_other_kills() {
    kill_repeatedly(2);
}
