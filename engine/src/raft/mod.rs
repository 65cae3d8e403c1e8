//! Raft as Kudu runs it: elections, replication and membership of one tablet's replicas, as a pure state machine.
//!
//! ```text
//!   Event ─► Raft::step ─► Output.log       entries to append, or to take back      ─► Event::Persisted
//!                          Output.meta      term, vote, committed configuration     ─► Event::MetaPersisted
//!                          Output.messages  to peers                                ─► Event::Updated, Voted
//!                          Output.replies   to whoever asked, by ticket
//!            Raft::committed() after the step: apply up to here
//! ```
//!
//! - Nothing waits: a disk or a peer that answers is an event. What must not leave before something is durable
//!   is held back here until the event that says so; everything in an [`Output`] may leave at once.
//! - A follower acknowledges what is durable in its log, and a leader counts itself by the same rule. So a leader whose
//!   disk stalls goes on committing through its followers, and [`Raft::committed`] may be ahead of its own disk.
//! - There are no leader leases: a leader learns that it still leads by asking (`safe_time.rs`).
//!
//! Sources: the Raft paper and Ongaro's dissertation (sections named where they are followed), the Kudu paper §3.2
//! and §3.3. The actions in the notes are those of `spec/`.
//!
//! *Not here:* disks, applying operations, what a client is told (see `replica`).

use std::collections::VecDeque;

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::ids::{OpId, PeerId, Term};
use crate::note::raft::{Action, DataState, Post, RaftNote, Role as NoteRole};
use crate::time::{Instant, Now, Timestamp};
use crate::wal::Replicate;

pub mod cmeta;
pub mod config;
mod election;
mod follower;
mod hold;
mod leader;
mod log;
mod membership;
pub mod message;
pub mod options;
mod queue;
mod rest;
mod safe_time;
mod status;
mod transfer;
pub mod vote;

pub use cmeta::ConsensusMeta;
pub use config::{Change, ChangePart, Config, Member, Peer};
pub use message::{Clock, Event, Health, LogChange, Message, Output, ReadLog, Reply, Role, Status, kind};
pub use options::RaftOptions;
pub use rest::Rest;
pub use vote::{VoteDecision, decide_vote};

use election::Election;
use hold::Holds;
use leader::Leader;
use log::RaftLog;

/// What a replica knows when it starts.
#[derive(Debug, Clone)]
pub struct Boot {
    pub me: PeerId,
    /// As it is stored. If the log has a newer configuration that is committed, that one instead of the stored.
    pub meta: ConsensusMeta,
    /// What [`ConsensusMeta::elect_only_voter`] said, its result being stored: if anything, then this replica leads
    /// from the start.
    pub elected: Option<(Term, Option<PeerId>)>,
    /// The replica was made just now.
    pub fresh: bool,
    /// The last operation known to be committed, or [`OpId::MIN`]; and its timestamp.
    pub committed: OpId,
    pub committed_at: Timestamp,
    /// All that the log has after it, in order: durable, but perhaps never to be committed.
    pub pending: Vec<Replicate>,
    /// Where this replica's random choices begin; another one for each replica and start.
    pub seed: u64,
}

/// One replica's part in its group.
pub struct Raft {
    options: RaftOptions,
    me: PeerId,
    /// What is stored or being stored.
    meta: ConsensusMeta,
    holds: Holds,
    log: RaftLog,
    committed: OpId,
    committed_at: Timestamp,
    /// Configurations in the log that are not committed, oldest first, by the index of their entry.
    pending_configs: VecDeque<(u64, Config)>,
    state: State,
    /// A pre-election under way.
    pre_election: Option<Election>,
    /// Who leads this term, if known.
    leader: Option<PeerId>,
    /// When a leader was last heard of.
    heard: Option<Instant>,
    /// When it counts as gone.
    election_due: Instant,
    /// Elections lost since a leader was heard of.
    elections_lost: u32,
    /// The log agrees with that of this term's leader up to here.
    received: OpId,
    /// Updates to be answered once the log is durable up to the entry.
    unanswered: Vec<(u64, OpId)>,
    /// See `safe_time.rs`.
    safe: Timestamp,
    /// Everybody in the group has everything up to here, a leader said.
    all_replicated: u64,
    /// The number of the last update sent.
    sent: u64,
    rand: u64,
}

enum State {
    Follower,
    Candidate(Election),
    Leader(Box<Leader>),
}

/// What a step is given, besides its event.
struct Ctx<'a> {
    now: Now,
    clock: &'a mut dyn Clock,
    out: &'a mut Output,
}

impl Raft {
    /// A replica that follows until [`Raft::start`].
    pub fn new(options: RaftOptions, boot: Boot) -> Raft {
        let mut log = RaftLog::new(boot.committed);
        let mut pending_configs = VecDeque::new();
        for entry in boot.pending {
            if entry.kind == kind::CONFIG {
                let config = Config::decode(&entry.payload).expect("it was checked when it was appended");
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
            meta,
            holds: Holds::default(),
            log,
            committed: boot.committed,
            committed_at: boot.committed_at,
            pending_configs,
            state: State::Follower,
            pre_election: None,
            leader: None,
            heard: None,
            election_due: Instant(u64::MAX),
            elections_lost: 0,
            received: OpId::MIN,
            unanswered: Vec::new(),
            safe: Timestamp::MIN,
            all_replicated: 0,
            sent: 0,
            rand: boot.seed,
        };
        raft.holds.fresh = boot.fresh;
        raft.holds.elected = boot.elected;
        raft
    }

    /// Begins to take part; once, before anything else.
    ///
    /// A replica that decides alone leads when this returns, if it was booted as elected; otherwise as soon as its
    /// vote for itself is durable.
    pub fn start(&mut self, now: Now, clock: &mut dyn Clock, out: &mut Output) {
        let ctx = &mut Ctx { now, clock, out };
        ctx.clock.pass(self.committed_at);
        if let Some(before) = self.holds.elected.take() {
            self.start_elected(before, ctx);
        } else {
            self.note_start(ctx);
            self.wait_for_leader(ctx);
        }
        self.pump(now, out);
    }

    /// The election was won by the metadata that is stored already.
    fn start_elected(&mut self, before: (Term, Option<PeerId>), ctx: &mut Ctx<'_>) {
        let (term, vote) = (self.meta.term, self.meta.voted_for);
        // The notes tell it as it would have happened one step after the other.
        (self.meta.term, self.meta.voted_for) = before;
        self.note_start(ctx);
        (self.meta.term, self.meta.voted_for) = (term, vote);
        self.state = State::Candidate(Election::won(term, self.me));
        self.note(ctx, Action::StartElection { term, asked: true });
        self.note(ctx, Action::MetaPersist { term, vote });
        // A pending configuration may have more voters: then they are asked in time.
        self.put_off_election(ctx.now.mono);
        self.count_votes(ctx);
    }

    fn wait_for_leader(&mut self, ctx: &mut Ctx<'_>) {
        let now = ctx.now;
        if self.active_config().is_only_voter(self.me) {
            self.start_election(true, ctx);
        } else if self.log.last() == OpId::MIN {
            // A new tablet has never had a leader to wait for.
            let wait = self.random_below(self.options.heartbeat_interval);
            self.election_due = now.mono.after(wait);
        } else {
            self.put_off_election(now.mono);
        }
    }

    /// Takes one event.
    pub fn step(&mut self, now: Now, event: Event, clock: &mut dyn Clock, out: &mut Output) {
        let ctx = &mut Ctx { now, clock, out };
        match event {
            Event::Tick => self.tick(ctx),
            Event::Persisted(op) => self.persisted(op, ctx),
            Event::MetaPersisted(number) => self.meta_persisted(number, ctx),
            Event::Update { ticket, request } => self.update(ticket, request, ctx),
            Event::Vote { ticket, request } => self.vote(ticket, &request, ctx),
            Event::Updated { peer, sent, result } => self.updated(peer, sent, result, ctx),
            Event::Voted { peer, term, pre_election, result } => {
                self.voted(peer, term, pre_election, result, ctx);
            }
            Event::LogRead { peer, from, result } => self.log_read(peer, from, result, ctx),
            Event::CopyStarted { peer, result } => self.copy_started(peer, result, ctx),
            Event::ChangeConfig { ticket, change } => self.change_config(ticket, &change, ctx),
            Event::UnsafeConfig { ticket, voters, caller } => {
                self.unsafe_config(ticket, &voters, &caller, ctx);
            }
            Event::StepDown { ticket, to, abrupt } => self.give_up_leadership(ticket, to, abrupt, ctx),
            Event::Elect { ignore_live_leader } => self.elect(ignore_live_leader, ctx),
        }
        self.pick_safe_time(ctx);
        self.pump(now, out);
    }

    /// Fails unless this replica can take a proposal: `NotLeader`, or `NotReady` while it hands its leadership over.
    pub fn check_leader(&self) -> Result<()> {
        match &self.state {
            State::Leader(leader) if leader.transfer.is_some() => {
                let message = format!("replica {} is handing over its leadership; retry", self.me);
                Err(Error::not_ready(message))
            }
            State::Leader(_) => Ok(()),
            _ => {
                let role = self.role();
                let message = format!("Replica {} is not leader of this config. Role: {role}", self.me);
                Err(Error::not_leader(message))
            }
        }
    }

    /// Puts an operation into the log of this leader; it has taken effect once [`Raft::committed`] has passed it.
    ///
    /// Messages to peers leave with the next [`Raft::pump`]. Fails as [`Raft::check_leader`] does.
    pub fn propose(
        &mut self,
        kind: u8,
        payload: Bytes,
        clock: &mut dyn Clock,
        out: &mut Output,
    ) -> Result<Replicate> {
        self.check_leader()?;
        Ok(self.append_own(kind, payload, clock, out))
    }

    /// When the next [`Event::Tick`] is due; `Instant(u64::MAX)` if time alone will change nothing.
    pub fn deadline(&self) -> Instant {
        match &self.state {
            State::Leader(leader) => leader.deadline(&self.options),
            _ => self.election_due,
        }
    }

    /// The last operation known to be committed: everything up to it will be applied by every replica.
    pub fn committed(&self) -> OpId {
        self.committed
    }

    /// Bytes of memory that entries of the log take.
    pub fn log_bytes(&self) -> usize {
        self.log.byte_size()
    }

    /// The last entry in the log, durable or not.
    pub fn last(&self) -> OpId {
        self.log.last()
    }

    /// This replica's own log is durable up to here. It may be below [`Raft::committed`].
    pub fn durable(&self) -> u64 {
        self.log.durable()
    }

    pub fn term(&self) -> Term {
        self.meta.term
    }

    pub fn is_leader(&self) -> bool {
        matches!(self.state, State::Leader(_))
    }

    /// Whether this replica leads and needs nobody's consent: then every timestamp it takes is safe.
    pub fn decides_alone(&self) -> bool {
        self.is_leader() && self.active_config().is_only_voter(self.me)
    }

    /// Whether this leader has committed an operation of its own term: only then has it applied, or is about to,
    /// everything that was ever acknowledged (Raft §8).
    pub fn is_caught_up_leader(&self) -> bool {
        matches!(&self.state, State::Leader(leader) if self.committed.index >= leader.first)
    }

    /// What is stored, or will be once the last [`Output::meta`] is.
    pub fn meta(&self) -> &ConsensusMeta {
        &self.meta
    }

    /// The configuration in force: the last one in the log, committed or not.
    pub fn active_config(&self) -> &Config {
        self.pending_configs.back().map_or(&self.meta.committed, |(_, config)| config)
    }

    /// The index before the smallest that some member may still have to be sent from the log: what is sent names the
    /// entry before it. A policy of the caller may cut more: then such a member has to be replaced.
    pub fn log_keep_from(&self) -> u64 {
        match &self.state {
            State::Leader(leader) => leader.all_have(self.log.durable()),
            _ => self.all_replicated,
        }
    }

    /// The index of the configuration in force; 0 for the first.
    pub fn config_index(&self) -> u64 {
        let committed = self.meta.committed.opid_index.unwrap_or_default();
        self.pending_configs.back().map_or(committed, |(index, _)| *index)
    }

    fn note(&self, ctx: &mut Ctx<'_>, action: Action) {
        self.note_to(ctx.out, action);
    }

    fn note_to(&self, out: &mut Output, action: Action) {
        let role = match self.state {
            State::Leader(_) => NoteRole::Leader,
            State::Candidate(_) => NoteRole::Candidate,
            State::Follower => NoteRole::Follower,
        };
        let (term, last, commit) = (self.meta.term, self.log.last(), self.committed.index);
        let post = Post { term, last, commit, role, data: DataState::Ready };
        out.notes.push(RaftNote { action, post });
    }

    /// The replica failed: whatever it was, it takes part in nothing more.
    pub fn note_failure(&self, out: &mut Output) {
        let (term, last, role) = (self.meta.term, self.log.last(), NoteRole::Follower);
        let post = Post { term, last, commit: 0, role, data: DataState::Failed };
        out.notes.push(RaftNote { action: Action::Fail, post });
    }

    fn note_start(&self, ctx: &mut Ctx<'_>) {
        if !self.holds.fresh {
            return self.note(ctx, Action::Restart { vote: self.meta.voted_for });
        }
        let (voters, learners) = self.meta.committed.split_ids();
        self.note(ctx, Action::Create { voters, learners });
    }

    /// The next number of a splitmix64 sequence.
    fn random(&mut self) -> u64 {
        self.rand = self.rand.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rand;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn random_below(&mut self, limit: std::time::Duration) -> std::time::Duration {
        std::time::Duration::from_nanos(self.random() % (limit.as_nanos() as u64).max(1))
    }
}
