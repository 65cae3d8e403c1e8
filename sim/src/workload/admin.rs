//! Operator actions during the workload: leaders step down, elections start, servers quiesce and are inspected.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use engine::error::Error;
use engine::time::Instant;
use nyala_client::location_cache::TabletLocation;
use nyala_common::env::Env;
use nyala_common::rpc::client::{CallOptions, Proxy, RpcError};
use nyala_proto::kudu::consensus::{
    LeaderStepDownMode, LeaderStepDownRequestPb, LeaderStepDownResponsePb, RunLeaderElectionRequestPb,
    RunLeaderElectionResponsePb,
};
use nyala_proto::kudu::server::{DumpMemTrackersRequestPb, DumpMemTrackersResponsePb};
use nyala_proto::kudu::tserver::{QuiesceTabletServerRequestPb, QuiesceTabletServerResponsePb};
use nyala_proto::kudu::{AppStatusPb, MemTrackerPb};

use super::client_actor::ClientActor;
use super::scans::spec;
use super::{TSERVER_PORT, Workload, until};
use crate::history::{CallOutcome, ClientRequest, PendingCall, TableNo};
use crate::oracle::Violation;
use crate::oracle::memory_limit::{self, MemoryReading};
use crate::security::caller;
use crate::wire::client::{ADMIN, CONSENSUS, GENERIC};
use sim_plan::ClientOp;

/// Makes one call to a server, on its own connection.
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
    let proxy = Proxy::new(env.clone(), address, caller(env, "simulator"));
    let deadline = env.now().mono.after(within);
    let called = proxy.call(service, method, request, deadline, CallOptions::default()).await;
    proxy.disconnect();
    let failed = |error: RpcError| {
        let what = format!("{method} at {address}: {error:?}");
        // The oracle of operators' calls asks for a missing reply.
        if matches!(error, RpcError::TimedOut { .. }) {
            Error::timed_out(what)
        } else {
            Error::not_ready(what)
        }
    };
    called.map(|response| response.message).map_err(failed)
}

impl ClientActor {
    /// Returns a tablet of a table, by its index.
    pub(super) async fn tablet(&mut self, number: TableNo, at: u8) -> Result<TabletLocation, Error> {
        let table = self.table(number).await;
        let tokens = table.scan_tokens(&spec()).await?;
        let none = || Error::not_found(format!("table {number} has no tablet"));
        let token = tokens.get(usize::from(at) % tokens.len().max(1)).ok_or_else(none)?;
        Ok(token.tablet().clone())
    }

    /// Records the outcome of a requested change.
    pub(super) fn record_change(&mut self, what: PendingCall, result: Result<(), Error>) {
        self.workload.count(|counts| counts.changes += u64::from(result.is_ok()));
        self.answer(
            what,
            result.map_or_else(|error| CallOutcome::Unknown(error.into()), |()| CallOutcome::Done),
        );
    }

    pub(super) async fn step_down(&mut self, number: TableNo, at: u8) {
        let what = self
            .invoke(ClientRequest::Operator(format!("table {number} tablet {at}: the leader steps down")));
        let outcome = self.try_step_down(number, at).await;
        self.record_change(what, outcome);
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
}

impl ClientActor {
    pub(super) async fn elect(&mut self, number: TableNo, at: u8, replica: u8) {
        let what = format!("table {number} tablet {at}: replica {replica} is to stand for election");
        let what = self.invoke(ClientRequest::Operator(what));
        let outcome = self.try_elect(number, at, replica).await;
        self.record_change(what, outcome);
    }

    async fn try_elect(&mut self, number: TableNo, at: u8, replica: u8) -> Result<(), Error> {
        let tablet = self.tablet(number, at).await?;
        let none = || Error::not_ready("the tablet has no replica");
        let chosen = tablet.replicas.get(usize::from(replica) % tablet.replicas.len().max(1));
        let chosen = chosen.ok_or_else(none)?;
        let request = RunLeaderElectionRequestPb {
            dest_uuid: Some(Bytes::from(chosen.server_id.clone())),
            tablet_id: Bytes::from(tablet.id.clone()),
        };
        let within = self.workload.plan().cluster.rpc_timeout;
        let method = "RunLeaderElection";
        let response: RunLeaderElectionResponsePb =
            call(&self.env, &chosen.address, CONSENSUS, method, &request, within).await?;
        refused(response.error.map(|error| error.status))
    }
}

impl ClientActor {
    /// Makes a server quiesce, and ends that after a while. A server that restarts meanwhile has forgotten it.
    pub(super) async fn quiesce(&mut self, server: u8, span: Duration) {
        let what = self.invoke(ClientRequest::Operator(format!("t{server} quiesces for {span:?}")));
        let begun = self.workload.set_quiescing(&self.env, server, true).await;
        self.env.sleep(span).await;
        // A server that cannot be reached now stops quiescing after the faults have ended.
        let ended = self.workload.set_quiescing(&self.env, server, false).await;
        self.record_change(what, begun.and(ended));
    }

    /// Requests a server's memory page, whose total must be below what the plan allows.
    pub(super) async fn inspect(&mut self, server: u8) {
        let address = format!("t{server}:{TSERVER_PORT}");
        let (request, within) =
            (DumpMemTrackersRequestPb::default(), self.workload.plan().cluster.rpc_timeout);
        let asked = call(&self.env, &address, GENERIC, "DumpMemTrackers", &request, within).await;
        // A server that is down holds nothing.
        let Ok(DumpMemTrackersResponsePb { root_tracker: Some(root) }) = asked else { return };
        let bytes = |tracker: &MemTrackerPb| tracker.current_consumption().unsigned_abs();
        let parts = root.child_trackers.iter().map(|part| (part.id().to_string(), bytes(part))).collect();
        let held = MemoryReading { server: format!("t{server}"), bytes: bytes(&root), parts };
        let (limit, clients) = (self.workload.plan().cluster.memory, self.workload.plan().clients.len());
        memory_limit::check(&held, limit, clients)
            .into_iter()
            .for_each(|violation| self.workload.report_violation(violation));
    }
}

pub(super) fn refused(status: Option<AppStatusPb>) -> Result<(), Error> {
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

    /// Ends the quiescing of every server, if the plan has any.
    pub(super) async fn end_quiescing(&self, env: &Env, deadline: Instant) {
        let ops = self.plan().clients.iter().flat_map(|client| &client.ops);
        let servers = ops.filter_map(|op| match op {
            ClientOp::Quiesce { server, .. } => Some(*server),
            _ => None,
        });
        for server in servers.collect::<BTreeSet<u8>>() {
            let left = deadline.since(env.now().mono);
            let woken = until(env, left, async || self.set_quiescing(env, server, false).await).await;
            if let Err(error) = woken {
                let what = format!("t{server} cannot end quiescing: {}", error.message);
                self.report_violation(Violation::new("liveness", what));
            }
        }
    }
}
