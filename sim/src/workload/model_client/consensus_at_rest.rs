//! Reports of replicas about their group when nothing changes any more: members, leader, term and last operation.

use bytes::Bytes;
use nyala_common::rpc::client::{CallOptions, RpcResponse};
use nyala_proto::kudu::consensus::{
    ConsensusStatePb, GetConsensusStateRequestPb, GetConsensusStateResponsePb, GetLastOpIdRequestPb,
    GetLastOpIdResponsePb, OpId, OpIdType,
};

use super::ModelClient;
use crate::wire::client::{CONSENSUS, ReplicaPlace, TabletPlace, text_of};

/// One replica's view of its group.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GroupView {
    term: i64,
    leader: String,
    /// Ids of the members, in order.
    members: Vec<String>,
    has_pending: bool,
    received: (i64, i64),
    committed: (i64, i64),
}

impl ModelClient {
    /// Returns what replicas of a tablet do not agree on, or tell otherwise than masters.
    pub(super) async fn check_group(&mut self, place: &TabletPlace) -> Result<(), String> {
        // The service is for servers and operators only.
        if self.workload.plan().security.is_some() {
            return Ok(());
        }
        let mut views = Vec::new();
        for replica in &place.replicas {
            views.push(self.group_view(place, replica).await?);
        }
        fault(place, &views).map_or(Ok(()), |what| Err(format!("tablet {}: {what}", place.id)))
    }

    async fn group_view(&mut self, place: &TabletPlace, replica: &ReplicaPlace) -> Result<GroupView, String> {
        let request = GetConsensusStateRequestPb {
            dest_uuid: Some(replica.server_id.clone()),
            tablet_ids: vec![Bytes::copy_from_slice(place.id.as_bytes())],
            report_health: None,
        };
        let options = CallOptions::default();
        let called =
            self.plain.call(&replica.address, CONSENSUS, "GetConsensusState", &request, options).await;
        let reply: RpcResponse<GetConsensusStateResponsePb> =
            called.map_err(|failure| failure.to_string())?;
        let told = reply.message.tablets.into_iter().next().and_then(|tablet| tablet.cstate);
        let state = told.ok_or_else(|| format!("{} does not know tablet {}", replica.address, place.id))?;
        let received = self.last_op(place, replica, OpIdType::ReceivedOpid).await?;
        let committed = self.last_op(place, replica, OpIdType::CommittedOpid).await?;
        Ok(view_of(&state, received, committed))
    }

    async fn last_op(
        &mut self,
        place: &TabletPlace,
        replica: &ReplicaPlace,
        kind: OpIdType,
    ) -> Result<(i64, i64), String> {
        let request = GetLastOpIdRequestPb {
            dest_uuid: Some(replica.server_id.clone()),
            tablet_id: Bytes::copy_from_slice(place.id.as_bytes()),
            opid_type: Some(kind as i32),
        };
        let options = CallOptions::default();
        let called = self.plain.call(&replica.address, CONSENSUS, "GetLastOpId", &request, options).await;
        let reply: RpcResponse<GetLastOpIdResponsePb> = called.map_err(|failure| failure.to_string())?;
        if let Some(error) = &reply.message.error {
            return Err(format!("the last operation of tablet {}: {}", place.id, text_of(&error.status)));
        }
        Ok(reply.message.opid.map_or((0, 0), |OpId { term, index }| (term, index)))
    }
}

fn view_of(state: &ConsensusStatePb, received: (i64, i64), committed: (i64, i64)) -> GroupView {
    let peers = &state.committed_config.peers;
    let mut members: Vec<String> = peers.iter().map(|peer| text(peer.permanent_uuid())).collect();
    members.sort();
    GroupView {
        term: state.current_term,
        leader: state.leader_uuid().to_string(),
        members,
        has_pending: state.pending_config.is_some(),
        received,
        committed,
    }
}

fn text(id: &[u8]) -> String {
    String::from_utf8_lossy(id).into_owned()
}

/// Returns what is wrong with the views of a tablet's replicas.
fn fault(place: &TabletPlace, views: &[GroupView]) -> Option<String> {
    let mut listed: Vec<String> = place.replicas.iter().map(|replica| text(&replica.server_id)).collect();
    listed.sort();
    let leader = place.replicas.iter().find(|replica| replica.leads).map(|replica| text(&replica.server_id));
    let first = views.first()?;
    let is_of_masters = first.members == listed && Some(&first.leader) == leader.as_ref();
    let is_at_rest = !first.has_pending && first.received == first.committed;
    let agree = views.iter().all(|view| view == first);
    (!(is_of_masters && is_at_rest && agree))
        .then(|| format!("masters tell {listed:?} led by {leader:?}, and replicas {views:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(change: impl FnOnce(&mut Vec<GroupView>)) -> bool {
        let replica = |name: &'static str, leads| ReplicaPlace {
            server_id: Bytes::from_static(name.as_bytes()),
            address: format!("{name}:1"),
            leads,
        };
        let replicas = vec![replica("b", true), replica("a", false)];
        let place = TabletPlace { id: "t".to_string(), bounds: Default::default(), replicas };
        let view = GroupView {
            term: 2,
            leader: "b".to_string(),
            members: vec!["a".to_string(), "b".to_string()],
            has_pending: false,
            received: (2, 9),
            committed: (2, 9),
        };
        let mut views = vec![view.clone(), view];
        change(&mut views);
        fault(&place, &views).is_some()
    }

    #[test]
    fn replicas_agree_with_each_other_and_with_masters() {
        assert!(!found(|_| {}));
        assert!(found(|views| views[1].term = 3));
        assert!(found(|views| views[1].committed = (2, 8)));
        assert!(found(|views| views.iter_mut().for_each(|view| view.received = (2, 10))));
        assert!(found(|views| views.iter_mut().for_each(|view| view.leader = "a".to_string())));
        assert!(found(|views| views.iter_mut().for_each(|view| drop(view.members.pop()))));
        assert!(found(|views| views.iter_mut().for_each(|view| view.has_pending = true)));
    }
}
