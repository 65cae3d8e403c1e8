//! The tablet server as the scrubber sees it: which files it has, and the consequence of damage.

use engine::error::Error;
use engine::ids::TabletId;

use super::server::TabletServer;
use crate::dirs::ServerDirs;
use crate::hosting::tablet_entry::EntryState;
use crate::scrub::{FindingOutcome, ScrubHost, ScrubTarget};
use nyala_common::env::BoxFuture;

impl ScrubHost for TabletServer {
    fn dirs(&self) -> &ServerDirs {
        self.tablets.dirs()
    }

    fn tablets(&self) -> Vec<TabletId> {
        self.tablets.all().iter().map(|entry| entry.id).collect()
    }

    fn find(&self, tablet: TabletId) -> Option<ScrubTarget> {
        let entry = self.tablets.get(tablet)?;
        let replica = match entry.state() {
            EntryState::Running(replica) if !replica.is_stopped() => Some(replica),
            EntryState::Tombstoned(_) => None,
            _ => return None,
        };
        Some(ScrubTarget { tablet, data_dir: entry.data_dir.clone(), replica })
    }

    fn is_opening(&self) -> bool {
        self.tablets.bootstraps().left() > 0
    }

    fn is_busy(&self) -> bool {
        self.maintenance_log.running().is_some() || self.memory.excess_bytes() > 0
    }

    /// Fails the replica, as a read of the damage would, if its tablet can do without it.
    fn damaged<'a>(&'a self, target: &'a ScrubTarget, error: &'a Error) -> BoxFuture<'a, FindingOutcome> {
        Box::pin(async move {
            let Some(replica) = &target.replica else { return FindingOutcome::Reported };
            match replica.fail_if_replaceable(error).await {
                true => FindingOutcome::ReplicaFailed,
                false => FindingOutcome::Reported,
            }
        })
    }
}
