//! The sessions of those who copy from this server: each pins files of a replica, so their number is bounded, and one
//! that is not used any more ends by itself. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::error::{Error, Result};
use engine::ids::{PeerId, TabletId, Uuid};
use engine::replica::copy::CopySource;
use engine::time::Instant;

/// All sessions of one server, by their ids.
pub struct Sessions<S = CopySource> {
    /// How many there may be.
    max: usize,
    /// How long one may be unused.
    idle: Duration,
    table: BTreeMap<Uuid, Session<S>>,
}

struct Session<S> {
    requestor: PeerId,
    tablet: TabletId,
    source: Arc<S>,
    used: Instant,
}

impl<S> Sessions<S> {
    pub fn new(max: usize, idle: Duration) -> Sessions<S> {
        Sessions { max, idle, table: BTreeMap::new() }
    }

    pub fn count(&self) -> usize {
        self.table.len()
    }

    /// Makes room for one of this server for this tablet: an earlier one of the same is over. `Throttled` if there are
    /// too many.
    pub fn admit(&mut self, now: Instant, requestor: PeerId, tablet: TabletId) -> Result<()> {
        self.drop_expired(now);
        self.table.retain(|_, session| session.requestor != requestor || session.tablet != tablet);
        if self.table.len() >= self.max {
            let what =
                format!("{} servers copy tablets from here already; ask again later", self.table.len());
            return Err(Error::throttled(what));
        }
        Ok(())
    }

    pub fn begin(
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

    /// What a session may fetch; using it keeps it. `None` if there is none of this id any more.
    pub fn use_one(&mut self, now: Instant, id: Uuid) -> Option<Arc<S>> {
        self.drop_expired(now);
        let session = self.table.get_mut(&id)?;
        session.used = now;
        Some(session.source.clone())
    }

    pub fn is_active(&mut self, now: Instant, id: Uuid) -> bool {
        self.drop_expired(now);
        self.table.contains_key(&id)
    }

    /// Ends a session; false if it had ended before.
    pub fn end(&mut self, id: Uuid) -> bool {
        self.table.remove(&id).is_some()
    }

    /// Ends the sessions of a tablet: it goes away.
    pub fn end_all_of(&mut self, tablet: TabletId) {
        self.table.retain(|_, session| session.tablet != tablet);
    }

    /// Ends sessions that nobody uses; how many.
    pub fn drop_expired(&mut self, now: Instant) -> usize {
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
        let mut sessions: Sessions<&str> = Sessions::new(2, idle);
        let at = |seconds| Instant(0).after(Duration::from_secs(seconds));
        let begin = |sessions: &mut Sessions<&'static str>, seconds, number, server, what| {
            sessions.begin(at(seconds), id(number), id(server), id(7), Arc::new(what)).is_ok()
        };
        assert!(begin(&mut sessions, 0, 1, 100, "first"));
        assert!(begin(&mut sessions, 0, 2, 101, "another server's"));
        assert!(!begin(&mut sessions, 1, 3, 102, "one too many"));
        assert!(begin(&mut sessions, 5, 4, 100, "the first server's again"));
        assert_eq!(sessions.use_one(at(6), id(1)), None, "its first session was replaced");
        assert_eq!(sessions.use_one(at(6), id(4)).as_deref(), Some(&"the first server's again"));
        assert!(sessions.is_active(at(10), id(2)) && !sessions.is_active(at(11), id(2)), "it was never used");
        assert!(begin(&mut sessions, 11, 5, 102, "there is room"));
        assert!(sessions.end(id(4)) && !sessions.end(id(4)));
        sessions.end_all_of(id(7));
        assert_eq!(sessions.count(), 0);
    }
}
