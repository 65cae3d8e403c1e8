//! NecessaryCopy: a serving replica that lacks only a few entries of the leader's log is not replaced by a tablet copy.
//! Leaders retain the entries that a member lacks up to a limit (the paper's section 3.3; Kudu's
//! `log_max_segments_to_retain`), and sending them is cheaper than copying the tablet.
//!
//! A leader whose own log came with a copy has none of the entries before it, and may have to copy.

use std::collections::BTreeSet;

use engine::ids::PeerId;
use engine::note::raft::{NotedDataState, RaftAction};

use super::{Invariant, Model, ReplicaEvent};

/// Entries that the smallest limits retain, whatever their size.
const FEW: u64 = 5;

/// The invariant of this module.
#[derive(Debug, Default)]
pub struct NecessaryCopy {
    copied: BTreeSet<PeerId>,
}

impl Invariant for NecessaryCopy {
    fn name(&self) -> &'static str {
        "NecessaryCopy"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let (at, source) = match &event.note.action {
            RaftAction::CopyStart { source, .. } => (event.at, *source),
            action => {
                // A copy that ended before its note was written is found at the next start.
                let copying = before.replicas.get(&event.at).and_then(|replica| replica.post);
                let copying = copying.is_some_and(|post| post.data == NotedDataState::Copying);
                if matches!(action, RaftAction::CopyFinish)
                    || copying && matches!(action, RaftAction::Restart { .. })
                {
                    self.copied.insert(event.at);
                }
                return Ok(());
            }
        };
        let (Some(mine), Some(theirs)) = (before.replicas.get(&at), before.replicas.get(&source)) else {
            return Ok(());
        };
        let (last, end) = (mine.log.last(), theirs.log.last());
        // A deletion whose note a crash prevented leaves nothing, and the copy's note says so.
        let had_it = last.index > 0 && event.note.post.last == last;
        let serves = mine.post.is_some_and(|post| post.data == NotedDataState::Ready) && had_it;
        let lacks = end.index.saturating_sub(last.index);
        if serves && theirs.log.has(last) && lacks <= FEW && !self.copied.contains(&source) {
            return Err(format!(
                "{at}, whose log ends with {last}, is copied again from {source}, whose log ends with {end}"
            ));
        }
        Ok(())
    }
}
