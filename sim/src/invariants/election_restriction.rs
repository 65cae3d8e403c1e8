//! ElectionRestriction: nobody votes, or promises in a pre-election to vote, for a candidate whose log is behind its
//! own: ends in an older term, or in the same term sooner (Raft §5.4.1).
//!
//! What a candidate said of its log is what it had when it stood. What a voter must not forget is what is durable
//! there, or was before it became a tombstone.

use std::collections::BTreeMap;

use engine::ids::{OpId, PeerId, Term};
use engine::note::raft::Action;

use super::{Event, Invariant, Model};

/// See the module.
#[derive(Debug, Default)]
pub struct ElectionRestriction {
    /// The most that each candidate had when it stood for a term.
    stood_with: BTreeMap<(PeerId, Term), OpId>,
}

impl Invariant for ElectionRestriction {
    fn name(&self) -> &'static str {
        "ElectionRestriction"
    }

    fn foresee(&mut self, event: &Event, before: &Model) -> Result<(), String> {
        let at = event.at;
        match &event.note.action {
            Action::StartPreElection { term } | Action::StartElection { term, .. } => {
                let last = before.replicas.get(&at).map(|replica| replica.log.last()).unwrap_or_default();
                let most = self.stood_with.entry((at, *term)).or_insert(last);
                *most = last.max(*most);
            }
            Action::GrantPreVote { candidate, term } | Action::GrantVote { candidate, term } => {
                let Some(offered) = self.stood_with.get(&(*candidate, *term)) else { return Ok(()) };
                let mine = before.replicas.get(&at).map(|replica| replica.last_known()).unwrap_or_default();
                if mine > *offered && !before.excused.contains(&at) {
                    return Err(format!(
                        "{at} has a log up to {mine}, and is for {candidate} in term {term}, whose log ends with \
                         {offered}"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
