//! A master, two tablet servers and a client in turmoil's world: a table is created, filled and read while servers are
//! killed, lose power and are cut off.

use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use engine::config::TabletConfig;
use engine::schema::row_ops::{ClientCell, RowOpKind};
use engine::schema::{ColumnSchema, DataType, Schema};
use node::master::{self, MasterConfig};
use node::tserver::{self, TserverConfig};
use nyala_client::{Client, ClientConfig, CreateTable, FlushMode, ScanSpec, SessionConfig, Table};
use nyala_common::env::Env;
use sim::event_log::{EventLog, RunFingerprint};
use sim::world::turmoil::{TurmoilResult, TurmoilWorld};

const TSERVERS: [&str; 2] = ["tserver-1", "tserver-2"];

fn dirs() -> (String, Vec<String>) {
    ("wal".to_string(), vec!["data".to_string()])
}

async fn serve_master(env: Env) -> TurmoilResult {
    let (wal, data) = dirs();
    let mut config = MasterConfig::new("0.0.0.0:7051".parse()?, wal, data);
    config.masters = vec!["master:7051".to_string()];
    config.catalog.replicas_default = 1;
    let _master = master::run(env, config).await?;
    std::future::pending().await
}

async fn serve_tablets(env: Env) -> TurmoilResult {
    let (wal, data) = dirs();
    let mut config = TserverConfig::new("0.0.0.0:7050".parse()?, wal, data);
    config.masters = vec!["master:7051".to_string()];
    config.heartbeat_interval_ms = 100;
    config.maintenance_interval_ms = 20;
    config.tablet = TabletConfig { cell_bytes_max: 64 << 10, ..TabletConfig::tiny() };
    let _tserver = tserver::run(env, config).await?;
    std::future::pending().await
}

async fn connect(env: &Env) -> Client {
    let mut config = ClientConfig::new(["master:7051"]);
    config.rpc_timeout = Duration::from_secs(1);
    config.operation_timeout = Duration::from_secs(60);
    loop {
        match Client::connect(env.clone(), config.clone()).await {
            Ok(client) => return client,
            Err(_) => env.sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn create(client: &Client) -> Result<Table, nyala_client::Error> {
    let columns = vec![
        ColumnSchema::new(0, "k", DataType::Int64),
        ColumnSchema::new(1, "s", DataType::String).nullable(),
    ];
    let schema = Schema::new(columns, 1).expect("a legal schema");
    let mut create = CreateTable::new("t", schema).hash(&["k"], 4)?;
    create.replicas = Some(1);
    client.create_table(&create).await
}

async fn fill(table: &Table, rows: std::ops::Range<i64>) -> TurmoilResult {
    let session = table.client().session(SessionConfig::new(FlushMode::AutoSync));
    for k in rows {
        let (key, text) = (k.to_le_bytes(), format!("row {k}"));
        let cells = [ClientCell::Value(&key), ClientCell::Value(text.as_bytes())];
        session.apply(table, RowOpKind::Insert, &cells, k as u64).await?;
    }
    Ok(())
}

async fn keys(table: &Table) -> Result<Vec<i64>, nyala_client::Error> {
    let mut scanner = table.scan(ScanSpec::default())?;
    let mut keys = Vec::new();
    while let Some(batch) = scanner.next_batch().await? {
        keys.extend(batch.column(0).as_primitive::<Int64Type>().values());
    }
    keys.sort_unstable();
    Ok(keys)
}

async fn use_cluster(env: Env, rows: i64) -> TurmoilResult {
    let client = connect(&env).await;
    let table = create(&client).await?;
    fill(&table, 0..rows).await?;
    let found = keys(&table).await?;
    if found.iter().copied().eq(0..rows) {
        Ok(())
    } else {
        Err(format!("rows 0 to {rows} became {found:?}").into())
    }
}

fn world(seed: u64, rows: i64, log: EventLog) -> TurmoilWorld {
    let mut world = TurmoilWorld::new(seed, Duration::from_secs(300), log);
    world.host("master", serve_master);
    TSERVERS.iter().for_each(|name| world.host(name, serve_tablets));
    world.client("client", move |env| use_cluster(env, rows));
    world
}

/// Applies a fault to one server and ends it.
fn fault(world: &mut TurmoilWorld, number: u64) {
    let victim = ["tserver-1", "tserver-2", "master"][number as usize % 3];
    let kind = (number + number / 3) % 3;
    match kind {
        0 => world.cut_power(victim),
        1 => world.kill(victim),
        _ => world.hold(victim, "client"),
    }
    world.run_for(Duration::from_millis(300)).expect("no client fails");
    match kind {
        2 => world.release(victim, "client"),
        _ => world.restart(victim),
    }
}

fn run(seed: u64, keep: bool) -> (RunFingerprint, Vec<String>) {
    let log = EventLog::new(keep);
    let mut world = world(seed, 600, log.clone());
    // Until the table exists.
    let mut ended = world.run_for(Duration::from_millis(1_500)).expect("no client fails");
    let mut faults = 0;
    while !ended {
        fault(&mut world, faults);
        faults += 1;
        let pause = Duration::from_millis(50 + (seed * 31 + faults * 17) % 90);
        ended = world.run_for(pause).expect("each row was inserted once and is there");
    }
    assert!(faults >= 6, "only {faults} faults");
    (world.fingerprint(), log.lines())
}

#[test]
fn a_table_is_created_filled_and_read() {
    world(1, 50, EventLog::new(false)).run().expect("all inserted rows are read");
}

#[test]
fn rows_are_inserted_once_and_stay() {
    for seed in 0..3 {
        run(seed, false);
    }
}

#[test]
fn a_seed_repeats_itself() {
    let (first, first_lines) = run(5, true);
    let (second, second_lines) = run(5, true);
    let parting = first_lines.iter().zip(&second_lines).position(|(first, second)| first != second);
    let around = |lines: &[String]| parting.map(|at| lines[at.saturating_sub(3)..at + 1].join("\n"));
    assert_eq!(around(&first_lines), around(&second_lines));
    assert_eq!(first, second);
}
