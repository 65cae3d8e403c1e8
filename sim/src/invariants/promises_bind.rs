//! PromisesBind: no leader gives an operation a timestamp that was promised to be past, here or by a leader before it.
//!
//! SafeTimeMonotone objects if a replica that was told a promise gets an operation below it. This one objects to the
//! operation itself, though nobody who relied on the promise may ever get it: a reader of the old leader has.

use std::collections::BTreeMap;

use engine::ids::{PeerId, Term};
use engine::note::raft::Action;
use engine::time::Timestamp;

use super::{Event, Invariant, Model};

/// The latest promise of each term, and who was the first to go by it.
#[derive(Debug, Default)]
pub struct PromisesBind {
    by_term: BTreeMap<Term, (Timestamp, PeerId)>,
}

impl Invariant for PromisesBind {
    fn name(&self) -> &'static str {
        "PromisesBind"
    }

    fn foresee(&mut self, event: &Event, before: &Model) -> Result<(), String> {
        match event.note.action {
            Action::SafeTimeAdvance { safe } => {
                let promised = self.by_term.entry(event.note.post.term).or_insert((safe, event.at));
                if promised.0 < safe {
                    *promised = (safe, event.at);
                }
                Ok(())
            }
            Action::ClientAppend { op, timestamp } => {
                let broken = |(_, (safe, _)): &(&Term, &(Timestamp, PeerId))| before.breaks(timestamp, *safe);
                match self.by_term.range(..=op.term).find(broken) {
                    None => Ok(()),
                    Some((term, (safe, by))) => Err(format!(
                        "{} gives {op} the timestamp {timestamp}, though {by} went by {safe} as past in term {term}",
                        event.at
                    )),
                }
            }
            _ => Ok(()),
        }
    }
}
