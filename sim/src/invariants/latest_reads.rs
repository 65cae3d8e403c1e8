//! LatestReads: a leader that is asked for the latest has applied all that was committed before it led (Raft §8).
//!
//! What clients saw rarely shows the lack: the next leader has applied most of it, and who wrote the rest must be
//! answered before somebody else reads it here.

use engine::ids::{OpId, PeerId, Term};
use engine::time::Timestamp;

use super::Model;

pub const NAME: &str = "LatestReads";

/// A replica that leads in `term` begins to serve what it has up to `applied`.
pub fn check(at: PeerId, term: Term, applied: Timestamp, model: &Model) -> Result<(), String> {
    match model.newest_before(term) {
        Some((op, timestamp)) if applied < timestamp => Err(format!(
            "{at} leads term {term} and serves the latest up to {applied}, without the committed {op} at {timestamp}"
        )),
        _ => Ok(()),
    }
}

impl Model {
    /// The newest operation that a leader before this term has counted as committed, of those with timestamps.
    fn newest_before(&self, term: Term) -> Option<(OpId, Timestamp)> {
        let (_, last) = self.counted.range(..term).next_back()?;
        self.committed.range(..=last).rev().find_map(|(index, committed)| {
            let op = OpId { term: committed.term, index: *index };
            Some((op, *self.timestamps.get(&op)?))
        })
    }
}
