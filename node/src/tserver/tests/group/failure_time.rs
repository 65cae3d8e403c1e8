//! The time after which a silent member counts as failed, changed while the replicas run: Kudu's documented first step
//! of a planned outage.

use super::*;
use nyala_proto::kudu::server::set_flag_response_pb::Code;
use nyala_proto::kudu::server::{SetFlagRequestPb, SetFlagResponsePb};

/// Sets the time on one server, as `kudu tserver set_flag` does.
async fn set_seconds(group: &Group, number: usize, seconds: u64) {
    let request = SetFlagRequestPb {
        flag: "follower_unavailable_considered_failed_sec".to_string(),
        value: seconds.to_string(),
        force: None,
        run_consistency_check: None,
    };
    let set: SetFlagResponsePb = group.call(number, "kudu.server.GenericService", "SetFlag", &request).await;
    assert_eq!(set.result(), Code::Success, "{}", set.msg());
}

fn health_of(group: &Group, leader: usize, member: usize) -> PeerHealth {
    let (status, id) = (group.status(leader).expect("it runs"), group.uuid(member));
    status.peers.iter().find(|peer| peer.id == id).expect("a member").health
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_down_is_spared_for_the_time_that_is_set() {
    let group = Group::with(3, |config| config.raft.follower_failed_after = Duration::from_secs(5)).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    group.write(leader, &[insert(1, "a")]).await;
    let down = others(&ALL, leader)[0];
    group.until("its health", |group| health_of(group, leader, down) == PeerHealth::Healthy).await;
    set_seconds(&group, leader, 7200).await;
    group.wires.cut(down);
    group.env.sleep(Duration::from_secs(60)).await;
    assert_eq!(health_of(&group, leader, down), PeerHealth::Healthy, "nothing replaces it");
    set_seconds(&group, leader, 30).await;
    group.until("its failure", |group| health_of(group, leader, down) == PeerHealth::Failed).await;
}
