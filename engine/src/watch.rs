//! Someone who watches what happens inside: simulators and tests. Nobody, in production.
//!
//! A *mark* names a situation worth reaching: a compaction that met an update, a copy that began anew. Runs
//! that never reach it have not tested it, and a simulator can say so. A mark costs one comparison when nobody
//! watches. Marks are values of the owner's configuration, so there is nothing global about them.

use std::fmt;
use std::sync::Arc;

use crate::ids::{PeerId, TabletId, Uuid};
use crate::note::Note;

/// Who is told.
pub trait Watcher: Send + Sync {
    /// A situation was reached.
    fn mark(&self, mark: &'static str);
    /// A tablet of a server has something to tell. Called in the order in which things happen on that server.
    fn note(&self, server: PeerId, tablet: TabletId, note: &Note);
    /// A server has counted its memory: bytes that it holds, and those that it may.
    fn memory(&self, server: PeerId, bytes: u64, limit: u64) {
        let _ = (server, bytes, limit);
    }
}

/// A way to whoever watches one server, if anyone does.
#[derive(Clone)]
pub struct Watch {
    watcher: Option<Arc<dyn Watcher>>,
    server: PeerId,
}

impl Watch {
    pub fn new(watcher: Arc<dyn Watcher>) -> Watch {
        Watch { watcher: Some(watcher), server: Uuid::ZERO }
    }

    /// The same, for the notes of this server.
    pub fn of(&self, server: PeerId) -> Watch {
        Watch { watcher: self.watcher.clone(), server }
    }

    /// Says that a situation was reached.
    pub fn mark(&self, mark: &'static str) {
        if let Some(watcher) = &self.watcher {
            watcher.mark(mark);
        }
    }

    /// Says so if it was.
    pub fn mark_if(&self, reached: bool, mark: &'static str) {
        if reached {
            self.mark(mark);
        }
    }

    pub fn note(&self, tablet: TabletId, note: &Note) {
        if let Some(watcher) = &self.watcher {
            watcher.note(self.server, tablet, note);
        }
    }

    /// Says how much memory is held of how much.
    pub fn memory(&self, bytes: u64, limit: u64) {
        if let Some(watcher) = &self.watcher {
            watcher.memory(self.server, bytes, limit);
        }
    }
}

impl Default for Watch {
    fn default() -> Watch {
        Watch { watcher: None, server: Uuid::ZERO }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.watcher.is_some() { "watched" } else { "unwatched" })
    }
}

/// Who watches makes no configuration another.
impl PartialEq for Watch {
    fn eq(&self, _: &Watch) -> bool {
        true
    }
}

impl Eq for Watch {}
