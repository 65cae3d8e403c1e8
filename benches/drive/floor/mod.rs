//! The floor under a small operation: nyala, Redis, bare servers and a file, each driven by clients of one kind.
//!
//! ```text
//!   nyala ── nyala.rs ──┐
//!   redis ── redis.rs ──┼──▶ System ◀── clients.rs   N clients, each with its connection, one operation at a time
//!   echo  ── echo.rs ───┤                   │ warm up, then measure: latencies, CPU of the servers and of this process
//!   file  ── file.rs ───┘                   ▼
//!                                         Report, as JSON
//!   drive echo: echo_server.rs, the bare server, on tokio or on epoll, with a log or without; its bytes: frame.rs
//! ```
//!
//! A row is YCSB's: a key of 24 bytes and 1,000 bytes of values, for Redis as one value.

mod clients;
mod echo;
pub(crate) mod echo_server;
mod file;
mod frame;
mod nyala;
mod redis;

use std::error::Error;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tokio::runtime::Runtime;

#[derive(Args, Clone)]
pub(crate) struct Options {
    /// Driven system
    #[arg(long, value_enum)]
    system: SystemKind,
    /// host:port of a server (of nyala: of its masters), or the path of the file
    #[arg(long)]
    address: String,
    /// Operation of the clients
    #[arg(long, value_enum)]
    operation: Operation,
    /// Clients, each with a connection and one operation at a time
    #[arg(long)]
    clients: u64,
    /// Rows that exist; inserts add rows after them
    #[arg(long, default_value_t = 0)]
    rows: u64,
    /// Measured time, in seconds
    #[arg(long)]
    seconds: f64,
    /// Time before it that is not measured, in seconds
    #[arg(long, default_value_t = 0.5)]
    warm_up: f64,
    /// Process of a server; several for several
    #[arg(long = "server-pid")]
    server_pids: Vec<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SystemKind {
    Nyala,
    Redis,
    /// The server of `drive echo`
    Echo,
    /// Appends of 4 KiB to a preallocated file, each with fdatasync
    File,
}

/// Operation with a whole row. Redis has one command for the first two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Operation {
    Insert,
    Update,
    Read,
}

/// Result of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Rows that exist after the run.
    rows: u64,
    operations: u64,
    seconds: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    server_cpu_seconds: f64,
    client_cpu_seconds: f64,
}

/// A driven system, as one client sees it.
trait System: Send {
    /// Runs one operation with a row to its end.
    fn operate(&mut self, operation: Operation, row: u64) -> impl Future<Output = Done> + Send;
}

type Failure = Box<dyn Error + Send + Sync>;
type Done = Result<(), Failure>;

/// Runs the clients and returns what was measured.
pub(crate) fn run(options: &Options, runtime: &Runtime) -> Result<Report, Box<dyn Error>> {
    if options.operation != Operation::Insert && options.rows == 0 && options.system == SystemKind::Nyala {
        return Err("--rows 0: updates and reads need rows; insert some and give their number".into());
    }
    let report = runtime.block_on(async {
        match options.system {
            SystemKind::Nyala => clients::run(options, nyala::open(options).await?).await,
            SystemKind::Redis => clients::run(options, redis::open(options).await?).await,
            SystemKind::Echo => clients::run(options, echo::open(options).await?).await,
            SystemKind::File => clients::run(options, file::open(options)?).await,
        }
    });
    report.map_err(|error| error as Box<dyn Error>)
}

fn seconds(seconds: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(seconds).map_err(|error| format!("{seconds} s: {error}").into())
}
