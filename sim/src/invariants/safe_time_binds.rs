//! SafeTimeBinds: no leader gives an operation a timestamp at or below a safe time, its own or an earlier leader's.
//!
//! SafeTimeMonotone reports a replica that receives an operation below its safe time. This invariant reports the
//! operation itself, even if no replica with that safe time ever receives it: a reader of the old leader relied on it.

use std::collections::BTreeMap;

use engine::ids::{PeerId, Term};
use engine::note::raft::RaftAction;
use engine::time::Timestamp;

use super::{Invariant, Model, ReplicaEvent};

/// The latest safe time of each term, and the first replica that used it.
#[derive(Debug, Default)]
pub struct SafeTimeBinds {
    by_term: BTreeMap<Term, (Timestamp, PeerId)>,
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
                Ok(())
            }
            RaftAction::ClientAppend { op, timestamp } => {
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
