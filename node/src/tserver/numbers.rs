//! What a tablet server tells of itself: counts and times of its calls, its tablets, where its memory is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use engine::replica::OpResult;

use super::entry::EntryState;
use super::server::Server;
use crate::metrics::{Histogram, Samples};
use crate::server::memory::MemTracker;

/// Counts that the calls keep.
#[derive(Default)]
pub struct Numbers {
    pub write_seconds: Histogram,
    pub scan_seconds: Histogram,
    rows_scanned: AtomicU64,
    rows_inserted: AtomicU64,
    rows_upserted: AtomicU64,
    rows_updated: AtomicU64,
    rows_deleted: AtomicU64,
    rows_failed: AtomicU64,
}

impl Numbers {
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

    fn collect(&self, out: &mut Samples) {
        let (name, help) = ("rows_written_total", "Rows written, by what became of them.");
        let written = [
            ("inserted", &self.rows_inserted),
            ("upserted", &self.rows_upserted),
            ("updated", &self.rows_updated),
            ("deleted", &self.rows_deleted),
            ("refused", &self.rows_failed),
        ];
        for (result, count) in written {
            out.counter(name, help, &[("result", result)], count.load(Ordering::Relaxed));
        }
        let scanned = self.rows_scanned.load(Ordering::Relaxed);
        out.counter("rows_scanned_total", "Rows given to scans.", &[], scanned);
        let help = "Time from a call's begin to its reply.";
        out.histogram("call_seconds", help, &[("method", "Write")], &self.write_seconds);
        out.histogram("call_seconds", help, &[("method", "Scan")], &self.scan_seconds);
    }
}

fn add(counter: &AtomicU64, more: u64) {
    if more > 0 {
        counter.fetch_add(more, Ordering::Relaxed);
    }
}

/// Shows `server` among the metrics and memory trackers of its process. The trackers live as long as what is given.
pub fn show(server: &Arc<Server>) -> Vec<Arc<MemTracker>> {
    let weak = Arc::downgrade(server);
    server.common.metrics.keep(move |out: &mut Samples| {
        if let Some(server) = weak.upgrade() {
            server.numbers.collect(out);
            collect_tablets(&server, out);
            collect_cache(&server, out);
        }
    });
    let cache_limit = Some(server.config.page_cache_bytes as u64);
    let root = &server.common.memory;
    let of_tablets = |weak: &Weak<Server>, bytes: fn(&engine::tablet::TabletStats) -> u64| {
        let weak = weak.clone();
        move || weak.upgrade().map_or(0, |server| tablets_sum(&server, bytes))
    };
    let weak = Arc::downgrade(server);
    let rows = root.child_asked("recent-rows", None, of_tablets(&weak, |stats| stats.mrs_bytes));
    let deltas = root.child_asked("recent-deltas", None, of_tablets(&weak, |stats| stats.dms_bytes));
    let cache = move || weak.upgrade().map_or(0, |server| server.tablets.cached_bytes());
    vec![rows, deltas, root.child_asked("page-cache", cache_limit, cache)]
}

fn tablets_sum(server: &Server, bytes: fn(&engine::tablet::TabletStats) -> u64) -> u64 {
    let tablets = server.tablets.all();
    tablets.iter().filter_map(|entry| entry.tablet()).map(|tablet| bytes(&tablet.stats())).sum()
}

fn collect_tablets(server: &Server, out: &mut Samples) {
    let mut states = BTreeMap::from(STATES.map(|state| (state, 0u64)));
    for entry in server.tablets.all() {
        *states.entry(state_name(&entry.state())).or_default() += 1;
        let Some(tablet) = entry.tablet() else { continue };
        let (stats, id, table) = (tablet.stats(), entry.id.to_string(), entry.table_name());
        let labels = [("tablet", id.as_str()), ("table", table.as_str())];
        let mut gauge = |name, help, value: u64| out.gauge(name, help, &labels, value as f64);
        gauge("tablet_live_rows", "Rows of a tablet.", stats.live_rows);
        gauge("tablet_disk_bytes", "Bytes of a tablet on disk.", stats.disk_bytes);
        gauge("tablet_memory_bytes", "Bytes of a tablet's rows in memory.", stats.memory_bytes);
        gauge("tablet_disk_rowsets", "DiskRowSets of a tablet.", stats.disk_rowsets);
    }
    for (state, count) in states {
        out.gauge("tablets", "Tablets by state.", &[("state", state)], count as f64);
    }
    out.gauge("scanners_open", "Scanners that are open.", &[], server.scanners().len() as f64);
}

const STATES: [&str; 6] = ["bootstrapping", "running", "failed", "stopping", "tombstoned", "stopped"];

fn state_name(state: &EntryState) -> &'static str {
    match state {
        EntryState::Bootstrapping => "bootstrapping",
        EntryState::Running(_) => "running",
        EntryState::Failed(_) => "failed",
        EntryState::Stopping => "stopping",
        EntryState::Tombstoned(_) => "tombstoned",
        EntryState::Stopped => "stopped",
    }
}

fn collect_cache(server: &Server, out: &mut Samples) {
    let stats = server.tablets.cache_stats();
    out.gauge("page_cache_bytes", "Bytes of pages in memory.", &[], stats.bytes as f64);
    out.counter("page_cache_hits_total", "Pages found in memory.", &[], stats.hits);
    out.counter("page_cache_misses_total", "Pages read from disk.", &[], stats.misses);
    out.counter("page_cache_evictions_total", "Pages dropped for others.", &[], stats.evictions);
}
