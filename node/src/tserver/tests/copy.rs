use super::*;
use crate::hosting::copy::service;
use crate::hosting::maintenance::run_job;
use crate::hosting::tablet_entry::EntryState;
use engine::disk::mem::DiskOpKind;
use engine::disk::{read_file, replace_file};
use engine::replica::JobKind;
use engine::tablet::superblock::{DataState, Superblock};
use nyala_common::env::testing::MemDisks;
use nyala_proto::kudu::HostPortPb;
use nyala_proto::kudu::consensus::{StartTabletCopyRequestPb, StartTabletCopyResponsePb};
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::data_id_pb::IdType;
use nyala_proto::kudu::tserver::{
    BeginTabletCopySessionRequestPb, BeginTabletCopySessionResponsePb, CheckTabletCopySessionActiveRequestPb,
    CheckTabletCopySessionActiveResponsePb, DataIdPb, DeleteTabletRequestPb, DeleteTabletResponsePb,
    EndTabletCopySessionRequestPb, EndTabletCopySessionResponsePb, FetchDataRequestPb, FetchDataResponsePb,
    TabletCopyErrorPb,
};

const EIO: i32 = 5;

/// Two servers in one world, whose directories are on in-memory disks.
struct Pair {
    disks: MemDisks,
    from: Fixture,
    to: Fixture,
}

impl Pair {
    async fn start(change: fn(&mut TserverConfig)) -> Pair {
        let mut env = OsEnv::new(&OsOptions::default()).expect("the real world");
        let disks = MemDisks::default();
        env.disks = Arc::new(disks.clone());
        let from = Fixture::in_env(env.clone(), change).await;
        Pair { disks, from, to: Fixture::in_env(env, change).await }
    }

    /// Creates the pair with a tablet of 200 rows on the first server, most of them flushed.
    async fn with_rows(change: fn(&mut TserverConfig)) -> Pair {
        let pair = Pair::start(change).await;
        pair.from.create_tablet().await;
        for batch in 0..20 {
            let value = "x".repeat(50);
            let rows: Vec<_> = (batch * 10..batch * 10 + 10).map(|key| insert(key, &value)).collect();
            let written = pair.from.write(&rows).await;
            assert_eq!((written.error, written.per_row_errors.len()), (None, 0));
        }
        pair
    }

    fn order(&self, term: Option<i64>) -> StartTabletCopyRequestPb {
        let source = &self.from.running;
        StartTabletCopyRequestPb {
            dest_uuid: Some(schema::id_bytes(&self.to.running.server.uuid())),
            tablet_id: schema::id_bytes(&TABLET),
            copy_peer_uuid: schema::id_bytes(&source.server.uuid()),
            copy_peer_addr: HostPortPb { host: "127.0.0.1".to_string(), port: source.rpc_addr.port().into() },
            caller_term: term,
        }
    }

    async fn copy(&self, order: &StartTabletCopyRequestPb) -> StartTabletCopyResponsePb {
        let answer = self.to.call(CONSENSUS_SERVICE, "StartTabletCopy", order, CallOptions::default()).await;
        answer.expect("the call succeeds").message
    }

    /// Waits until the copy has ended; returns the state of the tablet.
    async fn settled(&self) -> String {
        loop {
            match self.to.running.server.tablets.get(TABLET).map(|entry| (entry.state(), entry)) {
                Some((EntryState::Copying | EntryState::Bootstrapping, _)) => {}
                Some((_, entry)) => {
                    let (state, data) = (entry.state_pb().as_str_name(), entry.data_state_pb().as_str_name());
                    return format!("{} {state} {data}", entry.table_name());
                }
                None => return "nothing".to_string(),
            }
            self.to.env.sleep(Duration::from_millis(2)).await;
        }
    }

    async fn copied(&self) -> String {
        assert_eq!(self.copy(&self.order(None)).await.error, None);
        self.settled().await
    }

    /// Orders a copy that cannot begin; returns the error, and the state of the tablet after it.
    async fn not_copied(&self) -> String {
        let error = error_text(&self.copy(&self.order(None)).await.error);
        format!("{error}\n{}", self.settled().await)
    }
}

async fn delete(fixture: &Fixture, how: TabletDataState, cas: Option<i64>) -> DeleteTabletResponsePb {
    let request = DeleteTabletRequestPb {
        tablet_id: schema::id_bytes(&TABLET),
        delete_type: Some(how as i32),
        cas_config_opid_index_less_or_equal: cas,
        ..Default::default()
    };
    fixture.admin("DeleteTablet", &request).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_tablet_is_not_restored_by_a_leader() {
    let pair = Pair::with_rows(|_| {}).await;
    let gone = "TABLET_NOT_FOUND + NOT_FOUND: Tablet abababababababababababababababab was deleted here for good, \
                as its table was dropped";
    let missing = delete(&pair.to, TabletDataState::TabletDataDeleted, None).await;
    assert_eq!(
        error_text(&missing.error),
        "TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: abababababababababababababababab"
    );
    assert_eq!(error_text(&pair.copy(&pair.order(Some(7))).await.error), gone);
    assert_eq!(pair.copied().await, "t RUNNING TABLET_DATA_READY", "an operator may");
    assert_eq!(delete(&pair.to, TabletDataState::TabletDataDeleted, None).await.error, None);
    assert_eq!(error_text(&pair.copy(&pair.order(Some(7))).await.error), gone);
    assert_eq!(pair.settled().await, "nothing");
    // The largest term is that of `kudu remote_replica copy --force_copy`.
    assert_eq!(pair.copy(&pair.order(Some(i64::MAX))).await.error, None);
    assert_eq!(pair.settled().await, "t RUNNING TABLET_DATA_READY");
}

fn all_keys() -> Vec<i32> {
    (0..200).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tablet_is_copied_and_opened() {
    let mut pair = Pair::with_rows(|config| {
        config.copy.chunk_bytes = 700;
        config.tablet = engine::config::TabletConfig::tiny();
    })
    .await;
    assert_eq!(pair.copied().await, "t RUNNING TABLET_DATA_READY");
    assert_eq!(pair.to.keys(new_scan(&["key"])).await, all_keys());
    let again = pair.copy(&pair.order(None)).await;
    assert_eq!(
        error_text(&again.error),
        "TABLET_ALREADY_EXISTS + ALREADY_PRESENT: Tablet abababababababababababababababab has a replica in use here"
    );
    let sessions = pair.from.running.server.copy_service().expect("it serves").session_count();
    assert_eq!(sessions, 0, "it was ended");
    pair.to.restart().await;
    assert_eq!(pair.to.keys(new_scan(&["key"])).await, all_keys());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tombstone_rejects_old_leaders_and_is_copied_over_by_new_ones() {
    let mut pair = Pair::with_rows(|_| {}).await;
    pair.copied().await;
    // The copy continues without the leader; then it is evicted.
    let cas = delete(&pair.to, TabletDataState::TabletDataTombstoned, Some(-2)).await;
    let mut lines = vec![error_text(&cas.error)];
    let deleted = delete(&pair.to, TabletDataState::TabletDataTombstoned, Some(1 << 40)).await;
    assert_eq!(deleted.error, None);
    lines.push(pair.settled().await);
    let refused = pair.copy(&pair.order(Some(0))).await;
    lines.push(error_text(&refused.error));
    lines.push(pair.settled().await);
    // Another server replies at that address.
    let mut order = pair.order(None);
    order.copy_peer_uuid = schema::id_bytes(&TABLE);
    let other = error_text(&pair.copy(&order).await.error);
    assert!(
        other.contains(&format!(", where server {TABLE} should be; is it of another cluster?")),
        "{other}"
    );
    lines.push(pair.settled().await);
    let itself = StartTabletCopyRequestPb { copy_peer_uuid: order.dest_uuid.clone().expect("set"), ..order };
    lines.push(error_text(&pair.copy(&itself).await.error));
    lines.push(pair.copied().await);
    pair.to.restart().await;
    assert_eq!(pair.to.keys(new_scan(&["key"])).await, all_keys());
    expect_test::expect![[r#"
        CAS_FAILED + ILLEGAL_STATE: the configuration at index -1 is newer than -2
        t STOPPED TABLET_DATA_TOMBSTONED
        INVALID_CONFIG + INVALID_ARGUMENT: the leader's term 0 is over: for tablet abababababababababababababababab this server remembers term 1, that of the last operation it had
        t STOPPED TABLET_DATA_TOMBSTONED
        t STOPPED TABLET_DATA_TOMBSTONED
        UNKNOWN_ERROR + INVALID_ARGUMENT: a tablet cannot be copied from the server that it is copied to
        t RUNNING TABLET_DATA_READY
    "#]].assert_eq(&(lines.join("\n") + "\n"));
}

/// The persisted vote of a tombstone counts even while its disk fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tombstone_that_cannot_be_read_is_neither_copied_over_nor_deleted() {
    let pair = Pair::with_rows(|_| {}).await;
    pair.copied().await;
    let deleted = delete(&pair.to, TabletDataState::TabletDataTombstoned, Some(1 << 40)).await;
    assert_eq!(deleted.error, None);
    let data = pair.disks.disk(pair.to.dir.path().join("data").to_str().expect("UTF-8"));
    data.fail_some(DiskOpKind::Read, 1000, EIO);
    let mut lines = vec![error_text(&pair.copy(&pair.order(Some(0))).await.error), pair.settled().await];
    lines.push(error_text(&delete(&pair.to, TabletDataState::TabletDataDeleted, Some(-2)).await.error));
    data.end_faults();
    lines.push(error_text(&pair.copy(&pair.order(Some(0))).await.error));
    lines.push(pair.copied().await);
    expect_test::expect![[r#"
        UNKNOWN_ERROR + IO_ERROR: read consensus-meta/abababababababababababababababab: Input/output error (os error 5)
        t STOPPED TABLET_DATA_TOMBSTONED
        UNKNOWN_ERROR + IO_ERROR: read consensus-meta/abababababababababababababababab: Input/output error (os error 5)
        INVALID_CONFIG + INVALID_ARGUMENT: the leader's term 0 is over: for tablet abababababababababababababababab this server remembers term 1, that of the last operation it had
        t RUNNING TABLET_DATA_READY
    "#]].assert_eq(&(lines.join("\n") + "\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_source_leaves_the_previous_replica() {
    let mut pair = Pair::with_rows(|config| {
        config.copy.chunk_bytes = 64;
        config.copy.bytes_per_second = 2000;
    })
    .await;
    assert_eq!(pair.copy(&pair.order(None)).await.error, None);
    let in_progress = pair.copy(&pair.order(None)).await;
    let mut lines = vec![error_text(&in_progress.error)];
    lines.push(error_text(&delete(&pair.to, TabletDataState::TabletDataTombstoned, None).await.error));
    let entry = pair.to.running.server.tablets.get(TABLET).expect("its place is kept");
    lines.push(format!("{} {}", entry.state_pb().as_str_name(), entry.data_state_pb().as_str_name()));
    while pair.to.running.server.copies.bytes_received() == 0 {
        pair.to.env.sleep(Duration::from_millis(1)).await;
    }
    // The sessions end with the tablet, and with them the sink's source.
    assert_eq!(delete(&pair.from, TabletDataState::TabletDataTombstoned, None).await.error, None);
    lines.push(pair.settled().await);
    pair.to.restart().await;
    lines.push(pair.settled().await);
    // The source has no data any more.
    lines.push(pair.not_copied().await);
    assert_eq!(delete(&pair.to, TabletDataState::TabletDataDeleted, None).await.error, None);
    lines.push(pair.not_copied().await);
    expect_test::expect![[r#"
        ALREADY_INPROGRESS + ALREADY_PRESENT: Tablet abababababababababababababababab is INITIALIZED
        ALREADY_INPROGRESS + ALREADY_PRESENT: Tablet abababababababababababababababab is INITIALIZED
        INITIALIZED TABLET_DATA_COPYING
        t STOPPED TABLET_DATA_TOMBSTONED
        t STOPPED TABLET_DATA_TOMBSTONED
        UNKNOWN_ERROR + NOT_FOUND: unable to begin tablet copy session: TABLET_NOT_FOUND: the tablet is a tombstone here
        t STOPPED TABLET_DATA_TOMBSTONED
        UNKNOWN_ERROR + NOT_FOUND: unable to begin tablet copy session: TABLET_NOT_FOUND: the tablet is a tombstone here
        nothing
    "#]]
    .assert_eq(&(lines.join("\n") + "\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sink_leaves_a_tombstone() {
    let mut pair = Pair::with_rows(|config| {
        config.copy.chunk_bytes = 64;
        config.copy.bytes_per_second = 2000;
    })
    .await;
    assert_eq!(pair.copy(&pair.order(None)).await.error, None);
    while pair.to.running.server.copies.bytes_received() == 0 {
        pair.to.env.sleep(Duration::from_millis(1)).await;
    }
    let disk = |name: &str| pair.disks.disk(pair.to.dir.path().join(name).to_str().expect("UTF-8"));
    let both = [disk("wal"), disk("data")];
    both.iter().for_each(|disk| disk.cut_power_at(1));
    pair.to.running.shutdown().await;
    both.iter().for_each(|disk| disk.crash());
    pair.to.start_again().await;
    assert_eq!(pair.settled().await, "t STOPPED TABLET_DATA_TOMBSTONED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_copy_leaves_that_failed_before_it_stored_anything_is_deleted() {
    let pair = Pair::with_rows(|_| {}).await;
    let data = pair.disks.disk(pair.to.dir.path().join("data").to_str().expect("UTF-8"));
    (1..=10).for_each(|op| data.fail_op(op, EIO));
    assert_eq!(pair.copied().await, " FAILED TABLET_DATA_READY");
    data.end_faults();
    assert_eq!(delete(&pair.to, TabletDataState::TabletDataTombstoned, None).await.error, None);
    assert_eq!(pair.settled().await, "nothing");
}

/// The superblock of a creation that failed, and could not remove it, must not be beside that of the copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_removes_what_a_creation_left_in_another_directory() {
    let mut pair = Pair::with_rows(|config| config.data_dirs.push(format!("{}2", config.data_dirs[0]))).await;
    let disk = |at: &Fixture, name: &str| pair.disks.disk(at.dir.path().join(name).to_str().expect("UTF-8"));
    let (source, left) = (disk(&pair.from, "data"), disk(&pair.to, "data2"));
    let superblock = format!("tablet-meta/{TABLET}");
    let bytes = read_file(&source, &superblock).expect("a file");
    replace_file(&left, &superblock, &bytes).expect("written");
    assert_eq!(pair.copied().await, "t RUNNING TABLET_DATA_READY");
    pair.to.restart().await;
    assert_eq!(pair.settled().await, "t RUNNING TABLET_DATA_READY");
    assert!(read_file(&left, &superblock).is_err(), "it is gone");
}

/// Whichever disk operation of a copy fails, its tombstone remembers the end of the log that was stored last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tombstone_of_a_failed_copy_remembers_no_replaced_log() {
    let pair = Pair::with_rows(|_| {}).await;
    let data = pair.disks.disk(pair.to.dir.path().join("data").to_str().expect("UTF-8"));
    let stored = || Superblock::load(&data, TABLET).expect("it is readable");
    let (mut failed, mut unharmed) = (0, 0);
    // Some failed operations do no harm; those behind the last one do none either.
    for op in 1.. {
        assert_eq!(pair.copied().await, "t RUNNING TABLET_DATA_READY");
        assert_eq!(delete(&pair.to, TabletDataState::TabletDataTombstoned, None).await.error, None);
        assert!(stored().tombstone_last_op.is_some(), "the end before the copy is known");
        let written = pair.from.write(&[insert(1_000 + op, "newer")]).await;
        assert_eq!(written.error, None);
        let source = pair.from.running.server.tablets.get(TABLET).expect("it is there");
        let end = source.running().expect("it runs").status_now().await.expect("it runs").last;
        data.fail_op(op as u64, EIO);
        pair.copy(&pair.order(None)).await;
        let state = pair.settled().await;
        data.end_faults();
        let copied = Superblock::load(&data, TABLET).is_ok_and(|meta| meta.data_state == DataState::Ready);
        assert_eq!(delete(&pair.to, TabletDataState::TabletDataTombstoned, None).await.error, None);
        if copied {
            let remembered = stored().tombstone_last_op;
            assert!(remembered.is_none_or(|last| last >= end), "operation {op}: {remembered:?} of {end}");
        }
        match state.as_str() {
            "t RUNNING TABLET_DATA_READY" => unharmed += 1,
            _ => (failed, unharmed) = (failed + 1, 0),
        }
        if unharmed == 10 {
            break;
        }
    }
    assert!(failed > 20, "{failed} failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_corrupt_superblock_fails_its_tablet_which_is_copied_over() {
    let mut pair = Pair::with_rows(|_| {}).await;
    pair.copied().await;
    let data = pair.disks.disk(pair.to.dir.path().join("data").to_str().expect("UTF-8"));
    pair.to.running.shutdown().await;
    data.flip_bit(&format!("tablet-meta/{TABLET}"), 40).expect("it is there");
    pair.to.start_again().await;
    let mut lines = vec![pair.settled().await];
    lines.push(pair.copied().await);
    assert_eq!(pair.to.keys(new_scan(&["key"])).await, all_keys());
    pair.to.running.shutdown().await;
    data.flip_bit(&format!("tablet-meta/{TABLET}"), 40).expect("it is there");
    pair.to.start_again().await;
    let deleted = delete(&pair.to, TabletDataState::TabletDataTombstoned, None).await;
    assert_eq!(deleted.error, None);
    lines.push(pair.settled().await);
    pair.to.restart().await;
    lines.push(pair.settled().await);
    lines.push(pair.copied().await);
    expect_test::expect![[r#"
         FAILED TABLET_DATA_READY
        t RUNNING TABLET_DATA_READY
         STOPPED TABLET_DATA_TOMBSTONED
         STOPPED TABLET_DATA_TOMBSTONED
        t RUNNING TABLET_DATA_READY
    "#]]
    .assert_eq(&(lines.join("\n") + "\n"));
}

/// A copy would spread the corruption to the next replica, under new checksums. The source is the only replica: nothing
/// could replace it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corruption_at_the_source_is_not_copied() {
    let pair = Pair::with_rows(|config| config.maintenance_interval_ms = 1 << 40).await;
    let source = pair.from.running.server.tablets.get(TABLET).expect("it is there");
    let replica = source.running().expect("it runs");
    let flushed = run_job(&pair.from.env, &replica, JobKind::FlushRows).await;
    assert!(flushed.expect("the job succeeds"));
    let file = replica.tablet().state().disk[0].open_files().remove(0);
    let segment = format!("{}/0000000001.wal", engine::replica::wal_dir(TABLET));
    for (dir, path) in [("data", file.path()), ("wal", segment.as_str())] {
        let disk = pair.disks.disk(pair.from.dir.path().join(dir).to_str().expect("UTF-8"));
        disk.flip_bit(path, 100).expect("it is there");
        let left = "what a copy that failed leaves";
        assert_eq!(pair.copied().await, "t STOPPED TABLET_DATA_TOMBSTONED", "{path}: {left}");
        assert_eq!(replica.failure(), None, "{path}: the source serves what is whole");
        disk.flip_bit(path, 100).expect("it is there");
    }
    assert_eq!(pair.copied().await, "t RUNNING TABLET_DATA_READY");
    assert_eq!(pair.to.keys(new_scan(&["key"])).await, all_keys());
}

/// Returns the reply of the first server's copy service.
async fn ask<Q: Message, R: Message + Default>(pair: &Pair, method: &str, request: &Q) -> Result<R, String> {
    let answer = pair.from.call(service::SERVICE, method, request, CallOptions::default()).await;
    answer.map(|response| response.message).map_err(|error| {
        let RpcError::Remote { copy_error: Some(bytes), .. } = &error else { return error.to_string() };
        let error_text = TabletCopyErrorPb::decode(bytes.clone()).expect("an error of the copy service");
        format!("{}: {}", error_text.code().as_str_name(), error_text.status.message())
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_the_copy_service() {
    let pair = Pair::with_rows(|config| config.copy.sessions_max = 1).await;
    let begin = |server: u8, tablet: Uuid| BeginTabletCopySessionRequestPb {
        requestor_uuid: schema::id_bytes(&Uuid([server; 16])),
        tablet_id: schema::id_bytes(&tablet),
        auto_download_superblock_in_batch: None,
    };
    type Begun = BeginTabletCopySessionResponsePb;
    let mut lines = Vec::new();
    let none: Result<Begun, _> = ask(&pair, "BeginTabletCopySession", &begin(1, TABLE)).await;
    lines.push(none.expect_err("there is no such tablet"));
    let begun: Begun = ask(&pair, "BeginTabletCopySession", &begin(1, TABLET)).await.expect("begun");
    let full: Result<Begun, _> = ask(&pair, "BeginTabletCopySession", &begin(2, TABLET)).await;
    lines.push(full.expect_err("one is enough"));
    let again: Begun = ask(&pair, "BeginTabletCopySession", &begin(1, TABLET)).await.expect("begun again");
    assert_ne!(begun.session_id, again.session_id);
    let fetch = |session: &Bytes, r#type: IdType, number: Option<u64>, offset| FetchDataRequestPb {
        session_id: session.clone(),
        data_id: DataIdPb {
            r#type: r#type as i32,
            block_id: number.map(|id| nyala_proto::kudu::BlockIdPb { id }),
            wal_segment_seqno: number,
        },
        offset: Some(offset),
        max_length: None,
    };
    let session = &again.session_id;
    for request in [
        fetch(&begun.session_id, IdType::SuperBlock, None, 0),
        fetch(session, IdType::Block, None, 0),
        fetch(session, IdType::Block, Some(77), 0),
        fetch(session, IdType::LogSegment, Some(77), 0),
        fetch(session, IdType::SuperBlock, None, 1 << 40),
        fetch(session, IdType::Unknown, None, 0),
    ] {
        let failed: Result<FetchDataResponsePb, _> = ask(&pair, "FetchData", &request).await;
        lines.push(
            failed.expect_err("refused").replace(&String::from_utf8_lossy(&begun.session_id)[..], "ID"),
        );
    }
    let check = CheckTabletCopySessionActiveRequestPb { session_id: session.clone(), keepalive: Some(true) };
    let end = EndTabletCopySessionRequestPb { session_id: session.clone(), is_success: true, error: None };
    for _ in 0..2 {
        let active: CheckTabletCopySessionActiveResponsePb =
            ask(&pair, "CheckSessionActive", &check).await.expect("told");
        let ended: Result<EndTabletCopySessionResponsePb, _> = ask(&pair, "EndTabletCopySession", &end).await;
        lines.push(format!("active {} ended {}", active.session_is_active, ended.is_ok()));
    }
    let lines = lines.join("\n");
    let (before, after) = lines.split_once("Manifest has ").expect("its size is told");
    let (_size, after) = after.split_once(' ').expect("and its unit");
    let lines = format!("{before}Manifest has SIZE {after}\n");
    expect_test::expect![[r#"
        TABLET_NOT_FOUND: TABLET_NOT_FOUND: Tablet not found: cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd
        UNKNOWN_ERROR: 1 servers copy tablets from here already; ask again later
        NO_SESSION: there is no session ID of a tablet copy
        INVALID_TABLET_COPY_REQUEST: the data id of a tablet copy lacks block_id
        BLOCK_NOT_FOUND: the copy has no File(77)
        WAL_SEGMENT_NOT_FOUND: the copy has no Segment(77)
        INVALID_TABLET_COPY_REQUEST: Manifest has SIZE bytes, and none at offset 1099511627776
        INVALID_TABLET_COPY_REQUEST: the data id of a tablet copy lacks a type
        active true ended true
        active false ended false
    "#]]
    .assert_eq(&lines);
}
