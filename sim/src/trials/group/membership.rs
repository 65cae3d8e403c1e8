//! The members that a group must have by the orders of an operator. Nothing else changes them, but the promotion of a
//! learner that is marked for it.

use std::collections::BTreeMap;

use engine::ids::PeerId;
use engine::raft::{ConfigChangePart, MemberKind, RaftConfig};

/// A member's kind and marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Member {
    kind: MemberKind,
    promote: bool,
    replace: bool,
}

const VOTER: Member = Member { kind: MemberKind::Voter, promote: false, replace: false };

type Members = BTreeMap<PeerId, Member>;

/// Committed members, and all orders to change them. An order may be carried out late, by a next leader.
pub(super) struct Membership {
    members: Members,
    orders: Vec<ConfigChangePart>,
    /// Voters of forced configurations.
    forced: Vec<Vec<PeerId>>,
}

fn members_of(config: &RaftConfig) -> Members {
    let member = |peer: &engine::raft::Peer| {
        (peer.id, Member { kind: peer.member, promote: peer.promote, replace: peer.replace })
    };
    config.peers.iter().map(member).collect()
}

impl Membership {
    pub(super) fn of(config: &RaftConfig) -> Membership {
        Membership { members: members_of(config), orders: Vec::new(), forced: Vec::new() }
    }

    pub(super) fn order(&mut self, part: &ConfigChangePart) {
        if !self.orders.contains(part) {
            self.orders.push(part.clone());
        }
    }

    pub(super) fn force(&mut self, voters: &[PeerId]) {
        self.forced.push(voters.to_vec());
    }

    /// Takes over the next committed configuration; returns what is wrong with it.
    pub(super) fn commit(&mut self, next: &RaftConfig) -> Option<String> {
        let next = members_of(next);
        let is_ordered = self.orders.iter().any(|part| self.after(part) == next);
        let is_promoted = self.members.keys().any(|id| self.promoted(*id).is_some_and(|after| after == next));
        let is_forced = self.forced.iter().any(|voters| {
            let forced: Members = voters.iter().map(|id| (*id, VOTER)).collect();
            forced == next
        });
        let before = std::mem::replace(&mut self.members, next);
        let wrong = || format!("no order and no promotion makes {:?} of {before:?}", self.members);
        (!is_ordered && !is_promoted && !is_forced).then(wrong)
    }

    /// Returns the members after an order.
    fn after(&self, part: &ConfigChangePart) -> Members {
        let mut members = self.members.clone();
        match part {
            ConfigChangePart::Add(peer) => {
                let added = Member { kind: peer.member, promote: peer.promote, replace: peer.replace };
                members.entry(peer.id).or_insert(added);
            }
            ConfigChangePart::Remove(id) => drop(members.remove(id)),
            ConfigChangePart::Modify { id, member, promote, replace } => {
                members.entry(*id).and_modify(|own| {
                    own.kind = member.unwrap_or(own.kind);
                    own.promote = promote.unwrap_or(own.promote) && own.kind == MemberKind::NonVoter;
                    own.replace = replace.unwrap_or(own.replace);
                });
            }
        }
        members
    }

    /// Returns the members after the promotion of one of them, if it is marked for that.
    fn promoted(&self, id: PeerId) -> Option<Members> {
        let learner = self.members.get(&id).filter(|own| own.kind == MemberKind::NonVoter && own.promote)?;
        let mut members = self.members.clone();
        members.insert(id, Member { replace: learner.replace, ..VOTER });
        Some(members)
    }
}

#[cfg(test)]
mod tests {
    use engine::raft::Peer;

    use super::super::ids::{id_of, peer_of};
    use super::*;

    fn config(peers: &[Peer]) -> RaftConfig {
        RaftConfig { peers: peers.to_vec(), ..RaftConfig::default() }
    }

    #[test]
    fn only_orders_and_promotions_change_members() {
        let marked = Peer { member: MemberKind::NonVoter, promote: true, ..peer_of(1) };
        let mut membership = Membership::of(&config(&[peer_of(0), marked.clone()]));
        assert_eq!(membership.commit(&config(&[peer_of(0), peer_of(1)])), None, "a promotion");
        let mut membership = Membership::of(&config(&[peer_of(0), marked]));
        assert!(membership.commit(&config(&[peer_of(0), peer_of(1), peer_of(2)])).is_some(), "an addition");
        membership.order(&ConfigChangePart::Remove(id_of(2)));
        assert_eq!(membership.commit(&config(&[peer_of(0), peer_of(1)])), None, "an order");
    }

    #[test]
    fn a_mark_keeps_a_learner_and_a_learner_without_one_stays() {
        let learner = Peer { member: MemberKind::NonVoter, ..peer_of(1) };
        let mut membership = Membership::of(&config(&[peer_of(0), learner.clone()]));
        let replace = Some(true);
        membership.order(&ConfigChangePart::Modify { id: id_of(1), member: None, promote: None, replace });
        let replaced = Peer { replace: true, ..learner.clone() };
        assert_eq!(membership.commit(&config(&[peer_of(0), replaced])), None);
        let voter = Peer { replace: true, ..peer_of(1) };
        assert!(membership.commit(&config(&[peer_of(0), voter])).is_some());
    }
}
