//! Replicas of one tablet on disks in memory, with links between them that deliver on request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use engine::cfile::cache::PageCache;
use engine::config::TabletConfig;
use engine::disk::mem::MemDisk;
use engine::error::{Error, Result};
use engine::ids::{PeerId, Uuid};
use engine::note::Note;
use engine::raft::interface::{UpdateRequest, VoteRequest};
use engine::raft::{self, Peer, RaftConfig, RaftMessage, RaftOptions, RaftReply, Role};
use engine::replica::{
    JobKind, JobStep, Op, OpReply, OpResult, Replica, ReplicaEffects, ReplicaEvent, ReplicaSetup, RequestId,
    consensus_meta_store, write_log,
};
use engine::schema::partition::{Partition, PartitionSchema};
use engine::schema::{ColumnSchema, Schema};
use engine::tablet::superblock::Superblock;
use engine::time::{ClockReading, HybridClock, Instant, Timestamp, WallTime};
use engine::wal::Wal;

use crate::world::TABLET;

/// A message in flight between two servers.
pub enum ReplicaMessage {
    Update {
        from: usize,
        to: usize,
        request: UpdateRequest,
    },
    Vote {
        from: usize,
        to: usize,
        request: VoteRequest,
    },
    Elect {
        to: usize,
    },
    /// A reply, or the error that there is none.
    Back {
        to: usize,
        event: raft::RaftEvent,
    },
}

impl ReplicaMessage {
    /// Returns sender and receiver. The sender is `None` if the parcel needs no link.
    fn ends(&self) -> (Option<usize>, usize) {
        match self {
            ReplicaMessage::Update { from, to, .. } | ReplicaMessage::Vote { from, to, .. } => {
                (Some(*from), *to)
            }
            ReplicaMessage::Elect { to } | ReplicaMessage::Back { to, .. } => (None, *to),
        }
    }
}

/// Receiver of a replica's reply.
enum ReplyTarget {
    Update { from: usize, sent: u64 },
    Vote { from: usize, term: u64, is_pre_vote: bool },
}

impl ReplyTarget {
    fn from(&self) -> usize {
        match self {
            ReplyTarget::Update { from, .. } | ReplyTarget::Vote { from, .. } => *from,
        }
    }

    /// Returns the server and the event that tell it that `server` cannot reply.
    fn lost(&self, server: usize) -> (usize, raft::RaftEvent) {
        let (peer, unreachable) = (peer_id(server), Error::not_ready("the server cannot be reached"));
        match *self {
            ReplyTarget::Update { from, sent } => {
                (from, raft::RaftEvent::Updated { peer, sent, result: Err(unreachable) })
            }
            ReplyTarget::Vote { from, term, is_pre_vote } => {
                (from, raft::RaftEvent::Voted { peer, term, is_pre_vote, result: Err(unreachable) })
            }
        }
    }
}

pub struct Server {
    pub disk: MemDisk,
    pub open: Option<(Replica, Wal)>,
    clock: HybridClock,
    pub out: ReplicaEffects,
    /// True if the log's disk is stalled: writes wait in `out`.
    pub stalled: bool,
    reply_targets: BTreeMap<u64, ReplyTarget>,
    tickets: u64,
    /// Requests of proposals without a reply.
    proposed: BTreeMap<u64, (Vec<u8>, i64)>,
    /// Number of starts.
    pub life: u64,
    /// Results with which the node would reply to retries, by client and request number.
    pub tracker: BTreeMap<(Vec<u8>, i64), (Timestamp, OpResult)>,
}

pub struct Cluster {
    pub servers: Vec<Server>,
    pub config: TabletConfig,
    pub now: Duration,
    pub wires: VecDeque<ReplicaMessage>,
    /// Servers that are partitioned from all others.
    pub cut: BTreeSet<usize>,
    /// Replies to proposals, by server.
    pub done: Vec<(usize, OpReply)>,
    pub notes: Vec<(usize, Note)>,
}

pub fn peer_id(server: usize) -> PeerId {
    Uuid([b'a' + server as u8; 16])
}

fn server_of(id: PeerId) -> usize {
    usize::from(id.0[0] - b'a')
}

fn peer(server: usize) -> Peer {
    Peer::voter(peer_id(server), format!("host{server}"), 7050)
}

impl Cluster {
    /// Creates servers with a replica each; there is no leader yet.
    pub fn new(count: usize, schema: Schema, config: TabletConfig) -> Result<Cluster> {
        let mut cluster = Cluster {
            servers: Vec::new(),
            config,
            now: Duration::from_secs(1),
            wires: VecDeque::new(),
            cut: BTreeSet::new(),
            done: Vec::new(),
            notes: Vec::new(),
        };
        let members = RaftConfig::initial((0..count).map(peer).collect());
        for server in 0..count {
            let range_columns = schema.key_columns().iter().map(|c: &ColumnSchema| c.id).collect();
            let how = PartitionSchema { range_columns, ..PartitionSchema::default() };
            let meta =
                Superblock::new(TABLET, Uuid([9; 16]), "t", schema.clone(), 0, how, Partition::default());
            let disk = MemDisk::new(server as u64);
            let shared = Arc::new(disk.clone());
            let (config, cache) = (cluster.config.clone(), PageCache::new(1 << 20));
            let setup = cluster.setup(server, 1);
            let open = Replica::create(shared.clone(), shared, meta, members.clone(), setup, config, cache)?;
            cluster.servers.push(Server {
                disk,
                open: Some(open),
                clock: HybridClock::new(1 << 40),
                out: ReplicaEffects::default(),
                stalled: false,
                reply_targets: BTreeMap::new(),
                tickets: 0,
                proposed: BTreeMap::new(),
                life: 1,
                tracker: BTreeMap::new(),
            });
            cluster.start(server);
        }
        Ok(cluster)
    }

    fn setup(&self, server: usize, life: u64) -> ReplicaSetup {
        let seed = (server as u64) << 32 | life;
        ReplicaSetup { me: peer(server), options: RaftOptions::tiny(), seed }
    }

    pub fn reading(&self) -> ClockReading {
        let wall = WallTime { micros: self.now.as_micros() as u64, error_micros: 0 };
        ClockReading { mono: Instant(self.now.as_nanos() as u64), wall }
    }

    fn start(&mut self, server: usize) {
        let now = self.reading();
        let Server { open, clock, out, .. } = &mut self.servers[server];
        let (replica, _) = open.as_mut().expect("it was just opened");
        clock.pass(replica.tablet().mvcc().newest());
        replica.start(now, &mut || clock.now(now.wall), out);
    }

    pub fn is_up(&self, server: usize) -> bool {
        self.servers[server].open.is_some()
    }

    pub fn replica(&self, server: usize) -> &Replica {
        &self.servers[server].open.as_ref().expect("the server is up").0
    }

    pub fn step(&mut self, server: usize, event: impl Into<ReplicaEvent>) {
        let now = self.reading();
        let Server { open, clock, out, .. } = &mut self.servers[server];
        let Some((replica, _)) = open else { return };
        replica.step(now, event, &mut || clock.now(now.wall), out);
        clock.pass(out.seen);
    }

    /// Proposes a client's operation as a node does: a known result is returned without a proposal.
    pub fn propose(&mut self, server: usize, op: Op, request: Option<RequestId>) -> u64 {
        self.servers[server].tickets += 1;
        let ticket = self.servers[server].tickets;
        let key = request.as_ref().map(|request| (request.client.clone(), request.seq));
        if let Some(key) = key {
            if let Some((timestamp, result)) = self.servers[server].tracker.get(&key).cloned() {
                let (op_id, result) = (engine::ids::OpId::MIN, Ok(result));
                self.done.push((server, OpReply { ticket, op_id, timestamp, result }));
                return ticket;
            }
            self.servers[server].proposed.insert(ticket, key);
        }
        self.step(server, ReplicaEvent::Propose { ticket, op, request });
        ticket
    }

    /// Applies the effects of a server's steps.
    pub fn apply_effects(&mut self, server: usize) {
        let now = self.reading();
        let Server { open, out, .. } = &mut self.servers[server];
        if let Some((replica, _)) = open {
            replica.flush(now, out);
        }
        let Server { disk, out, .. } = &mut self.servers[server];
        if let Some((number, meta)) = out.meta.take() {
            match consensus_meta_store::store(disk, &meta) {
                Ok(()) => self.step(server, raft::RaftEvent::MetaPersisted(number)),
                Err(error) => self.step(server, ReplicaEvent::MetaFailed(error)),
            }
        }
        self.send(server);
        let Server { open, out, stalled, .. } = &mut self.servers[server];
        let Some((_, wal)) = open.as_mut().filter(|_| !*stalled) else { return };
        let before = wal.last_op();
        let written = write_log(wal, out.log.drain(..))
            .and_then(|()| if wal.last_op() == before { Ok(()) } else { wal.sync() });
        let (last, reads) = (wal.last_op(), std::mem::take(&mut out.read_log));
        match written {
            Ok(()) if last == before => {}
            Ok(()) => self.step(server, raft::RaftEvent::Persisted(last)),
            Err(error) => self.step(server, ReplicaEvent::LogFailed(error)),
        }
        for read in reads {
            let (_, wal) = self.servers[server].open.as_ref().expect("it is up");
            let result = wal.read(read.from, read.max_bytes);
            self.step(server, raft::RaftEvent::LogRead { peer: read.peer, from: read.from, result });
        }
        self.send(server);
    }

    /// Puts messages and replies on the links.
    fn send(&mut self, from: usize) {
        let Server { out, reply_targets, tracker, proposed, .. } = &mut self.servers[from];
        for (peer, message) in out.messages.drain(..) {
            let to = server_of(peer.id);
            self.wires.push_back(match message {
                RaftMessage::Update(request) | RaftMessage::Heartbeat(request) => {
                    ReplicaMessage::Update { from, to, request }
                }
                RaftMessage::Vote(request) => ReplicaMessage::Vote { from, to, request },
                RaftMessage::RunElection => ReplicaMessage::Elect { to },
                RaftMessage::StartCopy { .. } => {
                    let result = Err(Error::unsupported("tablet copy is not simulated here"));
                    let event = raft::RaftEvent::CopyStarted { peer: peer.id, result };
                    ReplicaMessage::Back { to: from, event }
                }
            });
        }
        for (ticket, reply) in out.replies.drain(..) {
            let Some(target) = reply_targets.remove(&ticket) else { continue };
            let cut = |to: usize| self.cut.contains(&from) || self.cut.contains(&to);
            let lost = target.lost(from);
            let (peer, (to, _)) = (peer_id(from), &lost);
            let event = match (target, reply) {
                (ReplyTarget::Update { sent, .. }, RaftReply::Update(response)) if !cut(*to) => {
                    raft::RaftEvent::Updated { peer, sent, result: Ok(response) }
                }
                (ReplyTarget::Vote { term, is_pre_vote, .. }, RaftReply::Vote(response)) if !cut(*to) => {
                    raft::RaftEvent::Voted { peer, term, is_pre_vote, result: Ok(response) }
                }
                _ => lost.1,
            };
            self.wires.push_back(ReplicaMessage::Back { to: lost.0, event });
        }
        for done in out.done.drain(..) {
            if let (Some(key), Ok(result)) = (proposed.remove(&done.ticket), &done.result) {
                tracker.insert(key, (done.timestamp, result.clone()));
            }
            self.done.push((from, done));
        }
        self.notes.extend(out.notes.drain(..).map(|note| (from, note)));
        for (request, timestamp, result) in out.completed.drain(..) {
            tracker.insert((request.client, request.seq), (timestamp, result));
        }
    }

    /// Delivers one parcel, or tells its sender that it is lost.
    pub fn deliver(&mut self, parcel: ReplicaMessage) {
        let (from, to) = parcel.ends();
        let lost =
            self.cut.contains(&to) || from.is_some_and(|from| self.cut.contains(&from)) || !self.is_up(to);
        match parcel {
            ReplicaMessage::Back { to, event } => self.step(to, event),
            ReplicaMessage::Elect { to } if !lost => {
                self.step(to, raft::RaftEvent::Elect { ignore_live_leader: true })
            }
            ReplicaMessage::Elect { .. } => {}
            ReplicaMessage::Update { from, to, request } => {
                let target = ReplyTarget::Update { from, sent: request.sent };
                self.ask(to, target, lost, |ticket| raft::RaftEvent::Update { ticket, request });
            }
            ReplicaMessage::Vote { from, to, request } => {
                let (term, is_pre_vote) = (request.term, request.is_pre_vote);
                let target = ReplyTarget::Vote { from, term, is_pre_vote };
                self.ask(to, target, lost, |ticket| raft::RaftEvent::Vote { ticket, request });
            }
        }
    }

    fn ask(
        &mut self,
        to: usize,
        target: ReplyTarget,
        lost: bool,
        event: impl FnOnce(u64) -> raft::RaftEvent,
    ) {
        if lost {
            let (to, event) = target.lost(to);
            return self.wires.push_back(ReplicaMessage::Back { to, event });
        }
        let server = &mut self.servers[to];
        server.tickets += 1;
        let ticket = server.tickets;
        server.reply_targets.insert(ticket, target);
        self.step(to, event(ticket));
    }

    /// Applies effects and delivers messages until nothing is left to do; time does not advance.
    pub fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 10_000, "the cluster never becomes idle");
            (0..self.servers.len()).for_each(|server| self.apply_effects(server));
            match self.wires.pop_front() {
                Some(parcel) => self.deliver(parcel),
                None if (0..self.servers.len()).all(|server| self.is_idle(server)) => return,
                None => {}
            }
        }
    }

    fn is_idle(&self, server: usize) -> bool {
        let Server { out, stalled, open, .. } = &self.servers[server];
        let written = *stalled || (out.log.is_empty() && out.read_log.is_empty());
        let is_sent = out.messages.is_empty() && out.replies.is_empty() && out.meta.is_none();
        open.is_none() || (written && is_sent)
    }

    /// Advances time; servers whose deadline has come are stepped.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            let due = (0..self.servers.len()).filter(|server| self.is_up(*server));
            let due = due.map(|server| (self.replica(server).deadline(), server)).min();
            let next = due.filter(|(at, _)| at.0 <= until.as_nanos() as u64);
            let Some((at, server)) = next else { break };
            self.now = self.now.max(Duration::from_nanos(at.0));
            self.step(server, raft::RaftEvent::Tick);
            self.settle();
        }
        self.now = until;
    }

    pub fn leader(&self) -> Option<usize> {
        let now = self.reading();
        let leads =
            |server: &usize| self.is_up(*server) && self.replica(*server).status(now).role == Role::Leader;
        let all = (0..self.servers.len()).filter(leads);
        all.max_by_key(|server| self.replica(*server).status(now).term)
    }

    /// Cuts the power: unsynced data and the process are lost.
    pub fn crash(&mut self, at: usize) {
        for target in std::mem::take(&mut self.servers[at].reply_targets).into_values() {
            let (to, event) = target.lost(at);
            self.wires.push_back(ReplicaMessage::Back { to, event });
        }
        // Replies to the crashed server have no receiver any more.
        self.wires.retain(|parcel| match parcel {
            ReplicaMessage::Back { to, .. } => *to != at,
            other => other.ends().0 != Some(at),
        });
        self.servers
            .iter_mut()
            .for_each(|server| server.reply_targets.retain(|_, target| target.from() != at));
        let server = &mut self.servers[at];
        server.open = None;
        server.out = ReplicaEffects::default();
        server.proposed.clear();
        server.tracker.clear();
        server.disk.crash();
    }

    /// Opens the replica from the disk after a crash.
    pub fn restart(&mut self, at: usize) -> Result<()> {
        let server = &mut self.servers[at];
        server.life += 1;
        let (life, disk) = (server.life, Arc::new(server.disk.clone()));
        let (config, cache) = (self.config.clone(), PageCache::new(1 << 20));
        let setup = self.setup(at, life);
        let (replica, wal, report) = Replica::open(disk.clone(), disk, TABLET, setup, config, cache)?;
        let server = &mut self.servers[at];
        server.clock = HybridClock::new(1 << 40);
        server.clock.pass(report.last_timestamp);
        for (request, timestamp, result) in report.completed_requests {
            if let Ok(result) = result {
                server.tracker.insert((request.client, request.seq), (timestamp, result));
            }
        }
        self.notes.extend(report.notes.into_iter().map(|note| (at, note)));
        server.open = Some((replica, wal));
        self.start(at);
        Ok(())
    }

    /// Runs a job of a server to its end. Returns false if there was nothing to do.
    pub fn job(&mut self, server: usize, kind: JobKind) -> Result<bool> {
        let (replica, _) = self.servers[server].open.as_mut().expect("the server is up");
        let Some(mut job) = replica.start_job(kind)? else { return Ok(false) };
        let ended = loop {
            let next = match job.step() {
                Ok(JobStep::More) => Ok(()),
                Ok(JobStep::SyncLog) => {
                    let Server { open, out, .. } = &mut self.servers[server];
                    let (_, wal) = open.as_mut().expect("the server is up");
                    let written = write_log(wal, out.log.drain(..)).and_then(|()| wal.sync());
                    let last = wal.last_op();
                    self.step(server, raft::RaftEvent::Persisted(last));
                    written
                }
                Ok(JobStep::Turn) => {
                    let Server { open, out, .. } = &mut self.servers[server];
                    open.as_mut().expect("the server is up").0.job_turn(&mut job, out)
                }
                Ok(JobStep::Done) => break Ok(true),
                Err(error) => Err(error),
            };
            if let Err(error) = next {
                break Err(error);
            }
        };
        let Server { open, out, .. } = &mut self.servers[server];
        open.as_mut().expect("the server is up").0.end_job(job, ended.clone().err(), out);
        ended
    }
}
