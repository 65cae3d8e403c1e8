//! Writers that run while servers fail and count what was acknowledged.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::super::java::{self, JVM};
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

/// The program on the Java client; it writes until its input ends.
pub(super) struct Writer {
    child: Child,
    output: JoinHandle<String>,
}

impl Writer {
    /// Starts the writer. Its log, with every lost connection, goes to `dir`.
    pub(super) fn start(
        root: &Path,
        target: &Path,
        packages: &Packages,
        masters: &str,
        dir: &Path,
    ) -> Result<Writer> {
        let source = root.join("ci/java/Nemesis.java");
        let classes = java::compile(packages, &target.join("nemesis-classes"), &[source])?;
        std::fs::copy(root.join("ci/java/log4j2.properties"), classes.join("log4j2.properties"))?;
        let mut child = Command::new("java")
            .args(JVM)
            .arg("-cp")
            .arg(packages.class_path(&classes))
            .args(["Nemesis", masters, "nemesis_java"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(dir.join("java.log"))?)
            .spawn()
            .context("starting java")?;
        let mut lines = BufReader::new(child.stdout.take().expect("it was asked for"));
        let mut first = String::new();
        lines.read_line(&mut first)?;
        ensure!(first.trim() == "writing", "the Java program began with {first:?}");
        let output = thread::spawn(move || {
            let mut rest = String::new();
            // A killed program prints no more.
            let _ = lines.read_to_string(&mut rest);
            rest
        });
        Ok(Writer { child, output })
    }

    /// Lets the program read back its rows; fails if they are not the acknowledged ones.
    pub(super) fn stop(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        let said = self.output.join().unwrap_or_default();
        ensure!(status.success(), "the Java program ended with {status}:\n{said}");
        print!("    {}", said.replace('\n', "\n    ").trim_end());
        println!();
        Ok(())
    }
}
