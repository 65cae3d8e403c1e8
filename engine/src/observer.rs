//! Observer of the engine's internals, for simulators and tests. In production there is none.
//!
//! A *mark* names a situation worth reaching, for example a compaction that met an update, or a copy that was
//! restarted. Runs that never reach it have not tested it, and a simulator can report that. A mark costs one comparison
//! if there is no observer. The observer is part of the owner's configuration, so there is no global state.

use std::fmt;
use std::sync::Arc;

use crate::ids::{PeerId, TabletId, Uuid};
use crate::note::Note;

/// Receiver of marks, notes and memory readings.
pub trait Observer: Send + Sync {
    /// Reports that a situation was reached.
    fn mark(&self, mark: &'static str);
    /// Reports a note of a server's tablet. Notes arrive in the order of the events on that server.
    fn note(&self, server: PeerId, tablet: TabletId, note: &Note);
    /// Reports the tracked bytes of a server and its limit.
    fn memory(&self, server: PeerId, bytes: u64, limit: u64) {
        let _ = (server, bytes, limit);
    }
}

/// Handle to the observer of one server, if there is one.
#[derive(Clone)]
pub struct ObserverHandle {
    observer: Option<Arc<dyn Observer>>,
    server: PeerId,
}

impl ObserverHandle {
    pub fn new(observer: Arc<dyn Observer>) -> ObserverHandle {
        ObserverHandle { observer: Some(observer), server: Uuid::ZERO }
    }

    /// Returns the handle for the notes of this server.
    pub fn of(&self, server: PeerId) -> ObserverHandle {
        ObserverHandle { observer: self.observer.clone(), server }
    }

    /// Returns true if there is an observer. What only marks need is not computed without one.
    pub fn is_present(&self) -> bool {
        self.observer.is_some()
    }

    /// Reports that a situation was reached.
    pub fn mark(&self, mark: &'static str) {
        if let Some(observer) = &self.observer {
            observer.mark(mark);
        }
    }

    /// Reports a situation if `reached`.
    pub fn mark_if(&self, reached: bool, mark: &'static str) {
        if reached {
            self.mark(mark);
        }
    }

    pub fn note(&self, tablet: TabletId, note: &Note) {
        if let Some(observer) = &self.observer {
            observer.note(self.server, tablet, note);
        }
    }

    /// Reports the tracked bytes and the limit.
    pub fn memory(&self, bytes: u64, limit: u64) {
        if let Some(observer) = &self.observer {
            observer.memory(self.server, bytes, limit);
        }
    }
}

impl Default for ObserverHandle {
    fn default() -> ObserverHandle {
        ObserverHandle { observer: None, server: Uuid::ZERO }
    }
}

impl fmt::Debug for ObserverHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.observer.is_some() { "watched" } else { "unwatched" })
    }
}

/// The observer is not part of a configuration's identity.
impl PartialEq for ObserverHandle {
    fn eq(&self, _: &ObserverHandle) -> bool {
        true
    }
}

impl Eq for ObserverHandle {}
