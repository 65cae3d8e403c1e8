//! Reads of one key: on the task of their connection while what they read is in memory, else on a task of their own.

use super::faults::Faulty;
use super::turns::counted;
use super::*;
use crate::hosting::maintenance::run_job;
use engine::disk::mem::DiskOpKind;
use engine::replica::JobKind;
use nyala_common::env::testing::CountedTasks;
use nyala_proto::kudu::ColumnPredicatePb;
use nyala_proto::kudu::column_predicate_pb::{Equality, Predicate};

const EIO: i32 = 5;

fn of_key(key: i32) -> NewScanRequestPb {
    let value = Some(Bytes::copy_from_slice(&key.to_le_bytes()));
    let predicate = Some(Predicate::Equality(Equality { value }));
    let predicate = ColumnPredicatePb { column: Some("key".to_string()), predicate };
    NewScanRequestPb { column_predicates: vec![predicate], ..new_scan(&["key", "v"]) }
}

async fn flush(fixture: &Fixture) {
    let entry = fixture.running.server.tablets.get(TABLET).expect("it was made");
    let replica = entry.running().expect("it runs");
    assert!(run_job(&fixture.env, &replica, JobKind::FlushRows).await.expect("the job succeeds"));
}

/// Outcome of a read: its sidecars, its bytes from files and from the cache, and the tasks that it took.
type ReadOutcome = (Vec<Bytes>, (i64, i64), u64);

async fn read(fixture: &Fixture, tasks: &CountedTasks, new: NewScanRequestPb) -> ReadOutcome {
    let before = tasks.started();
    let RpcResponse { message, sidecars } = fixture.scan(&open(new)).await;
    assert_eq!((message.error.clone(), message.has_more_results()), (None, false));
    let metrics = message.resource_metrics.expect("metrics");
    let pages = (metrics.cfile_cache_miss_bytes(), metrics.cfile_cache_hit_bytes());
    (sidecars, pages, tasks.started() - before)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_takes_a_task_only_if_it_reads_files() {
    let (mut fixture, tasks) = counted(|_| {}).await;
    let rows: Vec<Op<'_>> = (0..100).map(|key| insert(key, "text")).collect();
    assert_eq!(fixture.write(&rows).await.per_row_errors, []);
    let (in_memory, pages, taken) = read(&fixture, &tasks, of_key(7)).await;
    assert_eq!((pages, taken), ((0, 0), 0), "rows in memory have no pages");
    flush(&fixture).await;
    fixture.restart().await;
    let (from_files, (missed, _), taken) = read(&fixture, &tasks, of_key(7)).await;
    assert!(missed > 0 && taken == 1, "{missed} bytes from files, {taken} tasks");
    let (from_cache, (missed, cached), taken) = read(&fixture, &tasks, of_key(7)).await;
    assert!(missed == 0 && cached > 0 && taken == 0, "{missed} bytes from files, {taken} tasks");
    assert!(!in_memory.is_empty() && in_memory == from_files && from_files == from_cache);
    let (absent, _, taken) = read(&fixture, &tasks, of_key(1000)).await;
    assert!(taken == 0 && absent.iter().all(Bytes::is_empty), "{absent:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_sees_deltas_in_memory_in_files_and_in_the_cache() {
    let (mut fixture, tasks) = counted(|_| {}).await;
    assert_eq!(fixture.write(&[insert(7, "old")]).await.per_row_errors, []);
    flush(&fixture).await;
    let update = Op { v: Some(Some("new")), ..op(RowOpKind::Update, 7) };
    assert_eq!(fixture.write(&[update]).await.per_row_errors, []);
    let text = |(sidecars, ..): &ReadOutcome| sidecars.iter().any(|bytes| bytes.ends_with(b"new"));
    let first = read(&fixture, &tasks, of_key(7)).await;
    fixture.restart().await;
    let after = [read(&fixture, &tasks, of_key(7)).await, read(&fixture, &tasks, of_key(7)).await];
    assert!(text(&first) && text(&after[0]) && text(&after[1]));
    assert_eq!((after[0].2, after[1].2), (1, 0), "the second read finds all pages in the cache");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_of_more_than_a_key_leave_their_connection() {
    let (fixture, tasks) = counted(|_| {}).await;
    assert_eq!(fixture.write(&[insert(7, "text")]).await.per_row_errors, []);
    assert_eq!(read(&fixture, &tasks, new_scan(&["key"])).await.2, 1);
    let first = NewScanRequestPb { limit: Some(1), ..new_scan(&["key"]) };
    assert_eq!(read(&fixture, &tasks, first).await.2, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_page_fails_the_tablet_and_is_no_missing_page() {
    let mut faulty = Faulty::start(|config| config.maintenance_interval_ms = 1 << 40).await;
    faulty.fixture.create_tablet().await;
    assert_eq!(faulty.fixture.write(&[insert(7, "text")]).await.per_row_errors, []);
    flush(&faulty.fixture).await;
    faulty.fixture.restart().await;
    faulty.disk("data").fail_some(DiskOpKind::Read, 1000, EIO);
    let reply = faulty.fixture.scan(&open(of_key(7))).await.message;
    let error = error_text(&reply.error);
    assert!(error.starts_with("TABLET_FAILED + ILLEGAL_STATE: "), "{error}");
}
