//! Damage that a replica's own work meets: its log when a follower lacks entries, its rows when they are compacted.

use super::*;
use crate::hosting::maintenance::run_job;
use engine::disk;
use engine::error::{Error, ErrorKind};
use engine::replica::{JobKind, wal_dir};
use futures_util::future::join_all;

/// Sets logs whose entries are read back from the disk, and no maintenance beside the test's.
fn from_disk(config: &mut TserverConfig) {
    config.raft.cache_bytes_max = 0;
    config.maintenance_interval_ms = 1 << 40;
}

/// Only another leader can catch the follower up.
#[tokio::test(start_paused = true)]
async fn a_leader_with_a_damaged_log_fails_once_its_group_can_do_without_it() {
    for log_sync in [true, false] {
        let change: fn(&mut TserverConfig) = match log_sync {
            true => from_disk,
            false => |config: &mut TserverConfig| {
                from_disk(config);
                config.log_sync = false;
            },
        };
        let group = Group::with(3, change).await;
        group.create(&ALL).await;
        let leader = group.leader(&ALL).await;
        let rest = others(&ALL, leader);
        let far = rest[1];
        assert_eq!(group.write(leader, &[insert(0, "a")]).await.error, None);
        group.caught_up(far, leader).await;
        group.wires.cut(far);
        let segment = format!("{}/0000000001.wal", wal_dir(TABLET));
        group.disks[leader].disk("wal").flip_bit(&segment, 90).expect("it is there");
        for key in 1..20 {
            assert_eq!(group.write(leader, &[insert(key, "b")]).await.error, None);
        }
        // The leader reads its log for the follower meanwhile.
        group.env.sleep(Duration::from_secs(10)).await;
        assert_eq!(group.failure(leader), None, "log_sync {log_sync}: it is half of a majority");
        group.wires.join(far);
        group.until("a failed leader", |group| group.failure(leader).is_some()).await;
        assert_eq!(group.failure(leader).expect("it has failed").kind, ErrorKind::Corrupt);
        let next = group.leader(&rest).await;
        group.caught_up(far, next).await;
        let written = group.write(next, &[insert(20, "c")]).await;
        let at = written.timestamp() + 1;
        assert_eq!(group.keys(far, snapshot_scan(at)).await, (0..=20).collect::<Vec<_>>());
    }
}

/// Flips bits of all pages of a server's first rowset, and compacts it with the others.
async fn compact_damaged(group: &Group, number: usize) {
    let replica = group.replica(number).expect("it runs");
    let (state, data) = (replica.tablet().state(), group.disks[number].disk("data"));
    for file in state.disk[0].open_files() {
        let bytes = disk::read_file(&data, file.path()).expect("it is there").len() as u64;
        for offset in (40..bytes).step_by(16) {
            data.flip_bit(file.path(), offset).expect("it is there");
        }
    }
    let all = state.disk.iter().map(|rowset| rowset.meta().id).collect();
    let compacted = run_job(&group.envs[number], &replica, JobKind::Compact(all)).await;
    let error = compacted.expect_err("it meets the damage");
    assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_compaction_that_meets_damage_fails_its_replica_unless_the_group_needs_it() {
    let group = Group::with(3, from_disk).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    let followers = others(&ALL, leader);
    for key in 0..2 {
        assert_eq!(group.write(leader, &[insert(key, "some words")]).await.error, None);
        for number in &followers {
            group.caught_up(*number, leader).await;
            let replica = group.replica(*number).expect("it runs");
            let flushed = run_job(&group.envs[*number], &replica, JobKind::FlushRows).await;
            assert!(flushed.expect("the job succeeds"));
        }
    }
    group.all_healthy(leader).await;
    compact_damaged(&group, followers[0]).await;
    assert!(group.failure(followers[0]).is_some(), "the leader and the other follower are a majority");
    compact_damaged(&group, followers[1]).await;
    assert_eq!(group.failure(followers[1]), None, "the leader alone is none");
    assert_eq!(group.write(leader, &[insert(2, "c")]).await.error, None);
}

/// Each of them would rely on the other.
#[tokio::test(start_paused = true)]
async fn two_replicas_that_find_damage_at_the_same_time_do_not_both_fail() {
    let group = Group::with(3, from_disk).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    group.all_healthy(leader).await;
    let followers = others(&ALL, leader);
    let replicas: Vec<ReplicaHandle> =
        followers.iter().map(|number| group.replica(*number).expect("it runs")).collect();
    let error = Error::corrupt("a page is damaged");
    let failed = join_all(replicas.iter().map(|replica| replica.fail_if_replaceable(&error))).await;
    assert!(failed.contains(&false), "{failed:?}");
    assert!(replicas.iter().all(|replica| !replica.is_checking_damage()));
    assert_eq!(group.write(leader, &[insert(1, "a")]).await.error, None);
}
