//! Decisions over random configurations: each is safe, and together they end.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Decision, Health, Members};
use crate::catalog::record::{Consensus, HostPort, Peer};
use crate::ids::{PeerId, Uuid};

fn id(n: u8) -> PeerId {
    Uuid([n; 16])
}

fn peer(n: u8, voter: bool, promote: bool, replace: bool) -> Peer {
    let address = HostPort { host: format!("host{n}"), port: 7050 };
    Peer { server: id(n), voter, address, promote, replace }
}

fn health() -> impl Strategy<Value = Health> {
    prop_oneof![
        5 => Just(Health::Healthy),
        2 => Just(Health::Failed),
        1 => Just(Health::FailedUnrecoverable),
        1 => Just(Health::Unknown),
    ]
}

fn configuration() -> impl Strategy<Value = (Consensus, BTreeMap<PeerId, Health>, usize)> {
    let member = (prop::bool::weighted(0.8), any::<bool>(), prop::bool::weighted(0.2), health());
    let wanted = prop_oneof![Just(1usize), Just(3), Just(5)];
    (prop::collection::vec(member, 1..8), wanted).prop_map(|(members, wanted)| {
        let (mut peers, mut seen) = (Vec::new(), BTreeMap::new());
        for (n, (voter, promote, replace, state)) in members.into_iter().enumerate() {
            // The first is the leader: it votes, and finds itself healthy.
            let voter = voter || n == 0;
            peers.push(peer(n as u8, voter, promote && !voter, replace));
            seen.insert(id(n as u8), if n == 0 { Health::Healthy } else { state });
        }
        (Consensus { term: 1, leader: Some(id(0)), config_index: 1, peers }, seen, wanted)
    })
}

/// What the leader does by itself: it promotes learners that are marked for it and have caught up.
fn promote(consensus: &mut Consensus, health: &BTreeMap<PeerId, Health>) {
    for peer in &mut consensus.peers {
        if peer.promote && health[&peer.server] == Health::Healthy {
            (peer.voter, peer.promote) = (true, false);
        }
    }
}

/// Does what was decided.
fn follow(consensus: &mut Consensus, health: &mut BTreeMap<PeerId, Health>, decision: Decision, next: u8) {
    match decision {
        Decision::Add => {
            consensus.peers.push(peer(next, false, true, false));
            health.insert(id(next), Health::Healthy);
        }
        Decision::Evict(server) => consensus.peers.retain(|peer| peer.server != server),
        Decision::HandOver(server) => consensus.leader = Some(server),
    }
    promote(consensus, health);
}

fn healthy_majority(consensus: &Consensus, health: &BTreeMap<PeerId, Health>) -> bool {
    let voters = || consensus.peers.iter().filter(|peer| peer.voter);
    let healthy = voters().filter(|peer| health[&peer.server] == Health::Healthy).count();
    healthy > voters().count() / 2
}

proptest! {
    #[test]
    fn decisions_are_safe_and_end((mut consensus, mut health, wanted) in configuration()) {
        promote(&mut consensus, &health);
        let could_commit = healthy_majority(&consensus, &health);
        for next in 10..40 {
            let excused = |_| false;
            let members = Members { consensus: &consensus, health: &health, wanted, excused: &excused };
            let Some(decision) = members.decide(|_| 0) else {
                let replicas = consensus.peers.iter().filter(|peer| peer.voter).count();
                let good = consensus.peers.iter().all(|peer| health[&peer.server] == Health::Healthy);
                prop_assert!(!could_commit || !good || replicas == wanted, "stuck at {consensus:?}");
                return Ok(());
            };
            let was_healthy = match decision {
                Decision::Evict(server) => health[&server] == Health::Healthy,
                Decision::Add | Decision::HandOver(_) => false,
            };
            let leader = consensus.leader.expect("there is one");
            prop_assert!(decision != Decision::Evict(leader), "the leader was evicted");
            prop_assert!(decision != Decision::HandOver(leader), "the leader follows itself");
            follow(&mut consensus, &mut health, decision, next);
            prop_assert!(healthy_majority(&consensus, &health), "{decision:?} left {consensus:?}");
            let good = consensus.peers.iter().filter(|peer| {
                peer.voter && !peer.replace && health[&peer.server] == Health::Healthy
            });
            let enough = good.count() >= wanted;
            prop_assert!(!was_healthy || enough, "a healthy replica went too early: {consensus:?}");
        }
        prop_assert!(false, "no end: {consensus:?}");
    }

    #[test]
    fn servers_in_maintenance_are_waited_for((consensus, health, wanted) in configuration()) {
        let excused = |_| true;
        let members = Members { consensus: &consensus, health: &health, wanted, excused: &excused };
        let marked = consensus.peers.iter().any(|peer| peer.replace);
        let voters = consensus.peers.iter().filter(|peer| peer.voter).count();
        if members.decide(|_| 0) == Some(Decision::Add) {
            prop_assert!(marked || voters < wanted);
        }
    }
}

#[test]
fn no_decision_without_a_leader() {
    let peers = vec![peer(0, true, false, false)];
    let consensus = Consensus { term: 1, leader: None, config_index: 1, peers };
    let health = BTreeMap::from([(id(0), Health::Healthy)]);
    let members = Members { consensus: &consensus, health: &health, wanted: 3, excused: &|_| false };
    assert_eq!(members.decide(|_| 0), None);
}
