//! The client of a trial of backups: its steps, and the rows that the table has had.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use engine::error::{Error, ErrorKind, Result};
use engine::schema::partition_range::PartitionRange;
use engine::schema::table_settings::HISTORY_MAX_AGE_SEC;
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::sync::Mutex;
use futures_util::future::join;
use nyala_backup::create::{BackupKind, Snapshot, create, oldest_reads, take_snapshot};
use nyala_backup::store::{BackupStore, StoreListing};
use nyala_client::tables::AlterStep;
use nyala_client::{Client, ClientConfig, CreateTable, FlushMode, RowOpKind, SessionConfig, Table};
use nyala_common::env::Env;
use sim_plan::{Host, RandomStream};

use super::columns::{self, Rows, ValueColumn};
use super::facts::TableFacts;
use super::outage::Outage;
use super::saved::Saved;
use crate::given_up::given_up_after;
use crate::model::TableSettings;
use crate::wire::keys::int64_key;
use crate::workload::MASTER_PORT;

pub(super) const TABLE: &str = "t";
/// Directory of the store.
pub(super) const STORE: &str = "data";
/// Steps of a trial.
const STEPS: usize = 24;
/// Keys of a range, and ranges that there may be.
pub(super) const WIDTH: i64 = 100;
const RANGES: u64 = 4;
/// Most rows of a write, and tablets that are read at the same time.
const ROWS: u64 = 12;
const PARALLEL: usize = 2;
/// Percentage of backups that are given up, of backups under which a range is dropped, and of these ranges that the
/// same alteration adds again; most polls until a backup is given up.
const ABORT: u64 = 20;
const DROP_WITHIN: u64 = 40;
const REPLACE: u64 = 50;
pub(super) const POLLS: [u64; 3] = [20, 80, 300];
/// Time after which the hasty client gives up an operation.
const HASTY: Duration = Duration::from_millis(700);
/// Words of the error of a backup whose base is older than the history that servers keep.
const HISTORY_GONE: &str = "servers no longer keep the history since the base";
/// Longest time into a backup after which a range is dropped, in microseconds.
const DROP_MICROS: [u64; 3] = [1_000, 6_000, 25_000];

pub(super) struct Keeper {
    pub(super) env: Env,
    pub(super) random: RandomStream,
    pub(super) client: Client,
    /// A client that soon gives up, for restores.
    pub(super) hasty: Client,
    pub(super) table: Table,
    /// Its value columns, and the number of the last one.
    pub(super) columns: Vec<ValueColumn>,
    pub(super) next_column: u32,
    rows: Rows,
    /// Keys that ever had a row.
    pub(super) ever: BTreeSet<i64>,
    ranges: BTreeSet<i64>,
    /// The table at the time of each complete backup, in milliseconds.
    pub(super) backups: BTreeMap<u64, Saved>,
    pub(super) restored: u64,
    /// Polls of the last restore that nothing disturbed.
    pub(super) restore_polls: u64,
    pub(super) outage: Arc<Outage>,
    /// True once an outage was longer than rows are tried to be written.
    pub(super) had_long_outage: bool,
    /// Draws of backups that take longer than history is kept, if it is short.
    pub(super) slowness: Option<RandomStream>,
    story: Arc<Mutex<Vec<String>>>,
}

fn range_of(number: i64) -> PartitionRange {
    PartitionRange { lower: int64_key(number * WIDTH), upper: int64_key((number + 1) * WIDTH) }
}

/// Draws a number below one of some ends: those near 0 are frequent.
pub(super) fn below_some(random: &mut RandomStream, ends: [u64; 3]) -> u64 {
    let end = random.pick(&ends);
    random.below(end)
}

fn told(error: &Error) -> String {
    format!("{:?}: {}", error.kind, error.message)
}

impl Keeper {
    /// Creates the table and takes all steps; returns what is wrong. `is_short`: servers keep little history.
    pub(super) async fn play(
        env: Env,
        mut random: RandomStream,
        is_short: bool,
        outage: Arc<Outage>,
        story: Arc<Mutex<Vec<String>>>,
    ) -> std::result::Result<(), String> {
        let masters = [format!("{}:{MASTER_PORT}", Host::Master(0))];
        let config = ClientConfig::new(masters);
        let hasty = ClientConfig { operation_timeout: HASTY, ..config.clone() };
        let client = Client::connect(env.clone(), config).await.map_err(|error| told(&error))?;
        let hasty = Client::connect(env.clone(), hasty).await.map_err(|error| told(&error))?;
        let table = create_table(&client, &mut random, is_short).await;
        let slowness = is_short.then(|| RandomStream::new(env.rng.next_u64(), "slow backups"));
        let mut keeper = Keeper {
            env,
            random,
            client,
            hasty,
            table: table.map_err(|error| told(&error))?,
            columns: vec![ValueColumn::initial()],
            next_column: 1,
            rows: Rows::new(),
            ever: BTreeSet::new(),
            ranges: BTreeSet::from([0]),
            backups: BTreeMap::new(),
            restored: 0,
            restore_polls: 1,
            outage,
            had_long_outage: false,
            slowness,
            story,
        };
        for _ in 0..STEPS {
            keeper.take_step().await.map_err(|error| told(&error))?;
        }
        Ok(())
    }

    async fn take_step(&mut self) -> Result<()> {
        let step = self.random.weighted(&[
            ("write", 40),
            ("add range", 8),
            ("drop range", 8),
            ("alter", 12),
            ("backup", 25),
            ("restore", 25),
        ]);
        match step {
            "write" => self.write().await,
            "alter" => self.alter().await,
            "add range" => self.add_range().await,
            "drop range" => match self.draw_range() {
                Some(number) if self.ranges.len() > 1 => self.drop_range(number).await,
                _ => Ok(()),
            },
            "backup" => self.back_up().await,
            _ => self.restore_one().await,
        }
    }

    pub(super) fn note(&self, what: impl Into<String>) {
        let seconds = self.env.now().mono.0 as f64 / 1e9;
        self.story.lock().push(format!("{seconds:.4} s: {}", what.into()));
    }

    fn draw_range(&mut self) -> Option<i64> {
        let all: Vec<i64> = self.ranges.iter().copied().collect();
        (!all.is_empty()).then(|| self.random.pick(&all))
    }

    /// Writes rows, and waits until all are acknowledged.
    pub(super) async fn write(&mut self) -> Result<()> {
        let session = self.client.session(SessionConfig::new(FlushMode::Manual));
        for _ in 0..self.random.between(1, ROWS) {
            let Some(range) = self.draw_range() else { continue };
            let key = range * WIDTH + self.random.below(WIDTH as u64) as i64;
            let is_present = self.rows.contains_key(&key);
            let (kind, cells) = columns::draw_op(&mut self.random, &self.columns, is_present);
            columns::apply(&session, (&self.table, &self.columns), kind, (key, &cells)).await?;
            if kind == RowOpKind::Delete {
                self.rows.remove(&key);
            } else {
                self.ever.insert(key);
                columns::upsert(&mut self.rows, &self.columns, key, &cells);
            }
        }
        match session.flush().await.pop() {
            Some(failure) => Err(failure.error),
            None => Ok(()),
        }
    }

    /// Returns the table as it is now.
    fn saved(&self) -> Saved {
        Saved {
            rows: columns::read_rows(&self.rows, &self.columns),
            columns: self.columns.clone(),
            ranges: self.ranges.clone(),
            facts: TableFacts::of(&self.table),
        }
    }

    async fn add_range(&mut self) -> Result<()> {
        let number = self.random.below(RANGES) as i64;
        if self.ranges.insert(number) {
            let step = AlterStep::AddRange(range_of(number));
            self.table = self.client.alter_table(&self.table, &[step], None).await?;
            self.note(format!("range {number} is added"));
        }
        Ok(())
    }

    async fn drop_range(&mut self, number: i64) -> Result<()> {
        let step = AlterStep::DropRange(range_of(number));
        self.table = self.client.alter_table(&self.table, &[step], None).await?;
        self.forget_range(number, false);
        Ok(())
    }

    fn forget_range(&mut self, number: i64, replaced: bool) {
        self.rows.retain(|key, _| key.div_euclid(WIDTH) != number);
        if !replaced {
            self.ranges.remove(&number);
        }
        self.note(format!("range {number} is {}", if replaced { "replaced" } else { "dropped" }));
    }

    /// Backs up the table; the backup may be given up, and a range be dropped or replaced by an empty one meanwhile.
    async fn back_up(&mut self) -> Result<()> {
        let store = BackupStore::create(&self.env, STORE)?;
        let listing = store.list()?;
        let kind = self.random.pick(&[BackupKind::Any, BackupKind::Full, BackupKind::Incremental]);
        let snapshot = take_snapshot(&self.client, &[TABLE.to_string()]).await;
        let saved = self.saved();
        let hold = self.outlive_history(&oldest_reads(&snapshot, &listing, kind)).await?;
        let victim = self.draw_range().filter(|_| self.ranges.len() > 1 && self.random.percent(DROP_WITHIN));
        let patience =
            if self.random.percent(ABORT) { below_some(&mut self.random, POLLS) } else { u64::MAX };
        let backup = given_up_after(patience, back_up(&store, &snapshot, &listing, kind));
        let delay = Duration::from_micros(below_some(&mut self.random, DROP_MICROS));
        let replaced = self.random.percent(REPLACE);
        let drops = async {
            let Some(number) = victim else { return Ok(None) };
            self.env.sleep(delay).await;
            let dropped = AlterStep::DropRange(range_of(number));
            let added = replaced.then(|| AlterStep::AddRange(range_of(number)));
            let steps: Vec<AlterStep> = iter::once(dropped).chain(added).collect();
            self.client.alter_table(&self.table, &steps, None).await.map(Some)
        };
        let (created, dropped) = join(backup, drops).await;
        if let Some(hold) = hold {
            hold.release().await;
        }
        if let (Some(table), Some(number)) = (dropped?, victim) {
            self.table = table;
            self.forget_range(number, replaced);
        }
        self.note(format!("backup at {}: {:?}", snapshot.to_ms, created.as_ref().map(|done| done.is_ok())));
        match created {
            Some(Ok(())) => {
                self.backups.insert(snapshot.to_ms, saved);
            }
            Some(Err(error)) if victim.is_none() && !lacks_base(kind, &error) => return Err(error),
            // Without a base, or without a range whose rows it needs.
            Some(Err(_)) | None => {}
        }
        Ok(())
    }
}

/// Returns true if an incremental backup may fail with this error: there is no base, or its history is gone.
fn lacks_base(kind: BackupKind, error: &Error) -> bool {
    let is_gone = error.kind == ErrorKind::Invalid && error.message.contains(HISTORY_GONE);
    kind == BackupKind::Incremental && (error.kind == ErrorKind::NotFound || is_gone)
}

/// Creates the table, with settings that are drawn. `is_short`: it keeps history no longer than servers do.
async fn create_table(client: &Client, random: &mut RandomStream, is_short: bool) -> Result<Table> {
    let buckets = random.pick(&[None, Some(2)]);
    let value = ValueColumn::initial().schema(random);
    let schema = Schema::new(vec![ColumnSchema::new(0, "k", DataType::Int64), value], 1)?;
    let mut create = CreateTable::new(TABLE, schema).range(&["k"])?;
    if let Some(buckets) = buckets {
        create = create.hash(&["k"], buckets)?;
    }
    let TableSettings { owner, comment, mut extra } = TableSettings::drawn(random);
    extra.retain(|name, _| !is_short || name != HISTORY_MAX_AGE_SEC);
    let create = CreateTable {
        ranges: vec![range_of(0)],
        replicas: Some(1),
        owner: Some(owner),
        comment: Some(comment),
        extra_config: extra,
        ..create
    };
    client.create_table(&create).await
}

async fn back_up(
    store: &BackupStore,
    snapshot: &Snapshot,
    listing: &StoreListing,
    kind: BackupKind,
) -> Result<()> {
    let (_, table) = &snapshot.tables[0];
    let table = table.as_ref().map_err(Error::clone)?;
    create(store, table, snapshot.to_ms, listing, kind, PARALLEL).await.map(|_| ())
}
