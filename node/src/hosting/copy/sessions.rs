//! Sessions of sinks that copy from this server. Each pins files of a replica, so their number is bounded and idle ones
//! expire. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::error::{Error, Result};
use engine::ids::{PeerId, TabletId, Uuid};
use engine::time::Instant;

/// All sessions of one server, by id. `S` is the source's fixed state.
pub(super) struct CopySessions<S> {
    /// Largest number of sessions.
    max: usize,
    /// Idle time after which a session expires.
    idle: Duration,
    table: BTreeMap<Uuid, Session<S>>,
}

struct Session<S> {
    requestor: PeerId,
    tablet: TabletId,
    source: Arc<S>,
    used: Instant,
}

impl<S> CopySessions<S> {
    pub(super) fn new(max: usize, idle: Duration) -> CopySessions<S> {
        CopySessions { max, idle, table: BTreeMap::new() }
    }

    pub(super) fn count(&self) -> usize {
        self.table.len()
    }

    /// Admits a session of a server for a tablet and ends an earlier one of the same pair. `Throttled` if there are too
    /// many.
    pub(super) fn admit(&mut self, now: Instant, requestor: PeerId, tablet: TabletId) -> Result<()> {
        self.drop_expired(now);
        self.table.retain(|_, session| session.requestor != requestor || session.tablet != tablet);
        if self.table.len() >= self.max {
            let message =
                format!("{} servers copy tablets from here already; ask again later", self.table.len());
            return Err(Error::throttled(message));
        }
        Ok(())
    }

    pub(super) fn begin(
        &mut self,
        now: Instant,
        id: Uuid,
        requestor: PeerId,
        tablet: TabletId,
        source: Arc<S>,
    ) -> Result<()> {
        self.admit(now, requestor, tablet)?;
        self.table.insert(id, Session { requestor, tablet, source, used: now });
        Ok(())
    }

    /// Returns the source of a session and extends its life. `None` if no session has this id.
    pub(super) fn use_one(&mut self, now: Instant, id: Uuid) -> Option<Arc<S>> {
        self.drop_expired(now);
        let session = self.table.get_mut(&id)?;
        session.used = now;
        Some(session.source.clone())
    }

    pub(super) fn is_active(&mut self, now: Instant, id: Uuid) -> bool {
        self.drop_expired(now);
        self.table.contains_key(&id)
    }

    /// Ends a session. Returns false if it had ended before.
    pub(super) fn end(&mut self, id: Uuid) -> bool {
        self.table.remove(&id).is_some()
    }

    /// Ends the sessions of a tablet that is being deleted.
    pub(super) fn end_all_of(&mut self, tablet: TabletId) {
        self.table.retain(|_, session| session.tablet != tablet);
    }

    /// Ends idle sessions and returns their number.
    pub(super) fn drop_expired(&mut self, now: Instant) -> usize {
        let before = self.table.len();
        let idle = self.idle;
        self.table.retain(|_, session| now.since(session.used) <= idle);
        before - self.table.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> Uuid {
        Uuid([n; 16])
    }

    #[test]
    fn sessions_are_bounded_replaced_and_expire() {
        let idle = Duration::from_secs(10);
        let mut sessions: CopySessions<&str> = CopySessions::new(2, idle);
        let at = |seconds| Instant(0).after(Duration::from_secs(seconds));
        let begin = |sessions: &mut CopySessions<&'static str>, seconds, number, server, message| {
            sessions.begin(at(seconds), id(number), id(server), id(7), Arc::new(message)).is_ok()
        };
        assert!(begin(&mut sessions, 0, 1, 100, "first"));
        assert!(begin(&mut sessions, 0, 2, 101, "another server's"));
        assert!(!begin(&mut sessions, 1, 3, 102, "one too many"));
        assert!(begin(&mut sessions, 5, 4, 100, "the first server's again"));
        assert_eq!(sessions.use_one(at(6), id(1)), None, "its first session was replaced");
        assert_eq!(sessions.use_one(at(6), id(4)).as_deref(), Some(&"the first server's again"));
        assert!(sessions.is_active(at(10), id(2)) && !sessions.is_active(at(11), id(2)), "it was never used");
        assert!(begin(&mut sessions, 11, 5, 102, "the limit is not reached"));
        assert!(sessions.end(id(4)) && !sessions.end(id(4)));
        sessions.end_all_of(id(7));
        assert_eq!(sessions.count(), 0);
    }
}
