//! The background-flush study: rows (int64, int32, string, string, int32) with strings of 32 bytes, applied as fast as
//! sessions accept them. Each client has a separate connection.

use std::error::Error;
use std::sync::Arc;

use benches::mix;
use clap::Args;
use engine::schema::row_ops::{ClientCell, RowOpKind};
use engine::schema::{ColumnSchema, DataType, Schema};
use nyala_client::{CreateTable, FlushMode, Result, SessionConfig, Table};

use crate::Target;
use crate::report::Report;
use crate::sampler::{OpCounts, Sampler};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// Rows of all clients together
    #[arg(long)]
    rows: u64,
    /// Share of a session's buffer at which it is flushed
    #[arg(long)]
    watermark_percent: usize,
}

/// Rows per update of the counters.
const COUNTED: u64 = 1000;

pub(crate) async fn run(options: &Options) -> std::result::Result<Report, Box<dyn Error>> {
    let target = &options.target;
    let mut create = CreateTable::new(&target.table, schema()).hash(&["key"], target.tablets)?;
    create.replicas = Some(1);
    let mut tables = Vec::new();
    for _ in 0..target.clients {
        tables.push(target.table(&target.connect().await?, &create).await?);
    }
    let tally = OpCounts::new();
    let watch = Sampler::start(target, tally.clone())?;
    let each = options.rows / target.clients;
    let clients = tables.into_iter().zip(0..).map(|(table, client)| {
        let rows = client * each..(client + 1) * each;
        tokio::spawn(write(table, rows, options.watermark_percent, tally.clone()))
    });
    for client in clients.collect::<Vec<_>>() {
        client.await??;
    }
    Ok(watch.end()?)
}

fn schema() -> Schema {
    let types = [
        ("key", DataType::Int64),
        ("a", DataType::Int32),
        ("b", DataType::String),
        ("c", DataType::String),
        ("d", DataType::Int32),
    ];
    let column = |(id, (name, data_type))| ColumnSchema::new(id, name, data_type);
    Schema::new((0..).zip(types).map(column).collect(), 1).expect("the schema is sound")
}

async fn write(
    table: Table,
    rows: std::ops::Range<u64>,
    watermark_percent: usize,
    tally: Arc<OpCounts>,
) -> Result<()> {
    let config = SessionConfig { watermark_percent, ..SessionConfig::new(FlushMode::AutoBackground) };
    let session = table.client().session(config);
    let count = rows.end - rows.start;
    for (done, row) in (1..).zip(rows) {
        let (key, number) = ((row as i64).to_le_bytes(), (row as i32).to_le_bytes());
        let texts = [mix(row), mix(!row)].map(|seed| format!("{seed:032x}"));
        let cells =
            [&key[..], &number, texts[0].as_bytes(), texts[1].as_bytes(), &number].map(ClientCell::Value);
        session.apply(&table, RowOpKind::Insert, &cells, row).await?;
        if done % COUNTED == 0 {
            tally.done(COUNTED, 0, None);
        }
    }
    tally.done(count % COUNTED, 0, None);
    match session.flush().await.pop() {
        Some(failure) => Err(failure.error),
        None => Ok(()),
    }
}
