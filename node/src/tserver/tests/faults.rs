use super::admin::delete_request;
use super::*;
use crate::hosting::maintenance::run_job;
use crate::hosting::tablet_entry::EntryState;
use crate::server::health::CheckResult;
use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::replica::JobKind;
use nyala_common::env::MemoryBudget;
use nyala_common::env::testing::{HeldTasks, MemDisks, becomes};
use nyala_common::metrics::definition::MetricDef;
use nyala_common::metrics::{MetricValue, table};
use nyala_common::rpc::RpcErrorCodePb;
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::{DeleteTabletResponsePb, ListTabletsRequestPb, ListTabletsResponsePb};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

struct Budget(u64);

impl MemoryBudget for Budget {
    fn limit_bytes(&self) -> u64 {
        self.0
    }
}

pub(super) struct Faulty {
    pub(super) fixture: Fixture,
    disks: MemDisks,
}

impl Faulty {
    pub(super) async fn start(change: fn(&mut TserverConfig)) -> Faulty {
        let mut env = OsEnv::new(&OsOptions::default()).expect("the real world");
        let disks = MemDisks::default();
        env.disks = Arc::new(disks.clone());
        Faulty { fixture: Fixture::in_env(env, change).await, disks }
    }

    pub(super) fn disk(&self, name: &str) -> MemDisk {
        self.disks.disk(self.fixture.dir.path().join(name).to_str().expect("UTF-8"))
    }

    /// Cuts power and restarts.
    async fn crash(&mut self) {
        // Order: power is cut first, so that nothing of the old server reaches the disks of the next one.
        self.disk("wal").cut_power_at(1);
        self.disk("data").cut_power_at(1);
        self.fixture.running.shutdown().await;
        self.disk("wal").crash();
        self.disk("data").crash();
        self.fixture.start_again().await;
    }
}

const OTHER: Uuid = Uuid([0xef; 16]);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_log_fails_one_tablet_alone() {
    let faulty = Faulty::start(|config| config.maintenance_interval_ms = 1 << 40).await;
    let fixture = &faulty.fixture;
    fixture.create_tablet().await;
    let mut other = create_request(fixture, &schema());
    other.tablet_id = schema::id_bytes(&OTHER);
    let created: CreateTabletResponsePb = fixture.admin("CreateTablet", &other).await;
    assert_eq!(created.error, None);
    fixture.settled(OTHER).await;
    fixture.write(&[insert(1, "a")]).await;
    faulty.disk("wal").fail_op(1, EIO);
    let mut lines = vec![error_text(&fixture.write(&[insert(2, "b")]).await.error)];
    lines.push(error_text(&fixture.write(&[insert(3, "c")]).await.error));
    lines.push(error_text(&fixture.scan(&open(new_scan(&["key"]))).await.message.error));
    let mut request = write_request(&schema(), &[insert(1, "a")]);
    request.tablet_id = schema::id_bytes(&OTHER);
    let written: WriteResponsePb = fixture.client("Write", &request).await;
    assert_eq!(written.error, None, "the other tablet continues");
    let list: ListTabletsResponsePb = fixture.client("ListTablets", &ListTabletsRequestPb::default()).await;
    for tablet in &list.status_and_schema {
        let status = &tablet.tablet_status;
        let line = format!("{} {} {}", status.tablet_id, status.state().as_str_name(), status.last_status);
        lines.push(line.trim_end().to_string());
    }
    expect_test::expect![[r#"
        TABLET_FAILED + ILLEGAL_STATE: Tablet not RUNNING: FAILED: append to the log in wals/abababababababababababababababab: Input/output error (os error 5)
        TABLET_FAILED + ILLEGAL_STATE: Tablet not RUNNING: FAILED: append to the log in wals/abababababababababababababababab: Input/output error (os error 5)
        TABLET_FAILED + ILLEGAL_STATE: Tablet not RUNNING: FAILED: append to the log in wals/abababababababababababababababab: Input/output error (os error 5)
        abababababababababababababababab FAILED append to the log in wals/abababababababababababababababab: Input/output error (os error 5)
        efefefefefefefefefefefefefefefef RUNNING
    "#]].assert_eq(&(lines.join("\n") + "\n"));
}

/// An alert on failed replicas must see those that fail while they run, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_fails_at_run_time_counts_as_failed_and_leads_nothing() {
    let faulty = Faulty::start(|config| config.maintenance_interval_ms = 1 << 40).await;
    let fixture = &faulty.fixture;
    fixture.create_tablet().await;
    let metrics = || fixture.running.server.common.metrics.snapshot();
    let counts = || {
        let samples = metrics().server.samples;
        let counted = |def: &MetricDef| samples.iter().find(|sample| sample.def.name == def.name).cloned();
        [&table::TABLETS_NUM_RUNNING, &table::TABLETS_NUM_FAILED, &table::NUM_RAFT_LEADERS]
            .map(|def| counted(def).expect("it is shown").value)
    };
    let shows_lag = || {
        let tablets = metrics().others;
        let mut samples = tablets.iter().flat_map(|entity| &entity.samples);
        samples.any(|sample| sample.def.name == table::SAFE_TIME_LAG.name)
    };
    assert_eq!((counts(), shows_lag()), ([1, 0, 1].map(MetricValue::Integer), true));
    faulty.disk("wal").fail_op(1, EIO);
    assert!(fixture.write(&[insert(1, "a")]).await.error.is_some());
    assert_eq!((counts(), shows_lag()), ([0, 1, 0].map(MetricValue::Integer), false));
}

/// Whichever disk operation of a flush fails: if that fails the replica, the server knows it without another write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_job_leaves_a_replica_that_works_or_that_has_failed() {
    let faulty = Faulty::start(|config| config.maintenance_interval_ms = 1 << 40).await;
    let fixture = &faulty.fixture;
    fixture.create_tablet().await;
    let replica =
        fixture.running.server.tablets.get(TABLET).expect("it was made").running().expect("it runs");
    for number in 1.. {
        assert_eq!(fixture.write(&[insert(number, "text")]).await.per_row_errors, []);
        faulty.disk("data").fail_op(number as u64, EIO);
        let flushed = run_job(&fixture.env, &replica, JobKind::FlushRows).await;
        faulty.disk("data").end_faults();
        assert!(flushed.is_err(), "the flush has no more operations, and none failed the replica");
        // The turn that ended the job is over when the next one begins.
        match run_job(&fixture.env, &replica, JobKind::FlushRows).await {
            Ok(flushed) => assert!(flushed && replica.failure().is_none()),
            Err(_) => return assert!(replica.failure().is_some()),
        }
    }
}

/// Whichever disk operation of a creation fails, nothing of it stays, and the next order succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_creation_leaves_nothing() {
    let faulty = Faulty::start(|config| config.maintenance_interval_ms = 1 << 40).await;
    let fixture = &faulty.fixture;
    let files = |dirs: &[(&str, String)]| -> Vec<String> {
        let list = |(disk, dir): &(&str, String)| faulty.disk(disk).image().list(dir).unwrap_or_default();
        dirs.iter().flat_map(list).collect()
    };
    let mut failed = 0;
    for (number, disk) in (1..=25).flat_map(|number| [(number, "wal"), (number, "data")]) {
        let tablet = Uuid([number as u8 + if disk == "wal" { 100 } else { 0 }; 16]);
        let request = CreateTabletRequestPb {
            tablet_id: schema::id_bytes(&tablet),
            ..create_request(fixture, &schema())
        };
        faulty.disk(disk).fail_op(number, EIO);
        let refused: CreateTabletResponsePb = fixture.admin("CreateTablet", &request).await;
        faulty.disk(disk).end_faults();
        if refused.error.is_none() {
            continue;
        }
        failed += 1;
        let own =
            [("wal", engine::replica::wal_dir(tablet)), ("data", engine::tablet::flush::data_dir(tablet))];
        let left = files(&own);
        assert!(left.is_empty(), "operation {number} of {disk}: {left:?}");
        let metadata = files(&[("data", "tablet-meta".to_string()), ("data", "consensus-meta".to_string())]);
        assert!(!metadata.contains(&tablet.to_string()), "operation {number} of {disk}");
        let created: CreateTabletResponsePb = fixture.admin("CreateTablet", &request).await;
        assert_eq!(created.error, None, "operation {number} of {disk}");
    }
    assert!(failed > 15, "{failed}");
}

/// Leftovers of a failed creation that it could not remove are no obstacle to the next order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_creation_left_is_replaced() {
    let faulty = Faulty::start(|config| config.maintenance_interval_ms = 1 << 40).await;
    let fixture = &faulty.fixture;
    let request = create_request(fixture, &schema());
    let superblocks = || faulty.disk("data").image().list("tablet-meta").unwrap_or_default();
    // The creation fails ever later, until it has stored its superblock.
    let mut first = 1;
    while superblocks().is_empty() {
        (first..first + 40).for_each(|op| faulty.disk("data").fail_op(op, EIO));
        let refused: CreateTabletResponsePb = fixture.admin("CreateTablet", &request).await;
        faulty.disk("data").end_faults();
        assert!(refused.error.is_some(), "from operation {first} on");
        first += 1;
    }
    let created: CreateTabletResponsePb = fixture.admin("CreateTablet", &request).await;
    assert_eq!(created.error, None);
    fixture.settled(TABLET).await;
    assert_eq!(fixture.write(&[insert(1, "a")]).await.error, None);
}

/// A tombstone whose superblock could not be read as the server started still knows its last operation after the next
/// order: without it, a copy could lose what the replica has acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unread_tombstone_remembers_its_last_operation() {
    let mut faulty = Faulty::start(|config| config.maintenance_interval_ms = 1 << 40).await;
    faulty.fixture.create_tablet().await;
    faulty.fixture.write(&[insert(1, "a")]).await;
    let order = delete_request(TabletDataState::TabletDataTombstoned);
    let _: DeleteTabletResponsePb = faulty.fixture.admin("DeleteTablet", &order).await;
    let state = |fixture: &Fixture| fixture.running.server.tablets.get(TABLET).expect("listed").state();
    let EntryState::Tombstoned(Some(last)) = state(&faulty.fixture) else { panic!("a tombstone") };
    let mut failed = 0;
    for first in 1..40 {
        faulty.fixture.running.shutdown().await;
        // What cannot be read is read once more.
        (first..first + 4).for_each(|op| faulty.disk("data").fail_op(op, EIO));
        let started = try_run(&faulty.fixture.env, &faulty.fixture.dir, faulty.fixture.change).await;
        faulty.disk("data").end_faults();
        let Ok(running) = started else { continue };
        faulty.fixture.connect(running);
        if matches!(state(&faulty.fixture), EntryState::Failed(_)) {
            failed += 1;
            let deleted: DeleteTabletResponsePb = faulty.fixture.admin("DeleteTablet", &order).await;
            assert_eq!(deleted.error, None, "operation {first}");
        }
        let EntryState::Tombstoned(known) = state(&faulty.fixture) else { panic!("a tombstone") };
        assert_eq!(known, Some(last), "operation {first}");
    }
    assert!(failed > 0);
}

/// A failure must not keep a server from being ready: its other replicas work, and the failed one is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_bootstrap_has_ended() {
    let mut faulty = Faulty::start(|config| config.maintenance_interval_ms = 1 << 40).await;
    faulty.fixture.create_tablet().await;
    faulty.fixture.running.shutdown().await;
    let held = HeldTasks::install(&mut faulty.fixture.env, "bootstrap");
    let running = run(&faulty.fixture.env, &faulty.fixture.dir, faulty.fixture.change).await;
    faulty.fixture.connect(running);
    let server = faulty.fixture.running.server.clone();
    let bootstraps = || {
        let mut checks = server.common.checks.checks().into_iter();
        checks.find(|check| check.name == "bootstraps").expect("a check of tablet servers").result
    };
    assert_eq!(bootstraps(), CheckResult::Failed("1 of 1 tablets still replay their logs".to_string()));
    // What cannot be read is read once more.
    (1..100).for_each(|op| faulty.disk("wal").fail_op(op, EIO));
    held.release_one();
    assert!(becomes(&faulty.fixture.env, || server.tablets.bootstraps().left() == 0).await);
    faulty.disk("wal").end_faults();
    let state = server.tablets.get(TABLET).expect("listed").state();
    assert!(matches!(state, EntryState::Failed(_)));
    assert_eq!(bootstraps(), CheckResult::Ok("all 1 bootstraps of the start have ended".to_string()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_crashes() {
    let mut faulty = Faulty::start(|config| {
        config.maintenance_interval_ms = 1;
        config.tablet = engine::config::TabletConfig::tiny();
    })
    .await;
    faulty.fixture.create_tablet().await;
    let mut acknowledged = Vec::new();
    for round in 0..12 {
        for key in round * 20..round * 20 + 20 {
            // A power cut during an operation of this round, or between rounds.
            if key % 20 == round {
                faulty.disk(if round % 3 == 0 { "data" } else { "wal" }).cut_power_at(round as u64 % 5 + 1);
            }
            let response = faulty.fixture.write(&[insert(key, "v")]).await;
            if response.error.is_none() && response.per_row_errors.is_empty() {
                acknowledged.push(key);
            }
        }
        faulty.crash().await;
        let mut keys = faulty.fixture.keys(new_scan(&["key"])).await;
        keys.sort();
        let lost: Vec<_> = acknowledged.iter().filter(|key| keys.binary_search(key).is_err()).collect();
        assert!(lost.is_empty(), "round {round} lost {lost:?}");
    }
    assert!(acknowledged.len() > 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_loses_nothing_acknowledged() {
    let mut faulty = Faulty::start(|config| config.maintenance_interval_ms = 1 << 40).await;
    faulty.fixture.create_tablet().await;
    faulty.fixture.write(&[insert(1, "a")]).await;
    faulty.disk("wal").fail_op(1, ENOSPC);
    assert_eq!(faulty.fixture.write(&[insert(2, "b")]).await.error, None, "once there is space again");
    faulty.fixture.restart().await;
    let mut keys = faulty.fixture.keys(new_scan(&["key"])).await;
    keys.sort();
    assert_eq!(keys, [1, 2]);
}

/// The log of a failed sync is written again as it is opened, which needs space.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tablet_that_a_full_device_kept_from_opening_is_opened_again() {
    let mut faulty = Faulty::start(|config| config.maintenance_interval_ms = 1 << 40).await;
    faulty.fixture.create_tablet().await;
    assert_eq!(faulty.fixture.write(&[insert(1, "a")]).await.error, None);
    faulty.fixture.running.shutdown().await;
    let wal = faulty.disk("wal");
    let record = format!("{}/unsynced", engine::replica::wal_dir(TABLET));
    drop(wal.create(&record).expect("a record of a failed sync"));
    wal.set_free(0);
    faulty.fixture.start_again().await;
    let tablets = &faulty.fixture.running.server.tablets;
    let failure = tablets.get(TABLET).expect("listed").failure().expect("it has failed");
    assert!(failure.is_no_space(), "{failure}");
    wal.set_free(1 << 40);
    tablets.reopen_after_full_device().await;
    let leads =
        || tablets.get(TABLET).and_then(|entry| entry.running().ok()).is_some_and(|it| it.is_leader());
    assert!(becomes(&faulty.fixture.env, leads).await);
    assert_eq!(faulty.fixture.keys(new_scan(&["key"])).await, [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_runs_while_there_is_no_space_for_its_tombstone() {
    let faulty = Faulty::start(|config| config.maintenance_interval_ms = 1 << 40).await;
    let (fixture, data) = (&faulty.fixture, faulty.disk("data"));
    fixture.create_tablet().await;
    assert_eq!(fixture.write(&[insert(1, "a")]).await.error, None);
    data.set_free(0);
    let order = delete_request(TabletDataState::TabletDataTombstoned);
    let refused: DeleteTabletResponsePb = fixture.admin("DeleteTablet", &order).await;
    let refused = error_text(&refused.error);
    assert!(refused.contains("No space left on device"), "{refused}");
    let tablets = &fixture.running.server.tablets;
    assert!(matches!(tablets.get(TABLET).expect("listed").state(), EntryState::Running(_)));
    data.set_free(1 << 40);
    let leads =
        || tablets.get(TABLET).and_then(|entry| entry.running().ok()).is_some_and(|it| it.is_leader());
    assert!(becomes(&fixture.env, leads).await, "its term is stored");
    assert_eq!(fixture.keys(new_scan(&["key"])).await, [1]);
    let deleted: DeleteTabletResponsePb = fixture.admin("DeleteTablet", &order).await;
    assert_eq!(deleted.error, None);
    assert!(matches!(tablets.get(TABLET).expect("listed").state(), EntryState::Tombstoned(Some(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_are_rejected_when_memory_is_short() {
    let mut env = OsEnv::new(&OsOptions::default()).expect("the real world");
    env.memory = Arc::new(Budget(8_000_000));
    let quiet = |config: &mut TserverConfig| config.maintenance_interval_ms = 1 << 40;
    let fixture = Fixture::in_env(env, quiet).await;
    fixture.create_tablet().await;
    // A chunk of rows, 256 KiB, is small against the whole limit, as on real servers.
    let text = "x".repeat(40_000);
    let mut refused = None;
    for key in 0..200 {
        let request = write_request(&schema(), &[insert(key, &text)]);
        let answer =
            fixture.call::<_, WriteResponsePb>(CLIENT_SERVICE, "Write", &request, CallOptions::default());
        if let Err(error) = answer.await {
            refused = Some((key, error));
            break;
        }
    }
    let (key, RpcError::Remote { code, message, .. }) = refused.expect("memory runs out") else {
        panic!("the server should reply")
    };
    assert_eq!(code, RpcErrorCodePb::ErrorServerTooBusy);
    // Above the soft limit writes are rejected at random, so sometimes none is before the hard limit.
    assert!(
        ["Soft", "Hard"]
            .map(|which| format!("{which} memory limit exceeded"))
            .iter()
            .any(|start| message.starts_with(start)),
        "{message}"
    );
    assert!((140..=195).contains(&key), "rejected at {key}");
    assert_eq!(fixture.keys(new_scan(&["key"])).await.len() as i32, key, "reads continue");
}
