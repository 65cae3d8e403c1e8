//! Damage that the scrubber finds in a replica that others can replace.

use super::super::scrub::{pass, scrubber};
use super::*;
use crate::scrub::FindingOutcome;
use engine::disk;

const EIO: i32 = 5;
const EMFILE: i32 = 24;

/// Flips a bit of the tablet's superblock on a server.
fn damage_superblock(group: &Group, number: usize) {
    let data = group.envs[number].disks.open("data").expect("its disk");
    let path = format!("tablet-meta/{TABLET}");
    let mut bytes = disk::read_file(&*data, &path).expect("it is there");
    bytes[40] ^= 1;
    disk::replace_file(&*data, &path, &bytes).expect("replaced");
}

/// Damages a server's superblock and runs a pass of its scrubber. Returns the outcome of the finding.
async fn scrub_damaged(group: &Group, number: usize) -> FindingOutcome {
    damage_superblock(group, number);
    pass(&scrubber(&group.envs[number]), group.server(number)).await[0].outcome
}

#[tokio::test(start_paused = true)]
async fn a_damaged_replica_fails_if_others_can_replace_it() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    assert_eq!(group.write(leader, &[insert(1, "a")]).await.error, None);
    let follower = others(&ALL, leader)[0];
    group.caught_up(follower, leader).await;
    group.all_healthy(leader).await;
    assert_eq!(scrub_damaged(&group, follower).await, FindingOutcome::ReplicaFailed);
    let failure = group.failure(follower).expect("it has failed, so its leader has it replaced");
    assert!(failure.message.contains("tablet-meta/"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn a_damaged_leader_fails_if_others_can_replace_it() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    group.all_healthy(leader).await;
    assert_eq!(scrub_damaged(&group, leader).await, FindingOutcome::ReplicaFailed);
    let next = group.leader(&others(&ALL, leader)).await;
    assert_eq!(group.write(next, &[insert(1, "a")]).await.error, None);
}

/// Without it no leader could be elected, and no copy promoted.
#[tokio::test(start_paused = true)]
async fn a_damaged_replica_that_the_majority_needs_is_reported_and_serves() {
    let mut group = Group::start(3).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    let [follower, gone] = others(&ALL, leader)[..] else { panic!("two followers") };
    group.all_healthy(leader).await;
    // The leader takes it for healthy for minutes.
    group.stop(gone).await;
    for number in [follower, leader] {
        assert_eq!(scrub_damaged(&group, number).await, FindingOutcome::Reported, "server {number}");
        assert_eq!(group.failure(number), None, "server {number}");
    }
    assert_eq!(group.write(leader, &[insert(1, "a")]).await.error, None);
}

/// The third was evicted, and its successor is still copied.
#[tokio::test(start_paused = true)]
async fn a_damaged_replica_of_two_voters_is_reported_and_serves() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    let [follower, evicted] = others(&ALL, leader)[..] else { panic!("two followers") };
    assert_eq!(group.write(leader, &[insert(1, "a")]).await.error, None);
    let removed = group.change_config(leader, ChangeConfigType::RemovePeer, group.peer(evicted), None).await;
    assert_eq!(removed.error, None);
    group.caught_up(follower, leader).await;
    group.all_healthy(leader).await;
    for number in [follower, leader] {
        assert_eq!(scrub_damaged(&group, number).await, FindingOutcome::Reported, "server {number}");
        assert_eq!(group.failure(number), None, "server {number}");
    }
    assert_eq!(group.write(leader, &[insert(2, "b")]).await.error, None);
}

/// Without the others this replica is the best there is.
#[tokio::test(start_paused = true)]
async fn a_damaged_replica_without_a_working_group_is_reported() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let number = group.leader(&ALL).await;
    group.wires.cut(number);
    group.env.sleep(Duration::from_secs(10)).await;
    assert_eq!(scrub_damaged(&group, number).await, FindingOutcome::Reported);
    assert_eq!(group.failure(number), None);
}

/// A server without file descriptors must not fail its replicas one after another.
#[tokio::test(start_paused = true)]
async fn a_file_that_cannot_be_opened_for_now_is_reported() {
    let group = Group::with(3, |config| config.maintenance_interval_ms = 1 << 40).await;
    let (number, disks) = (2, group.disks[2].clone());
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    assert_eq!(group.write(leader, &[insert(1, "a")]).await.error, None);
    group.caught_up(number, leader).await;
    group.all_healthy(leader).await;
    let scrubber = scrubber(&group.envs[number]);
    let failing = async |operation, errno| {
        disks.disk("data").fail_op(operation, errno);
        let found = pass(&scrubber, group.server(number)).await;
        disks.disk("data").end_faults();
        found.into_iter().find(|finding| finding.tablet.is_some()).map(|finding| finding.outcome)
    };
    let failure = || group.failure(number);
    let mut reported = Vec::new();
    for operation in 1..=20 {
        match failing(operation, EMFILE).await {
            Some(outcome) => reported.push((operation, outcome)),
            None if reported.is_empty() => {}
            None => break,
        }
        assert_eq!(failure(), None, "operation {operation}");
    }
    let (first, outcome) = *reported.first().expect("a file of the tablet is opened");
    assert_eq!(outcome, FindingOutcome::Reported);
    assert_eq!(failing(first, EIO).await, Some(FindingOutcome::ReplicaFailed), "the device has failed");
    assert!(failure().is_some());
}
