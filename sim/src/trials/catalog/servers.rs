//! The made-up tablet servers of a trial: changes that they report soon, and look-ups.

use std::time::Duration;

use engine::catalog::HostPort;
use engine::ids::{PeerId, TabletId};

use super::CatalogTrial;
use super::agenda::Occasion;
use super::group::Replica;

/// Delay of a heartbeat that a change brings about.
const HINT: Duration = Duration::from_millis(3);

impl CatalogTrial {
    /// Records a change of a replica, or its removal, and lets its server report it soon.
    pub(super) fn mark_changed(&mut self, server: PeerId, tablet: TabletId) {
        let Some(at) = self.servers.get_mut(&server) else { return };
        at.mark(tablet);
        if at.up && !std::mem::replace(&mut at.hinted, true) {
            self.agenda.add(self.now + HINT, Occasion::Beat(server));
        }
    }

    /// Returns the replica of a tablet that runs on a server.
    pub(super) fn running(&self, server: PeerId, tablet: TabletId) -> Option<&Replica> {
        self.servers.get(&server)?.running(tablet)
    }

    /// Returns the server with this address.
    pub(super) fn server_at(&self, address: &HostPort) -> Option<PeerId> {
        self.servers.values().find(|server| server.address == *address).map(|server| server.id)
    }

    /// Returns a server, drawn.
    pub(super) fn any_server(&mut self) -> PeerId {
        let ids: Vec<PeerId> = self.servers.keys().copied().collect();
        self.random.pick(&ids)
    }
}
