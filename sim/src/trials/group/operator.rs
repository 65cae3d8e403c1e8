//! The masters of a group trial: they evict replicas that their leader reports as lost, add servers in their place, and
//! delete replicas that are no member any more.

use engine::ids::PeerId;
use engine::raft::interface::PeerStatus;
use engine::raft::{
    ConfigChange, ConfigChangePart, MemberKind, Peer, PeerHealth, RaftConfig, RaftEvent, RaftStatus,
};

use super::ids::{id_of, peer_of, server_of};
use super::{GroupTrial, MEMBERS};

/// Percentage of changes for which nothing is wrong.
const MOVE_PERCENT: u64 = 35;
/// Percentage of silent members that are evicted.
const SILENT_PERCENT: u64 = 30;
/// Percentage of orders to delete that come late alone.
const LATE_PERCENT: u64 = 15;
/// Percentage of learners that are not marked for promotion, and of looks at which such a one gets its mark or leaves.
const PLAIN_PERCENT: u64 = 35;
const SETTLED_PERCENT: u64 = 8;

impl GroupTrial {
    /// Does what masters do when a leader reports.
    pub(super) fn operate(&mut self) {
        let Some(leader) = self.leader() else { return };
        let now = self.reading(leader);
        let Some(status) = self.servers[leader].running().map(|replica| replica.status(now)) else { return };
        self.delete_former(&status);
        if status.pending_config.is_some() {
            return;
        }
        let part = self.repair(&status).or_else(|| self.move_replica(leader, &status));
        if let Some(part) = part {
            self.change(leader, &status, &part);
        }
    }

    /// Orders a change of members, and checks what a leader makes of it.
    pub(super) fn change(&mut self, leader: usize, status: &RaftStatus, part: &ConfigChangePart) {
        let config = &status.committed_config;
        let matched: Vec<u64> = status.peers.iter().map(|peer| peer.matched).collect();
        self.note(format!("{leader} leads up to {}, others have {matched:?}: {part:?}", status.last));
        self.order(leader, part.clone(), Some(config.kudu_index()));
        let healthy = status.peers.iter().filter(|peer| peer.health == PeerHealth::Healthy);
        let living: Vec<PeerId> = healthy.map(|peer| peer.id).chain(status.leader).collect();
        let accepted = self.accepted(leader);
        let wrong = accepted.and_then(|next| wrong_change(config, &living, part, &next));
        self.report(wrong);
    }

    /// Orders a change of members, of this configuration if one is given.
    pub(super) fn order(&mut self, leader: usize, part: ConfigChangePart, cas_opid_index: Option<i64>) {
        self.membership.order(&part, cas_opid_index);
        let change = ConfigChange { parts: vec![part], cas_opid_index };
        self.step(leader, RaftEvent::ChangeConfig { ticket: 0, change });
    }

    /// Returns the configuration that a leader has accepted and not committed.
    fn accepted(&self, leader: usize) -> Option<RaftConfig> {
        let replica = self.servers[leader].running()?;
        replica.status(self.reading(leader)).pending_config
    }

    /// Orders the deletion of a replica that is no member.
    fn delete_former(&mut self, status: &RaftStatus) {
        let server = self.any_server();
        if status.committed_config.peer(id_of(server)).is_some() || !self.servers[server].is_up {
            return;
        }
        let (now, cas) = (self.reading(server), status.committed_position);
        self.late.push((server, cas));
        if self.random.percent(LATE_PERCENT) {
            return;
        }
        self.act(server, |trial| trial.servers[server].delete(now, cas));
    }

    /// Returns the change that a group needs.
    fn repair(&mut self, status: &RaftStatus) -> Option<ConfigChangePart> {
        let config = &status.committed_config;
        let spare_failed = !self.servers.iter().any(|server| server.rotten || server.failed);
        let silent = self.faults && spare_failed && self.random.percent(SILENT_PERCENT);
        let is_lost = |health: PeerHealth| {
            health == PeerHealth::FailedUnrecoverable || silent && health == PeerHealth::Failed
        };
        let lost = status.peers.iter().find(|peer| is_lost(peer.health)).map(|peer| peer.id);
        match lost {
            // A change from two voters to one that reaches only the voter which leaves, and not its leader's disk,
            // leaves a group that can elect no leader.
            Some(_) if self.faults && config.voter_count() < MEMBERS => None,
            Some(id) if config.peers.len() >= MEMBERS || !config.is_voter(id) => {
                Some(ConfigChangePart::Remove(id))
            }
            _ if config.peers.len() < MEMBERS => self.addition(config),
            _ if config.voter_count() > MEMBERS => self.removal(status.leader, config),
            _ => self.settle_learner(config),
        }
    }

    /// Returns the mark or the removal of a learner that would stay one.
    fn settle_learner(&mut self, config: &RaftConfig) -> Option<ConfigChangePart> {
        let stays = |id: PeerId| self.staying.is_some_and(|server| id_of(server) == id);
        let is_plain = |peer: &&Peer| !peer.is_voter() && !peer.promote && !stays(peer.id);
        let id = config.peers.iter().find(is_plain)?.id;
        if self.faults && !self.random.percent(SETTLED_PERCENT) {
            return None;
        }
        let promote = Some(true);
        Some(match config.voter_count() < MEMBERS || self.faults && self.random.percent(50) {
            true => ConfigChangePart::Modify { id, member: None, promote, replace: None },
            false => ConfigChangePart::Remove(id),
        })
    }

    /// Returns a change that nothing asks for: one member more, or another kind or mark of one.
    fn move_replica(&mut self, leader: usize, status: &RaftStatus) -> Option<ConfigChangePart> {
        let config = &status.committed_config;
        let damaged = self.servers.iter().any(|server| server.rotten || server.failed);
        if !self.faults || damaged || !self.random.percent(MOVE_PERCENT) {
            return None;
        }
        if self.random.percent(30) {
            return self.careless_change(leader, status);
        }
        if config.peers.len() > MEMBERS {
            return None;
        }
        if self.random.percent(70) {
            return self.addition(config);
        }
        let id = self.removal(Some(id_of(leader)), config)?.peer();
        let may_demote = config.voter_count() >= MEMBERS && self.are_up_to_date(leader, status, None);
        may_demote.then_some(ConfigChangePart::Modify {
            id,
            member: Some(MemberKind::NonVoter),
            promote: Some(true),
            replace: None,
        })
    }

    /// Returns true if all voters, but perhaps one, have what the leader has: a group of two needs both, and none of
    /// them may lack what the other's log does not have any more.
    pub(super) fn are_up_to_date(&self, leader: usize, status: &RaftStatus, but: Option<PeerId>) -> bool {
        let last = status.last.index;
        let has_all = |id: PeerId| status.peers.iter().any(|peer| peer.id == id && peer.matched >= last);
        let mut voters = status.committed_config.voters().filter(|peer| Some(peer.id) != but);
        let written = self.servers[leader].unwritten.is_empty();
        written && voters.all(|peer| peer.id == id_of(leader) || has_all(peer.id))
    }

    /// Returns a change by an operator who does not look at the members: marks of voters and learners, a promotion
    /// whether the learner lags or not, and the demotion of one voter while another one is dead.
    fn careless_change(&mut self, leader: usize, status: &RaftStatus) -> Option<ConfigChangePart> {
        let config = &status.committed_config;
        let learners = config.peers.iter().filter(|peer| !peer.is_voter()).map(|peer| peer.id);
        let learners: Vec<PeerId> = learners.collect();
        let is_other = |peer: &&PeerStatus| peer.id != id_of(leader) && config.is_voter(peer.id);
        let others = status.peers.iter().filter(is_other);
        let (living, dead): (Vec<_>, Vec<_>) = others.partition(|peer| peer.health == PeerHealth::Healthy);
        let one_is_dead = config.voter_count() == MEMBERS && dead.len() == 1 && living.len() == 1;
        let (promote, replace) =
            (self.random.pick(&[None, Some(true), Some(false)]), self.random.percent(60));
        let (member, id) = match self.random.below(5) {
            // It must be refused: the leader alone would be left of two voters.
            0 | 1 if one_is_dead => {
                self.note("the demotion of one of two other voters, of which the other is dead");
                (Some(MemberKind::NonVoter), living[0].id)
            }
            2 if !learners.is_empty() => (Some(MemberKind::Voter), self.random.pick(&learners)),
            3 if !learners.is_empty() => (None, self.random.pick(&learners)),
            _ => (None, self.removal(Some(id_of(leader)), config)?.peer()),
        };
        Some(ConfigChangePart::Modify { id, member, promote, replace: Some(replace) })
    }

    fn addition(&mut self, config: &RaftConfig) -> Option<ConfigChangePart> {
        let others = self.servers.iter().filter(|server| !server.is_lost).map(|server| server.number);
        let others: Vec<usize> = others.filter(|number| config.peer(id_of(*number)).is_none()).collect();
        let server = *others.get(self.random.below(others.len() as u64) as usize)?;
        let promote = !self.faults || !self.random.percent(PLAIN_PERCENT);
        Some(ConfigChangePart::Add(Peer { member: MemberKind::NonVoter, promote, ..peer_of(server) }))
    }

    fn removal(&mut self, leader: Option<PeerId>, config: &RaftConfig) -> Option<ConfigChangePart> {
        let others: Vec<PeerId> =
            config.peers.iter().map(|peer| peer.id).filter(|id| Some(*id) != leader).collect();
        let id = others.get(self.random.below(others.len() as u64) as usize)?;
        Some(ConfigChangePart::Remove(*id))
    }

    /// Returns true if a group has its members, all of them healthy voters.
    pub(super) fn is_whole(&self, status: &RaftStatus) -> bool {
        let config = &status.committed_config;
        let healthy = |peer: &PeerStatus| {
            peer.health == PeerHealth::Healthy && self.servers[server_of(peer.id)].running().is_some()
        };
        status.pending_config.is_none()
            && config.peers.len() == MEMBERS
            && config.voter_count() == MEMBERS
            && status.peers.iter().all(healthy)
    }
}

/// Returns what is wrong with the configuration that a leader has accepted: marks alone change no member's kind, and of
/// the voters that stay after one has left a majority lives.
fn wrong_change(
    before: &RaftConfig,
    living: &[PeerId],
    part: &ConfigChangePart,
    next: &RaftConfig,
) -> Option<String> {
    let id = part.peer();
    let kind = |config: &RaftConfig| config.peer(id).map(|peer| peer.member);
    if matches!(part, ConfigChangePart::Modify { member: None, .. }) && kind(next) != kind(before) {
        return Some(format!("{part:?} makes {:?} of {:?}", kind(next), kind(before)));
    }
    let live = next.voters().filter(|peer| living.contains(&peer.id)).count();
    let loses_one = next.voter_count() < before.voter_count();
    (loses_one && live < next.majority())
        .then(|| format!("{part:?} leaves {} voters, of which {live} live", next.voter_count()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(peers: &[Peer]) -> RaftConfig {
        RaftConfig { peers: peers.to_vec(), ..RaftConfig::default() }
    }

    fn learner(server: usize) -> Peer {
        Peer { member: MemberKind::NonVoter, ..peer_of(server) }
    }

    #[test]
    fn a_mark_that_makes_a_voter_is_wrong() {
        let before = config(&[peer_of(0), learner(1)]);
        let (id, replace) = (id_of(1), Some(true));
        let mark = ConfigChangePart::Modify { id, member: None, promote: None, replace };
        let living = [id_of(0), id];
        assert_eq!(wrong_change(&before, &living, &mark, &before), None);
        assert!(wrong_change(&before, &living, &mark, &config(&[peer_of(0), peer_of(1)])).is_some());
    }

    #[test]
    fn a_demotion_that_leaves_no_living_majority_is_wrong() {
        let before = config(&[peer_of(0), peer_of(1), peer_of(2)]);
        let next = config(&[peer_of(0), learner(1), peer_of(2)]);
        let (id, member) = (id_of(1), Some(MemberKind::NonVoter));
        let demotion = ConfigChangePart::Modify { id, member, promote: None, replace: None };
        assert_eq!(wrong_change(&before, &[id_of(0), id_of(2)], &demotion, &next), None);
        assert!(wrong_change(&before, &[id_of(0), id_of(1)], &demotion, &next).is_some());
    }
}
