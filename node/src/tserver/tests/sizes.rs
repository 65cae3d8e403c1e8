//! Sizes that planners and tools see, and the pages that scans report.

use super::*;
use crate::hosting::maintenance::run_job;
use engine::replica::JobKind;
use nyala_proto::kudu::tserver::{
    ChecksumRequestPb, ChecksumResponsePb, ListTabletsRequestPb, ListTabletsResponsePb, ResourceMetricsPb,
};

/// Returns the size that ListTablets reports.
async fn reported(fixture: &Fixture) -> u64 {
    let request = ListTabletsRequestPb::default();
    let reply: ListTabletsResponsePb = fixture.client("ListTablets", &request).await;
    reply.status_and_schema[0].tablet_status.estimated_on_disk_size.expect("a size") as u64
}

async fn flush(fixture: &Fixture) {
    let entry = fixture.running.server.tablets.get(TABLET).expect("it was made");
    let replica = entry.running().expect("it runs");
    assert!(run_job(&fixture.env, &replica, JobKind::FlushRows).await.expect("the job succeeds"));
}

async fn load(fixture: &Fixture, text: &str) {
    let ops: Vec<_> = (0..1000).map(|key| insert(key, text)).collect();
    assert_eq!(fixture.write(&ops).await.per_row_errors, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_tablet_has_at_least_its_log_segment() {
    let fixture = Fixture::start().await;
    fixture.create_tablet().await;
    let segment = fixture.running.server.config.tablet.wal_segment_bytes_max;
    let size = reported(&fixture).await;
    assert!((segment + 1..segment + (64 << 10)).contains(&size), "segment and metadata: {size}");
}

/// A planner that is told 0 bytes for a loaded table sends all of it to every worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unflushed_rows_count_though_their_log_is_compressed() {
    let fixture = Fixture::with(|config| config.tablet.wal_segment_bytes_max = 64 << 10).await;
    fixture.create_tablet().await;
    load(&fixture, &"x".repeat(1000)).await;
    let size = reported(&fixture).await;
    assert!(size >= 1000 * 1000, "{size}");
    flush(&fixture).await;
    let stats = fixture.running.server.tablets.get(TABLET).and_then(|entry| entry.tablet());
    let files = stats.expect("it runs").stats().disk_bytes;
    assert!(files > 0 && reported(&fixture).await > files, "files, log and metadata");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_and_checksums_report_the_pages_they_read() {
    let mut fixture = Fixture::start().await;
    fixture.create_tablet().await;
    load(&fixture, "text").await;
    let scan = async |fixture: &Fixture| {
        let reply = fixture.scan(&open(new_scan(&["key", "v"]))).await.message;
        bytes(&reply.resource_metrics.expect("metrics"))
    };
    assert_eq!(scan(&fixture).await, (0, 0), "rows in memory have no pages");
    flush(&fixture).await;
    fixture.restart().await;
    let (missed, _) = scan(&fixture).await;
    assert!(missed > 0, "the first scan reads files");
    assert_eq!(scan(&fixture).await, (0, missed), "the second one finds all pages in the cache");
    let request = ChecksumRequestPb { new_request: Some(new_scan(&["key", "v"])), ..Default::default() };
    let sum: ChecksumResponsePb = fixture.client("Checksum", &request).await;
    assert_eq!(bytes(&sum.resource_metrics.expect("metrics")), (0, missed));
    let keys = fixture.scan(&open(new_scan(&["key"]))).await.message;
    let (_, of_keys) = bytes(&keys.resource_metrics.expect("metrics"));
    assert!((1..missed).contains(&of_keys), "one column is less than both: {of_keys} of {missed}");
}

/// Returns the bytes of pages read from files and found in the cache.
fn bytes(metrics: &ResourceMetricsPb) -> (i64, i64) {
    let sum = metrics.cfile_cache_miss_bytes() + metrics.cfile_cache_hit_bytes();
    assert_eq!(metrics.bytes_read(), sum);
    (metrics.cfile_cache_miss_bytes(), metrics.cfile_cache_hit_bytes())
}
