//! A fourth server is added: it is copied while the group serves writes and other servers fail.

use super::*;
use crate::hosting::space::SpaceReserve;
use crate::hosting::tablet_entry::EntryState;
use engine::config::TabletConfig;
use engine::disk::Disk;
use engine::raft::MemberKind;

/// Sets small files, and copies that take seconds.
fn slow_copies(config: &mut TserverConfig) {
    config.tablet = TabletConfig::tiny();
    config.maintenance_interval_ms = 20;
    config.copy.chunk_bytes = 256;
    config.copy.bytes_per_second = 4_000;
    config.copy.call_timeout = Duration::from_secs(2);
}

const FRESH: usize = 3;

/// Starts three servers with a tablet of 100 rows, and a fourth.
async fn with_fresh() -> (Group, usize) {
    let group = Group::with(4, slow_copies).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    for key in 0..100 {
        write_row(&group, leader, key).await;
    }
    (group, leader)
}

async fn write_row(group: &Group, leader: usize, key: i32) -> u64 {
    let written = group.write(leader, &[insert(key, "some words that take place")]).await;
    assert_eq!((&written.error, written.per_row_errors.len()), (&None, 0));
    written.timestamp()
}

/// Asks the leader to make the fresh server a voter once it has caught up.
async fn add_fresh(group: &Group, leader: usize) {
    let mut peer = group.peer(FRESH);
    peer.member_type = Some(nyala_proto::kudu::consensus::raft_peer_pb::MemberType::NonVoter as i32);
    peer.attrs = Some(RaftPeerAttrsPb { promote: Some(true), replace: None });
    let changed = group.change_config(leader, ChangeConfigType::AddPeer, peer, None).await;
    assert_eq!(changed.error, None);
}

fn is_voter(group: &Group, on: usize) -> bool {
    let fresh = group.uuid(FRESH);
    group.status(on).is_some_and(|status| status.committed_config.is_voter(fresh))
}

fn is_copying(group: &Group) -> bool {
    let entry = group.server(FRESH).server.tablets.get(TABLET);
    entry.is_some_and(|entry| matches!(entry.state(), EntryState::Copying))
        && group.server(FRESH).server.copies.bytes_received() > 500
}

#[tokio::test(start_paused = true)]
async fn a_learner_is_copied_under_writes_and_promoted() {
    let (group, leader) = with_fresh().await;
    add_fresh(&group, leader).await;
    let mut key = 100;
    let mut last = 0;
    while !is_voter(&group, leader) {
        last = write_row(&group, leader, key).await;
        key += 1;
        group.env.sleep(Duration::from_millis(50)).await;
        assert!(key < 2_000, "it is never promoted");
    }
    let copied = group.server(FRESH).server.copies.ended();
    assert_eq!(copied, (1, 0), "one copy was enough");
    group.caught_up(FRESH, leader).await;
    assert_eq!(group.keys(FRESH, snapshot_scan(last + 1)).await, (0..key).collect::<Vec<_>>());
    let status = group.status(FRESH).expect("it runs");
    assert!(status.committed_config.peers.iter().all(|peer| peer.member == MemberKind::Voter));
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_fails_during_a_copy_is_copied_again() {
    let (mut group, leader) = with_fresh().await;
    add_fresh(&group, leader).await;
    for _ in 0..2 {
        group.until("a copy under way", is_copying).await;
        group.stop(FRESH).await;
        write_row(&group, leader, 500 + group.last_op(leader, OpIdType::CommittedOpid).await as i32).await;
        group.run(FRESH).await;
    }
    group.until("a promotion", |group| is_voter(group, leader)).await;
    group.caught_up(FRESH, leader).await;
    let at = write_row(&group, leader, 400).await;
    assert_eq!(group.keys(FRESH, snapshot_scan(at + 1)).await.len(), 103);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_fails_during_a_copy_is_replaced_by_the_next_leader() {
    let (mut group, leader) = with_fresh().await;
    add_fresh(&group, leader).await;
    group.until("a copy under way", is_copying).await;
    group.stop(leader).await;
    let rest = others(&ALL, leader);
    let next = group.leader(&rest).await;
    group.until("a promotion", |group| is_voter(group, next)).await;
    group.caught_up(FRESH, next).await;
    let at = write_row(&group, next, 400).await;
    assert_eq!(group.keys(FRESH, snapshot_scan(at + 1)).await.len(), 101);
    let (finished, failed) = group.server(FRESH).server.copies.ended();
    assert_eq!((finished, failed > 0), (1, true));
}

/// The copy of a damaged log could not be opened, and the next copy would be as bad.
#[tokio::test(start_paused = true)]
async fn a_source_with_a_damaged_log_fails_and_the_next_leader_is_copied() {
    let (group, leader) = with_fresh().await;
    group.all_healthy(leader).await;
    let (wal, dir) = (group.disks[leader].disk("wal"), engine::replica::wal_dir(TABLET));
    let mut segments = wal.list(&dir).expect("a log");
    segments.retain(|name| name.ends_with(".wal"));
    segments.sort_unstable();
    let [.., damaged, _] = &segments[..] else { panic!("several segments: {segments:?}") };
    wal.flip_bit(&format!("{dir}/{damaged}"), 300).expect("it is there");
    add_fresh(&group, leader).await;
    group.until("a failed source", |group| group.failure(leader).is_some()).await;
    let why = group.failure(leader).expect("it has failed").message;
    assert!(why.contains(damaged), "{why}");
    let next = group.leader(&others(&ALL, leader)).await;
    group.until("a promotion", |group| is_voter(group, next)).await;
    group.caught_up(FRESH, next).await;
    assert_eq!(group.server(FRESH).server.copies.ended().0, 1, "no copy of the damaged log was complete");
}

/// Its server answers each message, so silence never shows that its copies fail.
#[tokio::test(start_paused = true)]
async fn a_learner_that_no_copy_fits_is_reported_as_failed() {
    let (group, leader) = with_fresh().await;
    let wal = group.disks[FRESH].disk("wal");
    wal.set_free(100);
    // The server looks at the space every second.
    group.env.sleep(Duration::from_secs(2)).await;
    add_fresh(&group, leader).await;
    let is_failed = |group: &Group| {
        let (fresh, status) = (group.uuid(FRESH), group.status(leader).expect("it runs"));
        let of_fresh = status.peers.iter().find(|peer| peer.id == fresh);
        of_fresh.is_some_and(|peer| peer.health == PeerHealth::FailedUnrecoverable)
    };
    group.until("a failed learner", is_failed).await;
    let (finished, failed) = group.server(FRESH).server.copies.ended();
    assert_eq!((finished, failed >= 5), (0, true), "{failed} failed");
    wal.set_free(1 << 40);
    group.until("a promotion", |group| is_voter(group, leader)).await;
    group.all_healthy(leader).await;
}

#[tokio::test(start_paused = true)]
async fn an_evicted_replica_is_copied_over_its_tombstone() {
    let (group, leader) = with_fresh().await;
    let gone = others(&ALL, leader)[0];
    let mut peer = group.peer(gone);
    let removed = group.change_config(leader, ChangeConfigType::RemovePeer, peer.clone(), None).await;
    assert_eq!(removed.error, None);
    let index = group.status(leader).expect("it runs").committed_config.kudu_index();
    let request = |cas| DeleteTabletRequestPb {
        tablet_id: schema::id_bytes(&TABLET),
        delete_type: Some(TabletDataState::TabletDataTombstoned as i32),
        cas_config_opid_index_less_or_equal: Some(cas),
        ..Default::default()
    };
    let refused: DeleteTabletResponsePb = group.call(gone, ADMIN_SERVICE, "DeleteTablet", &request(-2)).await;
    assert!(error_text(&refused.error).starts_with("CAS_FAILED"));
    let deleted: DeleteTabletResponsePb =
        group.call(gone, ADMIN_SERVICE, "DeleteTablet", &request(index)).await;
    assert_eq!(deleted.error, None);
    write_row(&group, leader, 100).await;
    peer.member_type = Some(nyala_proto::kudu::consensus::raft_peer_pb::MemberType::NonVoter as i32);
    peer.attrs = Some(RaftPeerAttrsPb { promote: Some(true), replace: None });
    assert_eq!(group.change_config(leader, ChangeConfigType::AddPeer, peer, None).await.error, None);
    let uuid = group.uuid(gone);
    group
        .until("a promotion", |group| {
            group.status(leader).is_some_and(|status| status.committed_config.is_voter(uuid))
        })
        .await;
    let at = write_row(&group, leader, 101).await;
    assert_eq!(group.keys(gone, snapshot_scan(at + 1)).await, (0..102).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_tombstone_votes_while_it_is_copied_over() {
    let patiently = |config: &mut TserverConfig| {
        slow_copies(config);
        config.copy.call_timeout = Duration::from_secs(10);
    };
    let group = Group::with(3, patiently).await;
    group.create(&ALL).await;
    let source = group.leader(&ALL).await;
    for key in 0..100 {
        write_row(&group, source, key).await;
    }
    let [gone, next] = others(&ALL, source)[..] else { panic!("two followers") };
    group.caught_up(next, source).await;
    let request = DeleteTabletRequestPb {
        tablet_id: schema::id_bytes(&TABLET),
        delete_type: Some(TabletDataState::TabletDataTombstoned as i32),
        ..Default::default()
    };
    let deleted: DeleteTabletResponsePb = group.call(gone, ADMIN_SERVICE, "DeleteTablet", &request).await;
    assert_eq!(deleted.error, None);
    let copying = |group: &Group| {
        let entry = group.server(gone).server.tablets.get(TABLET);
        entry.is_some_and(|entry| matches!(entry.state(), EntryState::Copying))
            && group.server(gone).server.copies.bytes_received() > 500
    };
    group.until("a copy under way", copying).await;
    group.wires.cut(source);
    let leads = |group: &Group| group.replica(next).is_some_and(|replica| replica.is_leader());
    group.until("a leader elected by the tombstone", leads).await;
    assert!(copying(&group), "the copy has not been given up yet");
    group.caught_up(gone, next).await;
    let at = write_row(&group, next, 100).await;
    assert_eq!(group.keys(gone, snapshot_scan(at + 1)).await, (0..101).collect::<Vec<_>>());
}

/// Copies as [`slow_copies`], and no log for lagging members.
fn without_spared_log(config: &mut TserverConfig) {
    slow_copies(config);
    config.tablet.wal_spared_bytes_max = 0;
}

/// Log GC of the source removes no entry that the learner needs after its copy.
#[tokio::test(start_paused = true)]
async fn a_learner_finds_the_log_after_its_copy() {
    let group = Group::with(4, without_spared_log).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    for key in 0..100 {
        write_row(&group, leader, key).await;
    }
    add_fresh(&group, leader).await;
    group.until("a copy under way", is_copying).await;
    for key in 100..500 {
        write_row(&group, leader, key).await;
        if key % 10 == 0 {
            // Time for flushes and log GC.
            group.env.sleep(Duration::from_millis(20)).await;
        }
    }
    assert!(is_copying(&group), "it takes longer than the writes");
    let log_bytes = |number: usize| group.replica(number).expect("it runs").log_bytes();
    let follower = others(&ALL, leader)[0];
    assert!(log_bytes(leader) > log_bytes(follower), "a server without a session keeps less");
    group.until("a promotion", |group| is_voter(group, leader)).await;
    assert_eq!(group.server(FRESH).server.copies.ended(), (1, 0), "one copy was enough");
    group.caught_up(FRESH, leader).await;
    let at = write_row(&group, leader, 500).await;
    assert_eq!(group.keys(FRESH, snapshot_scan(at + 1)).await, (0..501).collect::<Vec<_>>());
}

/// A device that runs short of space is not filled by the log that learners may need.
#[tokio::test(start_paused = true)]
async fn short_space_ends_the_log_anchors_of_copies() {
    let group = Group::with(1, |config| config.reserves.wal = SpaceReserve::Bytes(1 << 20)).await;
    group.create(&[0]).await;
    let replica = group.replica(0).expect("it runs");
    let _session = replica.log_anchors().hold(Uuid([9; 16]), 1);
    let keep_from = || replica.log_anchors().keep_from(group.env.now().mono, Vec::new);
    group.env.sleep(Duration::from_secs(5)).await;
    assert_eq!(keep_from(), Some(1));
    group.disks[0].disk("wal").set_free(1 << 19);
    group.until("the end of the anchor", |_| keep_from().is_none()).await;
}
