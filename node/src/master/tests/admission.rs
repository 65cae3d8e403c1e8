//! Tablet servers that a master refuses, or gives no replicas.

use super::*;

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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_a_wrong_clock_is_refused_until_it_is_set() {
    let fixture = Fixture::start().await;
    let beat = async |ahead_micros: u64| {
        let wall_micros = Some(now_micros(&fixture) + ahead_micros);
        let state = NyalaServerStatePb { wall_micros, ..NyalaServerStatePb::default() };
        fixture.heartbeat_in(SERVER, Vec::new(), Some(state)).await
    };
    let wrong = beat(3_600_000_000).await;
    let error = shown(&wrong.error);
    assert!(error.contains("its clock is ahead of this master's (by 3"), "{error}");
    assert!(wrong.nyala_wall_micros.is_some(), "the server can measure the difference");
    assert_eq!(fixture.master.known_tservers.count(), 0);
    let checks = fixture.master.common.checks.checks();
    let check = checks.iter().find(|check| check.name == "tablet servers").expect("it is shown");
    assert!(check.parts().0 == "warning" && check.parts().1.contains(" refused clock 3"), "{check:?}");
    assert_eq!(beat(0).await.error, None);
    assert_eq!(fixture.master.known_tservers.count(), 1);
}
