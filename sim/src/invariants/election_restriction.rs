//! ElectionRestriction: no voter grants a vote or a pre-vote to a candidate whose log is behind its own, that is, ends
//! in an older term, or in the same term at a lower index (Raft §5.4.1).
//!
//! A candidate's log is what it had when it started the election. A voter's log is what is durable there, or was
//! before it became a tombstone.

use std::collections::BTreeMap;

use engine::ids::{OpId, PeerId, Term};
use engine::note::raft::RaftAction;

use super::{Invariant, Model, ReplicaEvent};

/// The invariant of this module.
#[derive(Debug, Default)]
pub struct ElectionRestriction {
    /// The highest OpId of each candidate's log when it started an election of a term.
    log_at_election: BTreeMap<(PeerId, Term), OpId>,
}

impl Invariant for ElectionRestriction {
    fn name(&self) -> &'static str {
        "ElectionRestriction"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let at = event.at;
        match &event.note.action {
            RaftAction::StartPreElection { term } | RaftAction::StartElection { term, .. } => {
                let last = before.replicas.get(&at).map(|replica| replica.log.last()).unwrap_or_default();
                let most = self.log_at_election.entry((at, *term)).or_insert(last);
                *most = last.max(*most);
            }
            RaftAction::GrantPreVote { candidate, term } | RaftAction::GrantVote { candidate, term } => {
                let Some(offered) = self.log_at_election.get(&(*candidate, *term)) else { return Ok(()) };
                let mine = before.replicas.get(&at).map(|replica| replica.last_known()).unwrap_or_default();
                if mine > *offered && !before.excused.contains(&at) {
                    return Err(format!(
                        "{at} has a log up to {mine} and grants a vote to {candidate} in term {term}, \
                         whose log ends with \
                         {offered}"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
