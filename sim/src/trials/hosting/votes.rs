//! Vote requests of a candidate that has lost already: to tombstones, copies in progress and failed replicas, too.

use engine::ids::OpId;
use engine::raft::RaftStatus;
use nyala_proto::kudu::consensus::VoteResponsePb;
use nyala_proto::kudu::tablet::TabletDataState;

use super::{HostingTrial, SERVERS, TABLET};
use crate::trials::requests;
use crate::wire::client::CONSENSUS;

/// Operations by which the candidate's log may end before the leader's.
const BEHIND: u64 = 12;

impl HostingTrial {
    /// Deletes the replica of a former member that has failed, if there is one: its tombstone may vote only if it knows
    /// what the replica had.
    fn delete_some_failed(&mut self, status: &RaftStatus) {
        let config = &status.committed_config;
        let failed =
            (0..SERVERS).find(|at| config.peer(self.fleet.ids[*at]).is_none() && self.has_failed(*at));
        if let Some(server) = failed {
            let cas = Some(status.committed_position);
            let _ = self.delete(server, TabletDataState::TabletDataTombstoned, cas);
        }
    }

    /// Deletes the failed replica of a server that is no member, and asks what is left for its vote at once: its
    /// superblock may have the last operation although the server could not read it when it started.
    pub(super) fn ask_deleted(&mut self, server: usize) {
        let Some(status) = self.leader().and_then(|leader| self.status(leader)) else { return };
        if status.committed_config.peer(self.fleet.ids[server]).is_some() {
            return;
        }
        let cas = Some(status.committed_position);
        if self.delete(server, TabletDataState::TabletDataTombstoned, cas).is_ok() {
            self.fleet.note(format!("{server} had failed at its start, and is asked for its vote"));
            self.ask_for_vote(&status, server);
        }
    }

    /// Asks a server for its vote in the leader's term, one without a running replica if there is one. The invariants
    /// check what it grants: one vote a term, and none if it does not know what it had.
    pub(super) fn send_stray_vote(&mut self, server: usize) {
        let Some(status) = self.leader().and_then(|leader| self.status(leader)) else { return };
        self.delete_some_failed(&status);
        let idle = (0..SERVERS).find(|at| self.fleet.up[*at] && self.replica(*at).is_none());
        let to = idle.unwrap_or(server);
        self.ask_for_vote(&status, to);
    }

    /// Asks a server for its vote in the newest leader's term.
    pub(super) fn ask_in_newest_term(&mut self, server: usize) {
        if let Some(status) = self.leader().and_then(|leader| self.status(leader)) {
            self.ask_for_vote(&status, server);
        }
    }

    fn ask_for_vote(&mut self, status: &RaftStatus, to: usize) {
        let index = status.last.index.saturating_sub(self.random.below(BEHIND));
        let last_op = OpId { term: status.last.term, index };
        let request = requests::vote(self.fleet.ids[to], TABLET, status.term, last_op);
        let reply: Result<VoteResponsePb, _> =
            self.fleet.call(to, (CONSENSUS, "RequestConsensusVote"), request);
        let granted = reply.map(|reply| reply.vote_granted());
        self.fleet.note(format!("a candidate with {index} asks {to} for its vote: {granted:?}"));
    }
}
