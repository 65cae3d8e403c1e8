//! What an administrator does while others work: leaders step down, replicas move.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use engine::error::Error;
use engine::time::Instant;
use node::client::locations::TabletLocation;
use node::env::Env;
use node::proto::kudu::consensus::bulk_change_config_request_pb::ConfigChangeItemPb;
use node::proto::kudu::consensus::raft_peer_pb::MemberType;
use node::proto::kudu::consensus::{
    BulkChangeConfigRequestPb, ChangeConfigRequestPb, ChangeConfigResponsePb, ChangeConfigType,
    LeaderStepDownMode, LeaderStepDownRequestPb, LeaderStepDownResponsePb, RaftPeerAttrsPb, RaftPeerPb,
};
use node::proto::kudu::server::{
    DumpMemTrackersRequestPb, DumpMemTrackersResponsePb, GetStatusRequestPb, GetStatusResponsePb,
};
use node::proto::kudu::tserver::{QuiesceTabletServerRequestPb, QuiesceTabletServerResponsePb};
use node::proto::kudu::{HostPortPb, MemTrackerPb};
use node::rpc::client::{CallOptions, Proxy};

use super::actor::Actor;
use super::scans::spec;
use super::{TSERVER_PORT, Workload, until};
use crate::history::{Outcome, Request, TableNo};
use crate::oracle::Finding;
use crate::oracle::membership::{self, NO_CONFIG};
use crate::oracle::memory::{self, Held};
use crate::plan::Op;

const CONSENSUS: &str = "kudu.consensus.ConsensusService";
const GENERIC: &str = "kudu.server.GenericService";
pub(super) const ADMIN: &str = "kudu.tserver.TabletServerAdminService";

/// One call to a server, on a connection of its own.
pub(super) async fn call<Q, R>(
    env: &Env,
    address: &str,
    service: &str,
    method: &str,
    request: &Q,
    within: Duration,
) -> Result<R, Error>
where
    Q: prost::Message,
    R: prost::Message + Default,
{
    let proxy = Proxy::new(env.clone(), address, "simulator");
    let deadline = env.now().mono.after(within);
    let called = proxy.call(service, method, request, deadline, CallOptions::default()).await;
    proxy.disconnect();
    let failed = |error| Error::not_ready(format!("{method} at {address}: {error:?}"));
    called.map(|response| response.message).map_err(failed)
}

impl Actor {
    /// A tablet of a table, by its place among them.
    async fn tablet(&mut self, number: TableNo, at: u8) -> Result<TabletLocation, Error> {
        let table = self.table(number).await;
        let tokens = table.scan_tokens(&spec()).await?;
        let none = || Error::not_found(format!("table {number} has no tablet"));
        let token = tokens.get(usize::from(at) % tokens.len().max(1)).ok_or_else(none)?;
        Ok(token.tablet().clone())
    }

    pub async fn step_down(&mut self, number: TableNo, at: u8) {
        let what = self.invoke(Request::Other(format!("table {number} tablet {at}: the leader steps down")));
        let outcome = match self.try_step_down(number, at).await {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::Unknown(error.message),
        };
        self.workload.count(|counts| counts.changes += u64::from(outcome == Outcome::Done));
        self.answer(what, outcome);
    }

    async fn try_step_down(&mut self, number: TableNo, at: u8) -> Result<(), Error> {
        let tablet = self.tablet(number, at).await?;
        let leader = tablet.replicas.iter().find(|replica| replica.leader);
        let leader = leader.ok_or_else(|| Error::not_ready("the tablet has no leader"))?;
        let mode =
            if at.is_multiple_of(2) { LeaderStepDownMode::Abrupt } else { LeaderStepDownMode::Graceful };
        let request = LeaderStepDownRequestPb {
            dest_uuid: Some(Bytes::from(leader.server_id.clone())),
            tablet_id: Bytes::from(tablet.id.clone()),
            mode: Some(mode as i32),
            new_leader_uuid: None,
        };
        let within = self.workload.plan().cluster.rpc_timeout;
        let method = "LeaderStepDown";
        let response: LeaderStepDownResponsePb =
            call(&self.env, &leader.address, CONSENSUS, method, &request, within).await?;
        refused(response.error.map(|error| error.status))
    }

    pub async fn move_replica(&mut self, number: TableNo, at: u8) {
        let what = self.invoke(Request::Other(format!("table {number} tablet {at}: a replica moves")));
        let outcome = match self.try_move(number, at).await {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::Unknown(error.message),
        };
        self.workload.count(|counts| counts.changes += u64::from(outcome == Outcome::Done));
        self.answer(what, outcome);
    }

    pub async fn evict(&mut self, number: TableNo, at: u8) {
        let what =
            self.invoke(Request::Other(format!("table {number} tablet {at}: a replica is taken away")));
        let outcome = match self.try_evict(number, at).await {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::Unknown(error.message),
        };
        self.workload.count(|counts| counts.changes += u64::from(outcome == Outcome::Done));
        self.answer(what, outcome);
    }

    /// Has the leader remove another voter, as long as nothing is missing.
    async fn try_evict(&mut self, number: TableNo, at: u8) -> Result<(), Error> {
        let tablet = self.tablet(number, at).await?;
        let leader = tablet.replicas.iter().find(|replica| replica.leader);
        let leader = leader.ok_or_else(|| Error::not_ready("the tablet has no leader"))?;
        if tablet.replicas.len() < usize::from(self.workload.plan().cluster.replicas) {
            return Err(Error::not_ready("the tablet lacks a replica already"));
        }
        let others = tablet.replicas.iter().filter(|replica| !replica.leader).cycle();
        let other =
            others.clone().nth(usize::from(at) % 2).ok_or_else(|| Error::not_found("no other replica"))?;
        let server =
            RaftPeerPb { permanent_uuid: Some(Bytes::from(other.server_id.clone())), ..Default::default() };
        let request = ChangeConfigRequestPb {
            dest_uuid: Some(Bytes::from(leader.server_id.clone())),
            tablet_id: Bytes::from(tablet.id.clone()),
            r#type: Some(ChangeConfigType::RemovePeer as i32),
            server: Some(server),
            cas_config_opid_index: None,
        };
        let within = self.workload.plan().cluster.rpc_timeout;
        let response: ChangeConfigResponsePb =
            call(&self.env, &leader.address, CONSENSUS, "ChangeConfig", &request, within).await?;
        refused(response.error.map(|error| error.status))
    }

    /// Adds a learner that is to be promoted, and marks another replica to be replaced, in one change.
    async fn try_move(&mut self, number: TableNo, at: u8) -> Result<(), Error> {
        let tablet = self.tablet(number, at).await?;
        let leader = tablet.replicas.iter().find(|replica| replica.leader);
        let leader = leader.ok_or_else(|| Error::not_ready("the tablet has no leader"))?.clone();
        let (new_id, new_host) = self.workload.server_without(&self.env, &tablet).await?;
        let leaves = &tablet.replicas[usize::from(at) % tablet.replicas.len().max(1)];
        let peer = |id: &str, attrs| RaftPeerPb {
            permanent_uuid: Some(Bytes::from(id.to_string())),
            attrs: Some(attrs),
            ..Default::default()
        };
        let mut added = peer(&new_id, RaftPeerAttrsPb { promote: Some(true), replace: None });
        added.member_type = Some(MemberType::NonVoter as i32);
        added.last_known_addr = Some(HostPortPb { host: new_host, port: u32::from(TSERVER_PORT) });
        let replaced = peer(&leaves.server_id, RaftPeerAttrsPb { promote: None, replace: Some(true) });
        let item =
            |kind: ChangeConfigType, peer| ConfigChangeItemPb { r#type: Some(kind as i32), peer: Some(peer) };
        let mut request = BulkChangeConfigRequestPb {
            dest_uuid: Some(Bytes::from(leader.server_id.clone())),
            tablet_id: Bytes::from(tablet.id.clone()),
            config_changes: vec![
                item(ChangeConfigType::AddPeer, added),
                item(ChangeConfigType::ModifyPeer, replaced),
            ],
            // No configuration has this index: a change that is asked for of it must be refused.
            cas_config_opid_index: Some(NO_CONFIG),
        };
        let within = self.workload.plan().cluster.rpc_timeout;
        let method = "BulkChangeConfig";
        let response: ChangeConfigResponsePb =
            call(&self.env, &leader.address, CONSENSUS, method, &request, within).await?;
        let found = membership::check_refused(&tablet.id, NO_CONFIG, response.error.is_some());
        found.into_iter().for_each(|finding| self.workload.object(finding));
        request.cas_config_opid_index = None;
        let response: ChangeConfigResponsePb =
            call(&self.env, &leader.address, CONSENSUS, method, &request, within).await?;
        refused(response.error.map(|error| error.status))
    }
}

impl Actor {
    /// Has a server quiesce, and after a while no longer. One that starts anew meanwhile has forgotten it.
    pub async fn quiesce(&mut self, server: u8, span: Duration) {
        let what = self.invoke(Request::Other(format!("t{server} quiesces for {span:?}")));
        let begun = self.workload.set_quiescing(&self.env, server, true).await;
        self.env.sleep(span).await;
        // Who is not heard now is woken when all faults have healed.
        let ended = self.workload.set_quiescing(&self.env, server, false).await;
        let outcome = match begun.and(ended) {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::Unknown(error.message),
        };
        self.workload.count(|counts| counts.changes += u64::from(outcome == Outcome::Done));
        self.answer(what, outcome);
    }

    /// Asks a server for its memory, which must be below what the plan allows.
    pub async fn inspect(&mut self, server: u8) {
        let address = format!("t{server}:{TSERVER_PORT}");
        let (request, within) =
            (DumpMemTrackersRequestPb::default(), self.workload.plan().cluster.rpc_timeout);
        let asked = call(&self.env, &address, GENERIC, "DumpMemTrackers", &request, within).await;
        // A server that is down holds nothing.
        let Ok(DumpMemTrackersResponsePb { root_tracker: Some(root) }) = asked else { return };
        let bytes = |tracker: &MemTrackerPb| tracker.current_consumption().unsigned_abs();
        let parts = root.child_trackers.iter().map(|part| (part.id().to_string(), bytes(part))).collect();
        let held = Held { server: format!("t{server}"), bytes: bytes(&root), parts };
        let (limit, clients) = (self.workload.plan().cluster.memory, self.workload.plan().clients.len());
        memory::check(&held, limit, clients).into_iter().for_each(|finding| self.workload.object(finding));
    }
}

fn refused(status: Option<node::proto::kudu::AppStatusPb>) -> Result<(), Error> {
    match status {
        None => Ok(()),
        Some(status) => Err(Error::not_ready(status.message.unwrap_or_default())),
    }
}

impl Workload {
    async fn set_quiescing(&self, env: &Env, server: u8, quiesce: bool) -> Result<(), Error> {
        let address = format!("t{server}:{TSERVER_PORT}");
        let request = QuiesceTabletServerRequestPb { quiesce: Some(quiesce), return_stats: None };
        let within = self.plan().cluster.rpc_timeout;
        let response: QuiesceTabletServerResponsePb =
            call(env, &address, ADMIN, "Quiesce", &request, within).await?;
        match (response.error, response.is_quiescing) {
            (Some(error), _) => refused(Some(error.status)),
            (None, Some(now)) if now == quiesce => Ok(()),
            (None, now) => Err(Error::not_ready(format!("{address} quiesces: {now:?}"))),
        }
    }

    /// Ends the quiescing of every server, if the plan has any do so.
    pub(super) async fn wake_everyone(&self, env: &Env, deadline: Instant) {
        let ops = self.plan().clients.iter().flat_map(|client| &client.ops);
        let servers = ops.filter_map(|op| match op {
            Op::Quiesce { server, .. } => Some(*server),
            _ => None,
        });
        for server in servers.collect::<BTreeSet<u8>>() {
            let left = deadline.since(env.now().mono);
            let woken = until(env, left, async || self.set_quiescing(env, server, false).await).await;
            if let Err(error) = woken {
                let what = format!("t{server} cannot be woken: {}", error.message);
                self.object(Finding::new("liveness", what));
            }
        }
    }

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
