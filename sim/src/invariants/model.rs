//! A model of one tablet's replication, rebuilt from its replicas' notes.
//!
//! Notes carry no entries, but enough to rebuild every log: a leader appends one entry at a time, and what a follower
//! takes from the leader of a term is a part of that leader's log. So a log is a list of terms by index, and two
//! entries with the same index and term are the same entry.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::ids::{OpId, PeerId, Term};
use engine::note::raft::{NotedDataState, NotedRole, PostState, RaftAction, RaftNote};
use engine::time::Timestamp;

/// An action of one replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaEvent {
    pub at: PeerId,
    /// Simulated time in nanoseconds.
    pub nanos: u64,
    pub note: RaftNote,
}

/// A log: the terms of its entries, from index 1 on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Log {
    terms: Vec<Term>,
}

impl Log {
    pub fn last(&self) -> OpId {
        OpId { term: self.terms.last().copied().unwrap_or_default(), index: self.terms.len() as u64 }
    }

    /// Returns the term of the entry at an index, if there is one; 0 before the first.
    pub fn term(&self, index: u64) -> Option<Term> {
        match index.checked_sub(1) {
            None => Some(0),
            Some(at) => self.terms.get(usize::try_from(at).ok()?).copied(),
        }
    }

    pub fn has(&self, op: OpId) -> bool {
        self.term(op.index) == Some(op.term)
    }

    pub fn truncate(&mut self, after: u64) {
        self.terms.truncate(usize::try_from(after).unwrap_or(usize::MAX));
    }

    pub fn push(&mut self, op: OpId) {
        self.truncate(op.index - 1);
        self.terms.push(op.term);
    }

    /// Takes the entries after `after` up to `to` from another log.
    pub fn take(&mut self, from: &Log, after: u64, to: u64) {
        for index in after + 1..=to {
            let Some(term) = from.term(index) else { return };
            if self.term(index) != Some(term) {
                self.push(OpId { term, index });
            }
        }
    }
}

/// The known state of one replica.
#[derive(Debug, Clone, Default)]
pub struct Replica {
    pub log: Log,
    /// Last durable index of the log.
    pub durable: u64,
    /// True while the replica does not know the end of its log: it could not be opened, and no copy has replaced it.
    pub is_blind: bool,
    /// The log before each truncation that a crash may still undo, oldest first.
    cut: Vec<Log>,
    pub post: Option<PostState>,
    /// The last OpId before it became a tombstone.
    pub remembers: OpId,
    /// The last OpId that it knew when it was deleted.
    deleted_at: OpId,
    /// Number of restarts.
    pub life: u64,
    copies_from: Option<PeerId>,
}

impl Replica {
    /// Returns true if the replica has this entry, or had it as a tombstone remembers. A deleted replica counts as
    /// before its deletion, also after a leader that has not learned of the deletion copied its log there again: its
    /// tablet was dropped, and that is no loss. If the tablet was not dropped, the deletion itself is a violation.
    pub fn knows(&self, op: OpId) -> bool {
        let knows = match self.post.map(|post| post.data) {
            Some(NotedDataState::Ready) => self.log.has(op) && self.durable >= op.index,
            Some(NotedDataState::Tombstoned | NotedDataState::Copying) => self.remembers >= op,
            // Data on its disk is there again when its server is.
            Some(NotedDataState::Failed) => {
                self.log.has(op) && self.durable >= op.index || self.remembers >= op
            }
            Some(NotedDataState::Gone) | None => false,
        };
        knows || self.deleted_at >= op
    }

    /// Returns true if the replica has acknowledged nothing, as far as was noted: the end of its log is known.
    fn never_had_entries(&self) -> bool {
        !self.is_blind && self.cut.is_empty() && self.log.last().max(self.remembers) == OpId::MIN
    }

    /// Returns the last entry that it knows.
    pub fn last_known(&self) -> OpId {
        let index = self.durable.min(self.log.last().index);
        let durable = OpId { term: self.log.term(index).unwrap_or_default(), index };
        match self.post.map(|post| post.data) {
            Some(NotedDataState::Ready) => durable,
            Some(NotedDataState::Failed) => durable.max(self.remembers),
            _ => self.remembers,
        }
    }
}

/// A configuration by the entry that made it; index 0 is the initial one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub voters: BTreeSet<PeerId>,
    pub learners: BTreeSet<PeerId>,
}

impl Config {
    pub fn new(voters: &[PeerId], learners: &[PeerId]) -> Config {
        Config { voters: voters.iter().copied().collect(), learners: learners.iter().copied().collect() }
    }

    pub fn is_member(&self, peer: PeerId) -> bool {
        self.voters.contains(&peer) || self.learners.contains(&peer)
    }

    pub fn majority(&self) -> usize {
        self.voters.len() / 2 + 1
    }
}

/// A committed entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    pub term: Term,
    /// The term of the leader that committed it first.
    pub by: Term,
}

/// The state of a tablet according to the notes so far.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub replicas: BTreeMap<PeerId, Replica>,
    /// The log of each term's leader.
    pub leaders: BTreeMap<Term, Log>,
    pub committed: BTreeMap<u64, Committed>,
    /// The last index that leaders of each term have committed first.
    pub counted: BTreeMap<Term, u64>,
    pub configs: BTreeMap<OpId, Config>,
    pub timestamps: BTreeMap<OpId, Timestamp>,
    /// Voters of the newest committed configuration that were deleted, as those of dropped tablets are.
    pub deleted_voters: Vec<ReplicaEvent>,
    /// The configuration index of each server's replica when it was last opened.
    pub opened_with: BTreeMap<PeerId, u64>,
    /// Servers whose devices have lost data.
    pub excused: BTreeSet<PeerId>,
    /// True if logs are not synced in this run: a power cut may take acknowledged entries.
    pub log_sync_off: bool,
    /// Election timeout of a follower; zero if unknown.
    pub election_timeout: Duration,
    /// Clock error beyond the stated one.
    pub excess_clock_error: Duration,
    /// Silence after which a leader evicts a follower; zero if unknown.
    pub evicted_after: Duration,
    /// Silent servers, each with the start of its silence.
    pub silent: BTreeMap<PeerId, u64>,
    /// End of the last disturbance of each server that had one.
    pub disturbed: BTreeMap<PeerId, u64>,
    /// The log of a copy's source when the copy was opened, by source and sink.
    opened: BTreeMap<(PeerId, PeerId), Log>,
}

impl Model {
    /// Applies an action. Invariants are checked with the model before and after it.
    pub fn take(&mut self, event: &ReplicaEvent) {
        let (at, post) = (event.at, event.note.post);
        let goes = match event.note.action {
            RaftAction::Delete => true,
            RaftAction::Tombstone { cas } => self.is_stale(at, cas),
            _ => false,
        };
        if goes && self.committed_config().is_some_and(|now| now.voters.contains(&at)) {
            self.deleted_voters.push(event.clone());
        }
        let mut replica = self.replicas.remove(&at).unwrap_or_default();
        let is_new = replica.never_had_entries();
        self.act(at, &event.note.action, post, &mut replica);
        replica.is_blind = stays_blind(&event.note, replica.is_blind, is_new);
        replica.post = Some(post);
        self.replicas.insert(at, replica);
        self.commit(at, &event.note);
    }

    fn act(&mut self, at: PeerId, action: &RaftAction, post: PostState, replica: &mut Replica) {
        match action {
            RaftAction::Create { voters, learners } => {
                *replica = Replica { life: replica.life, ..Replica::default() };
                self.configs.insert(OpId::MIN, Config::new(voters, learners));
            }
            RaftAction::BecomeLeader => drop(self.leaders.insert(post.term, replica.log.clone())),
            RaftAction::ClientAppend { op, timestamp, .. } => {
                self.lead(*op, replica);
                self.timestamps.insert(*op, *timestamp);
            }
            RaftAction::ConfigAppend { op, voters, learners, .. } => {
                self.lead(*op, replica);
                self.configs.insert(*op, Config::new(voters, learners));
            }
            RaftAction::LeaderPersist { upto } | RaftAction::FollowerPersist { upto } => {
                replica.durable = replica.durable.max(upto.index);
                // Logs are written in order.
                replica.cut.clear();
            }
            RaftAction::AbortPending { after, .. } => {
                replica.cut.push(replica.log.clone());
                replica.log.truncate(*after);
                replica.durable = replica.durable.min(*after);
            }
            RaftAction::FollowerAppend { prev, upto, .. } => {
                if let Some(leader) = self.leaders.get(&post.term) {
                    replica.log.take(leader, prev.index, upto.index);
                }
            }
            RaftAction::Restart { .. } => {
                // The crash came between the last sync of a copy and its note.
                if post.data == NotedDataState::Ready && replica.copies_from.is_some() {
                    self.finish_copy(at, post, replica);
                }
                restart(replica, post);
            }
            other => self.copy(at, other, post, replica),
        }
    }

    fn lead(&mut self, op: OpId, replica: &mut Replica) {
        replica.log.push(op);
        match self.leaders.get_mut(&op.term) {
            Some(log) => log.push(op),
            None => drop(self.leaders.insert(op.term, replica.log.clone())),
        }
    }

    fn copy(&mut self, at: PeerId, action: &RaftAction, post: PostState, replica: &mut Replica) {
        match action {
            RaftAction::CopyOpen { sink, upto } => {
                let mut log = replica.log.clone();
                log.truncate(upto.index);
                self.opened.insert((at, *sink), log);
            }
            RaftAction::CopyStart { source, .. } => {
                replica.remembers = replica.remembers.max(post.last);
                replica.copies_from = Some(*source);
                replica.log = Log::default();
                replica.durable = 0;
            }
            RaftAction::CopyFinish => self.finish_copy(at, post, replica),
            RaftAction::Tombstone { .. } | RaftAction::CopyAbort => {
                replica.copies_from = None;
                replica.remembers = post.last;
                replica.log = Log::default();
                replica.durable = 0;
            }
            RaftAction::Delete => {
                let deleted_at = replica.last_known().max(replica.deleted_at);
                *replica = Replica { life: replica.life, deleted_at, ..Replica::default() };
            }
            _ => {}
        }
    }

    /// Gives the sink the log that its source had when the copy was opened.
    fn finish_copy(&self, at: PeerId, post: PostState, replica: &mut Replica) {
        let source = replica.copies_from.take();
        let opened = source.and_then(|source| self.opened.get(&(source, at)));
        replica.log = opened.cloned().unwrap_or_default();
        replica.log.truncate(post.last.index);
        replica.durable = post.last.index;
    }

    /// Records as committed what a replica notes as committed.
    fn commit(&mut self, at: PeerId, note: &RaftNote) {
        if !matches!(note.action, RaftAction::AdvanceCommit | RaftAction::FollowerCommit) {
            return;
        }
        let log = &self.replicas[&at].log;
        let known = self.committed.keys().next_back().copied().unwrap_or_default();
        for index in known + 1..=note.post.commit {
            let Some(term) = log.term(index) else { return };
            self.committed.insert(index, Committed { term, by: note.post.term });
            self.counted.insert(note.post.term, index);
        }
    }

    /// Returns the number of these voters that have the entry or are excused.
    pub fn knowing(&self, config: &Config, op: OpId) -> usize {
        let knows = |voter: &&PeerId| {
            let excused = self.excused.contains(*voter);
            excused || self.replicas.get(voter).is_some_and(|replica| replica.knows(op))
        };
        config.voters.iter().filter(knows).count()
    }

    /// Returns the newest committed configuration.
    pub fn committed_config(&self) -> Option<&Config> {
        self.committed_configs().max_by_key(|(op, _)| op.index).map(|(_, config)| config)
    }

    fn committed_configs(&self) -> impl Iterator<Item = (&OpId, &Config)> {
        self.configs.iter().filter(|(op, _)| {
            op.index == 0 || self.committed.get(&op.index).is_some_and(|committed| committed.term == op.term)
        })
    }

    /// Returns the committed configurations after the end of a replica's log. It may have stored them as metadata when
    /// it learnt that the others had committed them, and lost their entries in a crash.
    pub fn committed_configs_after(&self, peer: PeerId) -> impl Iterator<Item = &Config> {
        let post = self.replicas.get(&peer).and_then(|replica| replica.post);
        let end = post.map_or(u64::MAX, |post| post.last.index);
        self.committed_configs().filter(move |(op, _)| op.index > end).map(|(_, config)| config)
    }

    /// Returns true if a request to tombstone a replica predates the newest configuration that the replica has. A
    /// replica without a newer one obeys, though other members may have committed one with it since.
    fn is_stale(&self, peer: PeerId, cas: Option<u64>) -> bool {
        let log = self.replicas.get(&peer).map(|replica| &replica.log);
        let mine = self.configs.keys().filter(|op| log.is_some_and(|log| log.has(**op)));
        let newest = mine.map(|op| op.index).max().unwrap_or_default();
        cas.is_none_or(|cas| cas < newest)
    }

    /// Returns the configuration in force at a replica: the newest in its log, committed or not.
    pub fn config_of(&self, peer: PeerId) -> Option<&Config> {
        self.config_at(peer, u64::MAX).map(|(_, config)| config)
    }

    /// Returns the newest configuration in a replica's log up to an index, and the OpId of its entry.
    pub fn config_at(&self, peer: PeerId, index: u64) -> Option<(OpId, &Config)> {
        let log = &self.replicas.get(&peer)?.log;
        let mine = self.configs.iter().filter(|(op, _)| op.index <= index && log.has(**op));
        mine.max_by_key(|(op, _)| op.index).map(|(op, config)| (*op, config))
    }

    /// Returns true if an operation of this timestamp violates a safe time. Clocks whose error exceeds the stated one
    /// make safe times that no leader can keep.
    pub fn breaks(&self, timestamp: Timestamp, safe: Timestamp) -> bool {
        let wrong = self.excess_clock_error.as_micros() as u64;
        timestamp <= safe && (wrong == 0 || timestamp.micros() <= safe.micros().saturating_sub(wrong))
    }

    pub fn role(&self, peer: PeerId) -> Option<NotedRole> {
        self.replicas.get(&peer)?.post.map(|post| post.role)
    }
}

/// Returns true if a replica does not know the end of its log after an action; `was`: true if it did not before.
/// `is_new`: it never had an entry.
fn stays_blind(note: &RaftNote, was: bool, is_new: bool) -> bool {
    match note.action {
        // What cannot be opened of a new one is left of its first copy: it has acknowledged nothing.
        RaftAction::FailOpen { .. } => note.post.last == OpId::MIN && !is_new,
        // A tombstone, or a copy that has begun, that remembers no OpId.
        RaftAction::Tombstone { .. }
        | RaftAction::CopyStart { .. }
        | RaftAction::CopyAbort
        | RaftAction::Restart { .. }
            if note.post.data != NotedDataState::Ready =>
        {
            was && note.post.last == OpId::MIN
        }
        RaftAction::Restart { .. } | RaftAction::Create { .. } | RaftAction::Delete => false,
        RaftAction::CopyFinish => false,
        _ => was,
    }
}

/// Drops what was not durable, truncations included; what remains is durable.
fn restart(replica: &mut Replica, post: PostState) {
    replica.life += 1;
    let cut = std::mem::take(&mut replica.cut);
    if !replica.log.has(post.last)
        && let Some(before) = cut.into_iter().rev().find(|log| log.has(post.last))
    {
        replica.log = before;
    }
    match post.data {
        NotedDataState::Ready => {
            replica.log.truncate(post.last.index);
            replica.durable = post.last.index;
        }
        _ => {
            replica.copies_from = None;
            replica.remembers = post.last;
            replica.log = Log::default();
            replica.durable = 0;
        }
    }
}
