//! Gauges and counters of running tablet servers, beside the values that they are to have: both are read at the same
//! time, so that they are equal whatever the servers do.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::raft::interface::Role;
use node::hosting::replica::ReplicaHandle;
use node::hosting::tablet_entry::TabletEntry;
use node::tserver::server::TabletServer;
use nyala_common::metrics::Entity;
use nyala_common::metrics::definition::EntityKind;

use crate::health_boards::integers;
use crate::oracle::tablet_gauges::{EntityGauges, GaugeValues};
use crate::oracle::tablet_traits::ReplicaPair;
use crate::server_usage::RunningServers;

/// Gauges of a tablet that are zero when no client writes, no operation is in flight and no job is due.
const IDLE_ZEROS: [&str; 10] = [
    "in_progress_ops",
    "all_transactions_inflight",
    "write_transactions_inflight",
    "alter_schema_transactions_inflight",
    "log_gc_running",
    "flush_mrs_running",
    "flush_dms_running",
    "compact_rs_running",
    "delta_major_compact_rs_running",
    "delta_minor_compact_rs_running",
];

/// Returns the gauges of all tablet servers that run, and of their tablets. `idle`: replicas in which nothing is in
/// flight; others may have received operations that no leader commits, or repeat a job that fails.
pub(crate) fn read(servers: &RunningServers, idle: &BTreeSet<ReplicaPair>) -> Vec<EntityGauges> {
    let each = servers.all().into_iter();
    each.flat_map(|(host, server)| of_server(&host.name(), &server, idle)).collect()
}

fn of_server(host: &str, server: &TabletServer, idle: &BTreeSet<ReplicaPair>) -> Vec<EntityGauges> {
    let snapshot = server.common.metrics.snapshot();
    let told = |entity: &Entity| integers(entity).collect::<GaugeValues>();
    let of_tablet = |id: &str| {
        let found =
            snapshot.others.iter().find(|entity| entity.kind == EntityKind::Tablet && entity.id == id);
        found.map(told).unwrap_or_default()
    };
    let (entries, scanners) = (server.tablets.all(), server.scanners().len());
    let own = server_values(&entries, scanners);
    let mut found = vec![EntityGauges {
        server: host.to_string(),
        tablet: None,
        told: told(&snapshot.server),
        wanted: own,
    }];
    for (entry, replica) in entries.iter().filter_map(|entry| Some((entry, entry.running().ok()?))) {
        let tablet = entry.id.to_string();
        let mut wanted = tablet_values(entry, &replica);
        // A scan that is served now would be open without a scanner: without one, no call is on its way here.
        if idle.contains(&(host.to_string(), tablet.clone())) {
            wanted.extend(IDLE_ZEROS.map(|name| (name, 0)));
            wanted.extend((scanners == 0).then_some(("tablet_active_scanners", 0)));
        }
        let told = of_tablet(&tablet);
        found.push(EntityGauges { server: host.to_string(), tablet: Some(tablet), told, wanted });
    }
    found
}

fn server_values(entries: &[Arc<TabletEntry>], scanners: usize) -> GaugeValues {
    let running: Vec<ReplicaHandle> = entries.iter().filter_map(|entry| entry.running().ok()).collect();
    let leads = |replica: &&ReplicaHandle| replica.status().role == Role::Leader;
    let is_alone = |replica: &&ReplicaHandle| replica.status().leader.is_none();
    let failed = entries.iter().filter(|entry| entry.failure().is_some());
    GaugeValues::from([
        ("tablets_num_running", running.len() as i64),
        ("tablets_num_failed", failed.count() as i64),
        ("num_raft_leaders", running.iter().filter(leads).count() as i64),
        ("raft_leaderless_tablets", running.iter().filter(is_alone).count() as i64),
        ("active_scanners", scanners as i64),
    ])
}

fn tablet_values(entry: &TabletEntry, replica: &ReplicaHandle) -> GaugeValues {
    let totals = replica.tablet().write_totals();
    let counts = totals.counts;
    let mut values: GaugeValues = [
        ("raft_term", replica.status().term),
        ("rows_inserted", counts.inserts),
        ("rows_upserted", counts.upserts),
        ("rows_updated", counts.updates),
        ("rows_deleted", counts.deletes),
        ("insertions_failed_dup_key", totals.present),
        ("insert_ignore_errors", counts.insert_ignore_errors),
        ("update_ignore_errors", counts.update_ignore_errors),
        ("upsert_ignore_errors", counts.upsert_ignore_errors),
        ("delete_ignore_errors", counts.delete_ignore_errors),
        ("row_errors", totals.errors),
    ]
    .into_iter()
    .map(|(name, value)| (name, value as i64))
    .collect();
    if let Some(sizes) = entry.sizes() {
        values.insert("live_row_count", sizes.live_rows as i64);
        values.insert("on_disk_size", sizes.disk_bytes as i64);
    }
    values
}
