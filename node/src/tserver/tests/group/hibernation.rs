//! Hibernated replicas.

use super::*;
use nyala_common::metrics::definition::EntityKind;
use nyala_common::metrics::{Entity, MetricValue, table};

fn all_hibernate(group: &Group) -> bool {
    ALL.iter()
        .all(|number| group.replica(*number).is_some_and(|replica| replica.deferred_message_count() > 0))
}

/// Returns the milliseconds since the latest message of a leader, as a follower's metrics show them.
fn silent_ms(group: &Group, number: usize) -> i64 {
    let replica = group.replica(number).expect("it runs");
    let mut entity = Entity::new(EntityKind::Tablet, TABLET.to_string());
    replica.metrics().collect(&mut entity, group.env.now().mono, false);
    let name = table::TIME_SINCE_LAST_LEADER_HEARTBEAT.name;
    match entity.samples.into_iter().find(|sample| sample.def.name == name).map(|sample| sample.value) {
        Some(MetricValue::Integer(ms)) => ms,
        other => panic!("not a number: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn hibernated_replicas_defer_heartbeats_and_still_detect_failures() {
    let mut group = Group::start(3).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    group.write(leader, &[insert(1, "a")]).await;
    group.until("hibernation after a write", all_hibernate).await;
    let term = group.status(leader).expect("it runs").term;
    group.env.sleep(Duration::from_secs(60)).await;
    group.until("hibernation one minute later", all_hibernate).await;
    assert_eq!(group.agreed(&ALL), Some(leader), "heartbeats that were kept put elections off");
    let status = group.replica(leader).expect("it runs").status_now().await.expect("it runs");
    assert_eq!((status.term, status.is_quorum_active), (term, true));
    let heard = |silent: Option<Duration>| silent.expect("it replies") <= Duration::from_millis(600);
    assert!(status.peers.iter().all(|peer| heard(peer.silent)), "{:?}", status.peers);
    let rest = others(&ALL, leader);
    for number in &rest {
        let silent = silent_ms(&group, *number);
        assert!(silent <= 600, "server {number}: {silent} ms");
    }
    // The election takes 1.5 election timeouts; queued events do not delay it.
    group.wires.cut(leader);
    let began = group.env.now().mono;
    group.until("another leader", |group| group.agreed(&rest).is_some()).await;
    let took = group.env.now().mono.since(began);
    assert!((1_000..2_600).contains(&took.as_millis()), "{took:?}");
    group.stop(leader).await;
}

/// A job syncs the log, which needs space for entries that wait in memory.
#[tokio::test(start_paused = true)]
async fn replicas_hibernate_again_after_a_job_met_a_full_log_device() {
    let mut group = Group::with(3, |config| {
        config.log_sync = false;
        config.maintenance_interval_ms = 1 << 40;
    })
    .await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    group.write(leader, &[insert(1, "a")]).await;
    group.until("hibernation after a write", all_hibernate).await;
    let replica = group.replica(leader).expect("it runs");
    let wal = group.disks[leader].disk("wal");
    wal.set_free(0);
    assert!(replica.run_on_wal(|_| ()).await.is_err(), "the log has no space");
    wal.set_free(1 << 40);
    group.env.sleep(Duration::from_secs(60)).await;
    replica.run_on_wal(|_| ()).await.expect("the log has space");
    group.until("hibernation once there is space", all_hibernate).await;
    group.stop(leader).await;
}
