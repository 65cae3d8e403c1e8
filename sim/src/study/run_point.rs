//! One point of a study: a cluster of modelled servers, its clients, and their results.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use engine::disk::mem::DiskCost;
use engine::error::Error;
use engine::schema::row_ops::{ClientCell, RowOpKind};
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::sync::Mutex;
use engine::time::Instant;
use node::master::{self, MasterConfig};
use node::tserver::{self, TserverConfig};
use nyala_client::{Client, ClientConfig, CreateTable, FlushMode, ScanSpec, Session, SessionConfig, Table};
use nyala_common::env::Env;

use super::setup::{DiskModel, StudyOp, StudyPoint, StudyResult, StudySetup};
use crate::cluster::{DATA_DIR, WAL_DIR};
use crate::event_log::EventLog;
use crate::net::capacity::{CapacityUsed, HostCapacity};
use crate::workload::{MASTER_PORT, TSERVER_PORT};
use crate::world::madsim::MadsimWorld;
use crate::world::{HostProgram, ProgramResult, StopReason, World};
use sim_plan::{Host, NetworkSpec};

const SEED: u64 = 1;
const TABLE: &str = "rows";
const MEMORY_BYTES: u64 = 64 << 30;
/// Receive window of one direction of a connection, as Linux lets windows grow.
const WINDOW_BYTES: u32 = 4 << 20;
/// Time for clients to find the table.
const PREPARING: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(600);
/// A row as YCSB has it: a key and ten fields.
const FIELDS: usize = 10;
const FIELD_BYTES: usize = 100;

/// An operation's begin and end in simulated nanoseconds, and its rows.
type CompletedOp = (u64, u64, u64);

/// The clients' finished operations, by the index of the phase.
type Tally = Arc<Mutex<BTreeMap<usize, Vec<CompletedOp>>>>;

pub(super) fn run_point(setup: &StudySetup) -> Result<StudyPoint> {
    let mut world = MadsimWorld::new(SEED, network(setup), DiskCost::default(), EventLog::new(false));
    boot(&mut world, setup);
    world.client("setup", once(setup, |setup, env| Box::pin(async move { make_table(&env, &setup).await })));
    until_clients_end(&mut world)?;
    let begin = world.mono().after(PREPARING);
    let tally = Tally::default();
    let hosts = setup.work.clients.min(usize::from(setup.servers));
    for host in 0..hosts {
        let tally = tally.clone();
        let program = once(setup, move |setup, env| {
            let tally = tally.clone();
            Box::pin(async move { drive(&env, &setup, (host, hosts), begin, &tally).await })
        });
        world.client(&format!("load{host}"), program);
    }
    let used = sample_capacity(&mut world, setup)?;
    until_clients_end(&mut world)?;
    // The world's tasks hold the tally as well.
    let done = std::mem::take(&mut *tally.lock());
    let measured = (0..setup.work.operations.len()).map(|phase| {
        let none = Vec::new();
        measure(setup, begin, phase, done.get(&phase).unwrap_or(&none), used[phase])
    });
    let point = StudyPoint { setup: setup.clone(), measured: measured.collect() };
    // Dropping a world drops its tasks one by one; the process ends soon anyway.
    std::mem::forget(world);
    Ok(point)
}

fn network(setup: &StudySetup) -> NetworkSpec {
    NetworkSpec {
        latency: Duration::from_nanos(setup.link.latency_ns),
        jitter: Duration::from_nanos(setup.link.latency_ns / 10),
        bytes_per_ms: setup.link.bytes_per_ms,
        window: WINDOW_BYTES,
        loss_per_mille: 0,
        cut_one_in: u16::MAX,
    }
}

/// Boots servers with the devices and processors of the setup.
fn boot(world: &mut MadsimWorld, setup: &StudySetup) {
    let master = Host::Master(0);
    world.boot(&master.name(), once(setup, |_, env| Box::pin(serve_master(env))));
    for number in 0..setup.servers {
        let host = Host::Tserver(number);
        let machine = world.machine(&host.name());
        machine.set_memory_bytes(MEMORY_BYTES);
        machine.disk(WAL_DIR).set_cost(cost(setup.machine.wal));
        machine.disk(DATA_DIR).set_cost(cost(setup.machine.data));
        let of = &setup.machine;
        let capacity =
            HostCapacity::new(of.cores, of.message_ns, of.kib_ns, u64::from(setup.link.bytes_per_ms));
        world.set_capacity(&host.name(), capacity);
        let program = once(setup, move |setup, env| Box::pin(serve_tablets(env, host, setup.log_sync)));
        world.boot(&host.name(), program);
    }
}

fn cost(device: DiskModel) -> DiskCost {
    let (kib, sync) = (Duration::from_nanos(device.kib_ns), Duration::from_nanos(device.sync_ns));
    DiskCost { op: Duration::ZERO, kib, sync }
}

type Ran = std::pin::Pin<Box<dyn Future<Output = ProgramResult>>>;

/// Returns a program that runs with the setup.
fn once(setup: &StudySetup, run: impl Fn(StudySetup, Env) -> Ran + Send + Sync + 'static) -> HostProgram {
    let setup = setup.clone();
    Arc::new(move |env| run(setup.clone(), env))
}

async fn serve_master(env: Env) -> ProgramResult {
    let host = Host::Master(0);
    let mut config =
        MasterConfig::new(([0, 0, 0, 0], MASTER_PORT).into(), WAL_DIR, vec![DATA_DIR.to_string()]);
    config.rpc_advertised_addrs = vec![format!("{host}:{MASTER_PORT}")];
    config.masters = vec![format!("{host}:{MASTER_PORT}")];
    let master = master::run(env, config).await?;
    master.catalog_ended().await;
    Err("the master's catalog ended".into())
}

async fn serve_tablets(env: Env, host: Host, log_sync: bool) -> ProgramResult {
    let mut config =
        TserverConfig::new(([0, 0, 0, 0], TSERVER_PORT).into(), WAL_DIR, vec![DATA_DIR.to_string()]);
    config.rpc_advertised_addrs = vec![format!("{host}:{TSERVER_PORT}")];
    config.masters = vec![format!("{}:{MASTER_PORT}", Host::Master(0))];
    config.log_sync = log_sync;
    let _server = tserver::run(env, config).await?;
    std::future::pending().await
}

fn until_clients_end(world: &mut MadsimWorld) -> Result<()> {
    match world.run_until(world.now() + LIMIT) {
        Ok(StopReason::ClientsEnded) => Ok(()),
        other => bail!("the study's clients did not end: {other:?}"),
    }
}

/// Returns the capacity that servers used in each phase's measured part.
fn sample_capacity(world: &mut MadsimWorld, setup: &StudySetup) -> Result<Vec<CapacityUsed>> {
    let mut at = world.now() + PREPARING;
    let mut used = Vec::new();
    for _ in &setup.work.operations {
        at += Duration::from_millis(setup.work.warm_ms);
        let before = used_at(world, setup, at)?;
        at += Duration::from_millis(setup.work.ms);
        let after = used_at(world, setup, at)?;
        used.push(CapacityUsed { cores: after.cores - before.cores, link: after.link - before.link });
    }
    Ok(used)
}

fn used_at(world: &mut MadsimWorld, setup: &StudySetup, at: Duration) -> Result<CapacityUsed> {
    let stopped = world.run_until(at);
    ensure!(stopped == Ok(StopReason::Reached), "the study's clients are gone: {stopped:?}");
    let mut sum = CapacityUsed::default();
    for number in 0..setup.servers {
        let used = world.used(&Host::Tserver(number).name());
        sum = CapacityUsed { cores: sum.cores + used.cores, link: sum.link + used.link };
    }
    Ok(sum)
}

async fn make_table(env: &Env, setup: &StudySetup) -> ProgramResult {
    let field = |id: usize| ColumnSchema::new(id as u32, &format!("field{id}"), DataType::String).nullable();
    let key = ColumnSchema::new(0, "key", DataType::String);
    let columns = std::iter::once(key).chain((1..=FIELDS).map(field)).collect();
    let mut create =
        CreateTable::new(TABLE, Schema::new(columns, 1)?).hash(&["key"], setup.tablets.max(2))?;
    create.replicas = Some(i32::from(setup.replicas));
    let client = connect(env).await?;
    // Tablets are placed on the known tablet servers.
    while client.tablet_servers().await? < usize::from(setup.servers) {
        env.sleep(PREPARING).await;
    }
    while let Err(error) = client.create_table(&create).await {
        if client.open_table(TABLE).await.is_ok() {
            break;
        }
        tracing::debug!(%error, "the table does not exist yet");
        env.sleep(PREPARING).await;
    }
    Ok(())
}

async fn connect(env: &Env) -> Result<Client, Error> {
    let master = format!("{}:{MASTER_PORT}", Host::Master(0));
    Client::connect(env.clone(), ClientConfig::new([master])).await
}

/// Runs the clients of one host until all phases have ended.
async fn drive(
    env: &Env,
    setup: &StudySetup,
    (host, hosts): (usize, usize),
    begin: Instant,
    tally: &Tally,
) -> ProgramResult {
    let client = connect(env).await?;
    let table = client.open_table(TABLE).await?;
    let numbers = (host..setup.work.clients).step_by(hosts);
    let workers = numbers.map(|number| {
        let session = client.session(SessionConfig::new(FlushMode::Manual));
        let worker = Worker { env, setup, table: &table, session, number: number as u64, rows: 0, drawn: 1 };
        worker.work(begin, tally)
    });
    for ended in futures_util::future::join_all(workers).await {
        ended?;
    }
    Ok(())
}

struct Worker<'a> {
    env: &'a Env,
    setup: &'a StudySetup,
    table: &'a Table,
    session: Session,
    number: u64,
    /// Rows that it has inserted.
    rows: u64,
    drawn: u64,
}

impl Worker<'_> {
    async fn work(mut self, begin: Instant, tally: &Tally) -> Result<(), Error> {
        let now = self.env.now().mono;
        self.env.sleep(begin.since(now)).await;
        for (phase, operation) in self.setup.work.operations.iter().enumerate() {
            let end = begin.after(phase_length(self.setup) * (phase as u32 + 1));
            while self.env.now().mono < end {
                let began = self.env.now().mono;
                for _ in 0..self.setup.work.batch {
                    self.operate(*operation).await?;
                }
                if let Some(failure) = self.session.flush().await.pop() {
                    return Err(failure.error);
                }
                let done = (began.0, self.env.now().mono.0, self.setup.work.batch);
                let mut tally = tally.lock();
                tally.entry(phase).or_default().push(done);
            }
        }
        Ok(())
    }

    async fn operate(&mut self, operation: StudyOp) -> Result<(), Error> {
        let (key, row) = match operation {
            StudyOp::Insert => (self.key(self.rows), self.rows),
            StudyOp::Update | StudyOp::Read => {
                self.drawn = mix(self.drawn.wrapping_add(self.number));
                let row = self.drawn % self.rows.max(1);
                (self.key(row), row)
            }
        };
        let fields = fields(self.number ^ row);
        match operation {
            StudyOp::Insert => {
                let cells = fields.chunks(FIELD_BYTES).map(ClientCell::Value);
                let cells: Vec<ClientCell<'_>> =
                    std::iter::once(ClientCell::Value(key.as_bytes())).chain(cells).collect();
                self.rows += 1;
                self.session.apply(self.table, RowOpKind::Insert, &cells, row).await
            }
            StudyOp::Update => {
                let mut cells = self.table.blank_row();
                cells[0] = ClientCell::Value(key.as_bytes());
                cells[1 + row as usize % FIELDS] = ClientCell::Value(&fields[..FIELD_BYTES]);
                self.session.apply(self.table, RowOpKind::Update, &cells, row).await
            }
            StudyOp::Read => self.read(&key).await,
        }
    }

    /// Reads the row, which must be there.
    async fn read(&self, key: &str) -> Result<(), Error> {
        let predicates = self.table.key_equals(&[key.as_bytes()]);
        let mut scanner = self.table.scan(ScanSpec { predicates, ..ScanSpec::default() })?;
        let mut rows = 0;
        while let Some(batch) = scanner.next_batch().await? {
            rows += batch.num_rows();
        }
        if rows == 1 { Ok(()) } else { Err(Error::not_found(format!("{key} is there {rows} times"))) }
    }

    fn key(&self, row: u64) -> String {
        format!("user{:020}", mix((self.number << 40) + row + 1))
    }
}

fn phase_length(setup: &StudySetup) -> Duration {
    Duration::from_millis(setup.work.warm_ms + setup.work.ms)
}

/// Returns the result of the operations within the phase's measured part.
fn measure(
    setup: &StudySetup,
    begin: Instant,
    phase: usize,
    done: &[CompletedOp],
    used: CapacityUsed,
) -> StudyResult {
    let to = begin.after(phase_length(setup) * (phase as u32 + 1)).0;
    let from = to - Duration::from_millis(setup.work.ms).as_nanos() as u64;
    let within = done.iter().filter(|(_, ended, _)| (from..to).contains(ended));
    let rows: u64 = within.clone().map(|(.., rows)| rows).sum();
    let mut took: Vec<u64> = within.map(|(began, ended, _)| ended - began).collect();
    took.sort_unstable();
    let percentile = |percent: usize| {
        let at = (took.len() * percent / 100).min(took.len().saturating_sub(1));
        took.get(at).map_or(0.0, |nanos| *nanos as f64 / 1e3)
    };
    let whole = (setup.work.ms * 1_000_000 * u64::from(setup.servers)) as f64;
    StudyResult {
        operation: setup.work.operations[phase],
        rows,
        rows_per_second: rows as f64 / (setup.work.ms as f64 / 1e3),
        p50_us: percentile(50),
        p99_us: percentile(99),
        cores_busy: used.cores as f64 / whole / setup.machine.cores as f64,
        link_busy: used.link as f64 / whole,
    }
}

/// Returns a pseudo-random number, always the same for the same `x`, and different for different `x`.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn fields(number: u64) -> Vec<u8> {
    let words = (0..125).flat_map(|i| mix(number.wrapping_mul(125) + i).to_le_bytes());
    words.map(|byte| b' ' + byte % 94).collect()
}
