//! Reads a whole table into memory as Arrow batches, several times, and prints the rate of each time.
//!
//! `cargo run --release -p nyala-client --example read_all -- 127.0.0.1:7051 TABLE TIMES`. The same in Python:
//! `node/client/python/examples/read_all.py`.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures this machine")]

use std::time::Instant;

use arrow_array::RecordBatch;
use futures_util::TryStreamExt;
use nyala_client::{Client, ClientResult};

#[tokio::main]
async fn main() -> ClientResult<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [masters, table, times] = &words[..] else { panic!("give masters, a table and a number of times") };
    let client = Client::builder([masters.clone()]).connect().await?;
    let table = client.open_table(table).await?;
    for _ in 0..times.parse().expect("a number of times") {
        let start = Instant::now();
        let batches: Vec<RecordBatch> = table.select().batches()?.try_collect().await?;
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        println!("{rows} rows, {:.0} rows/s", rows as f64 / start.elapsed().as_secs_f64());
    }
    Ok(())
}
