//! Counts and times of a tablet server's calls.

use std::sync::atomic::{AtomicU64, Ordering};

use engine::replica::OpResult;

use nyala_common::metrics::{Histogram, MetricSamples};

/// Counters that the calls update.
#[derive(Default)]
pub struct TserverMetrics {
    pub write_seconds: Histogram,
    pub scan_seconds: Histogram,
    rows_scanned: AtomicU64,
    rows_inserted: AtomicU64,
    rows_upserted: AtomicU64,
    rows_updated: AtomicU64,
    rows_deleted: AtomicU64,
    rows_failed: AtomicU64,
}

impl TserverMetrics {
    pub fn count_write(&self, result: &OpResult) {
        if let OpResult::Write { errors, counts } = result {
            add(&self.rows_inserted, counts.inserts);
            add(&self.rows_upserted, counts.upserts);
            add(&self.rows_updated, counts.updates);
            add(&self.rows_deleted, counts.deletes);
            add(&self.rows_failed, errors.len() as u64);
        }
    }

    pub fn count_scanned(&self, rows: usize) {
        add(&self.rows_scanned, rows as u64);
    }

    pub(super) fn collect(&self, samples: &mut MetricSamples) {
        let (name, help) = ("rows_written_total", "Rows written, by result.");
        let written = [
            ("inserted", &self.rows_inserted),
            ("upserted", &self.rows_upserted),
            ("updated", &self.rows_updated),
            ("deleted", &self.rows_deleted),
            ("refused", &self.rows_failed),
        ];
        for (result, count) in written {
            samples.counter(name, help, &[("result", result)], count.load(Ordering::Relaxed));
        }
        let scanned = self.rows_scanned.load(Ordering::Relaxed);
        samples.counter("rows_scanned_total", "Rows returned by scans.", &[], scanned);
        let help = "Time from the start of a call to its reply.";
        samples.histogram("call_seconds", help, &[("method", "Write")], &self.write_seconds);
        samples.histogram("call_seconds", help, &[("method", "Scan")], &self.scan_seconds);
    }
}

fn add(counter: &AtomicU64, more: u64) {
    if more > 0 {
        counter.fetch_add(more, Ordering::Relaxed);
    }
}
