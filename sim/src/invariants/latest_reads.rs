//! LatestReads: a leader that serves a READ_LATEST scan has applied all that was committed before its term (Raft §8).
//!
//! Client histories rarely show a violation: the next leader has applied most of it, and the writer of the rest must
//! have its reply before another client reads it here.

use engine::ids::{OpId, PeerId, Term};
use engine::time::Timestamp;

use super::Model;

pub const NAME: &str = "LatestReads";

/// Checks a replica that leads in `term` and begins to serve the operations up to `applied`.
pub fn check(at: PeerId, term: Term, applied: Timestamp, model: &Model) -> Result<(), String> {
    match model.newest_before(term) {
        Some((op, timestamp)) if applied < timestamp => Err(format!(
            "{at} leads term {term} and serves the latest up to {applied}, without the committed {op} at {timestamp}"
        )),
        _ => Ok(()),
    }
}

impl Model {
    /// Returns the newest operation with a timestamp that a leader before this term has committed.
    fn newest_before(&self, term: Term) -> Option<(OpId, Timestamp)> {
        let (_, last) = self.counted.range(..term).next_back()?;
        self.committed.range(..=last).rev().find_map(|(index, committed)| {
            let op = OpId { term: committed.term, index: *index };
            Some((op, *self.timestamps.get(&op)?))
        })
    }
}
