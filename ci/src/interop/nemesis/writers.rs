//! The kudu tool as a writer that runs while servers fail and counts what was acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, ensure};

use super::super::packages::Packages;

/// Table of the tool's loads.
pub(super) const LOADGEN_TABLE: &str = "nemesis_loadgen";

const ROWS_PER_RUN: u64 = 20_000;
/// Pause between runs: the loaded data is copied later, so it must not grow too fast.
const BETWEEN_RUNS: Duration = Duration::from_millis(250);

/// `kudu perf loadgen`, run after run, each with keys after those of the previous one.
pub(super) struct Loadgen {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64>>,
}

impl Loadgen {
    pub(super) fn start(packages: &Packages, masters: &str) -> Loadgen {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, packages, masters) = (stop.clone(), packages.clone(), masters.to_string());
        let thread = thread::spawn(move || {
            let mut rows = 0;
            while !told.load(Ordering::Acquire) {
                let words = [
                    "perf".to_string(),
                    "loadgen".to_string(),
                    masters.clone(),
                    format!("--table_name={LOADGEN_TABLE}"),
                    "--num_threads=1".to_string(),
                    format!("--num_rows_per_thread={ROWS_PER_RUN}"),
                    format!("--seq_start={rows}"),
                    "--timeout_ms=60000".to_string(),
                ];
                let output = packages.kudu_tool().args(&words).output()?;
                ensure!(output.success, "loadgen from {rows}:\n{}\n{}", output.stdout, output.stderr);
                rows += ROWS_PER_RUN;
                thread::sleep(BETWEEN_RUNS);
            }
            Ok(rows)
        });
        Loadgen { stop, thread }
    }

    /// Returns the number of loaded rows.
    pub(super) fn stop(self) -> Result<u64> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().map_err(|_| anyhow::anyhow!("the thread that runs loadgen panicked"))?
    }
}
