//! Raft messages to replicas on other servers, and their results.
//!
//! ```text
//!   replica ── Update with entries ─────────────▶ UpdateConsensus ──────▶ bulk connection ───┐
//!           ── Heartbeat ───────▶ batch, waits ─▶ Heartbeats ──────────▶ urgent connection ──┤
//!           ── Update without ──▶ batch, sent ──▶ Heartbeats ──────────▶ urgent connection ──┼─▶ one server
//!           ── Vote, RunElection, StartCopy ────▶ one call each ────────▶ urgent connection ─┤
//!           ── consensus_state ─────────────────▶ one call, awaited ────▶ urgent connection ─┘
//!           ◀── Updated, Voted, CopyStarted ───── exactly one for each message that has a reply
//! ```
//!
//! - Two connections to each server, so that a heartbeat never waits behind a megabyte of entries.
//! - Every message is a call in its own task with a deadline. Updates begin on the caller's, so that they leave in the
//!   replica's turn. A stalled server delays only its own replies. The Raft core bounds the number of messages in
//!   flight, because it waits for them.
//! - Heartbeats of many tablets to one server are batched: the first is sent at once, those that follow within
//!   [`RaftTransportConfig::heartbeat_window`] share the next call. An idle server with a thousand tablets makes a few
//!   calls per second. An update without entries that has a waiter (it carries a commit index or asks for the safe
//!   time) is sent at once, together with the waiting heartbeats.

use engine::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::error::{Error, Result};
use engine::ids::{PeerId, TabletId};
use engine::raft::interface::{UpdateRequest, UpdateResponse, VoteRequest, VoteResponse};
use engine::raft::{Peer, RaftEvent, RaftMessage, RaftOptions};
use engine::time::Instant;

use nyala_common::env::Env;
use nyala_common::rpc::client::{CallOptions, Proxy, RpcError};
use nyala_common::security::RpcCaller;
use nyala_common::spans::{SpanContext, SpanOrigin};
use nyala_common::wire::consensus::{self as wire};
use nyala_common::wire::errors::error_from_status;
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::HostPortPb;
use nyala_proto::kudu::consensus::{
    ConsensusRequestPb, ConsensusResponsePb, ConsensusStatePb, GetConsensusStateRequestPb,
    GetConsensusStateResponsePb, HeartbeatsRequestPb, HeartbeatsResponsePb, IncludeHealthReport,
    RunLeaderElectionRequestPb, RunLeaderElectionResponsePb, StartTabletCopyRequestPb,
    StartTabletCopyResponsePb, VoteResponsePb,
};

/// Service of all these calls.
pub const SERVICE: &str = "kudu.consensus.ConsensusService";
/// Lower limit of the urgent timeout: a short stall of a busy server must not count as a failure, even with short
/// election timeouts.
const URGENT_TIMEOUT_MIN: Duration = Duration::from_millis(300);

/// Timeouts of the messages between replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaftTransportConfig {
    /// Deadline of calls that send entries or start a copy (`consensus_rpc_timeout_ms`).
    pub bulk_timeout: Duration,
    /// Deadline of heartbeats and votes.
    pub urgent_timeout: Duration,
    /// Time for which a heartbeat may wait to share a call to the same server.
    pub heartbeat_window: Duration,
}

impl RaftTransportConfig {
    /// Returns timeouts that match `options`.
    pub fn of(options: &RaftOptions, bulk_timeout: Duration) -> RaftTransportConfig {
        let urgent_timeout = options.election_timeout().max(URGENT_TIMEOUT_MIN);
        RaftTransportConfig {
            bulk_timeout,
            urgent_timeout,
            heartbeat_window: options.heartbeat_interval / 20,
        }
    }
}

/// Callback for the results of a replica's messages.
pub type RaftEventSink = Arc<dyn Fn(RaftEvent) + Send + Sync>;

/// Transport to all other servers, one per server and shared by its replicas. Cheap to clone.
#[derive(Clone)]
pub struct RaftTransport {
    shared: Arc<Shared>,
}

struct Shared {
    env: Env,
    config: RaftTransportConfig,
    caller: RpcCaller,
    links: Mutex<BTreeMap<(PeerId, String), Arc<PeerLink>>>,
}

impl RaftTransport {
    /// Creates a transport that calls other servers as `caller`.
    pub fn new(env: &Env, config: RaftTransportConfig, caller: RpcCaller) -> RaftTransport {
        let (env, links) = (env.clone(), Mutex::default());
        RaftTransport { shared: Arc::new(Shared { env, config, caller, links }) }
    }

    /// Returns the time for which a heartbeat may wait to share a call to the same server.
    pub fn heartbeat_window(&self) -> Duration {
        self.shared.config.heartbeat_window
    }

    /// Sends `message` of `tablet` to the replica at `to`, below the span of a sampled call. `event_sink` receives
    /// exactly one event for a message that has a reply, even if the call fails.
    pub fn send(
        &self,
        tablet: TabletId,
        to: &Peer,
        (message, span): (RaftMessage, Option<SpanContext>),
        event_sink: &RaftEventSink,
    ) {
        let (env, link, event_sink) = (&self.shared.env, self.shared.link(to), event_sink.clone());
        let dest = to.id;
        match message {
            RaftMessage::Heartbeat(request) => link.heartbeat(request, event_sink),
            RaftMessage::Update(request) if request.entries.is_empty() => {
                link.send_with_heartbeats(request, event_sink)
            }
            RaftMessage::Update(request) => env.begin("peer update", async move {
                let sent = request.sent;
                let result = link.update(request, span).await;
                event_sink(RaftEvent::Updated { peer: dest, sent, result });
            }),
            RaftMessage::Vote(request) => drop(env.spawn("peer vote", async move {
                let (term, is_pre_vote) = (request.term, request.is_pre_vote);
                let result = link.vote(&request).await;
                event_sink(RaftEvent::Voted { peer: dest, term, is_pre_vote, result });
            })),
            RaftMessage::RunElection => drop(env.spawn("peer election", async move {
                if let Err(error) = link.run_election(tablet, dest).await {
                    tracing::warn!(%tablet, peer = %dest, %error, "leadership transfer failed");
                }
            })),
            RaftMessage::StartCopy { source, term } => drop(env.spawn("peer copy", async move {
                let result = link.start_copy(tablet, dest, &source, term).await;
                event_sink(RaftEvent::CopyStarted { peer: dest, result });
            })),
        }
    }

    /// Asks the replica of `tablet` at `to` for its view of its group: a leader's has the health of the members. An
    /// error unless the replica runs, and replies in the time of a heartbeat.
    pub async fn consensus_state(&self, tablet: TabletId, to: &Peer) -> Result<ConsensusStatePb> {
        self.shared.link(to).consensus_state(tablet).await
    }
}

impl Shared {
    fn link(&self, to: &Peer) -> Arc<PeerLink> {
        let target = format!("{}:{}", to.host, to.port);
        let mut links = self.links.lock();
        let link = |target: String| {
            let proxy = || Proxy::new(self.env.clone(), target.as_str(), &self.caller);
            let (env, config) = (self.env.clone(), self.config);
            let queue = Mutex::default();
            Arc::new(PeerLink { dest: to.id, env, config, bulk: proxy(), urgent: proxy(), queue })
        };
        links.entry((to.id, target.clone())).or_insert_with(|| link(target)).clone()
    }
}

/// Connections to one other server.
struct PeerLink {
    dest: PeerId,
    env: Env,
    config: RaftTransportConfig,
    bulk: Proxy,
    urgent: Proxy,
    queue: Mutex<HeartbeatBatch>,
}

/// Heartbeats that wait for the next call.
#[derive(Default)]
struct HeartbeatBatch {
    waiting: Vec<Heartbeat>,
    /// True while a task sends the waiting heartbeats.
    sending: bool,
}

struct Heartbeat {
    sent: u64,
    request: ConsensusRequestPb,
    event_sink: RaftEventSink,
}

/// Largest number of heartbeats in one call.
const BATCH_MAX: usize = 1000;

impl PeerLink {
    fn lock_batch(&self) -> MutexGuard<'_, HeartbeatBatch> {
        self.queue.lock()
    }

    fn heartbeat(self: &Arc<PeerLink>, request: UpdateRequest, event_sink: RaftEventSink) {
        let sent = request.sent;
        let (request, _) = wire::update_to_pb(request);
        let mut queue = self.lock_batch();
        queue.waiting.push(Heartbeat { sent, request, event_sink });
        if !std::mem::replace(&mut queue.sending, true) {
            let link = self.clone();
            drop(queue);
            self.env.spawn("peer heartbeats", async move { link.send_heartbeats().await });
        }
    }

    /// Sends an update without entries now, together with the waiting heartbeats.
    fn send_with_heartbeats(self: &Arc<PeerLink>, request: UpdateRequest, event_sink: RaftEventSink) {
        let sent = request.sent;
        let (request, _) = wire::update_to_pb(request);
        let mut batch = vec![Heartbeat { sent, request, event_sink }];
        {
            let mut queue = self.lock_batch();
            let more = queue.waiting.len().min(BATCH_MAX - 1);
            batch.extend(queue.waiting.drain(..more));
        }
        let link = self.clone();
        self.env.begin("peer heartbeat call", async move { link.call_heartbeats(batch).await });
    }

    /// Sends the waiting heartbeats until the batch stays empty for one window. No call waits for the previous one.
    async fn send_heartbeats(self: Arc<PeerLink>) {
        while let Some(batch) = self.next_batch() {
            let link = self.clone();
            self.env.spawn("peer heartbeat call", async move { link.call_heartbeats(batch).await });
            self.env.sleep(self.config.heartbeat_window).await;
        }
    }

    fn next_batch(&self) -> Option<Vec<Heartbeat>> {
        let mut queue = self.lock_batch();
        let more = queue.waiting.len().min(BATCH_MAX);
        queue.sending = more > 0;
        (more > 0).then(|| queue.waiting.drain(..more).collect())
    }

    async fn call_heartbeats(&self, batch: Vec<Heartbeat>) {
        let (mut updates, mut waiting) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for Heartbeat { sent, request, event_sink } in batch {
            updates.push(request);
            waiting.push((sent, event_sink));
        }
        let request = HeartbeatsRequestPb { dest_uuid: Some(id_bytes(&self.dest)), updates };
        let response: Result<HeartbeatsResponsePb> = self.urgent("Heartbeats", &request).await;
        let replies = response.and_then(|response| match &response.error {
            Some(error) => Err(error_from_status(&error.status)),
            None if response.responses.len() == waiting.len() => Ok(response.responses),
            None => Err(Error::invalid(format!(
                "{} responses to {} heartbeats",
                response.responses.len(),
                waiting.len()
            ))),
        });
        for (at, (sent, event_sink)) in waiting.into_iter().enumerate() {
            let result = replies.as_ref().map_err(Error::clone).and_then(|all| self.answer(&all[at]));
            event_sink(RaftEvent::Updated { peer: self.dest, sent, result });
        }
    }

    fn answer(&self, pb: &ConsensusResponsePb) -> Result<UpdateResponse> {
        wire::update_response_from_pb(pb, self.dest)
    }

    async fn update(&self, request: UpdateRequest, span: Option<SpanContext>) -> Result<UpdateResponse> {
        let (request, sidecars) = wire::update_to_pb(request);
        let deadline = self.deadline(self.config.bulk_timeout);
        let span = span.map_or(SpanOrigin::None, SpanOrigin::Child);
        let options = CallOptions { span, ..CallOptions::default() };
        let call =
            self.bulk.call_with_sidecars(SERVICE, "UpdateConsensus", &request, sidecars, deadline, options);
        let response = call.await.map_err(failed)?;
        self.answer(&response.message)
    }

    async fn vote(&self, request: &VoteRequest) -> Result<VoteResponse> {
        let request = wire::vote_to_pb(request);
        let response: VoteResponsePb = self.urgent("RequestConsensusVote", &request).await?;
        wire::vote_response_from_pb(&response, self.dest)
    }

    async fn run_election(&self, tablet: TabletId, dest: PeerId) -> Result<()> {
        let (dest_uuid, tablet_id) = (Some(id_bytes(&dest)), id_bytes(&tablet));
        let request = RunLeaderElectionRequestPb { dest_uuid, tablet_id };
        let response: RunLeaderElectionResponsePb = self.urgent("RunLeaderElection", &request).await?;
        response.error.map_or(Ok(()), |error| Err(error_from_status(&error.status)))
    }

    async fn start_copy(&self, tablet: TabletId, dest: PeerId, source: &Peer, term: u64) -> Result<()> {
        let request = StartTabletCopyRequestPb {
            dest_uuid: Some(id_bytes(&dest)),
            tablet_id: id_bytes(&tablet),
            copy_peer_uuid: id_bytes(&source.id),
            copy_peer_addr: HostPortPb { host: source.host.clone(), port: source.port.into() },
            caller_term: Some(term as i64),
        };
        let deadline = self.deadline(self.config.bulk_timeout);
        let options = CallOptions::default();
        let call = self.urgent.call(SERVICE, "StartTabletCopy", &request, deadline, options);
        let response: StartTabletCopyResponsePb = call.await.map_err(failed)?.message;
        response.error.map_or(Ok(()), |error| Err(error_from_status(&error.status)))
    }

    async fn consensus_state(&self, tablet: TabletId) -> Result<ConsensusStatePb> {
        let request = GetConsensusStateRequestPb {
            dest_uuid: Some(id_bytes(&self.dest)),
            tablet_ids: vec![id_bytes(&tablet)],
            report_health: Some(IncludeHealthReport::IncludeHealthReport as i32),
        };
        let response: GetConsensusStateResponsePb = self.urgent("GetConsensusState", &request).await?;
        if let Some(error) = response.error {
            return Err(error_from_status(&error.status));
        }
        let state = response.tablets.into_iter().next().and_then(|info| info.cstate);
        state.ok_or_else(|| {
            Error::not_found(format!("tablet {tablet} has no running replica at {}", self.dest))
        })
    }

    async fn urgent<Q, R>(&self, method: &str, request: &Q) -> Result<R>
    where
        Q: prost::Message,
        R: prost::Message + Default,
    {
        let deadline = self.deadline(self.config.urgent_timeout);
        let call = self.urgent.call(SERVICE, method, request, deadline, CallOptions::default());
        call.await.map(|response| response.message).map_err(failed)
    }

    fn deadline(&self, timeout: Duration) -> Instant {
        self.env.now().mono.after(timeout)
    }
}

/// Converts a failed call to a retryable error: the server may be busy, down or unreachable, and the core retries.
fn failed(error: RpcError) -> Error {
    Error::not_ready(error.to_string())
}

#[cfg(test)]
mod tests;
