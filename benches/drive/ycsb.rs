//! YCSB: a load, or a workload on loaded rows.
//!
//! As in YCSB's binding, all clients share one connection and each has a session. A client begins its next operation,
//! or batch, when the last is done. The table has range partitions of equal size, and keys are spread over them
//! evenly.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use benches::ycsb;
use clap::Args;
use engine::schema::partition_range::PartitionRange;
use engine::schema::row_ops::{ClientCell, RowOpKind};
use nyala_client::{CreateTable, FlushMode, Result, ScanSpec, Session, SessionConfig, Table};
use rand::distr::{Distribution, Uniform};
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::Target;
use crate::mix::{OpMix, Operation, Rows};
use crate::report::Report;
use crate::sampler::{OpCounts, Sampler};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// Operations and their weights: `insert:1`, `read:95,update:5`; also scan and read-modify-write
    #[arg(long)]
    mix: OpMix,
    /// Operations of a client between two flushes
    #[arg(long, default_value_t = 1)]
    batch: u64,
    /// Rows loaded before the run; inserts add rows after them
    #[arg(long, default_value_t = 0)]
    rows: u64,
    /// Number of operations after which the run ends
    #[arg(long, required_unless_present = "seconds")]
    operations: Option<u64>,
    /// Time after which the run ends, in seconds
    #[arg(long)]
    seconds: Option<f64>,
    /// Make all rows equally popular
    #[arg(long)]
    uniform: bool,
}

/// Largest number of rows that a scan of YCSB's workload E asks for.
const SCAN_ROWS_MAX: u64 = 100;

pub(crate) async fn run(options: &Options) -> std::result::Result<Report, Box<dyn Error>> {
    let client = options.target.connect().await?;
    let table =
        options.target.table(&client, &create_table(&options.target.table, options.target.tablets)?).await?;
    let tally = OpCounts::new();
    let watch = Sampler::start(&options.target, tally.clone())?;
    let job = Arc::new(Job::new(options, table, tally));
    let clients = (0..options.target.clients).map(|seed| tokio::spawn(Worker::new(&job, seed).work()));
    for client in clients.collect::<Vec<_>>() {
        client.await?;
    }
    Ok(watch.end()?)
}

/// Returns the definition of YCSB's table, in ranges of keys of equal size.
pub(crate) fn create_table(name: &str, tablets: u32) -> Result<CreateTable> {
    let mut create = CreateTable::new(name, ycsb::schema()).range(&["key"])?;
    let step = u64::MAX / u64::from(tablets);
    let splits = (1..u64::from(tablets)).map(|i| ycsb::key_at(step * i).into_bytes());
    let mut lower = Vec::new();
    for upper in splits.chain([Vec::new()]) {
        create.ranges.push(PartitionRange::new(std::mem::replace(&mut lower, upper.clone()), upper)?);
    }
    create.replicas = Some(1);
    Ok(create)
}

/// State shared by the clients.
struct Job {
    table: Table,
    mix: OpMix,
    rows: Rows,
    batch: u64,
    /// Operations that no client has taken yet.
    left: AtomicU64,
    until: Option<Instant>,
    next_row: AtomicU64,
    tally: Arc<OpCounts>,
    complained: AtomicBool,
}

impl Job {
    fn new(options: &Options, table: Table, tally: Arc<OpCounts>) -> Job {
        let until = options.seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
        Job {
            table,
            mix: options.mix.clone(),
            rows: Rows::new(options.rows.max(1), !options.uniform),
            batch: options.batch,
            left: AtomicU64::new(options.operations.unwrap_or(u64::MAX)),
            until,
            next_row: AtomicU64::new(options.rows),
            tally,
            complained: AtomicBool::new(false),
        }
    }

    /// Returns the number of operations to do now; zero at the end.
    fn take(&self) -> u64 {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return 0;
        }
        let rest = |left: u64| Some(left.saturating_sub(self.batch));
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
        left.expect("there always is a rest").min(self.batch)
    }

    /// Returns true on success; prints the first error of a run.
    fn report_error(&self, done: Result<()>) -> bool {
        let Err(error) = done else { return true };
        if !self.complained.swap(true, Ordering::Relaxed) {
            eprintln!("drive: {error}");
        }
        false
    }
}

struct Worker {
    job: Arc<Job>,
    session: Session,
    rng: ChaCha12Rng,
}

impl Worker {
    fn new(job: &Arc<Job>, seed: u64) -> Worker {
        let session = job.table.client().session(SessionConfig::new(FlushMode::Manual));
        Worker { job: job.clone(), session, rng: ChaCha12Rng::seed_from_u64(seed) }
    }

    async fn work(mut self) {
        let job = self.job.clone();
        loop {
            let count = job.take();
            if count == 0 {
                return;
            }
            let began = Instant::now();
            let mut failed = 0;
            for _ in 0..count {
                let done = self.operate().await;
                failed += u64::from(!job.report_error(done));
            }
            for failure in self.session.flush().await {
                job.report_error(Err(failure.error));
                failed += 1;
            }
            job.tally.done(count, failed.min(count), Some(began.elapsed()));
        }
    }

    /// Runs one operation; its writes leave with the next flush.
    async fn operate(&mut self) -> Result<()> {
        let job = self.job.clone();
        let (operation, row) = (job.mix.pick(&mut self.rng), job.rows.pick(&mut self.rng));
        match operation {
            Operation::Insert => self.insert(job.next_row.fetch_add(1, Ordering::Relaxed)).await,
            Operation::Update => self.update(row).await,
            Operation::Read => self.read(row).await,
            Operation::Scan => self.scan(row).await,
            Operation::ReadModifyWrite => {
                self.read(row).await?;
                self.update(row).await
            }
        }
    }

    async fn insert(&self, row: u64) -> Result<()> {
        let (key, fields) = (ycsb::key(row), ycsb::fields(row));
        let cells = ycsb::cells(&key, &fields);
        self.session.apply(&self.job.table, RowOpKind::Insert, &cells, row).await
    }

    async fn update(&mut self, row: u64) -> Result<()> {
        let (key, drawn) = (ycsb::key(row), self.rng.next_u64());
        let fields = ycsb::fields(drawn);
        let mut cells: Vec<ClientCell<'_>> = self.job.table.blank_row();
        cells[0] = ClientCell::Value(key.as_bytes());
        cells[1 + drawn as usize % ycsb::FIELDS] = ClientCell::Value(&fields[..ycsb::FIELD_BYTES]);
        self.session.apply(&self.job.table, RowOpKind::Update, &cells, row).await
    }

    /// Reads a row, which must exist.
    async fn read(&self, row: u64) -> Result<()> {
        let key = ycsb::key(row);
        let predicates = self.job.table.key_equals(&[key.as_bytes()]);
        match self.rows(ScanSpec { predicates, ..ScanSpec::default() }).await? {
            1 => Ok(()),
            rows => Err(nyala_client::Error::not_found(format!("{key} is there {rows} times"))),
        }
    }

    async fn scan(&mut self, row: u64) -> Result<()> {
        let keys = PartitionRange::new(ycsb::key(row).into_bytes(), Vec::new())?;
        let limit =
            Uniform::new_inclusive(1, SCAN_ROWS_MAX).expect("there are lengths").sample(&mut self.rng);
        self.rows(ScanSpec { keys, limit: Some(limit), ..ScanSpec::default() }).await.map(drop)
    }

    async fn rows(&self, spec: ScanSpec) -> Result<usize> {
        let mut scanner = self.job.table.scan(spec)?;
        let mut rows = 0;
        while let Some(batch) = scanner.next_batch().await? {
            rows += batch.num_rows();
        }
        Ok(rows)
    }
}
