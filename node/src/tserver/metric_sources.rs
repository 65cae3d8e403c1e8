//! Metrics of a tablet server: its tablets, its page cache and its copies.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::raft::Role;
use engine::tablet::apply::WriteTotals;
use engine::time::Timestamp;

use super::server::TabletServer;
use crate::hosting::replica::ReplicaHandle;
use crate::hosting::space::SpaceLevel;
use crate::hosting::tablet_entry::{EntryState, TabletEntry};
use nyala_common::metrics::definition::{EntityKind, MetricDef};
use nyala_common::metrics::{Entity, MetricSnapshot, MetricValue, table};

/// Registers the metrics of `server` with its process.
pub(super) fn show(server: &Arc<TabletServer>) {
    let weak = Arc::downgrade(server);
    server.common.metrics.register(move |out: &mut MetricSnapshot| {
        if let Some(server) = weak.upgrade() {
            collect_server(&server, &mut out.server);
            collect_space(&server, &mut out.server);
            collect_copies(&server, &mut out.server);
            collect_cache(&server, &mut out.server);
            collect_tablets(&server, out);
        }
    });
}

fn collect_server(server: &TabletServer, out: &mut Entity) {
    out.gauge(&table::HYBRID_CLOCK_TIMESTAMP, server.clock.peek().micros());
    out.gauge(&table::ACTIVE_SCANNERS, server.scanners().len() as u64);
    out.counter(&table::SCANNERS_EXPIRED, server.metrics.scanners_expired());
    out.histogram(&table::SCANNER_DURATION, &server.scan_log.durations());
    out.gauge(&table::SLOW_SCANS, server.scan_log.slow());
    out.histogram(&table::CREATE_TABLET_RUN_TIME, &server.metrics.create_tablet);
    out.histogram(&table::DELETE_TABLET_RUN_TIME, &server.metrics.delete_tablet);
    out.histogram(&table::MAINTENANCE_OP_FIND_BEST_CANDIDATE_DURATION, &server.metrics.job_choice);
    out.counter(&table::MEMORY_REJECTIONS, server.memory.refused());
}

fn collect_space(server: &TabletServer, out: &mut Entity) {
    let space = server.tablets.space().all();
    let Some(((_, wal), data)) = space.split_first() else { return };
    let full = data.iter().filter(|(_, space)| space.level > SpaceLevel::Plenty).count();
    out.gauge(&table::DATA_DIRS_FULL, full as u64);
    out.gauge(&table::DATA_DIRS_SPACE_AVAILABLE, data.iter().map(|(_, space)| space.free).sum());
    out.gauge(&table::WAL_DIR_SPACE_AVAILABLE, wal.free);
    let bytes = |bytes: u64| MetricValue::Integer(i64::try_from(bytes).unwrap_or(i64::MAX));
    for (dir, space) in &space {
        out.labelled(&table::DISK_FREE, &[("dir", dir)], bytes(space.free));
        out.labelled(&table::DISK_TOTAL, &[("dir", dir)], bytes(space.total));
        out.labelled(&table::DISK_RESERVED, &[("dir", dir)], bytes(space.reserved));
    }
}

fn collect_copies(server: &TabletServer, out: &mut Entity) {
    let (finished, failed) = server.copies.ended();
    out.histogram(&table::TABLET_COPY_DURATION, &server.metrics.tablet_copy);
    out.counter(&table::COPIES_FINISHED, finished);
    out.counter(&table::COPIES_FAILED, failed);
    out.gauge(&table::TABLET_COPY_OPEN_CLIENT_SESSIONS, server.copies.count() as u64);
    out.counter(&table::TABLET_COPY_BYTES_FETCHED, server.copies.bytes_received());
    if let Some(service) = server.copy_service() {
        out.counter(&table::TABLET_COPY_BYTES_SENT, service.bytes_sent());
        out.gauge(&table::TABLET_COPY_OPEN_SOURCE_SESSIONS, service.session_count() as u64);
    }
}

fn collect_cache(server: &TabletServer, out: &mut Entity) {
    let stats = server.tablets.cache_stats();
    out.gauge(&table::BLOCK_CACHE_USAGE, stats.bytes);
    out.counter(&table::BLOCK_CACHE_LOOKUPS, stats.hits + stats.misses);
    out.counter(&table::BLOCK_CACHE_HITS, stats.hits);
    out.counter(&table::BLOCK_CACHE_HITS_CACHING, stats.hits);
    out.counter(&table::BLOCK_CACHE_MISSES, stats.misses);
    out.counter(&table::BLOCK_CACHE_MISSES_CACHING, stats.misses);
    out.counter(&table::BLOCK_CACHE_EVICTIONS, stats.evictions);
}

/// Gauges of the number of replicas by state.
const STATES: [&MetricDef; 6] = [
    &table::TABLETS_NUM_BOOTSTRAPPING,
    &table::TABLETS_NUM_RUNNING,
    &table::TABLETS_NUM_FAILED,
    &table::TABLETS_NUM_STOPPING,
    &table::TABLETS_COPYING,
    &table::TABLETS_NUM_STOPPED,
];

fn state_gauge(state: &EntryState) -> &'static MetricDef {
    match state {
        EntryState::Bootstrapping => &table::TABLETS_NUM_BOOTSTRAPPING,
        EntryState::Running(replica) if replica.failure().is_some() => &table::TABLETS_NUM_FAILED,
        EntryState::Running(_) => &table::TABLETS_NUM_RUNNING,
        EntryState::Failed(_) => &table::TABLETS_NUM_FAILED,
        EntryState::Stopping => &table::TABLETS_NUM_STOPPING,
        EntryState::Copying => &table::TABLETS_COPYING,
        EntryState::Tombstoned(_) | EntryState::Stopped => &table::TABLETS_NUM_STOPPED,
    }
}

fn collect_tablets(server: &TabletServer, out: &mut MetricSnapshot) {
    let mut counts = BTreeMap::from(STATES.map(|def| (def.name, 0)));
    let (mut leaders, mut leaderless) = (0, 0);
    let now = server.clock.peek();
    let scans = server.scan_log.open_by_tablet();
    for entry in server.tablets.all() {
        let state = entry.state();
        *counts.entry(state_gauge(&state).name).or_default() += 1;
        let EntryState::Running(replica) = &state else { continue };
        let mut entity = tablet_entity(&entry, replica);
        // A replica that failed has its rows and counts, but neither leads, nor follows, nor lags.
        if replica.failure().is_none() {
            let status = replica.status();
            leaders += u64::from(status.role == Role::Leader);
            leaderless += u64::from(status.leader.is_none());
            collect_progress(replica, now, &mut entity);
            replica.metrics().collect(&mut entity, server.env.now().mono, status.role == Role::Leader);
            entity.gauge(&table::TABLET_ACTIVE_SCANNERS, scans.get(&entry.id).copied().unwrap_or(0));
        }
        out.others.push(entity);
    }
    for def in STATES {
        out.server.gauge(def, counts[def.name]);
    }
    out.server.gauge(&table::NUM_RAFT_LEADERS, leaders);
    out.server.gauge(&table::RAFT_LEADERLESS_TABLETS, leaderless);
}

fn tablet_entity(entry: &TabletEntry, replica: &ReplicaHandle) -> Entity {
    let mut entity = Entity::new(EntityKind::Tablet, entry.id.to_string());
    entity.attribute("table_id", entry.meta.table.to_string());
    entity.attribute("table_name", entry.table_name());
    let tablet = replica.tablet();
    let state = entry.state_pb().as_str_name().to_owned();
    entity.value(&table::TABLET_STATE, MetricValue::Text(state));
    collect_sizes(replica, &mut entity);
    collect_rows(tablet.write_totals(), &mut entity);
    let probes = tablet.probes();
    entity.counter(&table::BLOOM_LOOKUPS, probes.blooms);
    entity.counter(&table::KEY_FILE_LOOKUPS, probes.keys);
    entity.gauge(&table::RAFT_TERM, replica.status().term);
    entity
}

fn collect_progress(replica: &ReplicaHandle, now: Timestamp, entity: &mut Entity) {
    let tablet = replica.tablet();
    let lag = now.micros().saturating_sub(tablet.mvcc().safe_time(now).micros());
    entity.gauge(&table::SAFE_TIME_LAG, lag);
    let in_flight = tablet.mvcc().in_flight() as u64;
    entity.gauge(&table::WRITE_TRANSACTIONS_INFLIGHT, in_flight);
    entity.gauge(&table::ALL_TRANSACTIONS_INFLIGHT, in_flight);
}

fn collect_sizes(replica: &ReplicaHandle, entity: &mut Entity) {
    let (stats, log_bytes) = (replica.tablet().stats(), replica.log_bytes());
    entity.gauge(&table::ON_DISK_SIZE, replica.disk_size());
    entity.gauge(&table::ON_DISK_DATA_SIZE, stats.disk_bytes);
    entity.gauge(&table::LOG_SIZE, log_bytes);
    entity.gauge(&table::MEMROWSET_SIZE, stats.mrs_bytes);
    entity.gauge(&table::DELTAMEMSTORE_SIZE, stats.dms_bytes);
    entity.gauge(&table::LIVE_ROW_COUNT, stats.live_rows);
    entity.gauge(&table::NUM_ROWSETS_ON_DISK, stats.disk_rowsets);
    let height = MetricValue::Real(replica.tablet().rowset_places().1);
    entity.value(&table::AVERAGE_DISKROWSET_HEIGHT, height);
}

fn collect_rows(totals: WriteTotals, entity: &mut Entity) {
    let WriteTotals { counts, errors, present } = totals;
    entity.counter(&table::ROWS_INSERTED, counts.inserts);
    entity.counter(&table::ROWS_UPSERTED, counts.upserts);
    entity.counter(&table::ROWS_UPDATED, counts.updates);
    entity.counter(&table::ROWS_DELETED, counts.deletes);
    entity.counter(&table::INSERTIONS_FAILED_DUP_KEY, present);
    entity.counter(&table::INSERT_IGNORE_ERRORS, counts.insert_ignore_errors);
    entity.counter(&table::UPDATE_IGNORE_ERRORS, counts.update_ignore_errors);
    entity.counter(&table::UPSERT_IGNORE_ERRORS, counts.upsert_ignore_errors);
    entity.counter(&table::DELETE_IGNORE_ERRORS, counts.delete_ignore_errors);
    entity.counter(&table::ROW_ERRORS, errors);
}
