//! SafeTimeBinds: no leader gives an operation a timestamp at or below a safe time, its own or an earlier leader's.
//!
//! SafeTimeMonotone reports a replica that receives an operation below its safe time. This invariant reports the
//! operation itself, even if no replica with that safe time ever receives it: a reader of the old leader relied on it.
//! It also reports a leader that uses such a safe time later, when it is deposed and does not know it.

use std::collections::BTreeMap;

use engine::ids::{OpId, PeerId, Term};
use engine::note::raft::RaftAction;
use engine::time::Timestamp;

use super::{Invariant, Model, ReplicaEvent};

/// The latest safe time of each term, and the first replica that used it.
#[derive(Debug, Default)]
pub struct SafeTimeBinds {
    by_term: BTreeMap<Term, (Timestamp, PeerId)>,
}

impl SafeTimeBinds {
    /// Checks that no leader of a later term has used a timestamp that the safe time covers: a deposed leader that
    /// does not know it would hide the operation from its readers.
    fn check_later_terms(event: &ReplicaEvent, safe: Timestamp, before: &Model) -> Result<(), String> {
        let term = event.note.post.term;
        let mut later = before.timestamps.range(OpId { term: term + 1, index: 0 }..);
        match later.find(|(_, timestamp)| before.breaks(**timestamp, safe)) {
            None => Ok(()),
            Some((op, timestamp)) => Err(format!(
                "{} uses the safe time {safe} in term {term}, though {op} has the timestamp {timestamp}",
                event.at
            )),
        }
    }
}

impl Invariant for SafeTimeBinds {
    fn name(&self) -> &'static str {
        "SafeTimeBinds"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        match event.note.action {
            RaftAction::SafeTimeAdvance { safe } => {
                let latest = self.by_term.entry(event.note.post.term).or_insert((safe, event.at));
                if latest.0 < safe {
                    *latest = (safe, event.at);
                }
                Self::check_later_terms(event, safe, before)
            }
            RaftAction::ClientAppend { op, timestamp, .. } => {
                let broken = |(_, (safe, _)): &(&Term, &(Timestamp, PeerId))| before.breaks(timestamp, *safe);
                match self.by_term.range(..=op.term).find(broken) {
                    None => Ok(()),
                    Some((term, (safe, by))) => Err(format!(
                        "{} gives {op} the timestamp {timestamp}, though {by} used the safe time {safe} in term {term}",
                        event.at
                    )),
                }
            }
            _ => Ok(()),
        }
    }
}
