//! The master as the scrubber sees it: one replica, that of the system tablet.

use std::sync::{Arc, OnceLock};

use engine::error::Error;
use engine::ids::TabletId;

use crate::dirs::{Directory, ServerDirs};
use crate::hosting::replica::ReplicaHandle;
use crate::scrub::{FindingOutcome, ScrubHost, ScrubTarget};
use nyala_common::env::BoxFuture;

/// A master's directories and its system tablet, once that is open.
pub(super) struct MasterScrubHost {
    pub dirs: Arc<ServerDirs>,
    /// The data directory of the system tablet.
    pub data_dir: Arc<Directory>,
    pub replica: Arc<OnceLock<ReplicaHandle>>,
}

impl ScrubHost for MasterScrubHost {
    fn dirs(&self) -> &ServerDirs {
        &self.dirs
    }

    fn tablets(&self) -> Vec<TabletId> {
        self.replica.get().map(|replica| replica.tablet().tablet).into_iter().collect()
    }

    fn find(&self, tablet: TabletId) -> Option<ScrubTarget> {
        let replica = self.replica.get().filter(|replica| !replica.is_stopped())?.clone();
        Some(ScrubTarget { tablet, data_dir: self.data_dir.clone(), replica: Some(replica) })
    }

    fn is_opening(&self) -> bool {
        self.replica.get().is_none()
    }

    fn is_busy(&self) -> bool {
        false
    }

    /// A master works from memory, and nothing replaces it by itself.
    fn damaged<'a>(&'a self, _: &'a ScrubTarget, _: &'a Error) -> BoxFuture<'a, FindingOutcome> {
        Box::pin(async { FindingOutcome::Reported })
    }
}
