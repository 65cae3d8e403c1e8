//! The last orders of an operator in a group trial, and faults of devices, in a group that has settled: all its members
//! are healthy, and the trial knows what must follow.
//!
//! In the steps before, a leader seldom leads, and a voter is seldom silent, for as long as it takes to call a voter
//! dead.

use engine::raft::{ConfigChangePart, MemberKind, PeerHealth, RaftStatus};

use super::ids::id_of;
use super::voters::other_voters;
use super::{GroupTrial, MEMBERS};

/// An order, and the words for the time after it.
type LastOrder = (fn(&mut GroupTrial), &'static str);

const ORDERS: [LastOrder; 4] = [
    (GroupTrial::demote_beside_dead, "after a demotion that must be refused"),
    (GroupTrial::mark_learner, "after the marks of a learner"),
    (GroupTrial::lose_learner, "after a learner has lost its replica"),
    (GroupTrial::undo_append, "after an undone append and a power cut"),
];
/// Rounds until a leader calls a silent voter dead: its silence must last a second.
const SILENT_ROUNDS: u32 = 250;

impl GroupTrial {
    /// Gives the orders in some trials, if no file was damaged; the group settles after each of them. Returns false if
    /// something is wrong.
    pub(super) fn give_last_orders(&mut self) -> bool {
        let is_damaged = self.servers.iter().any(|server| server.rotten || server.failed);
        if self.found.is_some() || is_damaged || !self.variant.last_orders {
            return self.found.is_none();
        }
        ORDERS.iter().all(|(order, when)| {
            order(self);
            // Now a learner without a mark for promotion leaves.
            self.staying = None;
            self.settles(when)
        })
    }

    /// Orders the demotion of one of two other voters, while the leader calls the other one dead. The leader must
    /// refuse it: of the two voters that it would leave the leader alone lives.
    fn demote_beside_dead(&mut self) {
        let Some((leader, status)) = self.leader_of_three() else { return };
        let others = other_voters(leader, &status);
        let dead = self.random.pick(&others);
        self.crash(dead, false);
        for _ in 0..SILENT_ROUNDS {
            if self.found.is_some() || self.demote_living(dead) {
                break;
            }
            self.round();
        }
        self.act(dead, |trial| trial.restart(dead));
    }

    /// Orders the demotion if the leader calls one voter dead and the other one healthy. Returns true if it has.
    fn demote_living(&mut self, dead: usize) -> bool {
        let Some((leader, status)) = self.leader_of_three() else { return false };
        let others = other_voters(leader, &status);
        let Some(living) = others.iter().copied().find(|other| *other != dead) else { return false };
        let is = |server: usize, health: PeerHealth| {
            status.peers.iter().any(|peer| peer.id == id_of(server) && peer.health == health)
        };
        if !is(dead, PeerHealth::Failed) || !is(living, PeerHealth::Healthy) {
            return false;
        }
        self.note(format!("the demotion of {living} beside dead {dead}"));
        let (member, promote) = (Some(MemberKind::NonVoter), Some(true));
        let demotion = ConfigChangePart::Modify { id: id_of(living), member, promote, replace: None };
        self.change(leader, &status, &demotion);
        true
    }

    /// Returns the leader and its status, if it has three voters and no change is pending.
    pub(super) fn leader_of_three(&self) -> Option<(usize, RaftStatus)> {
        let leader = self.leader()?;
        let status = self.status_of(leader)?;
        let is_whole = status.pending_config.is_none() && status.committed_config.voter_count() == MEMBERS;
        is_whole.then_some((leader, status))
    }
}
