//! Learners of a quiet group that get their mark for promotion late. Nothing else happens then, and they must become
//! voters.

use std::time::Duration;

use nyala_proto::kudu::consensus::raft_peer_pb::MemberType;
use nyala_proto::kudu::consensus::{ChangeConfigType, RaftPeerPb};

use super::HostingTrial;

/// Interval between looks, and their number until the learner has a replica, and until it is a voter.
const LOOK: Duration = Duration::from_millis(100);
const COPY_LOOKS: u32 = 150;
const VOTER_LOOKS: u32 = 100;
/// Longest time without anything to do before the mark, in milliseconds.
const QUIET_MILLIS: u64 = 4_000;

impl HostingTrial {
    /// Adds a learner without a mark, lets the group hibernate, and marks it.
    pub(super) fn mark_quiet_learner(&mut self) {
        let Some((leader, sink)) = self.calm_copy() else { return };
        let plain = self.fleet.peer(sink, MemberType::NonVoter);
        if !self.change(leader, ChangeConfigType::AddPeer, plain) {
            return;
        }
        let has_all = |trial: &HostingTrial| {
            trial.applied(sink).is_some_and(|applied| Some(applied) == trial.applied(leader))
        };
        if !self.wait_until(leader, COPY_LOOKS, has_all) {
            return;
        }
        let quiet = Duration::from_millis(self.random.below(QUIET_MILLIS));
        self.fleet.pass(quiet);
        let marked = RaftPeerPb { member_type: None, ..self.marked_learner(sink) };
        if self.leader() != Some(leader) || !self.change(leader, ChangeConfigType::ModifyPeer, marked) {
            return;
        }
        let id = self.fleet.ids[sink];
        let is_voter = |trial: &HostingTrial| {
            trial.status(leader).is_some_and(|status| status.committed_config.is_voter(id))
        };
        let promoted = self.wait_until(leader, VOTER_LOOKS, is_voter);
        self.fleet.note(format!("a learner that was marked after {quiet:?} is a voter: {promoted}"));
        if !promoted && self.is_undisturbed(leader) {
            let what =
                format!("learner {sink} was marked after {quiet:?} without anything to do, and is no voter");
            self.fleet.report(what);
        }
    }

    /// Waits until something is true, as long as nothing happens to the group; returns true if it is.
    fn wait_until(&mut self, leader: usize, looks: u32, is_true: impl Fn(&HostingTrial) -> bool) -> bool {
        for _ in 0..looks {
            if is_true(self) {
                return true;
            }
            if !self.is_undisturbed(leader) {
                return false;
            }
            self.fleet.pass(LOOK);
        }
        is_true(self)
    }

    fn is_undisturbed(&self, leader: usize) -> bool {
        self.leader() == Some(leader) && self.fleet.is_connected()
    }
}
