//! A learner of a settled group that is removed, added again, and loses its former replica to the order of its removal
//! while its leader catches it up. Responses of that replica are in flight then, and must not count any more.
//!
//! ```text
//!   leader ── update 1, update 2 ──► learner ── response 1 ──►  held back
//!                                       │ deleted
//!   leader ◄── no replica ──────────────┤ update 2
//!   leader ◄── response 1 ─────────────────────────────────────  now
//! ```

use std::time::Duration;

use engine::ids::PeerId;
use engine::raft::{ConfigChangePart, ConfigPosition, MemberKind, Peer};

use super::GroupTrial;
use super::ids::{id_of, peer_of};
use super::links::Message;

/// Requests that the learner misses: more than are in flight to it at once, so that it does not learn within the
/// responses which are held that it is a member again.
const MISSED_REQUESTS: u32 = 8;
/// Most messages until the learner has accepted some of them, and until its leader is told that it has no replica.
const MESSAGES_MAX: u32 = 200;
/// Time that passes if no message is in flight: a heartbeat is due after it.
const ASKED_AFTER: Duration = Duration::from_millis(10);

impl GroupTrial {
    /// Lets a learner lose its replica. [`super::missing_replicas`] checks what its leader takes for replicated.
    pub(super) fn lose_learner(&mut self) {
        let Some(learner) = self.add_matched_learner() else { return };
        self.crash(learner, false);
        for _ in 0..MISSED_REQUESTS {
            self.begin_request();
            self.await_replies();
        }
        let readded = if self.found.is_none() { self.readd_learner(learner) } else { None };
        self.act(learner, |trial| trial.restart(learner));
        if let Some((leader, cas)) = readded {
            self.delete_before_responses(leader, learner, cas);
        }
    }

    /// Removes a learner and adds it again. Returns its leader and the position of the configuration without it, if
    /// both changes are committed at once.
    fn readd_learner(&mut self, learner: usize) -> Option<(usize, ConfigPosition)> {
        let (leader, _) = self.leader_of_three()?;
        self.order(leader, ConfigChangePart::Remove(id_of(learner)), None);
        self.act(leader, GroupTrial::take_turns);
        let without = self.leader_of_three().filter(|(now, _)| *now == leader)?.1;
        if without.committed_config.peer(id_of(learner)).is_some() {
            return None;
        }
        let again = Peer { member: MemberKind::NonVoter, ..peer_of(learner) };
        self.order(leader, ConfigChangePart::Add(again), None);
        self.act(leader, GroupTrial::take_turns);
        let with = self.leader_of_three().filter(|(now, _)| *now == leader)?.1;
        with.committed_config.peer(id_of(learner)).map(|_| (leader, without.committed_position))
    }

    /// Deletes a learner's replica, and lets its leader know that before the replica's last responses arrive.
    fn delete_before_responses(&mut self, leader: usize, learner: usize, cas: ConfigPosition) {
        let held = self.hold_responses(leader, id_of(learner));
        let (now, before) = (self.reading(learner), self.servers[learner].deleted);
        if !held.is_empty() {
            self.act(learner, |trial| trial.servers[learner].delete(now, cas));
        }
        let is_deleted = self.servers[learner].deleted > before;
        for _ in 0..MESSAGES_MAX {
            if !is_deleted || self.matched(leader, id_of(learner)) == Some(0) {
                break;
            }
            self.move_oldest();
        }
        let is_told = is_deleted && self.matched(leader, id_of(learner)) == Some(0);
        let count = held.len();
        self.note(format!(
            "the replica of {learner} is gone, and its leader is told: {is_told}; {count} responses come late"
        ));
        for message in held {
            self.act(leader, |trial| trial.deliver(message));
        }
    }

    /// Lets messages arrive in order until a member has begun to catch up, and has accepted more than its leader knows.
    /// Returns the responses that say so; none if it does not come to that.
    fn hold_responses(&mut self, leader: usize, member: PeerId) -> Vec<Message> {
        for _ in 0..MESSAGES_MAX {
            if self.matched(leader, member) > Some(0) {
                let held = self.links.take_accepted(member);
                if !held.is_empty() {
                    return held;
                }
            }
            self.move_oldest();
        }
        Vec::new()
    }

    /// Lets the oldest message arrive, or time pass, and all disks write.
    fn move_oldest(&mut self) {
        match self.links.next(&mut self.random, false) {
            Some(message) => {
                let (_, to) = message.ends();
                self.act(to, |trial| trial.deliver(message));
            }
            None => self.pass(ASKED_AFTER),
        }
        for at in 0..self.servers.len() {
            self.act(at, |trial| trial.write_effects(at));
        }
    }
}
