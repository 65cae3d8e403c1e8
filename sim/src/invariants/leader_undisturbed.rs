//! LeaderUndisturbed: a server that received entries from a leader within half an election timeout votes for no other
//! candidate, unless the leader itself or an operator requested the election (Raft dissertation §4.2.3). Only entries
//! count: heartbeats leave no notes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::ids::{PeerId, Term};
use engine::note::raft::{NotedRole, RaftAction};

use super::{Invariant, Model, ReplicaEvent};

/// Nanoseconds within which the reply to a vote request arrives, at least.
const ANSWERED_WITHIN: u64 = 300_000_000;

/// The invariant of this module.
#[derive(Debug, Default)]
pub struct LeaderUndisturbed {
    /// Last time each follower received entries.
    last_received: BTreeMap<PeerId, u64>,
    /// Last time each server abandoned its leader; a vote at the same time has the same cause.
    abandoned: BTreeMap<PeerId, u64>,
    /// Last time each server started an election.
    last_election: BTreeMap<PeerId, u64>,
    /// Elections started on request, by candidate and term.
    requested: BTreeSet<(PeerId, Term)>,
}

impl Invariant for LeaderUndisturbed {
    fn name(&self) -> &'static str {
        "LeaderUndisturbed"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let (at, now) = (event.at, event.nanos);
        match &event.note.action {
            RaftAction::FollowerAppend { .. } => {
                self.last_received.insert(at, now);
                self.abandoned.remove(&at);
            }
            RaftAction::StartElection { term, asked } => {
                if *asked {
                    self.requested.insert((at, *term));
                }
                self.start_election(at, now);
            }
            RaftAction::GrantVote { candidate, term } => {
                let disturbed =
                    self.disturbed(at, now, before) && !self.requested.contains(&(*candidate, *term));
                self.abandon(at, now);
                if disturbed {
                    return Err(format!(
                        "{at} votes for {candidate} in term {term}, though its leader is alive"
                    ));
                }
            }
            RaftAction::StartPreElection { .. } => self.start_election(at, now),
            RaftAction::SeeTerm { .. } | RaftAction::StepDown => self.abandon(at, now),
            action if super::starts_new_life(action) => drop(self.last_received.remove(&at)),
            _ => {}
        }
        Ok(())
    }
}

impl LeaderUndisturbed {
    fn start_election(&mut self, at: PeerId, now: u64) {
        self.last_election.insert(at, now);
        self.abandon(at, now);
    }

    fn abandon(&mut self, at: PeerId, now: u64) {
        self.abandoned.entry(at).or_insert(now);
    }

    /// Returns true if the server had a leader until now that sent it entries within half an election timeout.
    fn disturbed(&self, at: PeerId, now: u64, before: &Model) -> bool {
        let election_timeout = u64::try_from(before.election_timeout.as_nanos()).unwrap_or(u64::MAX) / 2;
        let follows = before.role(at) == Some(NotedRole::Follower);
        let stayed = self.abandoned.get(&at).is_none_or(|abandoned| *abandoned == now);
        let within = |of: &BTreeMap<PeerId, u64>, span: u64| {
            of.get(&at).is_some_and(|then| now.saturating_sub(*then) < span)
        };
        // A reply to an election it started may bring a newer term, which has no leader yet.
        let answered = within(&self.last_election, 2 * election_timeout + ANSWERED_WITHIN);
        let last_received = within(&self.last_received, election_timeout);
        before.election_timeout > Duration::ZERO && follows && stayed && last_received && !answered
    }
}
