//! The load driver of `cargo ci versus`: one client, `nyala_client`, for nyala and real Kudu.
//!
//! ```text
//! drive ycsb ──▶ ycsb.rs   16 clients, each one operation or batch at a time; mix.rs picks operation and row
//! drive rows ──▶ rows.rs   clients that apply small rows to sessions flushed in the background
//!                  │ operations and latencies
//!                  ▼
//!                sampler.rs  four times a second: these, the server's process and metrics page ──▶ report.rs, as JSON
//! drive connections ──▶ connections.rs  TLS and a token, again and again
//! drive floor ──▶ floor/   one operation at a time of nyala, Redis, a bare server or a file; `echo` is that server
//! drive lineitem ──▶ lineitem/  TPC-H's table: load, count, scan, select or find; also in Parquet files
//! drive plot ──▶ plot.rs   reports ──▶ a chart of each kind, a line per system
//! ```
//!
//! *Not here:* starting servers and measuring the cost of a run; see `ci/src/versus`.

mod connections;
mod floor;
mod lineitem;
mod mix;
mod plot;
mod report;
mod rows;
mod sampler;
mod ycsb;

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;

use benches::server_metrics::ServerMake;
use clap::{Args, Parser, Subcommand};
use nyala_client::{Client, ClientConfig, CreateTable, Table};
use nyala_common::env::os::{OsEnv, OsOptions};

#[derive(Parser)]
struct Words {
    #[command(subcommand)]
    word: Word,
}

#[derive(Subcommand)]
enum Word {
    /// Operations on YCSB's table
    Ycsb(ycsb::Options),
    /// Small rows, flushed in the background
    Rows(rows::Options),
    /// New connections with TLS 1.3 and a token
    Connections(connections::Options),
    /// One step with TPC-H's lineitem
    Lineitem(lineitem::Options),
    /// Small operations, one at a time, of nyala, Redis, a bare server or a file
    Floor(floor::Options),
    /// A bare server for `floor`, until it is killed
    Echo(floor::echo_server::Options),
    /// Charts of reports
    Plot(plot::Options),
}

/// Servers under load, and the number of clients.
#[derive(Args, Clone)]
struct Target {
    /// host:port of the masters, separated by commas
    #[arg(long)]
    masters: String,
    /// The table; created if it does not exist
    #[arg(long)]
    table: String,
    /// Tablets of a created table
    #[arg(long, default_value_t = 4)]
    tablets: u32,
    /// Clients that work concurrently
    #[arg(long)]
    clients: u64,
    /// The tablet server's process
    #[arg(long)]
    server_pid: u32,
    /// The tablet server's web port
    #[arg(long)]
    server_web: SocketAddr,
    /// Make of the server
    #[arg(long, value_enum)]
    server: ServerMake,
}

impl Target {
    async fn connect(&self) -> Result<Client, Box<dyn Error>> {
        let env = OsEnv::new(&OsOptions::default())?;
        Ok(Client::connect(env, ClientConfig::new(self.masters.split(','))).await?)
    }

    /// Opens the table; creates it if it does not exist.
    async fn table(&self, client: &Client, create: &CreateTable) -> nyala_client::Result<Table> {
        match client.open_table(&self.table).await {
            Err(error) if error.kind == nyala_client::ErrorKind::NotFound => {
                client.create_table(create).await
            }
            opened => opened,
        }
    }
}

fn main() -> ExitCode {
    match run(&Words::parse().word) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("drive: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(word: &Word) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = match word {
        Word::Ycsb(options) => runtime.block_on(ycsb::run(options))?,
        Word::Rows(options) => runtime.block_on(rows::run(options))?,
        Word::Connections(options) => runtime.block_on(connections::run(options))?,
        Word::Lineitem(options) => return runtime.block_on(lineitem::run(options)),
        Word::Floor(options) => {
            println!("{}", serde_json::to_string(&floor::run(options, &runtime)?)?);
            return Ok(());
        }
        Word::Echo(options) => return floor::echo_server::run(options, &runtime),
        Word::Plot(options) => return plot::run(options),
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
