//! What replicas of one tablet tell each other, and what the core asks of the one who runs it.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::cmeta::ConsensusMeta;
use super::config::{Change, Config, Member, Peer};
use crate::error::Result;
use crate::ids::{OpId, PeerId, TabletId, Term};
pub use crate::note::raft::RaftNote;
use crate::time::Timestamp;
use crate::wal::Replicate;

/// Kinds of log entries. The core makes and reads NO_OP and CONFIG only.
pub mod kind {
    pub const WRITE: u8 = 1;
    pub const ALTER: u8 = 2;
    pub const NO_OP: u8 = 3;
    /// The payload is [`Config::encode`](super::Config::encode).
    pub const CONFIG: u8 = 4;
}

/// The payload of a no-op: no request id (see `replica/payload.rs`).
pub const NO_OP_PAYLOAD: Bytes = Bytes::from_static(&[0]);

/// A leader's entries, heartbeat and commit index in one (Raft's AppendEntries; Kudu's UpdateConsensus).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateRequest {
    pub tablet: TabletId,
    pub caller: PeerId,
    pub dest: PeerId,
    pub term: Term,
    /// Numbers the caller's requests. It is not for the wire: it comes back with [`Event::Updated`].
    pub sent: u64,
    /// The entry right before `entries`.
    pub preceding: OpId,
    pub entries: Vec<Replicate>,
    /// The leader's commit index. It may be beyond what `dest` has.
    pub committed: u64,
    /// Every member of the group has everything up to here.
    pub all_replicated: u64,
    /// No operation after the last one of this request will have this timestamp or one below.
    pub safe_time: Option<Timestamp>,
}

impl UpdateRequest {
    /// The last entry `dest` has in common with the leader once it has taken this.
    pub fn last(&self) -> OpId {
        self.entries.last().map_or(self.preceding, |entry| entry.op)
    }
}

/// Where a follower stands. An error leaves the fields valid as far as the responder knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateResponse {
    pub responder: PeerId,
    pub term: Term,
    /// The last entry that is durable in its log, whoever sent it.
    pub last_received: OpId,
    /// The last durable entry known to be the same in the log of this term's leader.
    pub last_received_current_leader: OpId,
    pub last_committed: u64,
    pub error: Option<UpdateError>,
}

impl UpdateResponse {
    /// The answer of a server that cannot say where its replica stands.
    pub fn refusal(responder: PeerId, term: Term, kind: UpdateErrorKind, message: String) -> UpdateResponse {
        UpdateResponse {
            responder,
            term,
            last_received: OpId::MIN,
            last_received_current_leader: OpId::MIN,
            last_committed: 0,
            error: Some(UpdateError { kind, message }),
        }
    }
}

/// Why an update was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateError {
    pub kind: UpdateErrorKind,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateErrorKind {
    /// The caller's term is over; the response names the newer one.
    InvalidTerm,
    /// The follower does not have `preceding`.
    PrecedingMismatch,
    /// An entry cannot be taken now (no memory, a throttled log): send it again later.
    CannotPrepare,
    /// No replica, or a tombstone: it wants a copy.
    TabletNotFound,
    /// A replica that is being opened or copied: later.
    TabletNotRunning,
    /// A replica whose data is damaged: it has to be replaced.
    TabletFailed,
    /// The server is another one than `dest`.
    WrongUuid,
    /// The request contradicts itself or belongs to another tablet.
    Invalid,
}

/// A candidate's question (Raft's RequestVote).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoteRequest {
    pub tablet: TabletId,
    pub candidate: PeerId,
    pub dest: PeerId,
    pub term: Term,
    /// The last entry in the candidate's log.
    pub last_op: OpId,
    /// Only asks what the answer would be (dissertation §9.6): nothing durable changes, `term` is the next one.
    pub pre_election: bool,
    /// The leader wants to be deposed (dissertation §3.10).
    pub ignore_live_leader: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoteResponse {
    pub responder: PeerId,
    pub term: Term,
    pub granted: bool,
    pub error: Option<VoteError>,
}

/// Why a vote was not given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoteError {
    pub kind: VoteErrorKind,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VoteErrorKind {
    /// The candidate's term is over.
    InvalidTerm,
    /// The candidate's log lacks what the voter has.
    LastOpIdTooOld,
    AlreadyVoted,
    LeaderIsAlive,
    /// A tombstone that does not know how far its log went must not vote.
    LastOpIdUnknown,
    TabletNotFound,
    /// The server is another one than `dest`.
    WrongUuid,
    /// The request belongs to another tablet, or the replica cannot vote now.
    Invalid,
}

/// Something to send to one peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Answered by exactly one [`Event::Updated`], also when the peer cannot be reached.
    Update(UpdateRequest),
    /// An update without entries for which nobody waits: it may go together with those of other tablets. Answered as
    /// [`Message::Update`] is.
    Heartbeat(UpdateRequest),
    /// Answered by exactly one [`Event::Voted`].
    Vote(VoteRequest),
    /// Become leader at once, though the old one lives: it has stopped on purpose. Needs no answer.
    RunElection,
    /// Copy the tablet from `source`, the leader of `term`. Answered by exactly one [`Event::CopyStarted`].
    StartCopy { source: Peer, term: Term },
}

/// Something that happened to the core.
#[derive(Debug, Clone)]
pub enum Event {
    /// Time has passed the core's deadline. More or fewer of them do no harm.
    Tick,
    /// The log is durable up to and with this entry, one that an earlier step put into [`Output::log`].
    Persisted(OpId),
    /// The consensus metadata of this number, or a later one, is durable.
    MetaPersisted(u64),
    /// A leader's request; answered by [`Reply::Update`].
    Update { ticket: u64, request: UpdateRequest },
    /// A candidate's question; answered by [`Reply::Vote`].
    Vote { ticket: u64, request: VoteRequest },
    /// What became of the [`Message::Update`] numbered `sent`.
    Updated { peer: PeerId, sent: u64, result: Result<UpdateResponse> },
    /// What became of a [`Message::Vote`] of this term and kind.
    Voted { peer: PeerId, term: Term, pre_election: bool, result: Result<VoteResponse> },
    /// What became of a [`ReadLog`].
    LogRead { peer: PeerId, from: u64, result: Result<Vec<Replicate>> },
    /// What became of a [`Message::StartCopy`].
    CopyStarted { peer: PeerId, result: Result<()> },
    /// Change the members; answered by [`Reply::Config`] once the change is committed or given up.
    ChangeConfig { ticket: u64, change: Change },
    /// Of this replica's members keep `voters` alone, though a majority cannot agree (an operator's tool for lost
    /// majorities); answered by [`Reply::Config`] once it is in the log. Whatever the lost majority had committed
    /// alone is lost.
    UnsafeConfig { ticket: u64, voters: Vec<PeerId>, caller: String },
    /// Give up leadership, to `to` if given; answered by [`Reply::StepDown`] as soon as it has begun. `abrupt`: at
    /// once, for whoever is elected.
    StepDown { ticket: u64, to: Option<PeerId>, abrupt: bool },
    /// Begin an election. `ignore_live_leader`: without pre-election, even if voters hear a leader.
    Elect { ignore_live_leader: bool },
}

/// The answer to an event that had a ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Update(UpdateResponse),
    Vote(VoteResponse),
    Config(Result<()>),
    StepDown(Result<()>),
}

/// A change to the log, in the order of the steps that made them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogChange {
    /// Take back every entry after this index: another leader's entries will stand there.
    Truncate { after: u64 },
    /// `own`: made by this leader, its timestamp taken with [`Clock::begin`]. Otherwise a leader sent it, and
    /// the clock has to be moved past its timestamp.
    Append { entry: Replicate, own: bool },
}

/// Entries that the core needs again but no longer holds: as many as fit into `max_bytes` of payload, and one at
/// least. Answered by exactly one [`Event::LogRead`]; an error of kind NotFound says that the log no longer has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLog {
    pub peer: PeerId,
    pub from: u64,
    pub max_bytes: usize,
}

/// What a step wants done. The caller drains it; a step only adds.
///
/// Nothing in here may be delayed for anything else in here: what must wait for the disk is held back by the core
/// until the event that says it is durable.
#[derive(Debug, Default)]
pub struct Output {
    pub log: Vec<LogChange>,
    /// To be stored in place of what was stored before, then [`Event::MetaPersisted`] with the number. A later one
    /// stands for all before it.
    pub meta: Option<(u64, ConsensusMeta)>,
    pub messages: Vec<(Peer, Message)>,
    pub replies: Vec<(u64, Reply)>,
    pub read_log: Vec<ReadLog>,
    pub notes: Vec<RaftNote>,
    /// For whoever counts what runs reach.
    pub marks: Vec<&'static str>,
    /// Something a report to the masters would show has changed.
    pub status_changed: bool,
}

impl Output {
    pub(super) fn mark(&mut self, mark: &'static str) {
        self.marks.push(mark);
    }
}

/// Where timestamps come from.
pub trait Clock {
    /// A timestamp for an operation that this leader makes now, above every one before; from here on it is in flight.
    fn begin(&mut self) -> Timestamp;
    /// A timestamp that no later operation of this server will have, nor one below it.
    fn take(&mut self) -> Timestamp;
    /// No later operation of this server gets `seen` or a timestamp below.
    fn pass(&mut self, seen: Timestamp);
}

/// What a replica is to its group at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Leader,
    Follower,
    Candidate,
    /// A non-voter.
    Learner,
    /// Not a member of its own configuration.
    NonParticipant,
}

/// How a leader sees one of its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Not heard of since this leader began, and not for so long that it counts as failed.
    Unknown,
    Healthy,
    /// Not heard of for `follower_failed_after`.
    Failed,
    /// Cannot catch up from the log: it has to be replaced.
    FailedUnrecoverable,
}

/// What a leader knows of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    pub id: PeerId,
    pub member: Member,
    pub health: Health,
    /// The last entry it is known to share with the leader, durably.
    pub matched: u64,
    /// Since it was last heard of.
    pub silent: Option<Duration>,
}

/// Where a replica stands, for reports, tools and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub role: Role,
    pub term: Term,
    pub leader: Option<PeerId>,
    pub committed_config: Config,
    pub pending_config: Option<Config>,
    pub committed: OpId,
    pub last: OpId,
    /// No operation at or below it will appear any more.
    pub safe_time: Timestamp,
    /// Leaders only, without itself.
    pub peers: Vec<PeerStatus>,
    /// Leaders only: a majority of voters, itself counted, answered within an election timeout.
    pub quorum_heard: bool,
    /// A leader that is handing over takes no proposals.
    pub transferring: bool,
}

impl Status {
    /// The configuration in force: the pending one if there is one.
    pub fn active_config(&self) -> &Config {
        self.pending_config.as_ref().unwrap_or(&self.committed_config)
    }
}

impl fmt::Display for UpdateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

impl fmt::Display for VoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}
