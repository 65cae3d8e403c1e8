//! The members that a group must have by the orders of an operator. Nothing else changes them, but the promotion of a
//! learner that is marked for it.

use std::collections::BTreeMap;

use engine::ids::PeerId;
use engine::raft::{ConfigChangePart, MemberKind, Peer, RaftConfig};

/// A member's kind and marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Member {
    kind: MemberKind,
    promote: bool,
    replace: bool,
}

impl Member {
    fn of(peer: &Peer) -> Member {
        Member { kind: peer.member, promote: peer.promote, replace: peer.replace }
    }
}

const VOTER: Member = Member { kind: MemberKind::Voter, promote: false, replace: false };

type Members = BTreeMap<PeerId, Member>;

/// Committed members, and all orders to change them. An order may take effect late, at a next leader.
pub(super) struct Membership {
    members: Members,
    /// Index of the committed configuration.
    index: i64,
    /// Orders, with the index of the only configuration that they may change, if they name one.
    orders: Vec<(ConfigChangePart, Option<i64>)>,
    /// Voters of forced configurations.
    forced: Vec<Vec<PeerId>>,
}

fn members_of(config: &RaftConfig) -> Members {
    config.peers.iter().map(|peer| (peer.id, Member::of(peer))).collect()
}

impl Membership {
    pub(super) fn of(config: &RaftConfig) -> Membership {
        let (members, index) = (members_of(config), config.kudu_index());
        Membership { members, index, orders: Vec::new(), forced: Vec::new() }
    }

    pub(super) fn order(&mut self, part: &ConfigChangePart, cas: Option<i64>) {
        self.orders.push((part.clone(), cas));
    }

    pub(super) fn force(&mut self, voters: &[PeerId]) {
        self.forced.push(voters.to_vec());
    }

    /// Takes the next committed configuration; returns what is wrong with it.
    pub(super) fn commit(&mut self, config: &RaftConfig) -> Option<String> {
        let next = members_of(config);
        let is_due = |cas: Option<i64>| cas.is_none_or(|cas| cas == self.index);
        let is_ordered = self.orders.iter().any(|(part, cas)| is_due(*cas) && self.after(part) == next);
        let is_promoted = self.members.keys().any(|id| self.promoted(*id).is_some_and(|after| after == next));
        let is_forced = self.forced.iter().any(|voters| {
            let forced: Members = voters.iter().map(|id| (*id, VOTER)).collect();
            forced == next
        });
        let before = std::mem::replace(&mut self.members, next);
        self.index = config.kudu_index();
        let wrong = || format!("no order and no promotion makes {:?} of {before:?}", self.members);
        (!is_ordered && !is_promoted && !is_forced).then(wrong)
    }

    /// Returns the members after an order.
    fn after(&self, part: &ConfigChangePart) -> Members {
        let mut members = self.members.clone();
        match part {
            ConfigChangePart::Add(peer) => {
                members.entry(peer.id).or_insert(Member::of(peer));
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
        membership.order(&ConfigChangePart::Remove(id_of(2)), None);
        assert_eq!(membership.commit(&config(&[peer_of(0), peer_of(1)])), None, "an order");
    }

    #[test]
    fn an_order_changes_only_the_configuration_that_it_names() {
        let of = |index, peers: &[Peer]| RaftConfig { opid_index: Some(index), ..config(peers) };
        let committed = |cas| {
            let mut membership = Membership::of(&of(7, &[peer_of(0), peer_of(1)]));
            membership.order(&ConfigChangePart::Remove(id_of(1)), Some(cas));
            membership.commit(&of(9, &[peer_of(0)]))
        };
        assert_eq!(committed(7), None);
        assert!(committed(5).is_some());
    }

    #[test]
    fn a_mark_keeps_a_learner_and_a_learner_without_one_stays() {
        let learner = Peer { member: MemberKind::NonVoter, ..peer_of(1) };
        let mut membership = Membership::of(&config(&[peer_of(0), learner.clone()]));
        let replace = Some(true);
        let mark = ConfigChangePart::Modify { id: id_of(1), member: None, promote: None, replace };
        membership.order(&mark, None);
        let replaced = Peer { replace: true, ..learner.clone() };
        assert_eq!(membership.commit(&config(&[peer_of(0), replaced])), None);
        let voter = Peer { replace: true, ..peer_of(1) };
        assert!(membership.commit(&config(&[peer_of(0), voter])).is_some());
    }
}
