//! Messages to replicas on other servers, and what became of them.
//!
//! ```text
//!   replica ── Update with entries ─────────────▶ UpdateConsensus ──────▶ bulk connection ───┐
//!           ── Heartbeat ───────▶ lane, gathered ▶ Heartbeats ──────────▶ urgent connection ─┤
//!           ── Update without ──▶ lane, at once ─▶ Heartbeats ──────────▶ urgent connection ─┼─▶ one server
//!           ── Vote, RunElection, StartCopy ────▶ one call each ────────▶ urgent connection ─┘
//!           ◀── Updated, Voted, CopyStarted ───── exactly one for each that has an answer
//! ```
//!
//! - Two connections to each server, so that a heartbeat never waits behind a megabyte of entries.
//! - Every message is a call of its own task with a deadline: a server that hangs holds up nobody but its own
//!   answers, and how many messages are under way is bounded by the core, which waits for them.
//! - Heartbeats of many tablets to one server travel together: the first goes at once, those that follow within
//!   [`PeersConfig::gather`] go with the next call. An idle server with a thousand tablets makes a few calls a second.
//!   An update for which somebody waits (it tells of a commit or asks about the safe time) goes at once, and takes
//!   along what waits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use engine::error::{Error, Result};
use engine::ids::{PeerId, TabletId};
use engine::raft::message::{UpdateRequest, UpdateResponse, VoteRequest, VoteResponse};
use engine::raft::{Event, Message, Peer, RaftOptions};
use engine::time::Instant;

use crate::env::Env;
use crate::proto::kudu::HostPortPb;
use crate::proto::kudu::consensus::{
    ConsensusRequestPb, ConsensusResponsePb, HeartbeatsRequestPb, HeartbeatsResponsePb,
    RunLeaderElectionRequestPb, RunLeaderElectionResponsePb, StartTabletCopyRequestPb,
    StartTabletCopyResponsePb, VoteResponsePb,
};
use crate::rpc::client::{CallOptions, Proxy, RpcError};
use crate::wire::consensus::{self as wire};
use crate::wire::convert::id_bytes;
use crate::wire::status::error_from_status;

/// The service that all these calls are of.
pub const SERVICE: &str = "kudu.consensus.ConsensusService";
/// The name servers call each other by.
const USER: &str = "nyala";

/// Servers that are busy for a moment are not away, however impatient the groups are.
const URGENT_TIMEOUT_MIN: Duration = Duration::from_millis(300);

/// Times of the messages between replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeersConfig {
    /// How long a server has to take entries, or to begin a copy (`consensus_rpc_timeout_ms`).
    pub bulk_timeout: Duration,
    /// How long a heartbeat or a vote is worth waiting for.
    pub urgent_timeout: Duration,
    /// How long a heartbeat may wait for others to the same server.
    pub gather: Duration,
}

impl PeersConfig {
    /// Times that fit those of the groups.
    pub fn of(options: &RaftOptions, bulk_timeout: Duration) -> PeersConfig {
        let urgent_timeout = options.election_timeout().max(URGENT_TIMEOUT_MIN);
        PeersConfig { bulk_timeout, urgent_timeout, gather: options.heartbeat_interval / 20 }
    }
}

/// Takes what became of a replica's messages.
pub type Post = Arc<dyn Fn(Event) + Send + Sync>;

/// The way to all other servers; one for each server, shared by its replicas. Cheap to clone.
#[derive(Clone)]
pub struct Peers {
    shared: Arc<Shared>,
}

struct Shared {
    env: Env,
    config: PeersConfig,
    links: Mutex<BTreeMap<(PeerId, String), Arc<Link>>>,
}

impl Peers {
    pub fn new(env: &Env, config: PeersConfig) -> Peers {
        Peers { shared: Arc::new(Shared { env: env.clone(), config, links: Mutex::default() }) }
    }

    /// How long a heartbeat may wait for others to the same server.
    pub fn gather(&self) -> Duration {
        self.shared.config.gather
    }

    /// Sends `message` of the replica `me` of `tablet` to `to`. `post` gets exactly one event for a message that
    /// has an answer, whatever happens.
    pub fn send(&self, tablet: TabletId, to: &Peer, message: Message, post: &Post) {
        let (env, link, post) = (&self.shared.env, self.shared.link(to), post.clone());
        let dest = to.id;
        match message {
            Message::Heartbeat(request) => link.heartbeat(request, post),
            Message::Update(request) if request.entries.is_empty() => link.tell(request, post),
            Message::Update(request) => drop(env.spawn("peer update", async move {
                let sent = request.sent;
                let result = link.update(request).await;
                post(Event::Updated { peer: dest, sent, result });
            })),
            Message::Vote(request) => drop(env.spawn("peer vote", async move {
                let (term, pre_election) = (request.term, request.pre_election);
                let result = link.vote(&request).await;
                post(Event::Voted { peer: dest, term, pre_election, result });
            })),
            Message::RunElection => drop(env.spawn("peer election", async move {
                if let Err(error) = link.run_election(tablet, dest).await {
                    tracing::warn!(%tablet, peer = %dest, %error, "leadership could not be handed over");
                }
            })),
            Message::StartCopy { source, term } => drop(env.spawn("peer copy", async move {
                let result = link.start_copy(tablet, dest, &source, term).await;
                post(Event::CopyStarted { peer: dest, result });
            })),
        }
    }
}

impl Shared {
    fn link(&self, to: &Peer) -> Arc<Link> {
        let target = format!("{}:{}", to.host, to.port);
        let mut links = self.links.lock().expect("nobody panics while holding the links");
        let link = |target: String| {
            let proxy = || Proxy::new(self.env.clone(), target.as_str(), USER);
            let (env, config) = (self.env.clone(), self.config);
            let lane = Mutex::default();
            Arc::new(Link { dest: to.id, env, config, bulk: proxy(), urgent: proxy(), lane })
        };
        links.entry((to.id, target.clone())).or_insert_with(|| link(target)).clone()
    }
}

/// One other server.
struct Link {
    dest: PeerId,
    env: Env,
    config: PeersConfig,
    bulk: Proxy,
    urgent: Proxy,
    lane: Mutex<Lane>,
}

/// Heartbeats that wait for the next call.
#[derive(Default)]
struct Lane {
    waiting: Vec<Heartbeat>,
    /// A task sends what waits.
    sending: bool,
}

struct Heartbeat {
    sent: u64,
    request: ConsensusRequestPb,
    post: Post,
}

/// Heartbeats in one call at most.
const BATCH_MAX: usize = 1000;

impl Link {
    fn lane(&self) -> MutexGuard<'_, Lane> {
        self.lane.lock().expect("nobody panics while holding a lane")
    }

    fn heartbeat(self: &Arc<Link>, request: UpdateRequest, post: Post) {
        let sent = request.sent;
        let (request, _) = wire::update_to_pb(request);
        let mut lane = self.lane();
        lane.waiting.push(Heartbeat { sent, request, post });
        if !std::mem::replace(&mut lane.sending, true) {
            let link = self.clone();
            drop(lane);
            self.env.spawn("peer heartbeats", async move { link.send_heartbeats().await });
        }
    }

    /// Sends an update without entries now, with the heartbeats that wait.
    fn tell(self: &Arc<Link>, request: UpdateRequest, post: Post) {
        let sent = request.sent;
        let (request, _) = wire::update_to_pb(request);
        let mut batch = vec![Heartbeat { sent, request, post }];
        {
            let mut lane = self.lane();
            let more = lane.waiting.len().min(BATCH_MAX - 1);
            batch.extend(lane.waiting.drain(..more));
        }
        let link = self.clone();
        self.env.spawn("peer heartbeat call", async move { link.call_heartbeats(batch).await });
    }

    /// Sends what waits, and what comes until the lane stays empty for as long as heartbeats are gathered. No call
    /// waits for the one before.
    async fn send_heartbeats(self: Arc<Link>) {
        while let Some(batch) = self.next_batch() {
            let link = self.clone();
            self.env.spawn("peer heartbeat call", async move { link.call_heartbeats(batch).await });
            self.env.sleep(self.config.gather).await;
        }
    }

    fn next_batch(&self) -> Option<Vec<Heartbeat>> {
        let mut lane = self.lane();
        let more = lane.waiting.len().min(BATCH_MAX);
        lane.sending = more > 0;
        (more > 0).then(|| lane.waiting.drain(..more).collect())
    }

    async fn call_heartbeats(&self, batch: Vec<Heartbeat>) {
        let (mut updates, mut waiting) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for Heartbeat { sent, request, post } in batch {
            updates.push(request);
            waiting.push((sent, post));
        }
        let request = HeartbeatsRequestPb { dest_uuid: Some(id_bytes(&self.dest)), updates };
        let response: Result<HeartbeatsResponsePb> = self.urgent("Heartbeats", &request).await;
        let answers = response.and_then(|response| match &response.error {
            Some(error) => Err(error_from_status(&error.status)),
            None if response.responses.len() == waiting.len() => Ok(response.responses),
            None => Err(Error::invalid(format!(
                "{} answers to {} heartbeats",
                response.responses.len(),
                waiting.len()
            ))),
        });
        for (at, (sent, post)) in waiting.into_iter().enumerate() {
            let result = answers.as_ref().map_err(Error::clone).and_then(|all| self.answer(&all[at]));
            post(Event::Updated { peer: self.dest, sent, result });
        }
    }

    fn answer(&self, pb: &ConsensusResponsePb) -> Result<UpdateResponse> {
        wire::update_response_from_pb(pb, self.dest)
    }

    async fn update(&self, request: UpdateRequest) -> Result<UpdateResponse> {
        let (request, sidecars) = wire::update_to_pb(request);
        let deadline = self.deadline(self.config.bulk_timeout);
        let call = self.bulk.call_with_sidecars(SERVICE, "UpdateConsensus", &request, sidecars, deadline);
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

/// No answer: the server may be busy, away or cut off. The core tries on.
fn failed(error: RpcError) -> Error {
    Error::not_ready(error.to_string())
}

#[cfg(test)]
mod tests;
