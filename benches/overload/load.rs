//! The clients: rows of YCSB's table, a batch at a time, each as soon as the last is acknowledged.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::schema::ops::{Cell, RowOpKind};
use engine::schema::{ColumnSchema, DataType, Schema};
use node::client::{FlushMode, SessionConfig, Table};
use node::env::{Env, TaskHandle};

/// What the clients have done.
#[derive(Default)]
pub struct Counts {
    pub rows: AtomicU64,
    pub failed: AtomicU64,
    /// Of each batch since somebody last took them.
    pub latencies: Mutex<Vec<Duration>>,
}

/// Clients at work.
pub struct Load {
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
    tasks: Vec<Box<dyn TaskHandle>>,
}

/// A string key and ten strings of 100 bytes.
pub fn schema() -> Schema {
    let field = |id: u32| match id {
        0 => ColumnSchema::new(0, "key", DataType::String),
        id => ColumnSchema::new(id, &format!("field{}", id - 1), DataType::String).nullable(),
    };
    Schema::new((0..11).map(field).collect(), 1).expect("the schema is sound")
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The ten fields of a row, as they lie one behind the other.
fn fields(number: u64) -> Vec<u8> {
    let words = (0..125).flat_map(|i| mix(number.wrapping_mul(125) + i).to_le_bytes());
    words.map(|byte| b' ' + byte % 94).collect()
}

impl Load {
    pub fn start(table: &Table, clients: usize, batch: usize) -> Load {
        let (counts, stop) = (Arc::new(Counts::default()), Arc::new(AtomicBool::new(false)));
        let start = |client: usize| {
            let (table, counts, stop) = (table.clone(), counts.clone(), stop.clone());
            let env = table.client().env().clone();
            let numbers = (client as u64..).step_by(clients);
            env.spawn("load", async move { write(&table, numbers, batch, &counts, &stop).await })
        };
        let tasks = (0..clients).map(start).collect();
        Load { counts, stop, tasks }
    }

    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    pub async fn stop(self, env: &Env) {
        self.stop.store(true, Ordering::Relaxed);
        env.end(&self.tasks).await;
    }
}

async fn write(
    table: &Table,
    mut numbers: impl Iterator<Item = u64>,
    batch: usize,
    counts: &Counts,
    stop: &AtomicBool,
) {
    let session = table.client().session(SessionConfig::new(FlushMode::Manual));
    while !stop.load(Ordering::Relaxed) {
        for number in numbers.by_ref().take(batch) {
            let (key, fields) = (format!("user{:020}", mix(number)), fields(number));
            let cells =
                std::iter::once(Cell::Value(key.as_bytes())).chain(fields.chunks(100).map(Cell::Value));
            let cells: Vec<Cell<'_>> = cells.collect();
            let applied = session.apply(table, RowOpKind::Insert, &cells, number).await;
            applied.expect("the buffer has room for a batch");
        }
        let began = Instant::now();
        let failed = session.flush().await.len();
        counts.rows.fetch_add((batch - failed) as u64, Ordering::Relaxed);
        counts.failed.fetch_add(failed as u64, Ordering::Relaxed);
        counts.latencies.lock().expect("nobody panics while holding it").push(began.elapsed());
    }
}
