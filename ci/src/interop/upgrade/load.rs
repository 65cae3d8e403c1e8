//! Load of an upgrade: batches of new rows, one after another; each is repeated until it is acknowledged.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command::CommandLine;

pub(super) const TABLE: &str = "upgraded";
const BATCH: u64 = 200;
/// Pause between batches.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest time in which a batch must be acknowledged.
const BATCH_TIMEOUT: Duration = Duration::from_secs(120);

/// The running load. Rows are `key,text` with keys from 0 on.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<u64>>>,
}

impl Load {
    /// Makes the table and starts to write.
    pub(super) fn start(program: &Path, masters: &str, dir: &Path) -> Result<Load> {
        let columns = ["--column", "key int64", "--column", "text string"];
        CommandLine::new(program)
            .args(["table", "create", TABLE, "--hash", "key:4", "--replicas", "3"])
            .args(columns)
            .args(["--masters", masters])
            .run()?;
        let writer =
            Writer { program: program.to_owned(), masters: masters.to_owned(), batch: dir.join("batch.csv") };
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        Ok(Load { stop, thread: Some(thread::spawn(move || writer.run(&told))) })
    }

    /// Fails if the load has ended by itself.
    pub(super) fn check_runs(&mut self) -> Result<()> {
        match &self.thread {
            Some(thread) if thread.is_finished() => {}
            _ => return Ok(()),
        }
        self.stop()?;
        bail!("the load ended before it was told to")
    }

    /// Ends the load; returns the number of acknowledged rows.
    pub(super) fn stop(&mut self) -> Result<u64> {
        self.stop.store(true, Ordering::Release);
        let thread = self.thread.take().context("the load was ended before")?;
        thread.join().map_err(|_| anyhow::anyhow!("the thread of the load panicked"))?
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

struct Writer {
    program: PathBuf,
    masters: String,
    batch: PathBuf,
}

impl Writer {
    fn run(self, told: &AtomicBool) -> Result<u64> {
        let mut next = 0;
        while !told.load(Ordering::Acquire) {
            self.write(next)?;
            next += BATCH;
            thread::sleep(PAUSE);
        }
        Ok(next)
    }

    /// Writes the batch from `first` on until it is acknowledged. A repetition ignores rows that are there.
    fn write(&self, first: u64) -> Result<()> {
        let rows: String = (first..first + BATCH).map(|key| format!("{key},row {key}\n")).collect();
        fs::write(&self.batch, format!("key,text\n{rows}"))?;
        let file = self.batch.display().to_string();
        let begun = Instant::now();
        loop {
            let words = ["table", "import", TABLE, &file, "--mode", "insert-ignore"];
            let output =
                CommandLine::new(&self.program).args(words).args(["--masters", &self.masters]).output()?;
            if output.success {
                return Ok(());
            }
            ensure!(begun.elapsed() < BATCH_TIMEOUT, "rows cannot be written:\n{}", output.stderr);
        }
    }
}
