//! LeaderUndisturbed: who heard from a leader a moment ago votes for nobody else, unless the leader itself or an
//! operator asked for the election (Raft dissertation §4.2.3). Only entries count as having heard: heartbeats leave
//! no notes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::ids::{PeerId, Term};
use engine::note::raft::{Action, Role};

use super::{Event, Invariant, Model};

/// Nanoseconds that an answer to a request for a vote may be worth waiting for, at least.
const ANSWERED_WITHIN: u64 = 300_000_000;

/// See the module.
#[derive(Debug, Default)]
pub struct LeaderUndisturbed {
    /// When each follower got entries last.
    heard: BTreeMap<PeerId, u64>,
    /// When it gave its leader up; a vote of the same moment comes of the same request.
    left: BTreeMap<PeerId, u64>,
    /// When it stood for election last.
    stood: BTreeMap<PeerId, u64>,
    /// Elections that were asked for, by candidate and term.
    asked: BTreeSet<(PeerId, Term)>,
}

impl Invariant for LeaderUndisturbed {
    fn name(&self) -> &'static str {
        "LeaderUndisturbed"
    }

    fn foresee(&mut self, event: &Event, before: &Model) -> Result<(), String> {
        let (at, now) = (event.at, event.nanos);
        match &event.note.action {
            Action::FollowerAppend { .. } => {
                self.heard.insert(at, now);
                self.left.remove(&at);
            }
            Action::StartElection { term, asked } => {
                if *asked {
                    self.asked.insert((at, *term));
                }
                self.stand(at, now);
            }
            Action::GrantVote { candidate, term } => {
                let disturbed = self.disturbed(at, now, before) && !self.asked.contains(&(*candidate, *term));
                self.leave(at, now);
                if disturbed {
                    return Err(format!(
                        "{at} votes for {candidate} in term {term}, though its leader lives"
                    ));
                }
            }
            Action::StartPreElection { .. } => self.stand(at, now),
            Action::SeeTerm { .. } | Action::StepDown => self.leave(at, now),
            action if super::begins_anew(action) => drop(self.heard.remove(&at)),
            _ => {}
        }
        Ok(())
    }
}

impl LeaderUndisturbed {
    fn stand(&mut self, at: PeerId, now: u64) {
        self.stood.insert(at, now);
        self.leave(at, now);
    }

    fn leave(&mut self, at: PeerId, now: u64) {
        self.left.entry(at).or_insert(now);
    }

    /// Whether it had a leader until now, who sent it entries within half an election timeout.
    fn disturbed(&self, at: PeerId, now: u64, before: &Model) -> bool {
        let patience = u64::try_from(before.patience.as_nanos()).unwrap_or(u64::MAX) / 2;
        let follows = before.role(at) == Some(Role::Follower);
        let stayed = self.left.get(&at).is_none_or(|left| *left == now);
        let within = |of: &BTreeMap<PeerId, u64>, span: u64| {
            of.get(&at).is_some_and(|then| now.saturating_sub(*then) < span)
        };
        // An answer to who stood for election may bring a newer term, which has no leader yet.
        let answered = within(&self.stood, 2 * patience + ANSWERED_WITHIN);
        let heard = within(&self.heard, patience);
        before.patience > Duration::ZERO && follows && stayed && heard && !answered
    }
}
