//! Changes of who belongs to a tablet's group, asked for as an operator does with the `kudu tablet change_config`
//! commands: of the leader that the masters know, or of every replica, as one does who does not know who leads.

use bytes::Bytes;
use engine::error::Error;
use futures_util::future::join_all;
use node::client::locations::{Replica, TabletLocation};
use node::env::Env;
use node::proto::kudu::consensus::bulk_change_config_request_pb::ConfigChangeItemPb;
use node::proto::kudu::consensus::raft_peer_pb::MemberType;
use node::proto::kudu::consensus::{
    BulkChangeConfigRequestPb, ChangeConfigRequestPb, ChangeConfigResponsePb, ChangeConfigType,
    RaftPeerAttrsPb, RaftPeerPb,
};
use node::proto::kudu::server::{GetStatusRequestPb, GetStatusResponsePb};
use node::proto::kudu::{AppStatusPb, HostPortPb};

use super::actor::Actor;
use super::admin::{CONSENSUS, GENERIC, call, refused};
use super::{TSERVER_PORT, Workload};
use crate::history::{Request, TableNo};
use crate::oracle::membership::{self, NO_CONFIG};
use crate::plan::ops::Asked;

impl Actor {
    pub async fn move_replica(&mut self, number: TableNo, at: u8, asked: Asked) {
        let what = self.invoke(Request::Other(format!("table {number} tablet {at}: a replica moves")));
        let outcome = self.try_move(number, at, asked).await;
        self.told(what, outcome);
    }

    pub async fn evict(&mut self, number: TableNo, at: u8, asked: Asked) {
        let what =
            self.invoke(Request::Other(format!("table {number} tablet {at}: a replica is taken away")));
        let outcome = self.try_evict(number, at, asked).await;
        self.told(what, outcome);
    }

    /// Has another voter removed, as long as nothing is missing.
    async fn try_evict(&mut self, number: TableNo, at: u8, asked: Asked) -> Result<(), Error> {
        let tablet = self.tablet(number, at).await?;
        if tablet.replicas.len() < usize::from(self.workload.plan().cluster.replicas) {
            return Err(Error::not_ready("the tablet lacks a replica already"));
        }
        let asked = asked_of(&tablet, asked)?;
        any(join_all(asked.into_iter().map(|replica| self.evict_by(&tablet, replica, at))).await)
    }

    async fn evict_by(&self, tablet: &TabletLocation, leader: &Replica, at: u8) -> Result<(), Error> {
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

    /// Has a learner added that is to be promoted, and another replica marked to be replaced, in one change.
    async fn try_move(&mut self, number: TableNo, at: u8, asked: Asked) -> Result<(), Error> {
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
        leader: &Replica,
        config_changes: Vec<ConfigChangeItemPb>,
    ) -> Result<(), Error> {
        let mut request = BulkChangeConfigRequestPb {
            dest_uuid: Some(Bytes::from(leader.server_id.clone())),
            tablet_id: Bytes::from(tablet.id.clone()),
            config_changes,
            // No configuration has this index: a change that is asked for of it must be refused.
            cas_config_opid_index: Some(NO_CONFIG),
        };
        let method = "BulkChangeConfig";
        let status = self.ask(leader, method, &request).await?;
        let found = membership::check_refused(&tablet.id, NO_CONFIG, status.is_some());
        found.into_iter().for_each(|finding| self.workload.object(finding));
        request.cas_config_opid_index = None;
        refused(self.ask(leader, method, &request).await?)
    }

    /// Asks one replica for a change; how it refuses, if it does.
    async fn ask<Q: prost::Message>(
        &self,
        replica: &Replica,
        method: &str,
        request: &Q,
    ) -> Result<Option<AppStatusPb>, Error> {
        let within = self.workload.plan().cluster.rpc_timeout;
        let response: ChangeConfigResponsePb =
            call(&self.env, &replica.address, CONSENSUS, method, request, within).await?;
        Ok(response.error.map(|error| error.status))
    }
}

/// Whom an operator asks.
fn asked_of(tablet: &TabletLocation, asked: Asked) -> Result<Vec<&Replica>, Error> {
    let replicas: Vec<&Replica> = match asked {
        Asked::Leader => tablet.replicas.iter().filter(|replica| replica.leader).collect(),
        Asked::All => tablet.replicas.iter().collect(),
    };
    if replicas.is_empty() { Err(Error::not_ready("the tablet has no leader")) } else { Ok(replicas) }
}

/// Whether one of them did it; otherwise what the last one said.
fn any(results: Vec<Result<(), Error>>) -> Result<(), Error> {
    let nobody = Err(Error::not_found("nobody was asked"));
    results.into_iter().fold(nobody, |one, other| if one.is_ok() { one } else { other })
}

fn peer(id: &str, attrs: Option<RaftPeerAttrsPb>) -> RaftPeerPb {
    RaftPeerPb { permanent_uuid: Some(Bytes::from(id.to_string())), attrs, ..Default::default() }
}

impl Workload {
    /// A tablet server that has no replica of the tablet: its id and its host.
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
