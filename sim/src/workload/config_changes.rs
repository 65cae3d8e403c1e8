//! Configuration changes of tablets, requested as an operator does with the `kudu tablet change_config` commands: from
//! the leader that the masters know, or from every replica, as an operator does who does not know the leader.

use bytes::Bytes;
use engine::error::Error;
use futures_util::future::join_all;
use nyala_client::location_cache::{ReplicaLocation, TabletLocation};
use nyala_common::env::Env;
use nyala_proto::kudu::consensus::bulk_change_config_request_pb::ConfigChangeItemPb;
use nyala_proto::kudu::consensus::raft_peer_pb::MemberType;
use nyala_proto::kudu::consensus::{
    BulkChangeConfigRequestPb, ChangeConfigRequestPb, ChangeConfigResponsePb, ChangeConfigType,
    RaftPeerAttrsPb, RaftPeerPb,
};
use nyala_proto::kudu::server::{GetStatusRequestPb, GetStatusResponsePb};
use nyala_proto::kudu::{AppStatusPb, HostPortPb};

use super::admin::{call, refused};
use super::client_actor::ClientActor;
use super::{TSERVER_PORT, Workload};
use crate::history::{ClientRequest, TableNo};
use crate::oracle::config_cas::{self, NO_CONFIG};
use crate::wire::client::{CONSENSUS, GENERIC};
use sim_plan::client_ops::ChangeTarget;

impl ClientActor {
    pub(super) async fn move_replica(&mut self, number: TableNo, at: u8, asked: ChangeTarget) {
        let what =
            self.invoke(ClientRequest::Operator(format!("table {number} tablet {at}: a replica moves")));
        let outcome = self.try_move(number, at, asked).await;
        self.record_change(what, outcome);
    }

    pub(super) async fn evict(&mut self, number: TableNo, at: u8, asked: ChangeTarget) {
        let what = self
            .invoke(ClientRequest::Operator(format!("table {number} tablet {at}: a replica is taken away")));
        let outcome = self.try_evict(number, at, asked).await;
        self.record_change(what, outcome);
    }

    /// Removes another voter, as long as no replica is missing.
    async fn try_evict(&mut self, number: TableNo, at: u8, asked: ChangeTarget) -> Result<(), Error> {
        let tablet = self.tablet(number, at).await?;
        if tablet.replicas.len() < usize::from(self.workload.plan().cluster.replicas) {
            return Err(Error::not_ready("the tablet is under-replicated; retry later"));
        }
        let asked = asked_of(&tablet, asked)?;
        any(join_all(asked.into_iter().map(|replica| self.evict_by(&tablet, replica, at))).await)
    }

    async fn evict_by(&self, tablet: &TabletLocation, leader: &ReplicaLocation, at: u8) -> Result<(), Error> {
        let others: Vec<_> =
            tablet.replicas.iter().filter(|replica| replica.server_id != leader.server_id).collect();
        let other = others.get(usize::from(at) % others.len().max(1));
        let other = other.ok_or_else(|| Error::not_found("no other replica"))?;
        let request = ChangeConfigRequestPb {
            dest_uuid: Some(Bytes::from(leader.server_id.clone())),
            tablet_id: Bytes::from(tablet.id.clone()),
            r#type: Some(ChangeConfigType::RemovePeer as i32),
            server: Some(peer(&other.server_id, None)),
            cas_config_opid_index: None,
        };
        refused(self.ask(leader, "ChangeConfig", &request).await?)
    }

    /// Adds a learner to be promoted, and marks another replica for replacement, in one change.
    async fn try_move(&mut self, number: TableNo, at: u8, asked: ChangeTarget) -> Result<(), Error> {
        let tablet = self.tablet(number, at).await?;
        let asked = asked_of(&tablet, asked)?;
        let (new_id, new_host) = self.workload.server_without(&self.env, &tablet).await?;
        let leaves = &tablet.replicas[usize::from(at) % tablet.replicas.len().max(1)];
        let mut added = peer(&new_id, Some(RaftPeerAttrsPb { promote: Some(true), replace: None }));
        added.member_type = Some(MemberType::NonVoter as i32);
        added.last_known_addr = Some(HostPortPb { host: new_host, port: u32::from(TSERVER_PORT) });
        let replaced = peer(&leaves.server_id, Some(RaftPeerAttrsPb { promote: None, replace: Some(true) }));
        let item =
            |kind: ChangeConfigType, peer| ConfigChangeItemPb { r#type: Some(kind as i32), peer: Some(peer) };
        let changes =
            vec![item(ChangeConfigType::AddPeer, added), item(ChangeConfigType::ModifyPeer, replaced)];
        any(join_all(asked.into_iter().map(|replica| self.move_by(&tablet, replica, changes.clone()))).await)
    }

    async fn move_by(
        &self,
        tablet: &TabletLocation,
        leader: &ReplicaLocation,
        config_changes: Vec<ConfigChangeItemPb>,
    ) -> Result<(), Error> {
        let mut request = BulkChangeConfigRequestPb {
            dest_uuid: Some(Bytes::from(leader.server_id.clone())),
            tablet_id: Bytes::from(tablet.id.clone()),
            config_changes,
            // No configuration has this index: the change must be rejected.
            cas_config_opid_index: Some(NO_CONFIG),
        };
        let method = "BulkChangeConfig";
        let status = self.ask(leader, method, &request).await?;
        let found = config_cas::check_refused(&tablet.id, NO_CONFIG, status.is_some());
        found.into_iter().for_each(|violation| self.workload.report_violation(violation));
        request.cas_config_opid_index = None;
        refused(self.ask(leader, method, &request).await?)
    }

    /// Requests a change from one replica; returns its error, if any.
    async fn ask<Q: prost::Message>(
        &self,
        replica: &ReplicaLocation,
        method: &str,
        request: &Q,
    ) -> Result<Option<AppStatusPb>, Error> {
        let within = self.workload.plan().cluster.rpc_timeout;
        let response: ChangeConfigResponsePb =
            call(&self.env, &replica.address, CONSENSUS, method, request, within).await?;
        Ok(response.error.map(|error| error.status))
    }
}

/// Returns the replicas that an operator asks.
fn asked_of(tablet: &TabletLocation, asked: ChangeTarget) -> Result<Vec<&ReplicaLocation>, Error> {
    let replicas: Vec<&ReplicaLocation> = match asked {
        ChangeTarget::Leader => tablet.replicas.iter().filter(|replica| replica.leader).collect(),
        ChangeTarget::All => tablet.replicas.iter().collect(),
    };
    if replicas.is_empty() { Err(Error::not_ready("the tablet has no leader")) } else { Ok(replicas) }
}

/// Returns success if one of them succeeded; otherwise the last error.
fn any(results: Vec<Result<(), Error>>) -> Result<(), Error> {
    let none = Err(Error::not_found("the tablet has no replica to ask"));
    results.into_iter().fold(none, |one, other| if one.is_ok() { one } else { other })
}

fn peer(id: &str, attrs: Option<RaftPeerAttrsPb>) -> RaftPeerPb {
    RaftPeerPb { permanent_uuid: Some(Bytes::from(id.to_string())), attrs, ..Default::default() }
}

impl Workload {
    /// Returns a tablet server without a replica of the tablet: its id and its host.
    async fn server_without(&self, env: &Env, tablet: &TabletLocation) -> Result<(String, String), Error> {
        let within = self.plan().cluster.rpc_timeout;
        for number in 0..self.plan().cluster.tservers {
            let host = format!("t{number}");
            let address = format!("{host}:{TSERVER_PORT}");
            let request = GetStatusRequestPb::default();
            let asked = call(env, &address, GENERIC, "GetStatus", &request, within).await;
            let Ok(GetStatusResponsePb { status, .. }) = asked else { continue };
            let id = String::from_utf8_lossy(&status.node_instance.permanent_uuid).into_owned();
            if tablet.replicas.iter().all(|replica| replica.server_id != id) {
                return Ok((id, host));
            }
        }
        Err(Error::not_found("every tablet server that answers has a replica"))
    }
}
