//! The client that `cargo ci versus` drives both systems with, through `node::client`: nyala and real Kudu alike.
//!
//! ```text
//! drive ycsb ──▶ ycsb.rs   16 clients, each one operation or batch at a time; mix.rs says which, on which row
//! drive rows ──▶ rows.rs   clients that apply small rows to sessions flushed in the background
//!                  │ what they did
//!                  ▼
//!                watch.rs  four times a second: that, the server's process and its metrics page ──▶ report.rs, as JSON
//! drive lineitem ──▶ lineitem/  TPC-H's table: load, count, scan, select or find; Parquet files can be the store
//! drive plot ──▶ plot.rs   reports ──▶ a figure of each kind, a line per system
//! ```
//!
//! Not here: starting servers, and what a run cost them; that is `ci/src/versus`.

mod lineitem;
mod mix;
mod plot;
mod report;
mod rows;
mod watch;
mod ycsb;

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;

use benches::web::Whose;
use clap::{Args, Parser, Subcommand};
use node::client::{Client, ClientConfig, CreateTable, Table};
use node::env::os::{OsEnv, OsOptions};

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
    /// A step with TPC-H's lineitem
    Lineitem(lineitem::Options),
    /// Figures of reports
    Plot(plot::Options),
}

/// Who is driven, and by how many.
#[derive(Args, Clone)]
struct Target {
    /// host:port of the masters, separated by commas
    #[arg(long)]
    masters: String,
    /// The table; it is made if it is not there
    #[arg(long)]
    table: String,
    /// Tablets of a table that is made
    #[arg(long, default_value_t = 4)]
    tablets: u32,
    /// Clients at work at the same time
    #[arg(long)]
    clients: u64,
    /// The tablet server's process
    #[arg(long)]
    server_pid: u32,
    /// The tablet server's web port
    #[arg(long)]
    server_web: SocketAddr,
    /// Whose server it is
    #[arg(long, value_enum)]
    server: Whose,
}

impl Target {
    async fn connect(&self) -> Result<Client, Box<dyn Error>> {
        let env = OsEnv::new(&OsOptions::default())?;
        Ok(Client::connect(env, ClientConfig::new(self.masters.split(','))).await?)
    }

    /// The table, made by `create` if there is none.
    async fn table(&self, client: &Client, create: &CreateTable) -> node::client::Result<Table> {
        match client.open_table(&self.table).await {
            Err(error) if error.kind == node::client::ErrorKind::NotFound => {
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
        Word::Lineitem(options) => return runtime.block_on(lineitem::run(options)),
        Word::Plot(options) => return plot::run(options),
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
