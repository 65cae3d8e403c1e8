//! The maintenance loop of a server's tablets, and shrinking the page cache.
//!
//! ```text
//! scan all tablets ─▶ policy::choose ─▶ one job to its end (crate::hosting::maintenance) ─▶ scan …
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::ids::TabletId;
use engine::replica::{JobKind, maintenance_policy};

use super::history;
use super::server::TabletServer;
use crate::hosting::maintenance::UnflushedSince;
use crate::hosting::replica::ReplicaHandle;
use crate::hosting::tablet_entry::{EntryState, TabletEntry};

/// Runs the jobs that are due, for as long as the server runs.
pub async fn run(server: Arc<TabletServer>) {
    let mut watch = FlushAges::default();
    loop {
        let starved = server.memory.take_starvation_flag();
        count_memory(&server, starved);
        let began = server.env.now().mono;
        let next = watch.next_job(&server, starved).await;
        server.metrics.job_choice.record_micros(server.env.now().mono.since(began));
        let did = match next {
            Some((entry, replica, kind)) => do_job(&server, &mut watch, &entry, &replica, kind).await,
            None => false,
        };
        if !did {
            server.env.sleep(pause(&server, watch.tablets.len())).await;
        }
    }
}

/// Extra pause between scans per tablet, so that a server with thousands of idle tablets spends less than 1 percent of
/// a core on scanning.
const PAUSE_PER_TABLET: Duration = Duration::from_millis(1);

/// Returns the pause after a scan that found no job. Under memory pressure it does not grow with the number of tablets.
fn pause(server: &TabletServer, tablets: usize) -> Duration {
    let interval = Duration::from_millis(server.config.maintenance_interval_ms);
    match server.memory.excess_bytes() {
        0 => interval.max(PAUSE_PER_TABLET.saturating_mul(tablets as u32)),
        _ => interval,
    }
}

/// Fraction of the memory limit, as a divisor, by which the page cache shrinks after a request was rejected although
/// less than the soft limit is tracked.
const CACHE_RELIEF_DIVISOR: u64 = 16;

/// Shrinks the page cache under memory pressure, and reports the tracked memory.
fn count_memory(server: &TabletServer, starved: bool) {
    let memory = &server.memory;
    let wanted = if starved { memory.limit_bytes() / CACHE_RELIEF_DIVISOR } else { 0 };
    server.tablets.shrink_page_cache(memory.excess_bytes().max(wanted));
    server.env.observer.memory(memory.used_bytes(), memory.limit_bytes());
}

/// Times since when each tablet has had something to flush, as far as the scans noticed.
#[derive(Default)]
struct FlushAges {
    tablets: BTreeMap<TabletId, UnflushedSince>,
}

impl FlushAges {
    async fn next_job(
        &mut self,
        server: &TabletServer,
        starved: bool,
    ) -> Option<(Arc<TabletEntry>, ReplicaHandle, JobKind)> {
        let now = server.env.now().mono;
        let entries = server.tablets.all();
        self.tablets.retain(|id, _| entries.binary_search_by_key(id, |entry| entry.id).is_ok());
        let mut open = Vec::new();
        let mut views = Vec::new();
        for entry in entries {
            let EntryState::Running(replica) = entry.state() else { continue };
            let since = self.tablets.entry(entry.id).or_default();
            if replica.failure().is_none() && since.may_run(now) {
                replica.tablet().raise_history_mark(history::ancient_mark(server, &entry));
                views.push(since.view(&replica, now).await);
                open.push((entry, replica));
            }
        }
        let memory_short = starved || server.memory.excess_bytes() > 0;
        let (i, kind) = maintenance_policy::choose(
            &views,
            &server.runtime_flags.tablet(&server.config.tablet),
            memory_short,
        )?;
        server.env.observer.mark_if(memory_short, "maintenance: memory pressure");
        let (entry, replica) = open.swap_remove(i);
        Some((entry, replica, kind))
    }
}

/// Runs [`UnflushedSince::run`] for one of the server's tablets, and marks the tablet for the next report.
async fn do_job(
    server: &TabletServer,
    watch: &mut FlushAges,
    entry: &TabletEntry,
    replica: &ReplicaHandle,
    kind: JobKind,
) -> bool {
    let since = watch.tablets.entry(entry.id).or_default();
    server.maintenance_log.begin(entry.id, &kind, server.env.now().mono);
    let did = since.run(&server.env, replica, kind).await;
    server.maintenance_log.end(did, server.env.now().mono);
    server.tablets.mark_changed_quietly(entry.id);
    did
}
