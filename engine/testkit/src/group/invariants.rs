//! The invariants of `spec/`, by name, as far as they can be checked from outside after each step.

use std::collections::BTreeMap;

use engine::ids::{OpId, PeerId, Term};
use engine::note::raft::RaftAction;
use engine::raft::interface::LogChange;
use engine::raft::{RaftConfig, RaftEffects, RaftReply, kind};
use engine::time::Timestamp;
use engine::wal::ReplicateEntry;

use super::node::Node;

/// Recorded history that later steps must never contradict.
pub struct Checks {
    leaders: BTreeMap<Term, PeerId>,
    votes: BTreeMap<(Term, PeerId), PeerId>,
    /// Every entry ever appended anywhere, with the preceding operation.
    entries: BTreeMap<OpId, (OpId, ReplicateEntry)>,
    /// Entries that any server reported as committed, from index 1 on.
    pub committed: Vec<ReplicateEntry>,
    /// Committed configurations, the newest last.
    configs: Vec<RaftConfig>,
    /// Commit index and safe time by server and life.
    reached: BTreeMap<(PeerId, u64), (u64, Timestamp)>,
    /// Safe times that were reported, with the end of the log at that time.
    claims: Vec<(Timestamp, u64)>,
    pub elections: u64,
    pub truncations: u64,
    pub changes: u64,
    pub disk_behind: u64,
}

impl Checks {
    pub fn new(initial: RaftConfig) -> Checks {
        Checks {
            leaders: BTreeMap::new(),
            votes: BTreeMap::new(),
            entries: BTreeMap::new(),
            committed: Vec::new(),
            configs: vec![initial],
            reached: BTreeMap::new(),
            claims: Vec::new(),
            elections: 0,
            truncations: 0,
            changes: 0,
            disk_behind: 0,
        }
    }

    pub fn newest_config(&self) -> &RaftConfig {
        self.configs.last().expect("there is an initial one")
    }

    pub fn voted(&mut self, voter: PeerId, term: Term, candidate: PeerId) {
        let vote = *self.votes.entry((term, voter)).or_insert(candidate);
        assert_eq!(vote, candidate, "OneVotePerTerm: {voter} voted twice in term {term}");
    }

    pub fn step(&mut self, nodes: &BTreeMap<PeerId, Node>, at: PeerId, output: &RaftEffects) {
        let node = &nodes[&at];
        let Some(raft) = node.raft() else { return };
        for note in &output.notes {
            match &note.action {
                RaftAction::BecomeLeader => self.led(node, note.post.term),
                RaftAction::GrantVote { candidate, term } => self.granted_in_memory(at, *term, *candidate),
                _ => {}
            }
        }
        for (_, reply) in &output.replies {
            if let RaftReply::Vote(vote) = reply
                && vote.granted
            {
                let meta = node.disk.meta.as_ref().expect("a replica has metadata");
                let in_log = node.disk.log.last().map_or(0, |entry| entry.op.term);
                assert!(meta.term.max(in_log) >= vote.term, "a vote left before it was durable");
            }
            if let RaftReply::Update(update) = reply {
                let acknowledged = update.last_received_current_leader.index;
                assert!(acknowledged <= node.disk.log.len() as u64, "acknowledged before it was durable");
            }
        }
        self.check_log(node, &output.log);
        let committed = raft.committed().index;
        assert!(committed <= raft.last().index, "CommitWithinLog at {at}");
        self.check_commit(node, committed);
        self.check_safe_time(node, raft.safe_time());
        self.check_quorum(nodes);
    }

    fn granted_in_memory(&mut self, voter: PeerId, term: Term, candidate: PeerId) {
        // A vote in memory may be lost in a crash as long as it was not sent; it is checked when it is sent.
        let _ = (voter, term, candidate);
    }

    fn led(&mut self, node: &Node, term: Term) {
        self.elections += 1;
        let leader = *self.leaders.entry(term).or_insert(node.id);
        assert_eq!(leader, node.id, "OneLeaderPerTerm: term {term}");
        for entry in &self.committed {
            let own = node.log.get(entry.op.index as usize - 1);
            assert_eq!(own.map(|e| e.op), Some(entry.op), "LeaderCompleteness: {} in term {term}", node.id);
        }
    }

    fn check_log(&mut self, node: &Node, changes: &[LogChange]) {
        for change in changes {
            match change {
                LogChange::Append { entry, .. } => {
                    let before =
                        entry.op.index.checked_sub(2).map_or(OpId::MIN, |at| node.log[at as usize].op);
                    // The log is the one after the step; an entry appended may have been truncated in it.
                    if node.log.get(entry.op.index as usize - 1).map(|e| e.op) != Some(entry.op) {
                        continue;
                    }
                    let known = self.entries.entry(entry.op).or_insert((before, entry.clone()));
                    assert_eq!(*known, (before, entry.clone()), "LogMatching at {}", node.id);
                }
                LogChange::Truncate { after } => {
                    self.truncations += 1;
                    let reached = self.reached.get(&(node.id, node.life)).map_or(0, |r| r.0);
                    assert!(*after >= reached, "NoCommittedTruncation at {}", node.id);
                }
            }
        }
    }

    fn check_commit(&mut self, node: &Node, committed: u64) {
        let (reached, _) = *self.reached.entry((node.id, node.life)).or_default();
        assert!(committed >= reached, "the commit index of {} went back", node.id);
        if committed > node.disk.log.len() as u64 {
            self.disk_behind += 1;
        }
        for index in reached..committed {
            let entry = &node.log[index as usize];
            match self.committed.get(index as usize) {
                Some(known) => assert_eq!(known, entry, "StateMachineSafety at {}", node.id),
                None => self.first_commit(entry),
            }
        }
        self.reached.get_mut(&(node.id, node.life)).expect("it was just there").0 = committed;
    }

    fn first_commit(&mut self, entry: &ReplicateEntry) {
        if let Some(last) = self.committed.last() {
            let (op, at, before) = (entry.op, entry.timestamp, last.timestamp);
            assert!(
                at > before,
                "timestamps rise along the log: {op} at {at} comes after {} at {before}",
                last.op
            );
        }
        for (safe, last) in &self.claims {
            let late = entry.timestamp <= *safe && entry.op.index > *last;
            assert!(
                !late,
                "RepeatableSnapshot: {} at {} came after {safe} was safe",
                entry.op, entry.timestamp
            );
        }
        if entry.kind == kind::CONFIG {
            self.changes += 1;
            let config = RaftConfig::decode(&entry.payload).expect("a configuration");
            let changed = self.newest_config().voters_changed(&config);
            assert!(changed <= 1, "QuorumsMeet: {changed} voters changed at once");
            self.configs.push(config);
        }
        self.committed.push(entry.clone());
    }

    fn check_safe_time(&mut self, node: &Node, safe: Timestamp) {
        let last = node.log.last().map_or(0, |entry| entry.op.index);
        let (_, before) = self.reached.get_mut(&(node.id, node.life)).expect("its commit was checked");
        assert!(safe >= *before, "SafeTimeMonotone at {}", node.id);
        if safe > *before {
            *before = safe;
            let late = self.committed.iter().skip(last as usize).find(|entry| entry.timestamp <= safe);
            assert!(late.is_none(), "RepeatableSnapshot: {} claims {safe} without {late:?}", node.id);
            // A claim is dropped if a later one with a shorter log covers it.
            self.claims.retain(|(other, at)| *other > safe || *at < last);
            self.claims.push((safe, last));
        }
    }

    /// QuorumKeeps: the last committed entry is durable at, or recorded by the tombstone of, a server of every majority
    /// of the newest committed configuration. (It may be one less than a majority of an even number of voters: the
    /// configuration in force when it was committed can have had one voter less.) A server that does not know where its
    /// log ended votes for no server.
    fn check_quorum(&self, nodes: &BTreeMap<PeerId, Node>) {
        let Some(last) = self.committed.last() else { return };
        let config = self.newest_config();
        let has = |id: PeerId| {
            let (disk, blind) = (&nodes[&id].disk, nodes[&id].has_unknown_log_end());
            let own = disk.log.get(last.op.index as usize - 1).is_some_and(|entry| entry.op == last.op);
            blind || own || disk.tombstone.is_some_and(|op| op >= last.op)
        };
        let count = config.voters().filter(|peer| has(peer.id)).count();
        assert!(
            count + config.majority() > config.voter_count(),
            "QuorumKeeps: {} is at {count} of {config}",
            last.op
        );
    }
}
