//! One tablet's replication, as its replicas' notes tell it.
//!
//! Notes carry no entries, but they say enough to rebuild every log: a leader appends one entry at a time, and what a
//! follower takes from the leader of a term is a part of that leader's log. So a log is a list of terms by index,
//! and two entries with one index and term are the same entry.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::ids::{OpId, PeerId, Term};
use engine::note::raft::{Action, DataState, Post, RaftNote, Role};
use engine::time::Timestamp;

/// An action of one replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub at: PeerId,
    /// Simulated time.
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

    /// The term of the entry at an index, if there is one; 0 before the first.
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

    /// Takes the entries after `from` up to `to` from another log.
    pub fn take(&mut self, from: &Log, after: u64, to: u64) {
        for index in after + 1..=to {
            let Some(term) = from.term(index) else { return };
            if self.term(index) != Some(term) {
                self.push(OpId { term, index });
            }
        }
    }
}

/// What is known of one replica.
#[derive(Debug, Clone, Default)]
pub struct Replica {
    pub log: Log,
    /// How much of the log is durable.
    pub durable: u64,
    /// What the log was before each cut that a crash may still take back, oldest first.
    cut: Vec<Log>,
    pub post: Option<Post>,
    /// The last OpId before it became a tombstone.
    pub remembers: OpId,
    /// The last OpId that it knew when it was deleted.
    deleted_at: OpId,
    /// How often it was restarted.
    pub life: u64,
    copies_from: Option<PeerId>,
}

impl Replica {
    /// Whether it has, or as a tombstone remembers having had, this entry. One that is deleted counts as it was, also
    /// after a leader that has not heard of that copied its log there again: its tablet was dropped, and that is no
    /// loss. If the tablet lives after all, the deletion itself is a finding.
    pub fn knows(&self, op: OpId) -> bool {
        let knows = match self.post.map(|post| post.data) {
            Some(DataState::Ready) => self.log.has(op) && self.durable >= op.index,
            Some(DataState::Tombstoned | DataState::Copying) => self.remembers >= op,
            // What is on its disk is there again when its server is.
            Some(DataState::Failed) => self.log.has(op) && self.durable >= op.index || self.remembers >= op,
            Some(DataState::Gone) | None => false,
        };
        knows || self.deleted_at >= op
    }

    /// The last entry that it knows.
    pub fn last_known(&self) -> OpId {
        let index = self.durable.min(self.log.last().index);
        let durable = OpId { term: self.log.term(index).unwrap_or_default(), index };
        match self.post.map(|post| post.data) {
            Some(DataState::Ready) => durable,
            Some(DataState::Failed) => durable.max(self.remembers),
            _ => self.remembers,
        }
    }
}

/// A configuration by the entry that made it; index 0 is the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub voters: BTreeSet<PeerId>,
}

impl Config {
    pub fn majority(&self) -> usize {
        self.voters.len() / 2 + 1
    }
}

/// A committed entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    pub term: Term,
    /// The term of the leader that counted it first.
    pub by: Term,
}

/// What all notes so far come to.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub replicas: BTreeMap<PeerId, Replica>,
    /// The log of each term's leader.
    pub leaders: BTreeMap<Term, Log>,
    pub committed: BTreeMap<u64, Committed>,
    /// The last index that leaders of each term have counted first.
    pub counted: BTreeMap<Term, u64>,
    pub configs: BTreeMap<OpId, Config>,
    pub timestamps: BTreeMap<OpId, Timestamp>,
    /// Voters of the newest committed configuration that were deleted, as one does with tablets that are dropped.
    pub deleted_voters: Vec<Event>,
    /// The index of the configuration that a server's replica went by when it was last opened.
    pub opened_with: BTreeMap<PeerId, u64>,
    /// Servers that have lost something, for which their devices are to blame.
    pub excused: BTreeSet<PeerId>,
    /// Logs are not synced in this run: a power cut may take what was acknowledged.
    pub log_sync_off: bool,
    /// How long a follower waits for its leader; zero if that is not known.
    pub patience: Duration,
    /// By how much more than they say clocks may be wrong.
    pub clocks_wrong: Duration,
    /// How long a server may be silent until its leaders give it up; zero if that is not known.
    pub given_up: Duration,
    /// Servers that do nothing, each since that moment.
    pub silent: BTreeMap<PeerId, u64>,
    /// The log of a copy's source when the copy was opened, by source and sink.
    opened: BTreeMap<(PeerId, PeerId), Log>,
}

impl Model {
    /// Takes an event in. Invariants look at the model before, then after.
    pub fn take(&mut self, event: &Event) {
        let (at, post) = (event.at, event.note.post);
        let goes = match event.note.action {
            Action::Delete => true,
            Action::Tombstone { cas } => self.is_stale(at, cas),
            _ => false,
        };
        if goes && self.committed_config().is_some_and(|now| now.voters.contains(&at)) {
            self.deleted_voters.push(event.clone());
        }
        let mut replica = self.replicas.remove(&at).unwrap_or_default();
        self.act(at, &event.note.action, post, &mut replica);
        replica.post = Some(post);
        self.replicas.insert(at, replica);
        self.commit(at, &event.note);
    }

    fn act(&mut self, at: PeerId, action: &Action, post: Post, replica: &mut Replica) {
        match action {
            Action::Create { voters, .. } => {
                *replica = Replica { life: replica.life, ..Replica::default() };
                self.configs.insert(OpId::MIN, Config { voters: voters.iter().copied().collect() });
            }
            Action::BecomeLeader => drop(self.leaders.insert(post.term, replica.log.clone())),
            Action::ClientAppend { op, timestamp } => {
                self.lead(*op, replica);
                self.timestamps.insert(*op, *timestamp);
            }
            Action::ConfigAppend { op, voters, .. } => {
                self.lead(*op, replica);
                self.configs.insert(*op, Config { voters: voters.iter().copied().collect() });
            }
            Action::LeaderPersist { upto } | Action::FollowerPersist { upto } => {
                replica.durable = replica.durable.max(upto.index);
                // Logs are written in order.
                replica.cut.clear();
            }
            Action::AbortPending { after, .. } => {
                replica.cut.push(replica.log.clone());
                replica.log.truncate(*after);
                replica.durable = replica.durable.min(*after);
            }
            Action::FollowerAppend { prev, upto, .. } => {
                if let Some(leader) = self.leaders.get(&post.term) {
                    replica.log.take(leader, prev.index, upto.index);
                }
            }
            Action::Restart { .. } => {
                // The crash came between the last sync of a copy and its note.
                if post.data == DataState::Ready && replica.copies_from.is_some() {
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

    fn copy(&mut self, at: PeerId, action: &Action, post: Post, replica: &mut Replica) {
        match action {
            Action::CopyOpen { sink, upto } => {
                let mut log = replica.log.clone();
                log.truncate(upto.index);
                self.opened.insert((at, *sink), log);
            }
            Action::CopyStart { source, .. } => {
                replica.remembers = replica.remembers.max(post.last);
                replica.copies_from = Some(*source);
                replica.log = Log::default();
                replica.durable = 0;
            }
            Action::CopyFinish => self.finish_copy(at, post, replica),
            Action::Tombstone { .. } | Action::CopyAbort => {
                replica.copies_from = None;
                replica.remembers = post.last;
                replica.log = Log::default();
                replica.durable = 0;
            }
            Action::Delete => {
                let deleted_at = replica.last_known().max(replica.deleted_at);
                *replica = Replica { life: replica.life, deleted_at, ..Replica::default() };
            }
            _ => {}
        }
    }

    /// What was copied is the log that its source had when the copy was opened.
    fn finish_copy(&self, at: PeerId, post: Post, replica: &mut Replica) {
        let source = replica.copies_from.take();
        let opened = source.and_then(|source| self.opened.get(&(source, at)));
        replica.log = opened.cloned().unwrap_or_default();
        replica.log.truncate(post.last.index);
        replica.durable = post.last.index;
    }

    /// What a replica says is committed, is committed from now on.
    fn commit(&mut self, at: PeerId, note: &RaftNote) {
        if !matches!(note.action, Action::AdvanceCommit | Action::FollowerCommit) {
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

    /// How many of these voters have the entry, or cannot be blamed if they have not.
    pub fn knowing(&self, config: &Config, op: OpId) -> usize {
        let knows = |voter: &&PeerId| {
            let excused = self.excused.contains(*voter);
            excused || self.replicas.get(voter).is_some_and(|replica| replica.knows(op))
        };
        config.voters.iter().filter(knows).count()
    }

    /// The newest configuration that is committed.
    pub fn committed_config(&self) -> Option<&Config> {
        let is_committed = |(op, _): &(&OpId, &Config)| {
            op.index == 0 || self.committed.get(&op.index).is_some_and(|committed| committed.term == op.term)
        };
        self.configs.iter().filter(is_committed).max_by_key(|(op, _)| op.index).map(|(_, config)| config)
    }

    /// Whether an order to leave a tombstone was decided on before the newest configuration that the replica has: one
    /// that knows no newer one obeys, though others may have agreed on one with it since.
    fn is_stale(&self, peer: PeerId, cas: Option<u64>) -> bool {
        let log = self.replicas.get(&peer).map(|replica| &replica.log);
        let mine = self.configs.keys().filter(|op| log.is_some_and(|log| log.has(**op)));
        let newest = mine.map(|op| op.index).max().unwrap_or_default();
        cas.is_none_or(|cas| cas < newest)
    }

    /// The configuration in force at a replica: the newest in its log, committed or not.
    pub fn config_of(&self, peer: PeerId) -> Option<&Config> {
        let log = &self.replicas.get(&peer)?.log;
        let mine = self.configs.iter().filter(|(op, _)| log.has(**op));
        mine.max_by_key(|(op, _)| op.index).map(|(_, config)| config)
    }

    /// Whether an operation of this timestamp comes too late for a safe time. Clocks that are more wrong than they say
    /// make promises that nobody can keep.
    pub fn breaks(&self, timestamp: Timestamp, safe: Timestamp) -> bool {
        let wrong = self.clocks_wrong.as_micros() as u64;
        timestamp <= safe && (wrong == 0 || timestamp.micros() <= safe.micros().saturating_sub(wrong))
    }

    pub fn role(&self, peer: PeerId) -> Option<Role> {
        self.replicas.get(&peer)?.post.map(|post| post.role)
    }
}

/// What was not durable may be gone, a cut of the log too; what is still there is durable.
fn restart(replica: &mut Replica, post: Post) {
    replica.life += 1;
    let cut = std::mem::take(&mut replica.cut);
    if !replica.log.has(post.last)
        && let Some(before) = cut.into_iter().rev().find(|log| log.has(post.last))
    {
        replica.log = before;
    }
    match post.data {
        DataState::Ready => {
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
