//! NeededCopy: a replica that serves, and lacks no more than a few entries of the leader's log, is not made anew by a
//! copy. Leaders keep what a member lacks until that is a good deal (the paper's section 3.3; Kudu's
//! `log_max_segments_to_retain`), and sending it is cheaper than sending everything.
//!
//! Whose own log came with a copy has none of the entries before it, and may have to copy on.

use std::collections::BTreeSet;

use engine::ids::PeerId;
use engine::note::raft::{Action, DataState};

use super::{Event, Invariant, Model};

/// The smallest settings keep more than so many entries, whatever is in them.
const FEW: u64 = 5;

/// See the module.
#[derive(Debug, Default)]
pub struct NeededCopy {
    copied: BTreeSet<PeerId>,
}

impl Invariant for NeededCopy {
    fn name(&self) -> &'static str {
        "NeededCopy"
    }

    fn foresee(&mut self, event: &Event, before: &Model) -> Result<(), String> {
        let (at, source) = match &event.note.action {
            Action::CopyStart { source, .. } => (event.at, *source),
            action => {
                // A copy that ended before its note was written is found at the next start.
                let copying = before.replicas.get(&event.at).and_then(|replica| replica.post);
                let copying = copying.is_some_and(|post| post.data == DataState::Copying);
                if matches!(action, Action::CopyFinish) || copying && matches!(action, Action::Restart { .. })
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
        // A deletion that a crash kept from its note leaves nothing, and the copy says so.
        let had_it = last.index > 0 && event.note.post.last == last;
        let serves = mine.post.is_some_and(|post| post.data == DataState::Ready) && had_it;
        let lacks = end.index.saturating_sub(last.index);
        if serves && theirs.log.has(last) && lacks <= FEW && !self.copied.contains(&source) {
            return Err(format!(
                "{at}, whose log ends with {last}, is made anew by {source}, whose log ends with {end}"
            ));
        }
        Ok(())
    }
}
