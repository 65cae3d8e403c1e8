//! Members that have told their leader that they have no replica any more. From then on the leader may take for
//! replicated there only what another replica has: responses of the lost one may still arrive.

use engine::ids::PeerId;
use engine::raft::RaftEvent;
use engine::raft::interface::UpdateErrorKind;

use super::GroupTrial;
use super::ids::server_of;
use super::server::MissingReplica;

impl GroupTrial {
    /// Gives a reply to a server, and checks what a leader takes for replicated at the member.
    pub(super) fn take_reply(&mut self, server: usize, event: RaftEvent) {
        let RaftEvent::Updated { peer, result, .. } = &event else {
            return self.step_reply(server, event);
        };
        let (peer, missing) = (*peer, UpdateErrorKind::TabletNotFound);
        let error = result.as_ref().ok().and_then(|response| response.error.as_ref());
        let is_missing = error.is_some_and(|error| error.kind == missing);
        let before = self.matched(server, peer);
        self.step_reply(server, event);
        let after = self.matched(server, peer);
        let member = server_of(peer);
        let told = MissingReplica { life: self.servers[server].life, deleted: self.servers[member].deleted };
        if is_missing && before > Some(0) && after == Some(0) {
            self.missing_replicas.insert((server, member), told);
            self.note(format!("{server} is told that {member} has no replica any more"));
        } else if after > before && self.missing_replicas.get(&(server, member)) == Some(&told) {
            self.check_matched(server, member, after.unwrap_or_default());
        }
    }

    /// Returns the index up to which a leader takes its log for replicated at a member.
    pub(super) fn matched(&self, leader: usize, member: PeerId) -> Option<u64> {
        let replica = self.servers[leader].running().filter(|replica| replica.is_leader())?;
        let peers = replica.status(self.reading(leader)).peers;
        peers.into_iter().find(|peer| peer.id == member).map(|peer| peer.matched)
    }

    /// Reports a match index above what a member has, whose former replica is known to be gone.
    fn check_matched(&mut self, leader: usize, member: usize, matched: u64) {
        let term = |server: usize| {
            let replica = self.servers[server].running()?;
            Some((replica.status(self.reading(server)).term, replica.last_op().index))
        };
        let own = &self.servers[member];
        let has = match term(member) {
            // A later leader may have truncated what this one has sent.
            Some((newer, _)) if term(leader).is_none_or(|(own, _)| own < newer) => return,
            Some((_, last)) => last,
            None if own.is_up && !own.failed && own.open.is_none() => 0,
            None => return,
        };
        let wrong = format!(
            "leader {leader} takes {matched} operations for replicated at {member}, whose former replica is gone, and \
             which has {has}"
        );
        self.report((matched > has).then_some(wrong));
    }
}
