//! Messages between replicas of one tablet, and events and effects of the core.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::config::{ConfigChange, ConfigPosition, MemberKind, Peer, RaftConfig};
use super::consensus_meta::ConsensusMeta;
use crate::error::Result;
use crate::ids::{OpId, PeerId, TabletId, Term};
pub use crate::note::raft::RaftNote;
use crate::time::Timestamp;
use crate::wal::ReplicateEntry;

/// Kinds of log entries. The core makes and reads NO_OP and CONFIG only.
pub mod kind {
    pub const WRITE: u8 = 1;
    pub const ALTER: u8 = 2;
    pub const NO_OP: u8 = 3;
    /// The payload is [`RaftConfig::encode`](super::RaftConfig::encode).
    pub const CONFIG: u8 = 4;
}

/// The payload of a no-op: no request id (see `replica/log_payload.rs`).
pub const NO_OP_PAYLOAD: Bytes = Bytes::from_static(&[0]);

/// A leader's entries, heartbeat and commit index in one (Raft's AppendEntries; Kudu's UpdateConsensus).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateRequest {
    pub tablet: TabletId,
    pub caller: PeerId,
    pub dest: PeerId,
    pub term: Term,
    /// Number of the request among the caller's. Not sent on the wire: it returns with [`RaftEvent::Updated`].
    pub sent: u64,
    /// The entry right before `entries`.
    pub preceding: OpId,
    pub entries: Vec<ReplicateEntry>,
    /// The leader's commit index. It may be beyond the log of `dest`.
    pub committed: u64,
    /// Index up to which every member of the group has every entry.
    pub all_replicated: u64,
    /// Safe time: no operation after the last one of this request gets this timestamp or one below.
    pub safe_time: Option<Timestamp>,
}

impl UpdateRequest {
    /// The last entry that `dest` shares with the leader after it accepts this request.
    pub fn last(&self) -> OpId {
        self.entries.last().map_or(self.preceding, |entry| entry.op)
    }
}

/// A follower's log position. With an error, the fields hold what the responder knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateResponse {
    pub responder: PeerId,
    pub term: Term,
    /// The last durable entry in its log, from any leader.
    pub last_received: OpId,
    /// The last durable entry known to be the same in the log of this term's leader.
    pub last_received_current_leader: OpId,
    pub last_committed: u64,
    pub error: Option<UpdateError>,
}

impl UpdateResponse {
    /// Response of a server that does not know the log position of its replica.
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

/// Reason for which an update was rejected.
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
    /// An entry cannot be accepted now (no memory, a throttled log); retry later.
    CannotPrepare,
    /// No replica, or a tombstone: it needs a tablet copy.
    TabletNotFound,
    /// A replica that is being opened or copied; retry later.
    TabletNotRunning,
    /// A replica whose data is damaged: it must be replaced.
    TabletFailed,
    /// The server is not `dest`.
    WrongUuid,
    /// The request contradicts itself or belongs to another tablet.
    Invalid,
}

/// A candidate's request (Raft's RequestVote).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoteRequest {
    pub tablet: TabletId,
    pub candidate: PeerId,
    pub dest: PeerId,
    pub term: Term,
    /// The last entry in the candidate's log.
    pub last_op: OpId,
    /// True for a pre-vote (dissertation §9.6): nothing durable changes, and `term` is the next one.
    pub is_pre_vote: bool,
    /// True if the leader itself wants another leader (dissertation §3.10).
    pub ignore_live_leader: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoteResponse {
    pub responder: PeerId,
    pub term: Term,
    pub granted: bool,
    pub error: Option<VoteError>,
}

/// Reason for which a vote was denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoteError {
    pub kind: VoteErrorKind,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VoteErrorKind {
    /// The candidate's term is over.
    InvalidTerm,
    /// The candidate's log lacks entries that the voter has.
    LastOpIdTooOld,
    AlreadyVoted,
    LeaderIsAlive,
    /// A tombstone that does not know its last logged operation must not vote.
    LastOpIdUnknown,
    TabletNotFound,
    /// The server is not `dest`.
    WrongUuid,
    /// The request belongs to another tablet, or the replica cannot vote now.
    Invalid,
}

/// A message to one peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RaftMessage {
    /// An update, followed by exactly one [`RaftEvent::Updated`], also when the peer cannot be reached.
    Update(UpdateRequest),
    /// An update without entries that no reader waits for: it may be batched with those of other tablets. Followed by
    /// an event as [`RaftMessage::Update`] is.
    Heartbeat(UpdateRequest),
    /// A vote request, followed by exactly one [`RaftEvent::Voted`].
    Vote(VoteRequest),
    /// Request to become leader at once: the current leader transfers its leadership. It has no response.
    RunElection,
    /// Request to copy the tablet from `source`, the leader of `term`. Followed by exactly one
    /// [`RaftEvent::CopyStarted`].
    StartCopy { source: Peer, term: Term },
}

/// An input of the core.
#[derive(Debug, Clone)]
pub enum RaftEvent {
    /// The core's deadline has passed. Additional or missing ticks do no harm.
    Tick,
    /// The log is durable up to and with this entry, one that an earlier step put into [`RaftEffects::log`].
    Persisted(OpId),
    /// The consensus metadata of this number, or a later one, is durable.
    MetaPersisted(u64),
    /// A leader's request; the reply is [`RaftReply::Update`].
    Update { ticket: u64, request: UpdateRequest },
    /// A candidate's request; the reply is [`RaftReply::Vote`].
    Vote { ticket: u64, request: VoteRequest },
    /// Result of the [`RaftMessage::Update`] numbered `sent`.
    Updated { peer: PeerId, sent: u64, result: Result<UpdateResponse> },
    /// Result of a [`RaftMessage::Vote`] of this term and kind.
    Voted { peer: PeerId, term: Term, is_pre_vote: bool, result: Result<VoteResponse> },
    /// Result of a [`LogReadRequest`].
    LogRead { peer: PeerId, from: u64, result: Result<Vec<ReplicateEntry>> },
    /// Result of a [`RaftMessage::StartCopy`].
    CopyStarted { peer: PeerId, result: Result<()> },
    /// Change the members. The reply is [`RaftReply::Config`] once the change is committed or abandoned.
    ChangeConfig { ticket: u64, change: ConfigChange },
    /// Keep `voters` alone of this replica's members, without a majority (an operator's tool for lost majorities). The
    /// reply is [`RaftReply::Config`] once the configuration is in the log. Operations that only the lost majority had
    /// committed are lost.
    UnsafeConfig { ticket: u64, voters: Vec<PeerId>, caller: String },
    /// Give up leadership, to `to` if given. The reply is [`RaftReply::StepDown`] as soon as the transfer has started.
    /// `abrupt`: step down at once, for any voter that is elected.
    StepDown { ticket: u64, to: Option<PeerId>, abrupt: bool },
    /// Start an election. `ignore_live_leader`: without a pre-vote, even if voters have a live leader.
    Elect { ignore_live_leader: bool },
}

/// Reply to an event that had a ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RaftReply {
    Update(UpdateResponse),
    Vote(VoteResponse),
    Config(Result<()>),
    StepDown(Result<()>),
}

/// A change to the log, in the order of the steps that made them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogChange {
    /// Truncate every entry after this index: another leader's entries replace them.
    Truncate { after: u64 },
    /// `own`: created by this leader, its timestamp taken with [`TimestampSource::begin`]. Otherwise a leader sent it,
    /// and the clock must be moved past its timestamp.
    Append { entry: ReplicateEntry, own: bool },
}

/// Request for entries that the core no longer holds: as many as fit into `max_bytes` of payload, at least one.
/// Followed by exactly one [`RaftEvent::LogRead`]; an error of kind NotFound reports that log GC deleted them.
/// Another leader's entries, from a disk that is behind, are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogReadRequest {
    pub peer: PeerId,
    pub from: u64,
    pub max_bytes: usize,
}

/// Effects of a step. The caller drains it; a step only adds.
///
/// The caller may carry out all of it at once: the core itself gates output that must wait for the disk.
#[derive(Debug, Default)]
pub struct RaftEffects {
    pub log: Vec<LogChange>,
    /// Metadata to store in place of the earlier one, then [`RaftEvent::MetaPersisted`] with the number. A later one
    /// supersedes all earlier ones.
    pub meta: Option<(u64, ConsensusMeta)>,
    pub messages: Vec<(Peer, RaftMessage)>,
    pub replies: Vec<(u64, RaftReply)>,
    pub read_log: Vec<LogReadRequest>,
    pub notes: Vec<RaftNote>,
    /// Coverage marks.
    pub marks: Vec<&'static str>,
    /// True if a tablet report to the masters would change.
    pub status_changed: bool,
}

impl RaftEffects {
    pub(super) fn mark(&mut self, mark: &'static str) {
        self.marks.push(mark);
    }
}

/// Source of timestamps.
pub trait TimestampSource {
    /// Takes a timestamp for a new operation of this leader, above every earlier one. The operation is in flight from
    /// here on.
    fn begin(&mut self) -> Timestamp;
    /// Takes a timestamp above which all later operations of this server are.
    fn take(&mut self) -> Timestamp;
    /// Ensures that later operations of this server get timestamps above `seen`.
    fn pass(&mut self, seen: Timestamp);
}

/// Current role of a replica in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Leader,
    Follower,
    Candidate,
    /// A learner (non-voter on the wire).
    Learner,
    /// Not a member of its own configuration.
    NonParticipant,
}

/// Health of a peer as its leader sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerHealth {
    /// No response in this leadership yet, and silent for less than `follower_failed_after`.
    Unknown,
    Healthy,
    /// Silent for `follower_failed_after`.
    Failed,
    /// Cannot catch up from the log, or get a replica by a copy: it must be replaced.
    FailedUnrecoverable,
}

/// A leader's view of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    pub id: PeerId,
    pub member: MemberKind,
    pub health: PeerHealth,
    /// Match index: the last durable entry known to be shared with the leader.
    pub matched: u64,
    /// Time since its last response.
    pub silent: Option<Duration>,
}

/// State of a replica, for reports, tools and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaftStatus {
    pub role: Role,
    pub term: Term,
    pub leader: Option<PeerId>,
    pub committed_config: RaftConfig,
    pub pending_config: Option<RaftConfig>,
    /// Positions of the committed configuration and of the one in force.
    pub committed_position: ConfigPosition,
    pub active_position: ConfigPosition,
    pub committed: OpId,
    pub last: OpId,
    /// No operation at or below it will be added.
    pub safe_time: Timestamp,
    /// Leaders only, without itself.
    pub peers: Vec<PeerStatus>,
    /// Leaders only: true if a majority of voters, itself counted, responded within an election timeout.
    pub is_quorum_active: bool,
    /// True while a leadership transfer blocks proposals.
    pub transferring: bool,
}

/// Operations that some member of a leader's group lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplicationBacklog {
    /// Operations that are not committed.
    pub uncommitted: u64,
    /// Operations that are committed, and that the slowest member is not known to have.
    pub committed: u64,
}

impl RaftStatus {
    /// The configuration in force: the pending one if there is one.
    pub fn active_config(&self) -> &RaftConfig {
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
