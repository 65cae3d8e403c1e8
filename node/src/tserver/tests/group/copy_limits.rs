//! Limits of the copies onto one server: their number, and the space of its directories.

use super::*;
use crate::hosting::space::SpaceReserve;
use engine::config::TabletConfig;
use engine::disk::mem::MemDisk;
use engine::error::Error;
use nyala_common::env::testing::MemDisks;
use nyala_proto::kudu::consensus::{StartTabletCopyRequestPb, StartTabletCopyResponsePb};

const SOURCE: usize = 0;
const SINK: usize = 1;

/// Sets copies that take seconds, tablets that are not flushed, and no reserves.
fn slow_copies(config: &mut TserverConfig) {
    config.tablet = TabletConfig::tiny();
    config.maintenance_interval_ms = 1 << 40;
    config.copy.chunk_bytes = 256;
    config.copy.bytes_per_second = 4_000;
    config.copy.copies_max = 2;
    (config.reserves.wal, config.reserves.data) = (SpaceReserve::Bytes(0), SpaceReserve::Bytes(0));
}

fn tablets(count: u8) -> impl Iterator<Item = Uuid> {
    (1..=count).map(|number| Uuid([number; 16]))
}

/// Starts a server with this many tablets of 50 rows, and an empty one. Returns the WAL disk of the empty one.
async fn with_tablets(count: u8) -> (Group, MemDisk) {
    with_tablets_of(count, slow_copies).await
}

async fn with_tablets_of(count: u8, configure: fn(&mut TserverConfig)) -> (Group, MemDisk) {
    let mut group = Group::with(2, configure).await;
    let disks = MemDisks::default();
    group.stop(SINK).await;
    group.envs[SINK].disks = Arc::new(disks.clone());
    group.run(SINK).await;
    for tablet in tablets(count) {
        let request = CreateTabletRequestPb {
            dest_uuid: Some(schema::id_bytes(&group.uuid(SOURCE))),
            table_id: schema::id_bytes(&TABLE),
            tablet_id: schema::id_bytes(&tablet),
            partition: Some(PartitionPb::default()),
            table_name: "t".to_string(),
            schema: schema::schema_to_pb(&schema()),
            partition_schema: Some(PartitionSchemaPb::default()),
            config: RaftConfigPb {
                opid_index: Some(-1),
                peers: vec![group.peer(SOURCE)],
                ..Default::default()
            },
            ..Default::default()
        };
        let created: CreateTabletResponsePb =
            group.call(SOURCE, ADMIN_SERVICE, "CreateTablet", &request).await;
        assert_eq!(created.error, None);
        for key in 0..50 {
            let rows = write_request(&schema(), &[insert(key, "some words that take place")]);
            let request = WriteRequestPb { tablet_id: schema::id_bytes(&tablet), ..rows };
            let written: WriteResponsePb = group.call(SOURCE, CLIENT_SERVICE, "Write", &request).await;
            assert_eq!((written.error, written.per_row_errors), (None, vec![]));
        }
    }
    (group, disks.disk("wal"))
}

async fn start_copy(group: &Group, tablet: Uuid) -> StartTabletCopyResponsePb {
    let source = group.peer(SOURCE);
    let request = StartTabletCopyRequestPb {
        dest_uuid: Some(schema::id_bytes(&group.uuid(SINK))),
        tablet_id: schema::id_bytes(&tablet),
        copy_peer_uuid: source.permanent_uuid.expect("it has one"),
        copy_peer_addr: source.last_known_addr.expect("it has one"),
        caller_term: None,
    };
    group.call(SINK, CONSENSUS_SERVICE, "StartTabletCopy", &request).await
}

fn copy_of(group: &Group, tablet: Uuid) -> Option<ReplicaHandle> {
    group.server(SINK).server.tablets.get(tablet)?.running().ok()
}

/// Has a tablet copied, as often as needed, and waits until it runs.
async fn copied(group: &Group, tablet: Uuid) {
    for _ in 0..600 {
        if copy_of(group, tablet).is_some() {
            return;
        }
        start_copy(group, tablet).await;
        group.env.sleep(Duration::from_millis(100)).await;
    }
    panic!("tablet {tablet} is not copied");
}

#[tokio::test(start_paused = true)]
async fn copies_that_begin_at_once_are_limited() {
    let (group, _) = with_tablets(4).await;
    for tablet in tablets(4) {
        copied(&group, tablet).await;
    }
    // A copy over a failed replica waits for the end of that replica after it was admitted.
    for tablet in tablets(4) {
        copy_of(&group, tablet).expect("it runs").fail(&Error::corrupt("a failure of the test"));
    }
    let started = tablets(4).map(|tablet| start_copy(&group, tablet));
    let started = futures_util::future::join_all(started).await;
    let refused: Vec<_> = started.iter().filter(|response| response.error.is_some()).collect();
    assert_eq!((group.server(SINK).server.copies.count(), refused.len()), (2, 2));
    for response in refused {
        assert_eq!(
            error_text(&response.error),
            "THROTTLED + SERVICE_UNAVAILABLE: 2 tablets are being copied to this server already"
        );
    }
    for tablet in tablets(4) {
        copied(&group, tablet).await;
    }
}

#[tokio::test(start_paused = true)]
async fn copies_end_that_wait_for_the_bandwidth_of_others() {
    let (group, _) = with_tablets_of(4, |config| {
        slow_copies(config);
        config.copy.copies_max = 4;
        // A chunk takes ten seconds: beside two that wait the source rejects the others.
        (config.copy.chunk_bytes, config.copy.bytes_per_second) = (4096, 400);
    })
    .await;
    let started = futures_util::future::join_all(tablets(4).map(|tablet| start_copy(&group, tablet))).await;
    assert!(started.iter().all(|response| response.error.is_none()));
    let copies = &group.server(SINK).server.copies;
    while copies.count() > 0 {
        group.env.sleep(Duration::from_secs(1)).await;
    }
    for tablet in tablets(4) {
        assert!(copy_of(&group, tablet).is_some(), "tablet {tablet} is copied at the first attempt");
    }
}

#[tokio::test(start_paused = true)]
async fn copies_that_fit_one_by_one_do_not_fill_a_device_together() {
    let (group, wal) = with_tablets(2).await;
    let [first, second] = [1, 2].map(|number| Uuid([number; 16]));
    let source = group.server(SOURCE).server.tablets.get(first).expect("it is there");
    let log_bytes = source.running().expect("it runs").log_bytes();
    wal.set_free(log_bytes * 3 / 2);
    // The server looks at the space every second.
    group.env.sleep(Duration::from_secs(2)).await;
    let copies = &group.server(SINK).server.copies;
    assert_eq!(start_copy(&group, first).await.error, None);
    group.until("a copy under way", |_| copies.bytes_received() > 0).await;
    assert_eq!(start_copy(&group, second).await.error, None);
    group.until("the end of a copy", |_| copies.ended() != (0, 0)).await;
    assert_eq!(copies.ended(), (0, 1), "the second one failed");
    let why = copies.retries().refuse(second, group.env.now().mono).expect("it has to wait");
    assert!(why.contains("the copy does not fit ("), "{why}");
    group.until("the first copy", |group| copy_of(group, first).is_some()).await;
    wal.set_free(1 << 40);
    group.env.sleep(Duration::from_secs(2)).await;
    copied(&group, second).await;
}
