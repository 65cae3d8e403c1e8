//! ElectionTimeoutKept: a replica stands for election by itself only after an election timeout in which it had no sign
//! of a leader or of a candidate (Raft §5.2). Entries from a leader, its own vote for a candidate and an election of
//! its own restart the timeout. Otherwise elections follow each other before votes can be counted, or depose
//! leaders that are well.
//!
//! Heartbeats leave no notes, so only entries count as signs of a leader.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::ids::PeerId;
use engine::note::raft::RaftAction;

use super::{Invariant, Model, ReplicaEvent};

/// Percentage of the timeout that must have passed: notes are a little younger than the clock readings of their step.
const PASSED_PERCENT: u64 = 90;

/// The invariant of this module.
#[derive(Debug, Default)]
pub struct ElectionTimeoutKept {
    /// Time at which each replica's election timeout began last.
    began: BTreeMap<PeerId, u64>,
}

impl Invariant for ElectionTimeoutKept {
    fn name(&self) -> &'static str {
        "ElectionTimeoutKept"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let (at, now) = (event.at, event.nanos);
        match &event.note.action {
            RaftAction::StartPreElection { term } => {
                let began = self.began.insert(at, now);
                let passed = Duration::from_nanos(now - began.unwrap_or_default());
                let timeout = before.election_timeout;
                if began.is_some()
                    && passed.as_nanos() < timeout.as_nanos() * u128::from(PASSED_PERCENT) / 100
                {
                    return Err(format!(
                        "{at} stands for election in term {term} only {passed:?} after the last sign of a leader or \
                         candidate; its election timeout is {timeout:?}"
                    ));
                }
            }
            RaftAction::FollowerAppend { .. }
            | RaftAction::GrantVote { .. }
            | RaftAction::StartElection { .. } => drop(self.began.insert(at, now)),
            action if super::starts_new_life(action) => drop(self.began.remove(&at)),
            _ => {}
        }
        Ok(())
    }
}
