//! Tablet servers that a master refuses, or gives no replicas.

use super::*;
use nyala_common::env::partitionable_net::PartitionableNet;
use nyala_common::env::testing::hosts;

const SERVER: Uuid = Uuid([5; 16]);

fn now_micros(fixture: &Fixture) -> u64 {
    fixture.env.now().wall.micros
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_cluster_is_refused() {
    let fixture = Fixture::start().await;
    let beat = async |cluster_id: Option<String>| {
        let state = NyalaServerStatePb { cluster_id, ..NyalaServerStatePb::default() };
        fixture.heartbeat_in(SERVER, Vec::new(), Some(state)).await
    };
    let first = beat(None).await;
    assert_eq!(first.error, None);
    let cluster = first.nyala_cluster_id.expect("the leader names its cluster");
    assert_eq!(beat(Some(cluster.clone())).await.error, None);
    let other = beat(Some(Uuid([9; 16]).to_string())).await;
    let error = shown(&other.error);
    assert!(error.contains("belongs to another cluster (its 0909"), "{error}");
    assert!(error.contains(&format!("this master's {cluster}")), "{error}");
    assert_eq!(fixture.master.known_tservers.count(), 0, "it is not known any more");
    let request = ListTabletServersRequestPb { include_states: None };
    let listed: ListTabletServersResponsePb = fixture.call("ListTabletServers", &request).await;
    assert!(listed.servers.is_empty(), "it gets no replicas: {:?}", listed.servers);
}

/// Registers a server whose clock is ahead of the master's.
async fn beat_ahead(fixture: &Fixture, ahead: Duration) -> TsHeartbeatResponsePb {
    let wall_micros = Some(now_micros(fixture) + ahead.as_micros() as u64);
    let state = NyalaServerStatePb { wall_micros, ..NyalaServerStatePb::default() };
    fixture.heartbeat_in(SERVER, Vec::new(), Some(state)).await
}

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_a_wrong_clock_is_refused_until_it_is_set() {
    let fixture = Fixture::start().await;
    let wrong = beat_ahead(&fixture, HOUR).await;
    let error = shown(&wrong.error);
    assert!(error.contains("its clock is ahead of this master's (by 3"), "{error}");
    assert!(wrong.nyala_wall_micros.is_some(), "the server can measure the difference");
    assert_eq!(fixture.master.known_tservers.count(), 0);
    let checks = fixture.master.common.checks.checks();
    let check = checks.iter().find(|check| check.name == "tablet servers").expect("it is shown");
    assert!(check.parts().0 == "warning" && check.parts().1.contains(" refused clock 3"), "{check:?}");
    assert_eq!(beat_ahead(&fixture, Duration::ZERO).await.error, None);
    assert_eq!(fixture.master.known_tservers.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_clock_goes_wrong_is_alive_while_it_sends_heartbeats() {
    let env = hosts(&PartitionableNet::default(), 1).pop().expect("one host");
    let fixture = Fixture::in_env(env, |_| {}).await;
    assert_eq!(beat_ahead(&fixture, Duration::ZERO).await.error, None);
    // A refused server registers with the next heartbeat, and is refused again.
    for _ in 0..70 {
        fixture.env.sleep(Duration::from_secs(1)).await;
        let error = shown(&beat_ahead(&fixture, HOUR).await.error);
        assert!(error.contains("its clock is ahead of this master's"), "{error}");
    }
    let request = ListTabletServersRequestPb { include_states: None };
    let listed: ListTabletServersResponsePb = fixture.call("ListTabletServers", &request).await;
    assert_eq!(listed.servers.len(), 1);
    assert!(listed.servers[0].millis_since_heartbeat() < 1_000, "{:?}", listed.servers);
}
