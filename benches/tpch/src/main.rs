//! TPC-H's tables as files, and a worker that runs SQL over one store.
//!
//! ```text
//!   generate   tables → Parquet files, as generated or with a tenth of the orders updated
//!   published  the published answers of scale 1 → CSV
//!   work       requests on standard input ── SQL over a store ── answers as CSV, time and cost on standard output
//!                parquet   DataFusion over the files
//!                nyala     nyala-sql over a cluster of nyala or Kudu
//!                embedded  nyala-sql over a cluster in this process, whose tablets are read without calls
//! ```
//!
//! `cargo ci versus tpch` runs a worker of each store and has them answer by turns. One program for all stores: the
//! same query engine, allocator and number of threads.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "programs run in the real world")]

mod answers;
mod command;
mod cost;
mod embedded;
mod files;
mod parquet_store;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use command::CommandResult;

/// The allocator of the program `nyala`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Writes the tables as Parquet files
    Generate {
        /// TPC-H's scale factor; 1 is 6 million rows of lineitem
        #[arg(long)]
        scale: f64,
        #[arg(long)]
        dir: PathBuf,
        /// Writes lineitem and orders as they are after the updates, and nothing else
        #[arg(long)]
        updated: bool,
    },
    /// Writes the published answers of scale 1
    Published {
        #[arg(long)]
        dir: PathBuf,
    },
    /// Answers requests over a store: lines of JSON
    Work {
        #[command(subcommand)]
        store: worker::StoreOptions,
        /// Threads, and partitions that plans aim at
        #[arg(long, global = true, default_value_t = 2)]
        threads: usize,
    },
}

/// Size of the stack of each thread: expressions are planned recursively.
const STACK_BYTES: usize = 64 << 20;

fn main() -> ExitCode {
    let done = match Options::parse().command {
        Command::Generate { scale, dir, updated } => files::generate(scale, &dir, updated),
        Command::Published { dir } => answers::write_published(&dir),
        Command::Work { store, threads } => work(store, threads),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tpch: {error}");
            ExitCode::FAILURE
        }
    }
}

fn work(store: worker::StoreOptions, threads: usize) -> CommandResult<()> {
    nyala_common::env::os::decline_huge_pages();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(threads).thread_stack_size(STACK_BYTES).enable_all().build()?;
    runtime.block_on(worker::run(store, threads))
}
