//! A learner of a settled group that gets its marks once it has everything, so that nothing but its kind keeps it from
//! voting.
//!
//! ```text
//!   leader ── mark ──► learner: acknowledged before it is committed: no promotion while a change is pending
//!      └───── mark ──► voters, slow: committed
//!   leader ── commit index ──► learner: its response is all that can promote it, and must wake a hibernated leader
//! ```

use engine::raft::ConfigChangePart;

use super::GroupTrial;
use super::ids::id_of;
use super::voters::other_voters;

/// Rounds until the leader knows that a learner has everything, and until a mark is committed.
const MATCH_ROUNDS: u32 = 100;
const MARK_ROUNDS: u32 = 3;

impl GroupTrial {
    /// Marks a learner that has everything for replacement, and then for promotion. The first mark leaves it a learner:
    /// the order is checked when its leader accepts it, and again when it is committed.
    pub(super) fn mark_learner(&mut self) {
        let Some(learner) = self.add_matched_learner() else { return };
        self.mark(learner, None, Some(true));
        for _ in 0..MARK_ROUNDS {
            self.round();
        }
        self.promote_quietly(learner);
    }

    /// Marks a learner for promotion, and lets it acknowledge that before voters do. No time passes: its leader sends
    /// no heartbeat, so the response to the commit index is the first one that can promote it. If the leader hibernates
    /// by then, that response has an effect which it must not have.
    fn promote_quietly(&mut self, learner: usize) {
        let Some((leader, status)) = self.leader_of_three() else { return };
        let voters = other_voters(leader, &status);
        voters.iter().for_each(|voter| self.servers[*voter].stalled = true);
        self.mark(learner, Some(true), None);
        self.act(leader, GroupTrial::take_turns);
        voters.iter().for_each(|voter| self.servers[*voter].stalled = false);
        self.act(leader, GroupTrial::take_turns);
    }

    /// Adds a learner that is to stay one, and waits until its leader knows that it has everything.
    pub(super) fn add_matched_learner(&mut self) -> Option<usize> {
        // Without a change of members the trial does not know which servers are none.
        self.ledger.newest_config()?;
        self.add_learner();
        let learner = self.staying?;
        for _ in 0..MATCH_ROUNDS {
            if self.found.is_some() {
                return None;
            }
            if self.is_matched(learner) {
                return Some(learner);
            }
            self.round();
        }
        None
    }

    /// Returns true if a server is a learner whose leader knows that it has everything.
    fn is_matched(&self, server: usize) -> bool {
        let Some((leader, status)) = self.leader_of_three() else { return false };
        let config = &status.committed_config;
        let is_learner = config.peer(id_of(server)).is_some_and(|peer| !peer.is_voter());
        is_learner && self.matched(leader, id_of(server)) == Some(status.last.index)
    }

    /// Changes the marks of a member, and not its kind.
    fn mark(&mut self, member: usize, promote: Option<bool>, replace: Option<bool>) {
        let Some((leader, status)) = self.leader_of_three() else { return };
        let mark = ConfigChangePart::Modify { id: id_of(member), member: None, promote, replace };
        self.note(format!("{member}, which has everything, gets marks: {mark:?}"));
        self.change(leader, &status, &mark);
    }
}
