//! Hibernation: an event that need not wake a hibernated replica may be given to it later, so it changes nothing
//! but clocks. Here it is given at once, and must have no effect.

use engine::raft::interface::UpdateRequest;
use engine::raft::{Hibernation, RaftEvent, RaftReply};
use engine::replica::{Replica, ReplicaEffects};

use super::GroupTrial;

impl GroupTrial {
    /// Gives a reply of another server to a replica.
    pub(super) fn step_reply(&mut self, server: usize, event: RaftEvent) {
        let idle = self.hibernation(server);
        let replies = idle.filter(|idle| idle.is_expected_reply(&event)).map(|_| Vec::new());
        self.step_idle(server, event, replies);
    }

    /// Gives an update of a leader to a replica.
    pub(super) fn take_update(&mut self, server: usize, ticket: u64, request: UpdateRequest) {
        let reply = self.hibernation(server).and_then(|idle| idle.heartbeat_reply(&request));
        let replies = reply.map(|reply| vec![(ticket, RaftReply::Update(reply))]);
        self.step_idle(server, RaftEvent::Update { ticket, request }, replies);
    }

    /// Returns the events that need not wake a replica, unless its time has come.
    fn hibernation(&self, server: usize) -> Option<Hibernation> {
        let now = self.reading(server).mono;
        let running = self.servers[server].running();
        running.filter(|replica| now < replica.deadline()).and_then(Replica::hibernation)
    }

    /// Gives an event to a replica. `replies`: all that it may do if it need not be woken.
    fn step_idle(&mut self, server: usize, event: RaftEvent, replies: Option<Vec<(u64, RaftReply)>>) {
        let now = self.reading(server);
        let shown = replies.is_some().then(|| format!("{event:?}"));
        self.servers[server].step(now, event);
        let out = &self.servers[server].out;
        let wrong = replies.filter(|replies| !has_no_effect(out, replies)).map(|replies| {
            format!(
                "replica {server} need not be woken for {}, and does {:?}, {:?}, {:?}, {:?} instead of {replies:?}",
                shown.unwrap_or_default(),
                out.log,
                out.messages,
                out.replies,
                out.meta
            )
        });
        self.report(wrong);
        self.settle(server);
    }
}

/// Returns true if a step had no effect but these replies, and perhaps a newer safe time.
fn has_no_effect(out: &ReplicaEffects, replies: &[(u64, RaftReply)]) -> bool {
    out.replies == replies
        && out.log.is_empty()
        && out.meta.is_none()
        && out.messages.is_empty()
        && out.read_log.is_empty()
        && out.done.is_empty()
        && out.completed.is_empty()
        && !out.status_changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_the_status_is_an_effect_and_a_newer_safe_time_is_none() {
        let quiet = ReplicaEffects { progress: true, ..ReplicaEffects::default() };
        assert!(has_no_effect(&quiet, &[]));
        assert!(!has_no_effect(&quiet, &[(1, RaftReply::Config(Ok(())))]), "a reply is missing");
        assert!(!has_no_effect(&ReplicaEffects { status_changed: true, ..quiet }, &[]));
    }
}
