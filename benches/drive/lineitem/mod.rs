//! TPC-H's lineitem, one step at a time: in a Kudu-compatible cluster, or in a folder of Parquet files.
//!
//! Every step checks its result against the generator's.

mod files;
mod kudu;

use std::error::Error as StdError;
use std::time::{Duration, Instant};

use benches::process::ProcessStats;
use clap::{Args, ValueEnum};
use engine::error::{Error, Result};
use node::cli::lineitem::{ExpectedTotals, TablePart};
use serde::Serialize;

/// Equal parts of the table: tasks that load it, tablets, Parquet files.
const PARTS: i32 = 4;
/// Rows generated in one block.
const BLOCK_ROWS: usize = 4096;
const LOOKUPS: usize = 500;

#[derive(Args)]
pub(crate) struct Options {
    store: Store,
    step: Step,
    /// host:port of the masters, separated by commas; or the folder of the files
    #[arg(long)]
    at: String,
    /// TPC-H's scale factor; 1 is 6 million rows
    #[arg(long, default_value_t = 0.1)]
    scale: f64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Store {
    Kudu,
    Parquet,
}

#[derive(Clone, Copy, ValueEnum)]
enum Step {
    /// Writes all rows
    Load,
    Count,
    /// Reads Q1's columns of all rows
    Scan,
    /// Q6
    Select,
    /// Reads rows by their keys, one after another
    Find,
}

/// Printed result of a step.
#[derive(Debug, PartialEq, Serialize)]
struct Did {
    rows: u64,
    seconds: f64,
    /// CPU seconds of this process.
    cpu: f64,
    /// Median of a lookup; zero for other steps.
    p50_us: u64,
    p99_us: u64,
}

/// Start of a step, on the wall clock and on this process's CPU clock.
#[derive(Clone, Copy)]
struct Began {
    at: Instant,
    cpu: Duration,
}

impl Began {
    fn now() -> Began {
        Began { at: Instant::now(), cpu: ProcessStats::own().cpu() }
    }

    fn step_result(self, rows: u64) -> Did {
        self.found(rows, Vec::new())
    }

    /// Adds the duration of each lookup.
    fn found(self, rows: u64, mut times: Vec<Duration>) -> Did {
        let (seconds, cpu) =
            (self.at.elapsed().as_secs_f64(), (ProcessStats::own().cpu() - self.cpu).as_secs_f64());
        times.sort_unstable();
        let at =
            |share: usize| times.get(times.len() * share / 100).map_or(0, |time| time.as_micros() as u64);
        Did { rows, seconds, cpu, p50_us: at(50), p99_us: at(99) }
    }
}

pub(crate) async fn run(options: &Options) -> std::result::Result<(), Box<dyn StdError>> {
    let did = match options.store {
        Store::Kudu => kudu::step(options).await,
        Store::Parquet => files::step(options),
    };
    println!("{}", serde_json::to_string(&did?)?);
    Ok(())
}

/// Fails if a step did not see the expected rows.
fn expect(what: &str, got: u64, want: u64) -> Result<()> {
    if got == want { Ok(()) } else { Err(Error::corrupt(format!("{what}: {got} rows instead of {want}"))) }
}

/// Returns the totals of the whole table as the generator makes it.
fn truth(scale: f64) -> Result<ExpectedTotals> {
    let mut part = TablePart::new(scale, 1, 1)?;
    while part.next(BLOCK_ROWS).is_some() {}
    Ok(part.truth)
}

/// Returns keys of some rows, spread over the table.
fn some_keys(truth: &ExpectedTotals) -> impl Iterator<Item = &([u8; 8], [u8; 4])> {
    (0..LOOKUPS as u64).map(|i| &truth.keys[benches::mix(i) as usize % truth.keys.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_report_their_median_and_p99() {
        let times = (1..=200).rev().map(Duration::from_micros).collect();
        let did = Began::now().found(200, times);
        assert_eq!((did.rows, did.p50_us, did.p99_us), (200, 101, 199));
        assert_eq!((Began::now().step_result(7).p50_us, Began::now().step_result(7).p99_us), (0, 0));
    }

    #[test]
    fn missing_rows_are_an_error() {
        assert!(expect("scan", 3, 3).is_ok());
        assert!(expect("scan", 2, 3).is_err());
    }
}
