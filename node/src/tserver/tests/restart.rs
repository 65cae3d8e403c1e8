use super::*;
use crate::hosting::maintenance::run_job;
use engine::replica::JobKind;
use nyala_proto::kudu::KeyRangePb;
use nyala_proto::kudu::tserver::{SplitKeyRangeRequestPb, SplitKeyRangeResponsePb};

async fn write_as(fixture: &Fixture, seq: i64, ops: &[Op<'_>]) -> Vec<u8> {
    let options = CallOptions { request_id: Some(request_id(seq)), ..CallOptions::default() };
    let request = write_request(&schema(), ops);
    let answer = fixture.call::<_, WriteResponsePb>(CLIENT_SERVICE, "Write", &request, options).await;
    answer.expect("the call succeeds").message.encode_to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_rows_survive_a_restart() {
    let mut fixture = Fixture::start().await;
    fixture.create_tablet().await;
    fixture.write(&[insert(1, "a"), insert(2, "b"), insert(3, "c")]).await;
    fixture.write(&[op(RowOpKind::Delete, 2), insert(4, "d")]).await;
    fixture.restart().await;
    assert_eq!(fixture.keys(new_scan(&["key"])).await, [1, 3, 4]);
    let uuid = fixture.running.server.uuid();
    fixture.restart().await;
    assert_eq!(fixture.running.server.uuid(), uuid, "a server keeps its id");
    let late = fixture.write(&[insert(3, "again"), insert(5, "e")]).await;
    assert_eq!(late.per_row_errors.len(), 1);
    assert_eq!(fixture.keys(new_scan(&["key"])).await, [1, 3, 4, 5]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_runs_after_a_shutdown() {
    let mut fixture = Fixture::with(|config| {
        config.maintenance_interval_ms = 1;
        config.tablet = engine::config::TabletConfig::tiny();
    })
    .await;
    fixture.create_tablet().await;
    for round in 0..10 {
        let rows: Vec<_> = (0..200).map(|key| insert(round * 200 + key, "some text")).collect();
        fixture.write(&rows).await;
        fixture.running.shutdown().await;
        assert!(fixture.running.tasks.iter().all(|task| task.is_finished()), "round {round}");
        fixture.start_again().await;
    }
    assert_eq!(fixture.keys(new_scan(&["key"])).await.len(), 2000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_gets_the_first_reply_byte_by_byte() {
    for log_sync in [true, false] {
        let change =
            if log_sync { |_: &mut TserverConfig| {} } else { |c: &mut TserverConfig| c.log_sync = false };
        let mut fixture = Fixture::with(change).await;
        fixture.create_tablet().await;
        let ops = [insert(1, "a"), insert(1, "twice"), op(RowOpKind::DeleteIgnore, 7)];
        let first = write_as(&fixture, 0, &ops).await;
        assert_eq!(write_as(&fixture, 0, &ops).await, first);
        fixture.restart().await;
        assert_eq!(write_as(&fixture, 0, &ops).await, first, "also from the log");
        let next = write_as(&fixture, 1, &ops).await;
        assert_ne!(next, first, "another request runs");
        assert_eq!(fixture.keys(new_scan(&["key"])).await, [1]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_belong_to_one_running_server() {
    let fixture = Fixture::start().await;
    let path = |name: &str| fixture.dir.path().join(name).to_str().expect("UTF-8").to_string();
    let addr = "127.0.0.1:0".parse().expect("an address");
    let error = async |wal: &str, data: &str| {
        let config = TserverConfig::new(addr, path(wal), vec![path(data)]);
        let failed = super::super::run(fixture.env.clone(), config).await.err().expect("refused");
        failed.message.replace(&path(""), "")
    };
    expect_test::expect![[
        r#"the directory wal is in use by another process; stop that one or choose another directory"#
    ]]
    .assert_eq(&error("wal", "data").await);
    fixture.running.shutdown().await;
    let uuid = fixture.running.server.uuid().to_string();
    let error_text = error("wal2", "data").await.replace(&uuid, "UUID");
    expect_test::expect![
        "the WAL directory wal2 is empty, but data belongs to server UUID, whose WAL must be somewhere else"
    ]
    .assert_eq(&error_text);
}

/// Returns every key with its `v`, by key.
async fn values(fixture: &Fixture) -> Vec<(i32, String)> {
    let RpcResponse { message, sidecars } =
        fixture.scan(&open(NewScanRequestPb { row_format_flags: Some(2), ..new_scan(&["key", "v"]) })).await;
    assert_eq!((&message.error, message.has_more_results()), (&None, false));
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
    let keys = sidecars[0].chunks(4).map(|key| number(key) as i32);
    let offsets: Vec<usize> = sidecars[1].chunks(4).map(|offset| number(offset) as usize).collect();
    let texts = offsets.windows(2).map(|at| String::from_utf8_lossy(&sidecars[2][at[0]..at[1]]).into_owned());
    let mut values: Vec<_> = keys.zip(texts).collect();
    values.sort();
    values
}

fn expected(keys: std::ops::Range<i32>) -> Vec<(i32, String)> {
    let value = |key: i32| if key % 10 == 0 { format!("changed {key}") } else { format!("value {key}") };
    keys.map(|key| (key, value(key))).collect()
}

async fn write_all(fixture: &Fixture, keys: std::ops::Range<i32>) {
    let texts: Vec<_> = keys.clone().map(|key| format!("value {key}")).collect();
    let ops: Vec<_> = keys.clone().zip(&texts).map(|(key, text)| insert(key, text)).collect();
    assert_eq!(fixture.write(&ops).await.per_row_errors, []);
}

async fn change_some(fixture: &Fixture, keys: std::ops::Range<i32>) {
    let texts: Vec<_> = keys.map(|key| (key, format!("changed {key}"))).collect();
    let update = |(key, text)| Op { kind: RowOpKind::Update, ..insert(key, text) };
    let ops: Vec<_> =
        texts.iter().filter(|(key, _)| key % 10 == 0).map(|(key, text)| update((*key, text))).collect();
    assert_eq!(fixture.write(&ops).await.per_row_errors, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_rows_and_later_changes_survive() {
    let quiet = |config: &mut TserverConfig| config.maintenance_interval_ms = 1 << 40;
    let mut fixture = Fixture::with(quiet).await;
    fixture.create_tablet().await;
    let run = async |fixture: &Fixture, kind: JobKind| {
        let entry = fixture.running.server.tablets.get(TABLET).expect("the tablet");
        let replica = entry.running().expect("it runs");
        run_job(&fixture.env, &replica, kind).await.expect("the job succeeds")
    };
    write_all(&fixture, 0..100).await;
    assert!(run(&fixture, JobKind::FlushRows).await);
    change_some(&fixture, 0..50).await;
    write_all(&fixture, 100..200).await;
    change_some(&fixture, 50..200).await;
    fixture.restart().await;
    assert_eq!(values(&fixture).await, expected(0..200));
    assert!(run(&fixture, JobKind::FlushDeltas(1)).await);
    assert!(run(&fixture, JobKind::FlushRows).await);
    assert!(!run(&fixture, JobKind::FlushRows).await, "nothing is left to flush");
    assert_eq!(values(&fixture).await, expected(0..200));
    fixture.restart().await;
    assert_eq!(values(&fixture).await, expected(0..200));
    let tablet_id = schema::id_bytes(&TABLET);
    let request =
        SplitKeyRangeRequestPb { tablet_id, target_chunk_size_bytes: Some(1), ..Default::default() };
    let split: SplitKeyRangeResponsePb = fixture.client("SplitKeyRange", &request).await;
    assert_eq!(split.error, None);
    let bounds = |range: &KeyRangePb| (range.start_primary_key.clone(), range.stop_primary_key.clone());
    let ranges: Vec<_> = split.ranges.iter().map(bounds).collect();
    assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0), "nothing is left out: {ranges:?}");
    assert_eq!((ranges[0].0.as_ref(), ranges[ranges.len() - 1].1.as_ref()), (None, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn maintenance_flushes_and_deletes_log_segments_under_load() {
    let busy = |config: &mut TserverConfig| {
        config.maintenance_interval_ms = 1;
        config.tablet = engine::config::TabletConfig::tiny();
        config.log_sync = false;
    };
    let mut fixture = Fixture::with(busy).await;
    fixture.create_tablet().await;
    for round in 0..20 {
        let keys = round * 50..(round + 1) * 50;
        write_all(&fixture, keys.clone()).await;
        change_some(&fixture, keys).await;
    }
    let tablet =
        fixture.running.server.tablets.get(TABLET).and_then(|entry| entry.tablet()).expect("it runs");
    while tablet.stats().disk_rowsets == 0 {
        fixture.env.sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(values(&fixture).await, expected(0..1000));
    fixture.restart().await;
    assert_eq!(values(&fixture).await, expected(0..1000));
}
