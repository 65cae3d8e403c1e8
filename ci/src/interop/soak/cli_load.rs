//! Load by the nyala program, which is the Rust client: imports, deletes, and exports that are compared.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::draw::Dice;
use super::rows::{self, AcknowledgedRows};
use super::stage::{Stage, Stopwatch};
use crate::command::{CommandLine, Output};

const TABLE: &str = "soak_nyala";
const KEYS: u64 = 10_000;
const BATCH: usize = 100;
/// Pause between batches: histories and copies must not grow too fast.
const PAUSE: Duration = Duration::from_millis(300);
const READ_INTERVAL: Duration = Duration::from_secs(10);
/// Longest time in which the last read must succeed.
const LAST_READ_TIMEOUT: Duration = Duration::from_secs(300);

/// Numbers of a load.
#[derive(Default)]
pub(super) struct LoadReport {
    acknowledged: u64,
    open: u64,
    rows_read: u64,
    reads: u64,
    failed_reads: u64,
    slowest: Duration,
}

impl fmt::Display for LoadReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LoadReport { acknowledged, open, rows_read, reads, failed_reads, slowest } = self;
        write!(
            out,
            "nyala: {acknowledged} writes acknowledged, {open} of unknown outcome, {rows_read} rows checked by \
             {reads} reads, {failed_reads} reads failed, slowest batch {} ms",
            slowest.as_millis()
        )
    }
}

/// The running load.
pub(super) struct CliLoad {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<LoadReport>>>,
}

impl CliLoad {
    /// Makes the table and starts to write.
    pub(super) fn start(stage: &Stage, dir: &Path, seed: u64) -> Result<CliLoad> {
        let columns = ["--column", "key int64", "--column", "version int64", "--column", "text string"];
        let create = ["table", "create", TABLE, "--hash", "key:6", "--replicas", "3"];
        stage.nyala(&[&create[..], &columns].concat())?;
        let stop = Arc::new(AtomicBool::new(false));
        let writer = CliWriter {
            program: stage.program.clone(),
            masters: stage.masters.clone(),
            batch: dir.join("batch.csv"),
            watch: stage.watch,
            dice: Dice::new(!seed),
            rows: AcknowledgedRows::default(),
            version: 0,
            report: LoadReport::default(),
        };
        let told = stop.clone();
        Ok(CliLoad { stop, thread: Some(thread::spawn(move || writer.run(&told))) })
    }

    /// Fails if the load has ended by itself.
    pub(super) fn check_runs(&mut self) -> Result<()> {
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Ok(());
        }
        self.join()?;
        bail!("the load ended before it was told to")
    }

    /// Ends the load after a last read.
    pub(super) fn stop(mut self) -> Result<LoadReport> {
        self.stop.store(true, Ordering::Release);
        self.join()
    }

    fn join(&mut self) -> Result<LoadReport> {
        let thread = self.thread.take().context("the load was joined before")?;
        thread.join().map_err(|_| anyhow::anyhow!("the thread of the load panicked"))?
    }
}

impl Drop for CliLoad {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

struct CliWriter {
    program: PathBuf,
    masters: String,
    /// File of the batch that is written.
    batch: PathBuf,
    watch: Stopwatch,
    dice: Dice,
    rows: AcknowledgedRows,
    version: u64,
    report: LoadReport,
}

impl CliWriter {
    fn run(mut self, told: &AtomicBool) -> Result<LoadReport> {
        let mut last_read = Instant::now();
        while !told.load(Ordering::Acquire) {
            let begun = Instant::now();
            self.upsert_batch()?;
            self.report.slowest = self.report.slowest.max(begun.elapsed());
            self.delete_row()?;
            if last_read.elapsed() > READ_INTERVAL {
                self.read()?;
                last_read = Instant::now();
            }
            thread::sleep(PAUSE);
        }
        let begun = Instant::now();
        while !self.read()? {
            ensure!(begun.elapsed() < LAST_READ_TIMEOUT, "the last read of {TABLE} fails");
            thread::sleep(Duration::from_secs(1));
        }
        ensure!(self.report.acknowledged > 0, "no write was acknowledged");
        self.report.open = self.rows.open_count();
        Ok(self.report)
    }

    fn nyala(&self, words: &[&str]) -> Result<Output> {
        CommandLine::new(&self.program).args(words).args(["--masters", &self.masters]).output()
    }

    fn key(&mut self) -> u64 {
        self.dice.below(KEYS + self.rows.open_count())
    }

    fn upsert_batch(&mut self) -> Result<()> {
        let mut keys = BTreeSet::new();
        while keys.len() < BATCH {
            let key = self.key();
            if self.rows.is_writable(key) {
                keys.insert(key);
            }
        }
        self.version += 1;
        let version = self.version;
        let lines: String =
            keys.iter().map(|key| format!("{key},{version},{}\n", rows::text(*key, version))).collect();
        fs::write(&self.batch, format!("key,version,text\n{lines}"))?;
        let file = self.batch.display().to_string();
        let output = self.nyala(&["table", "import", TABLE, &file, "--mode", "upsert"])?;
        let keys: Vec<u64> = keys.into_iter().collect();
        self.record("import", &output, &keys, Some(version));
        Ok(())
    }

    fn delete_row(&mut self) -> Result<()> {
        let key = self.key();
        if self.rows.is_deletable(key) {
            let output = self.nyala(&["table", "delete", TABLE, &format!("key={key}")])?;
            self.record("delete", &output, &[key], None);
        }
        Ok(())
    }

    fn record(&mut self, what: &str, output: &Output, keys: &[u64], version: rows::Version) {
        if !output.success {
            self.watch.say(&format!("nyala table {what}: {}", output.stderr.trim()));
            keys.iter().for_each(|key| self.rows.leave_open(*key, version));
            return;
        }
        self.report.acknowledged += keys.len() as u64;
        keys.iter().for_each(|key| self.rows.acknowledge(*key, version));
    }

    /// Reads all rows and compares them; returns false if they cannot be read now.
    fn read(&mut self) -> Result<bool> {
        let output = self.nyala(&["table", "export", TABLE, "-", "--format", "csv"])?;
        if !output.success {
            self.watch.say(&format!("nyala table export: {}", output.stderr.trim()));
            self.report.failed_reads += 1;
            return Ok(false);
        }
        let found = rows::parse(&output.stdout)?;
        self.report.rows_read += self.rows.check(&found).with_context(|| format!("a read of {TABLE}"))?;
        self.report.reads += 1;
        Ok(true)
    }
}
