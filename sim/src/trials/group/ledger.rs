//! The ledger of a group trial: its tablet's entries, commits, leaders and votes, which nothing may contradict.

use std::collections::BTreeMap;

use bytes::Bytes;
use engine::ids::{OpId, PeerId, Term};
use engine::raft::RaftConfig;
use engine::raft::kind;
use engine::time::Timestamp;
use engine::wal::ReplicateEntry;

/// The history of a group.
#[derive(Default)]
pub(super) struct Ledger {
    /// Every entry that was appended anywhere.
    entries: BTreeMap<OpId, ReplicateEntry>,
    /// Committed entries from index 1 on, with their outcomes.
    committed: Vec<(ReplicateEntry, Bytes)>,
    configs: BTreeMap<u64, RaftConfig>,
    leaders: BTreeMap<Term, PeerId>,
    votes: BTreeMap<(Term, PeerId), PeerId>,
    /// The first timestamp behind every snapshot that was read: no operation below it may follow.
    served: Timestamp,
}

impl Ledger {
    /// Records an entry that a replica appends; returns what is wrong with it.
    pub(super) fn append(&mut self, entry: &ReplicateEntry) -> Option<String> {
        let known = self.entries.entry(entry.op).or_insert_with(|| entry.clone());
        (known != entry).then(|| format!("LogMatching: there are two entries {}", entry.op))
    }

    /// Records that a replica applied an operation. Returns it if no other replica did before.
    pub(super) fn commit(&mut self, op: OpId, outcome: &Bytes) -> Result<Option<ReplicateEntry>, String> {
        let entry = self.entries.get(&op).ok_or_else(|| format!("{op} is applied and was never appended"))?;
        if let Some((known, same)) = self.committed.get(op.index as usize - 1) {
            return match known.op == op && same == outcome {
                true => Ok(None),
                false if known.op == op => Err(format!("the outcome of {op} differs between replicas")),
                false => Err(format!("StateMachineSafety: {op} is applied in place of {}", known.op)),
            };
        }
        if op.index != self.committed.len() as u64 + 1 {
            return Err(format!("{op} is applied, but only {} operations before it", self.committed.len()));
        }
        if self.committed.last().is_some_and(|(last, _)| last.timestamp >= entry.timestamp) {
            return Err(format!("{op} has a timestamp that is not above the one before it"));
        }
        if entry.timestamp < self.served {
            return Err(format!(
                "RepeatableSnapshot: {op} at {} is committed after a snapshot of {} was read",
                entry.timestamp, self.served
            ));
        }
        if entry.kind == kind::CONFIG {
            let config = RaftConfig::decode(&entry.payload).map_err(|error| error.to_string())?;
            self.configs.insert(op.index, config);
        }
        self.committed.push((entry.clone(), outcome.clone()));
        Ok(Some(entry.clone()))
    }

    /// Returns the committed entry of an index.
    pub(super) fn at(&self, index: u64) -> Option<&ReplicateEntry> {
        self.committed.get((index as usize).checked_sub(1)?).map(|(entry, _)| entry)
    }

    pub(super) fn last(&self) -> OpId {
        self.committed.last().map_or(OpId::MIN, |(entry, _)| entry.op)
    }

    /// Returns the newest committed configuration, if there was a change.
    pub(super) fn newest_config(&self) -> Option<&RaftConfig> {
        self.configs.values().next_back()
    }

    /// Records a read of everything below a timestamp.
    pub(super) fn serve(&mut self, before: Timestamp) {
        self.served = self.served.max(before);
    }

    /// Returns the newest term that had a leader.
    pub(super) fn newest_term(&self) -> Term {
        self.leaders.keys().next_back().copied().unwrap_or_default()
    }

    pub(super) fn lead(&mut self, server: PeerId, term: Term) -> Option<String> {
        let leader = *self.leaders.entry(term).or_insert(server);
        (leader != server).then(|| format!("OneLeaderPerTerm: {leader} and {server} lead in term {term}"))
    }

    pub(super) fn vote(&mut self, voter: PeerId, term: Term, candidate: PeerId) -> Option<String> {
        let vote = *self.votes.entry((term, voter)).or_insert(candidate);
        (vote != candidate)
            .then(|| format!("OneVotePerTerm: {voter} votes for {vote} and for {candidate} in term {term}"))
    }

    /// Compares a replica's committed configuration, when it has committed up to an index, with the log's.
    pub(super) fn check_config(&self, config: &RaftConfig, committed: u64) -> Option<String> {
        let index = config.opid_index.unwrap_or(0);
        if let Some((newest, _)) = self.configs.range(..=committed).next_back()
            && *newest > index
        {
            return Some(format!("{config} is in force, although {newest} of {committed} is committed"));
        }
        let known = self.configs.get(&index)?;
        (known.peers != config.peers).then(|| format!("{config} differs from the committed {known}"))
    }
}

#[cfg(test)]
impl Ledger {
    /// Returns the number of terms that had a leader.
    pub(super) fn elections(&self) -> usize {
        self.leaders.len()
    }

    /// Returns the number of committed changes of members.
    pub(super) fn changes(&self) -> usize {
        self.configs.len()
    }
}

#[cfg(test)]
mod tests {
    use engine::ids::Uuid;

    use super::*;

    const A: PeerId = Uuid([0xa; 16]);
    const B: PeerId = Uuid([0xb; 16]);

    fn entry(term: Term, index: u64, at: u64) -> ReplicateEntry {
        let payload = Bytes::from(format!("{term}.{index}"));
        ReplicateEntry { op: OpId { term, index }, timestamp: Timestamp(at), kind: kind::WRITE, payload }
    }

    /// Returns a ledger of two entries at 10 and 20, of which the first one is committed.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        for entry in [entry(1, 1, 10), entry(1, 2, 20), entry(2, 2, 15)] {
            assert_eq!(ledger.append(&entry), None);
        }
        assert!(ledger.commit(OpId { term: 1, index: 1 }, &Bytes::new()).is_ok_and(|new| new.is_some()));
        ledger
    }

    #[test]
    fn a_second_replica_may_commit_the_same_only() {
        let mut ledger = ledger();
        let first = OpId { term: 1, index: 1 };
        assert_eq!(ledger.commit(first, &Bytes::new()), Ok(None));
        assert!(ledger.commit(first, &Bytes::from_static(b"other")).is_err(), "another outcome");
        assert!(ledger.commit(OpId { term: 3, index: 2 }, &Bytes::new()).is_err(), "never appended");
        ledger.commit(OpId { term: 1, index: 2 }, &Bytes::new()).expect("it is the next one");
        assert!(ledger.commit(OpId { term: 2, index: 2 }, &Bytes::new()).is_err(), "StateMachineSafety");
    }

    #[test]
    fn one_entry_one_leader_and_one_vote() {
        let mut ledger = ledger();
        assert!(ledger.append(&entry(1, 1, 11)).is_some());
        assert_eq!([ledger.lead(A, 1), ledger.vote(B, 1, A)], [None, None]);
        assert_eq!([ledger.lead(A, 1), ledger.vote(B, 1, A)], [None, None]);
        assert!(ledger.lead(B, 1).is_some() && ledger.vote(B, 1, B).is_some());
        assert_eq!((ledger.lead(B, 2), ledger.vote(B, 2, B)), (None, None));
    }

    #[test]
    fn nothing_is_committed_below_a_snapshot_that_was_read() {
        let mut ledger = ledger();
        ledger.serve(Timestamp(15));
        assert!(ledger.commit(OpId { term: 2, index: 2 }, &Bytes::new()).is_ok());
        let mut ledger = self::ledger();
        ledger.serve(Timestamp(16));
        assert!(ledger.commit(OpId { term: 2, index: 2 }, &Bytes::new()).is_err());
    }
}
