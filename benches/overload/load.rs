//! The clients: each writes a batch of rows of YCSB's table as soon as the previous one is acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use benches::ycsb;
use engine::schema::row_ops::RowOpKind;
use engine::sync::Mutex;
use nyala_client::{FlushMode, SessionConfig, Table};
use nyala_common::env::{Env, TaskHandle};

/// Operations done by the clients.
#[derive(Default)]
pub(crate) struct LoadCounts {
    pub rows: AtomicU64,
    pub failed: AtomicU64,
    /// Latency of each batch since they were last taken.
    pub latencies: Mutex<Vec<Duration>>,
}

/// Running clients.
pub(crate) struct Load {
    counts: Arc<LoadCounts>,
    stop: Arc<AtomicBool>,
    tasks: Vec<Box<dyn TaskHandle>>,
}

impl Load {
    pub(crate) fn start(table: &Table, clients: usize, batch: usize) -> Load {
        let (counts, stop) = (Arc::new(LoadCounts::default()), Arc::new(AtomicBool::new(false)));
        let start = |client: usize| {
            let (table, counts, stop) = (table.clone(), counts.clone(), stop.clone());
            let env = table.client().env().clone();
            let numbers = (client as u64..).step_by(clients);
            env.spawn("load", async move { write(&table, numbers, batch, &counts, &stop).await })
        };
        let tasks = (0..clients).map(start).collect();
        Load { counts, stop, tasks }
    }

    pub(crate) fn counts(&self) -> Arc<LoadCounts> {
        self.counts.clone()
    }

    pub(crate) async fn stop(self, env: &Env) {
        self.stop.store(true, Ordering::Relaxed);
        env.end(&self.tasks).await;
    }
}

async fn write(
    table: &Table,
    mut numbers: impl Iterator<Item = u64>,
    batch: usize,
    counts: &LoadCounts,
    stop: &AtomicBool,
) {
    let session = table.client().session(SessionConfig::new(FlushMode::Manual));
    while !stop.load(Ordering::Relaxed) {
        for number in numbers.by_ref().take(batch) {
            let (key, fields) = (ycsb::key(number), ycsb::fields(number));
            let cells = ycsb::cells(&key, &fields);
            let applied = session.apply(table, RowOpKind::Insert, &cells, number).await;
            applied.expect("the buffer has room for a batch");
        }
        let began = Instant::now();
        let failed = session.flush().await.len();
        counts.rows.fetch_add((batch - failed) as u64, Ordering::Relaxed);
        counts.failed.fetch_add(failed as u64, Ordering::Relaxed);
        counts.latencies.lock().push(began.elapsed());
    }
}
