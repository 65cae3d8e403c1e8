//! Creations of replicas: a server that was down when its tablet was created is asked once it is back.
//!
//! The tablet may run without it, but with one member fewer: the loss of another one would leave it without a majority.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::catalog::{TaskKey, TaskKind};
use engine::ids::{PeerId, TabletId};

use super::CatalogTrial;
use super::group::short;
use super::orders::OPEN_MAX;

/// Time within which a server is asked, beside the longest wait between two calls to it.
const ASKED_AFTER: Duration = Duration::from_secs(6);

impl CatalogTrial {
    /// Checks that each member of a new tablet that has no replica yet is asked to create it.
    pub(super) fn check_created(&mut self) {
        let mut missing = BTreeMap::new();
        let tablets: Vec<TabletId> = self.groups.keys().copied().collect();
        for tablet in tablets {
            for server in self.uncreated(tablet) {
                let since = self.master.uncreated.get(&(tablet, server)).copied().unwrap_or(self.now);
                let waited = self.now - since;
                if waited > ASKED_AFTER + self.config.retry_wait_max {
                    let tablet = short(&tablet);
                    self.report(format!(
                        "{server} is not asked to create {tablet}, which it lacks for {waited:?}"
                    ));
                }
                missing.insert((tablet, server), since);
            }
        }
        self.master.uncreated = missing;
    }

    /// Returns the members of a tablet that its master has placed, that could create a replica now, and that nothing
    /// asks to.
    fn uncreated(&self, id: TabletId) -> Vec<PeerId> {
        let (Some((_, tablet)), Some(group)) = (self.model.tablet(id), self.groups.get(&id)) else {
            return Vec::new();
        };
        // The next master leaves it to the tablet's leader.
        let is_new = tablet.placed && tablet.born >= self.master.since;
        if !is_new || group.configs.len() > 1 || group.pending.is_some() {
            return Vec::new();
        }
        let members = group.members().iter().map(|member| member.server);
        members.filter(|server| self.could_create(*server, id)).collect()
    }

    fn could_create(&self, id: PeerId, tablet: TabletId) -> bool {
        let Some(server) = self.servers.get(&id) else { return false };
        let task = TaskKey { server: id, tablet, kind: TaskKind::Create };
        let serves = server.up && self.now >= server.cut_off_until && self.is_live(id);
        let lacks = !server.replicas.contains_key(&tablet) && !server.deleted.contains(&tablet);
        serves && lacks && !self.master.open.contains(&task) && self.open_at(id) < OPEN_MAX
    }
}
