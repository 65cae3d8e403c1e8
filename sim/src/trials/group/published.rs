//! Published statuses: other parts of a server see a replica's status as of the last step that says it has changed.

use engine::ids::{PeerId, Term};
use engine::raft::{RaftConfig, RaftStatus, Role};

/// The part of a status for which its readers wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PublishedStatus {
    role: Role,
    term: Term,
    leader: Option<PeerId>,
    committed_config: RaftConfig,
    pending_config: Option<RaftConfig>,
    transferring: bool,
}

impl PublishedStatus {
    pub(super) fn of(status: RaftStatus) -> PublishedStatus {
        let RaftStatus { role, term, leader, committed_config, pending_config, transferring, .. } = status;
        PublishedStatus { role, term, leader, committed_config, pending_config, transferring }
    }
}
