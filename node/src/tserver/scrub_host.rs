//! The tablet server as the scrubber sees it: which files it has, and the consequence of damage.

use engine::error::Error;
use engine::ids::TabletId;
use engine::raft::Role;

use super::server::TabletServer;
use crate::dirs::ServerDirs;
use crate::hosting::replica::ReplicaHandle;
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

    fn is_busy(&self) -> bool {
        self.maintenance_log.running().is_some() || self.memory.excess_bytes() > 0
    }

    /// Fails the replica, as a read of the damage would, if others can replace it.
    fn damaged<'a>(&'a self, target: &'a ScrubTarget, error: &'a Error) -> BoxFuture<'a, FindingOutcome> {
        Box::pin(async move {
            let Some(replica) = &target.replica else { return FindingOutcome::Reported };
            if !is_replaceable(replica).await {
                return FindingOutcome::Reported;
            }
            replica.fail(error);
            FindingOutcome::ReplicaFailed
        })
    }
}

/// Returns true if the tablet has other replicas, as far as this one knows. Without others this replica serves all that
/// is whole.
async fn is_replaceable(replica: &ReplicaHandle) -> bool {
    let Ok(status) = replica.status_now().await else { return false };
    let has_others = status.committed_config.voter_count() > 1;
    let works = status.leader.is_some() && (status.role != Role::Leader || status.is_quorum_active);
    has_others && works
}
