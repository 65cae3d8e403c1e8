//! Hold on the history that a run reads: kept while it runs, renewed by a task of its own, released at its end.
//!
//! A lost hold loses no rows: a tablet whose history is gone refuses the scan, and the table's backup fails.

use std::time::Duration;

use engine::error::Error;

use nyala_client::Table;
use nyala_common::env::{Env, TaskHandle};

/// Renewals within one lease.
const RENEWALS_PER_LEASE: u32 = 3;

/// Tables whose history from a timestamp on is held. Dropped, it is not renewed and so ends with its lease.
pub struct HistoryHold {
    holder: String,
    tables: Vec<(Table, u64)>,
    renewal: Option<Box<dyn TaskHandle>>,
}

impl HistoryHold {
    /// Holds the history of each table from its timestamp on. Returns the errors of tables without a hold, which are
    /// read nevertheless.
    pub async fn acquire(env: &Env, wanted: Vec<(Table, u64)>) -> (HistoryHold, Vec<Error>) {
        let holder = format!("backup {:016x}", env.rng.next_u64());
        let (mut tables, mut errors) = (Vec::new(), Vec::new());
        let mut shortest = Duration::MAX;
        for (table, timestamp) in wanted {
            match table.hold_history(&holder, timestamp).await {
                Ok(lease) => {
                    shortest = shortest.min(lease);
                    tables.push((table, timestamp));
                }
                Err(error) => {
                    errors.push(error.context(format_args!("the history of {} is not held", table.name())));
                }
            }
        }
        let renewed = renew(env.clone(), holder.clone(), tables.clone(), shortest / RENEWALS_PER_LEASE);
        // A task of its own: reading and writing files can keep the run's task busy for longer than a lease.
        let renewal = (!tables.is_empty()).then(|| env.spawn("history hold", renewed));
        (HistoryHold { holder, tables, renewal }, errors)
    }

    pub async fn release(mut self) {
        self.stop();
        for (table, _) in &self.tables {
            // A hold that cannot be released ends with its lease.
            let _ = table.release_history(&self.holder).await;
        }
    }

    fn stop(&mut self) {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
    }
}

impl Drop for HistoryHold {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn renew(env: Env, holder: String, tables: Vec<(Table, u64)>, interval: Duration) {
    loop {
        env.sleep(interval).await;
        for (table, timestamp) in &tables {
            // The client retries. A hold that is lost nevertheless is noticed by the scans.
            let _ = table.hold_history(&holder, *timestamp).await;
        }
    }
}
