//! Requests of `cargo ci versus tpch`, one at a time: a line of JSON each, and a line with the result.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Subcommand;
use datafusion::arrow::array::RecordBatch;
use nyala_client::Client;
use nyala_sql::{Format, Shell};
use serde::{Deserialize, Serialize};

use super::answers;
use super::command::CommandResult;
use super::cost::Began;
use super::embedded::EmbeddedCluster;
use super::parquet_store::ParquetStore;

#[derive(Subcommand)]
pub(crate) enum StoreOptions {
    /// DataFusion over Parquet files
    Parquet,
    /// A cluster of nyala or Kudu
    Nyala {
        /// host:port of the masters, separated by commas
        #[arg(long)]
        masters: String,
    },
    /// A cluster in this process
    Embedded {
        /// Directory of its data
        #[arg(long)]
        dir: String,
        /// Flags of its servers, NAME=VALUE
        #[arg(long)]
        flag: Vec<String>,
    },
}

/// Request of the controlling program.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Request {
    /// Runs a query; its rows go to a file, if one is named.
    Query { sql: String, answer: Option<PathBuf> },
    /// Runs statements without rows, on a cluster.
    Statements(String),
    /// Takes the tables from this folder.
    Files(PathBuf),
    /// Changes a flag of the servers in this process.
    Flag { name: String, value: String },
}

/// Result of a request.
#[derive(Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Response {
    Done { rows: usize, seconds: f64, cpu: f64, peak_rss: u64 },
    Failed { error: String },
}

enum Store {
    Parquet(Arc<ParquetStore>),
    Cluster(Arc<Shell>),
}

pub(crate) async fn run(options: StoreOptions, threads: usize) -> CommandResult<()> {
    let shell = |client: &Client| {
        let shell = Shell::new(client.clone(), Format::Csv).target_partitions(threads);
        Store::Cluster(Arc::new(shell))
    };
    let (store, embedded) = match options {
        StoreOptions::Parquet => (Store::Parquet(Arc::new(ParquetStore::new(threads))), None),
        StoreOptions::Nyala { masters } => {
            (shell(&Client::builder(masters.split(',')).connect().await?), None)
        }
        StoreOptions::Embedded { dir, flag } => {
            let embedded = EmbeddedCluster::start(&dir, &flag).await?;
            (shell(&embedded.client), Some(embedded))
        }
    };
    print(&serde_json::json!({ "version": datafusion::DATAFUSION_VERSION }))?;
    while let Some(line) = next_line().await? {
        let response = match store.answer(&line, embedded.as_ref()).await {
            Ok(response) => response,
            Err(error) => Response::Failed { error: error.to_string() },
        };
        print(&response)?;
    }
    if let Some(embedded) = embedded {
        embedded.stop().await;
    }
    Ok(())
}

/// Prints a line for the controlling program.
fn print(line: &impl Serialize) -> CommandResult<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(line)?)?;
    Ok(out.flush()?)
}

/// Returns the next line; `None` at the end. The servers in this process run meanwhile.
async fn next_line() -> CommandResult<Option<String>> {
    let read = || std::io::stdin().lock().lines().next().transpose();
    Ok(tokio::task::spawn_blocking(read).await??)
}

impl Store {
    async fn answer(&self, line: &str, embedded: Option<&EmbeddedCluster>) -> CommandResult<Response> {
        let request = serde_json::from_str(line)?;
        let began = Began::now()?;
        let (batches, answer) = match request {
            Request::Query { sql, answer } => (self.query(sql).await?, answer),
            Request::Statements(script) => (self.execute(&script).await?, None),
            Request::Files(dir) => (self.use_files(&dir).await?, None),
            Request::Flag { name, value } => {
                let embedded = embedded.ok_or("only servers in this process take flags here")?;
                embedded.set_flag(&name, &value).await?;
                (Vec::new(), None)
            }
        };
        let cost = began.cost()?;
        if let Some(path) = answer {
            answers::write(&path, &batches)?;
        }
        let rows = batches.iter().map(RecordBatch::num_rows).sum();
        Ok(Response::Done { rows, seconds: cost.seconds, cpu: cost.cpu, peak_rss: cost.peak_rss })
    }

    /// Runs a query as a task, so that no other threads than those of the runtime work for it.
    async fn query(&self, sql: String) -> CommandResult<Vec<RecordBatch>> {
        match self {
            Store::Parquet(files) => {
                let files = files.clone();
                tokio::spawn(async move { files.query(&sql).await }).await?
            }
            Store::Cluster(shell) => {
                let shell = shell.clone();
                Ok(tokio::spawn(async move { shell.query(&sql).await }).await??)
            }
        }
    }

    async fn execute(&self, script: &str) -> CommandResult<Vec<RecordBatch>> {
        match self {
            Store::Parquet(_) => Err("Parquet files cannot be changed by statements".into()),
            Store::Cluster(shell) => {
                shell.run(script, &mut |_| Ok(())).await?;
                Ok(Vec::new())
            }
        }
    }

    async fn use_files(&self, dir: &std::path::Path) -> CommandResult<Vec<RecordBatch>> {
        match self {
            Store::Parquet(files) => files.use_files(dir).await?,
            Store::Cluster(_) => return Err("a cluster has no files of tables".into()),
        }
        Ok(Vec::new())
    }
}
