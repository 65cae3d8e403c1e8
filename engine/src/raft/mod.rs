//! Raft as Kudu runs it: elections, replication and membership of one tablet's replicas, as a pure state machine.
//!
//! ```text
//!   RaftEvent ─► Raft::step ─► RaftEffects.log       entries to append, or a truncation   ─► RaftEvent::Persisted
//!                              RaftEffects.meta      term, vote, committed configuration  ─► RaftEvent::MetaPersisted
//!                              RaftEffects.messages  to peers                             ─► RaftEvent::Updated, Voted
//!                              RaftEffects.replies   to callers, by ticket
//!                Raft::committed() after the step: apply up to here
//! ```
//!
//! - Nothing waits: a completion from the disk or a response of a peer is an event. Output that depends on durable
//!   metadata is held in `durability_gate.rs` until the event that reports it. All of [`RaftEffects`] may leave at
//!   once.
//! - A follower acknowledges what is durable in its log, and a leader counts itself by the same rule. A leader whose
//!   disk stalls continues to commit through its followers, so [`Raft::committed`] may be ahead of its own disk.
//! - There are no leader leases: a leader confirms its leadership by an exchange with its followers (`safe_time.rs`).
//!
//! Sources: the Raft paper and Ongaro's dissertation (sections named where they are followed), the Kudu paper §3.2 and
//! §3.3. The actions in the notes are those of `spec/`.
//!
//! *Not here:* disks, applying operations, replies to clients (see `replica`).

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::ids::{OpId, PeerId, Term};
use crate::note::raft::{NotedDataState, NotedRole, PostState, RaftAction, RaftNote};
use crate::time::{ClockReading, Instant, Timestamp};
use crate::wal::ReplicateEntry;

pub mod config;
pub mod consensus_meta;
mod durability_gate;
mod election;
mod follower;
mod gated_output;
mod hibernation;
pub mod interface;
mod leader;
mod leader_state;
mod leadership_transfer;
mod log;
mod membership;
mod peer_progress;
mod safe_time;
mod safe_time_proposals;
mod status;
pub mod timing;
mod transfer;
pub mod vote;
mod vote_tally;

pub use config::{ConfigChange, ConfigChangePart, ConfigPosition, MemberKind, Peer, RaftConfig};
pub use consensus_meta::ConsensusMeta;
pub use hibernation::Hibernation;
pub use interface::{
    LogChange, LogReadRequest, PeerHealth, RaftEffects, RaftEvent, RaftMessage, RaftReply, RaftStatus,
    ReplicationBacklog, Role, TimestampSource, kind,
};
pub use timing::RaftOptions;
pub use vote::{VoteDecision, decide_vote};

use gated_output::DurabilityGate;

use leader_state::LeaderState;
use log::RaftLog;
use vote_tally::VoteTally;

/// State of a replica when it starts.
#[derive(Debug, Clone)]
pub struct BootState {
    pub me: PeerId,
    /// Host and port at which others reach this server now. The configuration has older ones after a move. `None` for
    /// a replica without callers.
    pub address: Option<(String, u16)>,
    /// The stored metadata. If the log has a newer configuration that is committed, it replaces the stored one.
    pub meta: ConsensusMeta,
    /// True if `meta` is stored. If the device had no space for it, it is stored after the start.
    pub meta_stored: bool,
    /// Result of [`ConsensusMeta::elect_only_voter`], after the new metadata is stored. With a value, this replica
    /// leads from the start.
    pub elected: Option<(Term, Option<PeerId>)>,
    /// True if the replica was created by this start.
    pub fresh: bool,
    /// The last operation known to be committed, or [`OpId::MIN`]; and its timestamp.
    pub committed: OpId,
    pub committed_at: Timestamp,
    /// All later entries of the log, in order: durable, but possibly never committed.
    pub pending: Vec<ReplicateEntry>,
    /// Seed of this replica's random choices; different for each replica and start.
    pub seed: u64,
}

/// One replica's part in its group.
pub struct Raft {
    options: RaftOptions,
    me: PeerId,
    /// See [`BootState::address`].
    address: Option<(String, u16)>,
    /// Metadata stored or being stored.
    meta: ConsensusMeta,
    gate: DurabilityGate,
    log: RaftLog,
    committed: OpId,
    committed_at: Timestamp,
    /// Uncommitted configurations in the log, oldest first, by the index of their entry.
    pending_configs: VecDeque<(u64, RaftConfig)>,
    state: RoleState,
    /// Responses to the current pre-vote.
    pre_vote: Option<VoteTally>,
    /// Leader of this term, if known.
    leader: Option<PeerId>,
    /// Time of the last update from a leader.
    last_received: Option<Instant>,
    /// Time at which the leader counts as failed.
    election_due: Instant,
    /// Elections lost since the last update from a leader.
    elections_lost: u32,
    /// Last entry known to be in the log of this term's leader too.
    received: OpId,
    /// Tickets of updates to reply to, with the entry that must be durable first.
    pending_updates: Vec<(u64, OpId)>,
    /// Safe time that a leader reported or this leader confirmed; see `safe_time.rs`.
    safe: Timestamp,
    /// Index up to which every member has every entry, as reported by a leader.
    all_replicated: u64,
    /// Number of the last update sent.
    sent: u64,
    rand: u64,
}

enum RoleState {
    Follower,
    Candidate(VoteTally),
    Leader(Box<LeaderState>),
}

/// Inputs and outputs of a step, besides its event.
struct StepContext<'a> {
    now: ClockReading,
    clock: &'a mut dyn TimestampSource,
    out: &'a mut RaftEffects,
}

impl Raft {
    /// Creates a replica that follows until [`Raft::start`].
    pub fn new(options: RaftOptions, boot: BootState) -> Raft {
        let mut log = RaftLog::new(boot.committed);
        let mut pending_configs = VecDeque::new();
        for entry in boot.pending {
            // One before the committed one is out of force: an operator may put that one after the whole log.
            if entry.kind == kind::CONFIG && Some(entry.op.index) >= boot.meta.committed.opid_index {
                let config = RaftConfig::decode(&entry.payload)
                    .expect("configurations are checked when they are appended");
                pending_configs.push_back((entry.op.index, config));
            }
            log.append(entry);
        }
        log.set_durable();
        let mut meta = boot.meta;
        // Entries of a newer term can be durable before the metadata that names it.
        meta.see_term(log.last().term);
        let mut raft = Raft {
            options,
            me: boot.me,
            address: boot.address,
            meta,
            gate: DurabilityGate::default(),
            log,
            committed: boot.committed,
            committed_at: boot.committed_at,
            pending_configs,
            state: RoleState::Follower,
            pre_vote: None,
            leader: None,
            last_received: None,
            election_due: Instant(u64::MAX),
            elections_lost: 0,
            received: OpId::MIN,
            pending_updates: Vec::new(),
            safe: Timestamp::MIN,
            all_replicated: 0,
            sent: 0,
            rand: boot.seed,
        };
        raft.gate.fresh = boot.fresh;
        raft.gate.elected = boot.elected;
        raft.gate.unstored = !boot.meta_stored;
        raft
    }

    /// Starts participation. Order: called once, before any other event.
    ///
    /// A replica that is the only voter leads when this returns, if it was booted as elected. Otherwise it leads as
    /// soon as its vote for itself is durable.
    pub fn start(&mut self, now: ClockReading, clock: &mut dyn TimestampSource, out: &mut RaftEffects) {
        let ctx = &mut StepContext { now, clock, out };
        ctx.clock.pass(self.committed_at);
        if let Some(before) = self.gate.elected.take() {
            self.start_as_elected(before, ctx);
        } else {
            self.note_start(ctx);
            if self.gate.unstored {
                // It has a newer configuration, and no other term or vote.
                self.store_meta(false, ctx.out);
            }
            self.start_election_timer(ctx);
        }
        self.send_pending_updates(now, out);
    }

    /// Starts with an election that the stored metadata has won already.
    fn start_as_elected(&mut self, before: (Term, Option<PeerId>), ctx: &mut StepContext<'_>) {
        let (term, vote) = (self.meta.term, self.meta.voted_for);
        // The notes record the separate steps of an ordinary election.
        (self.meta.term, self.meta.voted_for) = before;
        self.note_start(ctx);
        (self.meta.term, self.meta.voted_for) = (term, vote);
        self.state = RoleState::Candidate(VoteTally::won(term, self.me));
        self.note(ctx, RaftAction::StartElection { term, asked: true });
        self.note(ctx, RaftAction::MetaPersist { term, vote });
        // A pending configuration may have more voters: then the election timer lets this replica request their votes.
        self.reset_election_timer(ctx.now.mono);
        self.count_votes(ctx);
    }

    fn start_election_timer(&mut self, ctx: &mut StepContext<'_>) {
        let now = ctx.now;
        if self.active_config().is_only_voter(self.me) {
            self.start_election(true, ctx);
        } else if self.log.last() == OpId::MIN {
            // A new tablet has never had a leader to wait for.
            let wait = self.random_below(self.options.heartbeat_interval);
            self.election_due = now.mono.after(wait);
        } else {
            self.reset_election_timer(now.mono);
        }
    }

    /// Processes one event.
    pub fn step(
        &mut self,
        now: ClockReading,
        event: RaftEvent,
        clock: &mut dyn TimestampSource,
        out: &mut RaftEffects,
    ) {
        let ctx = &mut StepContext { now, clock, out };
        match event {
            RaftEvent::Tick => self.tick(ctx),
            RaftEvent::Persisted(op) => self.persisted(op, ctx),
            RaftEvent::MetaPersisted(number) => self.meta_persisted(number, ctx),
            RaftEvent::Update { ticket, request } => self.update(ticket, request, ctx),
            RaftEvent::Vote { ticket, request } => self.vote(ticket, &request, ctx),
            RaftEvent::Updated { peer, sent, result } => self.updated(peer, sent, result, ctx),
            RaftEvent::Voted { peer, term, is_pre_vote, result } => {
                self.voted(peer, term, is_pre_vote, result, ctx);
            }
            RaftEvent::LogRead { peer, from, result } => self.log_read(peer, from, result, ctx),
            RaftEvent::CopyStarted { peer, result } => self.copy_started(peer, result, ctx),
            RaftEvent::ChangeConfig { ticket, change } => self.change_config(ticket, &change, ctx),
            RaftEvent::UnsafeConfig { ticket, voters, caller } => {
                self.unsafe_config(ticket, &voters, &caller, ctx);
            }
            RaftEvent::StepDown { ticket, to, abrupt } => self.transfer_leadership(ticket, to, abrupt, ctx),
            RaftEvent::Elect { ignore_live_leader } => self.elect(ignore_live_leader, ctx),
        }
        self.propose_safe_time(ctx);
        self.send_pending_updates(now, out);
    }

    /// Fails unless this replica can accept a proposal: `NotLeader`, or `NotReady` during a leadership transfer.
    pub fn check_leader(&self) -> Result<()> {
        match &self.state {
            RoleState::Leader(leader) if leader.transfer.is_some() => {
                let message = format!("replica {} is transferring its leadership; retry", self.me);
                Err(Error::not_ready(message))
            }
            RoleState::Leader(_) => Ok(()),
            _ => {
                let role = self.role();
                let message = format!("Replica {} is not leader of this config. Role: {role}", self.me);
                Err(Error::not_leader(message))
            }
        }
    }

    /// Appends an operation to the log of this leader. It is committed once [`Raft::committed`] has reached it.
    ///
    /// Messages to peers leave with the next [`Raft::send_pending_updates`]. Fails as [`Raft::check_leader`] does.
    pub fn propose(
        &mut self,
        kind: u8,
        payload: Bytes,
        clock: &mut dyn TimestampSource,
        out: &mut RaftEffects,
    ) -> Result<ReplicateEntry> {
        self.check_leader()?;
        Ok(self.append_own(kind, payload, clock, out))
    }

    /// Time at which the next [`RaftEvent::Tick`] is due; `Instant(u64::MAX)` if none is.
    pub fn deadline(&self) -> Instant {
        match &self.state {
            RoleState::Leader(leader) => leader.deadline(&self.options),
            _ => self.election_due,
        }
    }

    /// Changes the silence after which a peer counts as failed, from the next tick on.
    pub fn set_follower_failed_after(&mut self, after: Duration) {
        self.options.follower_failed_after = after;
    }

    /// The last operation known to be committed: every replica will apply all operations up to it.
    pub fn committed(&self) -> OpId {
        self.committed
    }

    /// Memory used by log entries, in bytes.
    pub fn log_bytes(&self) -> usize {
        self.log.byte_size()
    }

    /// The last entry in the log, durable or not.
    pub fn last(&self) -> OpId {
        self.log.last()
    }

    /// Index up to which this replica's own log is durable. It may be below [`Raft::committed`].
    pub fn durable(&self) -> u64 {
        self.log.durable()
    }

    pub fn term(&self) -> Term {
        self.meta.term
    }

    /// Id of this replica in its group: that of its server.
    pub fn me(&self) -> PeerId {
        self.me
    }

    pub fn is_leader(&self) -> bool {
        matches!(self.state, RoleState::Leader(_))
    }

    /// Returns true if this replica leads as the only voter: then every timestamp that it takes is safe.
    pub fn leads_single_voter_group(&self) -> bool {
        self.is_leader() && self.is_only_voter()
    }

    /// Returns true if this replica is the only voter. It leads, or will lead as soon as its term is stored.
    pub fn is_only_voter(&self) -> bool {
        self.active_config().is_only_voter(self.me)
    }

    /// Returns true if this leader has committed an operation of its own term. Only then it has applied, or is about to
    /// apply, every operation ever acknowledged (Raft §8).
    pub fn is_caught_up_leader(&self) -> bool {
        matches!(&self.state, RoleState::Leader(leader) if self.committed.index >= leader.first)
    }

    /// Metadata stored, or to be stored with the last [`RaftEffects::meta`].
    pub fn meta(&self) -> &ConsensusMeta {
        &self.meta
    }

    /// The configuration in force: the last one in the log, committed or not.
    pub fn active_config(&self) -> &RaftConfig {
        self.pending_configs.back().map_or(&self.meta.committed, |(_, config)| config)
    }

    /// Index before the first entry that the log must keep for lagging members: an update names the entry before its
    /// first. The caller may collect more of the log: then such a member must be replaced.
    pub fn log_keep_from(&self) -> u64 {
        match &self.state {
            RoleState::Leader(leader) => leader.all_replicated_index(self.log.durable()),
            _ => self.all_replicated,
        }
    }

    /// The index of the configuration in force; 0 for the first.
    pub fn config_index(&self) -> u64 {
        let committed = self.meta.committed.opid_index.unwrap_or_default();
        self.pending_configs.back().map_or(committed, |(index, _)| *index)
    }

    fn note(&self, ctx: &mut StepContext<'_>, action: RaftAction) {
        self.note_to(ctx.out, action);
    }

    fn note_to(&self, out: &mut RaftEffects, action: RaftAction) {
        let role = match self.state {
            RoleState::Leader(_) => NotedRole::Leader,
            RoleState::Candidate(_) => NotedRole::Candidate,
            RoleState::Follower => NotedRole::Follower,
        };
        let (term, last, commit) = (self.meta.term, self.log.last(), self.committed.index);
        let post = PostState { term, last, commit, role, data: NotedDataState::Ready };
        out.notes.push(RaftNote { action, post });
    }

    /// Notes that the replica has failed and no longer participates.
    pub fn note_failure(&self, out: &mut RaftEffects) {
        let (term, last, role) = (self.meta.term, self.log.last(), NotedRole::Follower);
        let post = PostState { term, last, commit: 0, role, data: NotedDataState::Failed };
        out.notes.push(RaftNote { action: RaftAction::Fail, post });
    }

    fn note_start(&self, ctx: &mut StepContext<'_>) {
        if !self.gate.fresh {
            return self.note(ctx, RaftAction::Restart { vote: self.meta.voted_for });
        }
        let (voters, learners) = self.meta.committed.split_ids();
        self.note(ctx, RaftAction::Create { voters, learners });
    }

    /// The next number of a splitmix64 sequence.
    fn random(&mut self) -> u64 {
        self.rand = self.rand.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rand;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn random_below(&mut self, limit: Duration) -> Duration {
        Duration::from_nanos(self.random() % (limit.as_nanos() as u64).max(1))
    }
}
