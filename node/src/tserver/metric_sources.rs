//! Metrics of a tablet server: its calls, its tablets, and its memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::server::TabletServer;
use crate::hosting::tablet_entry::EntryState;
use nyala_common::metrics::MetricSamples;

/// Registers the metrics of `server` with its process.
pub fn show(server: &Arc<TabletServer>) {
    let weak = Arc::downgrade(server);
    server.common.metrics.register(move |samples: &mut MetricSamples| {
        if let Some(server) = weak.upgrade() {
            server.metrics.collect(samples);
            collect_tablets(&server, samples);
            collect_cache(&server, samples);
        }
    });
}

fn collect_tablets(server: &TabletServer, samples: &mut MetricSamples) {
    let mut states = BTreeMap::from(STATES.map(|state| (state, 0u64)));
    for entry in server.tablets.all() {
        *states.entry(state_name(&entry.state())).or_default() += 1;
        let Some(tablet) = entry.tablet() else { continue };
        let (stats, id, table) = (tablet.stats(), entry.id.to_string(), entry.table_name());
        let labels = [("tablet", id.as_str()), ("table", table.as_str())];
        let mut gauge = |name, help, value: u64| samples.gauge(name, help, &labels, value as f64);
        gauge("tablet_live_rows", "Rows of a tablet.", stats.live_rows);
        gauge("tablet_disk_bytes", "Bytes of a tablet on disk.", stats.disk_bytes);
        gauge("tablet_memory_bytes", "Bytes of a tablet's rows in memory.", stats.memory_bytes);
        gauge("tablet_disk_rowsets", "DiskRowSets of a tablet.", stats.disk_rowsets);
        let (probes, name) = (tablet.probes(), "tablet_write_lookups_total");
        let help = "Key lookups of writes, in Bloom filters and key indexes.";
        for (place, count) in [("bloom", probes.blooms), ("keys", probes.keys)] {
            let labels = [("tablet", id.as_str()), ("table", table.as_str()), ("in", place)];
            samples.counter(name, help, &labels, count);
        }
    }
    for (state, count) in states {
        samples.gauge("tablets", "Tablets by state.", &[("state", state)], count as f64);
    }
    let (finished, failed) = server.copies.ended();
    let (name, help) = ("tablet_copies_total", "Finished and failed tablet copies onto this server.");
    samples.counter(name, help, &[("result", "finished")], finished);
    samples.counter(name, help, &[("result", "failed")], failed);
    samples.gauge(
        "tablet_copies",
        "Tablets being copied onto this server.",
        &[],
        server.copies.count() as f64,
    );
    let (name, help) = ("tablet_copy_bytes_total", "Bytes of tablets copied between servers.");
    samples.counter(name, help, &[("way", "received")], server.copies.bytes_received());
    if let Some(service) = server.copy_service() {
        samples.counter(name, help, &[("way", "sent")], service.bytes_sent());
        let sessions = service.session_count() as f64;
        samples.gauge("tablet_copy_sessions", "Tablet copy sessions at this server.", &[], sessions);
    }
    let help = "Writes and leaders' messages rejected because memory was short.";
    samples.counter("memory_refusals_total", help, &[], server.memory.refused());
    samples.gauge("scanners_open", "Open scanners.", &[], server.scanners().len() as f64);
}

const STATES: [&str; 7] =
    ["bootstrapping", "copying", "running", "failed", "stopping", "tombstoned", "stopped"];

fn state_name(state: &EntryState) -> &'static str {
    match state {
        EntryState::Bootstrapping => "bootstrapping",
        EntryState::Copying => "copying",
        EntryState::Running(_) => "running",
        EntryState::Failed(_) => "failed",
        EntryState::Stopping => "stopping",
        EntryState::Tombstoned(_) => "tombstoned",
        EntryState::Stopped => "stopped",
    }
}

fn collect_cache(server: &TabletServer, samples: &mut MetricSamples) {
    let stats = server.tablets.cache_stats();
    samples.gauge("page_cache_bytes", "Bytes of pages in the page cache.", &[], stats.bytes as f64);
    samples.counter("page_cache_hits_total", "Pages found in the page cache.", &[], stats.hits);
    samples.counter("page_cache_misses_total", "Pages read from disk.", &[], stats.misses);
    samples.counter("page_cache_evictions_total", "Pages evicted.", &[], stats.evictions);
}
