//! Hibernated replicas.

use super::*;

fn all_hibernate(group: &Group) -> bool {
    ALL.iter()
        .all(|number| group.replica(*number).is_some_and(|replica| replica.deferred_message_count() > 0))
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
    // The election takes 1.5 election timeouts; queued events do not delay it.
    group.wires.cut(leader);
    let began = group.env.now().mono;
    group.until("another leader", |group| group.agreed(&rest).is_some()).await;
    let took = group.env.now().mono.since(began);
    assert!((1_000..2_600).contains(&took.as_millis()), "{took:?}");
    group.stop(leader).await;
}
