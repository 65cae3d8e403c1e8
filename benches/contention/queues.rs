//! Queues and steps of operations, from the histograms of the server's metrics page.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use benches::server_metrics;
use cores_model::QueueResult;
use serde_json::Value;

use crate::Done;

/// Histograms in microseconds: the queue of calls, the log, the wait for a snapshot, Raft, maintenance, whole calls.
const METRICS: [&str; 9] = [
    "rpc_incoming_queue_time",
    "log_append_latency",
    "log_sync_latency",
    "snapshot_read_inflight_wait_duration",
    "replication_duration",
    "write_op_duration_client_propagated_consistency",
    "maintenance_op_find_best_candidate_duration",
    "handler_latency_kudu_tserver_TabletServerService_Write",
    "handler_latency_kudu_tserver_TabletServerService_Scan",
];

/// Entries and time in microseconds of each histogram since the server's start, all tablets together.
pub(crate) type QueueTimes = BTreeMap<String, (f64, f64)>;

pub(crate) fn read(web: SocketAddr) -> Done<QueueTimes> {
    let page = server_metrics::get(web, &format!("/metrics?compact=1&metrics={}", METRICS.join(",")))?;
    Ok(times(&serde_json::from_str(&page)?))
}

fn times(page: &Value) -> QueueTimes {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut times = QueueTimes::new();
    for metric in list(page).iter().flat_map(|entity| list(&entity["metrics"])) {
        let name = metric["name"].as_str().unwrap_or_default();
        if METRICS.contains(&name) {
            let sums = times.entry(name.to_string()).or_default();
            sums.0 += metric["total_count"].as_f64().unwrap_or(0.0);
            sums.1 += metric["total_sum"].as_f64().unwrap_or(0.0);
        }
    }
    times
}

/// Returns the results of `operations` between two readings; histograms without an entry are left out.
pub(crate) fn results(before: &QueueTimes, after: &QueueTimes, operations: f64) -> Vec<QueueResult> {
    let since = |(metric, (entries, micros)): (&String, &(f64, f64))| {
        let (entries_before, micros_before) = before.get(metric).copied().unwrap_or_default();
        let entries = entries - entries_before;
        let mean_us = (micros - micros_before) / entries;
        (entries > 0.0).then(|| QueueResult {
            metric: metric.clone(),
            entries: entries / operations,
            mean_us,
        })
    };
    after.iter().filter_map(since).collect()
}
