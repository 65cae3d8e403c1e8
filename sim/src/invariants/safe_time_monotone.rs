//! SafeTimeMonotone: a replica's safe time never falls while it lives, and no operation at or below it comes later.

use std::collections::BTreeMap;

use engine::ids::{OpId, PeerId};
use engine::note::raft::RaftAction;
use engine::time::Timestamp;

use super::{Invariant, Model, ReplicaEvent};

/// Safe times by server.
#[derive(Debug, Default)]
pub struct SafeTimeMonotone {
    safe: BTreeMap<PeerId, Timestamp>,
}

impl Invariant for SafeTimeMonotone {
    fn name(&self) -> &'static str {
        "SafeTimeMonotone"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let at = event.at;
        if super::starts_new_life(&event.note.action) {
            self.safe.remove(&at);
            return Ok(());
        }
        match event.note.action {
            RaftAction::SafeTimeAdvance { safe } => match self.safe.insert(at, safe) {
                Some(former) if former > safe => {
                    Err(format!("{at}'s safe time went from {former} to {safe}"))
                }
                _ => Ok(()),
            },
            RaftAction::FollowerAppend { prev, upto, .. } => {
                let Some(safe) = self.safe.get(&at) else { return Ok(()) };
                let held = before.replicas.get(&at).map(|replica| &replica.log);
                let Some(leader) = before.leaders.get(&event.note.post.term) else { return Ok(()) };
                for index in prev.index + 1..=upto.index {
                    let Some(term) = leader.term(index) else { continue };
                    let op = OpId { term, index };
                    let late =
                        before.timestamps.get(&op).filter(|timestamp| before.breaks(**timestamp, *safe));
                    if let (Some(late), false) = (late, held.is_some_and(|log| log.has(op))) {
                        return Err(format!("{at} takes {op} at {late}, though {safe} was safe"));
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
