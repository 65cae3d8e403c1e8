//! Voters of a group trial's tablet.

use engine::raft::RaftStatus;

use super::ids::server_of;

/// Returns the servers of the voters but the leader.
pub(super) fn other_voters(leader: usize, status: &RaftStatus) -> Vec<usize> {
    let voters = status.committed_config.voters().map(|peer| server_of(peer.id));
    voters.filter(|server| *server != leader).collect()
}
