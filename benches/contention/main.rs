//! Contention of a server by site, and the demands of its operations: waits, holds, queues, CPU.
//!
//! Run with `cargo ci profile contention`.
//!
//! ```text
//!   main.rs ── this program again, on one core and on all ──▶ run.rs   servers in this process, `drive floor` as load
//!                │                        sites.rs  waits and holds      queues.rs  the metrics page
//!                │                        driver.rs tokio's I/O driver   machine.rs cores and their use
//!                ▼
//!              page.rs  contention.md          demands.json, for `cargo sim study cores`
//! ```
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the process is looked at from outside"
)]

mod driver;
mod machine;
mod page;
mod queues;
mod run;
mod sites;

use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Parser;
use cores_model::{MeasuredRun, Measurement};

/// The allocator of the program, with its defaults.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

type Done<T> = Result<T, Box<dyn Error>>;

#[derive(Parser)]
struct Options {
    /// Folder of the report
    #[arg(long)]
    out: Option<PathBuf>,
    /// Seconds of each operation, once without measuring locks and once with it
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Measure on this number of cores in this process, and print the runs as JSON
    #[arg(long, hide = true)]
    cores: Option<usize>,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Done<()> {
    let options = Options::parse();
    if let Some(cores) = options.cores {
        println!("{}", serde_json::to_string(&run::runs(cores, options.seconds)?)?);
        return Ok(());
    }
    let Some(out) = &options.out else {
        println!("it is run by `cargo ci profile contention`");
        return Ok(());
    };
    let all = machine::allowed_cores()?.len();
    let mut runs: Vec<MeasuredRun> = Vec::new();
    for cores in if all > 1 { vec![1, all] } else { vec![1] } {
        runs.extend(runs_on(cores, options.seconds)?);
    }
    let measured =
        Measurement { machine: machine::description(options.seconds), tablets: run::TABLETS, runs };
    std::fs::create_dir_all(out)?;
    let page = page::page(&measured);
    print!("{page}");
    std::fs::write(out.join("contention.md"), page)?;
    std::fs::write(out.join("demands.json"), serde_json::to_string_pretty(&measured)? + "\n")?;
    Ok(())
}

/// Runs this program on `cores` cores: a process has as many threads as it has cores when it starts.
fn runs_on(cores: usize, seconds: f64) -> Done<Vec<MeasuredRun>> {
    let mut program = Command::new(std::env::current_exe()?);
    program.args(["--cores", &cores.to_string(), "--seconds", &seconds.to_string()]);
    let output = program.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("the run on {cores} cores ended with {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
