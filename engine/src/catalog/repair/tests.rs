//! Decisions over random configurations: each is safe, and their sequence terminates.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{MemberView, RepairDecision, ReportedHealth};
use crate::catalog::record::{ConsensusState, HostPort, PeerRecord};
use crate::ids::{PeerId, Uuid};

fn id(n: u8) -> PeerId {
    Uuid([n; 16])
}

fn peer(n: u8, voter: bool, promote: bool, replace: bool) -> PeerRecord {
    let address = HostPort { host: format!("host{n}"), port: 7050 };
    PeerRecord { server: id(n), voter, address, promote, replace }
}

fn health() -> impl Strategy<Value = ReportedHealth> {
    prop_oneof![
        5 => Just(ReportedHealth::Healthy),
        2 => Just(ReportedHealth::Failed),
        1 => Just(ReportedHealth::FailedUnrecoverable),
        1 => Just(ReportedHealth::Unknown),
    ]
}

fn configuration() -> impl Strategy<Value = (ConsensusState, BTreeMap<PeerId, ReportedHealth>, usize)> {
    let member = (prop::bool::weighted(0.8), any::<bool>(), prop::bool::weighted(0.2), health());
    let wanted = prop_oneof![Just(1usize), Just(3), Just(5)];
    (prop::collection::vec(member, 1..8), wanted).prop_map(|(members, wanted)| {
        let (mut peers, mut seen) = (Vec::new(), BTreeMap::new());
        for (n, (voter, promote, replace, state)) in members.into_iter().enumerate() {
            // The first is the leader: a healthy voter.
            let voter = voter || n == 0;
            peers.push(peer(n as u8, voter, promote && !voter, replace));
            seen.insert(id(n as u8), if n == 0 { ReportedHealth::Healthy } else { state });
        }
        (ConsensusState { term: 1, leader: Some(id(0)), config_index: 1, peers }, seen, wanted)
    })
}

/// Applies the leader's own change: it promotes marked learners that have caught up.
fn promote(consensus: &mut ConsensusState, health: &BTreeMap<PeerId, ReportedHealth>) {
    for peer in &mut consensus.peers {
        if peer.promote && health[&peer.server] == ReportedHealth::Healthy {
            (peer.voter, peer.promote) = (true, false);
        }
    }
}

/// Applies a decision.
fn apply_decision(
    consensus: &mut ConsensusState,
    health: &mut BTreeMap<PeerId, ReportedHealth>,
    decision: RepairDecision,
    next: u8,
) {
    match decision {
        RepairDecision::Add => {
            consensus.peers.push(peer(next, false, true, false));
            health.insert(id(next), ReportedHealth::Healthy);
        }
        RepairDecision::Evict(server) => consensus.peers.retain(|peer| peer.server != server),
        RepairDecision::HandOver(server) => consensus.leader = Some(server),
    }
    promote(consensus, health);
}

fn healthy_majority(consensus: &ConsensusState, health: &BTreeMap<PeerId, ReportedHealth>) -> bool {
    let voters = || consensus.peers.iter().filter(|peer| peer.voter);
    let healthy = voters().filter(|peer| health[&peer.server] == ReportedHealth::Healthy).count();
    healthy > voters().count() / 2
}

proptest! {
    #[test]
    fn decisions_are_safe_and_terminate((mut consensus, mut health, wanted) in configuration()) {
        promote(&mut consensus, &health);
        let could_commit = healthy_majority(&consensus, &health);
        for next in 10..40 {
            let in_maintenance = |_| false;
            let members =
                MemberView { consensus: &consensus, health: &health, wanted, in_maintenance: &in_maintenance };
            let Some(decision) = members.decide(|_| 0) else {
                let replicas = consensus.peers.iter().filter(|peer| peer.voter).count();
                let good = consensus.peers.iter().all(|peer| health[&peer.server] == ReportedHealth::Healthy);
                prop_assert!(!could_commit || !good || replicas == wanted, "stuck at {consensus:?}");
                return Ok(());
            };
            let was_healthy = match decision {
                RepairDecision::Evict(server) => health[&server] == ReportedHealth::Healthy,
                RepairDecision::Add | RepairDecision::HandOver(_) => false,
            };
            let leader = consensus.leader.expect("there is one");
            prop_assert!(decision != RepairDecision::Evict(leader), "the leader was evicted");
            prop_assert!(decision != RepairDecision::HandOver(leader), "the leader transfers to itself");
            apply_decision(&mut consensus, &mut health, decision, next);
            prop_assert!(healthy_majority(&consensus, &health), "{decision:?} left {consensus:?}");
            let good = consensus.peers.iter().filter(|peer| {
                peer.voter && !peer.replace && health[&peer.server] == ReportedHealth::Healthy
            });
            let enough = good.count() >= wanted;
            prop_assert!(!was_healthy || enough, "a healthy replica was evicted too early: {consensus:?}");
        }
        prop_assert!(false, "decisions do not terminate: {consensus:?}");
    }

    #[test]
    fn servers_in_maintenance_are_waited_for((consensus, health, wanted) in configuration()) {
        let in_maintenance = |_| true;
        let members =
                MemberView { consensus: &consensus, health: &health, wanted, in_maintenance: &in_maintenance };
        let marked = consensus.peers.iter().any(|peer| peer.replace);
        let voters = consensus.peers.iter().filter(|peer| peer.voter).count();
        if members.decide(|_| 0) == Some(RepairDecision::Add) {
            prop_assert!(marked || voters < wanted);
        }
    }
}

#[test]
fn no_decision_without_a_leader() {
    let peers = vec![peer(0, true, false, false)];
    let consensus = ConsensusState { term: 1, leader: None, config_index: 1, peers };
    let health = BTreeMap::from([(id(0), ReportedHealth::Healthy)]);
    let members =
        MemberView { consensus: &consensus, health: &health, wanted: 3, in_maintenance: &|_| false };
    assert_eq!(members.decide(|_| 0), None);
}
