//! Damage that the scrubber finds in a replica that others can replace.

use super::super::scrub::{pass, scrubber};
use super::*;
use crate::scrub::FindingOutcome;
use engine::disk;
use nyala_common::env::testing::MemDisks;

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

#[tokio::test(start_paused = true)]
async fn a_damaged_replica_fails_if_others_can_replace_it() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    assert_eq!(group.write(leader, &[insert(1, "a")]).await.error, None);
    let follower = others(&ALL, leader)[0];
    group.caught_up(follower, leader).await;
    damage_superblock(&group, follower);
    let found = pass(&scrubber(&group.envs[follower]), group.server(follower)).await;
    assert_eq!(found[0].outcome, FindingOutcome::ReplicaFailed);
    let entry = group.server(follower).server.tablets.get(TABLET).expect("it is there");
    let failure = entry.failure().expect("it has failed, so its leader has it replaced");
    assert!(failure.message.contains("tablet-meta/"), "{failure}");
}

/// Without the others this replica is the best there is.
#[tokio::test(start_paused = true)]
async fn a_damaged_replica_without_a_working_group_is_reported() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let number = group.leader(&ALL).await;
    group.wires.cut(number);
    group.env.sleep(Duration::from_secs(10)).await;
    damage_superblock(&group, number);
    let found = pass(&scrubber(&group.envs[number]), group.server(number)).await;
    assert_eq!(found[0].outcome, FindingOutcome::Reported);
    let entry = group.server(number).server.tablets.get(TABLET).expect("it is there");
    assert_eq!(entry.failure(), None);
}

/// A server without file descriptors must not fail its replicas one after another.
#[tokio::test(start_paused = true)]
async fn a_file_that_cannot_be_opened_for_now_is_reported() {
    let mut group = Group::with(3, |config| config.maintenance_interval_ms = 1 << 40).await;
    let (number, disks) = (2, MemDisks::default());
    group.stop(number).await;
    group.envs[number].disks = Arc::new(disks.clone());
    group.run(number).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    assert_eq!(group.write(leader, &[insert(1, "a")]).await.error, None);
    group.caught_up(number, leader).await;
    let scrubber = scrubber(&group.envs[number]);
    let failing = async |operation, errno| {
        disks.disk("data").fail_op(operation, errno);
        let found = pass(&scrubber, group.server(number)).await;
        disks.disk("data").end_faults();
        found.into_iter().find(|finding| finding.tablet.is_some()).map(|finding| finding.outcome)
    };
    let failure = || group.server(number).server.tablets.get(TABLET).expect("it is there").failure();
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
