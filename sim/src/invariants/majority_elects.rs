//! MajorityElects: a majority of voters that nothing disturbs does not repeat pre-votes without an election.
//! One of them has the best log, and after one round each knows the highest term, so its next pre-vote succeeds
//! (dissertation §9.6; etcd 8501 is a violation).
//!
//! ```text
//! disturbance of a or b ──┤ settle ├ a: pre-vote … pre-vote … pre-vote      ┐ both ROUNDS times in the same terms:
//!                                     b:     pre-vote … pre-vote … pre-vote ┘ violation
//! ```
//!
//! An election, a vote and whatever a replica receives from a leader begin its count again. A member whose disk has not
//! stored its last vote or term answers nothing until then, so it does not count, and neither does any pre-vote before:
//! slow disks delay that for long.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use engine::ids::{PeerId, Term};
use engine::note::raft::RaftAction;

use super::{Invariant, Model, ReplicaEvent};

/// Pre-votes of each member of the majority.
const ROUNDS: usize = 5;
/// Time after a disturbance until connections and retransmitted segments are as before.
const SETTLE: Duration = Duration::from_secs(4);

/// The invariant of this module.
#[derive(Debug, Default)]
pub struct MajorityElects {
    rounds: BTreeMap<PeerId, PreVotes>,
    /// Members whose last vote or term is being stored.
    storing: BTreeSet<PeerId>,
    /// Time at which each member has stored its last one: pre-votes before that had no answer.
    stored: BTreeMap<PeerId, u64>,
}

/// The last pre-votes of a replica.
#[derive(Debug, Default)]
struct PreVotes {
    term: Term,
    times: VecDeque<u64>,
}

impl Invariant for MajorityElects {
    fn name(&self) -> &'static str {
        "MajorityElects"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let at = event.at;
        self.note_storing(event);
        match &event.note.action {
            RaftAction::StartPreElection { term } => {
                let rounds = self.rounds.entry(at).or_default();
                if std::mem::replace(&mut rounds.term, *term) != *term {
                    rounds.times.clear();
                }
                rounds.times.push_back(event.nanos);
                if rounds.times.len() > ROUNDS {
                    rounds.times.pop_front();
                }
                self.check(event, before)
            }
            RaftAction::GrantPreVote { .. }
            | RaftAction::LeaderPersist { .. }
            | RaftAction::FollowerPersist { .. }
            | RaftAction::CopyOpen { .. } => Ok(()),
            _ => {
                self.rounds.remove(&at);
                Ok(())
            }
        }
    }
}

impl MajorityElects {
    fn note_storing(&mut self, event: &ReplicaEvent) {
        match &event.note.action {
            RaftAction::GrantVote { .. } | RaftAction::SeeTerm { .. } | RaftAction::StartElection { .. } => {
                self.storing.insert(event.at);
            }
            RaftAction::MetaPersist { .. } | RaftAction::Restart { .. } => {
                self.storing.remove(&event.at);
                self.stored.insert(event.at, event.nanos);
            }
            _ => {}
        }
    }

    fn check(&self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let stuck =
            |peer: &PeerId| self.rounds.get(peer).is_some_and(|rounds| rounds.is_stuck(*peer, before));
        let peers = self.rounds.keys().copied();
        let stuck: Vec<PeerId> = peers.filter(|peer| !self.storing.contains(peer) && stuck(peer)).collect();
        let answered_from = stuck.iter().filter_map(|peer| self.stored.get(peer)).max().copied();
        let answered = |peer: &PeerId| self.rounds[peer].times.front().copied() >= answered_from;
        let stuck: Vec<PeerId> = stuck.into_iter().filter(answered).collect();
        let is_majority = |peer: &PeerId| {
            let voters = before.config_of(*peer).map(|config| (config, config.majority()));
            voters.is_some_and(|(config, majority)| {
                stuck.iter().filter(|peer| config.voters.contains(peer)).count() >= majority
            })
        };
        if stuck.contains(&event.at) && stuck.iter().all(is_majority) {
            let terms: Vec<String> = stuck.iter().map(|peer| self.told(peer)).collect();
            return Err(format!(
                "{} are a majority that nothing disturbs, and hold pre-votes without an election: {}",
                stuck.len(),
                terms.join(", ")
            ));
        }
        Ok(())
    }

    fn told(&self, peer: &PeerId) -> String {
        format!("{peer} {ROUNDS} times for term {}", self.rounds.get(peer).map_or(0, |rounds| rounds.term))
    }
}

impl PreVotes {
    /// Returns true if all rounds came after disturbances of the peer had settled.
    fn is_stuck(&self, peer: PeerId, before: &Model) -> bool {
        let disturbed = before.disturbed.get(&peer).copied();
        let calm_from = disturbed.map_or(0, |until| until.saturating_add(SETTLE.as_nanos() as u64));
        let known = !before.excused.contains(&peer) && !before.election_timeout.is_zero();
        known && self.times.len() == ROUNDS && self.times.front().is_some_and(|first| *first >= calm_from)
    }
}
